"""Threshold queries: exactly the rows that brute force finds, whatever was pruned."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.model import FileNumber
from icepuffin.ops.rows.candidates import Hits
from icepuffin.ops.search import range_search
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.exact import pruning, scan
from icepuffin.ops.search.exact.pruning import FileBalls
from icepuffin.ops.search.exact.scan import RangeThresholds, RowVectors, hits_within, resolve_rounding
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage, SearchResult, StalePolicy
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.file_balls import partition_balls
from icepuffin.ops.tasks.task_runner import LocalRunner
from icepuffin.puffin import PuffinReader
from icepuffin.puffin.blobs.centroid_blob import CentroidIndex
from icepuffin.puffin.sources import BytesSource
from icepuffin.puffin.types import BlobType
from tests.conftest import DIMS, ROWS, STORAGE, make_rows, queries
from tests.naive.thresholds import within
from tests.naive.vectors import distance
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.search.clusters import CENTERS, clustered

pytestmark = pytest.mark.usefixtures("coded_balls")

TableFactory = Callable[..., Table]
METRICS = ["l2", "cosine", "ip"]
BEYOND = 1.5 * CENTERS
"""Queries under 2 from most rows of their file, and over 2.5 from the balls of other files, by whatever order of files
the sample that these follow was read in
"""


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    """Six files, each about one point of its own."""
    new_table = table_factory()
    for number, center in enumerate(CENTERS):
        new_table.append(clustered(100 * number, 100, center.tolist()))
    return new_table


def held(table: Table, where: str = "id >= 0") -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    rows = table.refresh().scan(row_filter=where).to_arrow()
    return np.asarray(rows["id"]), np.array(rows["embedding"].to_pylist(), np.float32)


def check(
    result: SearchResult,
    table: Table,
    query_vectors: npt.NDArray[np.float32],
    t: float,
    metric: str,
    where: str = "id >= 0",
) -> int:
    """Assert that all rows are there that must be, and none that must not. Returns the number of rows."""
    ids, vectors = held(table, where)
    rows = result.rows.to_pylist()
    for number, query in enumerate(query_vectors):
        inside, doubtful = within(query, vectors, t, metric)
        own_rows = [row for row in rows if row["query"] == number]
        answer = {row["id"] for row in own_rows}
        assert {int(ids[row]) for row in inside} <= answer
        assert answer <= {int(ids[row]) for row in inside | doubtful}
        assert [row["rank"] for row in own_rows] == list(range(1, len(own_rows) + 1))
        assert [row["distance"] for row in own_rows] == sorted(row["distance"] for row in own_rows)
        assert all(row["distance"] < t for row in own_rows)
    return len(rows)


@pytest.mark.parametrize("vectors", ["f32", "f16", "none"])
@pytest.mark.parametrize(("metric", "t"), [("l2", 1.6), ("cosine", 0.12), ("ip", -8.0)])
def test_exactly_the_rows_under_the_distance_come_back(table: Table, metric: str, t: float, vectors: str) -> None:
    definition = replace(DEFINITION, metric=metric, vectors=vectors, target_recall=0.3)
    index_head(table, definition)
    query_vectors = np.asarray(CENTERS[:3] + 0.1, np.float32)
    result = open_index(table, definition, storage=STORAGE).within(query_vectors, t, columns=["id"])
    assert result.coverage is Coverage.EXACT_VERSION
    assert check(result, table, query_vectors, t, metric) > 50
    assert result.profile.pruning is not None
    assert (result.profile.pruning.files_pruned > 0) == (metric != "ip")  # how many: as the sample's partitions fall


@pytest.mark.parametrize("seed", range(3))
def test_directions_rounded_to_f32_decide_neither_membership_nor_order(table_factory: TableFactory, seed: int) -> None:
    """Under cosine: rows so alike that f32 cannot tell their directions apart, in a file of the index and in a tail."""
    rng = np.random.default_rng(seed)
    center = rng.standard_normal(DIMS)
    new_table = table_factory()
    for first in (0, 200, 400):
        rows = make_rows(first, first + 200).to_pydict()
        near = center * rng.uniform(0.5, 2.0, (200, 1)) + 1e-7 * rng.standard_normal((200, DIMS))
        near[::2] += 0.3 * rng.standard_normal((100, DIMS))
        new_table.append(pa.table({**rows, "embedding": near.astype(np.float32).tolist()}, schema=ROWS))
        if first == 200:
            index_head(new_table, replace(DEFINITION, metric="cosine", target_recall=0.3))
    definition = replace(DEFINITION, metric="cosine", target_recall=0.3)
    exact = open_exact(new_table, definition.column, "cosine", storage=STORAGE)
    reader = open_index(new_table, definition, storage=STORAGE)
    assert reader.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    query_vectors = np.stack([center, center + 0.2, -center])
    ranks = exact.search(query_vectors[:1], 600, columns=["id"]).rows["distance"].to_pylist()
    for t in (ranks[0], ranks[7], ranks[150], ranks[299], ranks[400], 0.0, 1.9999999999, 2.0):
        for inclusive in (False, True):
            for limit in (None, 1, 100):
                options = {"inclusive": inclusive, "limit": limit, "columns": ["id"]}
                result, expected = (
                    reader.within(query_vectors, t, **options).rows,
                    exact.within(query_vectors, t, **options).rows,
                )
                assert result.select(["query", "rank", "id"]).equals(expected.select(["query", "rank", "id"]))
                far = np.asarray(expected["distance"])
                assert (np.abs(np.asarray(result["distance"]) - far) <= 1e-7 * np.sqrt(far) + 1e-14).all()


@pytest.mark.parametrize("seed", range(3))
def test_pairs_of_rows_whose_directions_are_one_in_floats_are_told_apart(
    table_factory: TableFactory, seed: int
) -> None:
    """Under cosine: a hundred pairs, far from one another, so that no other row is near the two of a pair."""
    rng = np.random.default_rng(seed)
    first = rng.standard_normal((100, DIMS))
    second = first * rng.uniform(0.5, 2.0, (100, 1)) + 1e-7 * rng.standard_normal((100, DIMS))
    new_table = table_factory()
    rows = make_rows(0, 200).to_pydict()
    vectors = np.concatenate([first, second]).astype(np.float32)
    new_table.append(pa.table({**rows, "embedding": vectors.tolist()}, schema=ROWS))
    definition = replace(DEFINITION, metric="cosine", target_recall=0.3)
    index_head(new_table, definition)
    query_vectors = rng.standard_normal((4, DIMS))
    exact = open_exact(new_table, definition.column, "cosine", storage=STORAGE)
    expected = exact.within(query_vectors, 2.0, inclusive=True, columns=["id"]).rows
    result = open_index(new_table, definition, storage=STORAGE).within(
        query_vectors, 2.0, inclusive=True, columns=["id"]
    )
    assert result.rows.select(["query", "rank", "id"]).equals(expected.select(["query", "rank", "id"]))


def test_files_out_of_reach_are_not_read(table: Table) -> None:
    definition = replace(DEFINITION, vectors="none", target_recall=0.3)
    index_head(table, definition)
    reader = open_index(table, definition, storage=STORAGE)
    kept = next(task.file.file_path for task in table.scan(row_filter="id = 200").plan_files())
    for file in live_files(table, reader.snapshot_id).files:
        if file.path != kept:
            to_path(file.path).rename(to_path(file.path).with_suffix(".away"))
    result = reader.within(BEYOND[2], 2.0, columns=["id"])
    assert {row // 100 for row in result.rows["id"].to_pylist()} == {2}
    assert result.profile.pruning is not None
    assert (result.profile.pruning.files_pruned, result.profile.pruning.rows_pruned) == (5, 500)
    assert result.profile.pruning.share == pytest.approx(5 / 6)


def test_queries_that_come_together_read_the_balls_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails for one of them would prune otherwise than the proof of another assumes."""
    index_head(table)
    reader, read, calls = open_index(table, DEFINITION, storage=STORAGE), pruning.read_centroids, list[object]()

    def slowly(*arguments: Any) -> CentroidIndex:
        calls.append(arguments)
        time.sleep(0.2)  # for one more
        return read(*arguments)

    monkeypatch.setattr(pruning, "read_centroids", slowly)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: reader.within(BEYOND[2], 2.0, columns=["id"]).rows, range(4)))
    assert len(calls) == 1
    assert all(answer.equals(answers[0]) for answer in answers)


