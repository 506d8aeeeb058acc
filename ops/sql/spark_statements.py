"""Statements that no index answers, as Spark takes them: to the letter, distances and parameters written out.

The text is not printed from its tree, which would have functions that Spark has not, or means otherwise.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from sqlglot.tokenizer_core import Token, TokenType

from icepuffin.ops.catalog.snapshots import with_zone
from icepuffin.ops.sql.clauses import DISTANCES
from icepuffin.ops.sql.errors import SqlError
from icepuffin.ops.sql.statements import Foreign
from icepuffin.ops.sql.tokens import encodable, plain, tokens_of, written

_DOT = "aggregate(zip_with({a}, {b}, (x, y) -> CAST(x AS DOUBLE) * CAST(y AS DOUBLE)), 0D, (s, v) -> s + v)"
_GAP = "aggregate(zip_with({a}, {b}, (x, y) -> power(CAST(x AS DOUBLE) - CAST(y AS DOUBLE), 2)), 0D, (s, v) -> s + v)"
_FORMULAS = {
    "l2_distance": f"sqrt({_GAP})",
    "inner_product": _DOT,
    "cosine_distance": (
        f"1 - try_divide({_DOT}, sqrt({_DOT.replace('{b}', '{a}')}) * sqrt({_DOT.replace('{a}', '{b}')}))"
    ),
}
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}

_TRAVEL = re.compile(r"\b(TIMESTAMP|SYSTEM_TIME)\s+AS\s+OF\b", re.IGNORECASE)
_ON_A_CLOCK = ("TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "DATE")
"""What Spark reads by its session's zone, or passes a zone over in"""
_WAYS = [
    [*travel, *literal]
    for travel in (["TIMESTAMP", "AS", "OF"], ["SYSTEM_TIME", "AS", "OF"])
    for literal in ([], ["TIMESTAMP"], *([name] for name in _ON_A_CLOCK), ["CAST", "("])
]
"""What stands before the text of a time"""


def for_spark(statement: Foreign) -> str:
    """A text without distances and parameters is passed on to the letter, but for times to travel to: without a zone
    they are UTC here, and Spark would read them by its session's. Raises SqlError for a missing parameter.
    """
    return _travelling_in_utc(_Text(statement).written(0, None))


def _travelling_in_utc(text: str) -> str:
    """The text with a zone at each `TIMESTAMP AS OF '...'` that has none."""
    tokens = [] if _TRAVEL.search(text) is None else tokens_of(text)
    words = [token.text.upper() for token in tokens]
    for at in range(len(tokens) - 1, 2, -1):
        before = words[max(0, at - 5) : at]
        if tokens[at].token_type is TokenType.STRING and any(before[-len(way) :] == way for way in _WAYS):
            with suppress(ValueError):  # no time: Spark raises the error
                time = with_zone(datetime.fromisoformat(tokens[at].text)).isoformat()
                on_a_clock = words[at - 1] in _ON_A_CLOCK
                start = tokens[at - 1 if on_a_clock else at].start
                instead = f"TIMESTAMP '{time}'" if on_a_clock else f"'{time}'"
                text = f"{text[:start]}{instead}{text[tokens[at].end + 1 :]}"
    return text


class _Text:
    """A text whose tokens say what is to be replaced."""

    def __init__(self, statement: Foreign) -> None:
        self._text, self._parameters, self._names = statement.text, statement.parameters, statement.placeholders
        self._tokens = tokens_of(statement.text)

    def written(self, first: int, last: int | None) -> str:
        """Of the tokens from `first` until before `last`."""
        last = len(self._tokens) if last is None else last
        if first >= last and self._tokens:
            return ""
        whole = first == 0 and last == len(self._tokens)
        at = 0 if whole else self._tokens[first].start
        end = len(self._text) if whole else self._tokens[last - 1].end + 1
        parts = []
        for start, stop, instead in self._parts(first, last):
            parts += [self._text[at:start], instead]
            at = stop
        return "".join([*parts, self._text[at:end]])

    def _parts(self, first: int, last: int) -> Iterator[tuple[int, int, str]]:
        """(start, end, what stands there instead) in the text."""
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
                    said = self._text[token.start : self._tokens[until].end + 1]
                    raise SqlError(f"{said}: a distance is of two vectors")
                left, right = (self.written(*argument) for argument in arguments)
                formula = _FORMULAS[token.text.lower()].replace("{a}", "\0").replace("{b}", right).replace("\0", left)
                yield token.start, self._tokens[until].end + 1, f"({formula})"
                number = until
            number += 1

    def _arguments(self, first: int, last: int) -> tuple[int, list[tuple[int, int]]]:
        """(the token that closes them, the tokens of each)."""
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
