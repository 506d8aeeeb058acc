"""Texts of conditions as expressions: PyIceberg's grammar, and a little more.

PyIceberg's parser takes a millisecond, which is longer than most searches. So conditions of the common forms are parsed
here, to the same expression; all other texts, and those in error, go to PyIceberg.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

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
from pyiceberg.expressions.literals import DecimalLiteral, LongLiteral, StringLiteral
from pyparsing import CaselessKeyword, DelimitedList, Group, OpAssoc, Opt, ParseResults, Suppress, infix_notation

from icepuffin.ops.filters.list_predicate import ArrayContains
from icepuffin.ops.table.json_texts import is_text

_ARRAY_CONTAINS = "array_contains"
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|\w+|\S""")
_UNCLEAR_PATTERN = re.compile(r"_|\\(?!%)")
# Numbers of more than 40 digits are left to the other parser: Python refuses to read thousands. So are texts with half
# of a surrogate pair, which no column has
_COMMON_TOKEN = re.compile(
    r"""[ \t\n\r]*(?:(?P<word>[A-Za-z_][A-Za-z0-9_$]*)|(?P<text>'[^'\\\n\r\ud800-\udfff]*')(?!')"""
    r"""|(?P<real>[+-]?(?:[0-9]{1,40}\.[0-9]{0,40}|\.[0-9]{1,40}))(?![\w.$])"""
    r"""|(?P<whole>[+-]?[0-9]{1,40})(?![\w.$])|(?P<sign><=|<>|>=|==|!=|[<>=(),])|(?P<other>[^ \t\n\r]))"""
)
_AND = re.compile(r"[ \t\n\r]+and[ \t\n\r]+", re.IGNORECASE)
_MAX_KEPT, _LONGEST_KEPT = 1 << 16, 200
"""Texts of look-ups that are kept with their meaning, of some 500 bytes each, and characters of such a text"""
_MAX_LONG_KEPT, _LONGEST_LONG_KEPT = 1 << 9, 1 << 12
"""Longer texts that are kept, such as lists of values, of up to 70,000 bytes each, and characters of such a text"""
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
_LITERALS: dict[type, Any] = {str: StringLiteral, int: LongLiteral, Decimal: DecimalLiteral}


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


class LookUp(NamedTuple):
    """A comparison that names the values: `column = 'x'`, `column in (1, 2)` or `array_contains(column, 'x')`.

    Those of texts are found without PyIceberg, whose expressions take longer than most searches.
    """

    column: str
    values: tuple[str | int, ...]
    """All texts, or all whole numbers"""
    of_lists: bool
    """Whether a list has the value, not the column itself"""


def look_ups(where: str | BooleanExpression) -> Sequence[LookUp] | None:
    """The look-ups that a condition joins by AND; None for one of any other form."""
    if isinstance(where, str):
        read: Callable[[str], LookUp | None] = _look_up_of_text
        if len(where) > _LONGEST_KEPT:
            read = _look_up_of_long_text if len(where) <= _LONGEST_LONG_KEPT else _look_up_of_text.__wrapped__
        texts = _AND.split(where)
        found = [part for part in map(read, texts) if part is not None]
        return found if len(found) == len(texts) else _CommonForms(where).look_ups()  # an AND in quotes is none
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


@lru_cache(_MAX_KEPT)
def _look_up_of_text(text: str) -> LookUp | None:
    """The only look-up of a text; None where there are more, or it has another form."""
    parts = _CommonForms(text).look_ups()
    return parts[0] if parts is not None and len(parts) == 1 else None


_look_up_of_long_text = lru_cache(_MAX_LONG_KEPT)(_look_up_of_text.__wrapped__)


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


_Value = str | int | Decimal


class _PredicateParts(NamedTuple):
    """A comparison that PyIceberg has not made yet: that takes longer than to parse its text."""

    operator: Any
    column: str
    values: tuple[_Value, ...]


_Part = LookUp | _PredicateParts | BooleanExpression
_LOOKING_UP = (EqualTo, In, ArrayContains)


class _UncommonError(Exception):
    """Raised within this module for a text of another form than the common ones."""