def test_inner_product_prunes_nothing_and_says_why(table: Table) -> None:
    definition = replace(DEFINITION, metric="ip")
    index_head(table, definition)
    pruning = open_index(table, definition, storage=STORAGE).within(CENTERS[0], -5.0).profile.pruning
    assert pruning is not None
    assert pruning.files_pruned == 0
    assert "triangle inequality" in pruning.why


def test_deleted_rows_are_not_within_reach(table: Table) -> None:
    index_head(table)
    file = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {file.path: np.arange(0, 60)})
    query_vectors = np.asarray(CENTERS, np.float32)
    before_refresh = open_index(table.refresh(), DEFINITION, storage=STORAGE).within(query_vectors, 1.5, columns=["id"])
    assert before_refresh.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    check(before_refresh, table, query_vectors, 1.5, "l2")
    index_head(table)
    check(
        open_index(table, DEFINITION, storage=STORAGE).within(query_vectors, 1.5, columns=["id"]),
        table,
        query_vectors,
        1.5,
        "l2",
    )


def test_rows_without_balls_are_scanned(table: Table) -> None:
    index_head(table)
    table.refresh().append(clustered(600, 100, CENTERS[1].tolist(), seed=5))
    query_vectors = np.asarray(CENTERS[1:2], np.float32)
    result = open_index(table.refresh(), DEFINITION, storage=STORAGE).within(query_vectors, 1.5, columns=["id"])
    check(result, table, query_vectors, 1.5, "l2")
    assert result.profile.tail_rows == 100
    assert max(result.rows["id"].to_pylist()) >= 600
    nearest = open_index(table, DEFINITION, storage=STORAGE, stale=StalePolicy.NEAREST_ONLY).within(query_vectors, 1.5)
    assert max(nearest.rows["id"].to_pylist()) < 600
    assert "not in the index" in nearest.warnings[0]


