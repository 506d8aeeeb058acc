"""Readers under read restrictions: random policies beside brute force, and nothing told of hidden rows and columns."""

import datetime as dt
import math
import operator
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ServiceUnavailableError
from pyiceberg.expressions import And, EqualTo, IsNull
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

import icepuffin
from icepuffin.errors import RestrictedTableError
from icepuffin.ops.catalog.restricted_tables import ReadRestrictions
from icepuffin.ops.filters.policy_expression import policy_expression
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.rows.datafile import arrow_schema
from icepuffin.ops.search import opening
from icepuffin.ops.search.errors import IndexUnavailableError
from icepuffin.ops.search.result import explain
from icepuffin.ops.search.target import Restriction
from icepuffin.ops.text.word_condition import HasWord
from tests.conftest import STORAGE, queries, vectors_of
from tests.draws import draws
from tests.ops.catalog.catalog_answers import Answers, plain_catalog
from tests.ops.index.comparison import DEFINITION, index_head
from tests.selection import IS_NIGHT

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "section", StringType(), required=False),
    NestedField(3, "score", DoubleType(), required=False),
    NestedField(4, "weight", FloatType(), required=False),
    NestedField(5, "day", DateType(), required=False),
    NestedField(6, "flag", BooleanType(), required=False),
    NestedField(7, "tags", ListType(9, StringType(), element_required=False), required=False),
    NestedField(8, "embedding", ListType(10, FloatType(), element_required=False), required=False),
)
FIELD_IDS = {field.name: field.field_id for field in SCHEMA.fields}
VALUES: dict[str, list[Any]] = {
    "id": list(range(0, 200, 7)),
    "section": ["a", "ab", "b", "ä", ""],
    "score": [-1.0, 0.0, 0.1, 2.5],
    "weight": [0.5, 1.0, 3.25],
    "day": ["2026-01-01", "2026-02-28", "1969-12-31"],
    "flag": [True, False],
}
TYPES = {"id": "long", "section": "string", "score": "double", "weight": "float", "day": "date", "flag": "boolean"}
SIGNS = {"eq": "=", "not-eq": "!=", "lt": "<", "lt-eq": "<=", "gt": ">", "gt-eq": ">="}
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "not-eq": operator.ne,
    "lt": operator.lt,
    "lt-eq": operator.le,
    "gt": operator.gt,
    "gt-eq": operator.ge,
}
NEGATED = {"not-eq": "eq", "not-in": "in", "not-starts-with": "starts-with", "not-null": "is-null", "not-nan": "is-nan"}
INDEX = replace(
    DEFINITION, filters=("section", "score", "tags"), include=("day",), text=("section", "tags"), analyzer="none",
    search_list=200, max_degree=32,
)  # fmt: skip
Row = dict[str, Any]


def random_rows(rng: random.Random, first: int, last: int) -> list[Row]:
    def value(name: str) -> Any:
        return None if rng.random() < 0.15 else math.nan if name == "score" and rng.random() < 0.1 else one(name)

    def one(name: str) -> Any:
        drawn = rng.choice(VALUES[name])
        return dt.date.fromisoformat(drawn) if name == "day" else drawn

    return [
        {"id": number, **{name: value(name) for name in TYPES if name != "id"}, "tags": rng.choice([None, [], ["x"]])}
        for number in range(first, last)
    ]


def stored(rows: Sequence[Row], vectors: npt.NDArray[Any] | None = None) -> pa.Table:
    vectors = vectors_of(np.array([row["id"] for row in rows])) if vectors is None else vectors
    return pa.Table.from_pylist(
        [{**row, "embedding": vector} for row, vector in zip(rows, vectors.tolist(), strict=True)],
        schema=pa.schema(
            [
                ("id", pa.int64()),
                ("section", pa.string()),
                ("score", pa.float64()),
                ("weight", pa.float32()),
                ("day", pa.date32()),
                ("flag", pa.bool_()),
                ("tags", pa.list_(pa.string())),
                ("embedding", pa.list_(pa.float32())),
            ]
        ),
    )


