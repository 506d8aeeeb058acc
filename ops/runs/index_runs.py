"""Runs that give one snapshot its version of one index, estimate that, or rebuild shards full of tombstones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyiceberg.table import Table

from icepuffin.ops.index.definitions.ddl import create_index, find_definition, new_definition
from icepuffin.ops.index.definitions.definition_columns import resolve_columns
from icepuffin.ops.index.definitions.index_definition import COLUMN_LISTS, DefinitionError, IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_estimate import estimate
from icepuffin.ops.index.planning.index_report import Estimate, IndexReport
from icepuffin.ops.index.planning.version_plan import plan_version
from icepuffin.ops.index.vain_builds import find_vain_build
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.table.snapshots import table_name
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext

_OF_DISTANCES = ("metric", "element_type", "method")
"""Parameters that decide by what readers of the index compare vectors, and which versions answer them"""


def refresh_index(
    run: RunContext,
    definition: IndexDefinition,
    snapshot_id: SnapshotId,
    *,
    log: Callable[[str], None] = lambda _: None,
) -> IndexReport:
    """Give a snapshot its version of an index: build, refresh, reuse, or move the tag, whichever is due.

    Defines the index where the table does not have it. Idempotent by build id; recall is checked before the commit.
    Raises what `materialize_index` and `create_index` raise.
    """
    definition = ensure_defined(run.table, definition)
    runner = type(run.runner).__name__
    log(f"{table_name(run.table)}, index {definition.name}, snapshot {snapshot_id}: working with {runner}")
    return materialize_index(run, definition, snapshot_id)


def estimate_refresh(run: RunContext, definition: IndexDefinition, snapshot_id: SnapshotId) -> Estimate:
    """Estimate what `refresh_index` would do, and its time and traffic. Changes nothing and starts no Spark session.

    So equality deletes that came since the last version are resolved in this process, which reads the keys of all rows
    that they may be about. Where a build would not be made, as one was made in vain, the reason says so. Raises
    DefinitionError where `refresh_index` would not define the index.
    """
    definition = _as_defined(run.table, definition) or new_definition(run.table, definition)
    plan = plan_version(replace(run, runner=LocalRunner()), definition, snapshot_id)
    vain = find_vain_build(plan, run) if plan.action is Action.BUILT else None
    return estimate(run, plan if vain is None else replace(plan, reason=f"{plan.reason}. {vain}"))


def current_definition(table: Table, definition: IndexDefinition, *, in_settings: bool) -> IndexDefinition:
    """The definition that a run works by, where the process that started it may have read `definition` long ago.

    `in_settings`: whether the settings define the index. Otherwise the table's properties do, and they may have changed
    since. Raises DefinitionError where they define it no more.
    """
    if in_settings:
        return definition
    current = find_definition(table, definition.name)
    if current is None:
        raise DefinitionError(
            f"{table_name(table)}: index {definition.name!r} was dropped, and is not made again; "
            "reload the code location, so that its asset goes"
        )
    return current


def ensure_defined(table: Table, definition: IndexDefinition) -> IndexDefinition:
    """The definition with the table's field ids of its columns; a new one is written to the table's properties, and so
    are the ids that one lacks there which was set by hand: later it may be the columns that are renamed.
    """
    in_table = find_definition(table, definition.name)
    if in_table is not None and _lacks_ids(in_table):
        create_index(table, in_table)
        table.refresh()
    if defined := _as_defined(table, definition):
        return defined
    created = create_index(table, definition)
    table.refresh()
    return created


def _lacks_ids(definition: IndexDefinition) -> bool:
    lists = (
        getattr(definition, ids_of) is None
        for names_of, ids_of in COLUMN_LISTS.items()
        if getattr(definition, names_of)
    )
    return definition.field_id is None or any(lists)


def _as_defined(table: Table, definition: IndexDefinition) -> IndexDefinition | None:
    """The definition with the table's field ids of its columns; None where the table does not have the index.

    Columns of its lists that the table's definition does not name are found by their names. Raises DefinitionError
    where the index is on another column, or has other distances: readers go by the table's definition.
    """
    in_table = find_definition(table, definition.name)
    if in_table is None:
        return None
    by_name = {field.name: field.field_id for field in table.schema().fields}
    now = next((name for name, field_id in by_name.items() if field_id == in_table.field_id), None)
    is_other = definition.column != in_table.column or (now is not None and definition.field_id is None)
    if is_other and by_name.get(definition.column, in_table.field_id) != in_table.field_id:
        raise DefinitionError(
            f"{table_name(table)}: index {definition.name!r} is on column {now or in_table.column}, and is to be on "
            f"{definition.column}: drop the index, and the next run makes it on that column, or take another name"
        )
    for parameter in _OF_DISTANCES:
        if (before := getattr(in_table, parameter)) != (after := getattr(definition, parameter)):
            raise DefinitionError(
                f"{table_name(table)}: index {definition.name!r} has {parameter} {before}, and is to have {after}: "
                "drop the index, and the next run makes it so, or take another name"
            )
    present = frozenset(by_name.values())
    resolved: dict[str, Any] = {"field_id": in_table.field_id}
    for names_of, ids_of in COLUMN_LISTS.items():
        ids = dict(zip(getattr(in_table, names_of), getattr(in_table, ids_of) or (), strict=False))
        ids = {name: field_id for name, field_id in ids.items() if field_id in present or name not in by_name}
        others = tuple(name for name in getattr(definition, names_of) if name not in ids)
        columns: dict[str, Any] = {names_of: others, ids_of: None}
        unresolved = replace(definition, **columns)
        ids |= zip(others, resolve_columns(unresolved, names_of, table.schema(), table_name(table)), strict=True)
        resolved[ids_of] = tuple(ids[name] for name in getattr(definition, names_of))
    return replace(definition, **resolved)
