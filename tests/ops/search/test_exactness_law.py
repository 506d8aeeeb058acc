"""One law for every path that says exact or complete: the rows and distances that float64 gives.

Tables are drawn at random; ICEPUFFIN_EXACT_TABLES says how many.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.index.errors import GateFailedError
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.search.indexed.worker import SearchShare
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage, SearchResult
from icepuffin.ops.search.tuning import SearchOptions
from icepuffin.ops.spark.knn_blocks import ROW_HASH, Join, finish, read, search, select, split, staged
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner
from tests.conftest import STORAGE
from tests.draws import SEED, TALLY, amount
from tests.naive.vectors import assert_nearest, exact_distances
from tests.ops.index.comparison import DEFINITION, index_head

TABLES = amount(9, "ICEPUFFIN_EXACT_TABLES")
ALL = "id >= 0"
SECTIONS = 3
FUNCTIONS = {"l2": "l2_distance", "cosine": "cosine_distance", "ip": "inner_product"}

Vectors = npt.NDArray[np.float64]
Rng = np.random.Generator


def normal(rng: Rng, count: int, dims: int) -> Vectors:
    return rng.standard_normal((count, dims))


def offset(rng: Rng, count: int, dims: int) -> Vectors:
    return 10_000 + rng.standard_normal((count, dims))


def times(rng: Rng, count: int, dims: int) -> Vectors:
    """Seconds since 1970."""
    return 1.7e9 + 86_400 * 30 * rng.random((count, dims))


def scaled(rng: Rng, count: int, dims: int) -> Vectors:
    return normal(rng, count, dims) * 10.0 ** rng.uniform(-20, 20)


def mixed(rng: Rng, count: int, dims: int) -> Vectors:
    """A scale per row."""
    return normal(rng, count, dims) * 10.0 ** rng.uniform(-20, 20, (count, 1))


def subnormal(rng: Rng, count: int, dims: int) -> Vectors:
    """Numbers of which floats keep a few bits."""
    return 1e-43 * (rng.integers(1, 50, (count, dims)) * rng.choice([-1.0, 1.0], (count, dims)))


def clusters(rng: Rng, count: int, dims: int) -> Vectors:
    centers = 30 * rng.standard_normal((5, dims))
    return centers[rng.integers(0, 5, count)] + 1e-4 * rng.standard_normal((count, dims))


def twins(rng: Rng, count: int, dims: int) -> Vectors:
    """Every vector some twenty times, all over the files."""
    return rng.standard_normal((count // 20 + 1, dims))[rng.integers(0, count // 20 + 1, count)]


def lattice(rng: Rng, count: int, dims: int) -> Vectors:
    """Small whole numbers: many rows are equally far, and float64 is exact. Zero vectors and minus zeros among them."""
    return np.where(rng.random((count, dims)) < 0.2, -0.0, rng.integers(-2, 3, (count, dims)).astype(np.float64))


KINDS = [normal, offset, times, scaled, mixed, subnormal, clusters, twins, lattice]


@dataclass(frozen=True)
class Case:
    """What a table is made of, and how it is searched."""

    seed: int
    kind: Callable[[Rng, int, int], Vectors]
    element: pa.DataType
    metric: str
    dims: int
    kept: str
    """Precision of the vectors in shards"""

    @classmethod
    def drawn(cls, number: int) -> "Case":
        """Kinds, metrics and long vectors come in turn, so that each run has all; the rest is drawn."""
        rng = np.random.default_rng([SEED, number])
        dims = int(rng.choice([8_192, 8_193]) if number % 9 == 5 else rng.choice([1, 2, 3, 16, 17, 100]))
        kind = KINDS[(number + SEED) % len(KINDS)]
        metric = ["l2", "cosine", "ip"][(number // 3 + number + SEED) % 3]
        element = pa.float32() if rng.random() < 0.6 else pa.float64()
        if kind is lattice and rng.random() < 0.5:
            element = pa.int32() if rng.random() < 0.7 else pa.int64()
        return cls(number, kind, element, metric, dims, str(rng.choice(["f32", "f32", "f16", "none"])))

    def __str__(self) -> str:
        kind = f"{self.kind.__name__}-{self.metric}-{self.element}-{self.dims}-{self.kept}"
        return f"ICEPUFFIN_SEED={SEED} table {self.seed}: {kind}"

    @property
    def exact_in_float64(self) -> bool:
        """Whether float64 gives every distance without rounding, so that ties are ties."""
        return self.kind is lattice and self.metric != "cosine"

    def vectors(self, rng: Rng, count: int) -> Vectors:
        """As the column holds them."""
        rows = self.kind(rng, count, self.dims).astype(self.element.to_pandas_dtype())
        if self.metric == "cosine":
            rows[~rows.any(axis=1)] = 1
        return rows.astype(np.float64)


class Drawn:
    """A table, and all that is known of its rows without reading them by the product."""

    def __init__(self, catalog: Catalog, case: Case) -> None:
        self.case = case
        self.rng = np.random.default_rng([SEED, case.seed, 1])
        self._rows = 0
        self._deleted: set[tuple[str, int]] = set()
        properties = {"format-version": "2", "write.parquet.row-group-limit": "50"}
        self.table: Table = catalog.create_table("db.t", self._made([]).schema, properties=properties)

    def append(self, vectors: list[Any]) -> None:
        self.table.append(self._made(vectors))

    def _made(self, vectors: list[Any]) -> pa.Table:
        ids = np.arange(self._rows, self._rows + len(vectors))
        self._rows += len(vectors)
        column = pa.array(vectors, pa.list_(pa.float64())).cast(pa.list_(self.case.element))
        return pa.table({"id": ids, "section": ids % SECTIONS, "embedding": column})

    def delete(self) -> None:
        """Some rows of one data file."""
        file = live_files(self.table.refresh(), self.table.metadata.current_snapshot_id or 0).files[0]
        positions = np.flatnonzero(self.rng.random(file.record_count) < 0.2)
        self._deleted.update((file.path, position) for position in positions.tolist())
        append_position_deletes(self.table, {file.path: positions})

    def truth(self) -> "Truth":
        """The live rows with a distance, in the order of ties; data files are read by Arrow alone."""
        live = live_files(self.table.refresh(), self.table.metadata.current_snapshot_id or 0)
        ids, vectors, bad = [], [], 0
        for file in live.files:
            rows = pq.read_table(to_path(file.path)).to_pydict()
            for place, (row, vector) in enumerate(zip(rows["id"], rows["embedding"], strict=True)):
                if vector is None or (file.path, place) in self._deleted:
                    continue
                if has_distance(vector, self.case):
                    ids.append(row)
                    vectors.append(vector)
                else:
                    bad += 1
        return Truth(self.case, np.array(ids), np.array(vectors, np.float64).reshape(len(ids), self.case.dims), bad)


def has_distance(vector: list[float | None], case: Case) -> bool:
    if len(vector) != case.dims or None in vector:
        return False
    return max(map(abs, vector)) < 3.4e38 and (case.metric != "cosine" or any(vector))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Truth:
    """Rows and their distances in extended precision."""

    case: Case
    ids: npt.NDArray[np.int64]
    vectors: Vectors
    bad: int
    """Live rows without a distance"""

    def check(self, rows: pa.Table, queries: Vectors, k: int, live: npt.NDArray[np.bool_]) -> None:
        """That rows are the k nearest of those that are `live`, in order."""
        place_of = {int(row): place for place, row in enumerate(self.ids)}
        columns = rows.select(["query", "rank", "id", "distance"]).to_pylist()
        by_query = {query: list(group) for query, group in groupby(columns, lambda row: row["query"])}
        for number, query in enumerate(queries):
            answer = by_query.get(number, [])
            assert [row["rank"] for row in answer] == list(range(1, len(answer) + 1))
            places = [place_of[row["id"]] for row in answer]
            distances = [row["distance"] for row in answer]
            assert_nearest(places, distances, query, self.vectors, k, self.case.metric, live)
            if self.case.exact_in_float64:
                true = exact_distances(query, self.vectors, self.case.metric)
                matching = np.flatnonzero(live)
                assert places == matching[np.lexsort((matching, true[matching]))][:k].tolist()

    def thresholds(self, query: Vectors, live: npt.NDArray[np.bool_]) -> Iterator[tuple[float, int]]:
        """(a distance that no row has, number of rows nearer): in the widest gaps between distances."""
        true = np.sort(exact_distances(query, self.vectors[live], self.case.metric)).astype(np.float64)
        gaps = np.diff(true)
        for place in np.argsort(-gaps)[:2] if len(gaps) else ():
            between = float(true[place] + gaps[place] / 2)
            if gaps[place] > 1e-6 * np.abs(true[[place, place + 1]]).max():
                yield between, int(place) + 1


def queries_for(case: Case, rng: Rng, vectors: Vectors) -> Vectors:
    """Rows themselves, points between rows, and others of the kind: enough for both ways to compare."""
    rows = vectors[rng.integers(0, len(vectors), 8)]
    between = (vectors[rng.integers(0, len(vectors), 4)] + vectors[rng.integers(0, len(vectors), 4)]) / 2
    queries = np.concatenate([rows, between, case.vectors(rng, 4)])
    queries[~queries.any(axis=1)] = vectors[0] if vectors[0].any() else 1
    return queries


def bad_rows(case: Case) -> list[Any]:
    """Rows without a vector, and with one that has no distance."""
    one = [1.0] * case.dims
    rows: list[Any] = [None, [*one, 1.0], [None, *one[1:]]]
    if pa.types.is_floating(case.element):
        rows += [[np.nan, *one[1:]], [-np.inf, *one[1:]]]
    if case.element == pa.float64():
        rows.append([1e39, *one[1:]])
    return rows + ([[0.0] * case.dims, [-0.0] * case.dims] if case.metric == "cosine" else [])


def same(rows: pa.Table, expected: pa.Table) -> bool:
    return bool(rows.select(expected.column_names).equals(expected))


def alone(search: Callable[..., SearchResult], queries: Vectors, expected: pa.Table, size: int) -> None:
    """Batches of any size give what all queries together give."""
    parts = []
    for start in range(0, len(queries), size):
        part = search(queries[start : start + size]).rows
        number = pa.array(np.asarray(part["query"]) + start, pa.int32())
        parts.append(part.set_column(0, "query", number))
    assert same(pa.concat_tables(parts), expected), f"batches of {size}"


def joined(reader: IndexReader, queries: Vectors, k: int, where: str | None, tasks: int) -> pa.Table:
    """What a kNN join gives, its stages in this process: every shuffle by the columns that Spark shuffles by."""
    request, _ = reader.search_request(k, SearchOptions(), where)
    job = reader.search_job()
    shards = () if job.opened is None else tuple(SearchShare(shards=(one,)) for one in range(len(job.opened.shards)))
    files = tuple(SearchShare(files=(number,)) for number in reader.tail)
    fields = (job.schema.find_field("id").field_id,)
    join = Join(
        job.serialize(), request, (*shards, *files), 2, tasks, "vector", fields, ("id",), reads=True, block_rows=5
    )
    left = pa.table({
        "query": np.arange(len(queries), dtype=np.int32), "vector": pa.array(list(queries), pa.list_(pa.float64())),
        ROW_HASH: np.arange(len(queries)),
    })  # fmt: skip
    rows, sent = list(split(join, 0, left.to_batches(max_chunksize=7))), pickle.dumps(join)
    for stage, keys in ((search, ["number"]), (select, ["block", "number"]), (read, ["number"])):
        rows = [out for part in _shuffled(rows, keys) for out in staged(sent, stage)([part])]
    answers = [out for part in _shuffled(rows, ["block", "number"]) for out in staged(sent, finish)([part])]
    order = [("query", "ascending"), ("rank", "ascending")]
    return pa.Table.from_batches(answers).select(["query", "rank", "distance", "id"]).sort_by(order)


def _shuffled(batches: list[pa.RecordBatch], keys: list[str]) -> Iterator[pa.RecordBatch]:
    rows = pa.Table.from_batches(batches)
    for part in rows["part"].unique():
        chosen = rows.filter(pa.compute.equal(rows["part"], part)).sort_by([(key, "ascending") for key in keys])
        yield chosen.combine_chunks().to_batches()[0]


def check_scans(drawn: Drawn, truth: Truth) -> None:
    """Scans of all rows: of a column that needs no index, under a condition, of a join, by thresholds."""
    case, rng = drawn.case, drawn.rng
    everything = np.ones(len(truth.ids), np.bool_)
    section = truth.ids % SECTIONS == 1
    queries = queries_for(case, rng, truth.vectors)
    reader = open_exact(drawn.table, "embedding", case.metric, storage=STORAGE)
    for k in (1, 7, len(truth.ids) + 5):
        answer = reader.search(queries, k, columns=["id"])
        truth.check(answer.rows, queries, k, everything)
        _warned(answer, truth.bad)
        chosen = reader.search(queries, k, columns=["id"], where="section = 1")
        truth.check(chosen.rows, queries, k, section)
    whole = reader.search(queries, 7, columns=["id"]).rows
    alone(lambda batch: reader.search(batch, 7, columns=["id"]), queries, whole, int(rng.choice([1, 2, 5, 12])))
    if not truth.bad:  # a join refuses them
        assert same(joined(reader, queries, 7, None, 3), whole)
    for query in queries[[0, 9]]:
        for threshold, count in truth.thresholds(query, everything):
            rows = reader.within(query, threshold, columns=["id"]).rows
            assert same(rows, reader.search(query, count, columns=["id"]).rows)
            last = rows["distance"][-1].as_py()
            assert same(reader.within(query, last, inclusive=True, columns=["id"]).rows, rows)


def check_sql(drawn: Drawn, truth: Truth, session: SqlSession) -> None:
    """Statements on a column without an index: the nearest rows, ties by another key, rows within a distance."""
    case = drawn.case
    query = queries_for(case, drawn.rng, truth.vectors)[0]
    nearest = open_exact(drawn.table, "embedding", case.metric, storage=STORAGE).search(query, len(truth.ids))
    by_id = sorted((row["distance"], row["id"]) for row in nearest)
    function = f"{FUNCTIONS[case.metric]}(embedding, :query)"
    order = "DESC" if case.metric == "ip" else "ASC"
    for key, expected in (("", [row["id"] for row in nearest]), (", id", [row for _, row in by_id])):
        answer = session.sql(f"SELECT id FROM db.t ORDER BY {function} {order}{key} LIMIT 5", {"query": query})
        assert answer.rows["id"].to_pylist() == expected[:5]
    for threshold, count in truth.thresholds(query, np.ones(len(truth.ids), np.bool_)):
        sign, limit = (">", -threshold) if case.metric == "ip" else ("<", threshold)
        answer = session.sql(f"SELECT id FROM db.t WHERE {function} {sign} :t", {"query": query, "t": limit})
        assert sorted(answer.rows["id"].to_pylist()) == sorted(row["id"] for row in list(nearest)[:count])


def check_index(drawn: Drawn, truth: Truth, coverage: Coverage) -> None:
    """What an index answers exactly: conditions, rows that it lacks, thresholds; in this process and by tasks."""
    case, rng = drawn.case, drawn.rng
    definition = _definition(case)
    queries = queries_for(case, rng, truth.vectors)
    everything = np.ones(len(truth.ids), np.bool_)
    exact = open_exact(drawn.table, "embedding", case.metric, storage=STORAGE)
    rounded = case.kept != "f32" or case.element == pa.float64()
    tasks = int(rng.integers(1, 4))
    tiers = {"in-process": None, "distributed": LocalRunner(tasks)}
    for tier, runner in tiers.items():
        reader = open_index(drawn.table, definition, storage=STORAGE, runner=runner, in_process_mb=0, threads=tasks)
        assert (reader.tier, reader.coverage) == (tier, coverage)
        for query in queries[[0, 9]]:
            for threshold, count in truth.thresholds(query, everything):
                rows = reader.within(query, threshold, columns=["id"]).rows
                expected = exact.search(query, count, columns=["id"]).rows
                assert same(rows.drop_columns(["distance"]), expected.drop_columns(["distance"]))
                _alike(rows, expected, case)
        last = int(truth.ids.max())  # of the rows that came last
        newest = reader.search(queries, 7, columns=["id"], where=f"id > {last - 20}")
        if coverage is Coverage.NEAREST_VERSION_AND_TAIL:
            truth.check(newest.rows, queries, 7, truth.ids > last - 20)
            scanned = open_index(drawn.table, definition, storage=STORAGE, stale="exact", runner=runner)
            assert scanned.coverage is Coverage.EXACT_SCAN
            assert same(scanned.search(queries, 7, columns=["id"]).rows, exact.search(queries, 7, columns=["id"]).rows)
        if rounded:
            if case.kept != "none":  # every row is a candidate, and ranked by the table's own vectors
                answer = reader.search(queries, 7, columns=["id"], where=ALL, rerank=True, oversample=len(truth.ids))
                assert same(answer.rows, exact.search(queries, 7, columns=["id"]).rows)
            if case.kept == "f32":
                for query in queries:  # fewer candidates: right, or reported as approximate
                    answer = reader.search(query, 7, columns=["id"], where=ALL, rerank=True)
                    right = same(answer.rows, exact.search(query, 7, columns=["id"]).rows)
                    assert right or any("cannot tell" in warning for warning in answer.warnings)
            continue
        for k in (1, 7, len(truth.ids) + 5):
            answer = reader.search(queries, k, columns=["id"], where=ALL)
            assert answer.profile.strategy == "exact over matches"
            expected = exact.search(queries, k, columns=["id"]).rows
            assert same(answer.rows.drop_columns(["distance"]), expected.drop_columns(["distance"]))
            _alike(answer.rows, expected, case)
            _warned(answer, truth.bad)
        expected = reader.search(queries, 7, columns=["id"], where=ALL).rows
        alone(lambda batch, reader=reader: reader.search(batch, 7, columns=["id"], where=ALL), queries, expected, 5)
        if case.metric != "cosine" and not truth.bad:
            assert same(joined(reader, queries, 7, ALL, tasks), exact.search(queries, 7, columns=["id"]).rows)


def _alike(rows: pa.Table, expected: pa.Table, case: Case) -> None:
    """Distances are those of the exact scan: to the last bit, unless the index holds rounded directions."""
    distances, true = np.asarray(rows["distance"]), np.asarray(expected["distance"])
    slack = 1e-7 * np.sqrt(true) + 1e-14 if case.metric == "cosine" else 0
    assert (np.abs(distances - true) <= slack).all()


def _warned(answer: SearchResult, bad: int) -> None:
    """That the answer counts the rows without a distance, and says nothing else."""
    message = [warning for warning in answer.warnings if "no distance from anything" in warning]
    assert len(answer.warnings) == len(message) == bool(bad)
    assert not bad or message[0].startswith(f"{bad} row")


def _definition(case: Case) -> Any:
    return replace(DEFINITION, metric=case.metric, vectors=case.kept, shards=2, target_recall=0.01, max_degree=8)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # such an index is right, or refused
@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("number", range(TABLES))
def test_every_path_that_says_exact_gives_what_float64_gives(
    sql_catalog: Catalog, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")  # a warm index is searched in this process
    case = Case.drawn(number)
    print(case)  # noqa: T201
    TALLY.counts["tables"] += 1
    drawn = Drawn(sql_catalog, case)
    size = 10 if case.dims > 1000 else 120
    for _ in range(3):
        drawn.append(list(case.vectors(drawn.rng, size)))
    drawn.delete()
    check_sql(drawn, drawn.truth(), SqlSession.on(sql_catalog, storage=STORAGE))
    try:
        index_head(drawn.table, _definition(case))
        indexed = True
    except (GateFailedError, VectorColumnError):
        indexed = False  # a clear refusal
    if indexed:
        check_index(drawn, drawn.truth(), Coverage.EXACT_VERSION)
    drawn.append([*case.vectors(drawn.rng, 30), *(bad_rows(case) if drawn.rng.random() < 0.5 else [])])
    drawn.delete()
    truth = drawn.truth()
    if indexed:
        check_index(drawn, truth, Coverage.NEAREST_VERSION_AND_TAIL)
    check_scans(drawn, truth)
