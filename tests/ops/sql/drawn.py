# ruff: noqa: DTZ001, E501, PLR0911  zoneless times, lists of texts, one return per kind of text
"""Random SQL over one table of every type: rows with extremes, and expressions, conditions and statements on them."""

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
NUMBERS = ("INT", "BIGINT", "DOUBLE", "FLOAT", "DECIMAL(9, 2)", "DECIMAL(38, 6)", "DECIMAL(3, 0)", "DECIMAL(38, 18)")
WRITTEN = ("7", " 12 ", "-3", "2147483648", "9223372036854775807", "1.5", "1e2", "nan", "-inf", "1e400", "", "x", ".5")
"""Texts that are cast to numbers, or are none"""
OFFSETS = [dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), dt.timezone(-dt.timedelta(hours=3, minutes=30))]
SIGNS = ("=", "<>", "!=", "<", "<=", ">", ">=", "==")


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
            return self._leaf(depth)
        if kind < 0.45:
            return f"NOT {self._maybe_bare(self.condition(depth - 1))}"
        if kind < 0.85:
            word = rng.choice(["AND", "OR"])
            return f"{self._maybe_bare(self.condition(depth - 1))} {word} {self._maybe_bare(self.condition(depth - 1))}"
        if kind < 0.9:
            truth = rng.choice(["NULL", "TRUE", "FALSE", "UNKNOWN"])
            return f"({self.condition(depth - 1)}) IS {rng.choice(['', 'NOT '])}{truth}"
        if kind < 0.95:
            return f"CASE WHEN {self.condition(depth - 1)} THEN {self.condition(depth - 1)} ELSE {self.condition(depth - 1)} END"
        return f"coalesce({self.condition(depth - 1)}, {self.condition(depth - 1)})"

    def value(self, depth: int = 3) -> str:
        """Of any type."""
        drawn = self.rng.choice(
            [self.number, self.number, self.number, self.text, self.day, self.condition, self._time, self._outer]
        )
        return drawn(depth)

    def number(self, depth: int = 3) -> str:
        rng, kind = self.rng, self.rng.random()
        if depth <= 0 or kind < 0.3:
            return rng.choice([self._number_column, self._number_column, self._number_constant])()
        one = lambda: self._maybe_bare(self.number(depth - 1))  # noqa: E731
        if kind < 0.65:
            return f"{one()} {rng.choice('+-*/')} {one()}"
        if kind < 0.7:
            return f"-{self._bracketed(self.number(depth - 1))}"
        if kind < 0.8:
            name = rng.choice(
                ["abs", "floor", "ceil", "ceiling", "sqrt", "round", "round", "length", "char_length", "len"]
            )
            if name.endswith(("length", "len")):
                return f"{name}({self.text(depth - 1)})"
            more = f", {rng.choice([0, 1, 2, 3, 5, -1, -2])}" if name == "round" and rng.random() < 0.7 else ""
            return f"{name}({self.number(depth - 1)}{more})"
        if kind < 0.88:
            return self._cast(depth)
        if kind < 0.95:
            return self._chosen(self.number, depth)
        return f"{rng.choice(['coalesce', 'nvl', 'ifnull'])}({self.number(depth - 1)}, {self.number(depth - 1)})"

    def _cast(self, depth: int) -> str:
        rng = self.rng
        kind = rng.choice([*NUMBERS, *NUMBERS[:4]])
        if rng.random() < 0.2:
            return f"CAST('{rng.choice(WRITTEN)}' AS {kind})"
        value = self.number(depth - 1)
        if kind[-1] != ")" and rng.random() < 0.2:
            return f"{kind.lower()}({value})"
        return f"({value})::{kind}" if rng.random() < 0.1 else f"CAST({value} AS {kind})"

    def text(self, depth: int = 2) -> str:
        rng, kind = self.rng, self.rng.random()
        if depth <= 0 or kind < 0.4:
            return rng.choice(["s", "u", "s", quoted(rng, rng.choice(TEXTS)), self._parameter(rng.choice(TEXTS))])
        if kind < 0.6:
            return f"{rng.choice(['upper', 'lower', 'ucase', 'lcase'])}({self.text(depth - 1)})"
        if kind < 0.75:
            return f"concat({self.text(depth - 1)}, {self.text(depth - 1)})"
        if kind < 0.85:
            return f"{self.text(0)} || {self.text(0)}"
        return self._chosen(self.text, depth)

    def day(self, depth: int = 1) -> str:
        if depth <= 0 or self.rng.random() < 0.7:
            day = self.rng.choice(DAYS)
            constants = [f"DATE '{day}'", f"CAST('{day}' AS DATE)", self._parameter(day)]
            return self.rng.choice(["d", "e", *constants, "CAST(t AS DATE)"])
        return self._chosen(self.day, depth)

    def order(self) -> str:
        """Keys of an ORDER BY that leaves no ties."""
        rng = self.rng
        keys = [rng.choice([*COLUMNS, "i + 0.5", "-g", "abs(x)", "upper(s)"]) for _ in range(rng.randrange(1, 3))]
        ways = ["", " ASC", " DESC", " NULLS LAST", " NULLS FIRST", " DESC NULLS FIRST", " DESC NULLS LAST"]
        return ", ".join([f"{key}{rng.choice(ways)}" for key in keys] + [f"id{rng.choice(ways[:3])}"])

    def statement(self) -> str:
        """A whole query around the nearest rows: `{distance}` is the distance, `{table}` the table. In order, no ties."""
        rng = self.rng
        first, second = rng.choice(["id", "-id", "id DESC", "i, id", "s DESC, id", "b, id DESC"]), self.order()
        inner = rng.choice(
            [
                "*, {distance} AS far",
                "id, i, s, b, x, p, {distance} AS far",
                "id, i, b AS s, s AS b, x, p, {distance} AS far",
            ]
        )
        where = f"WHERE {self.condition(1)} " if rng.random() < 0.5 else ""
        count = rng.randrange(0, ROWS)
        if rng.random() < 0.4:
            return rng.choice([self._all_within, self._around_a_projection, self._layers])()
        nearest = f"SELECT {inner} FROM {{table}} {where}ORDER BY far, {first} LIMIT {count}"
        if rng.random() < 0.2:
            products = nearest.replace(
                "{distance}", f"inner_product(v, array({rng.choice(['1.0, 2.0', '-1, 0', '0.5D, 1'])}))"
            )
            return products.replace("BY far", "BY far DESC")
        if rng.random() < 0.25:
            return nearest
        if inner[0] != "*":
            second = rng.choice(
                [
                    "far DESC, id",
                    "i DESC NULLS LAST, id",
                    "n, id",
                    "n + 0 DESC, id DESC",
                    "x, far, id",
                    rng.choice(["2, id", "(2) DESC, id"]),
                    "k.i, id",
                ]
            )
        outer = f"SELECT {rng.choice(['id, -x AS n, far', '-x AS n, i + 0.5 AS m, id', 'k.id, 0 - k.p AS n'])} FROM {{near}}"
        if inner[0] == "*" and second.startswith("n"):
            second = "id"
        where = rng.choice(
            ["", "", " WHERE far < 5 AND id > 3", " WHERE k.i IS NOT NULL", " WHERE far BETWEEN 1 AND 7 OR i = 1"]
        )
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
            rng.choice(["3", "4.5", "-1", "0", "1 + 1", "6D", self._parameter(2.5)]),
            rng.choice(["<", "<="]),
        )
        bound = f"{nearest} {sign} {limit}"
        kind = rng.random()
        if kind < 0.2:
            bound = f"{limit} >{sign[1:]} {nearest}"
        elif kind < 0.4:
            bound = f"{nearest} BETWEEN {rng.choice(['0', '2', '3'])} AND {limit}"
        elif kind < 0.6:
            bound = f"{bound} AND {nearest} {rng.choice(['<', '>', '>=', '<>'])} {rng.choice(['1', '2.0', '3'])}"
        elif kind < 0.8:
            nearest = f"inner_product(v, array({rng.choice(['1.0, 2.0', '0.5D, 1'])}))"
            bound = f"{nearest} >{sign[1:]} {limit}"
        outputs = rng.choice(["id, s", f"id, {nearest} AS far", f"id, round({nearest}, 1) AS r", "id, -x AS n"])
        where = rng.choice([bound, f"{bound} AND ({self.condition(1)})", f"({self.condition(1)}) AND {bound}"])
        order = rng.choice(["id", f"{nearest}, id DESC", f"{nearest} DESC, id", "1 DESC", "(1)", self.order()])
        skipped = "" if order.startswith(nearest) else f" OFFSET {rng.randrange(0, 9)}"
        cut = rng.choice(["", f" LIMIT {rng.randrange(0, 9)}", f" LIMIT 5{skipped}"])
        return f"SELECT {outputs} FROM {{table}} WHERE {where} ORDER BY {order}{cut}"

    def _around_a_projection(self) -> str:
        """A query around one that only projects and filters, so that both are read as one."""
        rng = self.rng
        columns = ["i", "-j AS n", "x", "s", "i + 0.5 AS m", "p * 2 AS q", "length(s) AS l"]
        constants = ["7", "(7)", "+7", "-7", "2147483648", "2.50", "-.5", "1e0", "'7'", "NULL", "true", "-j", "p"]
        inner = ["p", *rng.sample(columns, 3), *(f"{rng.choice(constants)} AS {name}" for name in "ab")]
        names = [item.rsplit(" ", 1)[-1] for item in inner]

        def operand() -> str:
            return rng.choice([*names, *"ppabab", "3", "0.25"])

        def computed() -> str:
            left, right = operand(), operand()
            return rng.choice(
                [
                    *(f"{left} {sign} {right}" for sign in "+-*/"),
                    *(f"-{left}", f"{left} + -({right})", f"coalesce({left}, {right})", f"round({left} / 3, 2)"),
                    f"CASE WHEN {left} > {right} THEN {left} ELSE {right} END",
                ]
            )

        def condition() -> str:
            return rng.choice(
                [
                    f"{operand()} {rng.choice(SIGNS)} {operand()}",
                    f"{operand()} IN ({operand()}, {operand()})",
                    f"{operand()} BETWEEN {operand()} AND {operand()}",
                    f"{rng.choice(names)} IS NOT NULL",
                    f"{computed()} > {operand()}",
                ]
            )

        where = f" WHERE {self.condition(0)}" if rng.random() < 0.3 else ""
        subquery = f"(SELECT id, {', '.join(inner)}, {{distance}} AS far FROM {{table}}{where})"
        outputs = ["id", *rng.sample(names, 2), *(f"{computed()} AS {name}" for name in "ef")]
        rng.shuffle(outputs)
        keys = [rng.choice(["far", "e", "e + 0", "f DESC", "1", "(2) DESC", "a", "b", computed()]) for _ in range(2)]
        more = f" AND {condition()}" if rng.random() < 0.5 else ""
        return f"SELECT {', '.join(outputs)} FROM {subquery} WHERE far < 99{more} ORDER BY {', '.join(keys)}, id"

    def _layers(self) -> str:
        """Queries around queries, whose names hide those of the columns that they read, or are those of casts."""
        rng = self.rng
        names, source, alias, named = ["j", "x", "h", "p", "q"], "{table}", "", []
        for layer in range(rng.randrange(2, 5)):
            outputs, names_then = self._renamed(names, alias)
            if layer and rng.random() < 0.3:
                outputs, names_then = (
                    [rng.choice(["*", f"{alias}.*"]), f"far + {layer} AS r{layer}"],
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
        keys[1] = rng.choice(
            [keys[1].upper(), f"-{keys[1]}", f"{keys[1]} + {keys[0]}", f"{keys[1]} DESC", "2", "(1) DESC"]
        )
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
                value = rng.choice([column, f"-{column}", f"{column} + 1", f"{column} * 0.5", f"coalesce({column}, 7)"])
                outputs.setdefault(new_name, f"{value} AS {new_name}")
            else:
                cast = rng.choice(["CAST({} AS DOUBLE)", "CAST(({}) AS DOUBLE)", "({})::DOUBLE", "double({})"])
                outputs.setdefault(name, rng.choice(["{}", "({})", cast, cast]).format(column))
        return list(outputs.values()), list(outputs)

    def _time(self, _: int) -> str:
        rng = self.rng
        moment = rng.choice(TIMES)
        return rng.choice(
            [
                "t",
                "z",
                f"TIMESTAMP_NTZ '{moment}'",
                f"TIMESTAMP '{moment}+00:00'",
                f"TIMESTAMP '{moment}+05:30'",
                self._parameter(moment),
                self._parameter(moment.replace(tzinfo=rng.choice(OFFSETS))),
                f"CASE WHEN j > 0 THEN z ELSE TIMESTAMP_LTZ '{moment}-08:00' END",
                f"coalesce(t, TIMESTAMP_NTZ '{moment}')",
            ]
        )

    def _outer(self, _: int) -> str:
        rng = self.rng
        inner = self.number(1)
        name = rng.choice(["exp", "ln", "log", "power", "pow"])
        return f"{name}({inner}, {self.number(0)})" if name[0] == "p" else f"{name}({inner})"

    def _leaf(self, depth: int) -> str:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.12:
            return f"{rng.choice([*COLUMNS])} IS {rng.choice(['', 'NOT '])}NULL"
        if kind < 0.18:
            return rng.choice(
                [
                    *("b", "c", "NOT b", "b = true", "b <> c", "true", "NULL", "b = false", "b < c"),
                    *("b IN (true, NULL)", "! b", "b BETWEEN c AND true", f"b = {self._parameter(rng.random() < 0.5)}"),
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
                        "y",
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
                    "length(y) = 1",
                ]
            )
        if kind < 0.26:
            return f"isnan({rng.choice(FLOATING)})"
        if kind < 0.34:
            pattern = rng.choice(["a%", "%b", "a_b", "a\\_b", "a\\%%", "%", "_", "it's", "x_y", "A%", "😀", "ß%", ""])
            word = rng.choice(["LIKE", "NOT LIKE", "ILIKE", "NOT ILIKE"])
            return f"{rng.choice(['s', 'u', 'upper(s)'])} {word} {quoted(rng, pattern)}"
        if rng.random() < 0.06:
            return self._contains()
        of, constant = self._sides(min(depth, 2))
        no = rng.choice(["", "", "NOT "])
        if kind < 0.48:
            return f"{of()} {no}IN ({', '.join(constant() for _ in range(rng.randrange(1, 5)))})"
        if kind < 0.58:
            return f"{of()} {no}BETWEEN {constant()} AND {constant()}"
        left, right = (of(), rng.choice([of, constant, constant])())
        if rng.random() < 0.2:
            left, right = right, left
        return f"{left} {rng.choice(SIGNS)} {right}"

    def _contains(self) -> str:
        rng = self.rng
        numbers = ["1", "0", "-1", "2.0", "1.5", "3L", "1e0", "0.1", "-0.0D", "2147483648", "'1'", "NULL"]
        constants = {
            "ls": [quoted(rng, rng.choice(TEXTS)), self._parameter(rng.choice(TEXTS)), "upper('a')"],
            "le": ["DATE '2026-01-03'", "'2026-01-03'", self._parameter(rng.choice(DAYS))],
            "ld": [*numbers, "2.01", "2.005", "-2.550", self._parameter(Decimal("1.1"))],
        }
        name = rng.choice([*LISTS])
        numbers += [self._parameter(rng.choice([1, 0.1, 2.5, math.nan, np.float32(0.1)])), "CAST(0.1 AS FLOAT)"]
        return f"array_contains({name}, {rng.choice(constants.get(name, numbers))})"

    def _sides(self, depth: int) -> tuple[Callable[[], str], Callable[[], str]]:
        """(what is compared, with what)."""
        rng, kind = self.rng, self.rng.random()
        column = rng.random() < 0.6
        if kind < 0.6:
            return (self._number_column if column else lambda: self.number(depth - 1)), self._number_constant
        if kind < 0.75:
            return (lambda: rng.choice("su")) if column else (lambda: self.text(depth - 1)), lambda: self.text(0)
        if kind < 0.87:
            moments = [
                "'2026-01-03'",
                "'1969-12-31'",
                "DATE '2026-01-03'",
                "TIMESTAMP '2026-01-03 12:00:00'",
                "TIMESTAMP_NTZ '2026-01-03 00:00:00'",
            ]
            return lambda: rng.choice("de"), lambda: rng.choice(
                [*moments, self._parameter(rng.choice([*DAYS, *TIMES])), "e"]
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
        if kind < 0.84:
            return "NULL"
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

    def _chosen(self, branch: Callable[[int], str], depth: int) -> str:
        rng = self.rng
        if rng.random() < 0.3:
            return f"if({self.condition(1)}, {branch(depth - 1)}, {branch(depth - 1)})"
        if rng.random() < 0.3:
            return f"CASE {rng.choice('ijl')} WHEN 1 THEN {branch(depth - 1)} WHEN {rng.choice(['0', '2.0', 'j'])} THEN {branch(depth - 1)} END"
        other = rng.choice(["", f" ELSE {branch(depth - 1)}"])
        guard = rng.choice([self.condition(1), "j <> 0", "i > 0 AND i < 100"])
        return f"CASE WHEN {guard} THEN {branch(depth - 1)}{other} END"

    def _maybe_bare(self, text: str) -> str:
        return text if self.rng.random() < 0.35 else f"({text})"

    def _bracketed(self, text: str) -> str:
        return text if text.isalnum() else f"({text})"


def quoted(rng: random.Random, text: str) -> str:
    """A text as Spark reads it, in one of its ways. A backslash stands for itself only where two are written."""
    escaped = text.replace("\\", "\\\\").replace("a", rng.choice(["a", "a", "a", "\\u0061", "\\141"]))
    if rng.random() < 0.2:
        return '"' + escaped.replace('"', '\\"') + '"'
    return "'" + escaped.replace("'", rng.choice(["''", "\\'"])) + "'"
