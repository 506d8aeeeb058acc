"""Certified searches: the rows of an exact scan, however poor the graph's answer was, and a proof that holds."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import FileNumber
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.exact.file_scans import FileShare
from icepuffin.ops.search.exact.scan import VectorSource, scan_in_reach
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage, SearchResult, StalePolicy
from icepuffin.ops.table.live_files import live_files
from tests.conftest import DIMS, ROWS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.search.clusters import CENTERS, clustered
from tests.ops.search.runners import LabelRecorder, SeveralAtOnce

pytestmark = pytest.mark.usefixtures("coded_balls")
ROWS_PER_FILE = 100
BALLS = [("l2", "balls"), ("cosine", "balls")]
"""Indexes without graphs, of which every answer is certified"""
INDEXES = [("l2", "f32"), ("l2", "none"), ("cosine", "f32"), ("cosine", "f16"), *BALLS]


def rows_around(center: npt.NDArray[np.float64], first: int) -> pa.Table:
    """Rows around one point, of which some have the same vector."""
    rows = clustered(first, ROWS_PER_FILE, center.tolist())
    places = np.arange(ROWS_PER_FILE)
    places[::10] = 1
    return rows.set_column(3, ROWS.field("embedding"), rows["embedding"].take(pa.array(places)))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Six files, each about one point; deletes of some rows, and two files more than the indexes know."""
    folder = tmp_path_factory.mktemp("certified")
    catalog = open_catalog("c", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"})
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS, properties={"format-version": "2"})
    for number, center in enumerate(CENTERS[:4]):
        table.append(rows_around(center, number * ROWS_PER_FILE))
    for metric, vectors in INDEXES:
        index_head(table, definition_of(metric, vectors))
    index_head(table, definition_of("ip", "f32"))
    files = live_files(table, table.refresh().metadata.current_snapshot_id or 0).files
    append_position_deletes(table, {files[0].path: np.arange(0, 30), files[2].path: np.array([5, 99])})
    for number, center in enumerate(CENTERS[4:], 4):
        table.append(rows_around(center, number * ROWS_PER_FILE))
    return table.refresh()


def definition_of(metric: str, vectors: str) -> IndexDefinition:
    what = {"method": "centroid"} if vectors == "balls" else {"vectors": vectors}
    return replace(DEFINITION, name=f"{metric}_{vectors}", metric=metric, target_recall=0.3, **what)


@pytest.fixture(scope="module")
def readers(table: Table) -> dict[tuple[str, str, str], IndexReader]:
    return {
        (metric, vectors, tier): open_index(
            table,
            definition_of(metric, vectors),
            storage=STORAGE,
            **({"runner": SeveralAtOnce(), "in_process_mb": 0} if tier == "distributed" else {}),
        )
        for metric, vectors in INDEXES
        for tier in ("in-process", "distributed")
    }


def check(certified: SearchResult, exact: SearchResult, *, rounded: bool) -> None:
    """The same rows in the same order; distances are those of the table's vectors, up to the index's rounding."""
    assert certified.rows.select(["query", "rank", "id"]).equals(exact.rows.select(["query", "rank", "id"]))
    far = np.asarray(exact.rows["distance"])
    tolerance = 1e-7 * np.sqrt(far) + 1e-14 if rounded else 1e-12 * far
    assert (np.abs(np.asarray(certified.rows["distance"]) - far) <= tolerance).all()


@given(
    seed=st.integers(0, 2**32), k=st.sampled_from([1, 7, 60, 700]), index=st.sampled_from(INDEXES),
    tier=st.sampled_from(["in-process", "distributed"]),
    where=st.sampled_from([None, "section = 'section 2'", "id < 3", "id < 0"]), search_list=st.sampled_from([1, None]),
)  # fmt: skip
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_answer_is_that_of_an_exact_scan(
    table: Table, readers: dict[tuple[str, str, str], IndexReader], seed: int, k: int, index: tuple[str, str],
    tier: str, where: str | None, search_list: int | None,
) -> None:  # fmt: skip
    """Also where the graph is hardly walked: with the narrowest beam, in one shard."""
    rng = np.random.default_rng(seed)
    metric, vectors = index
    reader = readers[metric, vectors, tier]
    near = CENTERS[rng.integers(6, size=3)] + rng.choice([0.05, 1.0, 20.0]) * rng.standard_normal((3, DIMS))
    queries = near.astype(np.float32)
    narrow = {"search_list": search_list, "shards": 1, "oversample": 1} if search_list else {}
    options = {"columns": ["id"], "where": where}
    certified = reader.search(queries, k, certified=True, **narrow, **options)
    exact = open_exact(table, "embedding", metric, storage=STORAGE).search(queries, k, **options)
    check(certified, exact, rounded=metric == "cosine")
    check_proof(certified, table, reader, queries, k)


