"""`icepuffin index create | list | show | drop`."""

import dataclasses
from pathlib import Path
from typing import Any

import click

from orchestration.cli.session import Session, located, print_json, told

table_argument = click.argument("table", metavar="NAMESPACE.TABLE")
catalog_option = click.option("--catalog", help="Catalog of the settings. [default: that of the table, else the first]")
json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout, nothing else.")


@click.group("index")
def command() -> None:
    """Create, list, show and drop ANN indexes.

    \b
    Example:
      icepuffin index create demo.packages --name embedding --column embedding --metric cosine
    """


@command.command("create")
@table_argument
@catalog_option
@click.option("--name", required=True, help="Letters, digits, '_' and '.'; the tag becomes ann_NAME.")
@click.option("--column", required=True, help="The vector column: a list of float, double or half.")
@click.option("--metric", type=click.Choice(["l2", "cosine", "ip"]), default="cosine", show_default=True)
@click.option(
    "--max-degree", type=int, default=64, show_default=True, help="R: edges a node. More: larger, better recall."
)
@click.option(
    "--search-list", type=int, default=100, show_default=True, help="L of the build. More: slower, better graph."
)
@click.option("--alpha", type=float, default=1.2, show_default=True, help="How long the edges are that pruning keeps.")
@click.option("--pq-m", type=int, default=48, show_default=True, help="Bytes a vector in lean shards (--vectors none).")
@click.option("--vectors", type=click.Choice(["none", "f32", "f16"]), default="f32", show_default=True)
@click.option("--shards", type=int, help="[default: as few as the size allows]")
@click.option("--target-recall", type=float, default=0.9, show_default=True, help="Under it nothing is published.")
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
@located
@click.pass_obj
def create_index(
    session: Session,
    /,
    table: str,
    catalog: str | None,
    directory: Path | None,
    settings: Path | None,
    *,
    as_json: bool,
    **definition: Any,
) -> None:
    """Define an index: written to the table's properties. `icepuffin refresh` or the sensor builds it.

    \b
    Example:
      icepuffin index create demo.packages --name embedding --column embedding --target-recall 0.95
    """
    from ops.index import create  # noqa: PLC0415
    from ops.index.definition import IndexDefinition  # noqa: PLC0415

    session = session.at(directory, settings)
    loaded = session.catalogs.table(session.catalog_name(catalog, table), table)
    made = IndexDefinition(**definition)
    create(loaded, made)
    if as_json:
        print_json(dataclasses.asdict(made))
        return
    session.console.print(
        f"index [bold]{made.name}[/] on {table}({made.column}) is defined. Build it with: icepuffin refresh {table}\n"
        "A running Dagster shows it after 'Reload' on its Deployment page."
    )


@command.command("list")
@table_argument
@catalog_option
@json_option
@located
@click.pass_obj
def list_indexes(
    session: Session, table: str, catalog: str | None, directory: Path | None, settings: Path | None, *, as_json: bool
) -> None:
    """List the indexes of a table and how many versions each has."""
    from ops.catalog.versions import versions  # noqa: PLC0415

    session = session.at(directory, settings)
    loaded = session.catalogs.table(session.catalog_name(catalog, table), table)
    found = [
        {**dataclasses.asdict(item), "versions": len(versions(loaded, "ann", item.name))}
        for item in session.spec(catalog, table).indexes
    ]
    if as_json:
        print_json(found)
        return
    _print_table(
        session, f"indexes of {table}", ("name", "column", "metric", "vectors", "target_recall", "versions"), found
    )


@command.command("show")
@table_argument
@click.argument("name", required=False)
@catalog_option
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it into a file as well: .png, .svg or .html."
)
@click.option("--measure", is_flag=True, help="Time each width of the curve on this machine: loads the index.")
@json_option
@located
@click.pass_obj
def show_index(
    session: Session,
    /,
    table: str,
    name: str | None,
    catalog: str | None,
    directory: Path | None,
    settings: Path | None,
    *,
    plot: Path | None,
    measure: bool,
    as_json: bool,
) -> None:
    """Show an index: its definition and versions, and of the newest the shards, what it covers, and recall over cost.

    NAME may be left out if there is one index.

    \b
    Examples:
      icepuffin index show demo.packages embedding
      icepuffin index show demo.packages --plot index.png
    """
    from ops.catalog.versions import versions  # noqa: PLC0415
    from ops.probe import open_index  # noqa: PLC0415
    from ops.probe.overview import overview, time_widths  # noqa: PLC0415
    from ops.probe.pictures import save  # noqa: PLC0415
    from orchestration.cli.shown import draw  # noqa: PLC0415

    session = session.at(directory, settings)
    chosen = session.catalog_name(catalog, table)
    loaded, storage = session.catalogs.table(chosen, table), session.catalogs.storage(chosen)
    definition = _definition(session, catalog, table, name)
    known = versions(loaded, "ann", definition.name)
    seen = overview(loaded, definition, storage)
    milliseconds = None
    if measure and seen is not None:
        reader = open_index(loaded, definition, snapshot=seen.base_snapshot_id, storage=storage)
        milliseconds = time_widths(reader, seen.curve)
    if plot is not None and seen is not None:
        save(seen, plot, milliseconds)
    found: list[dict[str, Any]] = [
        {
            "base_snapshot_id": str(version.base_snapshot_id),
            "index_snapshot_id": str(version.derived_snapshot_id),
            "build_id": version.build_id,
            "tags": list(version.tags),
            "puffin_path": version.puffin_path,
            "timestamp_ms": version.timestamp_ms,
        }
        for version in known
    ]
    if as_json:
        state = {} if seen is None else told(seen)
        print_json(
            {"definition": dataclasses.asdict(definition), "versions": found, "milliseconds": milliseconds, **state}
        )
        return
    for key, value in dataclasses.asdict(definition).items():
        session.console.print(f"{key:>16}  {value}", highlight=False)
    rows = [{**item, "tags": " ".join(item["tags"])} for item in found]
    _print_table(session, "versions, newest last", ("base_snapshot_id", "index_snapshot_id", "tags"), rows)
    if seen is not None:
        draw(session.console, seen, milliseconds)


@command.command("drop")
@table_argument
@click.argument("name")
@catalog_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@located
@click.pass_obj
def drop_index(
    session: Session,
    table: str,
    name: str,
    catalog: str | None,
    directory: Path | None,
    settings: Path | None,
    *,
    yes: bool,
) -> None:
    """Drop an index: its definition and its tags. The files go when their snapshots expire."""
    from ops.index import drop  # noqa: PLC0415

    session = session.at(directory, settings)
    loaded = session.catalogs.table(session.catalog_name(catalog, table), table)
    _definition(session, catalog, table, name)
    if not yes:
        click.confirm(f"Drop index {name} of {table}? Searches will be exact scans", abort=True)
    drop(loaded, name)
    session.console.print(f"index {name} of {table} is dropped")


def _definition(session: Session, catalog: str | None, table: str, name: str | None) -> Any:
    defined = session.spec(catalog, table).indexes
    chosen = [item for item in defined if name in (None, item.name)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(item.name for item in defined) or "none"
    if name is None and defined:
        raise click.ClickException(f"{table} has several indexes, name one: {names}")
    raise click.ClickException(f"{table} has no index '{name or ''}'; it has: {names}")


def _print_table(session: Session, title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Column, Table  # noqa: PLC0415

    heads = (Column(name, overflow="fold") for name in columns)
    shown = Table(*heads, title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        shown.add_row(*(str(row[column]) for column in columns))
    session.console.print(shown)
