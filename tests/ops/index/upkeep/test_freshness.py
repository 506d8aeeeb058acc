"""How far an index is behind, where several snapshots are late: by the age of the oldest."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.types import FloatType

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.upkeep.freshness import FreshnessLag, index_lag, missing_ref
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import data_snapshots
from tests.conftest import ROWS, make_rows
from tests.ops.catalog.bindings import bind_as_before, binding
from tests.ops.index.comparison import DEFINITION
from tests.ops.index.snapshot_times import set_times

HOUR = 3_600
START = 1_700_000_000


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    """Four snapshots, one an hour from START on; the first one has a version."""
    new_table = table_factory()
    new_table.append(make_rows(0, 5))
    bindings.publish(new_table, binding(new_table))
    for first in (5, 10, 15):
        new_table.append(make_rows(first, first + 5))
    ids = [item.snapshot_id for item in data_snapshots(new_table)]
    set_times(new_table, ids, [1_000 * (START + number * HOUR) for number in range(4)])
    return new_table


def lag(table: Table, hours: float, *indexed: int) -> FreshnessLag:
    """So many hours after START, where the snapshots of these numbers are known to have nothing to index."""
    ids = [item.snapshot_id for item in data_snapshots(table)]
    return index_lag(table, DEFINITION, "main", empty=[ids[number] for number in indexed], now=START + hours * HOUR)


def test_the_oldest_late_snapshot_since_the_newest_version_counts(table: Table) -> None:
    for indexed, behind, minutes, coverage in (
        ((), 3, 240, 0.25),
        ((1,), 2, 180, 0.5),
        ((2,), 1, 120, 0.5),
        ((3,), 0, 0, 0.5),
        ((1, 2, 3), 0, 0, 1.0),
    ):
        newest = str(table.metadata.current_snapshot_id)
        assert lag(table, 5, *indexed) == FreshnessLag(behind, minutes, coverage, newest)


def test_a_snapshot_of_a_clock_ahead_is_not_late_yet(table: Table) -> None:
    assert (lag(table, 0.5, 2).snapshots, lag(table, 0.5, 2).minutes) == (1, 0.0)


def test_without_a_version_all_snapshots_are_late_since_the_first(table_factory: Callable[..., Table]) -> None:
    empty = table_factory()
    assert index_lag(empty, DEFINITION, "main") == FreshnessLag(0, 0.0, 1.0, "none")
    assert index_lag(empty, DEFINITION, "none") == FreshnessLag(0, 0.0, 1.0, "none")
    for first in (0, 5):
        empty.append(make_rows(first, first + 5))
    oldest = data_snapshots(empty)[0].timestamp_ms / 1_000
    found = index_lag(empty, DEFINITION, "main", now=oldest + HOUR)
    assert (found.snapshots, round(found.minutes, 6), found.coverage) == (2, 60.0, 0.0)


def test_a_ref_that_indexes_follow_is_missing_once_the_table_has_a_snapshot(
    table_factory: Callable[..., Table],
) -> None:
    table = table_factory()
    assert (missing_ref(table, "main"), missing_ref(table, "audit")) == ("", "")
    table.append(make_rows(0, 5))
    assert missing_ref(table, "main") == ""
    assert missing_ref(table, "audit") == (
        "the table has no branch or tag 'audit', the first of watched_refs: no snapshot is indexed until it has"
    )
    table.manage_snapshots().create_branch(data_snapshots(table)[-1].snapshot_id, "audit").commit()
    assert missing_ref(table.refresh(), "audit") == ""


def test_a_snapshot_without_rows_or_without_the_column_is_not_late(table_factory: Callable[..., Table]) -> None:
    """By the metadata alone; of an index on a column that the table never had, every snapshot with rows is."""
    table = table_factory()
    table.append(ROWS.empty_table())
    table.append(make_rows(0, 5).drop(["embedding"]))
    assert index_lag(table, DEFINITION, "main").snapshots == 1
    with table.update_schema() as change:
        change.add_column("later", FloatType())
    later = IndexDefinition(name="l", column="later")
    assert index_lag(table, later, "main") == FreshnessLag(0, 0.0, 1.0, str(table.metadata.current_snapshot_id))
    assert index_lag(table, IndexDefinition(name="n", column="none"), "main").snapshots == 1


@pytest.mark.parametrize("manifests", ["as they are", "lost", "uncounted"])
def test_a_summary_that_counts_no_rows_is_not_believed(
    table: Table, monkeypatch: pytest.MonkeyPatch, manifests: str
) -> None:
    """Any writer may set it. Where the manifest list has rows, may have some, or is lost, the snapshot is late."""
    deleted = table.metadata.current_snapshot_id
    table.delete("id >= 0")
    assert index_lag(table, DEFINITION, "main").snapshots == 0
    if manifests == "uncounted":  # as format v1 permits
        monkeypatch.setattr(ManifestFile, "added_rows_count", None)
    if manifests == "lost":
        Path(snapshots_by_id(table.metadata)[SnapshotId(deleted or 0)].manifest_list.removeprefix("file://")).unlink()
    no_rows = Summary(Operation.APPEND, **{"total-records": "0", "total-data-files": "0"})
    snapshots = [
        item.model_copy(update={"summary": no_rows}) if item.snapshot_id == deleted else item
        for item in table.metadata.snapshots
    ]
    table.metadata = table.metadata.model_copy(update={"snapshots": snapshots, "current_snapshot_id": deleted})
    table.metadata.refs["main"] = table.metadata.refs["main"].model_copy(update={"snapshot_id": deleted})
    found = index_lag(table, DEFINITION, "main")
    assert (found.snapshots, found.coverage) == (3, 0.25)


def test_a_version_whose_layout_was_given_up_is_none_and_the_reason_is_named(
    table_factory: Callable[..., Table],
) -> None:
    table = table_factory()
    table.append(make_rows(0, 60))
    bind_as_before(table)
    newest = str(table.metadata.current_snapshot_id)
    found = index_lag(table, DEFINITION, "main", now=0)
    assert replace(found, why="") == FreshnessLag(1, 0.0, 0.0, newest)
    assert "version without a format in its build id: its layout was given up" in found.why
    tag = tagged_version(table, "e") or pytest.fail("gone")
    bindings.publish(table, binding(table, 1, expected=tag.index_snapshot_id))
    assert index_lag(table, DEFINITION, "main") == FreshnessLag(0, 0.0, 1.0, newest)
