"""Rows without a vector: in no index and in no answer, through every kind of change."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import FloatType, ListType

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.model import Action
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head

TableFactory = Callable[..., Table]


def rows_with_gaps(first: int, last: int, without: Iterable[int]) -> pa.Table:
    """Rows of which some have no vector."""
    rows = make_rows(first, last).to_pylist()
    for number in without:
        rows[number - first]["embedding"] = None
    return pa.Table.from_pylist(rows, schema=make_rows(0, 1).schema)


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    """400 rows in two files; every fourth has no vector."""
    table = table_factory()
    table.append(rows_with_gaps(0, 200, range(0, 200, 4)))
    table.append(rows_with_gaps(200, 400, range(200, 400, 4)))
    return table


def assert_right(table: Table, report: IndexReport, rows: int) -> None:
    assert report.rows == rows
    found, recall = answer_with_recall(table)
    assert recall >= 0.96
    assert found.coverage is Coverage.EXACT_VERSION


def test_they_are_no_nodes(table: Table) -> None:
    report = index_head(table)
    assert report.without_vector == 100
    assert_right(table, report, 300)


def test_appending_some_inserts_the_others(table: Table) -> None:
    index_head(table)
    table.append(rows_with_gaps(400, 420, range(400, 420, 2)))
    report = index_head(table)
    assert (report.inserted, report.without_vector) == (10, 10)
    assert_right(table, report, 310)


def test_deleting_some_kills_no_node(table: Table) -> None:
    index_head(table)
    path = live_files(table, table.metadata.current_snapshot_id).files[0].path
    append_position_deletes(table, {path: np.array([0, 4, 5, 6])})
    report = index_head(table)
    assert report.tombstones == 2
    assert_right(table, report, 298)


def test_compaction_recognises_the_others(table: Table) -> None:
    index_head(table)
    table.overwrite(table.scan().to_arrow().cast(table.schema().as_arrow()))
    report = index_head(table)
    assert (report.remapped, report.inserted, report.without_vector) == (300, 0, 100)
    assert_right(table, report, 300)


def test_a_vector_that_comes_later_is_inserted(table: Table) -> None:
    index_head(table)
    whole = make_rows(0, 400)
    table.overwrite(whole)
    report = index_head(table)
    assert (report.remapped, report.inserted) == (300, 100)
    assert_right(table, report, 400)


def test_files_without_vectors(table: Table) -> None:
    index_head(table)
    table.append(rows_with_gaps(400, 410, range(400, 410)))
    assert_right(table, index_head(table), 300)


def test_snapshots_from_before_the_column_have_no_version(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 10))
    first = table.metadata.current_snapshot_id
    assert first is not None
    with table.update_schema() as change:
        change.add_column("late", ListType(0, FloatType(), element_required=False))
    definition = create_index(table, replace(DEFINITION, column="late"))
    table.append(make_rows(10, 40).append_column("late", make_rows(10, 40)["embedding"]))
    assert index_head(table, definition).rows == 30
    report = materialize_index(RunContext(table, STORAGE, LocalRunner(1)), definition, first)
    assert (report.action, report.reason) == (Action.EMPTY, "the snapshot has no column 'late' yet")


def test_a_table_without_vectors_has_no_version_until_one_comes(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(rows_with_gaps(0, 10, range(10)))
    report = index_head(table)
    assert (report.action, report.index_snapshot_id, report.reason) == (Action.EMPTY, None, "no live row has a vector")
    assert open_index(table, DEFINITION, storage=STORAGE).search(queries(), 10).rows.num_rows == 0
    table.append(make_rows(10, 40))
    assert_right(table, index_head(table), 30)
