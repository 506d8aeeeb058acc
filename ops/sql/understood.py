"""What is read of sqlglot's nodes. A query with more is refused: a part that nobody reads must not be passed over."""

from sqlglot import exp

from icepuffin.ops.sql.errors import NotIndexableError
from icepuffin.ops.sql.values import Node

_EVERYWHERE = {"this", "expression", "expressions"}
_ARGUMENTS: dict[type, set[str]] = {
    exp.Alias: {"alias"},
    exp.Between: {"low", "high"},
    exp.Case: {"ifs", "default"},
    exp.Cast: {"to"},
    exp.Column: {"table", "db", "catalog"},
    exp.Concat: {"safe", "coalesce"},
    exp.CTE: {"alias"},
    exp.DataType: {"nested"},
    exp.Div: {"safe", "typed"},
    exp.DPipe: {"safe"},
    exp.Identifier: {"quoted"},
    exp.Literal: {"is_string"},
    exp.Fetch: {"direction", "count", "limit_options"},
    exp.If: {"true", "false"},
    exp.ILike: {"negate"},
    exp.In: {"query"},
    exp.Like: {"negate"},
    exp.LimitOptions: {"rows", "percent", "with_ties"},
    exp.Star: {"except_", "replace", "rename"},  # refused by name
    exp.Ordered: {"desc", "nulls_first"},
    exp.Round: {"decimals"},
    exp.Subquery: {"alias"},
    exp.Table: {"db", "catalog", "alias", "version"},
    exp.TryCast: {"to"},
    exp.Version: {"kind"},
    exp.With: set(),
}
_SELECT = {
    "joins": "a join", "laterals": "a lateral view", "group": "GROUP BY", "having": "HAVING", "distinct": "DISTINCT",
    "windows": "a window", "qualify": "QUALIFY", "sort": "SORT BY", "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
}  # fmt: skip
_SELECT_READ = {"expressions", "from_", "where", "order", "limit", "offset", "with_", "hint"}


def require_understood(query: Node, *, rest: bool = False) -> None:
    """Of one SELECT and all that is in it. Raises NotIndexableError, naming the part.

    `rest`: of nodes without an entry here as well, which have no arguments but those that all have. To be asked for
    once the query is read, which says better what is wrong with them.
    """
    for node in query.walk():
        read = _SELECT_READ if isinstance(node, exp.Select) else _ARGUMENTS.get(type(node), set() if rest else None)
        if read is None:
            continue
        for name, value in node.args.items():
            if value and name not in read | _EVERYWHERE:
                what = _SELECT.get(name) if isinstance(node, exp.Select) else None
                raise NotIndexableError(f"it has {what}" if what else f"{_shown(node)}: {name} is not known here")


def _shown(node: Node) -> str:
    return str(node.sql(dialect="spark"))[:100]
