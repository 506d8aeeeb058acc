"""A new embedding model, in each way in which people write it: no table is stuck, and no answer is wrong."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import FloatType, ListType

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.assets.ann_index import layout_result
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index import new_version, refresh
from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.errors import GateFailedError, ShardTooLargeError
from icepuffin.ops.index.planning import index_estimate
from icepuffin.ops.index.planning import version_plan as plan_module
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.planning.version_plan import VersionPlan, plan_version
from icepuffin.ops.index.planning.work_bounds import refresh_bounds
from icepuffin.ops.index.stages import ShardSet
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.vain_builds import find_vain_build
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.process.large_arrays import NoRoomError
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.runs.index_runs import estimate_refresh
from icepuffin.ops.runs.refresh_plan import plan as plan_refresh
from icepuffin.ops.runs.snapshot import refresh as refresh_all
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.storage import RefusedError, StorageError, open_storage
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import head_of
from icepuffin.ops.tasks.task_runner import RunContext
from tests.conftest import STORAGE, make_rows, vectors_of
from tests.ops.catalog.equality import delete_where_id_is
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
    true = open_exact(table, definition.column, definition.metric, storage=STORAGE).search(queries, 5, columns=["id"])
    assert answer.coverage is coverage
    same = np.array(answer.rows["id"].to_pylist()) == np.array(true.rows["id"].to_pylist())
    assert same.mean() >= (0.95 if definition.holds_vectors else 0.8)
    np.testing.assert_allclose(
        np.array(answer.rows["distance"].to_pylist())[same],
        np.array(true.rows["distance"].to_pylist())[same],
        rtol=1e-5,
        atol=1e-9,
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


def test_an_update_by_deletes_that_leaves_fewer_vectors_is_indexed_anew(table: Table) -> None:
    """The file has more rows of the old model than come of the new one, and all of them are deleted."""
    (file,) = [task.file for task in table.scan().plan_files()]
    append_position_deletes(table, {file.file_path: np.arange(ROWS)})
    vectors = [None if row % 5 == 0 else vector for row, vector in enumerate(second_model(24, 0, ROWS + 20).tolist())]
    rows = make_rows(0, ROWS + 20)
    lists = pa.array(vectors, pa.list_(pa.float32()))
    table.refresh().append(rows.set_column(3, rows.schema.field("embedding"), lists))
    assert refreshed(table).action is Action.BUILT


@pytest.mark.parametrize("dims", [6, 16, 24])
def test_a_table_that_is_written_anew_is_indexed_anew(table: Table, dims: int) -> None:
    table.overwrite(rows_of(second_model(dims)))
    assert_right(table, second_model(dims)[:8], Coverage.EXACT_SCAN)
    assert refreshed(table).action is Action.BUILT
    assert_right(table, second_model(dims)[:8], Coverage.EXACT_VERSION)


def test_another_metric_is_another_index(table: Table) -> None:
    by_angle = replace(DEFINITION, metric=Metric.COSINE)
    report = refreshed(table, by_angle)
    assert (report.action, report.reason) == (Action.BUILT, "the definition has changed since the versions there are")
    assert_right(table, vectors_of(np.arange(8)), Coverage.EXACT_VERSION, by_angle)


def test_a_name_that_another_column_has_taken_is_no_renaming(table: Table) -> None:
    """As in a swap by renaming: readers by name would go on by the old model."""
    refresh_all(table, DEFINITION, storage=STORAGE, threads=1)
    with table.refresh().update_schema() as update:
        update.rename_column("embedding", "before")
    refresh_all(table, DEFINITION, storage=STORAGE, threads=1)
    with table.refresh().update_schema() as update:
        update.add_column("embedding", ListType(90, FloatType(), element_required=False))
    with pytest.raises(DefinitionError, match="'e' is on column before, and is to be on embedding: drop the index"):
        refresh_all(table, DEFINITION, storage=STORAGE, threads=1)
    for index in ("e", replace(DEFINITION, column="before")):
        refresh_all(table, index, storage=STORAGE, threads=1)


def test_batches_of_other_dimensions_are_refused_until_the_last_one(table: Table) -> None:
    half = ROWS // 2
    table.overwrite(rows_of(second_model(24, 0, half), 0, half), f"id < {half}")
    with pytest.raises(VectorColumnError, match="dimensions, not"):
        index_head(table)
    table.overwrite(rows_of(second_model(24, half), half), f"id >= {half}")
    assert refreshed(table).action is Action.BUILT
    assert_right(table, second_model(24)[:8], Coverage.EXACT_VERSION)


def test_a_target_recall_is_met_after_batches_of_another_model(table_factory: Callable[..., Table]) -> None:
    """The layout is kept. Each row of the old model had its neighbors in one shard. Those of the new one have them in
    several, and lie but a fifth farther from the centroids.
    """
    table, rng, rows = table_factory(), np.random.default_rng(0), 1_800
    definition = replace(DEFINITION, metric=Metric.COSINE, shards=4)
    clusters = rng.standard_normal((200, 16))[rng.integers(0, 200, rows)] + 0.5 * rng.standard_normal((rows, 16))
    table.append(rows_of(clusters.astype(np.float32), 0, rows))
    index_head(table, definition)
    for first in range(0, rows, rows // 4):
        last = first + rows // 4
        others = rng.standard_normal((rows // 4, 16)).astype(np.float32)
        table.refresh().overwrite(rows_of(others, first, last), f"id >= {first} and id < {last}")
        assert index_head(table, definition).action is Action.REFRESHED
    queries = rng.standard_normal((40, 16)).astype(np.float32)
    reader = open_index(table.refresh(), definition, storage=STORAGE)
    found = reader.search(queries, 10, columns=["id"], target_recall=0.8).rows["id"].to_pylist()
    true = open_exact(table, "embedding", "cosine", storage=STORAGE).search(queries, 10, columns=["id"])
    pairs = set(zip(true.rows["query"].to_pylist(), true.rows["id"].to_pylist(), strict=True))
    assert len(pairs & {(row // 10, number) for row, number in enumerate(found)}) >= 0.8 * len(pairs)


def test_an_index_that_takes_no_row_of_the_new_model_keeps_no_other_one_back(table: Table) -> None:
    create_index(table, replace(DEFINITION, name="directions", metric="cosine"))
    create_index(table, DEFINITION)
    table.refresh().append(rows_of(np.zeros((1, 16), np.float32), 300, 301))
    with pytest.raises(VectorColumnError, match="is zero, under cosine"):
        refresh_all(table, storage=STORAGE, threads=1)
    head = table.refresh().metadata.current_snapshot_id
    assert [version.base_snapshot_id for version in index_versions(table, "e")][-1] == head


def test_a_column_beside_the_old_one_is_filled_in_batches_and_both_are_searched(table: Table) -> None:
    """The recommended way: each index for the rows that have its vectors, then the old name for the new column."""
    beside = replace(DEFINITION, name="second", column="second")
    with table.update_schema() as update:
        update.add_column("second", ListType(90, FloatType(), element_required=False))
    index_head(table)
    for first in range(0, ROWS, ROWS // 2):
        last = first + ROWS // 2
        vectors = second_model(24, first, last)
        rows = make_rows(first, last).append_column("second", pa.array(vectors.tolist(), pa.list_(pa.float32())))
        table.overwrite(rows, f"id >= {first} and id < {last}")
        old, new = index_head(table), index_head(table, beside)
        assert (old.action, old.inserted, old.tombstones) == (Action.REFRESHED, 0, 0)
        assert new.rows == last
        assert_right(table, vectors_of(np.arange(8)), Coverage.EXACT_VERSION)
        assert_right(table, vectors[:8], Coverage.EXACT_VERSION, beside)
    switched = replace(DEFINITION, column="second")
    assert refreshed(table, switched).action is Action.BUILT
    assert_right(table, second_model(24)[:8], Coverage.EXACT_VERSION, switched)


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


def test_a_snapshot_whose_rows_are_all_gone_answers_queries_of_the_new_model(table: Table) -> None:
    """As between the two commits of an overwrite: its version is of the old dimensions, and has no live row."""
    file = next(iter(table.scan().plan_files())).file
    append_position_deletes(table, {file.file_path: np.arange(ROWS)})
    report = index_head(table)
    assert (report.action, report.rows) == (Action.REFRESHED, 0)
    for dims in (16, 24):
        reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
        found = reader.search(second_model(dims)[:2], 5, columns=["id"])
        assert (found.coverage, len(found.rows)) == (Coverage.EXACT_VERSION, 0)


def test_balls_of_a_file_whose_rows_are_all_deleted_answer_no_query(table: Table) -> None:
    """The file is live, and its vectors have other dimensions than all that are."""
    balls = IndexDefinition(name="b", column="embedding", metric="l2", method="centroid")
    index_head(table, balls)
    update_by_deletes(table, second_model(24))
    assert_right(table, second_model(24)[:8], Coverage.EXACT_SCAN, balls)
    assert refreshed(table, balls).action is Action.BUILT


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


def test_deleted_rows_of_new_files_are_not_shared_with_the_version(table: Table) -> None:
    """A compaction and an update came since: the compacted file has the old vectors, and no live row."""
    table.overwrite(table.scan().to_arrow())
    update_by_deletes(table, second_model(24))
    assert refreshed(table).action is Action.BUILT
    assert_right(table, second_model(24)[:8], Coverage.EXACT_VERSION)


def test_rows_that_come_again_by_a_rollback_are_not_shared_with_the_version(
    table_factory: Callable[..., Table],
) -> None:
    """The version has the file that they lie in, and none of them."""
    table = table_factory()
    table.append(make_rows(0, ROWS))
    (old,) = table.metadata.snapshots
    update_by_deletes(table, second_model(24))
    index_head(table)
    table.refresh().manage_snapshots().rollback_to_snapshot(old.snapshot_id).commit()
    assert refreshed(table.refresh()).action is Action.BUILT
    assert_right(table, vectors_of(np.arange(8)), Coverage.EXACT_VERSION)


def test_rows_that_are_updated_again_and_again_are_no_reason_to_build_anew(table: Table) -> None:
    for _ in range(6):
        head = table.refresh().metadata.current_snapshot_id
        newest = max(live_files(table, head).files, key=lambda file: file.sequence_number)
        append_position_deletes(table, {newest.path: np.arange(60)})
        table.refresh().append(rows_of(second_model(16, 0, 60), 0, 60))
    report = index_head(table)
    assert (report.action, report.rows, report.inserted) == (Action.REFRESHED, ROWS, 60)


def test_the_first_rows_of_a_file_that_change_are_no_reason_to_build_anew(table_factory: Callable[..., Table]) -> None:
    """As by an UPDATE of them, copy-on-write, which leaves the rows in their order."""
    table = table_factory()
    table.append(make_rows(0, 2 * ROWS))
    index_head(table)
    for model in (7, 8):
        changed = rows_of(vectors_of(np.arange(100), seed=model), 0, 100)
        table.refresh().overwrite(pa.concat_tables([changed, make_rows(100, 2 * ROWS)]))
        report = refreshed(table)
        assert (report.action, report.remapped, report.inserted) == (Action.REFRESHED, 2 * ROWS - 100, 100)


def test_a_compaction_with_nulls_first_is_no_reason_to_build_anew(table_factory: Callable[..., Table]) -> None:
    table, rows = table_factory(), pa.concat_tables([rows_of(None, ROWS, 2 * ROWS), make_rows(0, ROWS)])
    table.append(rows)
    index_head(table)
    table.refresh().overwrite(rows)
    report = index_head(table)
    assert (report.action, report.remapped, report.inserted) == (Action.REFRESHED, ROWS, 0)


def test_nodes_that_were_found_to_decide_are_not_looked_for_again(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without a vector are deleted: by the counts of the file they might be others."""
    table, calls = table_factory(), []
    table.append(pa.concat_tables([make_rows(0, 200), rows_of(None, 200, 260)]))
    index_head(table)
    file = next(iter(table.scan().plan_files())).file
    append_position_deletes(table, {file.file_path: np.arange(200, 260)})
    table.refresh().append(make_rows(300, 450))
    for module in (plan_module, index_estimate, new_version):
        original = module.find_dead_nodes
        monkeypatch.setattr(
            module, "find_dead_nodes", lambda *args, find=original, **named: calls.append(0) or find(*args, **named)
        )
    report = index_head(table)
    assert (report.action, report.inserted, report.rows) == (Action.REFRESHED, 150, 350)
    assert len(calls) == 1


