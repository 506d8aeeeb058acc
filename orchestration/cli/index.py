"""`icepuffin index create | list | show | verify | drop`."""

import dataclasses
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from icepuffin.orchestration.cli.session import Session, cell, counted, print_json, told
from icepuffin.orchestration.cli.table_options import OnTable, on_table

if TYPE_CHECKING:
    from icepuffin.ops.catalog.bound_versions import DerivedVersion
    from icepuffin.ops.index.definition import Knob


@click.group("index")
def command() -> None:
    """Create, list, show, verify and drop ANN indexes.

    \b
    Example:
      icepuffin index create demo.packages --name embedding --column embedding --metric cosine
    """


class _WithKnobs(click.Command):
    """A command with an option for each knob of an index; made when asked for, since definitions import kernels."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        given = super().get_params(ctx)
        return [*self.params, *_knob_options(), *given[len(self.params) :]]


@cache
def _knob_options() -> tuple[click.Option, ...]:
    from icepuffin.ops.index.definition import KNOBS

    return tuple(
        click.Option(
            [f"--{knob.name.replace('_', '-')}"],
            type=_type(knob),
            default=knob.default,
            show_default=True,
            help=knob.about,
        )
        for knob in KNOBS.values()
    )


def _type(knob: "Knob") -> Any:
    if knob.choices:
        return click.Choice(knob.choices)
    return click.IntRange(int(knob.low), int(knob.high)) if knob.kind is int else click.FloatRange(knob.low, knob.high)


@command.command("create", cls=_WithKnobs)
@on_table
@click.option("--name", required=True, help="Letters, digits, '_' and '.'; the tag becomes ann_NAME.")
@click.option("--column", required=True, help="The vector column: a list of float or double.")
def create_index(on: OnTable, /, **definition: Any) -> None:
    """Define an index: written to the table's properties. `icepuffin refresh` or the sensor builds it.

    \b
    Example:
      icepuffin index create demo.packages --name embedding --column embedding --target-recall 0.95
    """
    from icepuffin.ops.index import create_index
    from icepuffin.ops.index.definition import IndexDefinition

    if definition["name"] in on.settings.indexes:
        raise click.ClickException(
            f"{on.session.settings_file} defines index {definition['name']} of {on.name} and would win; change it there"
        )
    made = create_index(on.loaded, IndexDefinition(**definition))
    if on.as_json:
        print_json(dataclasses.asdict(made))
        return
    on.session.console.print(
        f"index {made.name} on {on.name}({made.column}) is defined. Build it with: icepuffin refresh {on.name}\n"
        "A running Dagster shows it after 'Reload' on its Deployment page.",
        markup=False,
    )


@command.command("list")
@on_table
def list_indexes(on: OnTable) -> None:
    """List the indexes of a table, how many versions each has, and the snapshot that the one at its tag is of."""
    from icepuffin.ops.catalog.bound_versions import versions
    from icepuffin.ops.index.integrity import tagged_version

    found = []
    for item in on.indexes:
        at_tag = tagged_version(on.loaded, item.name)
        found.append(
            {
                **dataclasses.asdict(item),
                "versions": len(versions(on.loaded, "ann", item.name)),
                "snapshot_id": str(at_tag.base_snapshot_id) if at_tag else None,
            }
        )
    if on.as_json:
        print_json(found)
        return
    columns = ("name", "column", "metric", "vectors", "target_recall", "versions", "snapshot_id")
    _print_table(on.session, f"indexes of {on.name}", columns, found)


@command.command("show")
@on_table
@click.argument("name", required=False)
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: that of the version at the index tag]")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Draw it into a file as well: .png, .svg or .html."
)
@click.option("--measure", is_flag=True, help="Time each width of the curve on this machine: loads the index.")
def show_index(on: OnTable, /, name: str | None, *, snapshot: str | None, plot: Path | None, measure: bool) -> None:
    """Show an index: its definition and versions, and of one the shards, what it covers, and recall over cost.

    That is the version at the index tag, or the last one that was made for --snapshot.

    NAME may be left out if there is one index.

    \b
    Examples:
      icepuffin index show demo.packages embedding
      icepuffin index show demo.packages --plot index.png
      icepuffin index show demo.packages --snapshot 6170229538723520381
    """
    from icepuffin.assets.charts import save
    from icepuffin.ops.catalog.bound_versions import versions
    from icepuffin.ops.index import NotAnIndexError
    from icepuffin.ops.search import open_index
    from icepuffin.ops.search.overview import overview, time_widths
    from icepuffin.orchestration.cli.index_view import draw

    loaded, storage, session = on.loaded, on.storage, on.session
    definition = on.index(name)
    known = versions(loaded, "ann", definition.name)
    version = _version_of(on, definition.name, snapshot) if snapshot is not None else None
    seen, unreadable = None, ""
    try:
        seen = overview(loaded, definition, storage, version=version)
    except NotAnIndexError as error:
        unreadable = str(error)
    if seen is None and (plot is not None or measure):
        missing = f"there is no version at {definition.tag}; name --snapshot, or make it: icepuffin refresh {on.name}"
        raise click.ClickException(f"{on.name}: {unreadable or missing}")
    milliseconds = None
    if measure and seen is not None:
        reader = open_index(loaded, definition, snapshot=seen.index_snapshot_id, storage=storage)
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
    if on.as_json:
        state = {"warnings": [unreadable] if unreadable else [], **({} if seen is None else told(seen))}
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
    if unreadable:
        session.warn([unreadable])


def _version_of(on: OnTable, index: str, snapshot: str) -> "DerivedVersion":
    """The last version that was made for a snapshot."""
    from icepuffin.ops.catalog.bound_versions import versions
    from icepuffin.ops.search.target import is_own

    snapshot_id = on.snapshot_id(snapshot)
    found = [item for item in versions(on.loaded, "ann", index) if is_own(item, snapshot_id)]
    if not found:
        remedy = f"icepuffin refresh {on.name} --index {index} --snapshot {snapshot_id}"
        raise click.ClickException(
            f"{on.name}: index {index} has no version of snapshot {snapshot_id}; make one with: {remedy}"
        )
    return found[-1]


@command.command("verify")
@on_table
@click.argument("name", required=False)
def verify_index(on: OnTable, /, name: str | None) -> None:
    """Read the whole file of the version at the index tag, and say whether it is what was published.

    NAME may be left out if there is one index. The exit code is 1 where it is not.

    \b
    Example:
      icepuffin index verify demo.packages embedding
    """
    from icepuffin.ops.index.integrity import check_integrity, remedy, tagged_version

    definition = on.index(name)
    version = tagged_version(on.loaded, definition.name)
    if version is None:
        raise click.ClickException(
            f"{on.name} has no version of index {definition.name} yet; make one with: icepuffin refresh {on.name}"
        )
    with on.session.bars(quiet=on.as_json) as bars:
        found = check_integrity(on.loaded, version, on.storage, progress=bars)
    if on.as_json:
        print_json(dataclasses.asdict(found))
    elif not found.faults:
        on.session.console.print(
            f"{found.path}: whole, {counted(found.shards, 'shard')}, {counted(found.rows, 'row')} compared",
            markup=False,
            highlight=False,
        )
    for fault in () if on.as_json else found.faults:
        on.session.console.print(f"{found.path}: {fault}", markup=False, highlight=False)
    if found.faults:
        raise click.ClickException(
            f"the version of snapshot {version.base_snapshot_id} is damaged; "
            f"{remedy(on.name, definition.name, version)}"
        )


@command.command("drop")
@on_table
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop_index(on: OnTable, /, name: str, *, yes: bool) -> None:
    """Drop an index: its definition and its tags. Its files go with `icepuffin gc`, after the grace period."""
    from icepuffin.ops.index import drop_index
    from icepuffin.ops.index.definition import DefinitionError

    with suppress(DefinitionError):  # one whose properties are wrong can be dropped as well
        on.index(name)
    if not yes:
        click.confirm(f"Drop index {name} of {on.name}? Searches will be exact scans", abort=True)
    drop_index(on.loaded, name)
    in_settings = name in on.settings.indexes
    if on.as_json:
        print_json({"dropped": name, "in_settings": in_settings})
        return
    on.session.console.print(
        f"index {name} of {on.name} is dropped. Its files go with: icepuffin gc {on.name} (after the grace period)",
        markup=False,
    )
    if in_settings:
        on.session.warn([f"{on.session.settings_file} defines it too: take it out, or the next run makes it again"])


def _print_table(session: Session, title: str, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    heads = (Column(name, overflow="fold") for name in columns)
    shown = Table(*heads, title=cell(title, 200), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        shown.add_row(*(cell(row[column], 200) for column in columns))
    session.console.print(shown)
