"""SQL expressions over the rows of an answer: arithmetic, comparisons, conditions and some functions.

They mean what they mean in Spark 4.1: three-valued logic, decimals with Spark's digits, floats compared as doubles, NaN
equal to itself and larger than every number, ANSI errors, branches computed for the rows that take them and no others.
An expression is typed before rows are there; what has no rule here is refused (NotIndexableError), arguments included.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from icepuffin.ops.sql import arithmetic, functions
from icepuffin.ops.sql.casts import caster, constant
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.sql.types import (
    CLOCK,
    INSTANT,
    Kind,
    common,
    common_of,
    is_decimal,
    is_floating,
    is_integer,
    is_number,
    is_text,
    known,
)
from icepuffin.ops.sql.values import TIMES, Node, bytes_of, double, is_plain_time

DISTANCE = " distance"
"""Column of the distance among the rows that were found: no SQL text can name it"""
_COMPARISONS: dict[type, str] = {
    exp.EQ: "equal",
    exp.NEQ: "not_equal",
    exp.GT: "greater",
    exp.GTE: "greater_equal",
    exp.LT: "less",
    exp.LTE: "less_equal",
}
_CASTS = {
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.DATE: pa.date32(),
}


@dataclass(frozen=True, slots=True, eq=False)
class Typed:
    """An expression over rows of known columns."""

    kind: Kind
    run: Callable[[pa.Table], pa.Array]
    """Its values, one a row. Raises SqlError for a row that has none, such as a division by zero"""
    columns: frozenset[str] = frozenset()
    may_fail: bool = False
    text: str | None = None
    """Of a text constant, which what it is compared with may make a number or a time"""
    digits: Kind | None = None
    """Of an integer constant, as a decimal beside decimals"""
    exact: Decimal | None = None
    """The value of a decimal constant"""


def shown(node: Node) -> str:
    """Its text."""
    return str(node.sql(dialect="spark")).replace(f"`{DISTANCE}`", "distance")


def typed(node: Node, schema: pa.Schema) -> Typed:
    """Of rows with these columns. Raises NotIndexableError for what is not computed here."""
    rule = _RULES.get(type(node))
    if rule is None:
        raise NotIndexableError(f"{shown(node)} is not computed here")
    try:
        return rule(node, schema)
    except NotIndexableError as error:
        if shown(node) in str(error) or not isinstance(node, exp.Binary | exp.Func):
            raise
        raise NotIndexableError(f"{shown(node)[:200]}: {error}") from error


def check(node: Node) -> None:
    """Raises NotIndexableError for an expression that is not computed here, whatever the types of its columns are."""
    for part in node.walk():
        if type(part) not in _RULES and not isinstance(part, exp.DataType | exp.DataTypeParam | exp.Identifier):
            raise NotIndexableError(f"{shown(part)} is not computed here")


def evaluate(node: Node, rows: pa.Table) -> pa.Array:
    """The value of an expression for each row. Raises SqlError for what has none, such as a division by zero."""
    found = typed(node, rows.schema)
    try:
        return found.run(rows)
    except (pa.ArrowException, OverflowError) as error:
        raise SqlError(f"{shown(node)}: {error}") from error
    except SqlError as error:
        raise SqlError(f"{shown(node)}: {error}") from error


def as_kind(value: Typed, kind: Kind) -> Typed:
    """Cast without being asked to; of text constants, to what they are compared with."""
    if value.text is not None and not is_text(kind):
        return _constant(constant(value.text, kind), kind)
    change, may_fail = caster(value.kind, kind, implicit=True)
    if value.kind == kind:
        return value
    return Typed(kind, lambda rows: change(value.run(rows)), value.columns, value.may_fail or may_fail)


def _constant(value: Any, kind: Kind, **more: Any) -> Typed:
    scalar = pa.scalar(value, kind)
    return Typed(kind, lambda rows: pa.repeat(scalar, rows.num_rows), **more)


def _column(node: Node, schema: pa.Schema) -> Typed:
    name = node.name
    if schema.names.count(name) != 1:
        there = ", ".join(schema.names).replace(DISTANCE, "distance")
        problem = "there are several columns" if name in schema.names else "there is no column"
        raise NotIndexableError(f"{problem} {name!r}; there are: {there}")
    kind = known(schema.field(name).type)
    return Typed(kind, lambda rows: _flat(rows[name], kind), frozenset({name}))


def _flat(values: pa.ChunkedArray, kind: Kind) -> pa.Array:
    whole = values.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # texts of more than 2 GiB
        raise SqlError("a column has more text than can be computed with at once")
    return whole if whole.type == kind else whole.cast(kind)


def _literal(node: Node, _: pa.Schema) -> Typed:
    return _constant(node.this, pa.string(), text=node.this) if node.is_string else _number(node.this)


def _number(text: str) -> Typed:
    """As Spark types it: int, bigint or decimal, with a point a decimal, with an exponent a double."""
    if "e" in text.lower():
        return _constant(double(text), pa.float64())
    exact = Decimal(text)
    digits, exponent = len(exact.as_tuple().digits), -int(exact.as_tuple().exponent)
    precision = max(digits, exponent)
    if precision > arithmetic.MAX_DIGITS:
        raise NotIndexableError(f"{text} has more than {arithmetic.MAX_DIGITS} digits")
    as_decimal = pa.decimal128(precision, exponent)
    if "." in text or not -(2**63) <= exact < 2**63:
        return _constant(exact, as_decimal, exact=exact)
    whole = pa.int32() if -(2**31) <= exact < 2**31 else pa.int64()
    return _constant(int(exact), whole, digits=as_decimal)


def _neg(node: Node, schema: pa.Schema) -> Typed:
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return _number(f"-{node.this.this}")  # the least long is minus what no long is
    return _map(arithmetic.negative, typed(node.this, schema))


def _map(rule: Callable[..., arithmetic.Rule], *values: Typed) -> Typed:
    """By a rule that types give: (arguments' types, the type, what computes it, whether it may fail)."""
    made = rule(
        *(
            value.digits if value.digits is not None and _beside_decimal(value, values) else value.kind
            for value in values
        )
    )
    given = [as_kind(value, kind) for value, kind in zip(values, made.arguments, strict=True)]
    columns = frozenset().union(*(value.columns for value in given)) if given else frozenset()
    return Typed(
        made.kind,
        lambda rows: made.compute(*(value.run(rows) for value in given)),
        columns,
        made.may_fail or any(value.may_fail for value in given),
    )


def _beside_decimal(value: Typed, values: Sequence[Typed]) -> bool:
    return any(is_decimal(other.kind) for other in values if other is not value)


def _arithmetic(node: Node, schema: pa.Schema) -> Typed:
    left, right = typed(node.left, schema), typed(node.right, schema)
    for side, value in ((node.left, left), (node.right, right)):
        inner = side.unnest()
        if (
            isinstance(inner, exp.Cast)
            and isinstance(inner.this, exp.Literal)
            and is_integer(value.kind)
            and (is_decimal(left.kind) or is_decimal(right.kind))
        ):  # 1L and CAST(1 AS BIGINT) are one tree, and have not the same digits
            raise NotIndexableError(f"{shown(inner)} beside a decimal is not computed here")
    return _map(arithmetic.BINARY[type(node)], left, right)


def _function(node: Node, schema: pa.Schema) -> Typed:
    return _map(functions.RULES[type(node)], typed(node.this, schema))


def _power(node: Node, schema: pa.Schema) -> Typed:
    return _map(functions.power, typed(node.this, schema), typed(node.expression, schema))


def _round(node: Node, schema: pa.Schema) -> Typed:
    digits = node.args.get("decimals")
    places = 0 if digits is None else _places(digits)
    return _map(functions.rounded(places), typed(node.this, schema))


def _places(node: Node) -> int:
    inner, sign = node.unnest(), 1
    if isinstance(inner, exp.Neg):
        inner, sign = inner.this.unnest(), -1
    if not isinstance(inner, exp.Literal) or inner.is_string or not inner.this.isdecimal() or len(inner.this) > 3:
        raise NotIndexableError(f"round(..., {shown(node)}): the number of digits is to be a small constant")
    return sign * int(inner.this)


def _comparison(node: Node, schema: pa.Schema) -> Typed:
    return _compared(_COMPARISONS[type(node)], typed(node.left, schema), typed(node.right, schema))


def _compared(how: str, left: Typed, right: Typed) -> Typed:
    kind = _common_with_texts(left, right)
    for one, other in ((left, right), (right, left)):
        if is_integer(one.kind) and other.exact is not None and not -(2**63) <= other.exact < 2**63:
            raise NotIndexableError(f"{other.exact} is beyond all integers: compare it with what one can be")
    one, other = as_kind(left, kind), as_kind(right, kind)
    return Typed(
        pa.bool_(),
        lambda rows: _compare(how, kind, one.run(rows), other.run(rows)),
        one.columns | other.columns,
        one.may_fail or other.may_fail,
    )


def _common_with_texts(left: Typed, right: Typed) -> Kind:
    """A text constant beside a number, a date or a time is one as well."""
    if (left.text is None) == (right.text is None):
        return common(left.kind, right.kind)
    other = right.kind if left.text is not None else left.kind
    return _of_text_beside(other)


def _of_text_beside(kind: Kind) -> Kind:
    if pa.types.is_null(kind):
        return pa.string()
    if is_integer(kind):
        return pa.int64()
    if is_number(kind):
        return common(kind, pa.float64())
    if kind in (pa.date32(), CLOCK, INSTANT, pa.string()):
        return kind
    raise NotIndexableError(f"a text is not compared with {kind} here")


def _compare(how: str, kind: Kind, left: pa.Array, right: pa.Array) -> pa.Array:
    """As Spark has it, NaN equals NaN and is larger than every number. Arrow has it equal to nothing."""
    if pa.types.is_null(kind):
        return pa.nulls(len(left), pa.bool_())
    if pa.types.is_boolean(kind):
        left, right = left.cast(pa.int8()), right.cast(pa.int8())
    if not is_floating(kind):
        return pc.call_function(how, [left, right])
    nan = [pc.is_nan(value) for value in (left, right)]
    by_nan = pc.call_function(how, [flag.cast(pa.int8()) for flag in nan])
    return pc.if_else(pc.or_(*nan), by_nan, pc.call_function(how, [left, right]))


def _boolean(value: Typed, node: Node) -> Typed:
    if pa.types.is_null(value.kind):
        return as_kind(value, pa.bool_())
    if not pa.types.is_boolean(value.kind):
        raise NotIndexableError(f"{shown(node)} is {value.kind}, not a condition")
    return value


def condition(node: Node, schema: pa.Schema) -> Typed:
    """Of WHERE, CASE and if(). Raises NotIndexableError for what is not true or false, NULL among it."""
    value = typed(node, schema)
    if not pa.types.is_boolean(value.kind):
        raise NotIndexableError(f"{shown(node)} is {value.kind}, not a condition")
    return value


def _operand(node: Node, schema: pa.Schema) -> Typed:
    """Of AND, OR and NOT, which take NULL as well."""
    return _boolean(typed(node, schema), node)


def _not(node: Node, schema: pa.Schema) -> Typed:
    value = _operand(node.this, schema)
    return Typed(pa.bool_(), lambda rows: pc.invert(value.run(rows)), value.columns, value.may_fail)


def _connected(node: Node, schema: pa.Schema) -> Typed:
    """AND and OR, the right side only for the rows that the left one leaves open."""
    conjunction = isinstance(node, exp.And)
    sides = [_operand(side, schema) for side in _chain(node, type(node))]
    return _joined(sides, conjunction=conjunction)


def _chain(node: Node, kind: Any) -> list[Node]:
    """The sides of a chain of one operator, left to right, however long it is."""
    found: list[Node] = []
    while isinstance(node, kind):
        found.append(node.args["expression"])
        node = node.args["this"]
    return [node, *reversed(found)]


def _joined(sides: Sequence[Typed], *, conjunction: bool) -> Typed:
    join = pc.and_kleene if conjunction else pc.or_kleene

    def run(rows: pa.Table) -> pa.Array:
        found = sides[0].run(rows)
        for side in sides[1:]:
            found = beside(found, side, rows) if side.may_fail else join(found, side.run(rows))
        return found

    def beside(found: pa.Array, side: Typed, rows: pa.Table) -> pa.Array:
        settled = np.asarray(pc.fill_null(pc.equal(found, not conjunction), fill_value=False), bool)
        done, left = np.flatnonzero(settled), np.flatnonzero(~settled)
        values = join(found.take(pa.array(left)), side.run(_some(rows, left, side.columns)))
        return _scattered(rows.num_rows, [(done, found.take(pa.array(done))), (left, values)])

    columns = frozenset().union(*(side.columns for side in sides))
    return Typed(pa.bool_(), run, columns, any(side.may_fail for side in sides))


def _some(rows: pa.Table, places: Any, columns: frozenset[str]) -> pa.Table:
    """Some rows, of the columns that are read; one at least, which says how many rows there are."""
    names = [name for name in rows.column_names if name in columns] or [DISTANCE]
    if names == [DISTANCE] and DISTANCE not in rows.column_names:
        return pa.table({DISTANCE: pa.nulls(len(places))})
    return rows.select(names).take(pa.array(places))


def _scattered(count: int, parts: Sequence[tuple[Any, pa.Array]]) -> pa.Array:
    """Values of parts of the rows, in the order of the rows."""
    places = np.concatenate([part for part, _ in parts])
    values = pa.concat_arrays([values for _, values in parts])
    back = np.empty(count, np.int64)
    back[places] = np.arange(count)
    return values.take(pa.array(back))


def _choice(branches: Sequence[tuple[Typed, Typed]], default: Typed) -> Typed:
    """The value of the first branch whose condition is true."""
    kind = common_of([*(value.kind for _, value in branches), default.kind])
    chosen = [(when, as_kind(value, kind)) for when, value in branches]
    last = as_kind(default, kind)

    def run(rows: pa.Table) -> pa.Array:
        left, parts = np.arange(rows.num_rows), []
        for when, value in chosen:
            flags = np.asarray(pc.fill_null(when.run(_some(rows, left, when.columns)), fill_value=False), bool)
            taken, left = left[flags], left[~flags]
            parts.append((taken, value.run(_some(rows, taken, value.columns))))
        parts.append((left, last.run(_some(rows, left, last.columns))))
        return _scattered(rows.num_rows, parts)

    every = [last, *(part for branch in chosen for part in branch)]
    return Typed(kind, run, frozenset().union(*(part.columns for part in every)), any(part.may_fail for part in every))


def _case(node: Node, schema: pa.Schema) -> Typed:
    default, compared = node.args.get("default"), node.args.get("this")
    branches = []
    for branch in node.args["ifs"]:
        when = branch.this if compared is None else exp.EQ(this=compared.copy(), expression=branch.this.copy())
        branches.append((condition(when, schema), typed(branch.args["true"], schema)))
    return _choice(branches, typed(exp.Null() if default is None else default, schema))


def _if(node: Node, schema: pa.Schema) -> Typed:
    other = node.args.get("false")
    if other is None:
        raise NotIndexableError(f"{shown(node)}: if() takes a condition and two values")
    when, value = condition(node.this, schema), typed(node.args["true"], schema)
    return _choice([(when, value)], typed(other, schema))


def _coalesce(node: Node, schema: pa.Schema) -> Typed:
    values = [typed(item, schema) for item in (node.this, *node.expressions)]
    there = [Typed(pa.bool_(), _is_there(value), value.columns, value.may_fail) for value in values]
    return _choice(list(zip(there, values, strict=True)), typed(exp.Null(), schema))


def _is_there(value: Typed) -> Callable[[pa.Table], pa.Array]:
    return lambda rows: pc.is_valid(value.run(rows))


def _is(node: Node, schema: pa.Schema) -> Typed:
    if isinstance(node.expression, exp.Null) and isinstance(node.this, exp.Column) and node.this.name in schema.names:
        name = node.this.name  # of any type
        return Typed(pa.bool_(), lambda rows: pc.is_null(rows[name]).combine_chunks(), frozenset({name}))
    value = typed(node.this, schema)
    if isinstance(node.expression, exp.Null):
        return Typed(pa.bool_(), lambda rows: pc.is_null(value.run(rows)), value.columns, value.may_fail)
    if not isinstance(node.expression, exp.Boolean):
        raise NotIndexableError(f"{shown(node)}: only IS NULL, IS TRUE and IS FALSE are known here")
    value, wanted = _boolean(value, node.this), bool(node.expression.this)
    return Typed(
        pa.bool_(),
        lambda rows: pc.fill_null(pc.equal(value.run(rows), wanted), fill_value=False),
        value.columns,
        value.may_fail,
    )


def _is_nan(node: Node, schema: pa.Schema) -> Typed:
    value = typed(node.this, schema)
    if not is_floating(value.kind):
        raise NotIndexableError(f"{shown(node)}: that is {value.kind}, no float")
    return Typed(
        pa.bool_(),
        lambda rows: pc.fill_null(pc.is_nan(value.run(rows)), fill_value=False),
        value.columns,
        value.may_fail,
    )


def _in(node: Node, schema: pa.Schema) -> Typed:
    if not node.expressions:
        raise NotIndexableError(f"{shown(node)}: IN takes constants")
    value, items = typed(node.this, schema), [typed(item, schema) for item in node.expressions]
    texts = [item for item in (value, *items) if item.text is not None]
    others = {item.kind for item in (value, *items) if item.text is None} - {pa.null()}
    kind = common_of(others)
    if texts:
        if len(others) > 1 and not all(is_integer(kind) for kind in others):
            raise NotIndexableError(f"{shown(node)[:200]}: texts beside several types are not compared here")
        kind = _of_text_beside(kind) if others else pa.string()
    if value.text is None and all(not item.columns and not item.may_fail for item in items):
        return _in_constants(as_kind(value, kind), [as_kind(item, kind) for item in items])
    return _joined([_compared("equal", as_kind(value, kind), as_kind(item, kind)) for item in items], conjunction=False)


def _in_constants(value: Typed, items: Sequence[Typed]) -> Typed:
    """By one look-up; of a null it is unknown, and where the list holds one, of what is not in the list as well."""
    one = pa.table({DISTANCE: [0.0]})
    listed = pa.concat_arrays([item.run(one) for item in items])
    wanted = listed.drop_null()
    if is_floating(value.kind) and pc.any(pc.equal(wanted, 0.0)).as_py():  # Arrow tells 0.0 and -0.0 apart
        wanted = pa.concat_arrays([wanted, pa.array([0.0, -0.0], wanted.type)])

    def run(rows: pa.Table) -> pa.Array:
        values = value.run(rows)
        there = pc.is_in(values, value_set=wanted)
        unknown = pc.or_(pc.is_null(values), pc.and_(pc.invert(there), bool(listed.null_count)))
        return pc.if_else(unknown, pa.scalar(None, pa.bool_()), there)

    return Typed(pa.bool_(), run, value.columns, value.may_fail)


def _between(node: Node, schema: pa.Schema) -> Typed:
    value, low, high = (typed(part, schema) for part in (node.this, node.args["low"], node.args["high"]))
    return _joined([_compared("greater_equal", value, low), _compared("less_equal", value, high)], conjunction=True)


def _like(node: Node, schema: pa.Schema) -> Typed:
    value, pattern = typed(node.this, schema), typed(node.expression, schema)
    if pattern.text is None:
        raise NotIndexableError(f"{shown(node)}: LIKE takes a constant pattern")
    if not is_text(value.kind):
        raise NotIndexableError(f"{shown(node)}: that is {value.kind}, no text")
    matches = functions.like(pattern.text, ignore_case=isinstance(node, exp.ILike))
    negated = bool(node.args.get("negate"))
    return Typed(
        pa.bool_(),
        lambda rows: pc.invert(matches(value.run(rows))) if negated else matches(value.run(rows)),
        value.columns,
        value.may_fail,
    )


def _concat(node: Node, schema: pa.Schema) -> Typed:
    parts = [
        typed(part, schema) for part in (node.expressions if isinstance(node, exp.Concat) else (node.left, node.right))
    ]
    if not parts or not all(is_text(part.kind) for part in parts):
        raise NotIndexableError(f"{shown(node)}: only texts are joined here")
    return Typed(
        pa.string(),
        lambda rows: pc.binary_join_element_wise(*(part.run(rows) for part in parts), ""),
        frozenset().union(*(part.columns for part in parts)),
        any(part.may_fail for part in parts),
    )


def _cast(node: Node, schema: pa.Schema) -> Typed:
    target = node.to.this
    if isinstance(node.this, exp.Literal) and node.this.is_string and target in TIMES and not node.to.expressions:
        return _time(node)
    kind = _decimal_of(node) if target is exp.DType.DECIMAL else _CASTS.get(target)
    if kind is None or (node.to.expressions and target is not exp.DType.DECIMAL):
        raise NotIndexableError(f"{shown(node)} is not computed here")
    value = typed(node.this, schema)
    if value.text is not None:
        return _constant(constant(value.text, kind), kind)
    change, may_fail = caster(value.kind, kind)
    return Typed(kind, lambda rows: change(value.run(rows)), value.columns, value.may_fail or may_fail)


def _decimal_of(node: Node) -> Kind:
    digits = [item.this for item in node.to.expressions]
    numbers = [int(item.this) for item in digits if isinstance(item, exp.Literal) and str(item.this).isdecimal()]
    if len(numbers) != len(digits) or not 1 <= len(numbers) <= 2:
        raise NotIndexableError(f"{shown(node)}: write DECIMAL(precision, scale)")
    precision, scale = (*numbers, 0)[:2]
    if not (1 <= precision <= arithmetic.MAX_DIGITS and 0 <= scale <= precision):
        raise NotIndexableError(f"{shown(node)}: there is no such type")
    return pa.decimal128(precision, scale)


def _time(node: Node) -> Typed:
    """TIMESTAMP '...': without a zone it is a time on the session's clock, to be compared with such times alone."""
    text = node.this.this
    if node.to.this is exp.DType.TIMESTAMPNTZ:
        return _constant(constant(text, CLOCK), CLOCK)
    kind = CLOCK if is_plain_time(text) else INSTANT
    found = _constant(constant(text, kind), kind)
    beside = node.parent
    if kind == CLOCK and not isinstance(
        beside, exp.In | exp.Between | exp.EQ | exp.NEQ | exp.GT | exp.GTE | exp.LT | exp.LTE
    ):
        raise NotIndexableError(f"{shown(node)} depends on the session's time zone: write it with a zone")
    return found


_RULES: dict[type, Callable[[Any, pa.Schema], Typed]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda node, _: _constant(bool(node.this), pa.bool_()),
    exp.Null: lambda _node, _schema: _constant(None, pa.null()),
    exp.HexString: lambda node, _: _constant(bytes_of(node), pa.binary()),
    exp.Paren: lambda node, schema: typed(node.this, schema),
    exp.Neg: _neg,
    exp.Not: _not,
    exp.And: _connected,
    exp.Or: _connected,
    exp.Is: _is,
    exp.IsNan: _is_nan,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Round: _round,
    exp.Pow: _power,
    exp.Concat: _concat,
    exp.DPipe: _concat,
    exp.Coalesce: _coalesce,
    exp.Case: _case,
    exp.If: _if,
    exp.Cast: _cast,
    exp.TryCast: _cast,  # Spark's CAST, as sqlglot has it
    **dict.fromkeys(arithmetic.BINARY, _arithmetic),
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(functions.RULES, _function),
}
