"""The difference between a snapshot's live rows and those of an index version. It does not depend on ancestry.

Files are compared by path, by whether they were added since, and by the deletes that apply to them. Delete files are
read only for files whose deletes have changed, each once.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icepuffin.ops.index.planning.deleted_rows import deleted_rows
from icepuffin.ops.index.versions.version_reader import OpenVersion, covered_paths, same_files
from icepuffin.ops.model import FileSlot, LiveFile, LiveFiles, StorageConfig
from icepuffin.ops.rows.datafile import DataFile, lacks_field_ids, mapped_names
from icepuffin.ops.rows.vector_column import VectorColumnError, element_type_of, exact_vectors
from icepuffin.ops.storage import open_storage, relative_to
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.live_rows import read_live
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.row_deletes import deleted_by_file, fingerprint
from icepuffin.ops.table.shared_deletes import DeleteFilter, Deletes
from icepuffin.ops.table.snapshots import find_schema
from icepuffin.ops.tasks.task_runner import RunContext

_FILES = 8
"""Files in a sample"""
_ROWS_PER_FILE = 64
"""Rows per file in a sample: the first of a row group, so that little is decoded"""
_WIDE_BYTES = 64 << 20
"""Stored bytes of vectors that the rows of a wide sample are drawn from, at most"""
_FOOTERS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class RowSample:
    """Shares of the rows in new files, by a sample."""

    with_vector: float = 0.0
    """Share of the live rows that have a vector"""
    shared: float = 0.0
    """Share of their vectors that a version has: by their content hashes"""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a table since an index version."""

    added: tuple[LiveFile, ...] = ()
    """Files whose rows are to be read, by path: new files, and files in which a deleted row may be live again"""
    emptied_slots: tuple[FileSlot, ...] = ()
    """File slots without any live row; files that are read again get new slots"""
    deleted: Mapping[FileSlot, npt.NDArray[np.int64]] = field(default_factory=dict, compare=False)
    """Deleted row positions of the files that have more deletes now, by file slot; older deletes may be included"""
    lineage_files: tuple[tuple[FileSlot, LiveFile], ...] = ()
    """(file slot, file) of files that are gone and whose rows have ids: these may have moved to added files"""
    reread: frozenset[str] = frozenset()
    """Paths of those of `added` whose vectors the version has: a row that was deleted there may be live again"""

    @property
    def new(self) -> tuple[LiveFile, ...]:
        """Files whose vectors the version need not have: new ones, and those in which other columns are found now"""
        return tuple(file for file in self.added if file.path not in self.reread)

    @property
    def move_live_positions(self) -> bool:
        """Whether a node of the version may have lost its row at its address."""
        return bool(self.emptied_slots or self.deleted)


def find_changes(run: RunContext, base: OpenVersion, live: LiveFiles) -> Changes:
    """Compare a snapshot's live files with those of a version. Raises StorageError, PuffinError for broken deletes."""
    table = run.table
    covered = covered_paths(base)
    mended = files_mapped_since(table, base, live, find_schema(table, live.schema_id), run.storage)
    same = {path: live.files[number] for path, number in same_files(base, live).items() if path not in mended}
    table_then = base.routing.files
    changed = {
        path: file for path, file in same.items() if fingerprint(file) != table_then[covered[path]].delete_fingerprint
    }
    later_deletes = LaterDeletes(base)
    later = {path: later_deletes.only(file, covered[path]) for path, file in changed.items()}
    deleted = deleted_rows(later.values(), run.storage, run.runner)
    unsure = [file for path, file in changed.items() if later[path] is file]
    undeleted = _with_undeleted_rows(run, base, unsure, deleted)
    reread = {path for path, file in changed.items() if file.path in undeleted}
    kept = {file.path for path, file in same.items() if path not in reread}
    added = [file for file in live.files if file.path not in kept]
    emptied = {path: slot for path, slot in covered.items() if path not in same or path in reread}
    replaced = {relative_to(file.path, live.location) for file in live.files} - same.keys()
    with_ids = {path: slot for path, slot in emptied.items() if path not in replaced}  # a replaced file's ids are lost
    return Changes(
        added=tuple(sorted(added, key=lambda file: file.path)),
        emptied_slots=tuple(sorted(emptied.values())),
        lineage_files=_lineage_files(table, base, with_ids) if any(file.has_row_ids for file in added) else (),
        deleted={covered[path]: deleted[file.path] for path, file in changed.items() if path not in reread},
        reread=frozenset(same[path].path for path in reread),
    )


