"""Matching rows of format v3 by lineage: the row's id, and the commit that last changed it. No vector is read.

Iceberg gives each row of a v3 table an id. A writer that rewrites a file copies the ids of its rows and the sequence
number of the commit that last changed each (columns `_row_id` and `_last_updated_sequence_number`). Where a file lacks
them, or has nulls, the id is the file's first id plus the row's position, and the sequence number that of the file
(Iceberg spec, "Row Lineage"). Rows that are equal in both are one row with the same values, in any two snapshots.
"""

import contextlib
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icepuffin.ann_kernels.rows.matching import pair_equal
from icepuffin.ops.model import FileSlot, LiveFile, StorageConfig
from icepuffin.ops.rows.datafile import DataFile, DataFileError
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_rows import LiveBatch, read_live
from icepuffin.ops.table.manifests import ROW_ID
from icepuffin.ops.table.row_deletes import deleted_by_file
from icepuffin.ops.tasks.matching.match_hashes import MatchResult, MatchTask, stage_matches
from icepuffin.ops.tasks.rows import VectorRows, by_file, range_of
from icepuffin.ops.tasks.staged_blocks import BlockWriters, StagedBlock, read_blocks
from icepuffin.ops.tasks.vectors import VectorColumn, content_hashes, with_vector
from icepuffin.puffin.blobs import deletion_vector_blob

Versions = npt.NDArray[np.uint64]
"""u64[n], one number per row and commit that last changed it"""

_COLUMNS = Schema(
    NestedField(ROW_ID, "_row_id", LongType()),
    NestedField(2147483539, "_last_updated_sequence_number", LongType()),
)
_IDS = [field.field_id for field in _COLUMNS.fields]
_BATCH_ROWS = 1 << 18
_FILES_AT_ONCE = 8
"""Files that a task reads a little of at once: mostly it waits for the store"""
_ROWS_CHECKED = 64
"""Rows per file that are compared with their nodes: the first of a row group, so that little is decoded"""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2^64 by the golden ratio: no two pairs give one number as long as rows x commits of a table are under 2^62"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class LineageTask:
    """New data files whose rows' lineage is to be read."""

    task_number: int
    files: tuple[tuple[FileSlot, LiveFile], ...]
    """(file slot, file)"""
    range_bits: int
    staging: str
    storage: StorageConfig


@dataclass(frozen=True, slots=True, eq=False)
class LineageMatchTask:
    """One range of row lineage that is to be matched."""

    match: MatchTask
    """The range, with blocks that hold versions in place of hashes"""
    before: tuple[tuple[FileSlot, LiveFile], ...]
    """(file slot, file) that the nodes' rows lay in"""
    after: tuple[tuple[FileSlot, LiveFile], ...]
    """(file slot, file) of the new rows"""
    column: VectorColumn


@dataclass(frozen=True, slots=True)
class FileMove:
    """Number of rows that have moved from one file to another."""

    before: FileSlot
    after: FileSlot
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class LineageMatchResult:
    """Result of one range, and whether the lineage is right."""

    rows: MatchResult
    moves: tuple[FileMove, ...]
    refuted: str
    """A file that holds another vector than its lineage says; empty where none was seen"""


@dataclass(frozen=True, slots=True, eq=False)
class _DeadNodeVersions:
    """Nodes without rows, with the versions and hashes of their rows, ordered by shard and node."""

    shard_ids: npt.NDArray[np.int64]
    """Shard ids"""
    nodes: npt.NDArray[np.int64]
    slots: npt.NDArray[np.uint32]
    versions: Versions
    hashes: npt.NDArray[np.uint64]
    """Content hashes of their vectors"""


def read_lineage(task: LineageTask) -> tuple[StagedBlock, ...]:
    """Stage the versions of all live rows by range. Returns the blocks. Memory: a batch of rows."""
    deleted = deleted_by_file(lambda path: open_storage(path, task.storage), (file for _, file in task.files))
    with contextlib.ExitStack() as stack:
        storage = open_storage(task.staging, task.storage)
        writers = BlockWriters(f"{task.staging}/lineage-{task.task_number}", 0, storage, stack)
        for slot, file in task.files:
            for positions, versions in row_versions(file, task.storage, deleted[file.path]):
                slots = np.full(len(positions), slot, np.uint32)
                rows = VectorRows(slots, positions, versions, np.empty((len(positions), 0), np.float32))
                writers.write(rows, range_of(versions, task.range_bits))
    return writers.blocks()


def match_lineage(task: LineageMatchTask) -> LineageMatchResult:
    """Give dead nodes to the new rows of equal versions.

    The first rows of each new file are compared with the nodes that they would get. This reveals writers of wrong
    lineage, and files that were moved here from another table. Memory: eight bytes per row of the files in `before`,
    and what a match by hashes takes.
    """
    storage = open_storage(task.match.staging, task.match.storage)
    new = read_blocks(task.match.storage, task.match.blocks, 0)
    dead = _dead_nodes(task)
    partner = pair_equal(dead.versions, new.hashes)
    matched = np.flatnonzero(partner >= 0)
    moved_rows = partner[matched]
    hashes = np.zeros(new.count, np.uint64)
    hashes[moved_rows] = dead.hashes[matched]
    has_node = np.zeros(new.count, np.bool_)
    has_node[moved_rows] = True
    return LineageMatchResult(
        rows=stage_matches(task.match, storage, new, dead.shard_ids, dead.nodes, partner),
        moves=_file_moves(dead.slots[matched], new.slots[moved_rows]),
        refuted=_refuted(task, new, has_node, hashes),
    )


