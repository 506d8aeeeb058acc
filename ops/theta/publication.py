"""Publication of a snapshot's sketches: its statistics file, with other engines' blobs, and its file sketches."""

import logging
import uuid
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import StatisticsFile

from icepuffin.ops.binding.bindings import VersionPart
from icepuffin.ops.binding.bound_versions import BoundPack, sketch_versions, tag_target
from icepuffin.ops.binding.catalog_trial import require_bindable
from icepuffin.ops.binding.commit import reload_table
from icepuffin.ops.binding.derived_snapshots import Binding, NewPack
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.binding.files_folder import FilesFolder, folder_of, remember_folder
from icepuffin.ops.binding.joint_commit import CommitPart, commit_together
from icepuffin.ops.binding.measurements import LEFT_OUT
from icepuffin.ops.binding.statistics import StatisticsPart, find_statistics
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.messages import plural
from icepuffin.ops.model import SnapshotId, StorageConfig
from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.storage import ObjectMissingError, left_where_refused, open_storage
from icepuffin.ops.table.blob_kind import LASTING_MS, SIDE_TAG_AGE_MS, SKETCHES_TAG, BlobKind
from icepuffin.ops.table.snapshots import find_snapshot, table_name
from icepuffin.ops.tasks.sketches.statistic import Kind, StatisticKey
from icepuffin.ops.theta.build_id import is_ours, is_outdated
from icepuffin.ops.theta.file_sketches import (
    FileKey,
    FileSketches,
    FileSketchesReader,
    entry_bytes,
    image_bytes,
    within_budget,
    write_file_sketches,
)
from icepuffin.ops.theta.side_files import SideFiles, unpublished
from icepuffin.ops.theta.sketch_packs import packs_to_share
from icepuffin.ops.theta.statistics_slot import (
    BLOB_TYPES,
    CarriedBlob,
    NewSketch,
    carried_over,
    left_to_later,
    statistics_file,
)
from icepuffin.ops.theta.theta_plan import SketchPlan
from icepuffin.puffin import DistinctCount, FileInfo
from icepuffin.puffin.errors import BadMagicError, PuffinError, TruncatedFileError

if TYPE_CHECKING:
    from icepuffin.ops.theta.snapshot_sketches import SnapshotSketches  # numba

_log = logging.getLogger(__name__)
_ATTEMPTS = 5
_WHAT = "file sketches"


def settle_folder(table: Table) -> tuple[FilesFolder, IcepuffinError | None]:
    """(folder of the sketches, why no file sketches can be bound to the table; None where they can).

    Statistics need no more than the slot of their snapshot. Raises what the catalog raises.
    """
    folder = folder_of(table)
    try:
        folder = require_bindable(table)
        remember_folder(table, folder)
    except IcepuffinError as error:
        return folder, error
    return folder, None


