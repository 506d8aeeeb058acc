"""A new embedding model, in each way in which people write it: no table is stuck, and no answer is wrong."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from icepuffin.ops.catalog.bound_versions import index_versions
from icepuffin.ops.index import Action, GateFailedError, IndexDefinition, IndexReport
from icepuffin.ops.search import Coverage, exact_search, open_index
from icepuffin.orchestration.demo.rowdeletes import append_position_deletes
from tests.conftest import STORAGE, make_rows, vectors_of
from tests.ops.index.comparison import DEFINITION, index_head

ROWS = 240
LEAN = replace(DEFINITION, name="lean", vectors="none", pq_m=8, shards=2)
"""An index of codes, by a codebook that a refresh keeps"""


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    """240 rows of the first model in one file; they are indexed."""
    new_table = table_factory()
    new_table.append(make_rows(0, ROWS))
    index_head(new_table)
    return new_table


def rows_of(vectors: npt.NDArray[np.float32] | None, first: int = 0, last: int = ROWS) -> pa.Table:
    """Rows `first` to `last - 1` with the vectors of another model, or without any."""
    rows = make_rows(first, last)
    lists = [None] * len(rows) if vectors is None else vectors.tolist()
    return rows.set_column(3, rows.schema.field("embedding"), pa.array(lists, pa.list_(pa.float32())))


def second_model(dims: int, first: int = 0, last: int = ROWS) -> npt.NDArray[np.float32]:
    """Vectors f32[n, dims] that lie apart from those of the first model."""
    return vectors_of(np.arange(first, last), seed=7, dims=dims) + np.float32(9) * np.eye(dims, dtype=np.float32)[0]


def update_by_deletes(table: Table, vectors: npt.NDArray[np.float32]) -> None:
    """A merge-on-read UPDATE of every vector: the old file stays, and all of its rows are deleted."""
    files = [task.file for task in table.scan().plan_files()]
    append_position_deletes(table, {file.file_path: np.arange(file.record_count) for file in files})
    table.refresh().append(rows_of(vectors))


def assert_right(
    table: Table, queries: npt.NDArray[np.float32], coverage: Coverage, definition: IndexDefinition = DEFINITION
) -> None:
    """The index gives the rows that an exact search gives, at their distances, for as good as all queries."""
    answer = open_index(table.refresh(), definition, storage=STORAGE).search(queries, 5, columns=["id"])
    true = exact_search(table, definition.column, definition.metric, queries, 5, storage=STORAGE, columns=["id"])
    assert answer.coverage is coverage
    same = np.array(answer.rows["id"].to_pylist()) == np.array(true.rows["id"].to_pylist())
    assert same.mean() >= 0.95
    np.testing.assert_allclose(
        np.array(answer.rows["distance"].to_pylist())[same],
        np.array(true.rows["distance"].to_pylist())[same],
        rtol=1e-5,
    )


def refreshed(table: Table, definition: IndexDefinition = DEFINITION) -> IndexReport:
    """The report of a refresh; the next one finds the work done."""
    report = index_head(table, definition)
    assert index_head(table, definition).action is Action.REUSED
    return report


@pytest.mark.parametrize("dims", [6, 12, 24])
def test_an_update_by_deletes_is_indexed_anew_whatever_the_dimensions(table: Table, dims: int) -> None:
    update_by_deletes(table, second_model(dims))
    assert_right(table, second_model(dims)[:8], Coverage.EXACT_SCAN)
    report = refreshed(table)
    assert (report.action, report.rows, report.tombstones) == (Action.BUILT, ROWS, 0)
    assert "shares only 0% of the rows" in report.reason
    assert_right(table, second_model(dims)[:8], Coverage.EXACT_VERSION)


def test_rows_without_a_vector_are_no_reason_to_keep_the_vectors_of_another_model(table: Table) -> None:
    table.append(rows_of(None, ROWS, 4 * ROWS))
    assert index_head(table).without_vector == 3 * ROWS
    table.overwrite(rows_of(second_model(24)), f"id < {ROWS}")
    assert_right(table, second_model(24)[:8], Coverage.EXACT_SCAN)
    assert refreshed(table).action is Action.BUILT
    assert_right(table, second_model(24)[:8], Coverage.EXACT_VERSION)


def test_balls_around_the_vectors_of_another_model_answer_no_query(table: Table) -> None:
    balls = IndexDefinition(name="b", column="embedding", metric="l2", method="centroid")
    table.append(rows_of(None, ROWS, 4 * ROWS))
    index_head(table, balls)
    table.overwrite(rows_of(second_model(24)), f"id < {ROWS}")
    assert_right(table, second_model(24)[:8], Coverage.EXACT_SCAN, balls)
    assert refreshed(table, balls).action is Action.BUILT
    assert_right(table, second_model(24)[:8], Coverage.EXACT_VERSION, balls)


def test_deleted_rows_and_rows_without_a_vector_may_lie_in_one_file(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    half = pa.concat_tables([make_rows(0, ROWS), rows_of(None, ROWS, 2 * ROWS)])
    table.append(half)
    index_head(table)
    file = next(iter(table.scan().plan_files())).file
    append_position_deletes(table, {file.file_path: np.arange(ROWS)})
    table.refresh().append(rows_of(second_model(24)))
    assert refreshed(table).action is Action.BUILT
    assert_right(table, second_model(24)[:8], Coverage.EXACT_VERSION)


def test_new_rows_without_a_vector_are_no_reason_to_build_anew(table: Table) -> None:
    new, without = make_rows(ROWS, 5 * ROWS), rows_of(None, ROWS, 5 * ROWS)
    table.append(pa.concat_tables([(new if row % 8 == 0 else without).slice(row, 1) for row in range(4 * ROWS)]))
    report = index_head(table)
    assert (report.action, report.inserted) == (Action.REFRESHED, ROWS // 2)


def append_narrow_cluster(table: Table, rows: int) -> None:
    """Rows far from all others and near to each other, which a codebook of the others does not tell apart."""
    vectors = 30 + 0.05 * vectors_of(np.arange(ROWS, ROWS + rows), seed=7)
    table.append(rows_of(vectors.astype(np.float32), ROWS, ROWS + rows))


def test_codes_by_a_codebook_that_does_not_fit_are_made_anew(table: Table) -> None:
    index_head(table, LEAN)
    append_narrow_cluster(table, 200)
    report = refreshed(table, LEAN)
    assert (report.action, report.rows) == (Action.BUILT, ROWS + 200)
    assert re.fullmatch(r"a refresh has recall@10 0\.[0-7]\d+, the target is 0\.8", report.reason)
    assert report.recall is not None
    assert report.recall >= 0.8
    assert_right(table, vectors_of(np.arange(4)), Coverage.EXACT_VERSION, LEAN)


def test_above_the_limit_the_error_says_how_an_index_is_built_anew(table: Table) -> None:
    index_head(table, LEAN)
    append_narrow_cluster(table, 200)
    with pytest.raises(GateFailedError, match=r"stays\. A version that .* build_anew_rows = 439 rows .* raise"):
        index_head(table, replace(LEAN, build_anew_rows=ROWS + 199))
    assert refreshed(table, replace(LEAN, build_anew_rows=ROWS + 200)).action is Action.BUILT


def test_where_a_build_misses_the_gate_too_the_version_of_before_stays(table: Table) -> None:
    coarse = replace(LEAN, pq_m=1, pq_nbits=4, target_recall=0.1)
    index_head(table, coarse)
    before = index_versions(table.refresh(), "lean")
    append_narrow_cluster(table, 200)
    both = r"recall@10 is (\S+) where it is built anew, (\S+) by a refresh, .* previous version stays"
    with pytest.raises(GateFailedError, match=both) as caught:
        index_head(table, replace(coarse, target_recall=1.0))
    built, by_refresh = map(float, re.search(both, str(caught.value)).groups())  # type: ignore[union-attr]
    assert by_refresh < built < 1
    assert index_versions(table.refresh(), "lean") == before
