"""Times of snapshots that lie far apart: those of a test are a few milliseconds after each other."""

from collections.abc import Sequence

from pyiceberg.table import Table


def set_times(table: Table, snapshot_ids: Sequence[int], times_ms: Sequence[int]) -> None:
    """In this object alone, until it is refreshed."""
    times = dict(zip(snapshot_ids, times_ms, strict=True))
    moved = [
        item.model_copy(update={"timestamp_ms": times.get(item.snapshot_id, item.timestamp_ms)})
        for item in table.metadata.snapshots
    ]
    table.metadata = table.metadata.model_copy(update={"snapshots": moved})
