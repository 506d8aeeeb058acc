"""A limit per group gives what a walk by distance gives that passes over the rows of full groups."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table

from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.search.errors import IndexUnavailableError, QueryError, UnknownColumnError
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.pipeline import SearchPipeline
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import SearchResult
from icepuffin.ops.search.shaped.shaped_search import first_of_groups
from icepuffin.ops.storage import StorageError
from icepuffin.ops.table import live_rows
from tests.conftest import make_rows, queries
from tests.naive.shapes import limited
from tests.ops.index.comparison import ids_by_query
from tests.ops.search.shaped.lake import DEFINITIONS, GROUPS, INDEXED, STORAGE, Lake, group, key, lake_in

READERS = ["graph by tasks", "balls by tasks", *DEFINITIONS, "exact", "graph alone"]
"""Names of readers, those by tasks first: what the process has in memory is searched there"""
WHERE: dict[str | None, Callable[[int], bool]] = {
    None: lambda _: True,
    "even < 3": lambda row: group("even", row) < 3,
    "half_null is null and id > 50": lambda row: row % 2 == 1 and row > 50,
    "name = 'name 44'": lambda row: row == 44,
    "skewed != 'all' or id >= 440": lambda row: row % 100 == 0 or row >= 440,
    "id < 0": lambda _: False,
}
EVERY = {"search_list": 1_000, "oversample": 20}
"""A beam that meets every row"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return lake_in(tmp_path_factory.mktemp("groups"))


@pytest.fixture(scope="module")
def readers(lake: Lake) -> dict[str, IndexReader]:
    opened = {name: lake.reader(name) for name in READERS}
    assert opened["graph by tasks"].tier == "distributed"
    return opened


def answered(result: SearchResult, count: int) -> list[list[int]]:
    """Ids by query, whose ranks have no gap and whose distances ascend."""
    ids = ids_by_query(result.rows)
    for query, own in ids.items():
        rows = [row for row in result if row["query"] == query]
        assert [row["rank"] for row in rows] == list(range(1, len(own) + 1))
        distances = [row["distance"] for row in rows]
        assert distances == sorted(distances)
    return [ids.get(query, []) for query in range(count)]


@given(
    seed=st.integers(0, 999), name=st.sampled_from(READERS), column=st.sampled_from([*GROUPS]),
    k=st.sampled_from([1, 4, 10, 35, 600]), limit=st.sampled_from([1, 2, 3, 40, 500]), where=st.sampled_from([*WHERE]),
    several=st.booleans(),
)  # fmt: skip
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_rows_are_those_of_a_walk_that_passes_over_full_groups(
    lake: Lake, readers: dict[str, IndexReader], seed: int, name: str, column: str, k: int, limit: int,
    where: str | None, several: bool,
) -> None:  # fmt: skip
    """With the same condition for all queries or each with its own; rows that the index lacks count, too."""
    vectors = make_rows(10_000 + seed, 10_003 + seed)["embedding"].combine_chunks()
    conditions = [where, None, "even < 3"] if several else [where] * 3
    options: dict[str, Any] = {"where": conditions if several else where, "columns": ["id"], **EVERY}
    found = answered(readers[name].search(vectors, k, per_group={column: limit}, **options), 3)
    for query, own, condition in zip(np.array(vectors.to_pylist()), found, conditions, strict=True):
        ranked = [row for row in lake.ranked(query, "cosine" if name == "cosine" else "l2") if WHERE[condition](row)]
        if name == "graph alone":
            ranked = [row for row in ranked if row < INDEXED]
        assert own == limited(ranked, lambda row: key(column, row), k, limit)


