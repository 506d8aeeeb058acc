"""`icepuffin index create | list | show | verify | export | drop`."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from icepuffin.ops.messages import plural, readable_bytes, readable_share
from icepuffin.ops.presentation import Grid
from icepuffin.orchestration.cli.output import (
    confirm,
    print_fields,
    print_grid,
    print_json,
    print_lines,
    print_warnings,
    progress_bars,
    report_document,
)
from icepuffin.orchestration.cli.table_options import TableContext, index_name, metadata_command

if TYPE_CHECKING:
    from icepuffin.assets.report.index_description import IndexDescription
    from icepuffin.ops.binding.bound_versions import DerivedVersion
    from icepuffin.ops.index.definitions.index_definition import IndexDefinition, IndexParameter
    from icepuffin.ops.recall.curves import Width
    from icepuffin.ops.search.overview import Overview

_DEFINITION_WIDTH = 16


@click.group("index")
def command() -> None:
    """Create, list, show, verify, export and drop ANN indexes.

    \b
    Example:
      icepuffin index create demo.packages --name embedding --column embedding --metric cosine
    """


class _WithIndexParameters(click.Command):
    """A command with an option per index parameter. They are made when they are needed: definitions import kernels."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        with_help = super().get_params(ctx)
        return [*self.params, *_parameter_options(), *with_help[len(self.params) :]]


@cache
def _parameter_options() -> tuple[click.Option, ...]:
    from icepuffin.ops.index.definitions.index_definition import INDEX_PARAMETERS

    return tuple(
        click.Option(
            [f"--{parameter.name.replace('_', '-')}"],
            type=_parameter_type(parameter),
            default=str(parameter.default) if parameter.choices else parameter.default,
            show_default=True,
            help=parameter.about,
        )
        for parameter in INDEX_PARAMETERS.values()
    )


def _parameter_type(parameter: "IndexParameter") -> "click.IntRange | click.FloatRange | click.Choice[str]":
    if parameter.choices:
        return click.Choice([str(choice) for choice in parameter.choices])  # numbers, since Click 8.2 alone
    if parameter.value_type is int:
        return click.IntRange(int(parameter.low), int(parameter.high))
    return click.FloatRange(parameter.low, parameter.high)


def _new_definition(**options: Any) -> "IndexDefinition":
    from icepuffin.ops.index.definitions.index_definition import (
        COLUMN_LISTS,
        INDEX_PARAMETERS,
        IndexDefinition,
        checked_columns,
    )

    for parameter in COLUMN_LISTS:
        texts: tuple[str, ...] = options[parameter]
        options[parameter] = [name for text in texts for name in checked_columns(text, parameter, options["name"])]
    parsed: dict[str, Any] = {
        name: INDEX_PARAMETERS[name].parse(value) if name in INDEX_PARAMETERS and isinstance(value, str) else value
        for name, value in options.items()
    }
    return IndexDefinition(**parsed)


@command.command("create", cls=_WithIndexParameters)
@metadata_command
@click.option("--name", required=True, help="Letters, digits, '_' and '.'; the tag becomes ann_NAME.")
@click.option("--column", required=True, help="The vector column: a list of numbers; or bytes, with --element-type.")
@click.option(
    "--filters",
    multiple=True,
    metavar="COLUMNS",
    help="Columns for conditions, with commas between them. May be repeated.",
)
@click.option(
    "--include",
    multiple=True,
    metavar="COLUMNS",
    help="Columns that versions store for answers, with commas between them. May be repeated.",
)
@click.option(
    "--text",
    multiple=True,
    metavar="COLUMNS",
    help="Columns of texts for searches by words, with commas between them. May be repeated.",
)
@click.option("--yes", is_flag=True, help="Change an index that is there, without a prompt for confirmation.")
def create_command(context: TableContext, /, *, yes: bool, **options: Any) -> None:
    """Define an index: written to the table's properties. `icepuffin refresh` or the sensor builds it.

    An index of that name is changed, after a prompt: what is not named becomes the default.

    \b
    Example:
      icepuffin index create demo.packages --name embedding --column embedding --target-recall 0.95
    """
    from icepuffin.ops.index.definitions.ddl import create_index, index_changes

    definition = _new_definition(**options)
    if definition.name in context.settings.indexes:
        raise click.ClickException(
            f"{context.session.settings_file} defines index {definition.name} of {context.name} and would win; "
            "change it there"
        )
    changes = index_changes(context.table, definition)
    if changes and not yes:
        confirm(
            f"Change index {definition.name} of {context.name}? {changes}",
            f"index {definition.name}: {changes}; nothing is changed",
        )
    created = create_index(context.table, definition, replace=bool(changes))
    if context.as_json:
        print_json(dataclasses.asdict(created))
        return
    print_lines(
        context.console,
        f"index {created.name} on {context.name}({created.column}) is defined. "
        f"Build it with: icepuffin refresh {quote(context.name)} --index {created.name}",
        "A running Dagster shows it after 'Reload' on its Deployment page.",
    )


