"""What commands on one table share: its name, its catalog, its settings, and whether the answer is JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar

import click

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.rows.element_types import OF_COLUMN
from icepuffin.orchestration.cli.session import Session, session_command

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from rich.console import Console

    from icepuffin.assets.spec import TableSpec
    from icepuffin.assets.table_settings import TableSettings
    from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
    from icepuffin.ops.index.upkeep.index_states import IndexList
    from icepuffin.ops.model import StorageConfig

table_argument = click.argument("table", metavar="NAMESPACE.TABLE")
catalog_option = click.option("--catalog", help="Catalog of the settings. [default: that of the table, else the first]")
json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout, nothing else.")
METRICS = click.Choice([metric.value for metric in Metric])

A = TypeVar("A")


@dataclass
class TableContext:
    """The table of one command."""

    session: Session
    name: str
    """`namespace.table`"""
    catalog: str | None
    """The catalog as it was given; None leaves it to the settings"""
    as_json: bool

    @property
    def console(self) -> "Console":
        return self.session.console

    @cached_property
    def table(self) -> "Table":
        return self.session.catalogs.table(self.session.catalog_name(self.catalog, self.name), self.name)

    @cached_property
    def storage(self) -> "StorageConfig":
        from icepuffin.ops.catalog.vended_config import storage_of

        return storage_of(self.table)

    @cached_property
    def settings(self) -> "TableSettings":
        return self.session.table_settings(self.catalog, self.name)[0]

    @cached_property
    def spec(self) -> "TableSpec":
        """What is kept of the table, by the settings and by its own properties."""
        from icepuffin.orchestration.discovery import indexes_of, table_spec

        settings, by_pattern = self.session.table_settings(self.catalog, self.name)
        return table_spec(settings, indexes_of(self.table, settings, by_pattern=by_pattern))

    @property
    def indexes(self) -> tuple["IndexDefinition", ...]:
        """Indexes of the settings, and those that the table itself defines."""
        return self.spec.indexes

    @property
    def index_states(self) -> "IndexList":
        from icepuffin.ops.index.upkeep.index_states import IndexList, state_of

        return IndexList(state_of(self.table, definition, self.spec.first_ref) for definition in self.indexes)

    def work(self, index: str | None, snapshot: str | None) -> dict[str, Any]:
        """What a run that is planned or made is given: the snapshot, of the watched ref where none is named, the index
        of that name or all, and without a name the sketches.
        """
        definitions = self.indexes_named(index)
        ref, statistics = self.spec.first_ref, self.spec.settings.statistics
        snapshot_id = self.snapshot_id(ref if snapshot is None else snapshot)
        return {
            "run": self.session.engine.run_on(self.table, snapshot_id, ref),
            "snapshot_id": snapshot_id,
            "definitions": definitions,
            "sketches": statistics.keeps_ndv and index is None,
            "requested": statistics.requested,
        }

    def snapshot_id(self, snapshot: str | None) -> SnapshotId:
        """Id of a snapshot that is named by id, tag, branch or time; None is the newest of main."""
        from icepuffin.ops.table.snapshots import resolve_snapshot

        return resolve_snapshot(self.table, snapshot).snapshot_id

    def indexes_named(self, name: str | None) -> list["IndexDefinition"]:
        """The index of that name; without one, all indexes."""
        from icepuffin.ops.index.definitions.ddl import find_definition

        if name is not None and name not in self.settings.indexes:
            find_definition(self.table, name)  # raises for what a list of all would warn of
        named = [index for index in self.indexes if name in (None, index.name)]
        if name is not None and not named:
            raise click.ClickException(f"{self.name} has no index '{name}'; {self._index_remedy}")
        return named

    @property
    def left_out(self) -> "dict[str, DefinitionError]":
        return self.spec.left_out(self.table)

    def index(self, name: str | None) -> "IndexDefinition":
        """The index of that name; without one, the only index."""
        named = self.indexes_named(name)
        left_out = self.left_out if name is None else {}
        if len(named) == 1 and not left_out:
            return named[0]
        if named:
            names = ", ".join(sorted([*left_out, *(index.name for index in named)]))
            raise click.ClickException(f"{self.name} has several indexes, name one: {names}")
        for error in left_out.values():
            raise error
        raise click.ClickException(f"{self.name} has no index; {self._index_remedy}")

    def vector_column(self, definition: "IndexDefinition", snapshot: str | None) -> str:
        """Name of the index's column in the snapshot: the column may have been renamed since, or before."""
        from icepuffin.ops.index.definitions.definition_columns import resolve_field
        from icepuffin.ops.table.snapshots import schema_at

        schema = schema_at(self.table, snapshot)
        return schema.find_column_name(resolve_field(definition, schema, self.name)) or definition.column

    def checked_column(self, column: str, snapshot: str | None, element_type: str | None) -> str:
        """A column's name, once the snapshot is known to have vectors there. Raises DefinitionError."""
        from icepuffin.ops.index.definitions.definition_columns import resolve_column
        from icepuffin.ops.table.snapshots import schema_at

        resolve_column(column, schema_at(self.table, snapshot), self.name, element_type or OF_COLUMN)
        return column

    @property
    def _index_remedy(self) -> str:
        if names := ", ".join(index.name for index in self.indexes):
            return f"it has: {names}"
        return f"make one with: icepuffin index create {quote(self.name)} --name NAME --column COLUMN"


