"""Give one snapshot its theta sketches, or tell what that will take."""

from collections.abc import Callable

from ops.graphs.rows import snapshot_rows
from ops.resources import Catalogs, Engine
from ops.theta import ThetaEstimate, ThetaReport, estimate_theta_sketches, materialize_theta_sketches

Progress = Callable[[int, int], None]


def sketch_snapshot(
    catalogs: Catalogs,
    engine: Engine,
    catalog: str,
    identifier: str,
    snapshot_id: int,
    *,
    columns: tuple[str, ...] | None = None,
    log: Callable[[str], None] = lambda _: None,
    progress: Progress | None = None,
) -> ThetaReport:
    """Count, unite and register; `columns` None: by their types. Idempotent.

    Raises what the catalog, the store and the theta room raise.
    """
    table = catalogs.table(catalog, identifier)
    runner = engine.runner(snapshot_rows(table, snapshot_id))
    log(f"{identifier}, snapshot {snapshot_id}: sketching with {type(runner).__name__}")
    report = materialize_theta_sketches(
        table,
        snapshot_id,
        runner=runner,
        storage=catalogs.storage(catalog),
        columns=columns,
        progress=progress,
    )
    if report.note:
        log(report.note)
    return report


def estimate_sketches(
    catalogs: Catalogs,
    engine: Engine,
    catalog: str,
    identifier: str,
    snapshot_id: int,
    *,
    columns: tuple[str, ...] | None = None,
) -> ThetaEstimate:
    """What `sketch_snapshot` would do, and what that would take. Changes nothing, starts no Spark session."""
    table = catalogs.table(catalog, identifier)
    return estimate_theta_sketches(
        table,
        snapshot_id,
        runner=engine.runner(snapshot_rows(table, snapshot_id)),
        storage=catalogs.storage(catalog),
        columns=columns,
    )
