"""Texts of conditions as expressions: PyIceberg's grammar, and a little more.

PyIceberg's parser takes a millisecond, which is longer than most searches. So conditions of the common forms are parsed
here, to the same expression; all other texts, and those in error, go to PyIceberg.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, TypeVar

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    Or,
    Reference,
    parser,
)
from pyiceberg.expressions.literals import DecimalLiteral, Literal, LongLiteral, StringLiteral
from pyparsing import CaselessKeyword, DelimitedList, Group, OpAssoc, Opt, ParseResults, Suppress, infix_notation

from icepuffin.ops.filters.list_predicate import ArrayContains
from icepuffin.ops.filters.literals import is_text

V = TypeVar("V")
_ARRAY_CONTAINS = "array_contains"
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|\w+|\S""")
_UNCLEAR_PATTERN = re.compile(r"_|\\(?!%)")
# Numbers of more than 40 digits are left to the other parser: Python refuses to read thousands. So are texts with half
# of a surrogate pair, which no column has
_COMMON_TOKEN = re.compile(
    r"""[ \t\n\r]*(?:(?P<word>[A-Za-z_][A-Za-z0-9_$]*)|(?P<text>'[^'\\\n\r\ud800-\udfff]*')(?!')"""
    r"""|(?P<real>[+-]?(?:[0-9]{1,40}\.[0-9]{0,40}|\.[0-9]{1,40}))(?![\w.$])"""
    r"""|(?P<whole>[+-]?[0-9]{1,40})(?![\w.$])|(?P<sign><=|<>|>=|==|!=|[<>=(),]))"""
)
_SPACE, _WORD_END = r"[ \t\n\r]*", r"(?![A-Za-z0-9_$])"
_VALUE = r"(?:'[^'\\\n\r\ud800-\udfff]*'(?!')|[+-]?[0-9]{1,40}(?![\w.$]))"
_EACH_VALUE = re.compile(_VALUE)
_LOOK_UP = re.compile(
    rf"{_SPACE}([A-Za-z_][A-Za-z0-9_$]*){_WORD_END}{_SPACE}"
    rf"(?:==?{_SPACE}({_VALUE})|[iI][nN]{_SPACE}\({_SPACE}({_VALUE}(?:{_SPACE},{_SPACE}{_VALUE})*){_SPACE}\))"
    rf"{_SPACE}(?:[aA][nN][dD]{_WORD_END}|(\Z))"
)
"""A comparison of a column with a value or several, and the AND behind it, if the text does not end there"""
_KEYWORDS = frozenset(("and", "or", "not", "is", "in", "null", "nan", "like", "between", "true", "false"))
_COMPARISONS: dict[str, Any] = {
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
    "=": EqualTo,
    "==": EqualTo,
    "!=": NotEqualTo,
    "<>": NotEqualTo,
}
_TESTS: dict[tuple[str, bool], Any] = {
    ("null", False): IsNull,
    ("null", True): NotNull,
    ("nan", False): IsNaN,
    ("nan", True): NotNaN,
}


def parse_condition(text: str) -> BooleanExpression:
    """The expression of a condition.

    Raises ParseException; ValueError for a LIKE with `_` or with a backslash that no `%` follows: PyIceberg takes them
    for the characters, and SQL does not.
    """
    common = _CommonForms(text).whole()
    if common is not None:
        return common
    tokens = _TOKEN.findall(text)
    if any(word.lower() == "like" and _UNCLEAR_PATTERN.search(pattern) for word, pattern in pairwise(tokens)):
        raise ValueError(
            "the _ of LIKE stands for any character, and \\ changes what follows it; conditions know % at the end "
            "alone, and \\% for the character; from Python StartsWith takes a text as it is"
        )
    parsed: BooleanExpression = _GRAMMAR.parse_string(_TOKEN.sub(_with_dots_outside, text), parse_all=True)[0]
    return parsed


def _with_dots_outside(token: re.Match[str]) -> str:
    """A quoted name with its dots outside of quotes, where PyIceberg's grammar takes them: it is one name all the same,
    since no schema has both a column `a.b` and a column `a` with a field `b`.
    """
    name = token[0]
    return name.replace(".", '"."') if name.startswith('"') else name


