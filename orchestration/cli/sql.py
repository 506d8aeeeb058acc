"""`icepuffin sql`."""

from pathlib import Path
from typing import Any

import click

from icepuffin.orchestration.cli.session import Session, cell, located, print_json
from icepuffin.orchestration.cli.table_options import json_option


@click.command("sql")
@click.argument("text", metavar="STATEMENT")
@click.option("--catalog", help="Catalog of tables named without one. [default: the settings' first]")
@click.option("--param", "parameters", multiple=True, metavar="NAME=JSON", help="A value for :NAME in the statement.")
@click.option("--spark", is_flag=True, help="Run on Spark, as the settings have it, what no index answers.")
@json_option
@located
@click.pass_obj
def command(
    session: Session,
    /,
    text: str,
    catalog: str | None,
    parameters: tuple[str, ...],
    directory: Path | None,
    settings: Path | None,
    *,
    spark: bool,
    as_json: bool,
) -> None:
    """Run one statement.

    \b
    Examples:
      icepuffin sql "SELECT name, cosine_distance(embedding, :q) AS d FROM demo.packages
                     WHERE section = 'database' ORDER BY d LIMIT 5" --param q=[0.1,0.2,...]
      icepuffin sql "SELECT id FROM demo.packages TIMESTAMP AS OF '2026-11-20' ORDER BY ..."
      icepuffin sql "CREATE INDEX i ON demo.packages USING diskann (embedding) WITH (metric = 'l2')"
      icepuffin sql "REFRESH INDEX i ON demo.packages"
      icepuffin sql "EXPLAIN SELECT ..."
    """
    import logging

    from icepuffin.ops.catalog.vended_config import storage_of
    from icepuffin.ops.resources import TableMissingError
    from icepuffin.ops.sql import SqlSession
    from icepuffin.ops.sql.errors import NotIndexableError

    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of statements that are refused below, with a reason
    session = session.at(directory, settings)
    default = catalog or next(iter(session.settings.catalogs))

    def open_table(name: str) -> tuple[Any, Any]:
        first, _, rest = name.partition(".")
        chosen, identifier = (first, rest) if first in session.settings.catalogs and "." in rest else (default, name)
        try:
            table = session.catalogs.table(chosen, identifier)
        except TableMissingError as error:
            if spark:  # which may know it
                raise NotIndexableError(str(error)) from error
            raise
        return table, storage_of(table)

    sql = SqlSession(
        open_table,
        spark=session.engine.session if spark else None,
        runner=session.engine.runner(0),
        threads=session.settings.thread_count,
        in_process_mb=session.settings.spark.in_process_mb,
    )
    found = sql.sql(text, _values(parameters))
    if as_json:
        warnings = list(found.search.warnings) if found.search else []
        rows = found.rows.rename_columns(_told_apart(found.rows.column_names))
        print_json({"how": found.how, "warnings": warnings, "rows": rows.to_pylist()})
        return
    _show(session, found)


def _values(parameters: tuple[str, ...]) -> dict[str, Any]:
    import json

    values = {}
    for item in parameters:
        name, separator, text = item.partition("=")
        try:
            values[name] = json.loads(text) if separator else None
        except json.JSONDecodeError:
            values[name] = text
        if not separator:
            raise click.UsageError(f"--param {item}: write NAME=JSON, such as q=[0.1,0.2]")
    return values


def _told_apart(names: list[str]) -> list[str]:
    """The second `id` is `id_1`: an object of JSON has one value of a name."""
    before = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}_{count}" if count else name for name, count in zip(names, before, strict=True)]


def _show(session: Session, found: Any) -> None:
    from rich.table import Column, Table

    session.warn(found.search.warnings if found.search else ())
    if found.rows.column_names == ["plan"]:  # of EXPLAIN: to be read whole
        session.console.print(*found.rows["plan"].to_pylist(), sep="\n", highlight=False, markup=False)
        return
    shown = Table(*(Column(cell(name, 80)) for name in found.rows.column_names))
    columns = [column.to_pylist() for column in found.rows.columns]
    for row in zip(*columns, strict=True):
        shown.add_row(*(cell(f"{value:.4f}" if isinstance(value, float) else value, 80) for value in row))
    session.console.print(shown)
    if found.search:
        session.console.print(found.how, highlight=False, markup=False)
