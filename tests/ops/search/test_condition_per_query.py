"""A condition per query gives what one call per query gives, whatever the conditions, the table and the index."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, BooleanExpression, EqualTo, LessThan
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.rows.postings import CommonRows
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.filters import attribute_conditions
from icepuffin.ops.filters.attribute_values import VersionValues
from icepuffin.ops.filters.list_predicate import ArrayContains
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.messages import plural
from icepuffin.ops.model import MIB
from icepuffin.ops.search.errors import FilterError, QueryError
from icepuffin.ops.search.indexed.conjunctions import ConjunctionSearch, _of_queries
from icepuffin.ops.search.measured.live_recall import RecallSampler
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.pipeline import SearchPipeline
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import SearchResult
from icepuffin.ops.storage import StorageError
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import DIMS, STORAGE, make_rows, queries
from tests.draws import TALLY, amount
from tests.ops.search.measured.test_live_recall import settled
from tests.patience import PATIENCE

FILTERS = ("tags", "numbers", "section", "shelf")
DEFINITION = IndexDefinition(
    name="e", column="embedding", metric="l2", shards=1, max_degree=12, search_list=48, target_recall=0.0,
    filters=FILTERS,
)  # fmt: skip
SCHEMA = pa.schema([
    *make_rows(0, 1).schema,
    pa.field("tags", pa.list_(pa.string())),
    pa.field("numbers", pa.list_(pa.int64())),
    pa.field("shelf", pa.int32()),
])  # fmt: skip
Where = str | BooleanExpression | None


def rows_of(first: int, last: int) -> pa.Table:
    """Lists with frequent elements and rare ones, some null or with nulls; sections that are null."""
    rng = np.random.default_rng(first)
    rows = make_rows(first, last)
    tags = [[f"t{int(40 * rng.random() ** 3)}" for _ in range(rng.integers(0, 6))] for _ in range(first, last)]
    numbers: list[list[int | None] | None] = [rng.integers(0, 9, rng.integers(0, 4)).tolist() for _ in tags]
    for place in range(0, len(tags), 17):
        tags[place].append("rock and roll")
        numbers[place] = None if place % 2 else [None, 3]
    sections = rows["section"].to_pylist()
    sections[::11] = [None] * len(sections[::11])
    rows = rows.set_column(2, "section", pa.array(sections))
    for column in (pa.array(tags), pa.array(numbers, pa.list_(pa.int64())), pa.array(rng.integers(0, 60, len(tags)))):
        rows = rows.append_column("", column)
    return rows.rename_columns(SCHEMA.names).cast(SCHEMA)


@pytest.fixture
def table(sql_catalog: Catalog) -> Table:
    new_table = sql_catalog.create_table("db.t", SCHEMA, properties={"format-version": "2"})
    for first in range(0, 2_100, 700):
        new_table.append(rows_of(first, first + 700))
    return new_table


def index(table: Table, definition: IndexDefinition = DEFINITION) -> None:
    head = table.refresh().metadata.current_snapshot_id or 0
    materialize_index(RunContext(table, STORAGE, LocalRunner(1)), definition, head)


def opened(table: Table, definition: IndexDefinition = DEFINITION, **options: Any) -> IndexReader:
    return open_index(table.refresh(), definition, storage=STORAGE, **{"threads": 2, **options})


def delete_every_seventh(table: Table) -> None:
    files = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files
    append_position_deletes(
        table, {file.path: np.arange(number, file.record_count, 7) for number, file in enumerate(files)}
    )


def look_up(rng: random.Random) -> str:
    tag = f"t{int(41 * rng.random() ** 3)}"  # of t40 there is none
    return rng.choice([
        f"array_contains(tags, '{tag}')",
        f"array_contains(tags, '{tag}')",
        f"array_contains(tags, '{tag}')",
        "array_contains(tags, 'rock and roll')",
        f"array_contains(numbers, {rng.randrange(10)})",
        f"section = 'section {rng.randrange(6)}'",
        f"section in ('section 1', 'section {rng.randrange(9)}')",
        f"shelf = {rng.randrange(61)}",
        f"shelf in ({rng.randrange(61)}, {rng.randrange(61)}, 99, {rng.randrange(61)})",
    ])  # fmt: skip


def condition(rng: random.Random) -> Where:
    kind = rng.randrange(12)
    if kind == 0:
        return None
    if kind == 1:
        return And(EqualTo("section", "section 2"), ArrayContains("tags", "t1"))
    if kind == 2:
        return rng.choice([LessThan("shelf", 5), "shelf < 5 and array_contains(tags, 't2')", "tags is null"])
    if kind == 3:
        return f"{look_up(rng)} or not {look_up(rng)}"
    return rng.choice([" and ", " AND ", "  and\n"]).join(look_up(rng) for _ in range(rng.randrange(1, 4)))


def same_as_one_by_one(
    reader: IndexReader, vectors: np.ndarray, conditions: Sequence[Where], k: int = 5, **options: Any
) -> tuple[SearchResult, list[SearchResult]]:
    """(the answer to all queries, the answer to each), which are the same."""
    every = reader.search(vectors, k, where=conditions, columns=["id"], **options)
    each = [
        reader.search(vector, k, where=where, columns=["id"], **options)
        for vector, where in zip(vectors, conditions, strict=True)
    ]
    numbered = [
        one.rows.set_column(0, "query", pa.array([place] * len(one), pa.int32())) for place, one in enumerate(each)
    ]
    assert every.rows.equals(pa.concat_tables(numbered))
    assert every.coverage is each[0].coverage
    assert every.profile.queries == len(vectors)
    counts = [one.profile.matching_rows for one in each]
    assert every.profile.matching_rows == sum(count or 0 for count in counts)
    assert every.profile.distances == sum(one.profile.distances for one in each)
    assert every.profile.nodes_expanded == sum(one.profile.nodes_expanded for one in each)
    works = [shard for one in each for shard in one.profile.work]
    for own in every.profile.work:
        of_shard = [shard for shard in works if shard.shard_id == own.shard_id]
        assert own.distances == sum(shard.distances for shard in of_shard)
        assert own.queries == sum(shard.queries for shard in of_shard)
    scans = {repr(where): one.profile.tail_rows for where, one in zip(conditions, each, strict=True)}
    assert every.profile.tail_rows == sum(scans.values())
    assert set(every.warnings) == {warning for one in each for warning in one.warnings}
    return every, each


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("deleted", [False, True])
def test_random_conditions(table: Table, metric: Any, shards: int, deleted: bool, seed: str) -> None:
    """By codes (one shard) and without; of the nodes of rows that are live."""
    definition = replace(DEFINITION, metric=metric, shards=shards)
    index(table, definition)
    if deleted:
        delete_every_seventh(table)
    reader = opened(table, definition)
    assert not reader.tail
    rng = random.Random(seed)
    for k in (1, 5, 3_000):
        conditions = [condition(rng) for _ in range(amount(50 if k < 10 else 15))]
        TALLY.counts["draws"] += len(conditions)
        same_as_one_by_one(reader, queries(len(conditions)), conditions, k)


def test_conjunctions_of_look_ups_are_answered_at_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    index(table)
    reader = opened(table)
    rng = random.Random(0)
    conditions = [" and ".join(look_up(rng) for _ in range(2)) for _ in range(200)]
    result, _ = same_as_one_by_one(reader, queries(len(conditions)), conditions)
    assert result.profile.strategy == "exact over matches"
    start, names = result.profile.condition.split(" of ")
    assert start == "by the index's values"
    assert set(names.split(", ")) == set(FILTERS)
    assert len(result.profile.work) == 1
    assert f"{result.profile.distances:,} distances" in result.explain()
    monkeypatch.delattr(SearchPipeline, "_under_one")
    assert reader.search(queries(len(conditions)), 5, where=conditions, columns=["id"]).rows.equals(result.rows)


def test_blocks_of_queries_are_answered_as_all_of_them_are(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    index(table)
    reader, rng = opened(table), random.Random(0)
    conditions = [look_up(rng) for _ in range(5)]
    whole = reader.search(queries(5), 3, where=conditions, columns=["id"]).rows
    monkeypatch.setattr("icepuffin.ops.search.indexed.conjunctions._QUERIES_PER_BLOCK", 2)
    assert reader.search(queries(5), 3, where=conditions, columns=["id"]).rows.equals(whole)


@pytest.mark.parametrize(("limit", "counts"), [(2, [-1, -1]), (3, [3, -1]), (4, [3, 4])])
def test_a_query_is_over_the_limit_by_the_nodes_of_all_its_combinations(limit: int, counts: list[int]) -> None:
    rows = CommonRows(np.array([2, 1, 4]), np.array([0, 2, 3, 7]), np.arange(7, dtype=np.uint32))
    found = _of_queries(rows, np.array([0, 2, 3]), limit)
    assert found.counts.tolist() == counts
    assert np.diff(found.starts).tolist() == [max(0, count) for count in counts]
    assert found.nodes.tolist() == list(range(sum(np.diff(found.starts))))


def test_the_profile_names_the_columns_of_this_search(table: Table) -> None:
    """Also where a condition names a value that no row has, and other searches had other columns."""
    index(table)
    reader = opened(table)
    for conditions, columns in (
        (["array_contains(tags, 't1')", "shelf = 3"], "tags, shelf"),
        (["section = 'none'", "section = 'section 1'"], "section"),
        (["shelf = 99"] * 2, "shelf"),
        (["shelf = 3", "array_contains(tags, 'none') and section = 'section 1'"], "tags, shelf, section"),
    ):
        result = reader.search(queries(2), 3, where=conditions, columns=[])
        assert result.profile.condition == f"by the index's values of {columns}"


def test_directions_rounded_to_f32_do_not_decide_what_rows_are_nearest(sql_catalog: Catalog) -> None:
    """Under cosine: rows so alike that f32 cannot tell their directions apart."""
    rng = np.random.default_rng(0)
    rows, definition = rows_of(0, 600), replace(DEFINITION, metric="cosine", shards=1, target_recall=0.01)
    center = rng.standard_normal(DIMS)
    cluster = center * rng.uniform(0.5, 2.0, (600, 1)) + 1e-8 * rng.standard_normal((600, DIMS))
    near = pa.array(cluster.astype(np.float32).tolist(), SCHEMA.field("embedding").type)
    rows = rows.set_column(SCHEMA.names.index("embedding"), "embedding", near)
    table = sql_catalog.create_table("db.alike", SCHEMA)
    table.append(rows)
    index(table, definition)
    conditions = [f"section = 'section {number % 5}'" for number in range(60)]
    vectors = center + 0.2 * rng.standard_normal((60, DIMS))
    result, _ = same_as_one_by_one(opened(table, definition), vectors, conditions, k=1)
    assert result.profile.strategy == "exact over matches"


def test_the_profile_shows_the_first_few_ways_of_conditions(table: Table) -> None:
    index(table)
    own = ["shelf < 5", "section != 'x'", "tags is null", "numbers is null", "tags is null and shelf < 9"]
    shown = opened(table).search(queries(5), 1, where=own, columns=[]).profile.condition.split("; ")
    assert shown == [*(f"by the index's values of {name}" for name in ("shelf", "section", "tags")), "2 more"]
    few = opened(table).search(queries(3), 1, where=own[:3], columns=[]).profile.condition
    assert few.split("; ") == shown[:3]


def test_pruned_scans_are_summed_up(table: Table) -> None:
    definition = replace(DEFINITION, method="centroid")
    index(table, definition)
    result, each = same_as_one_by_one(opened(table, definition), queries(3), ["shelf < 5", None, "section is null"])
    for name in ("files", "files_pruned", "rows", "rows_pruned"):
        assert getattr(result.profile.pruning, name) == sum(getattr(one.profile.pruning, name) for one in each)
    assert result.profile.certificate is not None
    proofs = [one.profile.certificate for one in each]
    assert result.profile.certificate.pruned_from == tuple(proof.pruned_from[0] for proof in proofs if proof)
    assert {*result.profile.bytes_read} == {stage for one in each for stage in one.profile.bytes_read}
    scanned = [one.profile.bytes_read["scan"] for one in each]
    assert result.profile.bytes_read["scan"] == sum(scanned) > 0


def test_queries_with_many_matches_go_through_the_graph(table: Table) -> None:
    definition = replace(DEFINITION, shards=3)
    index(table, definition)
    conditions = ["array_contains(tags, 't0')", "array_contains(tags, 't30')", "section = 'section 1'"] * 9
    options = {"search_list": 1, "k": 1}
    result, each = same_as_one_by_one(opened(table, definition), queries(27), conditions, **options)
    assert {one.profile.strategy for one in each} == {"filtered beam", "exact over matches"}
    assert result.profile.strategy == "exact over matches (18 queries), filtered beam (9 queries)"


def test_queries_whose_values_have_many_matches_together_go_through_the_graph(table: Table) -> None:
    """Though each value alone has few: they are left out whole, wherever they are among the others."""
    definition = replace(DEFINITION, shards=3)
    index(table, definition)
    every = [
        f"section in ({', '.join(repr(f'section {number}') for number in range(count))})" for count in (1, 2, 3, 5)
    ]
    few = ["shelf in (1, 2, 99)", "shelf = 1", "shelf in (3, 4) and section in ('section 1', 'section 2')"]
    conditions = [*every, *few, *every, *few[::-1], *every]
    reader = opened(table, definition)
    result, each = same_as_one_by_one(reader, queries(len(conditions)), conditions, k=1, search_list=1)
    ways = [one.profile.strategy for one in each]
    assert len({*ways[:4]}) == 2, "some of the values alone have few matches"
    counts = [f"{way} ({ways.count(way)} queries)" for way in ("exact over matches", "filtered beam")]
    assert result.profile.strategy == ", ".join(counts)


def test_a_query_of_which_one_value_has_many_matches_and_another_few_loses_none(table: Table) -> None:
    """The rows of the first value are not listed: those of the other alone would pass for the answer."""
    rows = rows_of(2_100, 3_600)
    shelves = pa.array([100 if number % 50 else 101 for number in range(len(rows))], pa.int32())
    table.append(rows.set_column(rows.schema.get_field_index("shelf"), "shelf", shelves))
    index(table)
    values = ["shelf in (100, 101)", "shelf in (101, 100)", "shelf = 100", "shelf in (101, 1)", "shelf = 101"]
    _, each = same_as_one_by_one(opened(table), queries(5), values, k=1, search_list=1)
    assert [one.profile.strategy for one in each] == ["filtered beam"] * 3 + ["exact over matches"] * 2


def test_rows_under_several_values_are_the_nearest_of_brute_force(table: Table) -> None:
    index(table)
    delete_every_seventh(table)
    live = table.refresh().scan().to_arrow()
    vectors = np.stack(live["embedding"].to_pylist()).astype(np.float64)
    sections, shelves, ids = (live[name].to_pylist() for name in ("section", "shelf", "id"))
    drawn = [(f"section {number % 6}", f"section {number % 4}", number % 60, number % 7, 99) for number in range(80)]
    conditions = ["section in ('{}', '{}') and shelf in ({}, {}, {})".format(*values) for values in drawn]
    result = opened(table).search(queries(80), 5, where=conditions, columns=["id"])
    rows: dict[int, list[int]] = {place: [] for place in range(80)}
    for row in result:
        rows[row["query"]].append(row["id"])
    for place, (query, values) in enumerate(zip(queries(80).astype(np.float64), drawn, strict=True)):
        matching = [row for row in range(len(ids)) if sections[row] in values[:2] and shelves[row] in values[2:]]
        distances = {ids[row]: float(np.linalg.norm(vectors[row] - query)) for row in matching}
        assert rows[place] == sorted(distances, key=distances.__getitem__)[:5]


def test_conditions_of_many_combinations_are_answered_one_by_one(table: Table) -> None:
    index(table)
    lists_of: Callable[[Any], Any] = opened(table)._pipeline.conjunctions.lists_of  # type: ignore[union-attr]
    values = ", ".join(map(str, range(32)))
    sections = "section in ('section 1', 'section 2')"
    assert [len(lists) for lists in lists_of(f"shelf in ({values}) and {sections}")] == [32, 2]
    assert lists_of(f"shelf in ({values}, 32) and {sections}") is None


@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
@pytest.mark.parametrize("tail_mb", [0, 64])
def test_look_ups_are_answered_at_once_over_a_tail(
    table: Table, monkeypatch: pytest.MonkeyPatch, metric: Any, tail_mb: int
) -> None:
    """Rows that the index lacks are found by values and vectors in memory, or by the data files."""
    definition = replace(DEFINITION, metric=metric)
    index(table, definition)
    table.append(rows_of(2_100, 2_200))
    table.append(rows_of(2_200, 2_250))
    delete_every_seventh(table)
    rng = random.Random(9)
    conditions = [" and ".join(look_up(rng) for _ in range(rng.randrange(1, 3))) for _ in range(40)]
    conditions[::20] = ["shelf = 99999999999", "shelf in (99999999999, 99999999998)"]  # no such integer
    use_settings(CacheSettings(disk_bytes=0, tail_bytes=tail_mb * MIB))
    reader = opened(table, definition)
    result, each = same_as_one_by_one(reader, queries(40), conditions)
    assert max(result.rows["id"].to_pylist()) >= 2_200
    by_memory = "and those in memory of 2 data files that it lacks"
    assert (by_memory in each[-1].profile.condition) == (tail_mb > 0)
    monkeypatch.delattr(SearchPipeline, "_under_one")
    assert reader.search(queries(40), 5, where=conditions, columns=["id"]).rows.equals(result.rows)
    use_settings(None)


def test_rows_of_a_tail_without_a_distance_are_warned_of_once(table: Table) -> None:
    index(table)
    rows = rows_of(2_100, 2_140)
    vectors = rows["embedding"].to_pylist()
    vectors[3] = vectors[4] = [float("nan")] * DIMS
    place = rows.schema.names.index("embedding")
    table.append(rows.set_column(place, "embedding", pa.array(vectors, rows.schema.field(place).type)))
    reader = opened(table)
    conditions = ["section in ('section 3', 'section 4')", "section = 'section 3'", "shelf = 99"] * 2
    result, _ = same_as_one_by_one(reader, queries(6), conditions)
    assert [warning.split(" ")[0] for warning in result.warnings] == ["2", "1"]


@pytest.mark.parametrize("stale", ["complete", "nearest-only", "exact"])
def test_rows_that_the_index_lacks(table: Table, stale: str) -> None:
    index(table)
    table.append(rows_of(2_100, 2_200))
    delete_every_seventh(table)
    reader = opened(table, stale=stale)
    rng = random.Random(1)
    conditions = [condition(rng) for _ in range(25)]
    result, _ = same_as_one_by_one(reader, queries(25), conditions)
    assert max(result.rows["id"].to_pylist()) >= 2_100 or stale == "nearest-only"


@pytest.mark.parametrize(
    "change",
    [
        {"vectors": "f16"},
        {"vectors": "none"},
        {"method": "centroid"},
        {"filters": ("tags",)},
        {"filters": ()},
    ],
    ids=str,
)
def test_other_indexes(table: Table, change: dict[str, Any]) -> None:
    """Rounded and lean ones, those without graphs, and those that keep fewer columns."""
    definition = replace(DEFINITION, **change)
    index(table, definition)
    reader = opened(table, definition)
    rng = random.Random(2)
    conditions = [condition(rng) for _ in range(25)]
    same_as_one_by_one(reader, queries(25), conditions)


def test_by_tasks(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")
    definition = replace(DEFINITION, shards=2)
    index(table, definition)
    reader = opened(table, definition, runner=LocalRunner(2), in_process_mb=0)
    assert reader.tier == "distributed"
    rng = random.Random(3)
    same_as_one_by_one(reader, queries(12), [condition(rng) for _ in range(12)])


@pytest.mark.parametrize("options", [{"certified": True}, {"rerank": True}, {"target_recall": 0.9}], ids=str)
def test_with_other_options(table: Table, options: dict[str, Any]) -> None:
    index(table)
    rng = random.Random(4)
    conditions = [condition(rng) for _ in range(20)]
    result, each = same_as_one_by_one(opened(table), queries(20), conditions, **options)
    if "certified" in options:
        assert result.profile.certificate is not None
        proofs = [one.profile.certificate for one in each]
        assert result.profile.certificate.last == tuple(proof.last[0] for proof in proofs if proof)


def test_a_column_of_doubles(sql_catalog: Catalog) -> None:
    rows = rows_of(0, 300)
    place = rows.schema.names.index("embedding")
    rows = rows.set_column(place, "embedding", rows["embedding"].cast(pa.list_(pa.float64())))
    table = sql_catalog.create_table("db.doubles", rows.schema)
    table.append(rows)
    index(table)
    rng = random.Random(5)
    same_as_one_by_one(opened(table), queries(20), [condition(rng) for _ in range(20)])


def test_bits(sql_catalog: Catalog) -> None:
    rng = np.random.default_rng(6)
    rows = rows_of(0, 1_500)
    bits = pa.array([vector.tobytes() for vector in rng.integers(0, 256, (1_500, 8), np.uint8)], pa.binary(8))
    rows = rows.set_column(rows.schema.names.index("embedding"), "embedding", bits)
    table = sql_catalog.create_table("db.bits", rows.schema)
    table.append(rows)
    definition = replace(DEFINITION, metric="hamming", element_type="bit")
    index(table, definition)
    vectors = rng.integers(0, 2, (60, 64)).astype(np.float32)
    drawn = random.Random(6)
    same_as_one_by_one(opened(table, definition), vectors, [condition(drawn) for _ in range(60)])


def test_values_that_could_not_be_kept(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conditions on a column whose values are missing for some files go to the data files."""
    index(table)
    rows = rows_of(2_100, 2_200)
    table.append(rows.set_column(4, "tags", pa.array([[f"{n}-{i}" for i in range(90)] for n in range(100)])))
    index(table)
    conditions = ["array_contains(tags, 't1')", "array_contains(tags, '7-3')", "section = 'section 1'"]
    result, _ = same_as_one_by_one(opened(table), queries(3), conditions)
    assert "1 data file read, of 1 without values of tags" in result.profile.condition


