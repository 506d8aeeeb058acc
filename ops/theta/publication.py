"""Publication of a snapshot's statistics file, merged with the blobs of other engines in the slot."""

import logging
import uuid
from collections.abc import Sequence

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icepuffin.ops.catalog.commit import reload_table
from icepuffin.ops.catalog.snapshots import find_snapshot, table_name
from icepuffin.ops.catalog.statistics import StatisticsError, find_statistics, register_statistics
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.storage import Storage
from icepuffin.ops.theta.statistics_slot import CarriedBlob, NewSketch, carried_over, statistics_file
from icepuffin.puffin.errors import PuffinError

logger = logging.getLogger(__name__)
_ATTEMPTS = 5


def publish(
    table: Table, store: Storage, snapshot: Snapshot, sketches: Sequence[NewSketch]
) -> tuple[int, tuple[CarriedBlob, ...], str]:
    """(bytes written, blobs carried over, note). Merges the blobs that are in the slot at this moment.

    Another writer between our read and our commit is merged, too. The slot has no compare-and-swap: a writer during the
    commit itself is overwritten. Its next run notices, as the sensor does where ours is overwritten.

    Raises UnknownSnapshotError when the snapshot expired meanwhile, StatisticsError, and what the catalog raises. A
    file that could not be registered is left to the orphan cleaner: the commit may have landed all the same.
    """
    for _ in range(_ATTEMPTS):
        published = _publish_over(table, store, snapshot, sketches)
        if published is not None:
            return published
    raise StatisticsError(
        f"{table_name(table)}: others keep writing the statistics of snapshot {snapshot.snapshot_id}; try again later"
    )


def _publish_over(
    table: Table, store: Storage, snapshot: Snapshot, sketches: Sequence[NewSketch]
) -> tuple[int, tuple[CarriedBlob, ...], str] | None:
    """The same as `publish`, once. None, with our file removed, where another writer came after our read."""
    name, snapshot_id = table_name(table), snapshot.snapshot_id
    reload_table(table)
    find_snapshot(table, snapshot_id)
    current = table.schema().field_ids
    new = [sketch for sketch in sketches if sketch.field_id in current]
    old, note = find_statistics(table, snapshot_id), ""
    carried: tuple[CarriedBlob, ...] = ()
    if old is not None:
        try:
            carried = carried_over(store, old, replaced={s.field_id for s in new}, current_fields=current)
        except (IcepuffinError, PuffinError) as error:
            note = f"the old statistics file could not be read and was replaced, not merged: {error}"
            logger.warning("%s, snapshot %d: %s", name, snapshot_id, note)
    path = f"{table.location().rstrip('/')}/metadata/{snapshot_id}-{uuid.uuid4()}.stats"
    data, info, listed = statistics_file(snapshot, new, carried)
    store.create(path, data)
    reached(RunStep.STATISTICS_WRITTEN)
    sizes = {"file_size": info.file_size, "footer_size": info.footer_size}
    replaced = old.statistics_path if old else None
    if not register_statistics(table, snapshot_id, path=path, blobs=listed, over=replaced, **sizes):
        store.delete(path)
        return None
    return len(data), carried, note
