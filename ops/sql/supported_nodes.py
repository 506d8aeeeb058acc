"""Arguments of sqlglot's nodes that are supported. A query with any others is refused: no part may be ignored."""

from sqlglot import exp

from icepuffin.ops.sql.errors import NotIndexableError
from icepuffin.ops.sql.tokens import is_literal
from icepuffin.ops.sql.values import DISTANCE, Node

_EVERYWHERE = {"this", "expression", "expressions"}
_NOT_HERE: dict[type, set[str]] = {exp.Limit: {"this", "expressions"}, exp.Offset: {"this", "expressions"}}
"""Arguments that a kind of node must not have, although others may: `LIMIT 3 BY column` has `expressions`"""
_READ: dict[type, set[str]] = {
    exp.Alias: {"alias"},
    exp.Between: {"low", "high"},
    exp.Cast: {"to"},
    exp.Column: {"table", "db", "catalog"},
    exp.CTE: {"alias"},
    exp.DataType: {"nested"},
    exp.Identifier: {"quoted"},
    exp.Literal: {"is_string"},
    exp.Fetch: {"direction", "count", "limit_options"},
    exp.In: {"query"},
    exp.Like: {"negate"},
    exp.Limit: set(),
    exp.LimitOptions: {"rows", "percent", "with_ties"},
    exp.Offset: set(),
    exp.Ordered: {"desc", "nulls_first"},
    exp.Subquery: {"alias"},
    exp.Table: {"db", "catalog", "alias", "version"},
    exp.TryCast: {"to"},
    exp.Select: {"from_", "where", "order", "limit", "offset", "with_"},
    exp.Star: set(),
    exp.Version: {"kind"},
    exp.With: set(),
}
_ARGUMENTS = {sql_type: (read | _EVERYWHERE) - _NOT_HERE.get(sql_type, set()) for sql_type, read in _READ.items()}
_SELECT = {
    "joins": "a join", "laterals": "a lateral view", "group": "GROUP BY", "having": "HAVING", "distinct": "DISTINCT",
    "windows": "a window", "qualify": "QUALIFY", "sort": "SORT BY", "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
}  # fmt: skip


def require_understood(query: Node) -> NotIndexableError | None:
    """Check one SELECT and all nodes in it. Raises NotIndexableError, naming the part.

    Kinds of nodes without an entry here support only the arguments that all kinds have. An error for one of those is
    returned: raise it after the query is read, as reading may give a better error.
    """
    later = None
    for node in query.walk():
        sql_type = type(node)
        read = _ARGUMENTS.get(sql_type, _EVERYWHERE)
        if is_literal(node) or (sql_type is exp.Column and isinstance(node.this, exp.Literal)):
            raise NotIndexableError(f"{_shown(node)} is a constant, and no name: write names in backticks")
        if sql_type is exp.Identifier and node.this == DISTANCE:
            raise NotIndexableError(f"{_shown(node)} is the name of the distance here")
        for name, value in node.args.items():
            if not value or name in read:
                continue
            if sql_type is exp.Select and name in _SELECT:
                raise NotIndexableError(f"it has {_SELECT[name]}")
            if sql_type is exp.Star:
                raise NotIndexableError(f"it selects {_shown(node)}: name the columns")
            problem = NotIndexableError(f"{_shown(node)}: {name} is not known here")
            if sql_type in _ARGUMENTS:
                raise problem
            later = later or problem
    return later


def _shown(node: Node) -> str:
    return str(node.sql(dialect="spark"))[:100]
