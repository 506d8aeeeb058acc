"""Columns of every type, in conditions and in answers."""

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from icepuffin.ops.filters import matches
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.rows.candidates import Hits, fetch
from icepuffin.ops.rows.row_reader import DEFAULT_BUDGET, RowReader
from icepuffin.ops.search.errors import FilterError
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.table import manifests
from icepuffin.ops.table.live_files import live_files
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION
from tests.ops.search.partitioned import append_rows

COUNT = 30
DAY = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
IB: Any = expressions
"""Their classes take arguments by position, which their types do not say"""


def code(number: int) -> UUID:
    return UUID(int=number << 120 | 5)


VALUES: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "flag": (pa.bool_(), lambda n: n % 2 == 0),
    "small": (pa.int32(), lambda n: n),
    "ratio": (pa.float32(), lambda n: n / 2),
    "score": (pa.float64(), lambda n: n / 4),
    "price": (pa.decimal128(9, 2), lambda n: Decimal(n) / 4),
    "day": (pa.date32(), lambda n: DAY.date() + dt.timedelta(n)),
    "hour": (pa.time64("us"), lambda n: dt.time(n % 24, 30)),
    "local": (pa.timestamp("us"), lambda n: DAY.replace(tzinfo=None) + dt.timedelta(n)),
    "utc": (pa.timestamp("us", "UTC"), lambda n: DAY + dt.timedelta(n)),
    "text": (pa.string(), lambda n: f"t{n:02}"),
    "code": (pa.uuid(), code),
    "hash": (pa.binary(4), lambda n: bytes([n, 1, 2, 3])),
    "raw": (pa.binary(), lambda n: bytes([n])),
    "place": (pa.struct([("city", pa.string()), ("zip", pa.int32())]), lambda n: {"city": f"c{n}", "zip": n}),
    "tags": (pa.list_(pa.string()), lambda n: [f"a{n}", "b"]),
    "facts": (pa.map_(pa.string(), pa.int32()), lambda n: [("k", n)]),
    "owner": (pa.struct([("code", pa.uuid())]), lambda n: {"code": code(n)}),
    "codes": (pa.list_(pa.uuid()), lambda n: [code(n), None]),
    "team": (pa.struct([("codes", pa.list_(pa.uuid()))]), lambda n: {"codes": [code(n), None]}),
}
"""Column -> (type, the value of a row by its id); each seventh row has nulls"""


def value(name: str, number: int) -> Any:
    return None if number % 7 == 6 else VALUES[name][1](number)


def column(name: str, numbers: range) -> pa.Array:
    """Arrow makes no array of uuids that are inside of another type: the arrays are put together."""
    nulls = np.array([number % 7 == 6 for number in numbers])
    if name == "code":
        stored = pa.array([None if number % 7 == 6 else code(number).bytes for number in numbers], pa.binary(16))
        return pa.ExtensionArray.from_storage(pa.uuid(), stored)
    if name == "owner":
        return pa.StructArray.from_arrays([column("code", numbers)], ["code"], mask=pa.array(nulls))
    if name == "team":
        return pa.StructArray.from_arrays([column("codes", numbers)], ["codes"], mask=pa.array(nulls))
    if name == "codes":
        bounds = pa.array([0, *np.cumsum(np.where(nulls, 0, 2))], pa.int32())
        stored = pa.array([item for number in numbers if number % 7 != 6 for item in (code(number).bytes, None)])
        items = pa.ExtensionArray.from_storage(pa.uuid(), stored.cast(pa.binary(16)))
        return pa.ListArray.from_arrays(bounds, items, mask=pa.array(nulls))
    return pa.array([value(name, number) for number in numbers], VALUES[name][0])


def as_text(typed_value: Any) -> Any:
    """The value as Spark and SQL have it."""
    match typed_value:
        case UUID() | dt.time():
            return str(typed_value)
        case dict():
            return {name: as_text(item) for name, item in typed_value.items()}
        case [UUID() as code, None]:
            return [str(code), None]
    return typed_value


def typed_rows(first: int, last: int) -> pa.Table:
    columns = {name: column(name, range(first, last)) for name in VALUES}
    return pa.table({"id": range(first, last), **columns, "embedding": make_rows(first, last)["embedding"]})


@pytest.fixture(scope="module")
def typed(catalog: Catalog) -> Table:
    """Two files; these tests only read it."""
    table = catalog.create_table("db.typed", typed_rows(0, 1).schema, properties={"format-version": "2"})
    table.append(typed_rows(0, 20))
    table.append(typed_rows(20, COUNT))
    return table


def matching(table: Table, where: str | BooleanExpression) -> list[int]:
    found = open_index(table, DEFINITION, storage=STORAGE).search(queries(1), COUNT, where=where, columns=["id"])
    return sorted(found.rows["id"].to_pylist())


