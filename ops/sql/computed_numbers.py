"""A mark on nodes of sqlglot's trees: they are expressions to Spark, even where they are numbers in the tree."""

from typing import Any

_COMPUTED = "computed"


def as_computed(node: Any) -> Any:
    """The node, marked as an expression to Spark even if it is a number: `+7`, or a column of a subquery that is 7.

    Beside decimals such a number has the digits of an integer; one that is written has its own. ORDER BY takes it for
    a value, not for the number of a column.
    """
    node.meta[_COMPUTED] = True
    return node


def is_computed(node: Any) -> bool:
    """Whether the node has the mark of `as_computed`."""
    return bool(node.meta.get(_COMPUTED))
