"""What commands on one table share: its name, where it lies, and how the answer is to look."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from icepuffin.orchestration.cli.session import Session, located

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from icepuffin.assets.spec import TableSpec
    from icepuffin.assets.table_settings import TableSettings
    from icepuffin.ops.index.definition import IndexDefinition
    from icepuffin.ops.model import StorageConfig

table_argument = click.argument("table", metavar="NAMESPACE.TABLE")
catalog_option = click.option("--catalog", help="Catalog of the settings. [default: that of the table, else the first]")
json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout, nothing else.")


@dataclass
class OnTable:
    """One command on one table."""

    session: Session
    name: str
    """`namespace.table`"""
    catalog: str | None
    """As it was given; None leaves it to the settings"""
    as_json: bool

    @cached_property
    def loaded(self) -> "Table":
        return self.session.catalogs.table(self._catalog_name, self.name)

    @cached_property
    def storage(self) -> "StorageConfig":
        from icepuffin.ops.catalog.vended_config import storage_of

        return storage_of(self.loaded)

    @cached_property
    def settings(self) -> "TableSettings":
        return self.session.table_settings(self.catalog, self.name)

    @cached_property
    def spec(self) -> "TableSpec":
        """What is kept of the table, by the settings and by its own properties."""
        from icepuffin.orchestration.discovery import indexes_of, table_spec

        return table_spec(self.settings, self.session.catalogs, indexes_of(self.loaded, self.settings))

    @property
    def indexes(self) -> tuple["IndexDefinition", ...]:
        """Those of the settings and those that the table itself defines."""
        return self.spec.indexes

    def snapshot_id(self, named: str | None) -> int:
        """Of a snapshot id, tag, branch or time; None: the newest of main."""
        from icepuffin.ops.catalog.snapshots import resolve_snapshot

        return resolve_snapshot(self.loaded, named).snapshot_id

    def chosen(self, index: str | None) -> list["IndexDefinition"]:
        """The index of that name; without one, all there are."""
        found = [item for item in self.indexes if index in (None, item.name)]
        if index is not None and not found:
            raise click.ClickException(f"{self.name} has no index '{index}'; see: icepuffin index list {self.name}")
        return found

    def index(self, name: str | None) -> "IndexDefinition":
        """The index of that name; without one, the only one there is."""
        chosen = [item for item in self.indexes if name in (None, item.name)]
        if len(chosen) == 1:
            return chosen[0]
        names = ", ".join(item.name for item in self.indexes)
        if name is None and names:
            raise click.ClickException(f"{self.name} has several indexes, name one: {names}")
        which = "index" if name is None else f"index '{name}'"
        remedy = f"it has: {names}" if names else f"make one with: {self._create}"
        raise click.ClickException(f"{self.name} has no {which}; {remedy}")

    def vector_column(self, definition: "IndexDefinition", snapshot: str | None) -> str:
        """The name that the index's column has in the snapshot: it may have been renamed since, or before."""
        from icepuffin.ops.catalog.snapshots import schema_at
        from icepuffin.ops.index.definition import resolve_field

        schema = schema_at(self.loaded, snapshot)
        return schema.find_column_name(resolve_field(definition, schema, self.name)) or definition.column

    @property
    def _create(self) -> str:
        return f"icepuffin index create {self.name} --name NAME --column COLUMN"

    @property
    def _catalog_name(self) -> str:
        return self.session.catalog_name(self.catalog, self.name)


def on_table(function: Callable[..., None]) -> Callable[..., None]:
    """TABLE, --catalog, --json, --dir and --settings of a command, handed over as one `OnTable`."""

    @wraps(function)
    def command(
        session: Session,
        /,
        table: str,
        catalog: str | None,
        directory: Path | None,
        settings: Path | None,
        *,
        as_json: bool = False,
        **options: Any,
    ) -> None:
        if not all(table.partition(".")):
            raise click.UsageError(f"'{table}' is no table; name one as namespace.table")
        function(OnTable(session.at(directory, settings), table, catalog, as_json), **options)

    decorated: Any = click.pass_obj(command)
    for option in (located, json_option, catalog_option, table_argument):
        decorated = option(decorated)
    made: Callable[..., None] = decorated
    return made
