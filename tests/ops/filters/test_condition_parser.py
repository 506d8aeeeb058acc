"""Conditions of the common forms are parsed to the expressions that PyIceberg's parser gives."""

import random
from decimal import Decimal

import pytest
from pydantic import ValidationError
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    In,
    LessThan,
    NotIn,
    Or,
    StartsWith,
    parser,
)
from pyparsing import ParseException

from icepuffin.ops.filters import condition_parser
from icepuffin.ops.filters.condition_parser import LookUp, look_ups, parse_condition
from icepuffin.ops.filters.list_predicate import ArrayContains

WORDS = [
    "a", "b_2", "$x", "a.b", '"a b"', '"a"', "not", "NOT", "and", "And", "or", "is", "in", "null", "nan", "like",
    "between", "true", "FALSE", "(", ")", ",", "=", "==", "!=", "<>", "<", "<=", ">", ">=", "'x'", "''", "'it''s'",
    "'a\\'b'", "'%'", "'y%'", "'new\nline'", "1", "-2", "+3", "1.5", ".5", "2.", "1e3", "007", "9223372036854775808",
    "array_contains", "é", "1a", "a1", "'", "--",
]  # fmt: skip
"""Words that texts are made of at random"""
LEAVES = [
    "a = 1", "a=-1", "b in ('x')", "b not in ('x', 'y')", "b IN (1,2 , +3)", "a is null", "a Is Not Null", "a is nan",
    "a is not nan", "a < 'x'", "a <> 2", "1 = a", "a between 1 and 2", "a like 'x%'", "a not like 'x%'", "true",
    "a = true", "a = 1.5", "a in (1, 'x')", "a in (1.0, 2.0)", "a.b = 3", '"a" = 3', "nulls = 3", "a = 'it''s'",
]  # fmt: skip


def outcome(parse, text: str):  # type: ignore[no-untyped-def]
    try:
        return repr(parse(text))
    except (ParseException, ValueError, TypeError, RecursionError) as error:
        return type(error)


def drawn(rng: random.Random, depth: int) -> str:
    if not depth or rng.random() < 0.3:
        return rng.choice(LEAVES)
    kind = rng.random()
    if kind < 0.25:
        return f"not {drawn(rng, depth - 1)}"
    if kind < 0.45:
        return f"({drawn(rng, depth - 1)})"
    word = rng.choice([" and ", " OR ", " or ", "\n AND\t"])
    return word.join(drawn(rng, depth - 1) for _ in range(rng.randint(2, 4)))


@pytest.mark.parametrize("seed", range(4))
def test_a_text_means_what_it_means_to_pyiceberg(seed: int) -> None:
    rng, common = random.Random(seed), 0
    for number in range(150):
        text = drawn(rng, 3) if number % 2 else " ".join(rng.choices(WORDS, k=rng.randint(1, 7)))
        expected = outcome(parser.parse, text)
        has_constant = expected is ValidationError  # PyIceberg fails at `true` within a condition
        if not has_constant and "_" not in text and "array_contains" not in text:
            assert outcome(parse_condition, text) == expected, text
        expression = condition_parser._CommonForms(text).whole()
        assert not has_constant or any(word in text.lower() for word in ("true", "false"))
        common += expression is not None
        assert expression is None or "array_contains" in text or repr(expression) == expected, text
    assert common > 5


def test_a_quoted_name_may_have_dots() -> None:
    assert parse_condition('"a.b c" = 1.5') == EqualTo("a.b c", 1.5)
    assert parse_condition('"a.b" = \'c."d.e"\'') == EqualTo("a.b", 'c."d.e"')
    assert parse_condition('".a." = 1') == EqualTo(".a.", 1)


def test_a_number_does_not_end_within_a_word() -> None:
    for text in ("a = 1and b = 2", "a in (1, 2a)", "not a = 1or b = 2"):
        assert outcome(parse_condition, text) == outcome(parser.parse, text) is ParseException


@pytest.mark.parametrize("other", ["", " and b < 99.5", " and b between 1 and 2", ' and "c d" = 1'])
def test_a_tab_in_a_text_is_a_tab_whatever_stands_beside_it(other: str) -> None:
    """pyparsing would make spaces of it, their number depends on the place in the whole text."""
    literals = [str(EqualTo("a", "x\ty")), str(EqualTo("a", "x  y"))]
    made = str(parse_condition(f"a = 'x\ty'{other}"))
    assert [literal in made for literal in literals] == [True, False]
    assert str(parse_condition("a\t=\t1.5")) == str(parser.parse("a = 1.5"))


@pytest.mark.parametrize("end", ["\xa0", "\x0c", "\u3000"])
def test_only_what_pyiceberg_takes_for_white_space_may_stand_at_the_end(end: str) -> None:
    with pytest.raises(ParseException):
        parse_condition(f"a = 1{end}")


@pytest.mark.parametrize(
    "text",
    [
        "array_contains(a, 'x')",
        "not (Array_Contains(a, 1) and b = 2) or array_contains( a , 'it' )",
        "array_contains = 3",
        "a = 1 and array_contains(a, 'x') and a is null",
    ],
)
def test_array_contains_means_the_same_to_both_parsers(text: str) -> None:
    made = condition_parser._CommonForms(text).whole()
    assert made is not None
    assert repr(made) == repr(condition_parser._GRAMMAR.parse_string(text, parse_all=True)[0])