@dataclass(frozen=True, slots=True)
class LookUp:
    """A comparison that names the values: `column = 'x'`, `column in (1, 2)` or `array_contains(column, 'x')`."""

    column: str
    values: tuple[str | int, ...]
    """All texts, or all whole numbers"""
    of_lists: bool
    """Whether a list has the value, not the column itself"""


def look_ups(where: str | BooleanExpression) -> Sequence[LookUp] | None:
    """The look-ups that a condition joins by AND; None for one of any other form."""
    if isinstance(where, str):
        return _plain_look_ups(where) or _CommonForms(where).look_ups()
    parts: list[LookUp] = []
    left_over = [where]
    while left_over:
        expression = left_over.pop()
        if type(expression) is And:
            left_over += (expression.right, expression.left)
        elif (part := _look_up_of(expression)) is not None:
            parts.append(part)
        else:
            return None
    return parts


def _look_up_of(expression: BooleanExpression) -> LookUp | None:
    """The look-up that an expression is; None for an expression of any other form."""
    literals: Iterable[Any] = ()
    if type(expression) is EqualTo:
        literals = (expression.literal,)
    elif type(expression) is In:
        literals = expression.literals
    elif type(expression) is ArrayContains and not expression.negated:
        literals = (expression.value,)
    kinds = {type(literal) for literal in literals}
    term = getattr(expression, "term", None)
    if kinds not in ({StringLiteral}, {LongLiteral}) or type(term) is not Reference or "." in term.name:
        return None
    values = tuple(literal.value for literal in literals)
    if kinds == {StringLiteral} and not all(map(is_text, values)):
        return None
    return LookUp(term.name, values, of_lists=type(expression) is ArrayContains)


def _plain_look_ups(text: str) -> Sequence[LookUp] | None:
    """Look-ups of columns that hold no lists, in half the time; None for a text of any other form."""
    parts: list[LookUp] = []
    end, is_last = 0, False
    while not is_last:
        part = _LOOK_UP.match(text, end)
        if part is None or part[1].lower() in _KEYWORDS:
            return None
        values = [part[2]] if part[2] else _EACH_VALUE.findall(part[3])
        texts = [value[1:-1] for value in values if value[0] == "'"]
        if texts and len(texts) < len(values):
            return None
        parts.append(LookUp(part[1], tuple(texts or map(int, values)), of_lists=False))
        end, is_last = part.end(), part[4] is not None
    return parts


class _UncommonError(Exception):
    """Raised within this module for a text of another form than the common ones."""


