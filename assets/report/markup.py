"""HTML and SVG as text, in which nothing but its own elements is markup."""

import html
from collections.abc import Iterable

Child = str | Iterable["Child"] | None
_VOID = frozenset({"meta", "br", "rect", "path", "line", "polyline", "circle"})
"""Elements without content"""


class Markup(str):
    """Text that is markup already; any other text is escaped where an element takes it."""

    __slots__ = ()


def element(name: str, /, *children: Child, **attributes: object) -> Markup:
    """An element; an attribute that is None is left out, and `_` in a name stands for `-`: `aria_label`, `class_`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*children: Child) -> Markup:
    """The children one after the other."""
    return Markup("".join(_text(child) for child in children))


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, str):
        return child if isinstance(child, Markup) else html.escape(child)
    return joined(*child)
