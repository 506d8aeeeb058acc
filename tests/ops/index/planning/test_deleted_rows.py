"""Deleted rows that tasks find are those that the driver finds."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.index.index_materialization import materialize_index, rebuild_tombstoned_shards
from icepuffin.ops.index.planning import deleted_rows as deleted_rows_module
from icepuffin.ops.index.planning.deleted_rows import deleted_rows
from icepuffin.ops.model import Action, LiveFile
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.storage import open_storage
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.table import row_deletes
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.row_deletes import deleted_in_turn, growing_groups
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.catalog.equality import delete_where_id_is
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.index.test_lineage import PackedRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELETED = (3, 5, 61, 62, 63, 130, 131)
GONE = {10, 11, *DELETED}
RESOLVE = "resolve equality deletes"


class SeveralAtOnce(PackedRunner):
    parallelism = 2

    def __init__(self) -> None:
        super().__init__(1)
        self.tasks: dict[str, int] = {}

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        self.tasks[label] = len(tasks)
        return super().run(function, tasks, label=label)


def head_files(table: Table) -> tuple[LiveFile, ...]:
    return live_files(table, table.metadata.current_snapshot_id or 0).files


def live_ids(table: Table) -> list[int]:
    answer = open_index(table.refresh(), DEFINITION, storage=STORAGE).search(queries(1), 300, columns=["id"])
    return sorted(answer.rows["id"].to_pylist())


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    """Indexed; since then rows were deleted by position in one file and by id in all three, and rows were added."""
    new_table = table_factory()
    for start in range(0, 180, 60):
        new_table.append(make_rows(start, start + 60))
    index_head(new_table)
    oldest = min(head_files(new_table), key=lambda file: file.sequence_number)
    append_position_deletes(new_table.refresh(), {oldest.path: np.array([10, 11])})
    new_table.refresh().append(make_rows(180, 200))
    delete_where_id_is(new_table, *DELETED)
    new_table.refresh().append(make_rows(200, 210))
    return new_table.refresh()


def test_tasks_find_the_rows_that_the_driver_finds(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    files = head_files(table)
    alone = deleted_rows(files, STORAGE, LocalRunner(1))
    assert sorted(map(len, alone.values())) == [0, 0, 2, 3, 4]
    runner = SeveralAtOnce()
    monkeypatch.setattr(deleted_rows_module, "SMALL_WORK", 0)
    by_tasks = deleted_rows(files, STORAGE, runner)
    assert runner.tasks == {RESOLVE: 4}, "a task for each file that keys are compared in"
    assert by_tasks.keys() == alone.keys()
    assert all(np.array_equal(by_tasks[path], rows) for path, rows in alone.items())


def test_few_rows_are_left_to_the_driver(table: Table) -> None:
    runner = SeveralAtOnce()
    assert len(deleted_rows(head_files(table), STORAGE, runner)) == 5
    assert not runner.tasks


def test_a_refresh_and_its_upkeep_resolve_many_rows_by_tasks(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    head = table.metadata.current_snapshot_id or 0
    runner = SeveralAtOnce()
    monkeypatch.setattr(deleted_rows_module, "SMALL_WORK", 0)
    assert rebuild_tombstoned_shards(RunContext(table, STORAGE, runner), DEFINITION) is None
    assert runner.tasks.pop(RESOLVE) == 3
    report = materialize_index(RunContext(table, STORAGE, runner), DEFINITION, head)
    assert (report.action, report.tombstones, report.inserted) == (Action.REFRESHED, len(GONE), 30)
    assert runner.tasks[RESOLVE] == 3
    assert live_ids(table) == sorted({*range(210)} - GONE)


@pytest.mark.jvm
def test_a_refresh_resolves_many_rows_on_spark(
    spark: "SparkSession", table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from icepuffin.ops.spark.spark_runner import SparkRunner  # noqa: PLC0415  imports pyspark

    alone = deleted_rows(head_files(table), STORAGE, LocalRunner(1))
    monkeypatch.setattr(deleted_rows_module, "SMALL_WORK", 0)
    labels = []
    run = SparkRunner.run

    def recorded(self: SparkRunner, *arguments: Any, label: str, **options: Any) -> Any:
        labels.append(label)
        return run(self, *arguments, label=label, **options)

    monkeypatch.setattr(SparkRunner, "run", recorded)
    on_spark = deleted_rows(head_files(table), STORAGE, SparkRunner(spark))
    assert labels == [RESOLVE]
    assert {path: rows.tolist() for path, rows in on_spark.items()} == {
        path: rows.tolist() for path, rows in alone.items()
    }


def test_groups_of_files_grow_twofold() -> None:
    assert [part.stop for part in growing_groups(100)] == [16, 48, 112]
    assert [part.stop for part in growing_groups(20, 3)] == [3, 9, 21]


def test_who_needs_the_first_files_alone_has_no_others_resolved(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    files = head_files(table)
    resolved = []
    whole = row_deletes.deleted_by_file

    def recorded(open_store: Any, some: Any) -> Any:
        resolved.append(len(some))
        return whole(open_store, some)

    monkeypatch.setattr(row_deletes, "deleted_by_file", recorded)
    monkeypatch.setattr(row_deletes, "_FIRST_FILES", 1)
    in_turn = deleted_in_turn(lambda _: LocalStorage(), files)
    assert next(in_turn)[0] is files[0]
    assert resolved == [1]
    rest = list(in_turn)
    assert [file for file, _ in rest] == list(files[1:])
    assert resolved == [1, 2, 2]
    expected = whole(lambda path: open_storage(path, STORAGE), files)
    assert all(np.array_equal(rows, expected[file.path]) for file, rows in rest)