def changed_files(run: RunContext, base: OpenVersion, live: LiveFiles) -> Changes:
    """The same for a version that knows files, not their rows: a file under other deletes counts as another file."""
    slots = covered_paths(base)
    mended = files_mapped_since(run.table, base, live, find_schema(run.table, live.schema_id), run.storage)
    kept = {
        path
        for path, number in same_files(base, live).items()
        if path not in mended and fingerprint(live.files[number]) == base.routing.files[slots[path]].delete_fingerprint
    }
    added = (file for file in live.files if relative_to(file.path, live.location) not in kept)
    return Changes(
        added=tuple(sorted(added, key=lambda file: file.path)),
        emptied_slots=tuple(sorted(slot for path, slot in slots.items() if path not in kept)),
    )


def files_mapped_since(
    table: Table, base: OpenVersion, live: LiveFiles, schema: Schema, storage: StorageConfig
) -> frozenset[str]:
    """Relative paths of files without field ids in which the name mapping of today, or without one the name of today,
    finds other vectors than the version has nodes of.

    schema: the one that the rows of `live` are read in. Raises StorageError, PuffinError, DataFileError.
    """
    field_id = base.definition.field_id
    if field_id is None or field_id not in {field.field_id for field in schema.fields}:
        return frozenset()
    same = {path: live.files[number] for path, number in same_files(base, live).items()}
    names = column_names(live, field_id)
    if not _names_then(table, base, field_id) <= (_own_name(schema, field_id) if names is None else names):
        with ThreadPoolExecutor(_FOOTERS_AT_ONCE) as pool:
            without_ids = pool.map(lambda file: lacks_field_ids(open_storage(file.path, storage), file), same.values())
            return frozenset(path for path, lacks in zip(same, without_ids, strict=True) if lacks)
    slots = covered_paths(base)
    without = {
        path: file
        for path, file in same.items()
        if file.name_mapping is not None and file.record_count and not base.routing.files[slots[path]].live_rows
    }
    deleted = deleted_by_file(lambda path: open_storage(path, storage), without.values())
    living = {path: file for path, file in without.items() if len(deleted[file.path]) < file.record_count}
    # a mapping is of the whole table, so a few files stand for all
    for file in list(living.values())[:: -(-len(living) // _FILES) or 1]:
        store = open_storage(file.path, storage)
        if lacks_field_ids(store, file):
            batches = read_live(store, file, schema, [field_id], deleted=deleted[file.path])
            if any(batch.columns.column(0).null_count < batch.columns.num_rows for batch in batches):
                return frozenset(living)
    return frozenset()


def _names_then(table: Table, base: OpenVersion, field_id: int) -> frozenset[str]:
    """Names by which the version's column was found in files without field ids: its own, where no mapping is recorded.
    None are given where its schema is not known.
    """
    if base.column_names is not None:
        return base.column_names
    index_snapshot = snapshots_by_id(table.metadata).get(base.bound.index_snapshot_id)
    if index_snapshot is None or index_snapshot.schema_id is None:
        return frozenset()
    return _own_name(find_schema(table, index_snapshot.schema_id), field_id)


def _own_name(schema: Schema, field_id: int) -> frozenset[str]:
    name = schema.find_column_name(field_id)
    return frozenset({name} if name else ())


def column_names(live: LiveFiles, field_id: int) -> frozenset[str] | None:
    """Names of a column in files without field ids, by the table's name mapping; None where the table has none."""
    return mapped_names(live.files[0].name_mapping, field_id) if live.files else None


def _lineage_files(
    table: Table, base: OpenVersion, emptied: Mapping[str, FileSlot]
) -> tuple[tuple[FileSlot, LiveFile], ...]:
    """Files whose rows have ids, as the index snapshot has them: the data snapshot may have expired."""
    if not emptied:
        return ()
    before = live_files(table, base.bound.index_snapshot_id)
    slotted = ((emptied.get(relative_to(file.path, before.location)), file) for file in before.files)
    return tuple((slot, file) for slot, file in slotted if slot is not None and file.first_row_id is not None)


class LaterDeletes:
    """The deletes that came after a version. Files that share one tuple of deletes share what is made of it."""

    def __init__(self, base: OpenVersion) -> None:
        self._base = base
        limit = base.sequence_number
        self._later = DeleteFilter(lambda delete: delete.sequence_number > limit)
        self._older = DeleteFilter(lambda delete: delete.sequence_number <= limit)
        self._split: dict[int, tuple[bytes, Deletes]] = {}

    def only(self, file: LiveFile, slot: FileSlot) -> LiveFile:
        """The file with only the deletes that came after the version, if all others were known to it: then no row can
        be live again, and older deletes need not be read. Else the file itself.
        """
        if id(file.deletes) not in self._split:
            later = self._later.select(file.deletes)
            older = self._older.select(file.deletes) if later else file.deletes
            self._split[id(file.deletes)] = fingerprint(replace(file, deletes=older)), later
        older_fingerprint, later = self._split[id(file.deletes)]
        return (
            replace(file, deletes=later)
            if older_fingerprint == self._base.routing.files[slot].delete_fingerprint
            else file
        )

    def were_added(self, file: LiveFile, slot: FileSlot) -> bool:
        """Whether the file has all deletes of the version: then none of its rows is live that was deleted there."""
        return self.only(file, slot) is not file


def _with_undeleted_rows(
    run: RunContext, base: OpenVersion, files: list[LiveFile], deleted: Mapping[str, npt.NDArray[np.int64]]
) -> frozenset[str]:
    """Paths of files with a row that was deleted in the version's snapshot and is live now, as after a rollback.

    Such a row may have no node. The index snapshot has the same live files as the data snapshot, and outlives it.
    """
    if not files:
        return frozenset()
    before = live_files(run.table, base.bound.index_snapshot_id).by_path()
    there_then = [before[file.path] for file in files if file.path in before]
    deleted_then = deleted_rows(there_then, run.storage, run.runner)
    return frozenset(
        file.path
        for file in files
        if file.path not in deleted_then or len(np.setdiff1d(deleted_then[file.path], deleted[file.path]))
    )


def sample_new_rows(
    base: OpenVersion,
    files: Sequence[LiveFile],
    schema: Schema,
    field_id: int,
    storage: StorageConfig,
    *,
    deleted: Mapping[str, npt.NDArray[np.int64]] | None = None,
    among: Sequence[npt.NDArray[np.int64]] | None = None,
    wide: bool = False,
) -> RowSample:
    """How many live rows of new `files` have a vector, and how many of these `base` has, by a sample of at most 512.

    `deleted`: the deleted rows of the files, by path; None: they are read, of the files in the sample. `among`: the
    nodes that count, by shard. Default: all. `wide`: rows are drawn from all that 64 MiB hold, not the first ones of a
    row group, which may be the ones that change. Reads the hashes of all shards, 8 bytes per node. Vectors that cannot
    be read count as unknown: the build names them. Raises StorageError, PuffinError, DataFileError.
    """
    from icepuffin.ops.shards.shard_reader import open_shard  # noqa: PLC0415  numba, which few plans need

    rows_of = {file.path: file.record_count if deleted is None else live_rows(file, deleted) for file in files}
    new = [file for file in files if rows_of[file.path]]
    rng = np.random.default_rng(len(new))
    chosen = [(new[index], weight) for index, weight in _chosen([rows_of[file.path] for file in new], rng)]
    if deleted is None:
        deleted = deleted_by_file(lambda path: open_storage(path, storage), (file for file, _ in chosen))
        chosen = [(file, weight) for file, weight in chosen if live_rows(file, deleted)]
    size = _WIDE_BYTES // max(1, len(chosen)) if wide else 0
    drawn = [
        (*_sample(file, deleted[file.path], rng, schema, field_id, storage, size), weight) for file, weight in chosen
    ]
    rows = sum(weight for *_, weight in drawn)
    samples = [(hashes, share * weight) for hashes, share, weight in drawn if len(hashes)]
    if not samples:
        return RowSample()
    sampled = np.concatenate([hashes for hashes, _ in samples])
    sampled_values = pa.array(np.unique(sampled))
    matching = [np.empty(0, np.uint64)]
    for shard_id, shard in enumerate(base.shards):
        if among is not None and not len(among[shard_id]):
            continue
        shard_hashes = open_shard(shard, storage).read_content_hashes()
        if among is not None:
            shard_hashes = shard_hashes[among[shard_id]]
        matching.append(shard_hashes[np.asarray(pc.is_in(pa.array(shard_hashes), value_set=sampled_values))])
    base_hashes = np.concatenate(matching)
    shares = [np.isin(hashes, base_hashes).mean() for hashes, _ in samples]
    weights = [weight for _, weight in samples]
    return RowSample(sum(weights) / rows, float(np.average(shares, weights=weights)))


def live_rows(file: LiveFile, deleted: Mapping[str, npt.NDArray[np.int64]]) -> int:
    """Rows of a file without its deleted ones, by path: a delete file may name rows that its file has not."""
    return file.record_count - int(np.searchsorted(deleted[file.path], file.record_count))


def _chosen(counts: Sequence[int], rng: np.random.Generator) -> list[tuple[int, int]]:
    """(index, weight) of the files in a sample, by their rows: a large file stands for more rows than a small one."""
    if len(counts) <= _FILES:
        return list(enumerate(counts))
    drawn = (np.arange(_FILES) + rng.random()) / _FILES * sum(counts)  # each file as likely as it has rows
    chosen, times = np.unique(np.searchsorted(np.cumsum(counts), drawn, side="right"), return_counts=True)
    return list(zip(chosen.tolist(), times.tolist(), strict=True))


def _sample(
    file: LiveFile,
    deleted: npt.NDArray[np.int64],
    rng: np.random.Generator,
    schema: Schema,
    field_id: int,
    storage: StorageConfig,
    size: int,
) -> tuple[npt.NDArray[np.uint64], float]:
    """(content hashes of some vectors of a file's live rows, share of its live rows that have a vector).

    They are drawn from the rows that `size` stored bytes hold, at least the first rows of a row group. Where none of
    these has one, the file is read until a row has: writers put nulls first, and deletes name whole ranges.
    """
    from icepuffin.ops.tasks.vectors import content_hashes  # noqa: PLC0415  numba, which few plans need

    store = open_storage(file.path, storage)
    opened = DataFile(store, file, schema, [field_id])
    column, seen = pa.array([]), 0
    for group in rng.permutation(opened.groups).tolist():
        stored, count = opened.stored_bytes(group), opened.start(group + 1) - opened.start(group)
        rows = opened.first(max(_ROWS_PER_FILE, count if stored <= size else count * size // stored), group)
        if rows is not None:
            positions = opened.start(group) + np.arange(rows.num_rows)
            live = rows.column(0).filter(pa.array(~np.isin(positions, deleted)))
            column, seen = pa.concat_arrays([column.cast(live.type), live.drop_null()]), seen + len(live)
        if (size := size - stored) <= 0:
            break
    if not len(column):
        seen = 0
        for batch in read_live(store, file, schema, [field_id], deleted=deleted):
            column, seen = batch.columns.column(0).drop_null(), seen + batch.columns.num_rows
            if len(column):
                break
    if not len(column):
        return np.empty(0, np.uint64), 0.0
    share = len(column) / seen
    column = column.take(np.sort(rng.choice(len(column), min(_ROWS_PER_FILE, len(column)), replace=False)))
    try:
        return content_hashes(exact_vectors(column, None, element_type_of(schema, field_id))), share
    except VectorColumnError:
        return np.zeros(len(column), np.uint64), share