def drawn_predicate(rng: random.Random, depth: int = 2) -> Any:
    """A predicate in the JSON of Iceberg's expressions."""
    kind = rng.random()
    if depth and kind < 0.15:
        return {"type": "not", "child": drawn_predicate(rng, depth - 1)}
    if depth and kind < 0.5:
        left, right = drawn_predicate(rng, depth - 1), drawn_predicate(rng, depth - 1)
        return {"type": rng.choice(["and", "or"]), "left": left, "right": right}
    if kind < 0.53:
        return rng.choice([True, False, {"type": "true"}, {"type": "false"}])
    name = "tags" if kind > 0.97 else rng.choice(list(TYPES))
    reference = {"type": "reference", "id": FIELD_IDS[name]}
    if kind < 0.62 or name == "tags":
        tests = ["is-null", "not-null"] + ["is-nan", "not-nan"] * (name in ("score", "weight"))
        return {"type": rng.choice(tests), "child": reference}
    if kind < 0.75:
        values: Any = rng.sample(VALUES[name], rng.randrange(len(VALUES[name])))
        if rng.random() < 0.3:
            values = {"type": "literals", "values": values, "data-type": TYPES[name]}
        return {"type": rng.choice(["in", "not-in"]), "child": reference, "values": values}
    value: Any = rng.choice(VALUES[name])
    signs = ["eq", "not-eq"] if name == "flag" else list(COMPARED)
    signs += ["starts-with", "not-starts-with"] * (name == "section")
    if rng.random() < 0.5:
        value = {"type": "literal", "value": value} | ({"data-type": TYPES[name]} if rng.random() < 0.5 else {})
    return {"type": rng.choice(signs), "left": reference, "right": value}


def truth(predicate: Any, row: Row, *, by_sql: bool) -> bool | None:
    """Slow and obvious: whether a row satisfies a test of a column, by SQL or by the two values of Iceberg's
    specification.
    """
    kind = predicate["type"]
    if kind in NEGATED:
        positive = truth({**predicate, "type": NEGATED[kind]}, row, by_sql=by_sql)
        return None if positive is None else not positive
    reference = predicate.get("child", predicate.get("left"))
    value = row[next(name for name, own in FIELD_IDS.items() if own == reference["id"])]
    if kind == "is-null":
        return value is None
    if value is None:  # not in an empty set, by either reading
        return None if by_sql and members(predicate) != [] else False
    return holds(predicate, value.isoformat() if isinstance(value, dt.date) else value, by_sql=by_sql)


def members(predicate: Any) -> Any:
    """The values of a set."""
    values = predicate.get("values")
    return values["values"] if isinstance(values, dict) else values


def holds(predicate: Any, value: Any, *, by_sql: bool) -> bool:
    """Whether a value that is not null satisfies a test."""
    kind = predicate["type"]
    if kind == "is-nan":
        return math.isnan(value)
    if kind == "in":
        return value in members(predicate)
    literal = predicate["right"]["value"] if isinstance(predicate["right"], dict) else predicate["right"]
    if kind == "starts-with":
        return bool(value.startswith(literal))
    if isinstance(value, float) and math.isnan(value):
        return by_sql and kind in ("gt", "gt-eq")
    return COMPARED[kind](value, literal)


def allowed(predicate: Any, row: Row, *, negated: bool = False) -> bool:
    """Whether a row filter, or its negation, shows a row: each test of a column counts as it does by both readings."""
    if predicate is None or isinstance(predicate, bool):
        return (predicate is not False) is not negated
    kind = predicate["type"]
    if kind in ("true", "false"):
        return (kind == "true") is not negated
    if kind == "not":
        return allowed(predicate["child"], row, negated=not negated)
    if kind in ("and", "or"):
        sides = (allowed(predicate[side], row, negated=negated) for side in ("left", "right"))
        return all(sides) if (kind == "and") is not negated else any(sides)
    return all(truth(predicate, row, by_sql=by_sql) is (not negated) for by_sql in (True, False))


def drawn_condition(rng: random.Random, names: Sequence[str]) -> tuple[str, Callable[[Row], bool]]:
    """A condition of the caller's on one of some columns, and what it means."""
    name = rng.choice(names)
    if name == "tags":
        return "array_contains(tags, 'x')", lambda row: "x" in (row["tags"] or ())
    if rng.random() < 0.2:
        return f"{name} is null", lambda row: row[name] is None
    kind, value = rng.choice(["eq"] if name == "flag" else list(COMPARED)), rng.choice(VALUES[name])
    written = f"'{value}'" if isinstance(value, str) else str(value).lower()
    predicate = {"type": kind, "left": {"id": FIELD_IDS[name]}, "right": value}
    return f"{name} {SIGNS[kind]} {written}", lambda row: truth(predicate, row, by_sql=True) is True