@pytest.mark.parametrize(
    "text", ["array_contains(a)", "array_contains(a, b)", "array_contains('x', a)", "a array_contains", "a = 'x\ny'"]
)
def test_what_is_no_condition_is_an_error(text: str) -> None:
    with pytest.raises(ParseException):
        parse_condition(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", [LookUp("a", (1,), of_lists=False)]),
        ("a IN ('x', 'y') And b==-2", [LookUp("a", ("x", "y"), of_lists=False), LookUp("b", (-2,), of_lists=False)]),
        ("Array_contains(t, 'x') and array_contains(t, 3)", [LookUp("t", (v,), of_lists=True) for v in ("x", 3)]),
        ("array_contains = 'x'", [LookUp("array_contains", ("x",), of_lists=False)]),
        *((text, None) for text in ("a = 1 or b = 2", "not a = 1", "(a = 1 and b = 2)", "a < 1", "a not in (1)",
                                    "a in (1, 'x')", "a = 1.5", "a = 'it''s'", "a = 1 and", "", "null = 1", "a = b",
                                    "a in ()", f"a = {10**40}")),
        (f"a = {10**39}", [LookUp("a", (10**39,), of_lists=False)]),
        ("(a = 1) and ((b in ('x')))", [LookUp("a", (1,), of_lists=False), LookUp("b", ("x",), of_lists=False)]),
        ("a = 'p and q' and b = 'and'", [LookUp(n, (v,), of_lists=False) for n, v in (("a", "p and q"), ("b", "and"))]),
        ("a = 1 AND\t(b = 2)and c = 3", [LookUp(n, (v,), of_lists=False) for n, v in (("a", 1), ("b", 2), ("c", 3))]),
    ],
)  # fmt: skip
def test_look_ups_are_the_forms_that_name_values(text: str, expected: list[LookUp] | None) -> None:
    assert look_ups(text) == expected


@pytest.mark.parametrize("literals", ["2, 0.0", "0.5, -1", "1,2.5,3"])
def test_in_takes_whole_and_other_numbers_together(literals: str) -> None:
    numbers = [Decimal(number) if "." in number else int(number) for number in literals.split(",")]
    assert repr(parse_condition(f"a in ({literals})")) == repr(In("a", numbers))
    both = parse_condition(f"b = 'x' and \"a\" NOT IN ( {literals} ) or a.c in ({literals})")
    assert repr(both) == repr(Or(And(EqualTo("b", "x"), NotIn("a", numbers)), In("a.c", numbers)))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (EqualTo("a", "x"), "a = 'x'"),
        (And(EqualTo("a", 1), ArrayContains("t", "x"), EqualTo("b", "y")), "a=1 and array_contains(t, 'x') and b='y'"),
        (In("a", [3]), "a = 3"),
        (ArrayContains("t", -1), "array_contains(t, -1)"),
    ],
)
def test_expressions_have_the_look_ups_of_their_texts(expression: BooleanExpression, text: str) -> None:
    assert look_ups(expression) == look_ups(text)


@pytest.mark.parametrize("seed", range(10))
def test_look_ups_are_the_expression_that_the_whole_text_is(seed: int) -> None:
    """Of texts that are conditions, and of texts that nearly are; whatever stands in quotes, and however long it is."""
    draw = random.Random(seed)
    values = ("'x'", "'it''s'", "-2", "007", "'and'", "' , '", "'a = 1 and b'", f"'{'x' * 200}'", "1.5", "x", "''")
    names = ("a", "b_2", "in", "xin", "Null", "array_contains", "\u212a", "a$", "andy")
    found = 0
    for _ in range(100):
        parts = []
        for _ in range(draw.randrange(1, 4)):
            several = draw.choice((",", " , ", ", ")).join(draw.choices(values[:8], k=draw.randrange(1, 4)))
            one = draw.choice(("=", "==", " = ", "= =", "<")) + draw.choice(values)
            name = draw.choice(names)
            parts.append(draw.choice((name + one, f"{name} in ({several})", f"array_contains({name}, 'x')")))
        text = draw.choice((" and ", " AND\n", "and", " or ")).join(parts) + draw.choice(("", " ", " and", ")"))
        if (own := look_ups(text)) is not None:
            found += 1
            whole = look_ups(parse_condition(text)) or ()
            assert [(part.column, {*part.values}, part.of_lists) for part in own] == [
                (part.column, {*part.values}, part.of_lists) for part in whole
            ], text
    assert found


def test_look_ups_of_a_set_have_all_its_values() -> None:
    (look_up,) = look_ups(In("a", ["x", "y", "z"])) or ()
    assert sorted(map(str, look_up.values)) == ["x", "y", "z"]


@pytest.mark.parametrize("values", [1, 100])
def test_a_text_that_comes_again_is_not_parsed_again(monkeypatch: pytest.MonkeyPatch, values: int) -> None:
    text = f"kept in ({', '.join(map(repr, map(str, range(values))))}) and kept = {values}"
    first = look_ups(text)
    monkeypatch.setattr(condition_parser, "_CommonForms", None)
    assert first is not None
    assert look_ups(text) == first


@pytest.mark.parametrize(
    "expression",
    [
        EqualTo("a", True), EqualTo("a", 1.0), In("a", [1, 2.5]), In("a", [1, "x"]), EqualTo("a.b", 1), NotIn("a", [1]),
        LessThan("a", 1), ~ArrayContains("t", "x"), ArrayContains("t", None), Or(EqualTo("a", 1), EqualTo("b", 1)),
        And(EqualTo("a", 1), LessThan("b", 1)), EqualTo("a", "\ud800"), AlwaysTrue(), StartsWith("a", "x"),
    ],
    ids=str,
)  # fmt: skip
def test_other_expressions_have_no_look_ups(expression: BooleanExpression) -> None:
    assert look_ups(expression) is None


def test_expressions_may_be_nested_deeply() -> None:
    whole: BooleanExpression = EqualTo("a", 0)
    for number in range(1, 3_000):
        whole = And(whole, EqualTo("a", number))
    assert look_ups(whole) == [LookUp("a", (number,), of_lists=False) for number in range(3_000)]