@command.command("list")
@metadata_command
def list_command(context: TableContext) -> None:
    """List the indexes of a table.

    For each: how many versions it has, how many snapshots it is behind, and the data snapshot of the version at its
    tag.

    \b
    Example:
      icepuffin index list demo.packages
    """
    states = context.index_states
    if context.as_json:
        print_json(
            [
                {
                    **dataclasses.asdict(state.definition),
                    "versions": len(state.versions),
                    "snapshot_id": str(state.snapshot_id) if state.snapshot_id else None,
                    "lag": dataclasses.asdict(state.lag) if state.lag else None,
                }
                for state in states
            ]
        )
        return
    print_grid(context.console, states.grid(f"indexes of {context.name}"))


@command.command("show")
@metadata_command
@index_name("The same as INDEX. [default: the table's only index]")
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: that of the version at the index tag]")
def show_command(context: TableContext, /, index: str | None, *, snapshot: str | None) -> None:
    """Show an index: how it is, one of its versions, its definition.

    Of the version: the shards, what it covers, and recall over cost, by rows and as `icepuffin tune` measured it. It is
    the version at the index tag, or the last one that was made for --snapshot. `icepuffin report` writes all of it as a
    page.

    INDEX may be left out if there is one.

    \b
    Examples:
      icepuffin index show demo.packages embedding
      icepuffin index show demo.packages --snapshot 6170229538723520381
    """
    from icepuffin.assets.report.index_description import describe_index

    definition = context.index(index)
    version = None if snapshot is None else _version_of(context, definition, snapshot)
    description = describe_index(context.table, definition, context.storage, context.spec.first_ref, version)
    if context.as_json:
        print_json(_document(description))
    else:
        _show(context, description)


def _document(description: "IndexDescription") -> dict[str, object]:
    return {
        "definition": dataclasses.asdict(description.definition),
        "versions": [
            {
                "base_snapshot_id": str(version.base_snapshot_id),
                "index_snapshot_id": str(version.index_snapshot_id),
                **{name: getattr(version, name) for name in ("build_id", "tags", "puffin_path", "timestamp_ms")},
            }
            for version in description.versions
        ],
        "tuning": description.tuning.document() if description.tuning else None,
        "warnings": description.warnings,
        **({} if description.overview is None else report_document(description.overview)),
    }


def _show(context: TableContext, description: "IndexDescription") -> None:
    from icepuffin.ops.index.upkeep.freshness import missing_ref
    from icepuffin.ops.recall.measured_points import front_grids

    console, definition, shown = context.console, description.definition, description.overview
    state = missing_ref(context.table, context.spec.first_ref) or description.lag.in_words
    if shown is not None:
        state += "; answers are exact" if shown.recall is None else f"; recall@10 {shown.recall:.4f}"
    print_lines(console, f"index {definition.name} on {context.name}({definition.column}): {state}", style="bold")
    fields = {"versions": f"{len(description.versions):,}", "searched": f"{definition.metric}, {definition.method}"}
    print_fields(console, fields | (version_facts(shown) if shown else {}))
    print_warnings(console, description.warnings)
    for grid in version_grids(shown) if shown else ():
        print_grid(console, grid)
    if description.tuning is not None:
        print_lines(console, f"target_recall is chosen by {description.tuning.origin}")
        for grid in front_grids(description.tuning.points):
            print_grid(console, grid)
    print_lines(console, "definition", style="bold")
    print_fields(console, _parameters(context, definition), width=_DEFINITION_WIDTH)
    ids = [(item.base_snapshot_id, item.index_snapshot_id, " ".join(item.tags)) for item in description.versions]
    print_grid(console, Grid("versions, newest last", ids, ("base_snapshot_id", "index_snapshot_id", "tags")), whole=2)