@dataclass
class World:
    """A table with an index, and its rows as each snapshot has them."""

    answers: Answers
    rows: dict[int, list[Row]]
    """Live rows by snapshot"""
    table: Table

    @classmethod
    def made(cls, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, rng: random.Random) -> "World":
        """Three appends, a delete, a version of the second snapshot, and one of the fourth of the last five."""
        table = catalog.create_table("db.t", SCHEMA, properties={"format-version": "2"})
        world = cls(Answers.about(table, monkeypatch), {}, table)
        live: list[Row] = []
        for number in range(5):
            if number == 2:
                table.delete("id in (3, 14, 15, 92)")
                live = [row for row in live if row["id"] not in (3, 14, 15, 92)]
            else:
                new = random_rows(rng, 60 * number, 60 * number + 60)
                table.append(stored(new))
                live = [*live, *new]
            head = table.refresh().metadata.current_snapshot_id
            assert head is not None
            world.rows[head] = live
            if number in (1, 3):
                index_head(table, INDEX)
        return world

    def nearest(self, rows: Iterable[Row], query: npt.NDArray[Any]) -> list[tuple[float, int]]:
        ids = np.array([row["id"] for row in rows], np.int64)
        if not len(ids):
            return []
        gaps = vectors_of(ids).astype(np.float64) - query.astype(np.float64)
        return sorted(zip(np.sqrt((gaps * gaps).sum(axis=1)).tolist(), ids.tolist(), strict=True))


def assert_rows(result: Any, wanted: list[list[tuple[float, int]]]) -> None:
    answers: list[list[tuple[float, int]]] = [[] for _ in wanted]
    for query, row, distance in zip(
        *(result.rows[name].to_pylist() for name in ("query", "id", "distance")), strict=True
    ):
        answers[query].append((distance, row))
    for answer, true in zip(answers, wanted, strict=True):
        assert [row for _, row in answer] == [row for _, row in true]
        assert [distance for distance, _ in answer] == pytest.approx([distance for distance, _ in true], rel=1e-6)


def test_random_policies_show_all_allowed_rows_and_no_other(
    sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, seed: str
) -> None:
    """By an index of its own snapshot, of another, and by none; 40 policies in a commit, 1,000 in a round by night."""
    rng = random.Random(seed)
    world = World.made(sql_catalog, monkeypatch, rng)
    for _ in draws(250 if IS_NIGHT else 40):
        row_filter = drawn_predicate(rng) if rng.random() < 0.9 else None
        masked = rng.sample([*list(TYPES)[1:], "tags"], rng.choice([0, 1, 2]))
        masks = [{"field-id": 9 if name == "tags" else FIELD_IDS[name], "action": "mask"} for name in masked]
        world.answers.restrictions = {"required-row-filter": row_filter, "required-column-projections": masks}
        if rng.random() < 0.3:
            rng.shuffle(masks)
        snapshot = rng.choice([None, *world.rows])
        live = world.rows[list(world.rows)[-1] if snapshot is None else snapshot]
        visible = [row for row in live if allowed(row_filter, row)]
        table = plain_catalog().load_table("db.t")
        if rng.random() < 0.4:
            reader = icepuffin.open_exact(table, "embedding", "l2", snapshot=snapshot, storage=STORAGE)
        else:
            reader = icepuffin.open_index(table, INDEX, snapshot=snapshot, storage=STORAGE)
        names = [name for name in TYPES if name not in masked]
        check(world, reader, visible, names, rng, with_tags="tags" not in masked)
        for name in masked:
            refuses_masked(reader, name)


def refuses_masked(reader: icepuffin.IndexReader, name: str) -> None:
    for use in (
        lambda: reader.search(queries(1), 3, columns=["id", name]),
        lambda: reader.search(queries(1), 3, where=f"{name} is not null"),
        lambda: reader.search(queries(2), 3, where=[None, f"id = 1 or not {name} is null"]),
        lambda: reader.search(queries(1), 3, where=And(EqualTo("id", 1), IsNull(name))),
        lambda: reader.within(queries(1), 9.0, where=f"{name} is null"),
        lambda: reader.within(queries(1), 9.0, columns=[name]),
    ):
        with pytest.raises(RestrictedTableError, match=f"{name} is masked"):
            use()


