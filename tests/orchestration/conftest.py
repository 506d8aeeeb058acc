"""Dagster instances of tests in this process; what starts Dagster's own processes has one in a folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.defs_state.base import set_defs_state_storage

from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.orchestration.sensor import sensor_definition
from tests.orchestration.lake import make_rows


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


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The table `search.docs` of docs/dagster.md, in one snapshot."""
    uri = f"sqlite:///{tmp_path}/lake.db"
    catalog = open_catalog("lake", {"type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"})
    catalog.create_namespace("search")
    new_table = catalog.create_table("search.docs", make_rows(0, 1).schema)
    new_table.append(make_rows(0, 200))
    monkeypatch.setenv("LAKE_URI", uri)
    return new_table