def version_facts(overview: "Overview") -> dict[str, str]:
    """What a version has and takes, by a short name, in words."""
    facts = {
        "tombstones": f"{readable_share(overview.tombstone_ratio)} of the nodes" if overview.shards else "",
        "covers": _coverage(overview),
        "takes": _storage(overview),
        "stores": _included(overview),
    }
    return {name: text for name, text in facts.items() if text}


def _coverage(overview: "Overview") -> str:
    head = overview.head_snapshot_id
    behind = "" if overview.base_snapshot_id == head else f"; the head is snapshot {head}"
    rows = f"{overview.rows_covered:,} of {overview.rows:,} rows in files of the head, deleted ones included"
    return f"{readable_share(overview.coverage)}, {rows}{behind}"


def _storage(overview: "Overview") -> str:
    alone = f"{readable_bytes(overview.bytes_alone)} by itself"
    if addresses := sum(shard.addresses_bytes for shard in overview.shards):
        alone += f" ({readable_bytes(addresses)} for new addresses)"
    if not overview.bytes_shared:
        return alone
    packs = plural(sum(pack.versions > 1 for pack in overview.packs), "pack")
    return f"{alone}, and {readable_bytes(overview.bytes_shared)} in {packs} that other versions use, too"


def _included(overview: "Overview") -> str:
    columns = ", ".join(
        f"{column.column} {readable_bytes(column.bytes)}"
        + (f" ({column.files_left_out} of {column.files} files left out)" if column.files_left_out else "")
        for column in overview.included
    )
    return f"{columns}: rows of answers have these without a read of data files" if columns else ""


def version_grids(overview: "Overview") -> Iterator[Grid]:
    """The shards of a version, and its curves of recall over cost."""
    title = f"version of snapshot {overview.base_snapshot_id}"
    if overview.without_graphs:
        yield Grid(f"{title}: {overview.without_graphs}", [])
    else:
        yield _shards(f"shards of the {title}", overview)
    yield from (_curve(points) for points in (overview.curve, overview.wide_curve) if points)


def _shards(title: str, overview: "Overview") -> Grid:
    outdated = "; * before it lost rows" if any(shard.changed for shard in overview.shards) else ""
    rows = [
        (
            shard.shard,
            f"{shard.nodes:,}",
            f"{shard.live:,}",
            readable_share(shard.tombstones / shard.nodes if shard.nodes else 0.0),
            f"{shard.recall:.4f}" + "*" * bool(shard.changed),
            f"{shard.bytes / 1024:,.0f}",
            "" if shard.routed else "later rows, always probed",
        )
        for shard in overview.shards
    ]
    return Grid(title + outdated, rows, ("shard", "nodes", "live", "tombstones", "recall@10", "KiB", ""))


def _curve(points: "Sequence[Width]") -> Grid:
    recall = f"recall@{points[0].k}"
    rows = [(it.search_list, it.oversample, f"{it.distances:,.0f}", f"{it.recall:.4f}") for it in points]
    title = f"{recall} by the width of the search, measured when shards were built"
    return Grid(title, rows, ("L", "oversample", "distances", recall))


def _parameters(context: TableContext, definition: "IndexDefinition") -> dict[str, object]:
    """The parameters of the definition, and what the table calls the column now."""
    shown = definition.fields()
    if definition.field_id is not None:
        name = context.table.schema().find_column_name(definition.field_id)
        if name != definition.column:
            shown["column"] = f"{definition.column} (now {name})" if name else f"{definition.column} (dropped since)"
    return shown


def _version_of(context: TableContext, definition: "IndexDefinition", snapshot: str | None) -> "DerivedVersion":
    """The last version that was made for a snapshot; None is the newest of main."""
    from icepuffin.ops.index.planning.current_versions import versions_of
    from icepuffin.ops.search.target import is_own

    index, snapshot_id = definition.name, context.snapshot_id(snapshot)
    exact = [version for version in versions_of(context.table, definition) if is_own(version, snapshot_id)]
    if not exact:
        remedy = f"icepuffin refresh {quote(context.name)} --index {index} --snapshot {snapshot_id}"
        raise click.ClickException(
            f"{context.name}: index {index} has no version of snapshot {snapshot_id}; make one with: {remedy}"
        )
    return exact[-1]


