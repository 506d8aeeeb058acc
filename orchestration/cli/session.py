"""What every command needs: the settings, the table that was named, a console. Loaded when first asked for."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.text import Text

    from icepuffin.assets.table_settings import TableSettings
    from icepuffin.ops.resources import Catalogs, Engine
    from icepuffin.orchestration.settings import Settings

_PIPE_WIDTH = 160

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Session:
    """One invocation of the command line."""

    directory: Path | None = None
    settings_path: Path | None = None

    def at(self, directory: Path | None, settings: Path | None) -> "Session":
        """The same session with the options of a command over those of the group."""
        if directory is None and settings is None:
            return self
        return replace(self, directory=directory or self.directory, settings_path=settings or self.settings_path)

    @cached_property
    def settings_file(self) -> Path:
        from icepuffin.orchestration.settings import find

        return find(self.settings_path, self.directory).resolve()

    @cached_property
    def settings(self) -> "Settings":
        from icepuffin.orchestration.engines import use_shard_cache
        from icepuffin.orchestration.settings import load

        loaded = load(self.settings_file)
        use_shard_cache(loaded)
        return loaded

    @cached_property
    def catalogs(self) -> "Catalogs":
        from icepuffin.ops.resources import Catalogs

        return Catalogs({name: item.properties for name, item in self.settings.catalogs.items()})

    @cached_property
    def engine(self) -> "Engine":
        from icepuffin.orchestration.engines import engine_of

        return engine_of(self.settings)

    @cached_property
    def console(self) -> "Console":
        from rich.console import Console

        # in a pipe Rich takes 80 columns for granted, and folds names and paths that somebody wants to cut out
        found = Console(soft_wrap=True)
        return found if found.is_terminal or "COLUMNS" in os.environ else Console(soft_wrap=True, width=_PIPE_WIDTH)

    def catalog_name(self, catalog: str | None, table: str) -> str:
        """The catalog that was named; else that of the table in the settings; else the first."""
        if catalog is not None:
            return catalog
        of_table = [item.catalog for item in self.settings.tables.values() if item.name == table]
        return of_table[0] if of_table else next(iter(self.settings.catalogs))

    def table_settings(self, catalog: str | None, table: str) -> "TableSettings":
        """The settings of a table; the defaults for one that is not in the file."""
        from icepuffin.assets.table_settings import TableSettings

        name = self.catalog_name(catalog, table)
        known = [item for item in self.settings.tables.values() if (item.catalog, item.name) == (name, table)]
        return known[0] if known else TableSettings(catalog=name, name=table)

    def warn(self, warnings: Iterable[str]) -> None:
        """A line for each."""
        from rich.text import Text

        for warning in warnings:
            self.console.print(Text.assemble(("warning:", "yellow"), " ", warning))

    @contextmanager
    def bars(self, *, quiet: bool) -> Iterator["Bars"]:
        """Progress bars on stderr, gone when the work is done; none when quiet, or where nobody sees them move."""
        if quiet:
            yield Bars(None)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
            yield Bars(shown)


class Bars:
    """One bar for each label that is told of."""

    def __init__(self, shown: "Progress | None") -> None:
        self._shown = shown
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, label: str, done: int, total: int) -> None:
        """`done` of `total` pieces of what `label` names are finished."""
        if self._shown is None:
            return
        if label not in self._tasks:
            self._tasks[label] = self._shown.add_task(label, total=total)
        self._shown.update(self._tasks[label], completed=done, total=total)


def located(function: F) -> F:
    """`--dir` and `--settings` after the command as well as before it."""
    options = (
        click.option("--dir", "directory", type=click.Path(path_type=Path), help="Folder that holds icepuffin.toml."),
        click.option("--settings", "settings", type=click.Path(path_type=Path), help="Settings file."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def told(report: Any) -> dict[str, Any]:
    """A frozen report as a dictionary; snapshot ids become text, as JSON readers lose digits of large numbers."""
    return _with_text_ids(dataclasses.asdict(report))


def _with_text_ids(items: dict[str, Any]) -> dict[str, Any]:
    return {key: str(item) if key.endswith("snapshot_id") and item is not None else item for key, item in items.items()}


def counted(number: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def cell(value: Any, width: int) -> "Text":
    """What a table holds, as a terminal shows it: at most `width` letters, none of which is markup or control."""
    from rich.text import Text

    text = "".join(letter if letter.isprintable() else " " for letter in str(value))
    return Text(text if len(text) <= width else f"{text[: width - 1]}…")


def print_json(value: Any) -> None:
    """One JSON document on stdout. What is no JSON type becomes text."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)