class UnpublishedStatistics:
    """A snapshot's statistics file, with the blobs that are in the slot at this moment merged in, not yet in the slot.

    What another writer puts there between our read and our commit is merged, too. The slot has no compare-and-swap:
    what is written during the commit itself is overwritten. Its writer's next run notices. Where ours is overwritten,
    the sensor notices.

    Raises UnknownSnapshotError when the snapshot expired meanwhile, BindingError, also where the old file is another
    writer's that others may be able to read, what the catalog raises, and what the store of the old file raises, unless
    that is lost. A file that could not be registered is left to the orphan cleaner: the commit may have landed all the
    same.
    """

    part: StatisticsPart
    """The part of a commit that puts the file into the slot"""
    carried: tuple[CarriedBlob, ...]
    """Blobs that were carried over"""
    note: str

    def __init__(
        self,
        table: Table,
        storage: StorageConfig,
        snapshot: Snapshot,
        sketches: Sequence[NewSketch],
        folder: FilesFolder,
    ) -> None:
        self._table, self._storage, self._snapshot = table, storage, snapshot
        self._sketches, self._folder = sketches, folder
        self._write()

    @property
    def bytes_written(self) -> int:
        return self.part.entry.file_size_in_bytes

    def is_there(self) -> bool:
        """Whether the file is there, or in the slot: garbage collection takes one that waits beyond its grace period,
        as for an index that is built for long.
        """
        path = self.part.entry.statistics_path
        return self.part.is_settled or open_storage(self._table.location(), self._storage).exists(path)

    def publish(self, *beside: CommitPart[object]) -> None:
        """Put the file into the slot, with the parts `beside` in the same commit, as far as that is not done. One that
        is gone, before or after, is written anew.
        """
        if not self.is_there():
            self._write()
        for remaining in reversed(range(_ATTEMPTS)):
            commit_together(self._table, (self.part, *beside))
            path = self.part.entry.statistics_path
            # it may have been long until the commit, as where the machine was suspended
            if self.part.outcome() and open_storage(path, self._storage).exists(path):
                return
            with left_where_refused():
                open_storage(path, self._storage).delete(path)
            if remaining:
                self._write()
        raise BindingError(
            f"{table_name(self._table)}: others keep writing the statistics of snapshot {self._snapshot.snapshot_id}; "
            "try again later"
        )

    def _write(self) -> None:
        table, snapshot_id = self._table, SnapshotId(self._snapshot.snapshot_id)
        reload_table(table)
        find_snapshot(table, snapshot_id)
        old = find_statistics(table, snapshot_id)
        current = table.schema().field_ids - left_to_later(old, self._snapshot)
        new = [sketch for sketch in self._sketches if current.issuperset(sketch.statistic.field_ids)]
        if not any(sketch.statistic.kind is Kind.NDV for sketch in new):
            new = []  # no NDV is left whose entry would say that there are others
        self.carried, self.note = (), ""
        if old is not None:
            self._carry_over(old, {(BLOB_TYPES[it.statistic.kind], it.statistic.key[0]) for it in new})
        path = f"{table.location().rstrip('/')}/{self._folder}/{snapshot_id}-{uuid.uuid4()}.stats"
        data, info, listed = statistics_file(self._snapshot, new, self.carried)
        open_storage(table.location(), self._storage).create(path, data)
        reached(RunStep.STATISTICS_WRITTEN)
        entry = StatisticsFile(
            snapshot_id=snapshot_id,
            statistics_path=path,
            file_size_in_bytes=info.file_size,
            file_footer_size_in_bytes=info.footer_size,
            blob_metadata=listed,
        )
        self.part = StatisticsPart(entry, old.statistics_path if old else None)

    def _carry_over(self, old: StatisticsFile, replaced: Collection[tuple[str, int]]) -> None:
        name, current = table_name(self._table), self._table.schema().field_ids
        try:
            store = open_storage(old.statistics_path, self._storage)
            self.carried = carried_over(store, old, replaced=replaced, current_fields=current)
        except (ObjectMissingError, PuffinError) as error:
            if not _is_damaged(old, error):
                raise BindingError(
                    f"{name}: the statistics of snapshot {old.snapshot_id} are of another writer, and cannot be read: "
                    f"{old.statistics_path}: {error}; they are left as they are, since other readers may understand "
                    "them. To have them replaced, remove them: "
                    f"with table.update_statistics() as update: update.remove_statistics({old.snapshot_id})"
                ) from error
            self.note = f"the old statistics file could not be read and was replaced, not merged: {error}"
            _log.warning("%s, snapshot %d: %s", name, old.snapshot_id, self.note)


def _is_damaged(statistics: StatisticsFile, error: ObjectMissingError | PuffinError) -> bool:
    """Whether nobody can read a statistics file that we could not: it is lost or cut off, or it is ours."""
    if isinstance(error, ObjectMissingError | TruncatedFileError | BadMagicError):
        return True
    listed = statistics.blob_metadata
    return bool(listed) and all(is_ours(blob.properties) or is_outdated(blob.properties) for blob in listed)