def append_narrow_cluster(table: Table, rows: int, apart: float = 0) -> None:
    """Rows near to one row, or apart from all: a codebook of the others does not tell them from each other."""
    noise = 0.02 * vectors_of(np.arange(ROWS, ROWS + rows), seed=7)
    table.append(rows_of((vectors_of(np.zeros(rows, np.int64)) + noise + apart).astype(np.float32), ROWS, ROWS + rows))


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


@pytest.mark.parametrize("apart", [0, 30])
def test_where_a_build_misses_the_gate_too_the_version_of_before_stays(table: Table, apart: float) -> None:
    coarse = replace(LEAN, pq_m=1, pq_nbits=4, target_recall=0.1)
    index_head(table, coarse)
    before = index_versions(table.refresh(), "lean")
    append_narrow_cluster(table, 200, apart)
    both = r"recall@10 is 0\.\d+.* where it is built anew, 0\.\d+ by a refresh, the target is .*"
    with pytest.raises(GateFailedError, match=both + "previous version stays"):
        index_head(table, replace(coarse, target_recall=1.0))
    assert index_versions(table.refresh(), "lean") == before


def counted_builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of all builds from now on."""
    through, built = new_version.build_shards, list[int]()

    def build_shards(run: RunContext, plan: VersionPlan) -> ShardSet | None:
        built.append(plan.live.record_count)
        return through(run, plan)

    monkeypatch.setattr(new_version, "build_shards", build_shards)
    return built


def test_a_build_that_missed_the_gate_is_made_again_once_a_fifth_of_the_rows_are_others(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_refused(definition: IndexDefinition) -> str:
        with pytest.raises(GateFailedError) as caught:
            index_head(table, definition)
        return str(caught.value)

    coarse = replace(LEAN, pq_m=1, pq_nbits=4, target_recall=0.1)
    high = replace(coarse, target_recall=1.0)
    index_head(table, coarse)
    built = counted_builds(monkeypatch)
    append_narrow_cluster(table, 100)
    assert "where it is built anew" in is_refused(high)
    both = r"the target is 1\.0\..* anew before, with recall@10 0\.\d+, and 100% of them are the same"
    assert re.search(both, is_refused(high)), "the same snapshot once more"
    table.append(make_rows(340, 350))
    assert "97% of them are the same" in is_refused(high)
    assert built == [340]
    table.overwrite(rows_of(second_model(16, 240, 340), 240, 340), "id >= 240 and id < 340")
    assert "where it is built anew" in is_refused(high), "as many rows, and others"
    assert "100% of them are the same" in is_refused(high)
    assert built == [340, 350]
    collect_garbage(table, storage=STORAGE, grace=timedelta(0))
    assert "where it is built anew" in is_refused(high), "the table does not define the index: its record is gone"
    assert built == [340, 350, 350]
    run = RunContext(table, STORAGE)
    plan = plan_version(run, high, SnapshotId(table.metadata.current_snapshot_id or 0))
    vain = find_vain_build(plan, run)
    assert vain is not None
    assert find_vain_build(replace(plan, definition=replace(high, target_recall=vain.recall)), run) is None
    (record,) = Path(table.location().removeprefix("file://")).rglob("vain-builds/*.json")
    whole = json.loads(record.read_text(encoding="utf-8"))
    others = {"recall": ["x", math.nan], "rows": [{"a": None}, {"a": math.inf}, 1], "deleted": [None]}
    damages = [json.dumps(whole | {key: value}) for key, values in others.items() for value in values]
    for damaged in ("{", "[]", *damages):
        record.write_text(damaged, encoding="utf-8")
        assert find_vain_build(plan, run) is None
    record.write_text(json.dumps(whole), encoding="utf-8")
    assert find_vain_build(plan, run) is not None
    table.delete("id >= 240")
    fewer = plan_version(run, high, SnapshotId(table.refresh().metadata.current_snapshot_id or 0))
    assert find_vain_build(fewer, run) is None, "110 of 350 rows are gone, and the others are the same"


def refusal(make: Callable[[], object]) -> str:
    """The message of a gate that is missed."""
    with pytest.raises(GateFailedError) as caught:
        make()
    return str(caught.value)


def test_a_planned_build_that_missed_the_gate_is_made_again_for_other_rows_another_definition_or_on_request(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that there is has other dimensions: no refresh comes first that could miss the gate."""
    coarse = create_index(table, replace(LEAN, name="coarse", pq_m=1, pq_nbits=4, target_recall=0.1))
    index_head(table, coarse)
    before = index_versions(table.refresh(), "coarse")
    high = create_index(table, replace(coarse, target_recall=1.0), replace=True)
    first, last = 3 * ROWS, 3 * ROWS + 10
    table.refresh().overwrite(rows_of(second_model(24, 0, first), 0, first))
    built = counted_builds(monkeypatch)
    assert "the previous version stays" in refusal(lambda: refresh_all(table))
    table.append(rows_of(second_model(24, first, last), first, last))
    largest = max((task.file for task in table.scan().plan_files()), key=lambda file: file.record_count)
    append_position_deletes(table, {largest.file_path: np.arange(5)})
    message = refusal(lambda: refresh_all(table.refresh()))
    for part in (
        r"a build is due \(the nearest version shares only 0% of the rows: .*\), and the target is 1\.0\. All rows",
        r" were indexed anew before, with recall@10 0\.\d{4}, and 9\d% of them are the same: .* once 20% differ, .* or",
        r" you ask for it: icepuffin refresh \S+ --index coarse\. Nothing was published\. .* raise pq_m\. Else raise ",
    ):
        assert re.search(part, message)
    collect_garbage(table, storage=STORAGE, grace=timedelta(0))
    assert "a build is due" in refusal(lambda: refresh_all(table)), "the record stays"
    planned = plan_refresh(table).indexes["coarse"]
    assert re.search(r"shares only 0% .*\. All rows were indexed anew before", planned.reason)
    assert built == [first]
    assert "the target is 1.0. Nothing" in refusal(lambda: refresh_all(table, "coarse")), "on request"
    sql = SqlSession.on(table.catalog, storage=STORAGE)
    assert "the target is 1.0. Nothing" in refusal(lambda: sql.sql("REFRESH INDEX coarse ON db.t"))
    table.append(rows_of(second_model(24, last, last + ROWS), last, last + ROWS))
    assert "the target is 1.0. Nothing" in refusal(lambda: refresh_all(table)), "more than a fifth of the rows"
    assert "a build is due" in refusal(lambda: refresh_all(table))
    assert index_versions(table.refresh(), "coarse") == before
    drop_index(table, "coarse")
    create_index(table, replace(high, seed=high.seed + 1))
    assert "the target is 1.0. Nothing" in refusal(lambda: refresh_all(table)), "another definition"
    assert built == [first, last, last, last + ROWS, last + ROWS]
    records = Path(table.location().removeprefix("file://"))
    assert len([*records.rglob("vain-builds/*.json")]) == 1, "that of the definition of before is gone"
    drop_index(table, "coarse")
    collect_garbage(table, storage=STORAGE, grace=timedelta(0))
    assert not [*records.rglob("vain-builds/*.json")]


