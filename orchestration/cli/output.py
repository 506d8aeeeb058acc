"""What commands write: JSON, lines, fields, tables, warnings on stdout, and progress bars on stderr."""

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from icepuffin.ops.presentation import Grid, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID
    from rich.text import Text

    from icepuffin.ops.tasks.task_runner import StageProgress

_PIPE_WIDTH = 160
_TITLE_WIDTH = 200


def open_console() -> "Console":
    """A console on stdout. In a pipe it is wide, where Rich takes 80 columns and folds names and paths."""
    from rich.console import Console

    console = Console(soft_wrap=True)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(soft_wrap=True, width=_PIPE_WIDTH)


def print_lines(console: "Console", *lines: str, style: str | None = None) -> None:
    """Each text on a line of its own, as it is: brackets and numbers have no meaning to the terminal."""
    for line in lines:
        console.print(line, markup=False, highlight=False, style=style)


def print_fields(console: "Console", fields: Mapping[str, object], *, width: int = 10) -> None:
    """A line for each field: the key, aligned to the right in `width` columns, and the value."""
    print_lines(console, *(f"{key:>{width}}  {value}" for key, value in fields.items()))


def print_warnings(console: "Console", warnings: Iterable[str]) -> None:
    """A line for each warning."""
    from rich.text import Text

    for warning in warnings:
        console.print(Text.assemble(("warning:", "yellow"), " ", warning))


def print_grid(console: "Console", grid: Grid, *, width: int = 200, whole: int = 1) -> None:
    """A table of values, or a line for each field under a title. Names and values of a table are cut at `width`
    letters, and folded where the terminal is narrow.

    The first `whole` columns are never folded: they name the row, and somebody may copy a snapshot id from them.
    """
    if not grid.columns:
        print_lines(console, grid.title, style="bold")
        print_fields(console, {str(name): text for name, text in grid.rows})
        return
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = cell(grid.title, _TITLE_WIDTH) if grid.title else None
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column, name in enumerate(grid.columns):
        side: Literal["left", "right"] = "right" if grid.is_numeric(column) else "left"
        table.add_column(cell(name, width), overflow="fold", no_wrap=column < whole, justify=side)
    for row in grid.rows:
        table.add_row(*(cell(value, width) for value in row))
    console.print(table)


def cell(value: object, width: int) -> "Text":
    """A value as a terminal shows it: at most `width` letters, none of which is markup or a control character."""
    from rich.text import Text

    return Text(printable(value, width))


def print_json(document: object) -> None:
    """One JSON document on stdout. A value that JSON lacks becomes text, NaN and infinity among them."""
    click.echo(json.dumps(json_value(document), indent=2, allow_nan=False))


def report_document(report: Any) -> dict[str, object]:
    """The fields of a frozen report. Snapshot ids become text, as JSON readers lose digits of large numbers."""
    return {name: _with_text_ids(value, name) for name, value in dataclasses.asdict(report).items()}


def _with_text_ids(value: Any, name: str) -> Any:
    """A value of the field of that name, within which ids of snapshots are text."""
    if isinstance(value, Mapping):
        return {key: _with_text_ids(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text_ids(item, name) for item in value]
    return str(value) if name.endswith("snapshot_id") and value is not None else value


def json_value(value: Any) -> object:
    """A value of JSON: one that it lacks becomes text."""
    if isinstance(value, Mapping):
        return {key: json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | int | float):
        return value
    return json_value(value.tolist()) if hasattr(value, "tolist") else _text(value)


def _text(value: Any) -> str:
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return value.hex() if isinstance(value, bytes) else str(value)


def confirm(question: str, refusal: str) -> None:
    """Ask on stderr. Raises Abort where the answer is no, UsageError with `refusal` where nobody can answer."""
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # the prompt ends without a new line
        raise click.UsageError(f"{refusal}: without a terminal, confirm with --yes") from None


@contextmanager
def progress_bars(*, quiet: bool) -> Iterator["StageProgress"]:
    """A function that draws progress bars on stderr, one per label; they are removed when the work is done. Nothing is
    drawn when quiet, or without a terminal.
    """
    if quiet:
        yield lambda label, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bars: dict[str, TaskID] = {}

        def show(label: str, done: int, total: int) -> None:
            if label not in bars:
                bars[label] = progress.add_task(label, total=total)
            progress.update(bars[label], completed=done, total=total)

        yield show