def check(
    world: World,
    reader: icepuffin.IndexReader,
    visible: list[Row],
    names: Sequence[str],
    rng: random.Random,
    *,
    with_tags: bool,
) -> None:
    """Searches of each kind beside brute force."""
    query, k = queries(60)[rng.randrange(58) :][:2], rng.choice([1, 5, 400])
    assert reader.row_count == len(visible), world.answers.restrictions
    text, meaning = drawn_condition(rng, [*names, *["tags"] * with_tags])
    matching = [row for row in visible if meaning(row)]
    plain = reader.search(query, k)
    assert_rows(plain, [world.nearest(visible, one)[:k] for one in query])
    assert [name for name in plain.rows.column_names if name in TYPES] == list(names)
    assert_rows(
        reader.search(query, k, where=text, columns=["id"]), [world.nearest(matching, one)[:k] for one in query]
    )
    each = reader.search(query, k, where=[None, text], columns=["id"])
    assert_rows(each, [world.nearest(rows, one)[:k] for rows, one in zip((visible, matching), query, strict=True)])
    limit = rng.uniform(2.0, 6.0)
    where, rows = rng.choice([(text, matching), (None, visible)])
    near = reader.within(query, limit, where=where, columns=["id"])
    assert_rows(near, [[pair for pair in world.nearest(rows, one) if pair[0] < limit] for one in query])
    found = reader.within(query[0], math.inf, columns=list(names))
    by_id = {row["id"]: row for row in visible}
    for row in found:
        assert {name: row[name] for name in names} == pytest.approx(
            {n: by_id[row["id"]][n] for n in names}, nan_ok=True
        )


SECTION = {"type": "reference", "id": FIELD_IDS["section"]}
ONLY_A = {"required-row-filter": {"type": "eq", "left": SECTION, "right": "a"}}
NO_DAYS = {"required-column-projections": [{"field-id": FIELD_IDS["day"], "action": "replace-with-null"}]}


def opened(table: Table, *, by_index: bool = True, **options: Any) -> icepuffin.IndexReader:
    if by_index:
        return icepuffin.open_index(table, INDEX, storage=STORAGE, **options)
    return icepuffin.open_exact(table, "embedding", "l2", storage=STORAGE, **options)


def told(reader: icepuffin.IndexReader) -> list[Any]:
    """All that a reader and its answers tell, without times and names of snapshots."""

    def nameless(texts: Iterable[str]) -> list[str]:
        return [text.replace(str(reader.snapshot_id), "").replace("db.t1", "db.t0") for text in texts]

    facts: list[Any] = [nameless([repr(reader), *reader.warnings]), reader.row_count, reader.kept_tail]
    results = [
        reader.search(queries(3), 5),
        reader.search(queries(1), 2, where="score > 0"),
        reader.search(queries(2), 2, where=["score > 0", None]),
        reader.within(queries(2), 4.0),
    ]
    if reader.definition is not None:
        results += [reader.search(text="a x", k=50), reader.search(queries(1), 5, text="x", where="score > 0")]
    for result in results:
        lines = [f"{part} {text}" for part, text in explain(result) if part not in {"answer", "version", "total"}]
        rows = result.rows.to_pylist()
        if "score" in result.rows.column_names[:3]:  # rows of equal words come by the names of their files
            rows = sorted((row["score"], row["id"]) for row in rows)
        facts += [str(rows), nameless([*result.warnings, *lines]), result.opening, result.coverage]
        facts.append(replace(result.profile, milliseconds={}, why=""))
    return facts


