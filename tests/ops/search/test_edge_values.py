"""Conditions on values at the ends of their types, beside each row's comparison in Python: by the data files that
partitions and statistics leave, and by an index's values. Some columns were widened after they had rows.
"""

import datetime as dt
import math
import operator
import random
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
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
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
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

from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from tests.draws import draws
from tests.ops.filters.test_attribute_conditions import both_ways
from tests.ops.search.partitioned import append_rows, build_version
from tests.ops.search.test_random_conditions import Found
from tests.selection import some

IB: Any = expressions
Truth = Callable[[dict[str, Any]], bool | None]
"""Whether a condition is true of a row; None where that is unknown"""
INF, NAN = float("inf"), float("nan")
LONGEST_FLOAT, SMALLEST_FLOAT = 3.4028234663852886e38, 1.401298464324817e-45
MAX_DIGITS = Decimal("9" * 28 + "." + "9" * 10)
TEXTS = ["", "a", "a\0", "a\0b", "\0", "e\u0301", "\u00e9", "z" * 16, "z" * 17, "z" * 16 + "a", "%", "a%", "_", "it's"]
TEXTS += ["\U0010ffff" * 16, "\U0010ffff" * 17, "\uffff" * 17, "\ud7ff", "\ue000", "\U00010000", "A", "true", "1"]
MOMENTS = ["0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "1970-01-01T00:00:00", "1969-12-31T23:59:59.999999"]
EDGES: dict[str, tuple[IcebergType, list[Any], list[Any]]] = {
    "i": (IntegerType(), [0, 1, -1, 7, 2**31 - 1, -(2**31)], [2**31, -(2**63) - 1, Decimal("0.5"), -1.5]),
    "f": (
        FloatType(),
        [0.0, -0.0, 0.5, INF, -INF, NAN, 0.10000000149011612, LONGEST_FLOAT, SMALLEST_FLOAT],
        [0.1, 1e300, -1e300, 1e-60, 2**24 + 1, 10**400, -(10**400)],
    ),
    "price": (
        DecimalType(9, 2),
        [Decimal(text) for text in ("0.00", "1.50", "-1.50", "9999999.99", "-9999999.99", "0.01")],
        [Decimal("0.005"), Decimal("1.500"), Decimal("9999999.995"), Decimal("1e30"), 1, Decimal("-0.00"), 10**20],
    ),
    "big": (
        DecimalType(38, 10),
        [MAX_DIGITS, MAX_DIGITS.copy_negate(), Decimal("1.0000000001"), Decimal("1.0000000000")],
        [Decimal("1.00000000005"), Decimal("1e40"), 1],
    ),
    "text": (StringType(), TEXTS, ["z" * 15, "z" * 16 + "\U0010ffff", "\U0010fffe", "B"]),
    "raw": (BinaryType(), [b"", b"\0", b"\xff" * 16, b"\xff" * 17, b"a", b"\x80"], [b"\xfe", b"\0\0", b"\xff" * 18]),
    "key": (UUIDType(), [uuid.UUID(int=number) for number in (0, 1, 2**127, 2**128 - 1)], []),
    "four": (FixedType(4), [bytes(4), b"\xff" * 4, b"abcd", b"\x80\0\0\0"], []),
    "day": (DateType(), [dt.date.min, dt.date.max, dt.date(1970, 1, 1), dt.date(1969, 12, 31)], []),
    "local": (TimestampType(), [dt.datetime.fromisoformat(text) for text in MOMENTS], []),
    "utc": (TimestamptzType(), [dt.datetime.fromisoformat(f"{text}+00:00") for text in MOMENTS], []),
    "hour": (TimeType(), [dt.time.min, dt.time.max, dt.time(12)], []),
    "flag": (BooleanType(), [True, False], []),
    "Case": (IntegerType(), [1, 2], []),
    "case": (IntegerType(), [10, 2], []),
    "odd größe": (LongType(), [1, 2], []),
}
"""Column -> (type, values of rows, other constants that it is compared with)"""
WIDER: dict[str, tuple[IcebergType, list[Any]]] = {
    "i": (LongType(), [2**31, 2**63 - 1, -(2**63)]),
    "f": (DoubleType(), [1e300, -1e300, 5e-324]),
    "price": (DecimalType(18, 2), [Decimal("10000000.00"), Decimal("-9999999999999999.99")]),
}
"""Column -> (its later type, values that only this one has)"""
PARTITIONS: list[tuple[str, Transform[Any, Any]]] = [
    ("i", IdentityTransform()),
    ("i", BucketTransform(3)),
    ("f", IdentityTransform()),
    ("price", BucketTransform(3)),
    ("big", IdentityTransform()),
    ("text", TruncateTransform(2)),
    ("text", IdentityTransform()),
    ("raw", TruncateTransform(1)),
    ("key", IdentityTransform()),
    ("key", BucketTransform(4)),
    ("day", YearTransform()),
    ("local", HourTransform()),
    ("utc", DayTransform()),
    ("flag", IdentityTransform()),
]
SIGNS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "=": ("EqualTo", operator.eq),
    "!=": ("NotEqualTo", operator.ne),
    "<": ("LessThan", operator.lt),
    "<=": ("LessThanOrEqual", operator.le),
    ">": ("GreaterThan", operator.gt),
    ">=": ("GreaterThanOrEqual", operator.ge),
}
ROWS = 14
KEPT = IndexDefinition(name="r", column="embedding", metric="l2", target_recall=0.0, filters=tuple(EDGES))


