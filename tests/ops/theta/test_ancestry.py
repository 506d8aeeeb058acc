"""Whose sketches a snapshot may take up: those of its nearest ancestors, and of no more than a few."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile

from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.table.snapshots import find_snapshot
from icepuffin.ops.tasks.sketches.statistic import StatisticKey
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta import ancestry
from icepuffin.ops.theta.ancestry import choose_extensions, fields_sketched_before, nearest_ancestors
from icepuffin.ops.theta.file_sketches import FileKey
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.ops.catalog.bindings import register_statistics
from tests.ops.theta.conftest import SCHEMA, STORAGE, ThreadlessRunner, append, named


def sketched(table: Table, runner: ThreadlessRunner, snapshot_id: int, columns: set[str]) -> None:
    run = RunContext(table, STORAGE, runner)
    count_theta_sketches(run, SnapshotId(snapshot_id), requested=named(columns)).publish()
    table.refresh()


def test_ancestors_are_the_nearest_of_the_line_up_to_a_number(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    line = [append(table, 10 * number, 10 * number + 10) for number in range(5)]
    newest = find_snapshot(table, SnapshotId(line[-1]))
    assert [ancestor.snapshot_id for ancestor in nearest_ancestors(table, newest)] == line[-2::-1]
    monkeypatch.setattr(ancestry, "MAX_ANCESTORS", 3)
    assert [ancestor.snapshot_id for ancestor in nearest_ancestors(table, newest)] == line[3:0:-1]
    assert list(nearest_ancestors(table, find_snapshot(table, SnapshotId(line[0])))) == []


def test_columns_that_were_sketched_before_are_those_of_the_nearest_ancestor_with_any(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [append(table, 10 * number, 10 * number + 10) for number in range(4)]
    newest = find_snapshot(table, SnapshotId(line[-1]))
    assert fields_sketched_before(table, newest) == frozenset()
    sketched(table, runner, line[0], {"id", "weight"})
    assert fields_sketched_before(table, newest) == {1, 5}
    sketched(table, runner, line[1], {"name"})
    assert fields_sketched_before(table, newest) == {2}
    monkeypatch.setattr(ancestry, "MAX_ANCESTORS", 1)
    assert fields_sketched_before(table, newest) == frozenset()
    sketched(table, runner, line[-1], {"size"})
    assert fields_sketched_before(table, newest) == {6}
    later = append(table, 40, 50)
    others = find_statistics(table.refresh(), SnapshotId(line[1]))
    assert others is not None
    register_statistics(
        table, later, path="file:///x", file_size=9, footer_size=4, blobs=others.blob_metadata, over=None
    )
    copied = find_snapshot(table.refresh(), SnapshotId(later))
    assert fields_sketched_before(table, copied) == {6}, "an engine has copied those of another snapshot"


@pytest.mark.parametrize("version", ["1", "2"])
def test_an_ancestor_is_extended_without_the_list_of_its_files(
    version: str, catalog: Catalog, runner: ThreadlessRunner
) -> None:
    table = catalog.create_table("db.a", SCHEMA, properties={"format-version": version})
    first = append(table, 0, 10)
    run = RunContext(table, STORAGE, runner)
    count_theta_sketches(run, SnapshotId(first), budget_bytes=0).publish()
    second = append(table, 10, 20)
    Path(find_snapshot(table, SnapshotId(first)).manifest_list.removeprefix("file://")).unlink()
    report = count_theta_sketches(run, SnapshotId(second)).publish()
    assert (report.ndv["id"], report.note) == (20, "")
    assert "id" in report.extended_columns


def test_sketches_of_few_ancestors_are_read_where_none_can_be_extended(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [append(table, 10 * number, 10 * number + 10) for number in range(4)]
    for snapshot_id in line[:-1]:
        sketched(table, runner, snapshot_id, {"id"})
    read: list[int] = []
    read_sketches = ancestry.read_sketches

    def counted(store: Storage, statistics: StatisticsFile, seals: Mapping[StatisticKey, str]) -> Any:
        read.append(statistics.snapshot_id)
        return read_sketches(store, statistics, seals)

    monkeypatch.setattr(ancestry, "read_sketches", counted)
    newest, store = find_snapshot(table, SnapshotId(line[-1])), open_storage(table.location(), STORAGE)
    without_file = {(1, "long"): frozenset({"a.parquet"})}
    keys = {"a.parquet": FileKey("a.parquet", "", 0)}  # none of the ancestors' files is live any more
    for limit, expected in ((4, line[2::-1]), (2, line[2:0:-1])):
        monkeypatch.setattr(ancestry, "_MAX_TRIED", limit)
        read.clear()
        assert choose_extensions(table, store, newest, keys, without_file) == ({}, "")
        assert read == expected
