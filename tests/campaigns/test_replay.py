"""A seed gives a schedule: the same trace in any process. A fault that a schedule shows is found, and shown again."""

import os
import subprocess
import sys

import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding import bindings
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage import open_storage
from tests.campaigns import replay
from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.draws import SEED
from tests.repository import REPOSITORY

pytestmark = pytest.mark.usefixtures("seed")


def test_a_seed_gives_the_same_trace_in_another_process() -> None:
    other = subprocess.Popen(
        [sys.executable, "-m", "tests.campaigns.replay", str(SEED), "0"],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        text=True,
    )
    traces: list[str] = []
    replay.run(Budget(600.0, SEED, is_enough=lambda counts: counts.total() == 6), traces.append)
    assert len(set(traces)) == 6
    assert other.communicate()[0] == traces[0]


def test_all_orders_of_two_publications_keep_the_tag_on_the_newer() -> None:
    budget = Budget(600.0, 0)
    replay.run_all(budget, ("old", "new"))
    assert budget.counts["schedules"] > 90


def test_a_commit_that_asserts_no_tag_is_found_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "_requirements", lambda _: ())
    found = []
    for _ in range(2):
        budget = Budget(600.0, 0)
        with pytest.raises(BrokenPromiseError, match="the tag went back") as error:
            replay.run_all(budget, ("old", "new"))
        assert budget.counts["schedules"] <= 30
        found.append(str(error.value))
    assert found[0] == found[1]


def test_a_collection_of_what_is_named_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """However old it is."""

    def collect(table: Table, *, storage: StorageConfig) -> None:
        store = open_storage(table.location(), storage)
        paths = [file.path for file in store.list(f"{table.location()}/metadata")]
        store.delete_all([path for path in paths if path.endswith(".puffin")])

    monkeypatch.setattr(replay, "collect_garbage", collect)
    budget = Budget(600.0, 0)
    with pytest.raises(BrokenPromiseError, match="files that are named were collected"):
        replay.run_all(budget)
    assert budget.counts["schedules"] <= 30
