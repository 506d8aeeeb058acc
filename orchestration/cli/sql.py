"""`icepuffin sql`."""

from itertools import count
from typing import TYPE_CHECKING, Any

import click

from icepuffin.ops.presentation import VALUE_WIDTH, Grid, plain_rows
from icepuffin.orchestration.cli.output import print_grid, print_json, print_lines, print_warnings, progress_bars
from icepuffin.orchestration.cli.session import Session, session_command
from icepuffin.orchestration.cli.table_options import json_option

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from rich.console import Console

    from icepuffin.ops.model import StorageConfig
    from icepuffin.ops.sql.sql_session import SqlResult, SqlSession
    from icepuffin.ops.tasks.task_runner import StageProgress


@click.command("sql")
@click.argument("text", metavar="STATEMENT")
@click.option("--catalog", help="Catalog of tables named without one. [default: that of the table, else the first]")
@click.option("--param", "parameters", multiple=True, metavar="NAME=JSON", help="A value for :NAME in the statement.")
@click.option(
    "--spark",
    is_flag=True,
    help="Run statements that no index answers on Spark, as spark in the settings says, and searches of more than "
    "its in_process_mb by tasks.",
)
@json_option
@session_command
def command(
    session: Session, /, text: str, catalog: str | None, parameters: tuple[str, ...], *, spark: bool, as_json: bool
) -> None:
    """Run one SQL statement: a search, a statement about indexes, or an EXPLAIN; with --spark, any other too.

    CREATE INDEX builds the index as well, unless it has WITH (build = false).

    \b
    Examples:
      icepuffin sql "SELECT name, cosine_distance(embedding, :q) AS d FROM demo.packages
                     WHERE section = 'database' ORDER BY d LIMIT 5" --param q=[0.1,0.2,...]
      icepuffin sql "SELECT id FROM demo.packages TIMESTAMP AS OF '2026-11-20' ORDER BY ..."
      icepuffin sql "CREATE INDEX i ON demo.packages USING diskann (embedding) WITH (metric = 'l2')"
      icepuffin sql "REFRESH INDEX i ON demo.packages"
      icepuffin sql "EXPLAIN SELECT ..."
    """
    values = _parameter_values(parameters)
    _require_syntax(text, values, has_spark=spark)
    with progress_bars(quiet=as_json) as bars:
        opened = _open(session, catalog, bars, spark=spark)
        result = _run_with_spark(opened, text, values, session) if spark else opened.sql(text, values)
    if as_json:
        warnings = list(result.search.warnings) if result.search else []
        rows = result.rows.rename_columns(_unique_names(result.rows.column_names))
        print_json({"how": result.how, "warnings": warnings, "rows": plain_rows(rows)})
    else:
        _show(session.console, result)


def _open(session: Session, catalog: str | None, bars: "StageProgress", *, spark: bool) -> "SqlSession":
    """SQL on the catalogs of the settings. A table named without a catalog is of `catalog`, else of that which the
    settings have it in, else of the first one.

    `bars` show what is built.
    """
    from icepuffin.ops.catalog.vended_config import storage_of
    from icepuffin.ops.resources import TableMissingError
    from icepuffin.ops.sql.errors import NotIndexableError
    from icepuffin.ops.sql.sql_session import SqlSession

    catalogs = session.settings.catalogs

    def open_table(name: str) -> "tuple[Table, StorageConfig]":
        first, _, rest = name.partition(".")
        named = first in catalogs and "." in rest
        try:
            of_table = first if named else session.catalog_name(catalog, name)
            table = session.catalogs.table(of_table, rest if named else name)
        except TableMissingError as error:
            if spark:  # Spark may have such a table
                raise NotIndexableError(str(error)) from error
            raise
        return table, storage_of(table)

    def ref_of(table: "Table") -> str:
        of_table, _ = session.table_settings(table.catalog.name, ".".join(table.name()))
        return of_table.watched_refs[0]

    spark_session = session.engine.session if spark else None
    return SqlSession(
        open_table,
        spark=spark_session,
        spark_catalog=_spark_catalog(spark_session, catalog, session),
        runner_for=session.engine.runner,
        threads=session.settings.thread_count,
        in_process_mb=session.settings.spark.in_process_mb,
        ref_of=ref_of,
        progress=lambda name, stage, done, total: bars(f"index {name}: {stage}", done, total),
    )


