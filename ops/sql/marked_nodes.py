"""Marks on nodes of sqlglot's trees: what stood in the text, which the tree alone does not have."""

from typing import Any

_WRITTEN = "written"
_LITERAL = "literal"


def as_written(node: Any) -> Any:
    """The node of what stands in parentheses in the text, marked: sqlglot makes parentheses of its own, too."""
    if node is not None:
        node.meta[_WRITTEN] = True
    return node


def is_written(node: Any) -> bool:
    """Whether the node has the mark of `as_written`."""
    return bool(node.meta.get(_WRITTEN))


def as_literal(node: Any) -> Any:
    """A name, marked as a text or a number, which is no name to Spark, as in `id AS "x"`."""
    if node is not None:
        node.meta[_LITERAL] = True
    return node


def is_literal(node: Any) -> bool:
    """Whether the node has the mark of `as_literal`."""
    return bool(node.meta.get(_LITERAL))
