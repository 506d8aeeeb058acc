"""The distributed tier gives what the in-process reader gives: here by tasks that a runner of this process runs.

On Spark: tests/ops/spark/test_join.py.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.expiration import expire_derived
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.rows.candidates import Candidates, merge, merge_sorted
from icepuffin.ops.search import tuning
from icepuffin.ops.search.errors import IndexUnavailableError
from icepuffin.ops.search.indexed import distributed_search
from icepuffin.ops.search.indexed.distributed_search import _parts, balanced, together
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage, StalePolicy
from icepuffin.ops.search.source_answer import SourceAnswer
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext, TaskRunner
from tests.conftest import ROWS, STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.search.runners import LabelRecorder, ResultRecorder, SeveralAtOnce

LEAN = replace(DEFINITION, vectors="none", pq_m=8)
ROUNDED = replace(DEFINITION, vectors="f16")


def both(table: Table, definition: IndexDefinition = DEFINITION, **options: Any) -> tuple[IndexReader, IndexReader]:
    """(in this process, by tasks)."""
    here = open_index(table, definition, storage=STORAGE, **options)
    runner = SeveralAtOnce()
    there = open_index(table, definition, storage=STORAGE, runner=runner, in_process_mb=0, **options)
    return here, there


def with_a_tail(table: Table, definition: IndexDefinition, runner: TaskRunner) -> tuple[IndexReader, IndexReader]:
    """(in this process, by tasks of the runner): readers of a version, and of 100 rows that were appended since."""
    index_head(table, definition)
    table.refresh()
    table.append(make_rows(600, 700))
    table.refresh()
    here = open_index(table, definition, storage=STORAGE)
    return here, open_index(table, definition, storage=STORAGE, runner=runner, in_process_mb=0)


@pytest.fixture(autouse=True)
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no index is warm."""
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")


@pytest.mark.parametrize("definition", [DEFINITION, LEAN, ROUNDED])
@pytest.mark.parametrize(
    "options", [{}, {"search_list": 15}, {"shards": 2}, {"where": "id >= 200"}, {"rerank": False}, {"rerank": True}]
)
def test_tasks_find_what_this_process_finds(table: Table, definition: IndexDefinition, options: dict[str, Any]) -> None:
    index_head(table, definition)
    here, there = both(table, definition)
    assert (here.tier, there.tier) == ("in-process", "distributed")
    for query_vectors in (queries(1), queries(200)):
        local_result, remote_result = (
            here.search(query_vectors, 7, **options),
            there.search(query_vectors, 7, **options),
        )
        assert remote_result.rows.equals(local_result.rows)
        assert remote_result.coverage is local_result.coverage
        assert remote_result.profile.nodes_expanded == local_result.profile.nodes_expanded or "where" in options
        assert {item.shard_id for item in remote_result.profile.work} == {
            item.shard_id for item in local_result.profile.work
        }


