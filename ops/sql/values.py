"""Constants in SQL texts: literals, arrays of numbers, and parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from ops.sql.errors import NotIndexableError, SqlError

Node = Any
"""A node of sqlglot's tree, whose classes are not typed"""
TIMES = (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ)


class Values:
    """Evaluates constants of one statement, whose parameters all have names."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters = parameters

    def of(self, node: Node) -> Any:  # noqa: PLR0911  one a kind of node
        """The Python value. Raises NotIndexableError for what is no constant, SqlError for a missing parameter."""
        match node:
            case exp.Literal():
                return node.this if node.is_string else _number(node.this)
            case exp.Boolean():
                return bool(node.this)
            case exp.Neg():
                return -self.of(node.this)
            case exp.Paren():
                return self.of(node.this)
            case exp.Cast():
                return self._typed(node)
            case exp.HexString():
                return bytes_of(node)
            case exp.Placeholder():
                return self._parameter(node)
            case exp.Array():
                return [self.of(item) for item in node.expressions]
        raise NotIndexableError(f"{node.sql()} is no constant: give a literal or a parameter")

    def _typed(self, node: Node) -> Any:
        """Such as DATE '2026-01-01': Iceberg reads the text by the column's type. Other casts would change a value."""
        value, kind = self.of(node.this), node.to.this
        day = kind is exp.DType.DATE and isinstance(value, str) and len(value) == len("2026-01-01")
        time = kind in TIMES and isinstance(value, str)
        if not (day or time or (kind is exp.DType.ARRAY and isinstance(value, list))):
            raise NotIndexableError(f"{node.sql()} is no constant: write its value")
        return value

    def vector(self, node: Node) -> tuple[float, ...]:
        """A vector of numbers."""
        found = np.asarray(self.of(node))
        if found.ndim != 1 or found.dtype.kind not in "fiu" or not found.size:
            raise SqlError(f"the vector to compare with is no list of numbers but {found.dtype} of shape {found.shape}")
        return tuple(found.astype(np.float64).tolist())

    def _parameter(self, node: Node) -> Any:
        if node.name not in self._parameters:
            raise SqlError(f"parameter :{node.name} has no value; given are {', '.join(self._parameters) or 'none'}")
        value = self._parameters[node.name]
        return value.item() if isinstance(value, np.generic) else value


def bytes_of(node: Node) -> bytes:
    """Of X'03ff'; X'3' is one byte as well."""
    return bytes.fromhex(node.this.rjust(len(node.this) + len(node.this) % 2, "0"))


def name_parameters(text: str, parameters: Mapping[str, Any] | Sequence[Any] | None) -> tuple[str, Mapping[str, Any]]:
    """A text whose `?` are `:p1`, `:p2`, ... in the order of the text, and the values by name."""
    if isinstance(parameters, Mapping):
        return text, parameters
    tokens = sqlglot.tokenize(text, read="spark") if "?" in text else ()
    places = [token.start for token in tokens if token.token_type is TokenType.PLACEHOLDER]
    given = tuple(parameters or ())
    if places and len(places) != len(given):
        raise SqlError(f"the statement has {len(places)} ?, and {len(given)} values were given")
    for number in range(len(places), 0, -1):
        at = places[number - 1]
        text = f"{text[:at]}:p{number}{text[at + 1 :]}"
    return text, {f"p{number}": value for number, value in enumerate(given, start=1)}


def _number(text: str) -> int | float:
    return int(text) if text.isdecimal() else float(text)
