"""SQL texts as Spark 4 reads them: their tokens, and constants written as it reads them."""

import datetime as dt
import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import numpy as np
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from icepuffin.ops.sql.errors import NotIndexableError, SqlError

_SPARK = Spark()


class _Parser(SparkParser):
    """Spark's parser with a sign plus, which casts a text to a number: sqlglot ignores it."""

    UNARY_PARSERS: ClassVar[dict[TokenType, Any]] = {
        **SparkParser.UNARY_PARSERS,
        TokenType.PLUS: lambda self: _plus(self._parse_unary()),
    }


def _plus(node: Any) -> Any:
    is_number = isinstance(node, exp.Literal) and not node.is_string
    return node if is_number else exp.Anonymous(this="positive", expressions=[node])


_ODD = re.compile(r"[0-9.](L|F|E[A-Z]{0,2})\b", re.IGNORECASE)
"""End of texts that sqlglot may read as numbers, and Spark does not"""
_GREATEST_FLOAT = float(np.finfo(np.float32).max)


def tokens_of(text: str) -> list[Token]:
    """Tokens of a text. Two quotes within a text stand for one, as in standard SQL; sqlglot would begin a new text."""
    tokens: list[Token] = _SPARK.tokenize(text)
    if text.count("'") + text.count('"') < 4:  # one text at most
        return tokens
    merged: list[Token] = []
    for token in tokens:
        previous = merged[-1] if merged else None
        if _is_text(token) and previous is not None and _is_text(previous):
            same = previous.end + 1 == token.start and text[previous.end] == text[token.start]
            previous.text, previous.end = previous.text + (text[token.start] if same else "") + token.text, token.end
        else:
            merged.append(token)
    return merged


def _is_text(token: Token) -> bool:
    return token.token_type is TokenType.STRING


def trees_of(text: str) -> Sequence[Any]:
    """The statements of a text. Raises NotIndexableError for one in pipes, or with variables that Spark replaces."""
    tokens = tokens_of(text)
    if "${" in text:
        raise NotIndexableError("it has ${")
    if "|>" in text and any(token.token_type is TokenType.PIPE_GT for token in tokens):
        raise NotIndexableError("it has |>")
    for token in tokens if "0x" in text.lower() else ():
        if token.token_type is TokenType.HEX_STRING and text[token.start] == "0":
            raise NotIndexableError(f"{text[token.start : token.end + 1]} is no constant: write X'{token.text}'")
    for token in tokens if _ODD.search(text) else ():
        if token.token_type is TokenType.NUMBER and not _is_number(text[token.start : token.end + 1].upper()):
            raise NotIndexableError(f"{text[token.start : token.end + 1]} is no number")
    return [item for item in _Parser(dialect=_SPARK).parse(tokens, text) if item is not None]


def _is_number(text: str) -> bool:
    """Whether Spark reads the text as a number, such as 3L or 1.5F; the sign is not part of the text."""
    if text.endswith("L"):
        return text[:-1].isdecimal() and int(text[:-1]) <= 2**63
    bare = text.rstrip("BDFSY")
    return not bare.endswith("E") and not (text.endswith("F") and float(bare) > _GREATEST_FLOAT)


def node_of(value: Any) -> Any:  # noqa: PLR0911  one per kind of value
    """A constant in a tree, of the type that Spark gives the value. Raises NotIndexableError."""
    match value:
        case None:
            return exp.Null()
        case bool():
            return exp.Boolean(this=value)
        case int():
            return _number(f"{abs(value)}", negative=value < 0)
        case float():
            return exp.cast(exp.Literal.string(_named(value)), exp.DType.DOUBLE)
        case Decimal() if value.is_finite():
            text = f"{abs(value):f}"
            return _number(text if "." in text else f"{text}.", negative=value < 0)
        case str() | UUID() | dt.time():
            return exp.Literal.string(str(value))
        case bytes():
            return exp.HexString(this=value.hex())
        case dt.datetime():
            kind = exp.DType.TIMESTAMPNTZ if value.tzinfo is None else exp.DType.TIMESTAMPTZ
            return exp.cast(exp.Literal.string(value.isoformat(" ")), kind)
        case dt.date():
            return exp.cast(exp.Literal.string(value.isoformat()), exp.DType.DATE)
    raise NotIndexableError(f"a parameter of type {type(value).__name__} is no constant here")


def _number(text: str, *, negative: bool) -> Any:
    made = exp.Literal.number(text)
    return exp.Neg(this=made) if negative else made


def _named(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def written(value: Any) -> str:  # noqa: PLR0911  one per kind of value
    """A constant as Spark reads it, of the type that `node_of` gives it. Raises SqlError for what is no constant."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int():
            return str(value) if value >= 0 else f"({value})"
        case float():
            return f"CAST('{_named(value)}' AS DOUBLE)"
        case Decimal() if value.is_finite():
            return f"{value:f}BD" if value >= 0 else f"({value:f}BD)"
        case str() | UUID() | dt.time():
            escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
            return "'" + escaped.replace("${", "\\u0024{") + "'"  # Spark replaces ${...}, in texts as well
        case bytes():
            return f"X'{value.hex()}'"
        case dt.datetime():
            name = "TIMESTAMP_NTZ" if value.tzinfo is None else "TIMESTAMP"
            return f"{name} '{value.isoformat(' ')}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
        case np.ndarray() | list() | tuple():
            return f"array({', '.join(written(item) for item in plain(value))})"
    raise SqlError(f"a parameter of type {type(value).__name__} is no constant of SQL")


def encodable(value: Any, name: str) -> Any:
    """The parameter. Raises SqlError for a text that UTF-8 cannot encode, such as half of a surrogate pair."""
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError as error:
        raise SqlError(f"parameter :{name} is no text: {error}") from error
    return value


def plain(value: Any) -> Any:
    """The value, with Python's types in place of numpy's. Raises SqlError for times that Python's cannot hold."""
    if isinstance(value, np.datetime64) and value.dtype == "M8[ns]" and value.astype("M8[us]") == value:
        value = value.astype("M8[us]")
    python_value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, np.datetime64) and isinstance(python_value, int):
        raise SqlError(f"{value} is no time to the microsecond, from year 1 to 9999")
    return python_value
