"""Subqueries: merged into the query around them where they only project and filter, else what is done around them."""

from sqlglot import exp

from ops.sql.clauses import DISTANCES, computed, count_of, function_name, orders_of, output_of, require_source
from ops.sql.errors import NotIndexableError
from ops.sql.steps import Step
from ops.sql.values import Node, Values


def merged_query(outer: Node, inner: Node, alias: str) -> Node:
    """One SELECT of two, where the inner one only projects and filters."""
    star = any(isinstance(item, exp.Star) for item in inner.expressions)
    made = {item.alias_or_name: item.unalias() for item in inner.expressions if not isinstance(item, exp.Star)}
    given = {item.alias for item in outer.expressions if isinstance(item, exp.Alias)}

    def inlined(node: Node, *, aliases: bool = False) -> Node:
        """Columns of the inner query as what they stand for there."""

        def replaced(part: Node) -> Node:
            if not isinstance(part, exp.Column) or isinstance(part.this, exp.Star):
                return part
            require_source(part, alias)
            if aliases and not part.table and part.name in given:
                return part
            if part.name in made:
                simple = isinstance(made[part.name], exp.Column | exp.Literal | exp.Func)
                return made[part.name].copy() if simple else exp.paren(made[part.name].copy())
            if star:
                return exp.column(part.name)
            raise NotIndexableError(f"{part.sql()} is no column of the subquery; it has {', '.join(made)}")

        return node.transform(replaced)

    merged = outer.copy()
    merged.set("with_", None)
    items: list[Node] = []
    for item in outer.expressions:
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            items += [inner_item.copy() for inner_item in inner.expressions]
        elif isinstance(item, exp.Column):
            items.append(exp.alias_(inlined(item), item.name, quoted=True))
        else:
            items.append(inlined(item))
    merged.set("expressions", items)
    for part in ("order", "limit", "offset"):
        if outer.args.get(part):
            merged.set(part, inlined(outer.args[part], aliases=True))
    conditions = [inner.args["where"].this] if inner.args.get("where") else []
    conditions += [inlined(outer.args["where"].this)] if outer.args.get("where") else []
    merged.set("where", exp.Where(this=exp.and_(*conditions)) if conditions else None)
    merged.set("from_", inner.args["from_"].copy())
    return merged


def outer_step(query: Node, alias: str, values: Values) -> Step:
    """A query around rows that were found."""
    aliases = {item.alias: item.this for item in query.expressions if isinstance(item, exp.Alias)}
    where = query.args.get("where")
    own = [*query.expressions, *(query.args[part] for part in ("where", "order") if query.args.get(part))]
    if any(function_name(node) in DISTANCES for part in own for node in part.walk()):
        raise NotIndexableError("it computes a distance outside of the subquery that finds the rows")
    for column in (column for part in own for column in part.find_all(exp.Column)):
        require_source(column, alias)
    stars = [isinstance(item, exp.Star) for item in query.expressions]
    if any(stars) and len(stars) > 1:
        raise NotIndexableError("it selects * of a subquery, and more")
    return Step(
        outputs=None if any(stars) else tuple(output_of(item, None, values) for item in query.expressions),
        where=None if where is None else computed(where.this, values),
        order=orders_of(query, aliases, None, values),
        limit=count_of(query, "limit", values),
        offset=count_of(query, "offset", values) or 0,
    )