CONDITIONS: list[tuple[str | BooleanExpression, Callable[[int], bool]]] = [
    ("flag = true", lambda n: n % 2 == 0),
    ("small <= 4", lambda n: n <= 4),
    ("small = '4'", lambda n: n == 4),
    (IB.LessThan("small", 4.0), lambda n: n < 4),
    (IB.LessThan("small", 10**400), lambda n: True),
    (IB.LessThan("score", 10**400), lambda n: True),
    (IB.LessThan("ratio", -(10**400)), lambda n: False),
    ("ratio < 2.5", lambda n: n < 5),
    ("score = 0.25", lambda n: n == 1),
    ("price < 1.5", lambda n: n < 6),
    ("small < 4.5", lambda n: n <= 4),
    ("small >= 4.5", lambda n: n > 4),
    ("small = 4.5", lambda n: False),
    ("small != 4.5", lambda n: True),
    ("price > 0.255", lambda n: n > 1),
    ("price not in (0.255, 0.25)", lambda n: n != 1),
    ("day < '2026-01-03T12:00:00'", lambda n: n <= 2),
    (IB.LessThan("day", DAY.replace(day=3)), lambda n: n <= 2),
    (IB.EqualTo("day", DAY.replace(day=3)), lambda n: False),
    (IB.GreaterThanOrEqual("day", DAY.replace(day=3)), lambda n: n > 2),
    (IB.LessThan("local", DAY.date().replace(day=3)), lambda n: n < 2),
    (IB.EqualTo("price", 0.5), lambda n: n == 2),
    ("price in (0.25, 0.5)", lambda n: n in (1, 2)),
    ("day < '2026-01-03'", lambda n: n < 2),
    ("hour = '03:30:00'", lambda n: n % 24 == 3),
    ("local < '2026-01-03'", lambda n: n < 2),
    ("local = '2026-01-03 12:00:00'", lambda n: n == 2),
    ("local = '2026-01-03T12:00:00'", lambda n: n == 2),
    ("utc <= '2026-01-03T14:00:00+02:00'", lambda n: n <= 2),
    ("utc = '2026-01-03 12:00:00Z'", lambda n: n == 2),
    (IB.LessThan("utc", DAY.replace(day=3)), lambda n: n < 2),
    ("text not like 't1%'", lambda n: not 10 <= n < 20),
    ("text not in ('t01', 't02')", lambda n: n not in (1, 2)),
    (IB.Not(IB.In("text", {"t01", "t02"})), lambda n: n not in (1, 2)),
    (f"code = '{code(3)}'", lambda n: n == 3),
    (f"code < '{code(25)}'", lambda n: n < 25),
    (f"code not in ('{code(3)}', '{code(5)}')", lambda n: n not in (3, 5)),
    (IB.In("code", [code(3), code(25)]), lambda n: n in (3, 25)),
    ("code is not null", lambda n: True),
    (IB.EqualTo("hash", bytes([3, 1, 2, 3])), lambda n: n == 3),
    (IB.LessThan("raw", b"\x03"), lambda n: n < 3),
    *((f"{name} is not null", lambda n: True) for name in ("place", "tags", "facts", "owner", "codes")),
]


@pytest.mark.parametrize(("where", "expected"), CONDITIONS, ids=[str(item[0])[:60] for item in CONDITIONS])
def test_a_condition_on_a_column_of_each_type(
    typed: Table, where: str | BooleanExpression, expected: Callable[[int], bool]
) -> None:
    """A null satisfies none of them, not even those that say what a column is not."""
    assert matching(typed, where) == [n for n in range(COUNT) if n % 7 != 6 and expected(n)]


@pytest.mark.parametrize("budget", [0, DEFAULT_BUDGET])
def test_rows_of_every_type_are_the_same_from_row_groups_that_are_kept(typed: Table, budget: int) -> None:
    """First by the data files, then by row groups in memory, and without that memory by those on disk."""
    live = live_files(typed, SnapshotId(typed.metadata.current_snapshot_id or 0))
    rows = RowReader(live, typed.schema(), STORAGE, budget_bytes=budget)
    ids = [field.field_id for field in typed.schema().fields]
    files, positions = np.array([1, 0, 1, 0, 0]), np.array([3, 6, 0, 9, 2])
    hits = Hits(np.zeros(5, np.int64), np.arange(1, 6), files, positions, np.arange(5.0))
    first, second = fetch(hits, rows, ids), fetch(hits, rows, ids)
    assert rows.few_at_hand(files, positions, ids) is not None
    third = fetch(hits, rows, ids)
    assert [second.equals(first), third.equals(first)] == [True, True]
    assert third.schema.equals(first.schema, check_metadata=True)
    numbers = first["id"].to_pylist()
    for name in VALUES:
        assert first[name].to_pylist() == [value(name, number) for number in numbers]


def as_java_orders(uuid: UUID) -> tuple[int, ...]:
    return tuple(int.from_bytes(half, "big", signed=True) for half in (uuid.bytes[:8], uuid.bytes[8:]))


