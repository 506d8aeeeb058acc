"""What a snapshot has that an index version has not, and the other way round. Not ancestry: any two snapshots compare.

Files are compared by path, by whether they were added since, and by the deletes that apply to them; delete files are
read only of files whose deletes have changed, each once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icepuffin.ann_kernels.hashing import content_hash
from icepuffin.ops.catalog.live_files import live_files
from icepuffin.ops.catalog.row_deletes import deleted_by_file, fingerprint
from icepuffin.ops.datafile import DataFile, VectorColumnError, vectors_from_arrow
from icepuffin.ops.index.version_reader import OpenVersion, covered_paths, same_files
from icepuffin.ops.model import LiveFile, LiveFiles, StorageConfig
from icepuffin.ops.storage import PartSource, Storage, open_storage, relative_to
from icepuffin.puffin.blobs.shard import ShardReader

_FILES = 8
_ROWS_A_FILE = 64
"""The first of a row group, so that little is read and decoded"""


@dataclass(frozen=True, slots=True)
class Changes:
    """Of a version's rows."""

    added: tuple[LiveFile, ...] = ()
    """Files whose rows are to be read, by path: new ones, and those in which a row may have come back to life"""
    gone: tuple[int, ...] = ()
    """Slots of the version that no live row lies in any more; files that are read again get new ones"""
    deleted: Mapping[int, npt.NDArray[np.int64]] = field(default_factory=dict, compare=False)
    """By slot of a file that stays and has more deletes now: row positions that those name, and maybe older ones"""
    left: tuple[tuple[int, LiveFile], ...] = ()
    """(slot, file) of those that are gone and of which rows have ids: they may have come again in one that is added"""


def find_changes(table: Table, base: OpenVersion, live: LiveFiles, storage: StorageConfig) -> Changes:
    """Compare a snapshot's live files with those of a version. Raises StorageError, PuffinError for broken deletes."""
    covered = covered_paths(base)
    same = {path: live.files[number] for path, number in same_files(base, live).items()}
    known = base.routing.files
    changed = {
        path: file for path, file in same.items() if fingerprint(file) != known[covered[path]].delete_fingerprint
    }
    later = {path: _later(file, base, covered[path]) for path, file in changed.items()}
    deleted = deleted_by_file(lambda path: open_storage(path, storage), later.values())
    unsure = [file for path, file in changed.items() if later[path] is file]
    revived = _revived(table, base, unsure, deleted, storage)
    again = {path for path, file in changed.items() if file.path in revived}
    kept = {file.path for path, file in same.items() if path not in again}
    added = [file for file in live.files if file.path not in kept]
    gone = {path: slot for path, slot in covered.items() if path not in same or path in again}
    replaced = {relative_to(file.path, live.location) for file in live.files} - same.keys()
    elsewhere = {path: slot for path, slot in gone.items() if path not in replaced}  # others' row ids were lost
    return Changes(
        added=tuple(sorted(added, key=lambda file: file.path)),
        gone=tuple(sorted(gone.values())),
        left=_left(table, base, elsewhere) if any(file.has_row_ids for file in added) else (),
        deleted={covered[path]: deleted[file.path] for path, file in changed.items() if path not in again},
    )


def _left(table: Table, base: OpenVersion, gone: Mapping[str, int]) -> tuple[tuple[int, LiveFile], ...]:
    """As the version's own snapshot has them: the one that it was made of may have expired."""
    if not gone:
        return ()
    before = live_files(table, base.version.index_snapshot_id)
    found = ((gone.get(relative_to(file.path, before.location)), file) for file in before.files)
    return tuple((slot, file) for slot, file in found if slot is not None and file.first_row_id is not None)


def _later(file: LiveFile, base: OpenVersion, slot: int) -> LiveFile:
    """The file with those of its deletes alone that the version did not know, where it knew all others: then no row can
    have come back, and older deletes need not be read. Else the file as it is.
    """
    older = tuple(delete for delete in file.deletes if delete.sequence_number <= base.sequence_number)
    if fingerprint(replace(file, deletes=older)) != base.routing.files[slot].delete_fingerprint:
        return file
    return replace(file, deletes=tuple(delete for delete in file.deletes if delete not in older))


def _revived(
    table: Table,
    base: OpenVersion,
    files: list[LiveFile],
    deleted: Mapping[str, npt.NDArray[np.int64]],
    storage: StorageConfig,
) -> frozenset[str]:
    """Paths of files of which a row that was deleted in the version's snapshot is live now (a rollback): it may have no
    node. The version is a snapshot with the same live files, and is there when the one that it was made of has expired.
    """
    if not files:
        return frozenset()
    before = live_files(table, base.version.index_snapshot_id).by_path()

    def opened(path: str) -> Storage:
        return open_storage(path, storage)

    then = deleted_by_file(opened, [before[file.path] for file in files if file.path in before])
    return frozenset(
        file.path for file in files if file.path not in then or len(np.setdiff1d(then[file.path], deleted[file.path]))
    )


def known_share(base: OpenVersion, live: LiveFiles, schema: Schema, field_id: int, storage: StorageConfig) -> float:
    """Share of the vectors in files new to `base` whose content hashes it has, by a sample of at most 512.

    Reads the hashes of all shards, 8 bytes a node. Vectors that cannot be read count as unknown: the build names them.
    """
    same = frozenset(same_files(base, live).values())
    new = [file for number, file in enumerate(live.files) if number not in same]
    rng = np.random.default_rng(len(new))
    chosen = rng.permutation(len(new))[:_FILES]
    hashes = [_sample(new[number], rng, schema, field_id, storage) for number in chosen]
    sampled = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    if not len(sampled):
        return 0.0
    store = open_storage(base.version.puffin_path, storage)
    wanted = pa.array(np.unique(sampled))
    known = [np.empty(0, np.uint64)]
    for shard in base.shards:
        theirs = ShardReader(PartSource(store, shard)).read_content_hashes()
        known.append(theirs[np.asarray(pc.is_in(pa.array(theirs), value_set=wanted))])
    return float(np.isin(sampled, np.concatenate(known)).mean())


def _sample(
    file: LiveFile, rng: np.random.Generator, schema: Schema, field_id: int, storage: StorageConfig
) -> npt.NDArray[np.uint64]:
    opened = DataFile(open_storage(file.path, storage), file, schema, [field_id])
    if not opened.groups:
        return np.empty(0, np.uint64)
    rows = opened.first(_ROWS_A_FILE, int(rng.integers(opened.groups)))
    if rows is None:
        return np.empty(0, np.uint64)
    try:
        return content_hash(vectors_from_arrow(rows.column(0).drop_null()))
    except VectorColumnError:
        return np.zeros(rows.num_rows, np.uint64)