def test_a_build_in_vain_is_not_made_again_where_shards_have_no_room(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refresh_shards(*_: object, **__: object) -> None:
        raise ShardTooLargeError("no room here")

    coarse = replace(LEAN, pq_m=1, pq_nbits=4, target_recall=0.1)
    index_head(table, coarse)
    high = replace(coarse, target_recall=1.0)
    built = counted_builds(monkeypatch)
    monkeypatch.setattr(new_version, "refresh_shards", refresh_shards)
    table.append(make_rows(ROWS, ROWS + 5))
    assert "A refresh was tried before: no room here" in refusal(lambda: index_head(table, high))
    both = r"no room here\. All rows were indexed anew before, with recall@10 [01]\.\d+, .* raise pq_m\. Else raise"
    with pytest.raises(ShardTooLargeError, match=both):
        index_head(table, high)
    assert built == [ROWS + 5]


def test_equality_deletes_make_other_rows_of_those_that_they_find(table: Table) -> None:
    high = replace(LEAN, pq_m=1, pq_nbits=4, target_recall=1.0)
    table.append(make_rows(0, ROWS))
    refusal(lambda: index_head(table, high))

    def vain() -> GateFailedError | None:
        run = RunContext(table.refresh(), STORAGE)
        plan = plan_version(run, high, SnapshotId(table.metadata.current_snapshot_id or 0))
        return find_vain_build(plan, run)

    delete_where_id_is(table, *range(9_000, 9_000 + ROWS))  # no row has one of these
    assert "100% of them are the same" in str(vain())
    delete_where_id_is(table, *range(10))
    assert "96% of them are the same" in str(vain())
    delete_where_id_is(table, *range(10, 50))  # two rows have each
    assert vain() is None, "100 of 480 rows are gone"


def test_rows_that_come_back_by_a_rollback_are_other_rows_too(table: Table) -> None:
    high = replace(LEAN, pq_m=1, pq_nbits=4, target_recall=1.0)
    table.append(make_rows(0, ROWS))
    whole = SnapshotId(table.refresh().metadata.current_snapshot_id or 0)
    delete_where_id_is(table, *range(50))  # two rows have each
    refusal(lambda: index_head(table, high))
    run = RunContext(table.refresh(), STORAGE)
    found = [find_vain_build(plan_version(run, high, snapshot), run) for snapshot in (head_of(table, "main"), whole)]
    assert found[0] is not None
    assert found[1] is None, "of 480 rows 100 were not there"


@pytest.mark.parametrize("fault", [StorageError, ValueError])
def test_a_store_that_does_not_give_the_record_of_a_build_is_no_damaged_record(
    table: Table, fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_range(*_: object) -> bytes:
        raise fault("the store does not answer")

    high = replace(LEAN, pq_m=1, pq_nbits=4, target_recall=1.0)
    refusal(lambda: index_head(table, high))
    run, head = RunContext(table, STORAGE), SnapshotId(table.metadata.current_snapshot_id or 0)
    plan = plan_version(run, high, head)
    assert estimate_refresh(run, high, head).reason == f"{plan.reason}. {find_vain_build(plan, run)}"
    monkeypatch.setattr(LocalStorage, "read_range", read_range)
    with pytest.raises(fault, match="the store does not answer"):
        find_vain_build(plan, run)


def test_a_store_that_refuses_the_name_of_a_record_has_none(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table bucket refuses folders under metadata/; and S3 any missing object, where the user may not list."""
    size = LocalStorage.size

    def size_of(store: LocalStorage, path: str) -> int:
        if "/vain-builds/" in path:
            raise RefusedError(f"{path}: the store refuses access (Forbidden)")
        return size(store, path)

    monkeypatch.setattr(LocalStorage, "size", size_of)
    assert index_head(table, replace(DEFINITION, name="other")).action is Action.BUILT


def test_a_layout_stays_where_a_build_of_the_same_rows_was_in_vain(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pass_gate(*_: object, **__: object) -> None:
        raise GateFailedError("too low")

    index_head(table, EIGHT)
    built, quarter = counted_builds(monkeypatch), ROWS // 4
    for first in (0, quarter, 2 * quarter):
        rows = rows_of(narrow_model()[first : first + quarter], first, first + quarter)
        table.overwrite(rows, f"id >= {first} and id < {first + quarter}")
        if first < 2 * quarter:
            index_head(table, EIGHT)
    with monkeypatch.context() as patch:
        patch.setattr(new_version, "pass_gate", pass_gate)
        for start in (ROWS, ROWS + 5):
            with pytest.raises(GateFailedError, match="too low"):
                index_head(table, EIGHT)
            table.append(make_rows(start, start + 5))
    assert built == [ROWS]
    report = index_head(table, EIGHT)
    assert (report.action, built) == (Action.REFRESHED, [ROWS])
    assert report.fit is not None
    assert report.fit.kept_balance == report.fit.balance > 3 * report.fit.built_balance


FAULTS_OF_BUILDS = [ShardTooLargeError, NoRoomError, DefinitionError]
"""Errors of builds that say nothing about recall, and come again whenever the same is built"""


def fail_to_build(monkeypatch: pytest.MonkeyPatch, fault: type[IcepuffinError]) -> list[str]:
    """Reasons of all builds from now on; each ends with an error."""
    reasons: list[str] = []

    def build_shards(_: object, plan: VersionPlan) -> None:
        reasons.append(plan.reason)
        raise fault("no room here")

    monkeypatch.setattr(new_version, "build_shards", build_shards)
    return reasons


@pytest.mark.parametrize("fault", FAULTS_OF_BUILDS)
def test_where_a_build_after_a_missed_gate_fails_the_error_names_both(
    table: Table, fault: type[IcepuffinError], monkeypatch: pytest.MonkeyPatch
) -> None:
    index_head(table, LEAN)
    before = index_versions(table.refresh(), "lean")
    append_narrow_cluster(table, 200)
    fail_to_build(monkeypatch, fault)
    both = r"no room here\. A refresh was tried before: .* recall@10 is 0\.\d+.*, the target .* previous version stays"
    with pytest.raises(fault, match=both):
        index_head(table, LEAN)
    assert index_versions(table.refresh(), "lean") == before


def test_what_was_staged_for_the_way_that_was_given_up_is_deleted(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pass_gate(plan: VersionPlan, *_: object, **__: object) -> None:
        listings.append([item.path for item in open_storage(staged, STORAGE).list(staged)])
        if plan.action is Action.REFRESHED:
            raise GateFailedError("too low")

    listings: list[list[str]] = []
    staged = f"{table.location()}/metadata/_icepuffin"
    monkeypatch.setattr(new_version, "pass_gate", pass_gate)
    monkeypatch.setattr(refresh, "_small_work", lambda _: 0)
    table.append(make_rows(ROWS, ROWS + 20))
    assert index_head(table).action is Action.BUILT
    of_refresh, of_both = map(set, listings)
    assert set() < of_refresh < of_both
    assert not list(open_storage(staged, STORAGE).list(staged))


def update_in_batches(table: Table, definition: IndexDefinition, vectors: npt.NDArray[np.float32]) -> list[IndexReport]:
    """Reports of refreshes after each of four copy-on-write UPDATEs of a quarter of the vectors."""
    reports = []
    for first in range(0, ROWS, ROWS // 4):
        last = first + ROWS // 4
        table.refresh().overwrite(rows_of(vectors[first:last], first, last), f"id >= {first} and id < {last}")
        reports.append(refreshed(table, definition))
        assert_right(table, vectors[first : first + 4], Coverage.EXACT_VERSION, definition)
    return reports


def test_batches_for_which_the_codebook_does_not_fit_show_in_the_check(table: Table) -> None:
    """They are no reason to build anew: a healthy table whose clusters are tight gets far rows with each new one."""
    reports = update_in_batches(table, DEFINITION, second_model(16))
    faults = [report.fit.fault for report in reports if report.fit is not None]
    assert any(re.match(r"the codebook no longer fits: rows lie \S+ from .*, \S+ when it was", one) for one in faults)
    assert [layout_result(report).passed for report in reports] == [not one for one in faults]
    advice = next(result for result in map(layout_result, reports) if not result.passed).metadata["what to do"].value
    assert advice == "nothing while recall is good: a refresh that misses target_recall builds the index anew"


def test_a_new_tight_cluster_in_each_commit_has_nothing_built_anew(table_factory: Callable[..., Table]) -> None:
    table, rng = table_factory(), np.random.default_rng(5)
    centers = rng.standard_normal((14, 16))
    for number, chosen in enumerate([centers[:10], *(centers[place : place + 1] for place in range(10, 14))]):
        near = np.repeat(chosen, 30, axis=0)
        near += 0.01 * rng.standard_normal(near.shape)
        table.append(rows_of(near.astype(np.float32), 1_000 * number, 1_000 * number + len(near)))
        assert index_head(table.refresh()).action is (Action.REFRESHED if number else Action.BUILT)


EIGHT = replace(DEFINITION, name="eight", shards=8, max_deltas=0)


def narrow_model() -> npt.NDArray[np.float32]:
    """Vectors f32[n, 16] near one of the eight centers that those of the first model lie around."""
    return vectors_of(8 * np.arange(ROWS), seed=7)


def test_batches_that_leave_shards_out_of_balance_have_the_index_built_anew_once(table: Table) -> None:
    index_head(table, EIGHT)
    reports = update_in_batches(table, EIGHT, narrow_model())
    assert [report.action for report in reports].count(Action.BUILT) == 1
    built = next(report for report in reports if report.action is Action.BUILT)
    assert re.fullmatch(r"shards are out of balance: the largest has [3-8]\S+ times .*", built.reason)
    assert built.fit is not None
    assert built.fit.balance == built.fit.built_balance < 2


def test_above_the_limit_a_layout_stays_and_below_it_bounds_foresee_the_build(table: Table) -> None:
    limited = replace(EIGHT, build_anew_rows=0)
    index_head(table, limited)
    reports = update_in_batches(table, limited, narrow_model())
    assert {report.action for report in reports} == {Action.REFRESHED}
    assert reports[-1].fit is not None
    assert reports[-1].fit.fault.startswith("shards are out of balance")
    assert [layout_result(report).passed for report in (reports[0], reports[-1])] == [True, False]
    assert layout_result(index_head(table, limited)) == layout_result(reports[-1]), "the version is reused"
    table.append(make_rows(ROWS, ROWS + 10))
    head = table.refresh().metadata.snapshot_by_id(table.metadata.current_snapshot_id or 0)
    assert head is not None
    assert plan_version(RunContext(table, STORAGE), limited, SnapshotId(head.snapshot_id)).action is Action.REFRESHED
    assert refresh_bounds(table, limited, head) is not None
    plan = plan_version(RunContext(table, STORAGE), EIGHT, SnapshotId(head.snapshot_id))
    assert plan.action is Action.REFRESHED, "which finds the fault, and builds"
    assert refresh_bounds(table, EIGHT, head) is None


@pytest.mark.parametrize("fault", [GateFailedError, *FAULTS_OF_BUILDS])
def test_a_layout_stays_where_a_build_does_not_succeed_and_is_not_tried_again(
    table: Table, fault: type[IcepuffinError], monkeypatch: pytest.MonkeyPatch
) -> None:
    index_head(table, EIGHT)
    builds = fail_to_build(monkeypatch, fault)
    reports = update_in_batches(table, EIGHT, narrow_model())
    assert {report.action for report in reports} == {Action.REFRESHED}
    assert [reason.partition(":")[0] for reason in builds] == ["shards are out of balance"]
    last = reports[-1].fit
    assert last is not None
    assert last.built_balance < last.kept_balance <= last.balance
    result = layout_result(reports[-1])
    assert not result.passed, "it does not fit, whatever was tried"
    assert (
        result.metadata["what to do"].value
        == "nothing while recall is good: a refresh that misses target_recall builds the index anew"
    )
    twice = replace(last, balance=2 * 3 * last.kept_balance)
    assert twice.imbalance, "once the figure has grown as much once more"


def test_the_error_of_a_refresh_names_the_build_that_was_tried_before_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pass_gate(plan: VersionPlan, *_: object, **__: object) -> None:
        if builds:
            raise GateFailedError("too low")

    index_head(table, EIGHT)
    builds = fail_to_build(monkeypatch, ShardTooLargeError)
    monkeypatch.setattr(new_version, "pass_gate", pass_gate)
    with pytest.raises(GateFailedError, match=r"too low\. A build was tried before: no room here"):
        update_in_batches(table, EIGHT, narrow_model())
