"""Statements that no index answers, as text for Spark: distances as formulas, parameters as literals.

All else stays as it is written: the text is edited in place. Printed from sqlglot's tree, it might have functions that
Spark lacks or reads differently.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlglot.tokenizer_core import Token, TokenType

from icepuffin.ops.sql.clauses import DISTANCES
from icepuffin.ops.sql.constants import encodable, plain, written
from icepuffin.ops.sql.errors import SqlError
from icepuffin.ops.sql.statements import SparkStatement
from icepuffin.ops.sql.tokens import tokens_of
from icepuffin.ops.table.snapshots import with_zone

_DOT = "aggregate(zip_with({a}, {b}, (x, y) -> CAST(x AS DOUBLE) * CAST(y AS DOUBLE)), 0D, (s, v) -> s + v)"
_GAP = "aggregate(zip_with({a}, {b}, (x, y) -> power(CAST(x AS DOUBLE) - CAST(y AS DOUBLE), 2)), 0D, (s, v) -> s + v)"
_BYTE = "CAST(conv(hex(substr(p.{}, i, 1)), 16, 10) AS INT)"
_BITS = f"aggregate(sequence(1, length(p.a)), 0D, (s, i) -> s + bit_count({_BYTE.format('a')} ^ {_BYTE.format('b')}))"
_FORMULAS = {
    "l2_distance": f"sqrt({_GAP})",
    "inner_product": _DOT,
    "cosine_distance": (
        f"1 - try_divide({_DOT}, sqrt({_DOT.replace('{b}', '{a}')}) * sqrt({_DOT.replace('{a}', '{b}')}))"
    ),
    "hamming_distance": (  # {a} and {b} stand outside of every lambda: its variables hide columns of their names
        "transform(array(named_struct('a', {a}, 'b', {b})), "
        f"p -> CASE WHEN length(p.a) = length(p.b) AND length(p.a) > 0 THEN {_BITS} END)[0]"
    ),
}
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}

_TRAVEL = re.compile(r"\b(TIMESTAMP|SYSTEM_TIME)\s+AS\s+OF\b", re.IGNORECASE)
_TIMES = ("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "DATE")
"""Types whose texts Spark reads in its session's time zone, or whose zone it ignores"""
_WITHOUT_ZONE = re.compile(r"\s*(today|tomorrow|yesterday|[\dT\s:.+-]*)\s*", re.IGNORECASE)
"""Texts that Spark may read as times without a zone"""


def for_spark(statement: SparkStatement) -> str:
    """The text for Spark. `TIMESTAMP AS OF` without a zone gets UTC: Spark would read it in its session's zone.

    Raises SqlError for a missing parameter.
    """
    return _travelling_in_utc(_Text(statement).written(0, None))


def _travelling_in_utc(text: str) -> str:
    """The text with a zone at each `TIMESTAMP AS OF '...'` that has none."""
    tokens = [] if _TRAVEL.search(text) is None else tokens_of(text)
    words = [token.text.upper() for token in tokens]
    for index in range(len(tokens) - 4, -1, -1):
        if words[index] in ("TIMESTAMP", "SYSTEM_TIME") and words[index + 1 : index + 3] == ["AS", "OF"]:
            time = _constant_time(tokens, words, index + 3)
            if time is not None:
                replacement = f"{'TIMESTAMP ' if time.typed else ''}'{with_zone(time.moment).isoformat()}'"
                text = f"{text[: tokens[index + 3].start]}{replacement}{text[tokens[time.last].end + 1 :]}"
    return text


@dataclass(frozen=True, slots=True)
class _ConstantTime:
    """A time in a text."""

    moment: datetime
    last: int
    """The last of its tokens"""
    typed: bool
    """Whether it has a type, such as DATE '2026-01-01'"""

    def of_type(self, sql_type: str, last: int) -> "_ConstantTime":
        moment = (
            self.moment.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
            if sql_type == "DATE"
            else self.moment
        )
        return _ConstantTime(moment, last, typed=True)