@pytest.mark.parametrize("how", ["exact", "own version", "nearest version", "nearest version alone", "no graphs"])
def test_hidden_rows_tell_nothing(sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Tables that differ in hidden rows alone, which are elsewhere, more, and without a distance, answer alike."""
    rng = random.Random(how)
    rows = random_rows(rng, 0, 240)
    shown, facts = [row for row in rows if row["section"] == "a"], []
    definition = replace(INDEX, method="centroid") if how == "no graphs" else INDEX
    for number, hidden in enumerate(([], [row for row in rows if row["section"] != "a"])):
        table = sql_catalog.create_table(f"db.t{number}", SCHEMA, properties={"format-version": "2"})
        parts = [shown[:20], shown[20:]]
        for part, others in zip(parts, (hidden[:90], hidden[90:]), strict=True):
            own = [*part, *others]
            vectors = vectors_of(np.array([row["id"] for row in own])) + np.array(
                [[0.0 if row["section"] == "a" else 1.0] for row in own], np.float32
            )
            if others and part is parts[1] and how != "own version":  # which would not be built
                vectors[len(part)] = np.nan
            table.append(stored(own, vectors))
            if how != "exact" and (part is parts[0] or how == "own version"):
                index_head(table, definition)
        answers = Answers.about(table, monkeypatch)
        answers.restrictions = ONLY_A
        loaded = plain_catalog().load_table("db.t0")
        if how == "exact":
            reader = opened(loaded, by_index=False)
        else:
            stale = "nearest-only" if how == "nearest version alone" else "complete"
            reader = icepuffin.open_index(loaded, definition, storage=STORAGE, stale=stale)
        facts.append(told(reader))
    assert facts[0][3]  # there are answers
    assert facts[0] == facts[1]


@pytest.fixture
def small(sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """A catalog's answers about a table of 120 rows, 100 of which an index has."""
    table = sql_catalog.create_table("db.t", SCHEMA, properties={"format-version": "2"})
    rows = random_rows(random.Random(1), 0, 120)
    table.append(stored(rows[:100]))
    index_head(table, INDEX)
    table.append(stored(rows[100:]))
    return Answers.about(table, monkeypatch)


def sections(result: icepuffin.SearchResult) -> set[str]:
    return set(result.rows["section"].to_pylist())


@pytest.mark.parametrize("by_index", [True, False])
def test_readers_of_one_process_share_nothing_that_one_of_them_may_not_see(small: Answers, by_index: bool) -> None:
    table = plain_catalog().load_table("db.t")
    whole = opened(table, by_index=by_index)
    searches: list[Callable[[icepuffin.IndexReader], icepuffin.SearchResult]] = [
        lambda reader: reader.search(queries(1), 120),
        lambda reader: reader.search(queries(1), 120, where="id >= 0"),
        lambda reader: reader.search(queries(2), 120, where=["id >= 0", "section = 'b'"]),
        lambda reader: reader.within(queries(1), math.inf, where="section = 'b'"),
    ]
    before = [search(whole).rows for search in searches]
    small.restrictions = {**ONLY_A, **NO_DAYS}
    restricted = opened(table, by_index=by_index)
    for search, count in zip(searches, (1, 1, 2, 1), strict=True):
        answer = search(restricted)
        assert (sections(answer) <= {"a"}, answer.profile.queries) == (True, count)
        assert "day" not in answer.rows.column_names
    small.restrictions = None
    for reader in (whole, opened(table, by_index=by_index)):
        assert [str(search(reader).rows) for search in searches] == [str(rows) for rows in before]


def test_changed_restrictions_take_effect_at_the_next_step(small: Answers) -> None:
    reader = opened(plain_catalog().load_table("db.t"))
    with reader.follow(interval=1e6) as following:
        assert len(sections(following.search(queries(1), 100))) > 2
        following.search(queries(1), 100, columns=["day", "section"])
        for restrictions, seen in ((ONLY_A, {"a"}), ({**ONLY_A, **NO_DAYS}, {"a"})):
            small.restrictions = restrictions
            assert following.update()
            assert not following.update()
            assert sections(following.search(queries(1), 100)) == seen
        with pytest.raises(RestrictedTableError, match="day is masked"):
            following.search(queries(1), 100, columns=["day", "section"])
        assert following.search(queries(1), 100).rows.column_names.count("day") == 0  # it goes on after a refusal
        small.restrictions = None
        assert following.update()
        assert "day" in following.search(queries(1), 100).rows.column_names


def test_a_reader_ends_where_none_can_be_opened_under_changed_restrictions(
    small: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = opened(plain_catalog().load_table("db.t"), by_index=False)
    with reader.follow(interval=1e6) as following:
        small.restrictions = ONLY_A
        with monkeypatch.context() as broken:
            broken.setattr("icepuffin.ops.search.opening.live_files", _fail)
            with pytest.raises(RestrictedTableError, match="has changed, and no reader could be opened"):
                following.update()
        with pytest.raises(RestrictedTableError, match="has changed"):
            following.search(queries(1), 3)
        assert following.update()
        assert sections(following.search(queries(1), 100)) == {"a"}


@pytest.mark.parametrize("by_index", [True, False])
def test_a_reader_ends_with_the_reason_where_vectors_are_masked_by_now(small: Answers, by_index: bool) -> None:
    with opened(plain_catalog().load_table("db.t"), by_index=by_index).follow(interval=1e6) as following:
        small.restrictions = {"required-column-projections": [{"field-id": 10, "action": "replace-with-null"}]}
        for step in (following.update, lambda: following.search(queries(1), 3)):
            with pytest.raises(RestrictedTableError, match=r"^db\.t: [^.]*\. embedding is masked"):
                step()


@pytest.mark.parametrize("by_index", [True, False])
def test_nothing_is_answered_while_a_reader_is_opened_that_shows_less(
    small: Answers, monkeypatch: pytest.MonkeyPatch, by_index: bool
) -> None:
    through, refusals = opening.live_files, []

    def searched(*arguments: Any) -> Any:
        with pytest.raises(RestrictedTableError, match="has changed, and a reader is being opened"):
            following.search(queries(1), 100)
        refusals.append(arguments)
        return through(*arguments)

    with opened(plain_catalog().load_table("db.t"), by_index=by_index).follow(interval=1e6) as following:
        small.restrictions = ONLY_A
        with monkeypatch.context() as opens:
            opens.setattr(opening, "live_files", searched)
            assert following.update()
        assert refusals
        assert sections(following.search(queries(1), 100)) == {"a"}


def test_a_refusal_outlasts_a_catalog_that_is_away(small: Answers) -> None:
    reader = opened(plain_catalog().load_table("db.t"))
    with reader.follow(interval=1e6) as following:
        small.restrictions = {"required-cell-filter": 1}
        with pytest.raises(RestrictedTableError):
            following.update()
        small.status = 503
        with pytest.raises(ServiceUnavailableError):
            following.update()
        with pytest.raises(RestrictedTableError, match="in a form that icepuffin does not know"):
            following.search(queries(1), 3)
        small.status, small.restrictions = 200, None
        assert not following.update()
        assert following.search(queries(1), 3).rows.num_rows == 3


@pytest.mark.parametrize("status", [401, 403, 404, 419])
@pytest.mark.parametrize("by_index", [True, False])
def test_a_reader_that_follows_ends_where_the_catalog_takes_the_table_away(
    small: Answers, status: int, by_index: bool
) -> None:
    with opened(plain_catalog().load_table("db.t"), by_index=by_index).follow(interval=1e6) as following:
        small.status = 503
        with pytest.raises(ServiceUnavailableError):
            following.update()
        assert "was not checked" in following.search(queries(1), 3).warnings[0]
        small.status = status
        with pytest.raises(RestrictedTableError, match=r"db\.t: the catalog no longer gives this table to its user"):
            following.update()
        for small.status in (status, 503):
            with pytest.raises(RestrictedTableError, match="no longer gives"):
                following.search(queries(1), 3)
            with pytest.raises((RestrictedTableError, ServiceUnavailableError)):
                following.update()
        small.status = 200
        assert not following.update()
        assert following.search(queries(1), 3).warnings == ()


def _fail(*_: object) -> None:
    raise OSError("the store is away")


@pytest.mark.parametrize("stale", ["complete", "nearest-only"])
def test_all_rows_that_are_allowed_are_counted_whatever_the_index_lacks(small: Answers, stale: str) -> None:
    small.restrictions = ONLY_A
    reader = opened(plain_catalog().load_table("db.t"), stale=stale)
    assert reader.row_count == small.table.scan("section = 'a'").to_arrow().num_rows
    assert (len(reader.search(queries(1), 100)) < reader.row_count) == (stale == "nearest-only")


@pytest.mark.parametrize("field_id", [FIELD_IDS["embedding"], 10])
@pytest.mark.parametrize("by_index", [True, False])
def test_masked_vectors_are_not_searched(small: Answers, field_id: int, by_index: bool) -> None:
    small.restrictions = {"required-column-projections": [{"field-id": field_id, "action": "replace-with-null"}]}
    with pytest.raises(RestrictedTableError, match="embedding is masked"):
        opened(plain_catalog().load_table("db.t"), by_index=by_index)


def test_the_words_of_a_masked_column_are_neither_searched_nor_asked_for(small: Answers) -> None:
    small.restrictions = {"required-column-projections": [{"field-id": 9, "action": "replace-with-null"}]}
    reader = opened(plain_catalog().load_table("db.t"))
    for use in (
        lambda: reader.search(text="x"),
        lambda: reader.search(text="x", text_columns=["section", "tags"]),
        lambda: reader.search(queries(1), where=HasWord(columns=("tags",), text="x")),
    ):
        with pytest.raises(RestrictedTableError, match="tags is masked"):
            use()
    for found in (
        reader.search(text="ab", k=100, text_columns=["section"]),
        reader.search(queries(1), 100, where=HasWord(columns=("section",), text="ab")),
    ):
        assert sections(found) == {"ab"}
    small.restrictions = ONLY_A
    shown = opened(plain_catalog().load_table("db.t"))
    assert len(shown.search(queries(1), 100, where=HasWord(columns=("section",), text="ab"))) == 0
    assert sections(shown.within(queries(1), math.inf, where=HasWord(columns=("section",), text="a ab"))) == {"a"}


def test_a_row_filter_may_read_a_column_that_is_masked(small: Answers) -> None:
    masks = {"required-column-projections": [{"field-id": FIELD_IDS["section"], "action": "sha-256-global"}]}
    small.restrictions = {**ONLY_A, **masks}
    by_hand = small.table.scan(row_filter="section = 'a'").to_arrow()
    for by_index in (True, False):
        found = opened(plain_catalog().load_table("db.t"), by_index=by_index).within(queries(1), math.inf).rows
        assert sorted(found["id"].to_pylist()) == sorted(by_hand["id"].to_pylist())
        assert "section" not in found.column_names


def test_a_row_is_hidden_that_each_reading_shows_by_another_side(small: Answers) -> None:
    """Null is not 'a' by Iceberg's specification alone, and NaN is over 0 by SQL alone."""
    score = {"type": "reference", "id": FIELD_IDS["score"]}
    odd = {**random_rows(random.Random(2), 900, 901)[0], "section": None, "score": math.nan}
    small.table.append(stored([odd, {**odd, "id": 901, "score": 0.1}]))
    sides = {"type": "not-eq", "left": SECTION, "right": "a"}, {"type": "gt", "left": score, "right": 0}
    small.restrictions = {"required-row-filter": {"type": "or", "left": sides[0], "right": sides[1]}}
    shown = opened(plain_catalog().load_table("db.t")).within(queries(1), math.inf, columns=["id"])
    assert {900, 901}.intersection(shown.rows["id"].to_pylist()) == {901}


def test_a_row_filter_follows_its_column_by_id_and_ends_where_a_snapshot_lacks_it(small: Answers) -> None:
    old = small.table.refresh().metadata.current_snapshot_id
    with small.table.update_schema() as update:
        update.rename_column("section", "part").rename_column("flag", "section").add_column("later", LongType())
    small.table.append(
        stored(random_rows(random.Random(2), 120, 130))
        .rename_columns(["id", "part", "score", "weight", "day", "section", "tags", "embedding"])
        .append_column("later", pa.array([1] * 10, pa.int64()))
    )
    small.restrictions = ONLY_A
    table = plain_catalog().load_table("db.t")
    assert set(opened(table).search(queries(1), 100).rows["part"].to_pylist()) == {"a"}
    assert sections(opened(table, snapshot=old).search(queries(1), 100)) == {"a"}
    later = {"type": "eq", "left": {"type": "reference", "id": 11}, "right": 1}
    small.restrictions = {"required-row-filter": later}
    assert len(opened(table).search(queries(1), 100)) == 10
    with pytest.raises(RestrictedTableError, match="no field id of a top-level column that the snapshot has"):
        opened(table, snapshot=old)


def test_a_shard_that_is_lost_later_leads_to_a_reader_under_the_same_restrictions(small: Answers) -> None:
    small.restrictions = ONLY_A
    reader = opened(plain_catalog().load_table("db.t"))
    small.restrictions = None
    for other in (reader._reload(), reader._without_index(IndexUnavailableError("lost"))):  # type: ignore[misc]
        assert sections(other.search(queries(1), 100)) == {"a"}


def test_distances_are_those_of_the_tables_vectors_where_rows_are_hidden(small: Answers) -> None:
    """Codes, and vectors that are cut short, would be fitted to hidden rows, too."""
    coded = replace(INDEX, name="coded", vectors="f16", target_recall=0.5)
    small.table.delete("id >= 100")
    index_head(small.table, coded)
    small.restrictions = ONLY_A
    reader = icepuffin.open_index(plain_catalog().load_table("db.t"), coded, storage=STORAGE)
    found, query = reader.search(queries(1), 9, columns=["id"]).rows, queries(1)[0].astype(np.float64)
    gaps = vectors_of(found["id"].to_numpy()).astype(np.float64) - query
    assert found["distance"].to_pylist() == pytest.approx(np.sqrt((gaps * gaps).sum(axis=1)).tolist(), rel=1e-9)
    small.restrictions = None
    whole = icepuffin.open_index(plain_catalog().load_table("db.t"), coded, storage=STORAGE)
    assert whole.search(queries(1), 9, where="section = 'a'").rows["distance"] != found["distance"]


def test_a_proof_of_an_answer_is_refused_where_rows_are_hidden(small: Answers) -> None:
    small.restrictions = ONLY_A
    with pytest.raises(RestrictedTableError, match="A proof tells how far"):
        opened(plain_catalog().load_table("db.t")).search(queries(1), 3, certified=True)
    with pytest.raises(RestrictedTableError, match="target_recall goes by the recall of all rows"):
        opened(plain_catalog().load_table("db.t")).search(queries(1), 3, target_recall=0.9)
    with pytest.raises(RestrictedTableError, match="ranked by the table's vectors"):
        opened(plain_catalog().load_table("db.t")).search(queries(1), 3, rerank=False)
    small.restrictions = NO_DAYS
    assert opened(plain_catalog().load_table("db.t")).search(queries(1), 3, certified=True).profile.certificate


def test_literals_are_read_as_the_specification_writes_them() -> None:
    now, uid = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC).replace(tzinfo=None), "f79c3e09-677c-4bbd-a479-3f349cb785e7"
    values: list[tuple[Any, Any, Any]] = [
        (IntegerType(), 34, 34),
        (LongType(), 2**60, 2**60),
        (FloatType(), {"type": "literal", "value": 0.1, "data-type": "float"}, 0.1),
        (DoubleType(), 0.1, 0.1),
        (DecimalType(9, 2), "14.20", Decimal("14.20")),
        (StringType(), "iceberg", "iceberg"),
        (DateType(), "2026-01-01", now.date()),
        (TimeType(), "12:00:00", now.time()),
        (TimestampType(), "2026-01-01T12:00:00", now),
        (TimestamptzType(), "2026-01-01T12:00:00+00:00", now.replace(tzinfo=dt.UTC)),
        (UUIDType(), uid, UUID(uid).bytes),
        (FixedType(2), "00ff", b"\x00\xff"),
        (BinaryType(), "00FF", b"\x00\xff"),
        (BooleanType(), True, True),
    ]
    for kind, written, value in values:
        schema = Schema(NestedField(5, "column", kind, required=False))
        equal = {"type": "eq", "left": {"type": "reference", "id": 5}, "right": written}
        stored_type = pa.binary(16) if isinstance(kind, UUIDType) else arrow_schema(schema).field(0).type
        rows = pa.record_batch({"column": pa.array([None, value], stored_type)})
        for predicate, places in ((equal, [1]), ({"type": "not", "child": equal}, [])):
            found = RowPredicate(policy_expression(predicate, schema), schema).satisfied(rows, np.arange(2))
            assert found.tolist() == places, kind


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (FloatType(), 0.1),
        (FloatType(), 1e300),
        (FloatType(), {"type": "literal", "value": 1e300, "data-type": "float"}),
        (DoubleType(), {"type": "literal", "value": 0.1, "data-type": "float"}),
        (DecimalType(9, 2), 14.2),
        (DecimalType(9, 2), "NaN"),
        (DecimalType(9, 2), "ten"),
        (DateType(), 7),
        (DateType(), "tomorrow"),
        (TimestamptzType(), "2026-01-01T12:00:00"),
        (TimestampType(), "2026-01-01T12:00:00+00:00"),
        (UUIDType(), "f79c"),
        (FixedType(2), "0x"),
        (BooleanType(), 1),
        (StringType(), True),
    ],
    ids=str,
)
def test_a_literal_that_may_mean_two_values_or_none_is_refused(kind: Any, written: Any) -> None:
    schema = Schema(NestedField(5, "column", kind, required=False))
    row_filter = {"type": "eq", "left": {"type": "reference", "id": 5}, "right": written}
    with pytest.raises(RestrictedTableError, match="in a form that icepuffin does not know"):
        Restriction.from_catalog(ReadRestrictions(row_filter, frozenset()), "db.t", schema, 5)