def row_versions(
    file: LiveFile, storage: StorageConfig, deleted: npt.NDArray[np.int64] | None = None
) -> Iterator[tuple[npt.NDArray[np.int64], Versions]]:
    """(row positions int64[n], versions u64[n]) of the rows of a file with row ids, without those in `deleted`."""
    first = file.first_row_id
    if first is None:
        raise ValueError(f"{file.path} has no row ids")
    for batch in read_live(
        open_storage(file.path, storage), file, _COLUMNS, _IDS, batch_rows=_BATCH_ROWS, deleted=deleted
    ):
        ids = _filled(batch.columns.column(0), first + batch.positions)
        commits = _filled(batch.columns.column(1), np.full(len(ids), file.file_sequence_number, np.int64))
        yield batch.positions, _version(ids, commits)


def _version(ids: npt.NDArray[np.uint64], commits: npt.NDArray[np.uint64]) -> Versions:
    return (ids + commits * _SPREAD) * _SPREAD


def _filled(column: pa.Array, otherwise: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return np.asarray(pc.coalesce(column, pa.array(otherwise)).to_numpy(zero_copy_only=False)).view(np.uint64)


def _dead_nodes(task: LineageMatchTask) -> _DeadNodeVersions:
    """The range's nodes whose rows lay in a file that can be read."""
    storage = task.match.storage
    with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        versions = list(threads.map(lambda item: _all_versions(item[1], storage), task.before))
    rows = np.zeros(1 + max(slot for slot, _ in task.before), np.int64)
    rows[[slot for slot, _ in task.before]] = [len(of_file) for of_file in versions]
    starts = np.zeros(len(rows), np.int64)
    starts[[slot for slot, _ in task.before]] = np.cumsum([0, *map(len, versions)])[:-1]
    every = np.concatenate(versions)
    parts = []
    for shard_id, shard, dead in task.match.shards:
        reader = open_shard(shard, storage)
        slots, positions = reader.read_locations()
        nodes = deletion_vector_blob.decode(dead)
        nodes = nodes[slots[nodes] < len(rows)]
        nodes = nodes[positions[nodes] < rows[slots[nodes]]]
        node_versions = every[starts[slots[nodes]] + positions[nodes]]
        inside = range_of(node_versions, task.match.range_bits) == task.match.hash_range
        nodes = nodes[inside]
        shard_ids = np.full(len(nodes), shard_id)
        parts.append((shard_ids, nodes, slots[nodes], node_versions[inside], reader.read_content_hashes()[nodes]))
    return _DeadNodeVersions(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _all_versions(file: LiveFile, storage: StorageConfig) -> Versions:
    """Versions by row position. None where the file is gone: its rows are matched by their hashes alone.

    A file without a column of ids is not opened. If it had one in spite of its manifest, no row would have these ids.
    """
    if file.first_row_id is not None and not file.has_row_ids:
        ids = np.arange(file.record_count, dtype=np.uint64) + np.uint64(file.first_row_id)
        return _version(ids, np.full(len(ids), file.file_sequence_number, np.uint64))
    try:
        parts = [versions for _, versions in row_versions(file, storage, np.empty(0, np.int64))]
    except DataFileError as error:
        _log.warning("rows that lay in %s are looked for by their vectors: %s", file.path, error)
        parts = []
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _file_moves(before: npt.NDArray[np.uint32], after: npt.NDArray[np.uint32]) -> tuple[FileMove, ...]:
    pairs = pc.value_counts(pa.array(before.astype(np.uint64) << np.uint64(32) | after))
    counts = zip(pairs.field("values").to_pylist(), pairs.field("counts").to_pylist(), strict=True)
    return tuple(FileMove(FileSlot(pair >> 32), FileSlot(pair & 0xFFFFFFFF), rows) for pair, rows in counts)


def _refuted(
    task: LineageMatchTask, new: VectorRows, has_node: npt.NDArray[np.bool_], hashes: npt.NDArray[np.uint64]
) -> str:
    """The first file with a row whose content hash is not its node's; empty where there is none."""
    files = dict(task.after)

    def differing(rows: tuple[int, npt.NDArray[np.intp]]) -> str:
        slot, of_slot = rows
        file = files[FileSlot(slot)]
        positions, vectors = _first_rows(task, file)
        nearest = of_slot[np.searchsorted(new.positions[of_slot], positions).clip(max=len(of_slot) - 1)]
        checked = has_node[nearest] & (new.positions[nearest] == positions)
        differ = content_hashes(vectors[checked]) != hashes[nearest[checked]]
        return file.path if differ.any() else ""

    with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        return next(filter(None, threads.map(differing, by_file(new.slots))), "")


def _first_rows(task: LineageMatchTask, file: LiveFile) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """(row positions, vectors [n, D]) of the first rows with a vector in the row group in the middle."""
    opened = DataFile(open_storage(file.path, task.match.storage), file, task.column.schema, [task.column.field_id])
    group = opened.groups // 2
    rows = opened.first(_ROWS_CHECKED, group)
    if rows is None:
        return np.empty(0, np.int64), np.empty((0, task.column.dims), np.float32)
    start = opened.start(group)
    positions, column = with_vector(LiveBatch(np.arange(start, start + rows.num_rows), rows))
    return positions, task.column.vectors_at(column, positions, file)
