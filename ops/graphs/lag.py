"""How far an index is behind its table, from metadata alone."""

import time
from dataclasses import dataclass

from pyiceberg.table import Table

from ops.catalog.snapshots import data_snapshots
from ops.catalog.versions import versions


@dataclass(frozen=True, slots=True)
class Lag:
    """Of one index behind one ref."""

    snapshots: int
    """Data snapshots newer than the newest that has a version."""
    minutes: float
    """Age of the oldest of them; 0 where there is none."""
    coverage: float
    """Share of the ref's snapshots that have a version."""
    newest: str
    """Id of the ref's newest data snapshot."""


def index_lag(table: Table, index: str, ref: str, *, now: float | None = None) -> Lag:
    """`now`: seconds since the epoch. A ref that does not exist yet is not behind."""
    if ref != "main" and ref not in table.metadata.refs:
        return Lag(0, 0.0, 1.0, "none")
    indexed = {version.base_snapshot_id for version in versions(table, "ann", index)}
    lineage = data_snapshots(table, ref)
    covered = [snapshot.snapshot_id in indexed for snapshot in lineage]
    behind = next((back for back, has in enumerate(reversed(covered)) if has), len(lineage))
    seconds = (time.time() if now is None else now) - lineage[-behind].timestamp_ms / 1000 if behind else 0.0
    share = sum(covered) / len(lineage) if lineage else 1.0
    return Lag(behind, max(0.0, seconds / 60), share, str(lineage[-1].snapshot_id) if lineage else "none")
