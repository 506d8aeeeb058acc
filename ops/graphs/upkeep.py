"""Housekeeping of one table: worn shards, and files that no version needs."""

from datetime import timedelta

from ops.catalog.snapshots import ref_snapshot_id
from ops.graphs.rows import snapshot_rows
from ops.graphs.versions import ensure_defined
from ops.index import collect_garbage, maintain
from ops.index.definition import IndexDefinition
from ops.index.report import GcReport, IndexReport
from ops.index.work import Progress
from ops.resources import Catalogs, Engine


def maintain_indexes(
    catalogs: Catalogs,
    engine: Engine,
    catalog: str,
    identifier: str,
    definition: IndexDefinition,
    *,
    watched_ref: str = "main",
    progress: Progress | None = None,
) -> IndexReport | None:
    """Rebuild the newest version's shards whose tombstone ratio is over the definition's. None: nothing was due."""
    table = catalogs.table(catalog, identifier)
    definition = ensure_defined(table, definition)
    rows = snapshot_rows(table, ref_snapshot_id(table, watched_ref) or 0)
    return maintain(
        table,
        definition,
        runner=engine.runner(rows),
        storage=catalogs.storage(catalog),
        watched_ref=watched_ref,
        progress=progress,
    )


def collect(
    catalogs: Catalogs, catalog: str, identifier: str, *, grace_hours: float, dry_run: bool = False
) -> GcReport:
    """Delete our own files that no metadata references and that are older than the grace period."""
    table = catalogs.table(catalog, identifier)
    return collect_garbage(
        table, storage=catalogs.storage(catalog), grace=timedelta(hours=grace_hours), dry_run=dry_run
    )
