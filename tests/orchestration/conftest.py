"""Dagster instances of tests in this process; what starts Dagster's own processes has one in a folder."""

from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.storage.defs_state.base import set_defs_state_storage

from icepuffin.orchestration.sensor import sensor_definition


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Dagster's own in memory: an event is written in 2 ms instead of 20, and nothing else differs."""
    with dg.DagsterInstance.ephemeral() as opened:
        yield opened


@pytest.fixture(autouse=True)
def patient_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation writes all that is due, on a slow machine as well."""
    monkeypatch.setattr(sensor_definition, "WRITING_SECONDS", 3600.0)


@pytest.fixture(autouse=True)
def no_closed_instance() -> Iterator[None]:
    """Dagster resolves definitions by the instance that was opened last, which another test of the process has closed
    where instances are not closed in the order in which they were opened: then it raises.
    """
    with set_defs_state_storage(None):
        yield
