"""`icepuffin init`."""

import json
import re
import shlex
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from icepuffin.ops.rows.element_types import OF_COLUMN
from icepuffin.orchestration.cli.session import Session
from icepuffin.orchestration.cli.table_options import METRICS, require_table_name

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

_TYPES = {"http": "rest", "https": "rest", "thrift": "hive", "sqlite": "sql", "postgresql": "sql"}
"""Type of a catalog, by the scheme of its uri"""
_TEMPLATE = """\
# Written by `icepuffin init`. Commands read this file in its folder, or by --dir, --settings, ICEPUFFIN_SETTINGS.
# ${{NAME}} in a text is taken from the environment, which is where secrets belong.

[catalogs.{catalog_key}]
{properties}
# all other properties of PyIceberg work, too, such as s3.endpoint

[tables.{table_key}]
catalog = {catalog}
name = {table}
snapshots = "every"             # or "newest": snapshots that were passed over get no version
sensor_running = true           # once Dagster runs: `icepuffin ui --start`
# keep.versions = "newest"      # else each version stays for as long as Iceberg keeps its snapshot

[tables.{table_key}.indexes.{index_key}]
column = {column}
metric = {metric}
target_recall = 0.9             # a version whose measured recall@10 is lower is not published
# filters = ["section"]         # columns for conditions, which then read no data file

[spark]
master = ""                     # this process alone works; or "local[*]", "spark://host:7077"
"""


@click.command("init")
@click.option(
    "--uri", help="The catalog's: https://host/path, sqlite:////folder/catalog.db, postgresql://host/database."
)
@click.option("--type", "kind", help="The catalog's type in PyIceberg. [default: by the uri]")
@click.option("--property", "properties", multiple=True, metavar="KEY=VALUE", help="Another of it. May be repeated.")
@click.option("--catalog", help="Its name, by which an SQL catalog keeps its tables. [default: lake]")
@click.option("--table", metavar="NAMESPACE.TABLE", help="The table.")
@click.option("--column", help="The vector column.")
@click.option("--index", help="Name of the index. [default: that of the column]")
@click.option("--metric", type=METRICS, default="cosine", show_default=True, help="How distances are measured.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Folder of the file. [default: this one]")
def command(
    directory: Path | None,
    uri: str | None,
    kind: str | None,
    properties: tuple[str, ...],
    catalog: str | None,
    table: str | None,
    column: str | None,
    index: str | None,
    metric: str,
) -> None:
    """Write icepuffin.toml for a table and an index, from options, or from questions on a terminal.

    The catalog is asked for the table and its column first. Only you may read the file (mode 0600), as the options may
    have given it secrets.

    \b
    Examples:
      icepuffin init
      icepuffin init --uri https://catalog.example.org --table demo.packages --column embedding
    """
    from icepuffin.ops.index.definitions.definition_columns import resolve_column
    from icepuffin.orchestration.engines import catalogs_of
    from icepuffin.orchestration.settings import parse

    file = Session(directory).settings_file
    if file.exists():
        raise _is_there(file)
    answers = {"--uri": uri or kind, "--table": table, "--column": column}
    if (missing := [option for option, answer in answers.items() if not answer]) and not sys.stdin.isatty():
        raise click.UsageError(f"without a terminal, give {', '.join(missing)}")
    is_asked = not (uri or kind)
    uri = click.prompt("URI of the catalog") if is_asked else uri
    of_catalog = _catalog(uri, kind, properties)
    if not catalog:  # others find a table whatever the name is
        asks = is_asked and of_catalog["type"] == "sql"
        catalog = click.prompt("Name of the catalog", default="lake") if asks else "lake"
    table = str(table or click.prompt("Table, as namespace.table"))
    require_table_name(table)
    names = {"catalog": catalog, "table": table, "metric": metric}
    settings = parse(_text(of_catalog, **names, column="c", index="i"), file)
    schema = catalogs_of(settings).table(catalog, table).schema()
    if not column:
        column = str(click.prompt("Vector column", default=_vector_column(schema, table)))
        index = index or click.prompt("Name of the index", default=column)
    resolve_column(column, schema, table, OF_COLUMN)
    _write(file, _text(of_catalog, **names, column=column, index=index or column))
    where = "" if file.parent == Path.cwd() else f" {shlex.join(['--dir', str(file.parent)])}"
    click.echo(f"{file} is written: table {table}, index {index or column}.")
    click.echo(f"See what its first version takes: icepuffin plan {shlex.quote(table)}{where}")
    click.echo(f"Make it: icepuffin refresh {shlex.quote(table)}{where}")


def _catalog(uri: str | None, kind: str | None, properties: tuple[str, ...]) -> dict[str, str]:
    """The properties of the catalog. Raises UsageError for what is no property, and a uri that says no type."""
    scheme = urlsplit(uri or "").scheme.partition("+")[0]
    if (catalog_type := kind or _TYPES.get(scheme)) is None:
        raise click.UsageError(
            f"the uri's scheme {scheme!r} does not say the catalog's type: give --type, such as rest, sql, hive or glue"
        )
    for number, text in enumerate(properties, 1):
        if "=" not in text:
            raise click.UsageError(f"--property, the {number}. of them: write KEY=VALUE, as s3.endpoint=https://host")
    others = dict(text.split("=", 1) for text in properties)
    return {"type": catalog_type, **({"uri": uri} if uri else {}), **others}


def _text(of_catalog: dict[str, str], *, catalog: str, table: str, column: str, index: str, metric: str) -> str:
    values = {"catalog": catalog, "table": table, "column": column, "metric": metric}
    keys = {"catalog_key": catalog, "table_key": table.rpartition(".")[2], "index_key": index}
    return _TEMPLATE.format(
        properties="\n".join(f"{_key(name)} = {_quoted(value)}" for name, value in of_catalog.items()),
        **{name: _quoted(value) for name, value in values.items()},
        **{name: _key(value) for name, value in keys.items()},
    )


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # a text of JSON is one of TOML


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _vector_column(schema: "Schema", table: str) -> str | None:
    """The first column that an index can be on; None where there is none."""
    from icepuffin.ops.index.definitions.definition_columns import resolve_column
    from icepuffin.ops.index.definitions.index_definition import DefinitionError

    for field in schema.fields:
        with suppress(DefinitionError):
            resolve_column(field.name, schema, table, OF_COLUMN)
            return field.name
    return None


def _is_there(file: Path) -> click.ClickException:
    return click.ClickException(f"{file} is there: change it, remove it, or name another folder with --dir")


def _write(file: Path, text: str) -> None:
    """Write the file whole or not at all, once the reader of settings has read it, for its owner's eyes alone: a uri or
    a property may have a secret, whatever its name. A file that came while questions were asked stays.
    """
    from icepuffin.orchestration.settings import parse

    parse(text, file)
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{uuid.uuid4().hex}.toml")
    try:
        aside.touch(0o600, exist_ok=False)
        aside.write_text(text, encoding="utf-8")
        file.touch(exist_ok=False)
        aside.replace(file)
    except FileExistsError:
        raise _is_there(file) from None
    finally:
        aside.unlink(missing_ok=True)