def test_a_ball_is_not_trusted_for_rows_that_were_dead_when_it_was_made(table: Table) -> None:
    """An outlier is deleted before the index is built, and alive in the older snapshot that is searched."""
    table.append(
        pa.concat_tables([clustered(600, 50, CENTERS[0].tolist()), clustered(650, 1, (40 * np.eye(DIMS)[9]).tolist())])
    )
    before = table.metadata.current_snapshot_id
    path = next(t.file.file_path for t in table.scan(row_filter="id = 650").plan_files())
    append_position_deletes(table, {path: np.array([50])})
    index_head(table)
    query_vectors = np.asarray(40 * np.eye(DIMS)[9:10], np.float32)
    found = open_index(table, DEFINITION, snapshot=before, storage=STORAGE).within(query_vectors, 5.0, columns=["id"])
    assert found.rows["id"].to_pylist() == [650]
    assert open_index(table, DEFINITION, storage=STORAGE).within(query_vectors, 5.0).rows.num_rows == 0


@pytest.mark.parametrize("stage", ["indexed", "stale"])
def test_a_condition_and_a_limit(table: Table, stage: str) -> None:
    index_head(table)
    if stage == "stale":
        table.refresh().append(clustered(600, 100, CENTERS[2].tolist()))
    query_vectors = np.asarray(CENTERS[:3], np.float32)
    reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
    result = reader.within(query_vectors, 1.5, where="section = 'section 3'", columns=["id"])
    assert check(result, table, query_vectors, 1.5, "l2", "section = 'section 3'") > 10
    three = reader.within(query_vectors, 1.5, where="section = 'section 3'", columns=["id"], limit=3)
    assert three.rows["id"].to_pylist() == [row["id"] for row in result.rows.to_pylist() if row["rank"] <= 3]
    assert reader.within(query_vectors, 1.5, where="id < 0").rows.num_rows == 0