class Draws:
    """Draws rows and conditions."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._count = 0

    def rows(self, *, wider: bool) -> list[dict[str, Any]]:
        rows = []
        for _ in range(ROWS):
            row = {name: self._value(name, wider=wider) for name in EDGES}
            rows.append({"id": self._count, **row, "embedding": [float(self._count), 1.0]})
            self._count += 1
        return rows

    def _value(self, name: str, *, wider: bool) -> Any:
        rng = self._rng
        if rng.random() < 0.12:
            return None
        if wider and name in WIDER and rng.random() < 0.5:
            return rng.choice(WIDER[name][1])
        return rng.choice(EDGES[name][1])

    def condition(self, depth: int = 2) -> tuple[BooleanExpression, str, Truth]:
        """(an expression; the same as text, empty where no text says it; its truth)."""
        rng = self._rng
        kind = rng.random()
        if depth == 0 or kind < 0.4:
            return self._leaf(rng.choice(list(EDGES)))
        one, text, truth = self.condition(depth - 1)
        if kind < 0.55:
            return IB.Not(one), text and f"not ({text})", lambda row: inverted(truth(row))
        other, other_text, other_truth = self.condition(depth - 1)
        every = kind < 0.8
        word = "and" if every else "or"
        return (
            (IB.And if every else IB.Or)(one, other),
            text and other_text and f"({text}) {word} ({other_text})",
            lambda row: joined(truth(row), other_truth(row), every=every),
        )

    def _leaf(self, name: str) -> tuple[BooleanExpression, str, Truth]:
        rng = self._rng
        kind, negated = rng.random(), rng.random() < 0.5
        column, word = f'"{name}"' if " " in name else name, "not " if negated else ""
        if kind < 0.1:
            text = f"{column} is {word}null"
            return (IB.NotNull if negated else IB.IsNull)(name), text, lambda row: (row[name] is None) is not negated
        if name == "text" and kind < 0.4:
            start = self._constant(name)[: rng.choice([1, 2, 16, 17])]
            text = "" if set(start) & {"%", "_", "'"} else f"{column} {word}like '{start}%'"
            return (
                (IB.NotStartsWith if negated else IB.StartsWith)(name, start),
                text,
                unless_null(name, lambda value: value.startswith(start) is not negated),
            )
        if kind < 0.5:
            constants = [self._constant(name) for _ in range(rng.choice([1, 3]))]
            constants = [one for one in constants if type(one) is type(constants[0])]
            texts = [written(constant) for constant in constants]
            text = f"{column} {word}in ({', '.join(texts)})" if all(texts) else ""
            return (
                (IB.NotIn if negated else IB.In)(name, constants),
                text,
                unless_null(name, lambda value: any(value == one for one in constants) is not negated),
            )
        sign = rng.choice(["=", "!="] if name == "flag" else list(SIGNS))
        constant = self._constant(name)
        expression, compare = SIGNS[sign]
        text = written(constant)
        return (
            getattr(IB, expression)(name, constant),
            text and f"{column} {sign} {text}",
            unless_null(name, lambda value: compare(*comparable(value, constant))),
        )

    def _constant(self, name: str) -> Any:
        values = [value for value in (*EDGES[name][1], *EDGES[name][2]) if str(value) != "nan"]
        return self._rng.choice(values)


def comparable(value: Any, constant: Any) -> tuple[Any, Any]:
    """NaN is the largest number; uuids order as their bytes, texts as those of UTF-8."""
    if isinstance(value, float) and math.isnan(value):
        return 1, 0
    pair = value, constant
    return tuple(
        one.bytes if isinstance(one, uuid.UUID) else one.encode() if isinstance(one, str) else one for one in pair
    )


def unless_null(name: str, truth: Callable[[Any], bool]) -> Truth:
    return lambda row: None if row[name] is None else truth(row[name])


def inverted(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def joined(one: bool | None, other: bool | None, *, every: bool) -> bool | None:
    if (not every) in (one, other):
        return not every
    return None if None in (one, other) else every


def written(value: Any) -> str:
    """The constant in a text; empty where none says it."""
    if isinstance(value, bool | int):
        return str(value).lower()
    if isinstance(value, Decimal):
        return f"{value:f}" if "." in f"{value:f}" else ""
    if isinstance(value, float | bytes):
        return ""
    text = value.isoformat() if isinstance(value, dt.date | dt.time) else str(value)
    return "'{}'".format(text.replace("'", "''"))


def arrow(rows: list[dict[str, Any]], table: Table) -> pa.Table:
    schema = table.schema().as_arrow()
    plain = [
        {name: value.bytes if isinstance(value, uuid.UUID) else value for name, value in row.items()} for row in rows
    ]
    return pa.table([pa.array([row[field.name] for row in plain], field.type) for field in schema], schema=schema)


def edge_table(
    catalog: Catalog, name: str, drawn: Draws, column: str, transform: Transform[Any, Any]
) -> tuple[Table, list[dict[str, Any]]]:
    """(table, its rows): plain files, files with partitions, and such files after columns were widened."""
    fields = [NestedField(number + 2, own, EDGES[own][0], required=False) for number, own in enumerate(EDGES)]
    vectors = NestedField(50, "embedding", ListType(51, FloatType(), element_required=False), required=False)
    table = catalog.create_table(name, Schema(NestedField(1, "id", LongType(), required=False), *fields, vectors))
    rows = drawn.rows(wider=False)
    table.append(arrow(rows, table))
    with table.update_spec() as spec:
        spec.add_field(column, transform, "part")
    rows += (second := drawn.rows(wider=False))
    append_rows(table.refresh(), arrow(second, table), column)
    with table.refresh().update_schema() as change:
        for own, (kind, _) in WIDER.items():
            change.update_column(own, kind)
    rows += (third := drawn.rows(wider=True))
    append_rows(table.refresh(), arrow(third, table), column)
    return table.refresh(), rows


@pytest.mark.parametrize(("column", "transform"), some(PARTITIONS, 6), ids=str)
def test_conditions_on_edge_values_find_the_rows_that_python_finds(
    catalog: Catalog, column: str, transform: Transform[Any, Any], seed: str
) -> None:
    drawn = Draws(seed)
    table, rows = edge_table(catalog, f"db.edges{PARTITIONS.index((column, transform))}", drawn, column, transform)
    build_version(table, KEPT)
    result = Found(table.refresh())
    for _ in draws(10):
        where, text, truth = drawn.condition()
        expected = [row["id"] for row in rows if truth(row)]
        for own in (where, text) if text else (where,):
            assert result.ids(own) == expected, own
            by_values, scanned, _ = both_ways(table, KEPT, own)
            assert by_values == scanned, own
