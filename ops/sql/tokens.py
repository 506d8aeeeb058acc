"""SQL texts as Spark 4 reads them: their parameters, tokens and trees. Imports sqlglot alone, not to delay an error."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from icepuffin.ops.messages import plural
from icepuffin.ops.sql.errors import MAX_DIGITS, NotIndexableError, SqlError
from icepuffin.ops.sql.statements import SearchHints

_SPARK = Spark()
MATCH, HYBRID = "match", "hybrid"
"""Functions that an index alone answers: Spark has none of these names"""
_LITERALS = frozenset(
    {TokenType.STRING, TokenType.RAW_STRING, TokenType.NUMBER, TokenType.HEX_STRING, TokenType.BIT_STRING}
)


_LITERAL = "literal"
"""Mark on a name in a tree"""


class _Parser(SparkParser):
    """Spark's parser with a sign plus, which sqlglot ignores: it casts a text to a number, and types a number anew.

    `match(column, 'words')` is a function as others: sqlglot waits for MySQL's AGAINST.

    It marks the texts and numbers that sqlglot takes for names, as in `id AS "x"`: to Spark they are none.
    """

    UNARY_PARSERS: ClassVar[dict[TokenType, Any]] = {
        **SparkParser.UNARY_PARSERS,
        TokenType.PLUS: lambda self: exp.Anonymous(this="positive", expressions=[self._parse_unary()]),
    }

    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: parse for name, parse in SparkParser.FUNCTION_PARSERS.items() if name != "MATCH"
    }

    def _parse_id_var(self, *arguments: Any, **options: Any) -> Any:
        is_text_or_number = self._curr is not None and self._curr.token_type in _LITERALS
        name = super()._parse_id_var(*arguments, **options)
        return _as_literal(name) if is_text_or_number else name

    def _parse_string_as_identifier(self) -> Any:
        return _as_literal(super()._parse_string_as_identifier())


def _as_literal(name: Any) -> Any:
    if name is not None:
        name.meta[_LITERAL] = True
    return name


def is_literal(node: Any) -> bool:
    """Whether the node is a name that was written as a text or a number."""
    return bool(node.meta.get(_LITERAL))


_ODD = re.compile(r"[0-9.](L|F|E[A-Z]{0,2})\b", re.IGNORECASE)
"""End of texts that sqlglot may read as numbers, and Spark does not"""
_GREATEST_FLOAT = (2 - 2**-23) * 2.0**127


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


def name_parameters(text: str, parameters: Mapping[str, Any] | Sequence[Any] | None) -> tuple[str, Mapping[str, Any]]:
    """A text whose `?` are `:p1`, `:p2`, ... in the order of the text, and the values by name."""
    if isinstance(parameters, Mapping):
        return text, parameters
    tokens = tokens_of(text) if "?" in text else ()
    starts = [token.start for token in tokens if token.token_type is TokenType.PLACEHOLDER]
    values = tuple(() if parameters is None else parameters)
    if starts and len(starts) != len(values):
        raise SqlError(f"the statement has {len(starts)} ?, and got {plural(len(values), 'value')}")
    for number in range(len(starts), 0, -1):
        at = starts[number - 1]
        text = f"{text[:at]}:p{number}{text[at + 1 :]}"
    return text, {f"p{number}": value for number, value in enumerate(values, start=1)}


HINTS = tuple(hint.name for hint in fields(SearchHints))
"""Names of the hints to a search. Others are Spark's"""


def hints_of(tree: Any) -> list[tuple[str, Any]]:
    """(name, node) of the hints to searches, of all SELECTs of a statement."""
    nodes = [node for hint in tree.find_all(exp.Hint) for node in hint.expressions]
    named = [(str(node.this).lower(), node) for node in nodes]
    return [(name, node) for name, node in named if name in HINTS]


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
    for token in tokens if len(text) > MAX_DIGITS else ():
        if token.token_type is TokenType.NUMBER and token.end - token.start >= MAX_DIGITS:
            raise NotIndexableError(f"it has a number of more than {MAX_DIGITS:,} digits")
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