def test_an_index_that_tasks_search_prunes_as_well(table: Table) -> None:
    """Its shards are not in this process: vectors are read from the data files that are in reach."""
    index_head(table)
    remote = open_index(table, DEFINITION, storage=STORAGE, runner=LocalRunner(1), in_process_mb=0)
    assert remote.tier == "distributed"
    query_vectors = np.asarray(BEYOND[:2], np.float32)
    result = remote.within(query_vectors, 2.0, columns=["id"])
    assert check(result, table, query_vectors, 2.0, "l2") > 50
    assert result.profile.pruning is not None
    assert result.profile.pruning.files_pruned == 4


def test_rows_and_queries_are_compared_in_blocks_of_any_size(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all shards, of some of their rows, and of data files."""
    index_head(table)
    by_index = open_index(table, DEFINITION, storage=STORAGE)
    exact = open_exact(table, "embedding", DEFINITION.metric, storage=STORAGE)
    cases = [(reader, where) for reader in (by_index, exact) for where in (None, "section = 'section 3'")]

    def found() -> list[tuple[list[int], int, int, int]]:
        answers = [reader.within(CENTERS[:5], 1e9, where=where, columns=["id"]) for reader, where in cases]
        costs = [(one.profile.distances, one.profile.tail_rows, one.profile.bytes_read["compare"]) for one in answers]
        return [(one.rows["id"].to_pylist(), *cost) for one, cost in zip(answers, costs, strict=True)]

    expected = found()
    assert [cost for _, *cost in expected] == [
        [3_000, 0, 0], [600, 0, 0], [3_000, 600, 600 * DIMS * 4], [600, 600, 600 * DIMS * 4]
    ]  # fmt: skip
    for module, name, value in (
        (range_search, "batch_rows", lambda _: 7), (scan, "batch_rows", lambda _: 7), (scan, "_ROWS_AT_ONCE", 7),
        (scan, "QUERIES_AT_ONCE", 2),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    assert found() == expected


def test_without_an_index_the_answer_is_the_same(table: Table) -> None:
    query_vectors = np.asarray(CENTERS[:2], np.float32)
    for metric, t in (("l2", 1.5), ("cosine", 0.1), ("ip", -8.0)):
        reader = open_exact(table, "embedding", Metric.parse(metric), storage=STORAGE)
        found = reader.within(query_vectors, t, columns=["id"])
        assert found.coverage is Coverage.EXACT_SCAN
        check(found, table, query_vectors, t, metric)


@pytest.mark.parametrize("by_tasks", [False, True])
def test_a_query_of_other_dimensions_is_refused_where_no_index_knows_them(table: Table, by_tasks: bool) -> None:
    runner = LocalRunner(1) if by_tasks else None
    reader = open_index(table, DEFINITION, storage=STORAGE, runner=runner, in_process_mb=0)
    with pytest.raises(QueryError, match="the query has 9 dimensions"):
        reader.within(np.zeros(9), 1e9)
    with pytest.raises(QueryError, match="the query has 9 dimensions"):
        reader.search(np.zeros(9), 5)


def test_the_threshold_itself_is_included_only_on_request(table: Table) -> None:
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    tenth = reader.within(CENTERS[0], 5.0, columns=["id"], limit=10).rows["distance"][9].as_py()
    assert reader.within(CENTERS[0], tenth, columns=["id"]).rows.num_rows == 9
    assert reader.within(CENTERS[0], tenth, inclusive=True, columns=["id"]).rows.num_rows == 10


@pytest.mark.parametrize(("t", "count"), [(-1.0, 0), (0.0, 0), (float("inf"), 600), (1e200, 600)])
def test_distances_at_the_ends(table: Table, t: float, count: int) -> None:
    index_head(table)
    assert open_index(table, DEFINITION, storage=STORAGE).within(CENTERS[0], t).rows.num_rows == count


@pytest.mark.parametrize("t", [float("nan"), "near", None, 10**400, -(10**400)])
def test_an_invalid_distance_is_refused(table: Table, t: float) -> None:
    with pytest.raises(QueryError, match="distance"):
        open_index(table, DEFINITION, storage=STORAGE).within(CENTERS[0], t)


def test_centroids_that_cannot_be_read_cost_pruning_and_are_reported(table: Table) -> None:
    report: IndexReport = index_head(table)
    path = to_path(str(report.puffin_path))
    blob = next(
        blob for blob in PuffinReader(BytesSource(path.read_bytes())).footer.blobs if blob.type == BlobType.CENTROID
    )
    reader = open_index(table, DEFINITION, storage=STORAGE)
    data = bytearray(path.read_bytes())
    data[blob.offset + blob.length // 2] ^= 0xFF
    path.write_bytes(data)
    query_vectors = np.asarray(CENTERS[:1], np.float32)
    result = reader.within(query_vectors, 1.5, columns=["id"])
    check(result, table, query_vectors, 1.5, "l2")
    assert result.profile.pruning is not None
    assert result.profile.pruning.files_pruned == 0
    assert "centroids cannot be read" in result.warnings[0]


def test_rows_that_rounding_may_have_exchanged_are_read_and_no_others() -> None:
    """The last row of a query is not in doubt for being as far as the first one of the next."""
    rounded, read = np.array([0.5, 0.5 + 1e-9, 0.7, 0.7]), list[int]()
    hits = Hits(np.array([0, 0, 0, 1]), np.array([1, 2, 3, 1]), np.zeros(4, np.int64), np.arange(4), rounded)

    def exact(_: object, __: object, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        read.extend(positions.tolist())
        return rounded[1 - positions]

    source: Any = SimpleNamespace(queries=np.zeros((2, DIMS)), read=exact)
    resolved = resolve_rounding(hits, RangeThresholds.none(2, Metric.COSINE), None, source)
    assert (resolved.positions.tolist(), read) == ([1, 0, 2, 3], [0, 1])


def test_a_file_is_as_far_as_the_nearest_of_its_balls() -> None:
    """Of three files the second has none."""
    centers, radii = np.array([[3, 4], [0, 9], [6, 8]], np.float32), np.array([1.0, 2.0, 0.5])
    with patch.object(pruning, "_MIN_CODED", 4):
        balls = FileBalls(3, np.array([0, 2, 0]), centers, radii, Metric.L2)
    queries = np.zeros((1, 2))
    assert balls.bounds(queries)[0] == pytest.approx([4, 0, 7], rel=1e-5)
    assert [balls.refined(queries, FileNumber(number))[0] for number in range(3)] == pytest.approx([4, 0, 7], rel=1e-5)
    several = np.array([[0.0, 0.0], [0.0, 20.0], [6.0, 8.0]])
    with patch.object(pruning, "_BYTES_AT_ONCE", 1):  # a ball, or a query, at once
        assert balls.bounds(several)[:, 0] == pytest.approx([4, 12.916408, 0], rel=1e-5)
        assert balls.refined(several, FileNumber(0)) == pytest.approx([4, 12.916408, 0], rel=1e-5)
    for t, reachable in ((3.9, [False, True, False]), (4.1, [True, True, False]), (7.1, [True, True, True])):
        thresholds = RangeThresholds.from_distance(t, 1, Metric.L2, inclusive=True)
        assert balls.reachable(queries, thresholds).tolist() == reachable


@given(
    seed=st.integers(0, 2**32), metric=st.sampled_from(["l2", "cosine"]), scale=st.sampled_from([1e-3, 1.0, 1e4]),
    dims=st.sampled_from([1, 3, 64, 700]), spread=st.sampled_from([0.0, 1e-6, 1e-2, 1.0]),
    fewest_coded=st.sampled_from([1, 32]),
)  # fmt: skip
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_ball_never_hides_a_row(
    seed: int, metric: str, scale: float, dims: int, spread: float, fewest_coded: int
) -> None:
    """Balls as the build makes them, thresholds at the very distance of a row: its file is always in reach."""
    rng = np.random.default_rng(seed)
    kind = Metric.parse(metric)
    center = rng.standard_normal(dims) * scale
    vectors = prepare((center + spread * scale * rng.standard_normal((40, dims))).astype(np.float32), kind)
    codebook = vectors[rng.choice(len(vectors), 3)] + np.float32(1e-7 * scale)
    labels, squared = kmeans.assign(vectors, codebook)
    reach = np.full(3, -1.0, np.float32)
    np.maximum.at(reach, labels, np.sqrt(squared))
    cover = partition_balls(reach, codebook)
    with patch.object(pruning, "_MIN_CODED", fewest_coded):
        balls = FileBalls(
            files=1,
            numbers=np.zeros(len(cover), np.int64),
            centers=np.array([center for center, _ in cover], np.float32),
            radii=np.array([radius for _, radius in cover], np.float32).astype(np.float64),
            metric=kind,
        )
    query = prepare((center + scale * rng.standard_normal((1, dims))).astype(np.float32), kind)
    for vector in vectors:
        exact = distance(query[0], vector, "l2")
        t = exact if kind is Metric.L2 else exact**2 / 2
        assert balls.reachable(query, RangeThresholds.from_distance(t, 1, kind, inclusive=True))[0]


@given(seed=st.integers(0, 10_000), t=st.floats(0.0, 8.0), number=st.integers(0, 2))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_threshold_agrees_with_brute_force(
    indexed: list[tuple[str, Table, IndexReader]], seed: int, t: float, number: int
) -> None:
    metric, table, reader = indexed[number]
    query_vectors = queries(40)[seed % 40 : seed % 40 + 1]
    t = {"l2": t, "cosine": t / 4, "ip": 8 - 3 * t}[metric]
    check(reader.within(query_vectors, t, columns=["id"]), table, query_vectors, t, metric)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Table, IndexReader]]:
    """One table in several files, an open index of each metric."""
    folder = tmp_path_factory.mktemp("within")
    catalog = open_catalog("w", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"})
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS, properties={"format-version": "2"})
    for start in range(0, 400, 100):
        table.append(make_rows(start, start + 100))
    matches: list[tuple[str, Table, IndexReader]] = []
    for metric, vectors in zip(METRICS, ("f32", "none", "f16"), strict=True):
        definition = replace(DEFINITION, name=metric, metric=metric, vectors=vectors, target_recall=0.2)
        index_head(table, definition)
        matches.append((metric, table, open_index(table.refresh(), definition, storage=STORAGE)))
    return matches


def test_a_search_with_a_limit_collects_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many lie within the distance, and the answer is the same."""
    rng = np.random.default_rng(7)
    query_vectors, vectors = rng.normal(size=(3, 4)), rng.normal(size=(2_000, 4)).astype(np.float32)
    vectors[::3] = vectors[0]  # ties
    files, positions = rng.permutation(2_000) % 5, rng.permutation(2_000)
    batches = [
        RowVectors(files[start : start + 50], positions[start : start + 50], vectors[start : start + 50])
        for start in range(0, 2_000, 50)
    ]
    thresholds = RangeThresholds(np.full(3, 9.0), inclusive=True, metric=Metric.L2)
    every, _ = hits_within(query_vectors, thresholds, batches, None)
    assert len(every.queries) > 5_000
    collected: list[int] = []
    ranked = Hits.ranked

    def counted(parts: Sequence[Hits], limit: int | None) -> Hits:
        collected.append(sum(len(part.queries) for part in parts))
        return ranked(parts, limit)

    monkeypatch.setattr(Hits, "ranked", counted)
    monkeypatch.setattr("icepuffin.ops.search.exact.scan._PAIRS_PENDING", 200)
    for limit in (1, 10, 90):
        hits, compared = hits_within(query_vectors, thresholds, batches, limit)
        expected = every.take(np.flatnonzero(every.ranks <= limit))
        for name in ("queries", "ranks", "files", "positions", "distances"):
            assert np.array_equal(getattr(hits, name), getattr(expected, name))
        assert compared == 2_000
        assert max(collected) <= 2 * 3 * limit + 350
        collected.clear()
