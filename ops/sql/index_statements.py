"""CREATE, REFRESH, DROP INDEX and SHOW INDEXES, by `icepuffin.ops.index`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.ddl import create_index, defined_names, drop_index, load_definition
from icepuffin.ops.index.definitions.index_definition import COLUMN_LISTS, INDEX_PARAMETERS, IndexDefinition
from icepuffin.ops.index.planning.current_versions import versions_of
from icepuffin.ops.index.upkeep.index_states import list_indexes
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.runs.snapshot import RefreshProgress, refresh_snapshot
from icepuffin.ops.sql.errors import IndexNotBuiltError, SqlError
from icepuffin.ops.sql.statements import CreateIndex, DropIndex, RefreshIndex, ShowIndexes
from icepuffin.ops.table.snapshots import resolve_snapshot, rows_in_files
from icepuffin.ops.tasks.task_runner import RunContext, TaskRunner
from icepuffin.puffin.errors import PuffinError

Answer = tuple[pa.Table, str]
"""(rows, what was done)"""
MESSAGE = "result"
"""Column of an answer that is a text"""


@dataclass(frozen=True, slots=True)
class Builder:
    """How versions are built by statements."""

    runner_for: Callable[[int], TaskRunner]
    """The runner that builds a version of so many rows"""
    storage: StorageConfig
    progress: RefreshProgress | None
    ref_of: Callable[[Table], str]
    """The branch or tag that the indexes of a table follow"""

    def build(self, table: Table, definition: IndexDefinition) -> Answer:
        """The version of the newest snapshot, as far as it is not there. Raises what `materialize_index` raises."""
        ref = self.ref_of(table)
        head = resolve_snapshot(table, ref).snapshot_id
        run = RunContext(table, self.storage, self.runner_for(rows_in_files(table, head)), ref=ref)
        refreshed = refresh_snapshot(run, head, [definition], again=True, progress=self.progress)
        report = refreshed.indexes[definition.name]
        columns = ("action", "reason", "rows", "inserted", "remapped", "tombstones", "recall", "seconds")
        values = {name: pa.array([getattr(report, name)]) for name in columns}
        return pa.table({**values, "recall": pa.array([report.recall], pa.float64())}), report.reason


def run_on(
    table: Table, statement: CreateIndex | RefreshIndex | DropIndex | ShowIndexes, *, builder: Builder
) -> Answer:
    """Run a statement. Raises SqlError, and what defining, building and dropping raise."""
    match statement:
        case CreateIndex():
            return _create(table, statement, builder)
        case RefreshIndex():
            return builder.build(table, load_definition(table, statement.name))
        case DropIndex():
            return _drop(table, statement)
        case ShowIndexes():
            return _show(table, statement)


def _create(table: Table, statement: CreateIndex, builder: Builder) -> Answer:
    name, refresh = statement.name, f"REFRESH INDEX {statement.name} ON {statement.table}"
    if statement.if_not_exists and _has(table, name):
        is_built = bool(versions_of(table, load_definition(table, name)))
        unbuilt = "" if is_built else f", which has no version yet; {refresh} builds it"
        return message_of(f"{statement.table} has an index {name} already{unbuilt}")
    definition = IndexDefinition(name=name, column=statement.column, method=statement.method, **_parameters(statement))
    created = create_index(table, definition, replace=statement.replace)
    if not statement.build:
        return message_of(f"index {name} is defined; {refresh} builds it")
    if table.metadata.current_snapshot_id is None:
        return message_of(f"index {name} is defined; {statement.table} has no rows yet: after the first, {refresh}")
    try:
        return builder.build(table, created)
    except (IcepuffinError, KernelError, PuffinError) as error:
        raise IndexNotBuiltError(
            f"index {name} is defined, and its version is not built: {error}. {refresh} tries it again, and "
            f"DROP INDEX {name} ON {statement.table} removes the definition"
        ) from error


def _drop(table: Table, statement: DropIndex) -> Answer:
    if statement.if_there and not _has(table, statement.name):
        return message_of(f"{statement.table} has no index {statement.name}")
    tags = drop_index(table, statement.name)
    if not tags:
        return message_of(f"index {statement.name} is dropped; it had no version")
    return pa.table({"tag": list(tags)}), f"index {statement.name} is dropped"


def _show(table: Table, statement: ShowIndexes) -> Answer:
    states = list_indexes(table)
    definitions = [state.definition for state in states]
    columns: dict[str, list[Any]] = {
        name: [getattr(definition, name) for definition in definitions]
        for name in ("name", "column", "element_type", "method", "metric")
    }
    vectors = [definition.vectors if definition.has_graphs else None for definition in definitions]
    columns["vectors"] = pa.array(vectors, pa.string())
    for name in COLUMN_LISTS:
        columns[name] = [", ".join(getattr(definition, name)) for definition in definitions]
    columns["versions"] = [len(state.versions) for state in states]
    columns["snapshot_id"] = pa.array([state.snapshot_id for state in states], pa.int64())
    return pa.table(columns), f"indexes in the properties of {statement.table}"


def _has(table: Table, index: str) -> bool:
    return index in defined_names(table)


def _parameters(statement: CreateIndex) -> dict[str, Any]:
    if "method" in statement.options:
        raise SqlError(f"WITH (method = ...): the method stands behind USING, which is {statement.method} here")
    unknown = [key for key in statement.options if key not in INDEX_PARAMETERS and key not in COLUMN_LISTS]
    if unknown:
        takes = [key for key in (*INDEX_PARAMETERS, *COLUMN_LISTS, "build") if key != "method"]
        raise SqlError(f"WITH ({unknown[0]} = ...): WITH takes {', '.join(takes)}")
    items = statement.options.items()
    return {key: value if key in COLUMN_LISTS else INDEX_PARAMETERS[key].parse(value) for key, value in items}


def message_of(text: str) -> Answer:
    """An answer of one row, which is the text."""
    return pa.table({MESSAGE: [text]}), text
