"""Publication of a snapshot's sketches: its statistics file, with other engines' blobs, and its file sketches."""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icepuffin.ops.catalog import bindings
from icepuffin.ops.catalog.bindings import LostRaceError
from icepuffin.ops.catalog.blob_kind import LASTING_MS, SIDE_TAG_AGE_MS, SKETCHES_TAG, BlobKind
from icepuffin.ops.catalog.bound_versions import sketch_versions
from icepuffin.ops.catalog.commit import reload_table
from icepuffin.ops.catalog.derived_snapshots import Binding
from icepuffin.ops.catalog.snapshots import find_snapshot, table_name
from icepuffin.ops.catalog.statistics import StatisticsError, find_statistics, register_statistics
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.storage import Storage
from icepuffin.ops.theta.file_sketches import (
    FileSketches,
    file_key,
    image_bytes,
    within_budget,
    write_file_sketches,
)
from icepuffin.ops.theta.plan import SketchPlan
from icepuffin.ops.theta.statistics_slot import CarriedBlob, NewSketch, carried_over, statistics_file
from icepuffin.puffin.errors import PuffinError

_log = logging.getLogger(__name__)
_ATTEMPTS = 5


def publish_statistics(
    table: Table, store: Storage, snapshot: Snapshot, sketches: Sequence[NewSketch]
) -> tuple[int, tuple[CarriedBlob, ...], str]:
    """(bytes written, blobs carried over, note). Merges the blobs that are in the slot at this moment.

    What another writer puts there between our read and our commit is merged, too. The slot has no compare-and-swap:
    what is written during the commit itself is overwritten. Its writer's next run notices. Where ours is overwritten,
    the sensor notices.

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
    """The same as `publish_statistics`, once. None, with our file removed, where another writer came after our read."""
    name, snapshot_id = table_name(table), SnapshotId(snapshot.snapshot_id)
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
            _log.warning("%s, snapshot %d: %s", name, snapshot_id, note)
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


@dataclass(frozen=True, slots=True)
class FileSketchesResult:
    """Result of the publication of a version's file sketches."""

    path: str | None
    bytes_written: int
    note: str


def publish_file_sketches(
    plan: SketchPlan, store: Storage, sketches: Sequence[FileSketches], budget_bytes: int, measurement: str
) -> FileSketchesResult:
    """Write the file sketches and bind them to the table. As they are a cache, a failure is a note, not an error.

    `measurement`: text of the measurement of the run, for the summary of the snapshot.
    """
    table, snapshot, live, build_id = plan.table, plan.snapshot, plan.live, plan.version_id
    by_key = {s.key: s for s in sketches}
    files = [f for f in live.files if file_key(f, live.location) in by_key]
    sizes = {f.path: image_bytes(by_key[file_key(f, live.location)].columns.values()) for f in files}
    chosen, left_out = within_budget(files, sizes, budget_bytes)
    note = f"{left_out} files' sketches are over the budget of {budget_bytes:,} bytes" if left_out else ""
    if not chosen:
        return FileSketchesResult(None, 0, note)
    path = f"{live.location.rstrip('/')}/metadata/theta-files-{snapshot.snapshot_id}-{uuid.uuid4()}.puffin"
    with store.open_output(path) as sink:
        info = write_file_sketches(
            sink,
            (by_key[file_key(f, live.location)] for f in chosen),
            snapshot_id=SnapshotId(snapshot.snapshot_id),
            sequence_number=snapshot.sequence_number or 0,
            build_id=build_id,
        )
    reached(RunStep.FILE_SKETCHES_WRITTEN)
    tag, expected = _tag_for(table, snapshot)
    try:
        bindings.publish(
            table,
            Binding(
                kind=BlobKind.SKETCHES,
                name=BlobKind.SKETCHES,
                tag=tag,
                base_snapshot_id=SnapshotId(snapshot.snapshot_id),
                build_id=build_id,
                puffin_path=path,
                file_size=info.file_size,
                footer_size=info.footer_size,
                expected_ref=expected,
                max_ref_age_ms=LASTING_MS if tag == SKETCHES_TAG else SIDE_TAG_AGE_MS,
                measurement=measurement,
            ),
        )
    except IcepuffinError as error:
        if isinstance(error, LostRaceError):  # after any other error a snapshot may still refer to the file
            store.delete(path)
        _log.warning("%s: the file sketches were not published: %s", table_name(table), error)
        return FileSketchesResult(None, 0, f"the file sketches were not published: {error}")
    return FileSketchesResult(path, info.file_size, note)


def _tag_for(table: Table, snapshot: Snapshot) -> tuple[str, SnapshotId | None]:
    """(tag, snapshot that it points at now): the main tag, unless that holds the sketches of a newer snapshot."""
    tags = {tag: v for v in sketch_versions(table) for tag in v.tags}
    main = tags.get(SKETCHES_TAG)
    if main is None or main.base_sequence_number <= (snapshot.sequence_number or 0):
        return SKETCHES_TAG, main.index_snapshot_id if main else None
    side = f"{SKETCHES_TAG}-{snapshot.snapshot_id}"
    return side, tags[side].index_snapshot_id if side in tags else None
