"""Random conditions beside DuckDB: every type and operator, nulls, NaN, numbers out of range, partitions, deletes.

Whichever way one is evaluated, it finds these rows: by the data files, here and by tasks; by the values that a version
keeps; by those in memory of the rows that it lacks; by lists of rows, for many queries at once.
"""

import datetime as dt
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import DecimalType, NestedField

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.filters import distinct_values
from icepuffin.ops.filters.matches import find_matches
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.errors import FilterError
from icepuffin.ops.search.exact.file_scans import FileScans, TaskChoice
from icepuffin.ops.search.exact.scan import VectorSource
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from tests.conftest import STORAGE
from tests.draws import draws
from tests.ops.search.partitioned import TYPES, append_rows, build_version, random_rows, random_table
from tests.ops.search.runners import SeveralAtOnce
from tests.selection import some

IB: Any = expressions
COMPARED = {"=": "EqualTo", "!=": "NotEqualTo", "<": "LessThan", "<=": "LessThanOrEqual", ">": "GreaterThan"}
COMPARED[">="] = "GreaterThanOrEqual"
OUT_OF_RANGE: dict[str, list[Any]] = {
    "i32": [99_999_999_999, -99_999_999_999, 2**31, -(2**31) - 1],
    "i64": [2**63, -(2**63) - 1],
    "price": [Decimal("99999999.99"), Decimal("-99999999.99")],
}
PARTITIONS: list[tuple[str, Transform[Any, Any] | None]] = [
    ("i64", None),
    ("text", IdentityTransform()),
    ("f64", IdentityTransform()),
    ("utc", IdentityTransform()),
    ("i64", BucketTransform(4)),
    ("text", TruncateTransform(2)),
    ("price", TruncateTransform(50)),
    ("i32", TruncateTransform(4)),
    ("local", DayTransform()),
    ("utc", HourTransform()),
    ("day", MonthTransform()),
]


class Conditions:
    """Draws conditions, each as an expression, as a text of ours, and as one of DuckDB's."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)

    def draw(self, depth: int = 3) -> tuple[BooleanExpression, str, str]:
        rng = self._rng
        kind = rng.random()
        if depth == 0 or kind < 0.4:
            return self._leaf(rng.choice(list(TYPES)))
        one = self.draw(depth - 1)
        if kind < 0.55:
            return IB.Not(one[0]), f"NOT ({one[1]})", f"NOT ({one[2]})"
        other = self.draw(depth - 1)
        made, word = (IB.And, "AND") if kind < 0.8 else (IB.Or, "OR")
        return made(one[0], other[0]), f"({one[1]}) {word} ({other[1]})", f"({one[2]}) {word} ({other[2]})"

    def look_ups(self) -> tuple[str, str]:
        """Look-ups that AND joins, as texts of ours and of DuckDB's."""
        rng, parts = self._rng, list[str]()
        for name in rng.choices(["i32", "i64", "text"], k=rng.randrange(1, 4)):
            values = [plain(name, self._constant(name)) for _ in range(rng.randrange(1, 4))]
            parts.append(f"{name} = {values[0]}" if len(values) == 1 else f"{name} IN ({', '.join(values)})")
        return rng.choice((" AND ", " and ")).join(parts), " AND ".join(parts)

    def odd(self) -> bool:
        return self._rng.random() < 0.5

    def _leaf(self, name: str) -> tuple[BooleanExpression, str, str]:
        rng = self._rng
        kind, negated = rng.random(), rng.random() < 0.5
        word = "NOT " if negated else ""
        if kind < 0.15:
            text = f"{name} IS {word}NULL"
            return (IB.NotNull if negated else IB.IsNull)(name), text, text
        if kind < 0.4:
            values = [self._constant(name) for _ in range(rng.randrange(1, 5))]
            own_list, duck_list = (", ".join(message(name, value) for value in values) for message in (plain, duck))
            return (
                (IB.NotIn if negated else IB.In)(name, values),
                f"{name} {word}IN ({own_list})",
                f"{name} {word}IN ({duck_list})",
            )
        if name == "text" and kind < 0.7:
            start = rng.choice(["a", "ab", "z" * 20, "ä"])
            predicate = (IB.NotStartsWith if negated else IB.StartsWith)(name, start)
            return predicate, f"{name} {word}LIKE '{start}%'", f"{word}starts_with({name}, '{start}')"
        sign = rng.choice(["=", "!="] if name == "flag" else list(COMPARED))
        value = self._constant(name)
        predicate = getattr(IB, COMPARED[sign])(name, value)
        return predicate, f"{name} {sign} {plain(name, value)}", f"{name} {sign} {duck(name, value)}"

    def _constant(self, name: str) -> Any:
        if name in OUT_OF_RANGE and self._rng.random() < 0.15:
            return self._rng.choice(OUT_OF_RANGE[name])
        while (value := TYPES[name][1](self._rng)) != value:  # NaN is no constant
            pass
        return value


