"""One invocation of the command line: its settings, its catalogs, its engine and its console, made when first used."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from icepuffin.assets.table_settings import TableSettings
    from icepuffin.ops.errors import IcepuffinError
    from icepuffin.ops.resources import Catalogs, Engine
    from icepuffin.orchestration.settings import Settings


@dataclass
class Session:
    """What options say of the settings, and what is opened with them."""

    directory: Path | None = None
    settings_path: Path | None = None

    @cached_property
    def settings_file(self) -> Path:
        from icepuffin.orchestration.settings import find

        return find(self.settings_path, self.directory).resolve()

    @cached_property
    def settings(self) -> "Settings":
        from icepuffin.orchestration.settings import load

        settings = load(self.settings_file)
        if settings.cache is not None:
            from icepuffin.orchestration.engines import use_shard_cache  # imports PyIceberg

            use_shard_cache(settings)
        return settings

    @cached_property
    def catalogs(self) -> "Catalogs":
        from icepuffin.orchestration.engines import catalogs_of

        return catalogs_of(self.settings)

    @cached_property
    def engine(self) -> "Engine":
        from icepuffin.orchestration.engines import engine_of

        return engine_of(self.settings)

    @cached_property
    def console(self) -> "Console":
        from icepuffin.orchestration.cli.output import open_console

        return open_console()

    def catalog_name(self, catalog: str | None, table: str) -> str:
        """`catalog` where it is named; else the table's catalog in the settings; else the first.

        Raises UsageError where the settings have the table in several catalogs.
        """
        if catalog is not None:
            return catalog
        entries = self.entries(table)
        of_table = [entry for entry in entries if entry.name == table] or entries
        names = tuple(dict.fromkeys(entry.catalog for entry in of_table))
        if len(names) > 1:
            raise click.UsageError(
                f"{self.settings_file} has {table} in several catalogs: name one with --catalog: {', '.join(names)}"
            )
        return names[0] if names else next(iter(self.settings.catalogs))

    def table_settings(self, catalog: str | None, table: str) -> "tuple[TableSettings, bool]":
        """(the settings of a table, whether they are those of a pattern); the defaults for a table that no entry of the
        file stands for.
        """
        from icepuffin.assets.table_settings import TableSettings

        name = self.catalog_name(catalog, table)
        entries = [entry for entry in self.entries(table) if entry.catalog == name]
        if not entries:
            return TableSettings(catalog=name, name=table), False
        return entries[0].model_copy(update={"name": table}), entries[0].name != table

    def tables(self) -> "Iterator[tuple[TableSettings, bool, IcepuffinError | None]]":
        """(settings, whether they are those of a pattern, None) of each table of the settings, each once; of a pattern
        that the catalog does not list the error. A table's own entry counts, not a pattern's.
        """
        from icepuffin.ops.errors import IcepuffinError
        from icepuffin.ops.resources import is_pattern

        listed: set[tuple[str, str]] = set()
        for entry in sorted(self.settings.tables.values(), key=lambda entry: is_pattern(entry.name)):
            by_pattern = is_pattern(entry.name)
            try:
                names = self.catalogs.matching(entry.catalog, entry.name) if by_pattern else (entry.name,)
            except IcepuffinError as error:
                yield entry, True, error
                continue
            for name in names:
                if (entry.catalog, name) not in listed:
                    listed.add((entry.catalog, name))
                    yield entry.model_copy(update={"name": name}), by_pattern, None

    def entries(self, table: str) -> "list[TableSettings]":
        """The entries of the file that stand for a table: its own first, then the patterns that it matches."""
        from icepuffin.ops.resources import is_named_by

        entries = [entry for entry in self.settings.tables.values() if is_named_by(table, entry.name)]
        return sorted(entries, key=lambda entry: entry.name != table)


def session_command(function: Callable[..., None]) -> Callable[..., None]:
    """Take --dir and --settings, and hand them to `function` as one `Session`."""

    @wraps(function)
    def command(directory: Path | None, settings: Path | None, **options: Any) -> None:
        function(Session(directory, settings), **options)

    path = click.Path(path_type=Path)
    with_settings = click.option("--settings", type=path, help="Settings file. [default: ./icepuffin.toml]")(command)
    return click.option("--dir", "directory", type=path, help="Folder that holds icepuffin.toml.")(with_settings)