def test_a_store_that_fails_for_a_while_changes_no_answer(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column is read once for all conditions, until a pause is over."""
    monkeypatch.setattr(attribute_conditions, "_PAUSE_SECONDS", PATIENCE)
    index(table)
    reader, read, attempts = opened(table), VersionValues.entries, list[int]()
    conditions = [f"array_contains(tags, 't{n % 9}') and array_contains(tags, 't{n % 7}')" for n in range(40)]
    expected = opened(table).search(queries(40), 5, where=conditions, columns=["id"])

    def fail(_: VersionValues, field_id: int) -> object:
        attempts.append(field_id)
        raise StorageError("the store is busy")

    with monkeypatch.context() as patch:
        patch.setattr(VersionValues, "entries", fail)
        scanned = reader.search(queries(40), 5, where=conditions, columns=["id"])
    assert len(attempts) == 1
    assert "they cannot be read: the store is busy" in scanned.profile.condition
    monkeypatch.setattr(attribute_conditions, "_PAUSE_SECONDS", 0.0)
    failures = [StorageError("the store is busy")]

    def fail_once(source: VersionValues, field_id: int) -> object:
        if failures:
            raise failures.pop()
        return read(source, field_id)

    monkeypatch.setattr(VersionValues, "entries", fail_once)
    again = opened(table)
    results = [again.search(queries(40), 5, where=conditions, columns=["id"]) for _ in range(2)]
    assert not failures
    assert all(result.rows.equals(expected.rows) for result in (scanned, *results))
    assert results[1].profile.condition == expected.profile.condition == "by the index's values of tags"


def test_live_recall_counts_queries_under_conditions_of_their_own(table: Table) -> None:
    index(table)
    reader = opened(table, recall_sample=1.0)
    reader._pipeline.sampler = RecallSampler(1.0, budget=1e6)
    conditions = ["array_contains(tags, 't1')", "section = 'section 1'", "array_contains(tags, 't40')", None] * 3
    reader.search(queries(12), 5, where=conditions, columns=[])
    assert settled(reader.stats, 12).queries == 12
    assert (reader.stats().recall or 0) > 0.95


def test_live_recall_is_that_of_one_call_per_query_where_some_go_through_the_graph(table: Table) -> None:
    definition = replace(DEFINITION, shards=3)
    index(table, definition)
    conditions = ["array_contains(tags, 't0')", "array_contains(tags, 't30')"] * 4

    def recall_of(search: Callable[[IndexReader], SearchResult | list[SearchResult]]) -> tuple[int, float | None]:
        reader = opened(table, definition, recall_sample=1.0)
        reader._pipeline.sampler = RecallSampler(1.0, budget=1e6)
        search(reader)
        measured = settled(reader.stats, 8)
        return measured.queries, measured.recall

    options = {"k": 1, "search_list": 1, "columns": []}
    at_once = recall_of(lambda reader: reader.search(queries(8), where=conditions, **options))
    pairs = list(zip(queries(8), conditions, strict=True))
    assert at_once == recall_of(lambda reader: [reader.search(query, where=own, **options) for query, own in pairs])
    assert at_once[0] == 8


def test_columns_are_read_once_for_all_queries(table: Table) -> None:
    index(table)
    reader = opened(table)
    conditions = ["array_contains(tags, 't1')", "array_contains(tags, 't2')"] * 20
    result = reader.search(queries(40), 5, where=conditions, columns=["name", "tags"])
    assert [row["rank"] for row in result] == [1, 2, 3, 4, 5] * 40
    assert all(("t1", "t2")[row["query"] % 2] in row["tags"] for row in result)
    stored = sum(file.size for file in live_files(table, reader.snapshot_id).files)
    assert 0 < result.profile.bytes_read["rows"] < stored
    assert reader.search(queries(40), 5, where=conditions, columns=[]).profile.bytes_read["rows"] == 0


def test_a_following_reader_takes_a_condition_per_query(table: Table) -> None:
    index(table)
    reader = opened(table)
    conditions = ["array_contains(tags, 't1')", None]
    with reader.follow(interval=60) as following:
        rows = following.search(queries(2), 3, where=conditions, columns=["id"]).rows
    assert rows.equals(reader.search(queries(2), 3, where=conditions, columns=["id"]).rows)


def test_one_condition_per_query_or_an_error(table: Table) -> None:
    index(table)
    reader = opened(table)
    for conditions in ([], ["shelf = 1"], ["shelf = 1"] * 4):
        with pytest.raises(QueryError, match=f"where has {plural(len(conditions), 'condition')} for 3 queries"):
            reader.search(queries(3), 2, where=conditions)
    with pytest.raises(FilterError, match="nothing"):
        reader.search(queries(3), 2, where=["shelf = 1", "shelf = 2", "nothing = 1"])
    with pytest.raises(FilterError, match="type int"):
        reader.search(queries(3), 2, where=["shelf = 1", None, 3])  # type: ignore[list-item]
    with pytest.raises(FilterError, match="type list"):
        reader.within(queries(1), 2.0, where=["shelf = 1"])  # type: ignore[arg-type]
    one = reader.search(queries(1)[0], 2, where=["shelf = 1"], columns=["id"])
    assert one.rows.equals(reader.search(queries(1), 2, where="shelf = 1", columns=["id"]).rows)
    assert not len(reader.search(np.empty((0, reader.dims or 0), np.float32), 2, where=[], columns=["id"]))


def test_columns_of_many_values(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose values are not listed, but searched."""
    monkeypatch.setattr("icepuffin.ops.filters.distinct_values._MAX_LISTED", 0)
    index(table)
    rng = random.Random(8)
    conditions = [condition(rng) for _ in range(100)]
    same_as_one_by_one(opened(table), queries(100), conditions)
    found = opened(table).search(queries(100), 5, where=conditions, columns=["id"]).rows
    monkeypatch.undo()
    assert found.equals(opened(table).search(queries(100), 5, where=conditions, columns=["id"]).rows)


def test_expressions_of_look_ups_are_answered_at_once(table: Table) -> None:
    index(table)
    lists_of: Callable[[Any], Any] = opened(table)._pipeline.conjunctions.lists_of  # type: ignore[union-attr]
    both = And(EqualTo("section", "section 2"), ArrayContains("tags", "t1"), EqualTo("shelf", 3))
    text = "section = 'section 2' and array_contains(tags, 't1') and shelf = 3"
    assert lists_of(both) == lists_of(text)
    assert lists_of(LessThan("shelf", 3)) is None


def test_a_text_that_utf8_cannot_write_is_refused(table: Table) -> None:
    index(table)
    for where in ("array_contains(tags, '\ud800')", ArrayContains("tags", "\ud800"), "section = '\ud800'"):
        for own in (where, [where, None]):
            with pytest.raises(FilterError, match="half of a surrogate pair"):
                opened(table).search(queries(2), 2, where=own)


def test_texts_of_look_ups_are_kept_up_to_a_number(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icepuffin.ops.search.indexed.conjunctions._MAX_KEPT", 3)
    index(table)
    rng = random.Random(7)
    same_as_one_by_one(opened(table), queries(50), [look_up(rng) for _ in range(50)])


def test_an_and_within_quotes_joins_nothing(table: Table) -> None:
    index(table)
    lists_of: Callable[[str], Any] = opened(table)._pipeline.conjunctions.lists_of  # type: ignore[union-attr]
    roll, one = lists_of("array_contains(tags, 'rock and roll')"), lists_of("array_contains(tags, 't1')")
    assert lists_of("array_contains(tags, 'rock and roll') and array_contains(tags, 't1')") == roll + one
    assert len({*roll, *one, *lists_of("section = 'section 1'")}) == 3
    for other in ("section = 'rock and roll", "section != 'a' and section = 'b'", "shelf = 1 and", "and", "", " and "):
        assert lists_of(other) is None
    assert lists_of("section = 'a'' and section = ''b'") is None  # one text, for the other parser


def test_versions_that_are_searched_elsewhere_have_no_lists() -> None:
    assert ConjunctionSearch.open(None, None, (), 1) is None