def plain(_: str, value: Any) -> str:
    """As conditions and SQL write it here."""
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, Decimal):
        return f"{value:.2f}"
    if isinstance(value, bool | int):
        return str(value).lower()
    return "'{}'".format(str(value).replace("'", "''"))


def duck(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return "'{}'::BLOB".format("".join(f"\\x{byte:02X}" for byte in value))
    if isinstance(value, float):
        return f"'{value}'::DOUBLE"
    kind = (
        "TIMESTAMPTZ"
        if name == "utc"
        else {dt.datetime: "TIMESTAMP", dt.date: "DATE", dt.time: "TIME"}.get(type(value))
    )
    return plain(name, value) + (f"::{kind}" if kind else "")


@pytest.fixture
def duckdb_of() -> Iterator[Any]:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")

        def ids(where: str) -> list[int]:
            return sorted(row[0] for row in db.execute(f"SELECT id FROM live WHERE {where}").fetchall())

        def over(rows: pa.Table) -> Any:
            db.register("arrow", rows.drop_columns(["embedding"]))
            db.execute("CREATE TABLE live AS SELECT * FROM arrow")
            return ids

        yield over


class Found:
    """The rows of a table by conditions on them."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._live = live_files(table, table.metadata.current_snapshot_id or 0)
        files = [to_path(file.path) for file in self._live.files]
        source = VectorSource(self._live, table.schema(), 0, Metric.L2, STORAGE)
        tasks = FileScans(source, TaskChoice(SeveralAtOnce(), in_process_mb=0))
        self._readers = itertools.cycle((None, tasks.matches))  # this process, then tasks
        self._ids = [np.asarray(pq.read_table(file, columns=["id"])["id"]) for file in files]

    def ids(self, where: str | BooleanExpression) -> list[int]:
        read = next(self._readers)
        rows = find_matches(self._table, self._live, self._table.schema(), where, STORAGE, read).positions
        return sorted(number for file, places in rows.items() for number in self._ids[file][places].tolist())


EVERY = IndexDefinition(name="every", column="embedding", metric="l2", target_recall=0.0, filters=tuple(TYPES))
SOME = replace(EVERY, name="some", filters=("i64", "text", "f64"))


def with_tail(table: Table, rows: pa.Table, column: str, rng: random.Random, *, is_partitioned: bool) -> pa.Table:
    """The live rows of a table that gets two more files or more, and deletes in all files but those of the partition
    0.1: PyIceberg reads that as rounded to f32, and such deletes would be of another partition.
    """
    for first in (1_000, 2_000):
        more = random_rows(rng, first)
        rows = pa.concat_tables([rows, more])
        if is_partitioned:
            append_rows(table.refresh(), more, column)
        else:
            schema = table.refresh().schema()
            table.append(more.select([field.name for field in schema.fields]).cast(schema.as_arrow()))
    files = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files
    places = {
        file.path: np.arange(rng.randrange(3), file.record_count, 5)
        for file in files
        if 0.1 not in dict(file.constants).values()
    }
    append_position_deletes(table, places)
    every = {path: np.asarray(pq.read_table(to_path(path), columns=["id"])["id"]) for path in places}
    removed = {int(number) for path, own in places.items() for number in every[path][own]}
    return rows.filter(pa.array([number not in removed for number in rows["id"].to_pylist()]))


@dataclass
class Way:
    """The rows of a table by conditions on them, as a reader finds them."""

    reader: IndexReader
    settings: CacheSettings
    hows: set[str] = field(default_factory=set)
    """Ways in which conditions were evaluated, in words"""

    @classmethod
    def of(cls, table: Table, definition: IndexDefinition, **budgets: Any) -> "Way":
        settings = CacheSettings(disk_bytes=0, **budgets)
        use_settings(settings)
        return cls(open_index(table.refresh(), definition, storage=STORAGE, threads=1), settings)

    def ids(self, where: str | BooleanExpression) -> list[int]:
        (own,) = self._found(1, where)
        return own

    def ids_of_each(self, conditions: Sequence[str | BooleanExpression]) -> list[list[int]]:
        """Of a query under each condition, in one call."""
        return self._found(len(conditions), conditions)

    def _found(self, queries: int, where: Any) -> list[list[int]]:
        use_settings(self.settings)
        result = self.reader.search([[0.0, 0.0]] * queries, 1_000, columns=["id"], where=where)
        assert result.profile.matching_rows == len(result)
        self.hows.add(result.profile.condition)
        ids = [list[int]() for _ in range(queries)]
        for query, row in zip(*(result.rows[name].to_pylist() for name in ("query", "id")), strict=True):
            ids[query].append(row)
        return list(map(sorted, ids))


@pytest.mark.usefixtures("no_disk_cache")
@pytest.mark.parametrize(("column", "transform"), some(PARTITIONS, 5), ids=lambda value: str(value or "plain"))
def test_each_way_finds_the_rows_that_duckdb_finds(
    catalog: Catalog,
    duckdb_of: Any,
    column: str,
    transform: Transform[Any, Any] | None,
    seed: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(f"{seed} ways")
    monkeypatch.setattr(distinct_values, "_MAX_COMPARED", rng.choice((1, 1_000)))
    monkeypatch.setattr(distinct_values, "_MAX_LISTED", rng.choice((0, 1 << 16)))
    number = PARTITIONS.index((column, transform))
    table, rows = random_table(catalog, f"db.t{number}", column, transform, seed)
    for definition in (EVERY, SOME):
        build_version(table, definition)
    rows = with_tail(table, rows, column, rng, is_partitioned=transform is not None)
    by_files, true_ids, drawn = Found(table.refresh()), duckdb_of(rows), Conditions(seed)
    in_memory = Way.of(table, EVERY)
    ways = {"values": in_memory, "values, and files": Way.of(table, EVERY, tail_bytes=0), "some": Way.of(table, SOME)}
    conditions, expected = list[str | BooleanExpression](), list[list[int]]()
    for _ in draws(10):
        where, text, duckdb_text = drawn.draw()
        plain_text, duckdb_look_ups = drawn.look_ups()
        conditions += [text if drawn.odd() and "X'" not in text else where, plain_text]
        expected += [true_ids(duckdb_text), true_ids(duckdb_look_ups)]
    for where, ids in zip(conditions, expected, strict=True):
        assert by_files.ids(where) == ids, where
        for name, way in ways.items():
            assert way.ids(where) == ids, (name, where)
    for way in ways.values():
        assert way.ids_of_each(conditions) == expected
    assert any("and those in memory of" in how and "read" not in how for how in in_memory.hows)
    assert any("read for the other columns" in how for how in ways["some"].hows)


@pytest.mark.parametrize(
    "form",
    [
        "SELECT id FROM db.sql WHERE {} ORDER BY l2_distance(embedding, ARRAY(1, 1)) LIMIT 999",
        "SELECT id FROM db.sql WHERE l2_distance(embedding, ARRAY(1, 1)) < 1e9 AND ({})",
        "SELECT id FROM (SELECT * FROM db.sql ORDER BY l2_distance(embedding, ARRAY(1, 1)) LIMIT 999) WHERE {}",
    ],
    ids=["nearest", "within", "found"],
)
def test_random_conditions_in_sql_find_the_rows_that_duckdb_finds(
    catalog: Catalog, duckdb_of: Any, form: str, seed: str
) -> None:
    session, drawn = SqlSession.on(catalog, storage=STORAGE), Conditions(seed)
    if not catalog.table_exists("db.sql"):
        random_table(catalog, "db.sql", "i64", None)
    true_ids = duckdb_of(catalog.load_table("db.sql").scan().to_arrow())
    for _ in draws(15):
        _, text, duckdb_text = drawn.draw()
        if any(str(number).strip("-") in text for number in OUT_OF_RANGE["i64"]):
            continue  # refused in a comparison
        assert sorted(session.sql(form.format(text)).rows["id"].to_pylist()) == true_ids(duckdb_text), text


def test_a_condition_that_is_always_true_finds_every_row(catalog: Catalog) -> None:
    table, rows = random_table(catalog, "db.every", "i64", None)
    result = Found(table)
    assert result.ids(IB.AlwaysTrue()) == rows["id"].to_pylist()
    assert result.ids(IB.AlwaysFalse()) == []
    assert result.ids("i32 < 99999999999") == rows.filter(rows["i32"].is_valid())["id"].to_pylist()


@pytest.mark.parametrize("where", ["f64 = 'nan'", "f64 = 'much'"])
def test_what_a_float_is_not_compared_with_is_refused(catalog: Catalog, where: str) -> None:
    table = catalog.load_table("db.every")
    with pytest.raises(FilterError, match=r"is nan|is no double"):
        Found(table).ids(where)


@pytest.mark.parametrize("precision", [9, 28, 29, 38])
@pytest.mark.parametrize(("sign", "under", "over"), [("<", 2, 0), ("<=", 2, 0), (">", 0, 2), ("=", 0, 0), ("!=", 2, 2)])
def test_a_number_that_no_decimal_of_the_column_reaches_is_compared(
    precision: int, sign: str, under: int, over: int
) -> None:
    """`under` and `over`: rows of two for which the comparison holds with a number over all, and under all."""
    schema = Schema(NestedField(1, "d", DecimalType(precision, 2), required=False))
    greatest, beyond = f"{'9' * (precision - 2)}.99", f"1{'0' * (precision - 2)}.00"
    values = [Decimal(greatest), Decimal(f"-{greatest}"), None]
    rows = pa.record_batch({"d": pa.array(values, pa.decimal128(precision, 2))})
    for number, count in ((beyond, under), (f"-{beyond}", over), (f"{greatest}5", under), (f"-{greatest}5", over)):
        assert len(RowPredicate(f"d {sign} {number}", schema).satisfied(rows, np.arange(3))) == count, number


@pytest.mark.parametrize("transform", [YearTransform(), MonthTransform(), DayTransform()], ids=str)
@pytest.mark.parametrize("column", ["day", "local", "utc"])
def test_partitions_do_not_stop_a_search_at_the_ends_of_the_calendar(
    catalog: Catalog, column: str, transform: Transform[Any, Any]
) -> None:
    table, rows = random_table(catalog, f"db.ends_{column}_{transform}", column, transform)
    result, live = Found(table), len(rows) - rows[column].null_count
    first, last = (
        ("0001-01-01", "9999-12-31") if column == "day" else ("0001-01-01T00:00:00", "9999-12-31T23:59:59.999999")
    )
    zone = "+00:00" if column == "utc" else ""
    for sign, count in {"<": (0, live), "<=": (0, live), ">": (live, 0), ">=": (live, 0)}.items():
        for text, expected in zip((first, last), count, strict=True):
            assert len(result.ids(f"{column} {sign} '{text}{zone}'")) == expected, (sign, text)
