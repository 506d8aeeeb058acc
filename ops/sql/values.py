"""Constants in SQL texts: literals, arrays of numbers, and parameters."""

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
from sqlglot import exp

from icepuffin.ops.sql.comparability import CLOCK, DAY, INSTANT
from icepuffin.ops.sql.constants import encodable, plain
from icepuffin.ops.sql.errors import NotIndexableError, SqlError

Node = Any
"""A node of sqlglot's tree, whose classes are not typed"""
DISTANCE = " distance"
"""Column of the distance among the rows of an answer: no SQL text can name it"""
_TIMES = (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ)
_ZONE = re.compile(r"(Z|[+-]\d\d:\d\d)$")


def shown(node: Node) -> str:
    """The node's SQL text, for messages."""
    return str(node.sql(dialect="spark")).replace(f"`{DISTANCE}`", "distance")


class Values:
    """Evaluates constants of one statement, whose parameters all have names."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters

    def evaluate(self, node: Node) -> Any:  # noqa: PLR0911  one per kind of node
        """The Python value: of a number with a point a Decimal, with an exponent a float; of DATE '...' a date.

        Raises NotIndexableError for what is no constant, SqlError for a missing parameter.
        """
        match node:
            case exp.Literal():
                return node.this if node.is_string else number(node.this)
            case exp.Boolean():
                return bool(node.this)
            case exp.Neg():
                return self._minus(node)
            case exp.Paren():
                return self.evaluate(node.this)
            case exp.Cast():
                return self._typed(node)
            case exp.HexString():
                return bytes_of(node)
            case exp.Placeholder():
                return self._parameter(node)
            case exp.Array():
                return [self.evaluate(item) for item in node.expressions]
        raise NotIndexableError(f"{shown(node)} is no constant: give a literal or a parameter")

    def _minus(self, node: Node) -> Any:
        """A number with its sign: at once, as -2^63 is a bigint, and 2^63 alone is not."""
        inner = node.this
        kind = inner.to.this if isinstance(inner, exp.Cast) else None
        literal = inner if kind is None else inner.this
        read = number if kind is None else _SUFFIXES.get(kind)
        if not isinstance(literal, exp.Literal) or literal.is_string or read is None:
            raise NotIndexableError(f"{shown(node)} is no constant: write its value")
        return read(f"-{literal.this}")

    def _typed(self, node: Node) -> Any:
        """Typed texts, such as DATE '2026-01-01', and numbers with a suffix. Other casts are refused."""
        sql_type = node.to.this
        if sql_type in _SUFFIXES and isinstance(node.this, exp.Literal) and not node.this.is_string:  # 1L, 1.5D
            return _SUFFIXES[sql_type](node.this.this)
        value = self.evaluate(node.this)
        if isinstance(value, str) and sql_type in (exp.DType.DATE, *_TIMES) and not node.to.expressions:
            return _time(node, value)
        if sql_type is exp.DType.ARRAY and isinstance(value, list) and node.to.expressions[0].this is exp.DType.DOUBLE:
            return value
        raise NotIndexableError(f"{shown(node)} is no constant: write its value")

    def comparable(self, node: Node) -> Any:
        """The value that a column is compared with. Raises NotIndexableError for null and for lists."""
        value = None if isinstance(node, exp.Null) else self.evaluate(node)
        if value is None:
            raise NotIndexableError(f"no comparison with a null ({shown(node)}) is true: write IS NULL")
        if isinstance(value, list | tuple | dict | np.ndarray):
            raise NotIndexableError(f"{shown(node)} is {value!r:.50}, which no column is compared with")
        return value

    def vector(self, node: Node) -> tuple[float, ...] | bytes:
        """The vector that distances are measured from: numbers, or bytes as a column of bytes has them."""
        value = self.evaluate(node)
        if isinstance(value, bytes):
            return value
        if isinstance(value, list):
            value = [float(item) if isinstance(item, Decimal) else item for item in value]
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise SqlError(
                "the vector to compare with is no list of numbers, but of lists that differ in length"
            ) from error
        if array.ndim != 1 or array.dtype.kind not in "fiu" or not array.size:
            raise SqlError(f"the vector to compare with is no list of numbers, but {_kind(value)}")
        return tuple(array.astype(np.float64).tolist())

    def _parameter(self, node: Node) -> Any:
        if node.name not in self._parameters:
            raise SqlError(
                f"parameter :{node.name} has no value; values are given for: {', '.join(self._parameters) or 'none'}"
            )
        value = self._parameters[node.name]
        return plain(value) if isinstance(value, np.generic) else encodable(value, node.name)


def _kind(value: Any) -> str:
    """The kind of a value that is no vector, in words."""
    match value:
        case []:
            return "an empty list"
        case [str(), *_]:
            return "a list of texts"
        case [*_]:
            return "a list of other values"
    return "a text" if isinstance(value, str) else f"a single {type(value).__name__}"


def _time(node: Node, text: str) -> dt.date:
    """The date or time of a typed text, in the forms that Spark and Python read alike. Without a zone it is a time on
    the session's clock, to be compared with such times alone.
    """
    sql_type, is_plain = node.to.this, _ZONE.search(text) is None
    if sql_type is exp.DType.TIMESTAMPNTZ and not is_plain:
        raise NotIndexableError(f"{shown(node)}: write it without a zone")
    is_day = sql_type is exp.DType.DATE
    form = DAY if is_day else CLOCK if is_plain else INSTANT
    try:
        if form.fullmatch(text):
            return dt.date.fromisoformat(text) if is_day else dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise NotIndexableError(f"{shown(node)}: {error}") from error
    raise NotIndexableError(f"{shown(node)} is not read here: write it as '2026-01-31' or '2026-01-31 08:00:00'")


def bytes_of(node: Node) -> bytes:
    """The bytes of a literal such as X'03ff'; X'3' is one byte."""
    return bytes.fromhex(node.this.rjust(len(node.this) + len(node.this) % 2, "0"))


def double(text: str) -> float:
    """The number as a double. Raises SqlError for one out of range."""
    value = float(text)
    if math.isinf(value):
        raise SqlError(f"{text} is out of the range of double")
    return value


def number(text: str) -> int | float | Decimal:
    """The number: an int or a Decimal, or a float where it has an exponent."""
    if "e" in text.lower():
        return double(text)
    return int(text) if text.removeprefix("-").isdecimal() else Decimal(text)


def _bigint(text: str) -> int:
    """The number as a bigint. Raises NotIndexableError for other numbers, which a cast would change."""
    value = number(text)
    if not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise NotIndexableError(f"{text} is no bigint: write its value")
    return value


_SUFFIXES: dict[Any, Callable[[str], int | float]] = {exp.DType.BIGINT: _bigint, exp.DType.DOUBLE: double}
