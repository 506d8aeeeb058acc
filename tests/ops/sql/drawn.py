# ruff: noqa: DTZ001, E501, PLR0911  zoneless times, lists of texts, one return per kind
"""Random SQL over one table of every type: rows with extremes, and conditions and statements on them."""

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

ROWS = 40
COLUMNS: dict[str, pa.DataType] = {
    "i": pa.int32(), "j": pa.int32(), "l": pa.int64(), "f": pa.float32(), "h": pa.float32(), "g": pa.float64(),
    "x": pa.float64(), "p": pa.decimal128(9, 2), "q": pa.decimal128(5, 4), "w": pa.decimal128(24, 6), "b": pa.bool_(),
    "c": pa.bool_(), "s": pa.string(), "u": pa.string(), "d": pa.date32(), "e": pa.date32(), "t": pa.timestamp("us"),
    "z": pa.timestamp("us", "UTC"), "y": pa.binary(),
}  # fmt: skip
FLOATS = [
    0.0,
    -0.0,
    0.1,
    0.2,
    0.30000001192092896,
    1.5,
    2.5,
    -2.5,
    3.0,
    1e10,
    -1e-10,
    16777217.0,
    1e300,
    math.nan,
    math.inf,
]
TEXTS = [
    "",
    "a",
    "A",
    "ab",
    "it's",
    "O'Brien",
    "a_b",
    "a%b",
    "a\\b",
    "x\ny",
    "ß",
    "İ",
    "ςΣ",
    "😀",
    "10",
    " 7",
    "nan",
    "äöü",
]
DAYS = [
    dt.date(1969, 12, 31),
    dt.date(1970, 1, 1),
    dt.date(2026, 1, 3),
    dt.date(2026, 1, 4),
    dt.date(1, 1, 1),
    dt.date(9999, 12, 31),
]
TIMES = [
    dt.datetime(2026, 1, 3),
    dt.datetime(2026, 1, 3, 12),
    dt.datetime(2026, 1, 3, 12, 0, 0, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
]
VALUES: dict[str, Callable[[random.Random], Any]] = {
    "i": lambda r: r.choice([0, 1, 2, 3, -1, -7, 2**31 - 1, -(2**31), r.randrange(-20, 20)]),
    "j": lambda r: r.randrange(-3, 4),
    "l": lambda r: r.choice([0, 1, 2, -1, 2**63 - 1, -(2**63), 2**53, 2**53 + 1, 2**31, r.randrange(-20, 20)]),
    "f": lambda r: r.choice([*FLOATS[:-3], 3e38, math.nan, math.inf, -math.inf]),
    "h": lambda r: r.choice([0.1, 0.5, 1.0, 0.25, -0.1]),
    "g": lambda r: r.choice(FLOATS),
    "x": lambda r: r.choice([0.1, 0.5, 2.0, -3.25, 2.675, 1e-3, 0.0, float(r.randrange(-9, 9)) / 8]),
    "p": lambda r: r.choice([Decimal("2.01"), Decimal("-2.55"), Decimal("0.20"), Decimal("1.10"), Decimal("0.00"), Decimal("9999999.99"), Decimal(r.randrange(-500, 500)) / 100]),
    "q": lambda r: Decimal(r.randrange(-99999, 99999)).scaleb(-4),
    "w": lambda r: r.choice([Decimal("123456789012345678.123456"), Decimal("-0.000001"), Decimal("0.1"), Decimal(r.randrange(-10**9, 10**9)).scaleb(-6)]),
    "b": lambda r: r.random() < 0.5,
    "c": lambda r: r.random() < 0.5,
    "s": lambda r: r.choice(TEXTS),
    "u": lambda r: r.choice(["a", "b", "ab", "1", "2"]),
    "d": lambda r: r.choice(DAYS),
    "e": lambda r: r.choice(DAYS[:4]),
    "t": lambda r: r.choice(TIMES),
    "z": lambda r: r.choice(TIMES).replace(tzinfo=dt.UTC),
    "y": lambda r: r.choice([b"", b"\x00", b"\x01\xff", b"a"]),
}  # fmt: skip
LISTS: dict[str, tuple[pa.DataType, str]] = {
    "li": (pa.int32(), "i"), "lf": (pa.float32(), "h"), "ld": (pa.decimal128(9, 2), "p"), "ls": (pa.string(), "s"),
    "le": (pa.date32(), "e"),
}  # fmt: skip
"""Columns of lists: type of their elements, and the column whose values these are drawn from"""
INTEGERS, FLOATING, DECIMALS = ("i", "j", "l"), ("f", "h", "g", "x"), ("p", "q", "w")
OFFSETS = [dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), dt.timezone(-dt.timedelta(hours=3, minutes=30))]
SIGNS = ("=", "<>", "!=", "<", "<=", ">", ">=", "==")
WAYS = ("", " ASC", " DESC", " NULLS LAST", " NULLS FIRST", " DESC NULLS FIRST", " DESC NULLS LAST")
COMPUTED = (
    *("b IS TRUE", "b IS NOT FALSE", "b <> c", "NULL", "j = i", "i + 1 > j", "coalesce(b, c)", "upper(s) = 'A'"),
    *("s LIKE '%b'", "s ILIKE 'A%'", "if(b, c, true)", "CAST(x AS INT) = 2", "length(s) = 1", "i = NULL", "0.1 = 0.10"),
)
"""Conditions that are to be computed: they are refused, or what they are in Spark"""


