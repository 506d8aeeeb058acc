"""Give one snapshot its version of one index."""

from collections.abc import Callable
from dataclasses import replace

from pyiceberg.table import Table

from icepuffin.ops.catalog.snapshots import snapshot_rows, table_name
from icepuffin.ops.index import create_index, materialize_index, plan_version
from icepuffin.ops.index.ddl import find_definition
from icepuffin.ops.index.definition import IndexDefinition
from icepuffin.ops.index.estimate import estimate
from icepuffin.ops.index.report import Estimate, IndexReport
from icepuffin.ops.index.stages import Progress
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.resources import Engine


def index_snapshot(
    table: Table,
    definition: IndexDefinition,
    snapshot_id: int,
    *,
    engine: Engine,
    storage: StorageConfig,
    watched_ref: str = "main",
    verify: bool = False,
    log: Callable[[str], None] = lambda _: None,
    progress: Progress | None = None,
) -> IndexReport:
    """Build, refresh, reuse, or move the tag: whichever is due. Idempotent by build id; gated before the commit.

    `verify`: no version is reused or started from whose file has not been read through and found whole.
    """
    definition = ensure_defined(table, definition)
    runner = engine.runner(snapshot_rows(table, snapshot_id))
    log(f"{table_name(table)}, index {definition.name}, snapshot {snapshot_id}: working with {type(runner).__name__}")
    return materialize_index(
        table,
        definition,
        snapshot_id,
        runner=runner,
        storage=storage,
        watched_ref=watched_ref,
        verify=verify,
        progress=progress,
    )


def estimate_snapshot(
    table: Table,
    definition: IndexDefinition,
    snapshot_id: int,
    *,
    engine: Engine,
    storage: StorageConfig,
    watched_ref: str = "main",
) -> Estimate:
    """What `index_snapshot` would do, and what that would take. Changes nothing, starts no Spark session."""
    definition = _as_defined(table, definition) or definition
    plan = plan_version(table, definition, snapshot_id, storage=storage, watched_ref=watched_ref)
    return estimate(table, plan, storage=storage, runner=engine.runner(snapshot_rows(table, snapshot_id)))


def ensure_defined(table: Table, definition: IndexDefinition) -> IndexDefinition:
    """The definition with the field id that the table knows; written to its properties if it is new."""
    if known := _as_defined(table, definition):
        return known
    created = create_index(table, definition)
    table.refresh()
    return created


def _as_defined(table: Table, definition: IndexDefinition) -> IndexDefinition | None:
    """The definition with the field id that the table knows; None where the table does not have the index."""
    known = find_definition(table, definition.name)
    return replace(definition, field_id=known.field_id) if known else None
