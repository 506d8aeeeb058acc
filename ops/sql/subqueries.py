"""Subqueries: merged into the outer query if they only project and filter; else it is a step after them."""

from collections.abc import Callable

from sqlglot import exp

from icepuffin.ops.sql.clauses import (
    DISTANCES,
    RANKINGS,
    RESOLVED,
    count_of,
    function_name,
    is_number_of_output,
    is_star,
    name_of,
    names_beside_star,
    orders_of,
    outputs_of,
    require_source,
    resolved,
)
from icepuffin.ops.sql.errors import NotIndexableError
from icepuffin.ops.sql.postprocessing import PostprocessingStep
from icepuffin.ops.sql.row_filters import read_filter
from icepuffin.ops.sql.values import Node, Values, shown


def merged_query(outer: Node, inner: Node, alias: str) -> Node:
    """One SELECT for two, where the inner one only projects and filters."""
    star = any(is_star(projection) for projection in inner.expressions)
    expressions = {
        name_of(projection): projection.unalias() for projection in inner.expressions if not is_star(projection)
    }
    names = [name_of(projection).lower() for projection in inner.expressions if not is_star(projection)]

    def inlined(node: Node) -> Node:
        """The node, with the inner query's expressions in place of its columns."""

        def replaced(part: Node) -> Node:
            if not isinstance(part, exp.Column) or isinstance(part.this, exp.Star):
                return part
            require_source(part, alias)
            if names.count(part.name.lower()) > 1:
                raise NotIndexableError(f"{shown(part)}: several columns of the subquery have that name")
            if part.name in expressions:
                return expressions[part.name].copy()
            if star:
                return exp.column(part.name)
            raise NotIndexableError(
                f"{shown(part)} is no column of the subquery; it has {', '.join(filter(None, expressions))}"
            )

        return node.transform(replaced)

    merged = outer.copy()
    merged.set("with_", None)
    outputs = [_merged_outputs(projection, inner, alias, inlined) for projection in outer.expressions]
    merged.set("expressions", [item for items in outputs for item in items])
    named = outer.copy()
    named.set("expressions", [item for projection in outer.expressions for item in _without_star(projection, inner)])
    for term in merged.args["order"].expressions if merged.args.get("order") else ():
        if not is_number_of_output(term.this):
            # names of outputs first: columns of the source may have them, too
            term.set("this", inlined(resolved(term.this, named)))
            term.this.meta[RESOLVED] = True
    conditions = [inner.args["where"].this] if inner.args.get("where") else []
    conditions += [inlined(outer.args["where"].this)] if outer.args.get("where") else []
    merged.set("where", exp.Where(this=exp.and_(*conditions)) if conditions else None)
    merged.set("from_", inner.args["from_"].copy())
    merged.meta["absent"] = absent_of(outer) | absent_of(inner)
    return merged


def _merged_outputs(projection: Node, inner: Node, alias: str, inlined: Callable[[Node], Node]) -> list[Node]:
    """An output of the outer query as outputs of the merged one, which have the names that they had."""
    if is_star(projection):
        if isinstance(projection, exp.Column):
            require_source(projection, alias)
        return [inner_projection.copy() for inner_projection in inner.expressions]
    expression = inlined(projection)
    if isinstance(projection, exp.Alias) or function_name(projection.unnest()) in RANKINGS:
        return [expression]
    return [exp.alias_(expression, name_of(projection) or shown(projection), quoted=True)]


def _without_star(projection: Node, inner: Node) -> list[Node]:
    """A projection of a query; for `*` the columns that its subquery names, and `*` where this has it as well."""
    if not is_star(projection):
        return [projection]
    return [item if is_star(item) else exp.column(name_of(item)) for item in inner.expressions]


def absent_of(query: Node) -> frozenset[str]:
    """Names, in lower case, that the table must not have as columns, as they would be ambiguous."""
    before: frozenset[str] = query.meta.get("absent", frozenset())
    return names_beside_star(query) | before


def outer_step(query: Node, alias: str, values: Values) -> PostprocessingStep:
    """The outer query as a step over the nearest rows, which its subquery finds."""
    where = query.args.get("where")
    parts = [*query.expressions, *(query.args[part] for part in ("where", "order") if query.args.get(part))]
    for node in (node for part in parts for node in part.walk()):
        if (name := function_name(node)) in RANKINGS:
            what = "a distance" if name in DISTANCES else f"{name}(...)"
            raise NotIndexableError(f"it computes {what} outside of the subquery that finds the rows")
        if isinstance(node, exp.Column):
            require_source(node, alias)
    return PostprocessingStep(
        outputs=outputs_of(query, None),
        where=None if where is None else read_filter(where.this, values),
        order=orders_of(query, None),
        limit=count_of(query, "limit", values),
        offset=count_of(query, "offset", values) or 0,
    )