def write_version(
    plan: SketchPlan,
    storage: StorageConfig,
    sketched: "SnapshotSketches",
    budget_bytes: int,
    measurement: str,
    folder: FilesFolder | IcepuffinError,
    counts: Sequence[DistinctCount],
) -> SideFiles:
    """Write the file sketches that no earlier pack has.

    `measurement`: text of the measurement of the run, for the summary of the snapshot. `folder`: folder of the files,
    or why none can be bound. `counts`: NDVs for planners.
    """
    table, snapshot, location = plan.table, plan.snapshot, plan.live.location
    sizes = {path: size for path, key in plan.keys.items() if (size := _image_bytes(sketched, key))}
    files = [file for file in plan.live.files if file.path in sizes]
    entries = {file.path: entry_bytes(plan.keys[file.path], len(plan.statistics)) for file in files}
    chosen = within_budget(files, sizes, entries, budget_bytes)
    over = {file.path for file in files}.difference(file.path for file in chosen) | sketched.left_out
    note = f"the sketches of {plural(len(over), 'file')} are over the budget of {budget_bytes:,} bytes" if over else ""
    if not chosen:
        return SideFiles(table, storage, note=note)
    if isinstance(folder, IcepuffinError):
        return SideFiles(table, storage, note=unpublished(table, _WHAT, folder))
    shared, new_files, is_pack = _arranged(plan, sketched, [plan.keys[file.path] for file in chosen])
    unique = f"{snapshot.snapshot_id}-{uuid.uuid4()}.puffin"
    path, pack_path = f"{location}/{folder}/theta-files-{unique}", f"{location}/{folder}/theta-pack-{unique}"

    def write(to: str, files: Sequence[FileSketches]) -> FileInfo:
        with open_storage(to, storage).open_output(to) as sink:
            return write_file_sketches(
                sink,
                files,
                snapshot_id=SnapshotId(snapshot.snapshot_id),
                sequence_number=snapshot.sequence_number or 0,
                build_id=plan.version_id,
                counts=counts,
            )

    new_packs: tuple[NewPack, ...] = ()
    if is_pack:
        pack_info = write(pack_path, new_files)
        new_packs = (NewPack(pack_path, pack_info.file_size, pack_info.footer_size),)
    reached(RunStep.FILE_SKETCHES_PACKED)
    info = write(path, () if is_pack else new_files)
    reached(RunStep.FILE_SKETCHES_WRITTEN)
    tag, expected = _tag_for(table, snapshot)
    binding = Binding(
        kind=BlobKind.SKETCHES,
        name=BlobKind.SKETCHES,
        tag=tag,
        base_snapshot_id=SnapshotId(snapshot.snapshot_id),
        build_id=plan.version_id,
        puffin_path=path,
        file_size=info.file_size,
        footer_size=info.footer_size,
        expected_ref=expected,
        max_ref_age_ms=LASTING_MS if tag == SKETCHES_TAG else SIDE_TAG_AGE_MS,
        measurement=f"{measurement} {LEFT_OUT}={len(over)}" if over else measurement,
        packs=tuple(pack.holder_id for pack in shared),
        new_packs=new_packs,
        fields=plan.counted,
    )
    written = info.file_size + sum(pack.size for pack in new_packs)
    return SideFiles(table, storage, _WHAT, VersionPart(binding), binding.new_paths, written, path, note)


def _image_bytes(sketched: "SnapshotSketches", key: FileKey) -> int:
    """Bytes of a file's sketches, in memory or not."""
    in_memory = sketched.by_file[key]
    unread = [(it, reader) for it, reader in sketched.located[key].items() if it not in in_memory]
    stored = {reader: reader.image_sizes(key) for reader in {reader for _, reader in unread}}
    return image_bytes(in_memory.values()) + sum(stored[reader][it] for it, reader in unread)


def _arranged(
    plan: SketchPlan, sketched: "SnapshotSketches", keys: Sequence[FileKey]
) -> tuple[tuple[BoundPack, ...], tuple[FileSketches, ...], bool]:
    """(packs to share, sketches of the files in none of them, whether those are worth a pack)."""
    packs, located = plan.earlier.packs(), sketched.located

    def in_packs(key: FileKey, chosen: Collection[FileSketchesReader]) -> dict[StatisticKey, FileSketchesReader]:
        return {it: reader for it, reader in located[key].items() if reader in chosen}

    bytes_in_use = dict.fromkeys(packs, 0)
    other_bytes = 0
    for key in keys:
        for reader in set(in_packs(key, packs).values()):
            bytes_in_use[reader] += reader.stored_bytes(key)
        if in_packs(key, packs).keys() != plan.build_ids.keys():
            other_bytes += _image_bytes(sketched, key)
    shared, is_pack = packs_to_share({r: (bytes_in_use[r], r.all_stored_bytes) for r in packs}, other_bytes)
    to_read = {
        key: {it: r for it, r in located[key].items() if r not in shared and it not in sketched.by_file[key]}
        for key in keys
    }
    read = plan.earlier.read(to_read)
    new = []
    for key in keys:
        sketches = {**sketched.by_file[key], **read[key]}
        missing = {it: sketches[it] for it in sketches.keys() - in_packs(key, shared).keys()}
        if missing:
            new.append(FileSketches(key, missing))
    new.sort(key=lambda file: (file.key.path, file.key.deletes))
    return tuple(packs[reader] for reader in packs if reader in shared), tuple(new), is_pack


def _tag_for(table: Table, snapshot: Snapshot) -> tuple[str, SnapshotId | None]:
    """(tag, snapshot that it points at now): the main tag, unless that holds the sketches of a newer snapshot."""
    main = next((version for version in sketch_versions(table) if SKETCHES_TAG in version.tags), None)
    is_main = main is None or main.base_sequence_number <= (snapshot.sequence_number or 0)
    tag = SKETCHES_TAG if is_main else f"{SKETCHES_TAG}-{snapshot.snapshot_id}"
    return tag, tag_target(table, tag)  # that of a version without an entry is moved as well
