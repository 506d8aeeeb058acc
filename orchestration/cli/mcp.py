"""`icepuffin mcp`."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import click
from pydantic import Field

from icepuffin.ops.presentation import plain_rows
from icepuffin.orchestration.cli.output import json_value, report_document
from icepuffin.orchestration.cli.session import Session, session_command
from icepuffin.orchestration.cli.table_options import TableContext

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from icepuffin.ops.search.result import SearchResult

_MAX_ANSWER, _MAX_LETTERS = 100, 10_000
"""The most rows, or snapshots, of one answer, and letters of one text in a call"""
_Count = Annotated[int, Field(ge=1, le=_MAX_ANSWER)]
_Text = Annotated[str | None, Field(max_length=_MAX_LETTERS)]
_Words = Annotated[_Text, Field(description="Words to find in the index's columns of texts")]
_Like = Annotated[_Text, Field(description="Id of a row, whose vector is searched with")]
_Where = Annotated[_Text, Field(description="Iceberg row filter, such as section = 'web'")]
_Snapshot = Annotated[_Text, Field(description="Snapshot id, tag, branch or time. Default: the head of main")]
_Vector = Annotated[list[float] | None, Field(max_length=65_536)]
_Columns = Annotated[list[str] | None, Field(max_length=_MAX_ANSWER)]


@click.command("mcp")
@session_command
def command(session: Session) -> None:
    """Serve the tables of the settings to a language model, by MCP on stdin and stdout, until stdin ends.

    The tools tables, search, explain and snapshots read these tables alone, and write nothing. An answer has at most
    100 rows.

    \b
    Example:
      icepuffin mcp --settings /srv/lake/icepuffin.toml
    """
    if not session.settings.tables:
        raise click.ClickException(f"{session.settings_file} names no table; `icepuffin init` writes one")
    server_of(session).run()


def server_of(session: Session) -> "MCPServer[Any]":
    """The server of the tables that the settings name. Raises ModuleNotFoundError without the extra."""
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import ToolAnnotations

    from icepuffin import __version__
    from icepuffin.assets.newest_snapshots import newest_snapshots
    from icepuffin.ops.errors import IcepuffinError
    from icepuffin.ops.search.opening import open_index
    from icepuffin.orchestration.cli.query_vectors import vector_of_row

    server: MCPServer[Any] = MCPServer("icepuffin", version=__version__, log_level="WARNING")

    def tables() -> dict[str, Any]:
        return {"tables": list(_tables(session))}

    def snapshots(table: str, limit: _Count = 20, catalog: str | None = None) -> dict[str, Any]:
        context = _context(session, table, catalog)
        return {"snapshots": [report_document(entry) for entry in newest_snapshots(context.table, context.spec, limit)]}

    def found(
        table: str,
        k: _Count = 10,
        index: str | None = None,
        text: _Words = None,
        vector: _Vector = None,
        like_id: _Like = None,
        id_column: str = "id",
        where: _Where = None,
        snapshot: _Snapshot = None,
        columns: _Columns = None,
        catalog: str | None = None,
    ) -> dict[str, Any]:
        context = _context(session, table, catalog)
        definition = context.index(index)
        query: Any = vector
        at: dict[str, Any] = {"snapshot": snapshot, "storage": context.storage}
        if like_id is not None:
            if vector is not None:
                raise click.UsageError("give vector or like_id, not both")
            column, kind = context.vector_column(definition, snapshot), definition.element_type
            query = vector_of_row(context.table, column, like_id, id_column=id_column, element_type=kind, **at)
        reader = open_index(context.table, definition, threads=session.settings.thread_count, **at)
        return {"result": reader.search(query, k, text=text, where=where, columns=columns)}

    def told(result: "SearchResult") -> dict[str, str]:
        return {"explanation": result.explain()}

    def offer(name: str, about: str, function: Callable[..., Any], shown: Callable[..., Any] = dict) -> None:
        @wraps(function)
        def tool(**arguments: Any) -> Any:
            try:
                return json_value(shown(**function(**arguments)))
            except (click.ClickException, IcepuffinError) as error:  # of any other MCP tells that there was one
                raise ToolError(" ".join(str(error).split())) from error

        hints = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        server.add_tool(tool, name=name, description=about, annotations=hints)

    offer("tables", "The tables: columns, indexes, and how many newer snapshots lack a version of each index.", tables)
    offer("search", "The rows that are best by words (text), nearest to a vector, or both fused.", found, _rows)
    offer("explain", "How such a search is answered: index version, path, costs; no rows.", found, told)
    offer("snapshots", "The newest snapshots: time, operation, rows, and what is derived from each.", snapshots)
    return server


def _rows(result: "SearchResult") -> dict[str, Any]:
    at = {"snapshot_id": str(result.snapshot_id), "coverage": str(result.coverage)}
    return {**at, "warnings": list(result.warnings), "rows": plain_rows(result.rows.drop_columns(["query"]))}


def _context(session: Session, table: str, catalog: str | None) -> TableContext:
    """A table of the settings. Raises UsageError for all others, whether or not the catalog has them."""
    if not any(catalog in (None, entry.catalog) for entry in session.entries(table)):
        raise click.UsageError("this is no table of the settings: take one that the tool `tables` lists")
    return TableContext(session, table, catalog, as_json=True)


def _tables(session: Session) -> Iterator[dict[str, Any]]:
    """The tables of the settings, each once; in place of what cannot be read the error."""
    from icepuffin.ops.errors import IcepuffinError, faults_of

    for entry, _, unlisted in session.tables():
        try:
            if unlisted:
                raise unlisted
            with faults_of(entry.name):
                yield _description(TableContext(session, entry.name, entry.catalog, as_json=True))
        except IcepuffinError as error:
            yield {"table": entry.name, "catalog": entry.catalog, "error": str(error)}


def _description(context: TableContext) -> dict[str, Any]:
    indexes = [
        {name: getattr(state.definition, name) for name in ("name", "column", "metric", "text", "filters")}
        | {"versions": len(state.versions), "snapshot_id": state.snapshot_id and str(state.snapshot_id)}
        | {"snapshots_behind": state.lag and state.lag.snapshots}
        for state in context.index_states
    ]
    columns = {field.name: str(field.field_type) for field in context.table.schema().fields}
    return {"table": context.name, "catalog": context.catalog, "columns": columns, "indexes": indexes}