def check_proof(
    result: SearchResult, table: Table, reader: IndexReader, queries: npt.NDArray[np.float32], k: int
) -> None:
    """No row of a pruned file is under the certificate's bound, and that is not under the last row."""
    certificate, pruning = result.profile.certificate, result.profile.pruning
    assert certificate is not None
    assert pruning is not None
    rows = table.scan().to_arrow()
    files = np.asarray(rows["id"]) // ROWS_PER_FILE
    live = live_files(table, table.metadata.current_snapshot_id or 0).files
    first_ids = {file.path: pq.read_table(file.path.removeprefix("file://"))["id"][0].as_py() for file in live}
    numbers = {path: first // ROWS_PER_FILE for path, first in first_ids.items()}
    vectors = np.array(rows["embedding"].to_pylist(), np.float64)
    for query, (last, bound) in enumerate(zip(certificate.last, certificate.pruned_from, strict=True)):
        answer = [row for row in result if row["query"] == query]
        assert last == (answer[-1]["distance"] if len(answer) == k else np.inf)
        assert bound >= last
        if reader.metric == "l2":
            distances = np.linalg.norm(vectors - queries[query].astype(np.float64), axis=1)
        else:
            units = vectors / np.linalg.norm(vectors, axis=1)[:, None]
            distances = 1 - units @ (queries[query] / np.linalg.norm(queries[query].astype(np.float64)))
        nearest = sorted(distances[files == number].min() for number in range(6))
        # the bound holds for the files that are farthest, which are the pruned ones where each query has the same
        assert len([distance for distance in nearest if distance < bound]) <= pruning.files - pruning.files_pruned
        assert len(certificate.ruled_out) == pruning.files_pruned
        for path, margin in certificate.ruled_out.items():
            assert 0 <= margin <= distances[files == numbers[path]].min() - last


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_files_that_one_query_of_a_batch_needs_are_read(tmp_path: Path, metric: str) -> None:
    """However many files are read before them, and whatever the other queries need. Each query has a file of its own,
    of more than are read at first.
    """
    catalog = open_catalog("b", {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"})
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS, properties={"format-version": "2"})
    with table.update_spec() as spec:
        spec.add_identity("name")
    rng = np.random.default_rng(11)
    centers = rng.standard_normal((24, DIMS))
    owners = np.arange(120) % len(centers)
    vectors = (centers[owners] + 0.02 * rng.standard_normal((120, DIMS))).astype(np.float32).astype(np.float64)
    columns = {"id": np.arange(120), "name": [f"n{owner}" for owner in owners], "section": ["s"] * 120}
    table.append(pa.table({**columns, "embedding": vectors.tolist()}, schema=ROWS))
    index_head(table, definition_of(metric, "balls"))
    distances = np.linalg.norm(centers[:, None] - vectors, axis=2)
    if metric == "cosine":
        norms = np.linalg.norm(centers, axis=1)[:, None] * np.linalg.norm(vectors, axis=1)
        distances = 1 - centers @ vectors.T / norms
    nearest = np.argsort(distances, axis=1)[:, :5]
    threshold = np.take_along_axis(distances, nearest, 1)[:, 2].max()
    for tasks in ({}, {"runner": SeveralAtOnce(), "in_process_mb": 0}):
        reader = open_index(table.refresh(), definition_of(metric, "balls"), storage=STORAGE, **tasks)
        found = reader.search(centers, 5, columns=["id"])
        assert found.profile.strategy == "pruned scan"
        assert found.profile.bytes_read["scan"] == 4 * DIMS * 120, "each row once"
        assert np.array_equal(np.reshape(found.rows["id"], nearest.shape), nearest)
        within = reader.within(centers, threshold, columns=["id"]).rows
        pairs = set(zip(within["query"].to_pylist(), within["id"].to_pylist(), strict=True))
        assert pairs == {(query, row) for query, row in np.argwhere(distances < threshold).tolist()}


def test_files_out_of_reach_are_pruned(table: Table, readers: dict[tuple[str, str, str], IndexReader]) -> None:
    query = np.asarray(CENTERS[0] + 0.05, np.float32)
    for (_, vectors, _), reader in readers.items():
        result = reader.search(query, 5, certified=vectors != "balls", columns=["id"])
        pruning = result.profile.pruning
        assert pruning is not None
        assert pruning.files_pruned == 3  # files that the index lacks have no balls
        assert "the last row is at" in result.explain()
        certificate = result.profile.certificate
        assert certificate is not None
        nearest = min(certificate.ruled_out, key=lambda path: certificate.ruled_out[path])
        assert f"the nearest of these is {nearest}, ruled out by" in " ".join(result.explain().split())
        assert result.profile.strategy == ("pruned scan" if vectors == "balls" else "beam + certified")


def test_queries_with_conditions_of_their_own_have_one_proof_that_holds_for_each(
    readers: dict[tuple[str, str, str], IndexReader],
) -> None:
    """A file is ruled out for all of them by the closest margin."""
    reader = readers["l2", "balls", "in-process"]
    near, conditions = CENTERS[[0, 0, 0]] + [[0.0], [0.2], [0.1]], ["id >= 0", None, "id >= 1"]
    result = reader.search(near, 5, where=conditions, columns=["id"]).profile
    each = [
        reader.search(query, 5, where=where, columns=["id"]).profile
        for query, where in zip(near, conditions, strict=True)
    ]
    proofs = [one.certificate for one in each if one.certificate is not None]
    assert result.certificate is not None
    assert result.certificate.last == tuple(proof.last[0] for proof in proofs)
    assert result.certificate.pruned_from == tuple(proof.pruned_from[0] for proof in proofs)
    files = set[str]().union(*(proof.ruled_out for proof in proofs))
    closest = {file: min(proof.ruled_out.get(file, math.inf) for proof in proofs) for file in files}
    assert len(closest) == 3
    assert result.certificate.ruled_out == closest
    assert len({proof.ruled_out[next(iter(files))] for proof in proofs}) == 3
    assert result.pruning is not None
    assert result.pruning.rows_pruned == sum(one.pruning.rows_pruned for one in each if one.pruning is not None) > 0


def test_a_proof_says_what_its_distances_count_where_queries_have_conditions_of_their_own(
    readers: dict[tuple[str, str, str], IndexReader],
) -> None:
    result = readers["l2", "f32", "in-process"].search(CENTERS[:2], 5, where=["id < 3", None], certified=True)
    assert result.profile.strategy == "exact over matches + certified (1 queries), beam + certified (1 queries)"
    assert "rows beside the index among them" in " ".join(result.explain().split())


def test_tasks_read_the_files_in_reach_and_no_others(table: Table) -> None:
    """A file at a time, then two, then four: what was read rules out the rest, which no task gets."""
    runner = LabelRecorder()
    reader = open_index(table, definition_of("l2", "balls"), storage=STORAGE, runner=runner, in_process_mb=0)
    query = np.asarray(CENTERS[0] + 0.05, np.float32)
    profile = reader.search(query, 5, columns=["id"]).profile
    assert runner.jobs == ["scan files", "scan files"]
    shares = [task for task in runner.tasks if isinstance(task, FileShare)]
    assert [len(share.files) for share in shares] == [1, 1, 1]
    assert profile.tier == "distributed"
    assert profile.tier_why == (
        "the index has no graphs: data files read by tasks: 3, here: 0; tasks take over 0 MiB of vectors"
    )
    local_profile = open_index(table, definition_of("l2", "balls"), storage=STORAGE).search(query, 5).profile
    assert (profile.pruning, profile.certificate) == (local_profile.pruning, local_profile.certificate)
    assert profile.tail_rows == local_profile.tail_rows


def test_tasks_of_several_files_rule_out_some_of_them(table: Table) -> None:
    """By the rows that were found in others, and by their own."""
    vectors = VectorSource(live_files(table, table.metadata.current_snapshot_id or 0), table.schema(), 4, Metric.L2,
                           STORAGE, DIMS)  # fmt: skip
    query, bounds = np.array([CENTERS[0]]), np.array([[0.0, 1e6, 1e6]])
    files = [FileNumber(number) for number in (0, 1, 2)]
    alone = scan_in_reach(query, 3, vectors, files, bounds, np.array([np.inf]), None)
    assert alone.files == (0,)
    others = scan_in_reach(query, 3, vectors, files[1:], bounds[:, 1:], alone.candidates.distances[:, -1], None)
    assert (others.files, others.compared) == ((), 0)


def test_few_rows_are_read_in_this_process(table: Table) -> None:
    runner = LabelRecorder()
    for metric, vectors in INDEXES:
        reader = open_index(table, definition_of(metric, vectors), storage=STORAGE, runner=runner)
        result = reader.search(CENTERS[0], 5, certified=True)
        assert reader.within(CENTERS[0], 1.0).profile.tier == result.profile.tier == "in-process"
    assert runner.jobs == []
    assert "data files read by tasks: 0, here: " in " ".join(result.explain().split())


def test_a_proof_reads_the_rows_found_first_and_the_files_in_reach_that_the_index_does_not_hold(table: Table) -> None:
    """Rows that were read are kept, as are those of files that the index lacks."""
    read = {}
    for vectors in ("f32", "none"):
        reader = open_index(table, definition_of("l2", vectors), storage=STORAGE)
        profiles = [reader.search(CENTERS[0] + 0.05, 5, certified=True, columns=["id"]).profile for _ in range(2)]
        read[vectors] = [profile.bytes_read["compare"] for profile in profiles]
    assert read["f32"][0] > read["f32"][1] == 0
    assert read["none"] == [ROWS_PER_FILE * DIMS * 4] * 2


def test_a_search_that_is_not_certified_has_no_certificate(readers: dict[tuple[str, str, str], IndexReader]) -> None:
    result = readers["l2", "f32", "in-process"].search(CENTERS[0], 5)
    assert result.profile.certificate is None
    assert "certified" not in result.explain()


def test_no_queries_are_certified_and_explained(readers: dict[tuple[str, str, str], IndexReader]) -> None:
    result = readers["l2", "f32", "in-process"].search(np.empty((0, DIMS)), 5, certified=True)
    assert (len(result), "certified" in result.explain()) == (0, True)


def test_an_exact_scan_needs_no_certificate(table: Table) -> None:
    reader = open_exact(table, "embedding", "ip", storage=STORAGE)
    result = reader.search(CENTERS[0], 5, certified=True, columns=["id"])
    assert result.coverage is Coverage.EXACT_SCAN
    assert result.profile.certificate is None
    assert result.rows.equals(reader.search(CENTERS[0], 5, columns=["id"]).rows)


def test_what_cannot_be_certified_is_refused(table: Table) -> None:
    inner = open_index(table, definition_of("ip", "f32"), storage=STORAGE)
    with pytest.raises(QueryError, match="triangle inequality"):
        inner.search(CENTERS[0], 5, certified=True)
    partial = open_index(table, definition_of("l2", "f32"), stale=StalePolicy.NEAREST_ONLY, storage=STORAGE)
    with pytest.raises(QueryError, match="stale='complete'"):
        partial.search(CENTERS[0], 5, certified=True)


def test_a_row_without_a_distance_is_counted_once(table_factory: Callable[..., Table]) -> None:
    """The first answer and its proof both scan the freshness tail."""
    table = table_factory()
    table.append(make_rows(0, 100))
    index_head(table)
    rows = make_rows(100, 102)
    vectors = rows["embedding"].to_pylist()
    vectors[0][0] = math.nan
    kind = rows.schema.field("embedding").type
    place = rows.schema.get_field_index("embedding")
    table.append(rows.set_column(place, rows.schema.field(place), pa.array(vectors, kind)))
    result = open_index(table.refresh(), DEFINITION, storage=STORAGE).search(vectors[1], 3, certified=True)
    assert ["no distance" in warning for warning in result.warnings] == [True]


def test_rows_at_no_distance_are_certified(table: Table, readers: dict[tuple[str, str, str], IndexReader]) -> None:
    """The k-th row lies at the query, as do others: nothing is under its distance."""
    (row,) = table.scan(row_filter="id = 150").to_arrow().to_pylist()
    for (metric, _, _), reader in readers.items():
        certified = reader.search(row["embedding"], 3, certified=True, columns=["id"])
        exact = open_exact(table, "embedding", metric, storage=STORAGE).search(row["embedding"], 3, columns=["id"])
        assert certified.rows["id"].equals(exact.rows["id"])