def rows_of(rng: random.Random) -> pa.Table:
    """One column of each name, about a sixth of it null; `id` counts, `v` is a vector."""
    columns = {
        name: pa.array([None if rng.random() < 1 / 6 else VALUES[name](rng) for _ in range(ROWS)], kind)
        for name, kind in COLUMNS.items()
    }
    for name, (kind, values) in LISTS.items():
        lists = [
            [None if rng.random() < 0.2 else VALUES[values](rng) for _ in range(number % 4)] for number in range(ROWS)
        ]
        columns[name] = pa.array([None if rng.random() < 0.1 else one for one in lists], pa.list_(kind))
    vectors = pa.array([[float(number // 4), 0.0] for number in range(ROWS)], pa.list_(pa.float32()))
    return pa.table({"id": pa.array(range(ROWS), pa.int64()), **columns, "v": vectors})


class Drawn:
    """Draws texts. `parameters` are what the texts name."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.parameters: dict[str, Any] = {}

    def condition(self, depth: int = 3) -> str:
        rng, kind = self.rng, self.rng.random()
        if depth <= 0 or kind < 0.35:
            return self._leaf() if rng.random() < 0.97 else rng.choice(COMPUTED)
        if kind < 0.5:
            return f"NOT {self._maybe_bare(self.condition(depth - 1))}"
        word = rng.choice(["AND", "OR"])
        return f"{self._maybe_bare(self.condition(depth - 1))} {word} {self._maybe_bare(self.condition(depth - 1))}"

    def order(self) -> str:
        """Keys of an ORDER BY that leaves no ties."""
        rng = self.rng
        keys = [rng.choice([*COLUMNS]) for _ in range(rng.randrange(1, 3))]
        return ", ".join([f"{key}{rng.choice(WAYS)}" for key in keys] + [f"id{rng.choice(WAYS[:3])}"])

    def statement(self) -> str:
        """A whole query around the nearest rows: `{distance}` is the distance, `{table}` the table. In order, no ties."""
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice([self._all_within, self._layers])()
        first, second = rng.choice(["id", "id DESC", "i, id", "s DESC, id", "b, id DESC"]), self.order()
        inner = rng.choice(
            [
                "*, {distance} AS far",
                "id, i, s, b, x, p, {distance} AS far",
                "id, i, b AS s, s AS b, x, p, {distance} AS far",
            ]
        )
        where = f"WHERE {self.condition(1)} " if rng.random() < 0.5 else ""
        count = rng.randrange(0, ROWS)
        nearest = f"SELECT {inner} FROM {{table}} {where}ORDER BY far, {first} LIMIT {count}"
        if rng.random() < 0.2:
            products = nearest.replace(
                "{distance}", f"inner_product(v, array({rng.choice(['1.0, 2.0', '-1, 0', '0.5D, 1'])}))"
            )
            return products.replace("BY far", "BY far DESC")
        if rng.random() < 0.25:
            return nearest
        if inner[0] != "*":
            orders = [
                "far DESC, id",
                "i DESC NULLS LAST, id",
                "n, id",
                "x, far, id",
                "2, id",
                "(2) DESC, id",
                "k.i, id",
            ]
            second = rng.choice(orders)
        outer = f"SELECT {rng.choice(['id, x AS n, far', 'x AS n, i AS m, id', 'k.id, k.p AS n'])} FROM {{near}}"
        conditions = ["far < 5 AND id > 3", "k.i IS NOT NULL", "far BETWEEN 1 AND 7 OR i = 1", "NOT far > 3.5"]
        where = f" WHERE {rng.choice(conditions)}" if rng.random() < 0.6 else ""
        cut = rng.choice(["", f" LIMIT {rng.randrange(1, 12)}", f" LIMIT 7 OFFSET {rng.randrange(0, 5)}"])
        rest = f"{where} ORDER BY {second}{cut}"
        if rng.random() < 0.4:
            return f"WITH k AS ({nearest}) {outer.format(near='k')}{rest}"
        return f"{outer.format(near=f'({nearest}) AS k')}{rest}"

    def _all_within(self) -> str:
        """All within a distance; of inner products, those that are large enough."""
        rng = self.rng
        nearest, limit, sign = (
            "{distance}",
            rng.choice(["3", "4.5", "-1", "0", "6D", self._parameter(2.5)]),
            rng.choice(["<", "<="]),
        )
        bound = f"{nearest} {sign} {limit}"
        kind = rng.random()
        if kind < 0.2:
            bound = f"{limit} >{sign[1:]} {nearest}"
        elif kind < 0.4:
            bound = f"{nearest} BETWEEN {rng.choice(['0', '2', '3'])} AND {limit}"
        elif kind < 0.6:
            more = f"{nearest} {rng.choice(['<', '>', '>=', '<>'])} {rng.choice(['1', '2.0', '3'])}"
            bound = f"{bound} AND {rng.choice([more, f'({more} OR {self._leaf()})'])}"
        elif kind < 0.8:
            nearest = f"inner_product(v, array({rng.choice(['1.0, 2.0', '0.5D, 1'])}))"
            bound = f"{nearest} >{sign[1:]} {limit}"
        outputs = rng.choice(["id, s", f"id, {nearest} AS far", f"{nearest} AS far, id", "id, x AS n"])
        where = rng.choice([bound, f"{bound} AND ({self.condition(1)})", f"({self.condition(1)}) AND {bound}"])
        order = rng.choice(["id", f"{nearest}, id DESC", f"{nearest} DESC, id", "1 DESC, id", "(1), id", self.order()])
        skipped = "" if order.startswith(nearest) else f" OFFSET {rng.randrange(0, 9)}"
        cut = rng.choice(["", f" LIMIT {rng.randrange(0, 9)}", f" LIMIT 5{skipped}"])
        return f"SELECT {outputs} FROM {{table}} WHERE {where} ORDER BY {order}{cut}"

    def _layers(self) -> str:
        """Queries around queries, whose names hide those of the columns that they read."""
        rng = self.rng
        names, source, alias, named = ["j", "x", "h", "p", "q"], "{table}", "", []
        for layer in range(rng.randrange(2, 5)):
            outputs, names_then = self._renamed(names, alias)
            if layer and rng.random() < 0.3:
                outputs, names_then = (
                    [rng.choice(["*", f"{alias}.*"]), f"far AS r{layer}"],
                    [*names, f"r{layer}"],
                )
            else:
                outputs = [*outputs, "id", "far" if layer else "{distance} AS far"]
                rng.shuffle(outputs)
            query = f"SELECT {', '.join(outputs)} FROM {source}"
            if rng.random() < 0.3:
                query += f" WHERE {rng.choice(names)} {rng.choice(SIGNS)} {rng.choice(['1', '0.5', '-1'])}"
            if layer and rng.random() < 0.25:
                query += f" ORDER BY far{rng.choice(['', f', {names_then[0]}'])}, id LIMIT {rng.randrange(5, 30)}"
            names, alias = names_then, f"k{layer}"
            source = f"({query}) AS {alias}"
            if rng.random() < 0.3:
                named.append(f"{alias} AS ({query})")
                source = alias
        outputs, names_then = self._renamed(names, alias)
        keys = [rng.choice([*names, *names_then, *(f"{alias}.{name}" for name in names)]) for _ in range(2)]
        keys[1] = rng.choice([keys[1].upper(), f"{keys[1]} DESC", "2", "(1) DESC"])
        within = f"SELECT {', '.join(outputs)}, id FROM {source} WHERE far < {rng.choice(['6', '99'])}"
        before = f"WITH {', '.join(named)} " if named else ""
        return f"{before}{within} ORDER BY {', '.join(keys)}, id"

    def _renamed(self, names: list[str], alias: str) -> tuple[list[str], list[str]]:
        """Outputs of columns of these names, and the names that they have."""
        rng = self.rng
        outputs: dict[str, str] = {}
        for new_name in rng.sample(["j", "x", "h", "p", "q", "n"], 5):
            name = rng.choice(names)
            column = f"{alias}.{name}" if alias and rng.random() < 0.3 else name
            if rng.random() < 0.6:
                outputs.setdefault(new_name, f"{column} AS {new_name}")
            else:
                cast = "CAST({} AS DOUBLE)" if rng.random() < 0.05 else "{}"
                outputs.setdefault(name, rng.choice(["{}", "({})", cast]).format(column))
        return list(outputs.values()), list(outputs)

    def _text(self) -> str:
        text = self.rng.choice(TEXTS)
        return self.rng.choice([quoted(self.rng, text), quoted(self.rng, text), self._parameter(text)])

    def _leaf(self) -> str:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.12:
            return f"{rng.choice([*COLUMNS])} IS {rng.choice(['', 'NOT '])}NULL"
        if kind < 0.18:
            return rng.choice(
                [
                    *("b", "c", "NOT b", "b = true", "b <> false", "true", "b = false", "b < true", "1 = 1", "1 <> 1"),
                    *(
                        "b IN (true, false)",
                        "! b",
                        "b BETWEEN false AND true",
                        f"b = {self._parameter(rng.random() < 0.5)}",
                    ),
                ]
            )
        if kind < 0.21:
            of, constant = (
                rng.choice(["y", "y", "X'01ff'"]),
                lambda: rng.choice(
                    [
                        "X''",
                        "x'00'",
                        "X'1ff'",
                        "X'61'",
                        self._parameter(rng.choice([b"", b"a", b"\x01\xff"])),
                        "NULL",
                    ]
                ),
            )
            return rng.choice(
                [
                    f"{of} {rng.choice(SIGNS)} {constant()}",
                    f"{of} IN ({constant()}, {constant()})",
                    f"{of} BETWEEN {constant()} AND {constant()}",
                ]
            )
        if kind < 0.26:
            return f"isnan({rng.choice(FLOATING)})"
        if kind < 0.34:
            pattern = rng.choice(["a%", "ab%", "it's%", "%", "A%", "ß%", "😀%", "a\\_b", "%b", "_%", ""])
            word = rng.choice(["LIKE", "NOT LIKE"])
            return f"{rng.choice(['s', 'u'])} {word} {quoted(rng, pattern)}"
        if rng.random() < 0.06:
            return self._contains()
        of, constant = self._sides()
        no = rng.choice(["", "", "NOT "])
        if kind < 0.48:
            return f"{of()} {no}IN ({', '.join(constant() for _ in range(rng.randrange(1, 5)))})"
        if kind < 0.58:
            return f"{of()} {no}BETWEEN {constant()} AND {constant()}"
        left, right = of(), constant()
        if rng.random() < 0.2:
            left, right = right, left
        return f"{left} {rng.choice(SIGNS)} {right}"

    def _contains(self) -> str:
        rng = self.rng
        numbers = ["1", "0", "-1", "2.0", "1.5", "3L", "1e0", "0.1", "-0.0D", "2147483648", "'1'", "NULL"]
        constants = {
            "ls": [quoted(rng, rng.choice(TEXTS)), self._parameter(rng.choice(TEXTS))],
            "le": ["DATE '2026-01-03'", "'2026-01-03'", self._parameter(rng.choice(DAYS))],
            "ld": [*numbers, "2.01", "2.005", "-2.550", self._parameter(Decimal("1.1"))],
        }
        name = rng.choice([*LISTS])
        numbers += [self._parameter(rng.choice([1, 0.1, 2.5, math.nan, np.float32(0.1)])), "CAST(0.1 AS FLOAT)"]
        return f"array_contains({name}, {rng.choice(constants.get(name, numbers))})"

    def _sides(self) -> tuple[Callable[[], str], Callable[[], str]]:
        """(what is compared, with what)."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.6:
            return self._number_column, self._number_constant
        if kind < 0.75:
            return lambda: rng.choice("su"), self._text
        if kind < 0.87:
            moments = [
                "'2026-01-03'",
                "'1969-12-31'",
                "DATE '2026-01-03'",
                "TIMESTAMP '2026-01-03 12:00:00'",
                "TIMESTAMP_NTZ '2026-01-03 00:00:00'",
            ]
            return lambda: rng.choice("de"), lambda: rng.choice(
                [*moments, self._parameter(rng.choice([*DAYS, *TIMES]))]
            )
        if kind < 0.94:
            texts = [f"'{moment}'" for moment in TIMES] + [
                "'2026-01-03'",
                "DATE '2026-01-03'",
                "TIMESTAMP_NTZ '2026-01-03 12:00:00'",
                "TIMESTAMP '2026-01-03 12:00:00'",
            ]
            return lambda: "t", lambda: rng.choice([*texts, self._parameter(rng.choice([*TIMES, *DAYS]))])
        zoned = [f"TIMESTAMP '{moment}{zone}'" for moment in TIMES for zone in ("Z", "+00:00", "-08:00")]
        return lambda: "z", lambda: rng.choice(
            [*zoned, self._parameter(rng.choice(TIMES).replace(tzinfo=rng.choice(OFFSETS)))]
        )

    def _number_column(self) -> str:
        return self.rng.choice([*INTEGERS, *FLOATING, *DECIMALS])

    def _number_constant(self) -> str:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.3:
            return rng.choice(
                [
                    "0",
                    "1",
                    "2",
                    "-1",
                    "7",
                    "3",
                    "2147483647",
                    "-2147483648",
                    "2147483648",
                    "9007199254740993",
                    "9223372036854775807",
                    "-9223372036854775808",
                    "9223372036854775808",
                ]
            )
        if kind < 0.6:
            return rng.choice(
                [
                    "0.1",
                    "0.2",
                    "0.3",
                    "-2.55",
                    "2.01",
                    "1.10",
                    "0.10",
                    "2.5",
                    "4.5",
                    "0.255",
                    "1.",
                    ".5",
                    "100.000",
                    "0.00",
                    "123456789012345678.123456",
                    "16777216.5",
                ]
            )
        if kind < 0.75:
            numbers = [
                "1e0",
                "1e-1",
                "2.5e0",
                "1E10",
                "0.1D",
                "1.5D",
                "1e300",
                "-0.0D",
                "3L",
                "-1e-1",
                "0.1e0F",
                "1e5D",
            ]
            odd = ["- -1", "-(2.5)", "+7", "1e-400", "007", "00.10", "CAST(1e300 AS BIGINT)", "CAST(0.1 AS FLOAT)"]
            return rng.choice([*numbers, *odd])
        if kind < 0.82:
            return rng.choice(["'1'", "'0.1'", "'-2.55'", "'2.01'", "'1e0'", "'inf'", "'7'"])
        return self._parameter(
            rng.choice(
                [
                    0,
                    1,
                    -1,
                    2.5,
                    0.1,
                    -0.0,
                    math.nan,
                    math.inf,
                    Decimal("0.1"),
                    Decimal("2.01"),
                    Decimal(3),
                    2**31,
                    10**10,
                    1e300,
                    None,
                    -math.inf,
                    5e-324,
                    2**63,
                    -(2**63),
                    10**30,
                    Decimal("-2.550"),
                    Decimal("1E+3"),
                    Decimal("1E-30"),
                    Decimal("-0.0"),
                    np.float32(0.1),
                    np.int16(7),
                    "2.01",
                ]
            )
        )

    def _parameter(self, value: Any) -> str:
        name = f"v{len(self.parameters)}"
        self.parameters[name] = value
        return f":{name}"

    def _maybe_bare(self, text: str) -> str:
        return text if self.rng.random() < 0.35 else f"({text})"


def quoted(rng: random.Random, text: str) -> str:
    """A text as Spark reads it, in one of its ways. A backslash stands for itself only where two are written."""
    escaped = text.replace("\\", "\\\\").replace("a", rng.choice(["a", "a", "a", "\\u0061", "\\141"]))
    if rng.random() < 0.2:
        return '"' + escaped.replace('"', '\\"') + '"'
    return "'" + escaped.replace("'", rng.choice(["''", "\\'"])) + "'"