class _CommonForms:
    """Comparisons of a column with a text or a number, IN, IS, `array_contains`; NOT, AND, OR and parentheses."""

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        end, place = len(text.rstrip(" \t\n\r")), 0
        while place < end:
            token = _COMMON_TOKEN.match(text, place)
            if token is None:
                self._tokens = []
                break
            kind, place = str(token.lastgroup), token.end()
            self._tokens.append((kind, token[kind]))
        self._tokens.append(("end", ""))
        self._next = 0

    def whole(self) -> BooleanExpression | None:
        """The expression; None where the text has another form."""
        try:
            expression = self._chain("or", Or, lambda: self._chain("and", And, self._negation))
            self._take("end")
        except (_UncommonError, RecursionError):
            return None
        return expression

    def look_ups(self) -> Sequence[LookUp] | None:
        """The look-ups that AND joins; None where the text has another form."""
        try:
            parts = [self._look_up()]
            while self._takes_word("and"):
                parts.append(self._look_up())
            self._take("end")
        except _UncommonError:
            return None
        return parts

    def _look_up(self) -> LookUp:
        name = self._take("word")
        if name.lower() == _ARRAY_CONTAINS and self._takes("("):
            column = self._name(self._take("word"))
            self._require(",")
            value = self._value()
            self._require(")")
            return LookUp(column, (value,), of_lists=True)
        name = self._name(name)
        if self._takes_word("in"):
            return LookUp(name, self._values(self._value), of_lists=False)
        if self._take("sign") not in ("=", "=="):
            raise _UncommonError
        return LookUp(name, (self._value(),), of_lists=False)

    def _values(self, value: Callable[[], V]) -> tuple[V, ...]:
        self._require("(")
        values = [value()]
        while self._takes(","):
            values.append(value())
        self._require(")")
        if len({type(value) for value in values}) > 1:
            raise _UncommonError
        return tuple(values)

    def _chain(self, word: str, joined: Any, part: Callable[[], BooleanExpression]) -> BooleanExpression:
        parts = [part()]
        while self._takes_word(word):
            parts.append(part())
        expression: BooleanExpression = joined(*parts) if len(parts) > 1 else parts[0]
        return expression

    def _negation(self) -> BooleanExpression:
        return Not(self._negation()) if self._takes_word("not") else self._leaf()

    def _leaf(self) -> BooleanExpression:
        if self._takes("("):
            inner = self._chain("or", Or, lambda: self._chain("and", And, self._negation))
            self._require(")")
            return inner
        name = self._take("word")
        if name.lower() == _ARRAY_CONTAINS and self._takes("("):
            column = self._name(self._take("word"))
            self._require(",")
            value = self._literal()
            self._require(")")
            return ArrayContains(column, value)
        name = self._name(name)
        if self._takes_word("is"):
            negated = self._takes_word("not")
            test: BooleanExpression = self._test(negated=negated)(name)
            return test
        negated = self._takes_word("not")
        if self._takes_word("in"):
            return self._in(name, negated=negated)
        comparison = None if negated else _COMPARISONS.get(self._take("sign"))
        if comparison is None:
            raise _UncommonError
        compared: BooleanExpression = comparison(name, self._literal())
        return compared

    def _test(self, *, negated: bool) -> Any:
        test = _TESTS.get((self._take("word").lower(), negated))
        if test is None:
            raise _UncommonError
        return test

    def _in(self, name: str, *, negated: bool) -> BooleanExpression:
        chosen: Any = NotIn if negated else In
        expression: BooleanExpression = chosen(name, list(self._values(self._literal)))
        return expression

    def _literal(self) -> Literal[Any]:
        kind, text = self._tokens[self._next]
        if kind == "real":
            self._next += 1
            return DecimalLiteral(Decimal(text))
        value = self._value()
        return StringLiteral(value) if isinstance(value, str) else LongLiteral(value)

    def _value(self) -> str | int:
        kind, text = self._tokens[self._next]
        self._next += 1
        if kind == "text":
            return text[1:-1]
        if kind == "whole":
            return int(text)
        raise _UncommonError

    @staticmethod
    def _name(word: str) -> str:
        if word.lower() in _KEYWORDS:
            raise _UncommonError
        return word

    def _take(self, kind: str) -> str:
        own, text = self._tokens[self._next]
        if own != kind:
            raise _UncommonError
        self._next += 1
        return text

    def _takes_word(self, word: str) -> bool:
        kind, text = self._tokens[self._next]
        return self._step(fits=kind == "word" and text.lower() == word)

    def _takes(self, sign: str) -> bool:
        return self._step(fits=self._tokens[self._next] == ("sign", sign))

    def _step(self, *, fits: bool) -> bool:
        self._next += fits
        return fits

    def _require(self, sign: str) -> None:
        if not self._takes(sign):
            raise _UncommonError


def _array_contains(result: ParseResults) -> ArrayContains:
    return ArrayContains(result.column, result.literal)


def _in_mixed_numbers(result: ParseResults) -> BooleanExpression:
    chosen: Any = NotIn if result.negated else In
    expression: BooleanExpression = chosen(result.column, list(result.numbers))
    return expression


_CONTAINS = CaselessKeyword(_ARRAY_CONTAINS) + Suppress("(") + parser.column + Suppress(",") + parser.literal + ")"
_NUMBERS = Group(DelimitedList(parser.decimal | parser.integer))("numbers")
_IN_NUMBERS = parser.column + Opt(parser.NOT)("negated") + parser.IN + "(" + _NUMBERS + ")"
_GRAMMAR = infix_notation(  # type: ignore[no-untyped-call]
    _CONTAINS.set_parse_action(_array_contains)
    | parser.predicate.copy().add_parse_action(parser.handle_always_expression)
    | _IN_NUMBERS.set_parse_action(_in_mixed_numbers),  # which PyIceberg takes for an error
    [
        (Suppress(parser.NOT), 1, OpAssoc.RIGHT, parser.handle_not),
        (Suppress(parser.AND), 2, OpAssoc.LEFT, parser.handle_and),
        (Suppress(parser.OR), 2, OpAssoc.LEFT, parser.handle_or),
    ],
)
_GRAMMAR.parse_with_tabs()
"""PyIceberg's grammar of conditions, `array_contains(column, literal)`, and IN of mixed numbers. Tabs in texts
stay tabs
"""
