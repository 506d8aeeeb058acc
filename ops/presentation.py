"""What a person sees of a value: one line in a shell, small tables in a notebook."""

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_ROWS = 50
"""Rows that a notebook shows of a table"""
VALUE_WIDTH = 80
_NUMBER = re.compile(r"-?[\d,]+(\.\d+)?(e[+-]\d+)?%?")
_TABLE = "border-collapse:collapse;margin:0.3em 0 1em;color:inherit;font-size:inherit"
_CELL = "padding:0.15em 1em 0.15em 0;vertical-align:top;white-space:pre-wrap;border-bottom:1px solid #8886"


def printable(value: object, width: int) -> str:
    """A value as text of at most `width` letters, without those that do not print; the last one shows whether it is
    cut. Bytes are hexadecimal, as in JSON, and None is NULL, as in SQL.
    """
    plain = "NULL" if value is None else value.hex() if isinstance(value, bytes) else str(value)
    text = "".join(letter if letter.isprintable() else " " for letter in plain)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def plain_values(column: "pa.Array | pa.ChunkedArray") -> list[object]:
    """Values of a column; texts where Python lacks any of them: times beyond the year 9999, and nanoseconds."""
    try:
        values: list[object] = column.to_pylist()
    except (OverflowError, ValueError):
        values = column.cast("string").to_pylist()
    return values


def plain_rows(rows: "pa.Table") -> list[dict[str, object]]:
    """Rows by the names of their columns, with `plain_values`."""
    columns = map(plain_values, rows.columns)
    return [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def column_values(name: str, column: "pa.ChunkedArray") -> list[object]:
    """Values of a column of an answer as a person reads them: distances have four decimals, all other floats six
    digits behind the point, or six at all below 1, in lists as well.
    """
    values = plain_values(column)
    if name == "distance":
        return [f"{value:z.4f}" if isinstance(value, float) else value for value in values]
    return [_rounded(value) for value in values]


def _rounded(value: object) -> object:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}" if abs(value) < 1 else f"{value:.6f}") if isinstance(value, float) else value


@dataclass(frozen=True, slots=True)
class Grid:
    """One small table."""

    title: str
    rows: Sequence[Sequence[object]]
    columns: Sequence[str] = ()
    """Heads; none where the first cell of a row names the second, or a row is a line of text"""
    more: int = 0
    """Number of rows that are left out"""

    @classmethod
    def of_fields(cls, title: str, fields: Mapping[str, object]) -> "Grid":
        return cls(title, tuple(fields.items()))

    @classmethod
    def of_rows(cls, title: str, rows: "pa.Table", limit: int | None = None) -> "Grid":
        """The rows of an answer; the first `limit` where there are more."""
        shown = rows if limit is None else rows.slice(0, limit)
        names = tuple(shown.column_names)
        columns = [column_values(name, column) for name, column in zip(names, shown.columns, strict=True)]
        return cls(title, tuple(zip(*columns, strict=True)), names, rows.num_rows - shown.num_rows)

    def html(self) -> str:
        """The first rows in HTML without a style sheet; colors are those of the page around it."""
        title = f"<div><b>{html.escape(self.title)}</b></div>" if self.title else ""
        shown = self.rows[:SHOWN_ROWS]
        width = len(self.columns) or max(map(len, shown[:1]), default=0)
        sides = ["right" if self.is_numeric(column) else "left" for column in range(width)]
        heads = [_line("th", self.columns, sides)] if self.columns else []
        lines = [_line("td", [self._text(value) for value in row], sides) for row in shown]
        more = self.more + len(self.rows) - len(shown)
        rest = f"<div>and {more:,} more</div>" if more else ""
        return f"{title}<table style='{_TABLE}'>{''.join([*heads, *lines])}</table>{rest}"

    def is_numeric(self, column: int) -> bool:
        """Whether the cells of a column are numbers, which stand at its right."""
        cells = [str(row[column]) for row in self.rows] if self.columns else []
        return bool(cells) and all(map(_NUMBER.fullmatch, cells))

    def _text(self, value: object) -> str:
        return printable(value, VALUE_WIDTH) if self.columns else str(value)


def _line(tag: str, texts: Sequence[str], sides: Sequence[str]) -> str:
    cells = (
        f"<{tag} style='{_CELL};text-align:{side}'>{html.escape(text)}</{tag}>"
        for text, side in zip(texts, sides, strict=True)
    )
    return f"<tr>{''.join(cells)}</tr>"


class Presentation:
    """Base of what people print, or leave at the end of a notebook's cell."""

    __slots__ = ()

    def headline(self) -> str:
        """The value on one line."""
        raise NotImplementedError

    def fields(self) -> Mapping[str, object]:
        """The value in words, by short names; none where `grids` shows it otherwise."""
        return {}

    def grids(self) -> Iterable[Grid]:
        """The tables that a notebook shows."""
        yield Grid.of_fields("", self.fields())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.headline()})"

    def _repr_html_(self) -> str:
        return f"<p><code>{html.escape(repr(self))}</code></p>{''.join(grid.html() for grid in self.grids())}"