def _run_with_spark(opened: "SqlSession", text: str, values: dict[str, object], session: Session) -> "SqlResult":
    """Raises SqlError, with what to set, where Spark finds no such table and lacks a catalog of the settings."""
    from pyspark.errors import AnalysisException
    from pyspark.logger import PySparkLogger

    from icepuffin.ops.sql.errors import SqlError

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it writes the JVM's whole trace to stderr
    try:
        return opened.sql(text, values)
    except AnalysisException as error:
        conf = session.engine.session.conf
        lacking = [name for name in session.settings.catalogs if conf.get(f"spark.sql.catalog.{name}", None) is None]
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND" or not lacking:
            raise
        keys = ", ".join(f"spark.sql.catalog.{name}" for name in lacking)
        first_line, _, _ = str(error).partition("\n")
        raise SqlError(
            f"{first_line} Spark has no catalog {', '.join(lacking)}: set {keys} in spark.conf of "
            f"{session.settings_file}, such as org.apache.iceberg.spark.SparkCatalog, and its type and uri below that"
        ) from error


def _spark_catalog(spark: Any, requested: str | None, session: Session) -> str | None:
    """Spark's catalog of tables named without one: the requested one, else that of all tables of the settings, else the
    first. None where none was requested, and Spark has no catalog of that name: then it is Spark's own current one,
    which may be the same under another name.
    """
    if spark is None or requested is not None:
        return requested
    of_tables = {table.catalog for table in session.settings.tables.values()}
    default = of_tables.pop() if len(of_tables) == 1 else next(iter(session.settings.catalogs))
    return default if spark.conf.get(f"spark.sql.catalog.{default}", None) is not None else None


def _require_syntax(text: str, values: dict[str, object], *, has_spark: bool) -> None:
    """Refuse what is no SQL before catalogs and kernels are imported. Raises SqlError."""
    import logging

    from icepuffin.ops.process.arrow_import import import_arrow
    from icepuffin.ops.sql.parser import require_syntax
    from icepuffin.ops.sql.statements import CreateIndex, DropIndex, ShowIndexes

    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of statements that are refused here, with a reason
    statement = require_syntax(text, values, has_spark=has_spark)
    if isinstance(statement, DropIndex | ShowIndexes) or (isinstance(statement, CreateIndex) and not statement.build):
        import_arrow()  # these show no rows


def _parameter_values(parameters: tuple[str, ...]) -> dict[str, object]:
    """Values by name, of texts NAME=JSON. What is no JSON is a text, but for a list or object that is cut off.

    Raises UsageError.
    """
    import json

    values: dict[str, object] = {}
    for parameter in parameters:
        name, separator, text = parameter.partition("=")
        if not separator:
            raise click.UsageError(f"--param {parameter}: write NAME=JSON, such as q=[0.1,0.2]")
        try:
            values[name] = json.loads(text)
        except json.JSONDecodeError as error:
            if text.startswith(("[", "{")):
                raise click.UsageError(
                    f"--param {name}: the value is not JSON ({error.msg} at character {error.pos + 1}); "
                    "write a list as [0.1,0.2], and a text that begins like one in double quotes"
                ) from None
            values[name] = text
    return values


def _unique_names(names: list[str]) -> list[str]:
    """Column names where the second `id` is `id_1`, or the next that is free: JSON has one value per name."""
    unique: list[str] = []
    for name in names:
        numbers = count(names[: len(unique)].count(name))
        free = (f"{name}_{number}" if number else name for number in numbers)
        unique.append(next(new for new in free if new not in unique and (new == name or new not in names)))
    return unique


def _show(console: "Console", result: "SqlResult") -> None:
    print_warnings(console, result.search.warnings if result.search else ())
    if result.is_text:  # a table would cut it
        print_lines(console, *result.rows.column(0).to_pylist())
        return
    print_grid(console, Grid.of_rows("", result.rows), width=VALUE_WIDTH)
    if result.search:
        print_lines(console, result.how)