def require_table_name(table: str) -> None:
    """Raises UsageError for what has not the form of a table's name."""
    if not all(table.split(".")) or "." not in table:
        raise click.UsageError(f"'{table}' is no table; name one as namespace.table")


def table_command(function: Callable[..., None]) -> Callable[..., None]:
    """Take TABLE, --catalog, --json, --dir and --settings, and hand them to `function` as one `TableContext`."""

    @wraps(function)
    def command(session: Session, /, table: str, catalog: str | None, *, as_json: bool, **options: Any) -> None:
        require_table_name(table)
        _ = session.settings  # wrong settings are refused before the command imports PyIceberg
        function(TableContext(session, table, catalog, as_json), **options)

    decorated = session_command(command)
    for option in (json_option, catalog_option, table_argument):
        decorated = option(decorated)
    return decorated


def metadata_command(function: Callable[..., None]) -> Callable[..., None]:
    """A `table_command` that shows no rows of the table, so that PyArrow may do without pandas. Raises TableFaultError
    where the table's metadata has what nobody foresaw.
    """

    @wraps(function)
    def command(context: TableContext, /, **options: Any) -> None:
        from icepuffin.ops.errors import faults_of
        from icepuffin.ops.process.arrow_import import import_arrow

        import_arrow()
        try:
            function(context, **options)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            if isinstance(error, ValueError) and type(error) is not ValueError:
                raise  # of a file or a vector, and says which
            with faults_of(context.name):
                raise

    return table_command(command)


def index_name(help_text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Take the name of an index after the table or by --index, and hand it over as `index`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(context: TableContext, /, positional: str | None, index: str | None, **options: Any) -> None:
            if None not in (positional, index) and positional != index:
                raise click.UsageError(f"two indexes are named: {positional} and {index}")
            function(context, index=positional if index is None else index, **options)

        with_option = click.option("--index", "index", help=help_text)(command)
        return click.argument("positional", metavar="[INDEX]", required=False)(with_option)

    return decorate


def options_as(arguments_class: Callable[..., A]) -> Callable[[Callable[[TableContext, A], None]], Callable[..., None]]:
    """Hand the other options to a command as one value of a class whose parameters have the options' names."""

    def decorate(function: Callable[[TableContext, A], None]) -> Callable[..., None]:
        @wraps(function)
        def command(context: TableContext, /, **options: Any) -> None:
            function(context, arguments_class(**options))

        return command

    return decorate