def _constant_time(tokens: list[Token], words: list[str], first: int) -> _ConstantTime | None:
    """The time that token `first` begins; None for other expressions, which Spark evaluates.

    Raises SqlError for a text that only Spark may read as a time without a zone.
    """
    if first >= len(tokens):
        return None
    word, follows = words[first], words[first + 1 : first + 2]
    time: _ConstantTime | None = None
    if tokens[first].token_type in (TokenType.STRING, TokenType.RAW_STRING):
        time = _time_of(tokens[first].text, first)
    elif word == "(" or follows == ["("]:
        inner = _constant_time(tokens, words, first + (1 if word == "(" else 2))
        after = [] if inner is None else words[inner.last + 1 : inner.last + 4]
        if inner is None:
            return None
        if word in ("CAST", "TRY_CAST") and after[:1] == ["AS"] and after[1] in _TIMES and after[2:] == [")"]:
            time = inner.of_type(after[1], inner.last + 3)
        elif word in _TIMES and after[:1] == [")"]:
            time = inner.of_type(word, inner.last + 1)
        elif word == "(" and after[:1] == [")"]:
            time = replace(inner, last=inner.last + 1)
    elif word in _TIMES and follows and tokens[first + 1].token_type is TokenType.STRING:
        inner = _time_of(tokens[first + 1].text, first + 1)
        time = inner and inner.of_type(word, first + 1)
    while time is not None and words[time.last + 1 : time.last + 2] == ["::"]:
        sql_type = words[time.last + 2]
        time = time.of_type(sql_type, time.last + 2) if sql_type in _TIMES else None
    return time


def _time_of(text: str, index: int) -> _ConstantTime | None:
    try:
        return _ConstantTime(datetime.fromisoformat(text), index, typed=False)
    except ValueError:
        if _WITHOUT_ZONE.fullmatch(text) is None:
            return None  # no time, or one with a zone
        raise SqlError(f"TIMESTAMP AS OF {text!r}: it is a time, such as '2026-11-20 08:00:00'") from None


class _Text:
    """A statement's text, in which some tokens are to be replaced."""

    def __init__(self, statement: SparkStatement) -> None:
        self._text, self._parameters, self._names = statement.text, statement.parameters, statement.placeholders
        self._tokens = tokens_of(statement.text)

    def written(self, first: int, last: int | None) -> str:
        """The text of the tokens [first, last), with replacements."""
        last = len(self._tokens) if last is None else last
        if first >= last and self._tokens:
            return ""
        whole = first == 0 and last == len(self._tokens)
        position = 0 if whole else self._tokens[first].start
        end = len(self._text) if whole else self._tokens[last - 1].end + 1
        parts = []
        for start, stop, replacement in self._parts(first, last):
            parts += [self._text[position:start], replacement]
            position = stop
        return "".join([*parts, self._text[position:end]])

    def _parts(self, first: int, last: int) -> Iterator[tuple[int, int, str]]:
        """(start, end, replacement) of the parts of the text that change."""
        number = first
        while number < last:
            token = self._tokens[number]
            after = self._tokens[number + 1] if number + 1 < last else None
            if token.token_type is TokenType.COLON and after is not None and after.text in self._names:
                yield token.start, after.end + 1, written(plain(self._value(after.text)))
                number += 1
            elif after is not None and after.token_type is TokenType.L_PAREN and token.text.lower() in DISTANCES:
                until, arguments = self._arguments(number + 2, last)
                if len(arguments) != 2:
                    quoted = self._text[token.start : self._tokens[until].end + 1]
                    raise SqlError(f"{quoted}: a distance is of two vectors")
                left, right = (self.written(*argument) for argument in arguments)
                formula = _FORMULAS[token.text.lower()].replace("{a}", "\0").replace("{b}", right).replace("\0", left)
                yield token.start, self._tokens[until].end + 1, f"({formula})"
                number = until
            number += 1

    def _arguments(self, first: int, last: int) -> tuple[int, list[tuple[int, int]]]:
        """(number of the closing token, range of tokens of each argument)."""
        depth, argument_start, arguments = 0, first, []
        for number in range(first, last):
            token: Token = self._tokens[number]
            closes = depth == 0 and token.token_type is TokenType.R_PAREN
            if closes or (depth == 0 and token.token_type is TokenType.COMMA):
                arguments.append((argument_start, number))
                argument_start = number + 1
            if closes:
                return number, arguments
            depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        raise SqlError("a parenthesis is not closed")

    def _value(self, name: str) -> Any:
        if name not in self._parameters:
            raise SqlError(
                f"parameter :{name} has no value; values are given for: {', '.join(self._parameters) or 'none'}"
            )
        return encodable(self._parameters[name], name)