def test_a_row_filter_of_thousands_of_levels_is_refused_in_words() -> None:
    deep: Any = {"type": "is-null", "term": 5}
    for _ in range(10_000):
        deep = {"type": "not", "child": deep}
    schema = Schema(NestedField(5, "column", LongType()))
    with pytest.raises(RestrictedTableError, match="the row filter is nested too deeply"):
        Restriction.from_catalog(ReadRestrictions(deep, frozenset()), "db.t", schema, 5)


def test_a_key_under_a_mask_is_none_of_the_schema_that_is_shown() -> None:
    fields = [NestedField(number, f"c{number}", LongType(), required=True) for number in (1, 2, 3)]
    schema = Schema(*fields, identifier_field_ids=[1, 2])
    made = Restriction.from_catalog(ReadRestrictions(None, frozenset({2})), "db.t", schema, 3)
    assert made is not None
    assert ([*made.visible.identifier_field_ids], [field.field_id for field in made.visible.fields]) == ([1], [1, 3])


def test_an_answer_says_that_it_is_restricted(small: Answers) -> None:
    small.restrictions = {**ONLY_A, **NO_DAYS}
    reader = opened(plain_catalog().load_table("db.t"))
    result = reader.search(queries(1), 3, where="id > 3")
    assert "the catalog filters its rows and masks some of its columns" in dict(explain(result))["answer"]
    assert result.profile.matching_rows == small.table.scan("section = 'a' and id > 3").to_arrow().num_rows
    assert "the rows that the catalog allows" in repr(reader)