class _CommonForms:
    """Comparisons of a column with a text or a number, IN, IS, `array_contains`; NOT, AND, OR and parentheses."""

    def __init__(self, text: str) -> None:
        self._tokens = [(str(token.lastgroup), token[token.lastindex or 0]) for token in _COMMON_TOKEN.finditer(text)]
        self._tokens.append(("end", ""))
        self._next = 0

    def whole(self) -> BooleanExpression | None:
        """The expression; None where the text has another form."""
        try:
            part = self._chain("or", Or, lambda: self._chain("and", And, self._negation))
            self._take("end")
        except (_UncommonError, RecursionError):
            return None
        return _expression(part)

    def look_ups(self) -> Sequence[LookUp] | None:
        """The look-ups that AND joins; None where the text has another form."""
        parts: list[LookUp] = []
        try:
            while not parts or self._takes_word("and"):
                part = self._leaf()
                if not isinstance(part, LookUp):
                    return None
                parts.append(part)
            self._take("end")
        except (_UncommonError, RecursionError):
            return None
        return parts

    def _chain(self, word: str, joined: Any, part: Callable[[], _Part]) -> _Part:
        parts = [part()]
        while self._takes_word(word):
            parts.append(part())
        whole: _Part = joined(*map(_expression, parts)) if len(parts) > 1 else parts[0]
        return whole

    def _negation(self) -> _Part:
        return Not(_expression(self._negation())) if self._takes_word("not") else self._leaf()

    def _leaf(self) -> _Part:
        if self._takes("("):
            inner = self._chain("or", Or, lambda: self._chain("and", And, self._negation))
            self._require(")")
            return inner
        name = self._take("word")
        if name.lower() == _ARRAY_CONTAINS and self._takes("("):
            column = self._name(self._take("word"))
            self._require(",")
            value = self._value()
            self._require(")")
            return _named(ArrayContains, column, (value,), of_lists=True)
        name = self._name(name)
        if (comparison := _COMPARISONS.get(self._tokens[self._next][1])) is not None:
            self._take("sign")
            return _named(comparison, name, (self._value(),), of_lists=False)
        if self._takes_word("is"):
            negated = self._takes_word("not")
            if (test := _TESTS.get((self._take("word").lower(), negated))) is None:
                raise _UncommonError
            return _PredicateParts(test, name, ())
        negated = self._takes_word("not")
        if not self._takes_word("in"):
            raise _UncommonError
        return _named(NotIn if negated else In, name, self._values(), of_lists=False)

    def _values(self) -> tuple[_Value, ...]:
        self._require("(")
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        self._require(")")
        if len({type(value) for value in values}) > 1:
            raise _UncommonError
        return tuple(values)

    def _value(self) -> _Value:
        kind, text = self._tokens[self._next]
        self._next += 1
        if kind == "text":
            return text[1:-1]
        if kind == "whole":
            return int(text)
        if kind == "real":
            return Decimal(text)
        raise _UncommonError

    @staticmethod
    def _name(word: str) -> str:
        if word.lower() in _KEYWORDS:
            raise _UncommonError
        return word

    def _take(self, kind: str) -> str:
        token_kind, text = self._tokens[self._next]
        if token_kind != kind:
            raise _UncommonError
        self._next += 1
        return text

    def _takes_word(self, word: str) -> bool:
        kind, text = self._tokens[self._next]
        if kind != "word" or text.lower() != word:
            return False
        self._next += 1
        return True

    def _takes(self, sign: str) -> bool:
        if self._tokens[self._next] != ("sign", sign):
            return False
        self._next += 1
        return True

    def _require(self, sign: str) -> None:
        if not self._takes(sign):
            raise _UncommonError


def _named(operator: Any, column: str, values: tuple[_Value, ...], *, of_lists: bool) -> _Part:
    """A comparison of a column with some values."""
    if operator in _LOOKING_UP and type(values[0]) is not Decimal:
        return LookUp(column, values, of_lists)  # type: ignore[arg-type]
    return _PredicateParts(operator, column, values)


def _expression(part: _Part) -> BooleanExpression:
    if isinstance(part, BooleanExpression):
        return part
    literals = [_LITERALS[type(value)](value) for value in part.values]
    operator: Any = part.operator if isinstance(part, _PredicateParts) else ArrayContains if part.of_lists else In
    if operator in (In, NotIn):  # of one value it is EqualTo, or NotEqualTo
        literals = [literals]
    expression: BooleanExpression = operator(part.column, *literals)
    return expression


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
