"""What is listed of a table's snapshots."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from examples.demo.row_deletes import append_position_deletes
from icepuffin.assets.newest_snapshots import SnapshotEntry, TimeLinePoint, newest_snapshots, row_counts, seconds_of
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import IndexSettings, StatisticsSettings, TableSettings
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.runs.index_runs import refresh_index
from icepuffin.ops.table.live_files import live_files
from icepuffin.orchestration.engines import catalogs_of, engine_of
from icepuffin.orchestration.settings import load
from tests.orchestration.evaluation import found_spec
from tests.orchestration.lake import Lake, make_lake, make_rows


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An append, a delete of some rows, and a tag of the user's on the first."""
    lake = make_lake(tmp_path, snapshots=1)
    lake.table.manage_snapshots().create_tag(lake.head(), "audited").commit()
    lake.table.refresh().delete("id < 10")
    return lake


def listed(lake: Lake) -> tuple[SnapshotEntry, ...]:
    settings = load(lake.settings_file)
    return newest_snapshots(lake.table.refresh(), found_spec(settings.tables["packages"], catalogs_of(settings)))


def test_each_snapshot_says_when_and_how_it_was_written(lake: Lake) -> None:
    newest, oldest = listed(lake)
    assert (newest.operation, newest.rows_added, newest.rows_removed, newest.rows) == ("overwrite", 50, 60, 50)
    assert (oldest.operation, oldest.rows_added, oldest.rows_removed, oldest.rows) == ("append", 60, 0, 60)
    assert (newest.refs, oldest.refs) == (("main",), ("audited",))
    assert newest.committed >= oldest.committed


def test_rows_that_position_deletes_remove_are_not_counted(lake: Lake) -> None:
    table = lake.table.refresh()
    (file,) = live_files(table, SnapshotId(table.metadata.current_snapshot_id or 0)).files
    append_position_deletes(table, {file.path: np.arange(7)})
    newest, before, _ = listed(lake)
    assert (newest.rows_added, newest.rows_removed, newest.rows) == (0, 7, 43)
    assert before.rows == 50


def test_no_index_is_missing_of_a_snapshot_without_rows(lake: Lake) -> None:
    lake.table.refresh().delete("id >= 0")
    newest, before, _ = listed(lake)
    assert (newest.rows, newest.missing) == (0, ("theta_sketches",))
    assert before.missing == ("theta_sketches", "embedding")
    off = TableSettings(catalog="demo", name="demo.packages", statistics=StatisticsSettings(ndv="off"))
    assert [entry.missing for entry in newest_snapshots(lake.table, TableSpec(off))] == [(), (), ()]


def test_what_is_derived_and_what_is_missing(lake: Lake) -> None:
    settings = load(lake.settings_file)
    (index,) = found_spec(settings.tables["packages"], catalogs_of(settings)).indexes
    newest, oldest = listed(lake)
    assert (newest.derived, newest.missing) == ((), ("theta_sketches", "embedding"))

    table = lake.table.refresh()
    refresh_index(engine_of(settings).run_on(table, oldest.snapshot_id), index, oldest.snapshot_id)
    newest, oldest = listed(lake)
    assert (newest.derived, newest.missing) == ((), ("theta_sketches", "embedding"))
    assert (oldest.derived, oldest.missing) == (("embedding",), ("theta_sketches",))
    assert len(lake.table.refresh().metadata.snapshots) == 3, "the index snapshot is not listed"
    assert oldest.refs == ("audited",), "icepuffin's own tag is not listed"
    of_index = next(
        it for it in table.metadata.snapshots if it.snapshot_id not in (newest.snapshot_id, oldest.snapshot_id)
    )
    table.manage_snapshots().create_branch(of_index.snapshot_id, "fork").commit()
    assert listed(lake)[1].refs == ("audited", "fork"), "a branch at an index snapshot is at the snapshot of that"


def test_the_time_of_a_time_line_is_that_of_its_own_snapshot(lake: Lake) -> None:
    newest, oldest = (TimeLinePoint(entry, "built", None, None, is_here=False) for entry in listed(lake))
    took = replace(newest, seconds=3.0)
    assert seconds_of((took, replace(oldest, seconds=5.0, is_here=True)), 9.0) == 5.0
    assert seconds_of((took, replace(oldest, is_here=True)), 9.0) == 9.0


def test_a_table_without_snapshots_has_an_empty_list(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, snapshots=0)
    spec = TableSpec(TableSettings(catalog="demo", name="demo.packages", indexes={"e": IndexSettings(column="v")}))
    assert newest_snapshots(lake.table, spec) == ()


def test_position_deletes_that_a_rewrite_drops_are_no_removed_rows() -> None:
    """It writes the rows that are left anew, without the deleted ones and their deletes."""
    counts = {"added-records": "93", "deleted-records": "100", "removed-position-deletes": "7", "total-records": "93"}
    summary = Summary(Operation.REPLACE, **counts, **{"total-position-deletes": "0"})
    rewrite = Snapshot(snapshot_id=1, timestamp_ms=1, manifest_list="list.avro", summary=summary, schema_id=0)
    assert row_counts(rewrite) == (93, 93, 93)
    counts = {"removed-position-deletes": "7", "total-records": "93"}
    swept = rewrite.model_copy(update={"summary": Summary(Operation.REPLACE, **counts)})
    assert row_counts(swept) == (0, 0, 93), "the deletes were of rows that are gone"


def test_rows_that_the_summary_does_not_tell_are_unknown(lake: Lake) -> None:
    """As where an engine left the deletes of rows that it rewrote, and where deletes name keys."""
    table = lake.table.refresh()
    (file,) = live_files(table, SnapshotId(table.metadata.current_snapshot_id or 0)).files
    append_position_deletes(table, {file.path: np.arange(45)})
    table.refresh().overwrite(make_rows(60, 5))
    newest = listed(lake)[0]
    assert table.scan().count() == 5
    assert (newest.rows, newest.cells["rows"]) == (None, "?")
    counts = {"added-equality-deletes": "7", "total-records": "93", "total-equality-deletes": "7"}
    summary = Summary(Operation.OVERWRITE, **counts)
    upsert = Snapshot(snapshot_id=1, timestamp_ms=1, manifest_list="list.avro", summary=summary, schema_id=0)
    assert row_counts(upsert) == (0, 0, None)