@given(
    seed=st.integers(0, 999), column=st.sampled_from([*GROUPS]), k=st.sampled_from([1, 10, 35, 600]),
    limit=st.sampled_from([1, 2, 40]), where=st.sampled_from([*WHERE]),
    name=st.sampled_from(["graph", "coded", "cosine", "graph by tasks"]),
)  # fmt: skip
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_narrowest_beam_finds_as_many_rows(
    lake: Lake, readers: dict[str, IndexReader], seed: int, column: str, k: int, limit: int, where: str | None,
    name: str,
) -> None:  # fmt: skip
    """Perhaps not the nearest ones: but k, if there are so many, each once, and few of each group."""
    vector = make_rows(20_000 + seed, 20_001 + seed)["embedding"][0].as_py()
    options: dict[str, Any] = {"where": where, "columns": ["id"], "search_list": 1, "shards": 1, "oversample": 1}
    (own,) = answered(readers[name].search(vector, k, per_group={column: limit}, **options), 1)
    matching = [row for row in lake.live if WHERE[where](row)]
    assert len(own) == len(limited(matching, lambda row: key(column, row), k, limit))
    assert set(own) <= set(matching)
    assert len(set(own)) == len(own)
    assert max(Counter(key(column, row) for row in own).values(), default=0) <= limit


def test_a_beam_goes_on_past_full_groups(lake: Lake, readers: dict[str, IndexReader]) -> None:
    """One search, where ten of the nearest rows are not of as many groups; its recall says nothing of others."""
    result = readers["graph"].search(queries(1), 5, per_group={"even": 1}, columns=["even"])
    assert len(set(result.rows["even"].to_pylist())) == 5
    assert result.profile.strategy == "beam"
    parameters = result.profile.parameters
    assert parameters is not None
    assert parameters.grouped is None, "a result keeps nothing of the reader"
    sampled = open_index(lake.table, DEFINITIONS["graph"], storage=STORAGE, recall_sample=1.0)
    recall = sampled.search(queries(1), 5, per_group={"even": 1}).profile.live_recall
    assert recall is not None
    assert not recall.waiting + recall.queries + recall.left_out


def test_values_that_are_equal_are_one_group(readers: dict[str, IndexReader]) -> None:
    """Zeros of either sign, and all NaNs, in files with and without an index."""
    for name in ("graph", "balls", "exact"):
        result = readers[name].search(queries(1), 9, per_group={"price": 1}, columns=["price"])
        assert sorted(map(str, result.rows["price"].to_pylist())) in (
            ["-0.0", "2.5", "3.5", "None", "nan"], ["0.0", "2.5", "3.5", "None", "nan"]
        )  # fmt: skip


@given(st.lists(st.integers(0, 4), max_size=30), st.integers(1, 5))
def test_the_first_rows_of_each_group_are_marked(groups: list[int], limit: int) -> None:
    marked = np.flatnonzero(first_of_groups(np.array(groups, np.int64), limit)).tolist()
    assert marked == limited(range(len(groups)), groups.__getitem__, len(groups), limit)


def test_where_one_group_has_most_rows_few_more_searches_find_the_others(readers: dict[str, IndexReader]) -> None:
    """The first fills that group, the second goes on without it."""
    result = readers["graph"].search(queries(1), 4, per_group={"skewed": 1}, columns=["skewed"])
    assert len(set(result.rows["skewed"].to_pylist())) == 4
    assert result.profile.strategy == "beam (1 queries), exact over matches (1 queries)"
    assert result.profile.queries == 1
    assert result.profile.matching_rows is None
    assert "groups of skewed that are full are left out" in result.explain()
    even = readers["graph"].search(queries(1), 4, per_group={"own": 1}, columns=["own"])
    assert even.profile.strategy == "beam", "no group has most rows"


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("column", ["even", "half_null", "price"])
def test_the_rows_of_all_groups_but_some_are_those_that_match(
    readers: dict[str, IndexReader], where: str | None, column: str
) -> None:
    """Those of files that the index lacks as well, whatever decides the condition there."""
    reader = readers["graph"]
    groups = reader._shaped._column(reader._target.schema.find_field(column).field_id)
    for _ in range(3):  # the values of the tail are in memory from the second condition on
        matches = reader._pipeline.conditions.matches(where or "id >= 0", StageClock())
        assert matches is not None
        pairs = {
            (number, row): int(group)
            for number, rows in matches.positions.items()
            for row, group in zip(rows.tolist(), groups.of_rows(np.full(len(rows), number), rows), strict=True)
        }
        full = tuple(sorted(set(pairs.values()))[::2])
        others = groups._without(full, matches)
        found = {(number, row) for number, rows in others.positions.items() for row in rows.tolist()}
        assert found == {pair for pair, group in pairs.items() if group not in full}
        assert others.count == len(found)
        if where is None:
            assert groups._without(full, None).count == len(found)


