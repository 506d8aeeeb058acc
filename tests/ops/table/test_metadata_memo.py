"""The memo of a table's metadata: one result per state, gone with the state, and the same answers as a search."""

import gc
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from icepuffin.ops.table import metadata_memo
from icepuffin.ops.table.metadata_memo import once_per_metadata, snapshots_by_id, statistics_by_id
from tests.orchestration.backlog import make_backlog, with_snapshots


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_backlog(tmp_path, 1, 5).catalog.load_table("demo.t0")


def test_a_result_is_worked_out_once_per_state_and_arguments(table: Table) -> None:
    calls: list[object] = []

    @once_per_metadata
    def count(metadata: TableMetadata, more: int) -> int:
        calls.append((metadata, more))
        return len(metadata.snapshots) + more

    assert [count(table.metadata, 1), count(table.metadata, 1), count(table.metadata, 2)] == [6, 6, 7]
    assert len(calls) == 2
    later = with_snapshots(table.metadata, 3)
    assert (count(later, 1), count(table.metadata, 1)) == (9, 6)
    assert len(calls) == 3
    assert [count(later, more=more) for more in (2, 3, 2)] == [10, 11, 10], "by their names as well"
    assert len(calls) == 5


def test_results_go_with_the_state_that_they_are_of(table: Table, tmp_path: Path) -> None:
    key = id(table.metadata)
    snapshots_by_id(table.metadata)
    assert key in metadata_memo._results
    catalog = SqlCatalog("demo", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    table.metadata = catalog.load_table("demo.t0").metadata
    gc.collect()
    assert key not in metadata_memo._results
    catalog.engine.dispose()


def test_a_lookup_shows_what_a_search_of_the_metadata_does(table: Table) -> None:
    metadata = table.metadata
    for snapshot_id in (*(snapshot.snapshot_id for snapshot in metadata.snapshots), 7):
        assert snapshots_by_id(metadata).get(snapshot_id) is metadata.snapshot_by_id(snapshot_id)
    assert list(snapshots_by_id(metadata).values()) == metadata.snapshots
    assert statistics_by_id(metadata) == {}