def test_tasks_search_an_index_of_more_than_the_threshold(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 MiB, where nobody sets another."""
    index_head(table)
    tiers = []
    for options, size in (({}, 100 << 20), ({}, (100 << 20) + 1), ({"in_process_mb": 2}, (2 << 20) + 1)):
        monkeypatch.setattr(OpenVersion, "bytes_searched", size)
        tiers.append(open_index(table, DEFINITION, storage=STORAGE, runner=SeveralAtOnce(), **options).tier)
    assert tiers == ["in-process", "distributed", "distributed"]


@pytest.mark.parametrize("definition", [DEFINITION, LEAN])
def test_many_queries_are_searched_by_several_jobs(
    table: Table, definition: IndexDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark refuses a task with all of them. The answer is the same, as are the counts of rows."""
    runner = LabelRecorder()
    here, there = with_a_tail(table, definition, runner)
    vectors = queries(200)
    monkeypatch.setattr(distributed_search, "_RANKED_HERE", 100)
    monkeypatch.setattr(distributed_search, "_JOB_BYTES", vectors.astype(np.float64).nbytes // 3 + 1)
    runner.jobs.clear()
    expected, result = (reader.search(vectors, rerank=True) for reader in (here, there))
    assert result.rows.equals(expected.rows)
    assert result.profile.tail_rows == expected.profile.tail_rows == 100
    jobs = {label: runner.jobs.count(label) for label in runner.jobs}
    lean = {"rank candidates": 3} if definition is LEAN else {}
    assert jobs == {"search shards": 6, **lean}, "shards, then files"


@pytest.mark.parametrize("definition", [DEFINITION, LEAN, ROUNDED])
def test_results_of_a_job_are_bounded(
    table: Table, definition: IndexDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark ends a job with more, and the driver has them all in memory."""
    runner = ResultRecorder()
    here, there = with_a_tail(table, definition, runner)
    limit = 200_000
    monkeypatch.setattr(distributed_search, "_RESULT_BYTES", limit)
    monkeypatch.setattr(distributed_search, "_RANKED_HERE", 100)
    runner.bytes.clear()
    expected, result = (reader.search(queries(200), 50, rerank=True) for reader in (here, there))
    assert result.rows.equals(expected.rows)
    assert result.profile.strategy == expected.profile.strategy
    assert result.profile.tail_rows == expected.profile.tail_rows == 100
    assert sum(runner.bytes) > 2 * limit
    assert max(runner.bytes) < limit + 20_000, "the profile of each task comes to it"


@pytest.mark.parametrize("definition", [LEAN, ROUNDED])
def test_many_candidates_are_ranked_by_tasks(
    table: Table, definition: IndexDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed_search, "_RANKED_HERE", 100)
    index_head(table, definition)
    here = open_index(table, definition, storage=STORAGE)
    runner = LabelRecorder()
    there = open_index(table, definition, storage=STORAGE, runner=runner, in_process_mb=0)
    for count, jobs in ((3, ["search shards"]), (4, ["search shards", "rank candidates"])):  # of 30 candidates each
        runner.jobs.clear()
        assert there.search(queries(count), rerank=True).rows.equals(here.search(queries(count), rerank=True).rows)
        assert runner.jobs == jobs


@pytest.mark.parametrize("definition", [DEFINITION, LEAN])
def test_rows_added_and_deleted_since_are_treated_alike(table: Table, definition: IndexDefinition) -> None:
    index_head(table, definition)
    table.refresh()
    table.append(make_rows(600, 700))
    file = live_files(table, table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {file.path: np.arange(0, 150)})
    table.refresh()
    for stale in (StalePolicy.COMPLETE, StalePolicy.NEAREST_ONLY):
        here, there = both(table, definition, stale=stale)
        local_result, remote_result = here.search(queries(30), 9), there.search(queries(30), 9)
        assert remote_result.coverage is local_result.coverage is not Coverage.EXACT_VERSION
        assert remote_result.rows.equals(local_result.rows)
        assert remote_result.profile.tail_rows == local_result.profile.tail_rows
        assert remote_result.warnings == local_result.warnings


def test_threshold_queries_read_the_table_where_no_vector_is_here(table: Table) -> None:
    index_head(table)
    here, there = both(table)
    local_result, remote_result = (reader.within(queries(3), 3.0) for reader in (here, there))
    assert remote_result.rows.equals(local_result.rows)
    assert (local_result.profile.tier, remote_result.profile.tier) == ("in-process", "distributed")


def test_a_shard_that_no_task_can_read_leads_to_the_exact_answer(table: Table) -> None:
    report = index_head(table)
    path = to_path(str(report.puffin_path))
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 0xFF
    path.write_bytes(data)
    _, there = both(table)
    assert there.coverage is Coverage.EXACT_SCAN
    assert any(".puffin" in warning for warning in there.search(queries(1)).warnings)


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:1000])])
@pytest.mark.parametrize("policy", list(StalePolicy))
def test_a_shard_that_no_task_can_read_any_more_leads_there_as_well(
    table: Table, uncached: None, harm: Callable[[Path], object], policy: StalePolicy
) -> None:
    report = index_head(table)
    _, there = both(table, stale=policy)
    assert there.tier == "distributed"
    harm(to_path(str(report.puffin_path)))
    if policy is StalePolicy.FAIL:
        with pytest.raises(IndexUnavailableError, match=r"\.puffin, which was opened, cannot be read any more"):
            there.search(queries(1))
        return
    for where in (None, "id >= 300"):
        result = there.search(queries(3), 5, where=where, columns=["id"])
        true = open_exact(table, "embedding", Metric.L2, storage=STORAGE).search(
            queries(3), 5, where=where, columns=["id"]
        )
        assert result.rows.equals(true.rows)
        assert result.coverage is Coverage.EXACT_SCAN
        assert ".puffin" in result.warnings[0]


@pytest.mark.services
def test_tasks_read_an_object_store_with_what_they_are_given(tmp_path: Path, s3: StorageConfig) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://lake/{tmp_path.name}"}
    catalog = open_catalog("far", {**properties, **s3.properties})
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS, properties={"format-version": "2"})
    table.append(make_rows(0, 200))
    head = table.refresh().metadata.current_snapshot_id or 0
    materialize_index(RunContext(table, s3, LocalRunner()), LEAN, head)
    table.refresh()
    here = open_index(table, LEAN, storage=s3)
    there = open_index(table, LEAN, storage=s3, runner=SeveralAtOnce(), in_process_mb=0)
    assert there.tier == "distributed"
    assert there.search(queries(9), 5).rows.equals(here.search(queries(9), 5).rows)


def test_the_tier_and_the_reason_are_in_the_profile(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    index_head(table)
    runner = SeveralAtOnce()

    def tier_of(**options: Any) -> tuple[str, str]:
        profile = open_index(table, DEFINITION, storage=STORAGE, **options).search(queries(1)).profile
        return profile.tier, profile.tier_why

    assert tier_of() == ("in-process", "the index is in memory")
    assert "not over the threshold of 100 MiB" in tier_of(runner=runner)[1]
    tier, why = tier_of(runner=runner, in_process_mb=0)
    assert tier == "distributed"
    assert "over the threshold of 0 MiB" in why
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "10")
    tier_of()
    tier, why = tier_of(runner=runner, in_process_mb=0)
    assert tier == "in-process"
    assert "in this process's memory" in why


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 8))
def test_groups_hold_everything_once_and_none_is_much_heavier(weights: list[int], count: int) -> None:
    groups = balanced(weights, count)
    assert sorted(place for group in groups for place in group) == list(range(len(weights)))
    loads = [sum(weights[place] for place in group) for group in groups]
    assert not loads or max(loads) - min(loads) <= max(weights)


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 6))
def test_the_tree_merges_as_sorting_does(seed: int, parts: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    runs = []
    for _ in range(parts):
        distances = rng.integers(0, 4, (3, 5)).astype(np.float32)
        result = Candidates(rng.integers(0, 3, (3, 5)), rng.permutation(99)[:15].reshape(3, 5), distances)
        gone = np.arange(5) >= rng.integers(0, 6, (3, 1))
        result = Candidates(
            np.where(gone, -1, result.files), np.where(gone, -1, result.positions), np.where(gone, np.inf, distances)
        )
        runs.append(merge([result], 5))
    one, other = merge_sorted(runs, k), merge([*runs, Candidates.none(3, k)], k)
    for name in ("files", "positions", "distances"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize(
    ("ways", "way"),
    [
        (("exact over matches", "exact over matches"), "exact over matches"),
        (("exact over matches", "filtered beam"), "filtered beam"),
        (("filtered beam", "exact over matches"), "filtered beam"),
    ],
)
def test_an_answer_is_exact_only_where_every_group_compared(ways: tuple[str, ...], way: str) -> None:
    none = Candidates.none(1, 3)
    assert together([SourceAnswer(none, 1, each) for each in ways], none).strategy == way


def rows_of(vectors: npt.NDArray[np.float32]) -> pa.Table:
    """Rows with these vectors."""
    rows = make_rows(0, len(vectors))
    return rows.set_column(3, "embedding", pa.array(vectors.tolist(), pa.list_(pa.float32())))


def assert_exact(
    table: Table, definition: IndexDefinition, query_vectors: npt.NDArray[Any], k: int, **options: Any
) -> None:
    """Under a condition that all rows meet: in this process and by tasks."""
    metric = Metric.parse(definition.metric)
    true = open_exact(table, "embedding", metric, storage=STORAGE).search(query_vectors, k, columns=["id"])
    for reader in both(table, definition):
        result = reader.search(query_vectors, k, where="id >= 0", columns=["id"], **options)
        assert result.profile.strategy == "exact over matches"
        assert result.rows["id"].to_pylist() == true.rows["id"].to_pylist(), reader.tier


@pytest.mark.parametrize(("shards", "count", "bundle"), [(1, 130, 12), (8, 9, 12), (8, 9, 6)])
def test_directions_that_floats_cannot_tell_apart_are_settled_over_all_shards(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch, shards: int, count: int, bundle: int
) -> None:
    """Eight bundles of directions are equally far from each query, and rounding decides which row is nearest.

    The list of a share has all its rows that may be among the nearest, and so has the longer one of all shares, and
    that of many queries, which tasks divide among them. Lists of small bundles are short, and all count together.
    """
    monkeypatch.setattr(SeveralAtOnce, "parallelism", 8)
    rng = np.random.default_rng(shards)
    axes = np.linalg.qr(rng.standard_normal((16, 16)))[0]
    near = np.repeat(axes[0] + axes[1:9], bundle, axis=0)
    far = np.repeat(0.3 * axes[0] + axes[1:9], 30, axis=0) + 0.01 * rng.standard_normal((240, 16))
    vectors = rng.uniform(0.1, 10, (len(near) + 240, 1)) * np.concatenate([near, far])
    table = table_factory()
    table.append(rows_of(vectors.astype(np.float32)))
    definition = replace(DEFINITION, metric="cosine", shards=shards, target_recall=0.01)
    index_head(table, definition)
    query_vectors = axes[0] + rng.uniform(-1e-9, 1e-9, (count, 16))
    assert_exact(table.refresh(), definition, query_vectors, 5)


@pytest.mark.parametrize("k", [10, 60])
def test_tasks_search_the_shards_that_a_target_chooses_and_no_others(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    """For 60 rows, some queries need further shards."""
    monkeypatch.setattr(SeveralAtOnce, "parallelism", 3)
    monkeypatch.setattr(tuning, "_ROWS_PER_CENTROID", 1)
    table = table_factory()
    table.append(make_rows(0, 400))
    definition = replace(DEFINITION, shards=6)
    index_head(table, definition)
    here, there = (
        reader.search(queries(20), k, columns=["id"], target_recall=0.2) for reader in both(table.refresh(), definition)
    )
    assert (there.profile.tier, len(there)) == ("distributed", 20 * k)
    assert there.profile.work == here.profile.work
    assert there.rows.equals(here.rows)
    assert (sum(shard.queries for shard in there.profile.work) > 20) == (k == 60)


def test_rounded_vectors_are_compared_with_more_candidates_than_rows_wanted(
    table_factory: Callable[..., Table],
) -> None:
    """Two groups far apart, in each of which f16 tells no row from another."""
    rng = np.random.default_rng(3)
    centers = np.repeat(np.array([[1000.0], [-1000.0]]) * np.ones(16), 40, axis=0)
    table = table_factory()
    table.append(rows_of((centers + rng.standard_normal((80, 16)) * 0.05).astype(np.float32)))
    definition = replace(ROUNDED, target_recall=0.01)
    index_head(table, definition)
    assert_exact(table.refresh(), definition, centers[[0, 79]] + 0.01, 3, oversample=20, rerank=True)


@pytest.mark.parametrize("definition", [DEFINITION, replace(DEFINITION, metric="cosine"), LEAN])
def test_a_ball_does_not_hide_rows_that_are_live_again(
    table_factory: Callable[..., Table], definition: IndexDefinition
) -> None:
    """Rows far from all others were deleted when the version was made, and are live in the snapshot that is read."""
    vectors = make_rows(0, 300)["embedding"].to_pylist()
    outliers = [[-50.0 * value for value in vector] for vector in vectors[:5]]
    table = table_factory()
    table.append(rows_of(np.array(outliers + vectors[5:], np.float32)))
    index_head(table, definition)
    table.refresh().append(make_rows(300, 560))
    first = table.metadata.snapshot_log[0].snapshot_id
    file = live_files(table, first).files[0]
    append_position_deletes(table.refresh(), {file.path: np.arange(5)})
    index_head(table, definition)
    remove_version(table.refresh(), definition, first)
    metric = Metric.parse(definition.metric)
    distance = 5.0 if metric is Metric.L2 else 0.05
    for reader in both(table, definition, snapshot=first):
        assert reader.coverage is not Coverage.EXACT_SCAN
        result = reader.within(outliers, distance, columns=["id"])
        true = open_exact(table, "embedding", metric, snapshot=first, storage=STORAGE).within(
            outliers, distance, columns=["id"]
        )
        assert set(range(5)) <= set(true.rows["id"].to_pylist())
        assert result.profile.pruning is not None
        assert result.profile.pruning.why.startswith("0 balls")  # of the one file
        assert result.rows["id"].to_pylist() == true.rows["id"].to_pylist()


def remove_version(table: Table, definition: IndexDefinition, snapshot_id: int) -> None:
    version = next(one for one in index_versions(table, definition.name) if one.base_snapshot_id == snapshot_id)
    expire_derived(table, {version.index_snapshot_id}, frozenset(version.tags))
    table.refresh()


@pytest.mark.parametrize(
    ("state", "definition"),
    list(
        zip(
            ("empty", "emptied", "one row", "rolled back", "branch", "no vectors"),
            3 * (ROUNDED, replace(DEFINITION, metric="cosine")),
            strict=True,
        )
    ),
)
def test_tasks_find_what_this_process_finds_in_tables_of_any_state(
    table_factory: Callable[..., Table], state: str, definition: IndexDefinition
) -> None:
    new_table, snapshot = table_factory(), None
    new_table.append(make_rows(0, 1 if state == "one row" else 200))
    index_head(new_table, replace(definition, target_recall=0.01))
    first = new_table.refresh().metadata.current_snapshot_id or 0
    if state == "empty":
        new_table.delete("id >= 0")
        index_head(new_table, definition)
    elif state == "emptied":
        new_table.delete("id >= 0")
    elif state == "rolled back":
        new_table.delete("id < 90")
        new_table.append(make_rows(200, 260))
        index_head(new_table, definition)
        new_table.refresh().manage_snapshots().rollback_to_snapshot(first).commit()
        new_table.refresh().append(make_rows(300, 330))
    elif state == "branch":
        new_table.manage_snapshots().create_branch(first, "side").commit()
        new_table.refresh().append(make_rows(200, 260), branch="side")
        new_table.refresh().delete("id < 50")
        index_head(new_table, definition)
        snapshot = "side"
    elif state == "no vectors":
        nothing = pa.array([None] * 60, pa.list_(pa.float32()))
        new_table.append(make_rows(200, 260).set_column(3, "embedding", nothing))
        index_head(new_table, definition)
    new_table.refresh()
    here, there = both(new_table, definition, snapshot=snapshot)
    assert there.coverage is here.coverage
    true = open_exact(new_table, "embedding", definition.metric, snapshot=snapshot, storage=STORAGE)
    for (count, where), k in product(((2, None), (2, "id < 0"), (2, "id = 7"), (130, "id >= 100")), (1, 1000)):
        options: dict[str, Any] = {"where": where, "rerank": True, "oversample": 100}
        local_result, remote_result = (reader.search(queries(count), k, **options) for reader in (here, there))
        assert remote_result.rows.equals(local_result.rows)
        assert remote_result.warnings == local_result.warnings
        if where is not None and local_result.profile.strategy != "filtered beam":
            exact = true.search(queries(count), k, where=where, columns=["id"])
            assert local_result.rows["id"].to_pylist() == exact.rows["id"].to_pylist()
    close_here, close_there = (reader.within(queries(2), 0.9, columns=["id"]).rows for reader in (here, there))
    assert close_there["id"].to_pylist() == close_here["id"].to_pylist()


def test_queries_are_one_part_unless_they_or_their_candidates_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_search, "_JOB_BYTES", 3 * 16 * 8)
    parts = {count: [(part.start, part.stop) for part in _parts(np.empty((count, 16)), 5)] for count in (0, 3, 4)}
    assert parts == {0: [(0, 1)], 3: [(0, 3)], 4: [(0, 2), (2, 4)]}