def test_bounds_of_uuids_in_the_order_of_java_exclude_no_row(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers before Iceberg 1.11 have them, of a file's values and of the partitions of a manifest's files."""
    codes = [code(16), code(144), code(255)]
    lower, *_, upper = (item.bytes for item in sorted(codes, key=as_java_orders))
    assert lower > upper
    stored = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([item.bytes for item in codes], pa.binary(16)))
    rows = typed_rows(0, 3).select(["id", "code", "embedding"]).set_column(1, "code", stored)
    table = catalog.create_table("db.java_uuids", rows.schema, properties={"format-version": "2"})
    table.append(rows)
    with table.update_spec() as spec:
        spec.add_identity("code")
    append_rows(table.refresh(), rows, "code")
    field_id = table.schema().find_field("code").field_id
    read_entries, read_manifests = manifests._entries, matches.read_manifests

    def java_entries(*arguments: Any, **named: Any) -> Any:
        entries = read_entries(*arguments, **named)
        for entry in entries if named["columns"] else ():  # for conditions
            entry.data_file.lower_bounds[field_id], entry.data_file.upper_bounds[field_id] = lower, upper
        return entries

    def java_manifests(*arguments: Any) -> Any:
        listed = read_manifests(*arguments)
        for manifest in listed:
            for summary in manifest.partitions or ():
                summary[2], summary[3] = lower, upper
        return listed

    monkeypatch.setattr(manifests, "_entries", java_entries)
    monkeypatch.setattr(matches, "read_manifests", java_manifests)
    for number, item in enumerate(codes):
        assert matching(table, f"code = '{item}'") == [number, number]
        assert matching(table, IB.In("code", [item, code(1)])) == [number, number]
    assert matching(table, f"code < '{code(145)}'") == [0, 0, 1, 1]
    live = live_files(table, SnapshotId(table.refresh().metadata.current_snapshot_id or 0))
    read = matches.find_matches(table, live, table.schema(), f"code = '{codes[0]}'", STORAGE)
    assert (read.files_read, len(live.files)) == (2, 4), "partition values exclude files"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("small = '4.5'", "'4.5' is no int, as small is"),
        ("small > true", "small is int, which True is not"),
        ("price = 'much'", r"'much' is no decimal\(9, 2\), as price is"),
        ("local = '2026'", "Invalid timestamp without zone"),
        ("local = '2026-01-03T12:00:00+00:00'", "local is timestamp, write it without a zone"),
        ("local > 1767441600000000", "local is timestamp, which 1767441600000000 is not"),
        ("day > 20455", "day is date, which 20455 is not"),
        ("flag = 1", "flag is boolean, which 1 is not"),
        ("text = 5", "text is string, which 5 is not"),
        ("utc = '2026-01-03T12:00:00'", "utc is timestamptz, write it with a zone"),
        ("utc > '2026-01-03'", "utc is timestamptz, write it with a zone"),
        ("hour = '01:00:00+02:00'", "hour is time: write .* no zone"),
        ("hour >= '01:00:00.0000005'", "hour is time: write .* microseconds at most"),
        ("text like 'a_b%'", "_ of LIKE stands for any character"),
        ("text NOT LIKE 'a''\\_'", "_ of LIKE stands for any character"),
        (r"text like 'a\\%'", r"\\ changes what follows it"),
        (r"text like 'a\b%'", r"\\ changes what follows it"),
        ("small like '1%'", "small is int: LIKE takes a column of texts"),
        ("day like '2026-01-03%'", "day is date: LIKE takes"),
        ("score not like '1%'", "score is double: LIKE takes"),
        ("code = 'abc'", "UUID"),
        ("hash = '03010203'", r"hash is fixed\[4\], which a text cannot say"),
        ("raw = '03'", "give an expression with bytes"),
        ("place.city = 'c3'", "only top-level ones are read"),
        ("tags = 'b'", r"Cannot convert StringLiteral into list<string>"),
        ("facts = 'k'", "into map<string, int>"),
    ],
)
def test_a_constant_that_a_type_cannot_hold_is_refused(typed: Table, where: str, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        matching(typed, where)


@pytest.mark.parametrize(
    ("where", "same"),
    [
        ("true", "id >= 0"),
        ("NOT true", "id < 0"),
        ("false or id = 1", "id = 1"),
        ("id < 9 and (true or id = 1)", "id < 9"),
        (r"text like 'a\%'", "text = 'a%'"),
    ],
)
def test_constants_are_conditions(typed: Table, where: str, same: str) -> None:
    assert matching(typed, where) == matching(typed, same)


def test_columns_of_each_type_are_returned(typed: Table) -> None:
    names = ["id", *VALUES]
    rows = open_index(typed, DEFINITION, storage=STORAGE).search(queries(1), COUNT, columns=names).rows.to_pylist()
    assert len(rows) == COUNT
    for row in rows:
        assert {name: row[name] for name in VALUES} == {name: value(name, row["id"]) for name in VALUES}


def test_an_answer_without_rows_has_the_columns_of_each_type(typed: Table) -> None:
    reader = open_index(typed, DEFINITION, storage=STORAGE)
    full = reader.search(queries(1), COUNT, columns=[*VALUES]).rows
    for empty in (
        reader.search(queries(1), COUNT, columns=[*VALUES], where="id < 0").rows,
        reader.within(queries(1), 0.0, columns=[*VALUES]).rows,
    ):
        assert empty.schema == full.schema
        assert empty.to_pylist() == []