def test_groups_without_some_are_evaluated_once(
    lake: Lake, readers: dict[str, IndexReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = readers["graph"]
    first = reader.search(queries(1), 4, per_group={"skewed": 1}, columns=["id"])
    grouped = reader._shaped._column(lake.table.schema().find_field("skewed").field_id)
    monkeypatch.setattr(grouped, "_without", lambda *_: pytest.fail("evaluated again"))
    monkeypatch.setattr(live_rows, "DataFile", lambda *_: pytest.fail("read again"))
    assert reader.search(queries(1), 4, per_group={"skewed": 1}, columns=["id"]).rows.equals(first.rows)


def test_values_that_the_store_does_not_give_are_read_from_the_data_files(
    lake: Lake, readers: dict[str, IndexReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And from the index once it gives them."""
    reader = lake.reader("graph")
    values = reader._pipeline.conditions.values
    assert values is not None
    with monkeypatch.context() as patch:
        patch.setattr(values, "entries", lambda _: (_ for _ in ()).throw(StorageError("away")))
        found = reader.search(queries(2), 9, per_group={"even": 1}, columns=["id"], where="even < 5", **EVERY)
    wanted = readers["exact"].search(queries(2), 9, per_group={"even": 1}, columns=["id"], where="even < 5")
    assert answered(found, 2) == answered(wanted, 2)
    attributes = reader._pipeline.conditions.attributes
    assert attributes is not None
    attributes._read_again = dict.fromkeys(attributes._read_again, 0.0)
    again = reader.search(queries(2), 9, per_group={"even": 1}, columns=["id"], where="even < 5", **EVERY)
    assert answered(again, 2) == answered(wanted, 2)
    assert not attributes._read_again


def test_a_reader_that_takes_over_keeps_the_limit_and_the_diversity(
    readers: dict[str, IndexReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, options = readers["graph by tasks"], {"per_group": {"even": 1}, "diversity": 0.5, "columns": ["id"]}
    find = SearchPipeline.find

    def fails(self: SearchPipeline, *arguments: Any) -> Any:
        if self is broken._pipeline:
            raise IndexUnavailableError("a shard is gone")
        return find(self, *arguments)

    monkeypatch.setattr(SearchPipeline, "find", fails)
    result = broken.search(queries(2), 5, **options)
    assert "a shard is gone" in result.warnings
    assert result.rows.equals(readers["exact"].search(queries(2), 5, **options).rows)


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ({"even": 0}, QueryError, "per_group is 0; ask for at least 1"),
        ({"even": None}, QueryError, "ask for at least 1"),
        ({"even": 1.5}, QueryError, "per_group is 1.5; it is a whole number"),
        ({}, QueryError, "it is one column and its limit, such as"),
        ({"even": 1, "own": 1}, QueryError, "it is one column and its limit"),
        (["even"], QueryError, "it is one column and its limit"),
        ({"none": 1}, UnknownColumnError, "no column 'none'"),
        ({"tags": 1}, QueryError, "a row has one group, so name a column of values"),
        ({"embedding": 1}, QueryError, "a row has one group"),
        ({"name": 1}, QueryError, r"create the index with filters=\['name'\] and refresh it"),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(
    readers: dict[str, IndexReader], argument: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        readers["graph"].search(queries(1), per_group=argument)


def test_certified_answers_are_the_nearest_rows_alone(readers: dict[str, IndexReader]) -> None:
    for shape in ({"per_group": {"even": 1}}, {"diversity": 0.5}):
        with pytest.raises(QueryError, match="certified proves the k nearest rows"):
            readers["graph"].search(queries(1), certified=True, **shape)
    assert readers["balls"].search(queries(1), 3, per_group={"even": 1}).profile.certificate is None
    assert readers["balls"].search(queries(1), 3, diversity=0.5).profile.certificate is None


def test_a_table_without_rows_has_no_groups(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 5))
    table.delete("id >= 0")
    reader = Lake(table.refresh(), []).reader("exact")
    assert not len(reader.search(queries(2), 3, per_group={"section": 2}, diversity=0.5))
    assert not list(reader.pages(queries(1)))