@command.command("verify")
@metadata_command
@index_name("The same as INDEX. [default: the table's only index]")
def verify_command(context: TableContext, /, index: str | None) -> None:
    """Read an index's whole file, and compare it with the table.

    INDEX may be left out if there is one. The exit code is 1 where the file is damaged, or its nodes are not the
    table's rows.

    \b
    Example:
      icepuffin index verify demo.packages embedding
    """
    from icepuffin.ops.runs.index_verification import verify_index
    from icepuffin.ops.tasks.task_runner import RunContext

    name = context.index(index).name
    with progress_bars(quiet=context.as_json) as bars:
        integrity = verify_index(RunContext(context.table, context.storage, progress=bars), name)
    if context.as_json:
        print_json(dataclasses.asdict(integrity))
    else:
        print_lines(context.console, *(f"{integrity.path}: {line}" for line in integrity.lines()))
    if integrity.faults:
        fault = "of a later release" if integrity.from_later_release else "damaged"
        raise click.ClickException(f"the version of index {name} is {fault}; {integrity.remedy}")


@command.command("export")
@metadata_command
@index_name("The same as INDEX. [default: the table's only index]")
@click.option("--snapshot", help="Snapshot id, tag, branch or time. [default: that of the version at the index tag]")
def export_command(context: TableContext, /, index: str | None, *, snapshot: str | None) -> None:
    """Write index metadata beside a version, as Iceberg's draft of an index specification has it (type VECTOR).

    Nothing reads it yet. INDEX may be left out if there is one.

    \b
    Example:
      icepuffin index export demo.packages embedding
    """
    from icepuffin.ops.binding.bound_versions import tagged_version
    from icepuffin.ops.index.versions.exported_metadata import export_metadata

    definition = context.index(index)
    tagged = tagged_version(context.table, definition.name) if snapshot is None else None
    version = tagged or _version_of(context, definition, snapshot)
    path, content = export_metadata(context.table, definition, version, context.storage)
    if context.as_json:
        print_json({"path": path, "metadata": content})
    else:
        print_lines(context.console, f"written to {path}")


@command.command("drop")
@metadata_command
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not prompt for confirmation.")
def drop_command(context: TableContext, /, name: str, *, yes: bool) -> None:
    """Drop an index: its definition, its tuning and its tags. `icepuffin gc` deletes its files after the grace period.

    \b
    Example:
      icepuffin index drop demo.packages embedding
    """
    from icepuffin.ops.index.definitions.ddl import drop_index
    from icepuffin.ops.index.definitions.index_definition import DefinitionError

    with suppress(DefinitionError):  # an index whose properties are wrong can be dropped as well
        context.index(name)
    if not yes:
        confirm(f"Drop index {name} of {context.name}? {_after_drop(context, name)}", f"index {name} is not dropped")
    drop_index(context.table, name)
    in_settings = name in context.settings.indexes
    if context.as_json:
        print_json({"dropped": name, "in_settings": in_settings})
        return
    remedy = f"icepuffin gc {quote(context.name)} (after the grace period)"
    print_lines(context.console, f"index {name} of {context.name} is dropped. Its files go with: {remedy}")
    if in_settings:
        defined = f"{context.session.settings_file} defines it too: take it out, or the next run makes it again"
        print_warnings(context.console, [defined])
    else:
        print_lines(context.console, "A running Dagster shows it until 'Reload' on its Deployment page.")


def _after_drop(context: TableContext, name: str) -> str:
    """What is searched when the index is dropped, in words."""
    from icepuffin.ops.index.definitions.index_definition import DefinitionError

    try:
        dropped = context.index(name)
        others = [one for one in context.indexes if one.name != name]
    except DefinitionError:
        return "Its properties are wrong, and go, too"
    same = [one.name for one in others if (one.column, one.metric) == (dropped.column, dropped.metric)]
    if same:
        return f"Searches of column {dropped.column} by {dropped.metric} will be answered by index {' or '.join(same)}"
    return f"Searches of column {dropped.column} by {dropped.metric} will be exact scans"
