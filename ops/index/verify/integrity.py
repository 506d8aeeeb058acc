"""Integrity: whether a version's file is what its routing blob says, and its nodes are the rows of its snapshot."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.graphs.duplicates import copies_of
from icepuffin.ann_kernels.graphs.graph import Adjacency
from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.definition_columns import resolve_field
from icepuffin.ops.index.definitions.index_definition import IndexDefinition, LaterDefinitionError
from icepuffin.ops.index.verify.column_proof import attribute_faults, included_faults
from icepuffin.ops.index.verify.self_search_proof import SelfSearch, fault_of
from icepuffin.ops.index.versions.version_format import made_later
from icepuffin.ops.index.versions.version_reader import (
    balls_of,
    centroids_here,
    included_of,
    read_routing,
    stored_shards,
)
from icepuffin.ops.messages import plural
from icepuffin.ops.model import FileSlot, LiveFile, StorageConfig, StoredShard
from icepuffin.ops.presentation import Grid, Presentation
from icepuffin.ops.process.large_arrays import NoRoomError
from icepuffin.ops.rows.addresses import addresses_of, rows_at
from icepuffin.ops.rows.datafile import take_rows
from icepuffin.ops.rows.vector_column import VectorSchema
from icepuffin.ops.shards.cell_rows import require_codes
from icepuffin.ops.shards.shard_reader import check_shard, open_shard
from icepuffin.ops.storage import open_storage, relative_to
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import find_schema
from icepuffin.ops.tasks.matching.self_search import SelfSearchResult, SelfSearchTask, self_search
from icepuffin.ops.tasks.matching.tally import RowsResult, RowsTask, Tally, tally_of, tally_rows
from icepuffin.ops.tasks.rows import by_file, live_nodes
from icepuffin.ops.tasks.task_runner import Progress, RunContext, TaskRunner, small_work_runner
from icepuffin.ops.tasks.vectors import VectorColumn, prepared
from icepuffin.puffin import BytesSource, PuffinReader, RangeSource
from icepuffin.puffin.blobs import attributes_blob, centroid_blob, deletion_vector_blob, routing_blob
from icepuffin.puffin.blobs.centroid_blob import CentroidIndex
from icepuffin.puffin.blobs.routing_blob import Routing
from icepuffin.puffin.blobs.shard_blob import Shard
from icepuffin.puffin.errors import BadBlobError, ChecksumError, LaterFormatError, PuffinError
from icepuffin.puffin.types import BlobType, canonical_type

_COLUMN_BLOBS = (BlobType.ATTRIBUTES, BlobType.TOKENS)
_TASKS = 64
"""Tasks that reading all rows is split into, so that progress shows"""
_COPIES_AT_ONCE = 4_096
_FILES = 4
"""Data files that a shard's sample lies in, at most"""
_RUN = 16
"""Nodes per data file; their rows lie side by side, so that few row groups are read"""


@dataclass(frozen=True, slots=True, repr=False)
class Integrity(Presentation):
    """Result of a check: what it read, and all faults."""

    path: str
    bytes_read: int
    """Bytes read of the index file"""
    shards: int
    rows: int
    """Live rows whose vectors were compared with their nodes; 0 where the file itself has faults"""
    faults: tuple[str, ...]
    from_later_release: bool = False
    """Whether a later release wrote the version: then the fault is that this one cannot check it"""
    self_search: SelfSearch | None = None
    """Some rows of each shard, searched by their own vectors; None where something else has faults"""
    remedy: str = ""
    """Advice about a version with faults; empty without faults, and where only the file was checked"""

    def headline(self) -> str:
        return "; ".join(self.lines())

    def grids(self) -> Iterator[Grid]:
        yield Grid(self.path, [(line,) for line in (*self.lines(), *filter(None, [self.remedy]))])

    def lines(self) -> tuple[str, ...]:
        """The faults; without any, what was read and compared."""
        whole = f"whole, {plural(self.shards, 'shard')}, {plural(self.rows, 'row')} compared"
        searched = (self.self_search.summary,) if self.self_search else ()
        return self.faults or (whole, *searched)


def remedy(table: str, index: str, version: DerivedVersion, report: Integrity) -> str:
    """What to do about a version with faults, for a message: the command that replaces it, where it is damaged."""
    if report.from_later_release:
        return "this release cannot check it; install the one that wrote it"
    command = f"icepuffin refresh {quote(table)} --index {index} --snapshot {version.base_snapshot_id} --verify"
    return f"make it anew with: {command}"


def check_integrity(run: RunContext, version: DerivedVersion) -> Integrity:
    """Check a version's file, and compare its nodes with all rows of its snapshot.

    Each shard is compared with its checksum, decoded and validated, one at a time in memory. Then the vectors of all
    live rows are read, and the addresses and content hashes of all rows are compared with those of all nodes, and the
    columns for conditions, the included ones and those of texts, with what the version has. All rows are compared
    with the balls of their files. At last some rows of each shard are searched by their own vectors. Raises
    NoRoomError where a
    large shard cannot be read here: that is no fault of the version.
    """
    faults: list[str] = []
    read = shards = rows = 0
    from_later_release = False
    searched = None
    try:
        source = _source(version, run.storage)
        reader = PuffinReader(source)
        blobs = reader.footer.blobs
        first = next(blob for blob in blobs if canonical_type(blob.type) == BlobType.ROUTING)
        expected = read_routing(reader, first, source.size(), version)
        definition = IndexDefinition.from_json(expected.definition)
        of_balls = [blob for blob in blobs if canonical_type(blob.type) == BlobType.CENTROID]
        balls = [centroids_here(centroid_blob.decode(reader.read_blob(blob)), version) for blob in of_balls]
        faults += _unfit_balls(balls, definition)
        columns = [attributes_blob.decode(reader.read_blob(blob)) for blob in blobs if blob.type in _COLUMN_BLOBS]
        for column in columns:
            for entry in column.entries:
                if not entry.left_out:
                    (attributes_blob.lists_of if column.of_lists else attributes_blob.values_of)(entry)
        included = [
            included_of(reader, blob, version, expected, source.size())
            for blob in blobs
            if blob.type in (BlobType.INCLUDED, BlobType.TEXT)
        ]
        stored = stored_shards(version.puffin_path, blobs, expected, version.packs, source.size())
        if expected.base_snapshot_id != version.base_snapshot_id:
            faults.append(f"made for snapshot {expected.base_snapshot_id}, bound to {version.base_snapshot_id}")
        shards, read = len(stored), sum(shard.length for shard in stored)
        nodes, drawn, broken = _read_shards(stored, expected, run.storage)
        faults += broken
        if not faults:
            covered = _covered_rows(run, version, expected, definition)
            result = _rows_of(run, covered, balls, expected, definition)
            rows = int(result.tally.counts.sum())
            faults += _disagreements(nodes if definition.has_graphs else None, result, covered.paths, expected)
            if not definition.has_graphs:
                read = sum(blob.length for blob in of_balls)
            schemas = (covered.column.schema, run.table.schema())
            faults += attribute_faults(run, columns, dict(covered.files), schemas)
            faults += included_faults(run, version, included, dict(covered.files), schemas)
        if not faults and definition.has_graphs:
            search = _self_search(run, covered, expected, stored, drawn)
            searched, fault = SelfSearch.from_result(search, shards=shards), fault_of(search, definition.target_recall)
            faults += [fault] if fault else []
    except (LaterFormatError, LaterDefinitionError) as error:
        from_later_release = not faults
        faults.append(str(error))
    except NoRoomError:
        raise
    except (PuffinError, IcepuffinError) as error:
        faults.append(f"{type(error).__name__}: {error}")
    except StopIteration:
        faults.append("no routing blob")
    return Integrity(version.puffin_path, read, shards, rows, tuple(faults), from_later_release, searched)


def _source(version: DerivedVersion, storage: StorageConfig) -> RangeSource:
    """The file of a version. Raises LaterFormatError by its build id alone."""
    if later := made_later(version.build_id):
        raise LaterFormatError(later)
    return open_storage(version.puffin_path, storage).source(version.puffin_path)


def _unfit_balls(balls: Sequence[CentroidIndex], definition: IndexDefinition) -> Iterator[str]:
    """Why the balls of a file cannot be those of its index."""
    if not balls and not definition.has_graphs:
        yield "no centroid blob, which is all that an index without graphs has"
    for index in balls:
        if index.metric != definition.metric.code:
            yield f"the centroid blob has metric {index.metric}, the index {definition.metric.code}"


def _read_shards(
    stored: Sequence[StoredShard], expected: Routing, storage: StorageConfig
) -> tuple[Tally, list[npt.NDArray[np.int64]], list[str]]:
    """(tally of all live nodes, addresses of some nodes of each shard, faults). Raises LaterFormatError."""
    files = len(expected.files)
    nodes, drawn, faults = Tally.empty(files), [], []
    for number, (shard, entry) in enumerate(zip(stored, expected.shards, strict=True)):
        try:
            decoded = _decoded(shard, entry, storage)
            nodes = Tally.joined([nodes, _nodes_of(decoded, entry, files)], files)
            drawn.append(draw_nodes(decoded, entry.tombstones, seed=number))
        except LaterFormatError:
            raise
        except PuffinError as error:
            faults.append(f"shard {number} at {shard.blob.offset}: {error}")
    return nodes, drawn, faults


def _decoded(shard: StoredShard, entry: routing_blob.ShardEntry, storage: StorageConfig) -> Shard:
    """Raises PuffinError where a shard is not what the routing blob says."""
    data = open_storage(shard.path, storage).read_range(shard.path, shard.blob.offset, shard.blob.length)
    if hashlib.sha256(data).digest() != entry.sha256:
        raise ChecksumError("the bytes are not those that were published")
    decoded = open_shard(shard, storage, blob=BytesSource(data)).read()
    if decoded.count != entry.count:
        raise BadBlobError("the node count is not the routing blob's")
    if decoded.cells is not None and decoded.vectors is not None:
        require_codes(decoded.cells, decoded.vectors)
    if decoded.vectors is not None:
        _require_equal_copies(decoded, decoded.vectors)
    return decoded


def _require_equal_copies(shard: Shard, vectors: npt.NDArray[np.floating[Any]]) -> None:
    """Raises BadBlobError where a node has another vector than its original, by which answers have its distance."""
    neighbors, degrees = (np.require(edges, np.int32, ["C", "W"]) for edges in (shard.neighbors, shard.degrees))
    copies = copies_of(Adjacency(neighbors, degrees), shard.medoid)
    for start in range(0, len(copies.nodes), _COPIES_AT_ONCE):
        part = slice(start, start + _COPIES_AT_ONCE)
        differs = (vectors[copies.nodes[part]] != vectors[copies.originals[part]]).any(axis=1)
        if differs.any():
            node, original = copies.nodes[part][differs][0], copies.originals[part][differs][0]
            raise BadBlobError(f"graph: node {node} is a copy of node {original}, which has another vector")


def _nodes_of(decoded: Shard, entry: routing_blob.ShardEntry, files: int) -> Tally:
    """The live nodes of a shard. Raises BadBlobError where a node lies in no file."""
    return tally_of(decoded.file_slots, decoded.row_positions, decoded.content_hashes, entry.tombstones, files)


@dataclass(frozen=True, slots=True)
class _CoveredRows:
    """Files of a version's snapshot, and what reading their vectors takes."""

    files: tuple[tuple[FileSlot, LiveFile], ...]
    """(file slot, file) of the files that the version has"""
    paths: frozenset[str]
    """Relative paths of all files of the snapshot"""
    record_count: int
    column: VectorColumn


def _covered_rows(
    run: RunContext, version: DerivedVersion, expected: Routing, definition: IndexDefinition
) -> _CoveredRows:
    """Reads the index snapshot: it has the same files as the data snapshot, and outlives it."""
    live = live_files(run.table, version.index_snapshot_id)
    schema = find_schema(run.table, live.schema_id)
    field_id = resolve_field(definition, schema, live.table)
    slots = {file.path: FileSlot(slot) for slot, file in enumerate(expected.files) if file.present}
    paths = {file.path: relative_to(file.path, live.location) for file in live.files}
    return _CoveredRows(
        files=tuple((slots[paths[file.path]], file) for file in live.files if paths[file.path] in slots),
        paths=frozenset(paths.values()),
        record_count=live.record_count,
        column=VectorColumn(
            VectorSchema.with_element_type(schema, field_id, definition.element_type),
            field_id,
            expected.dims,
            definition.metric,
            run.storage,
        ),
    )


def _rows_of(
    run: RunContext,
    covered: _CoveredRows,
    balls: Sequence[CentroidIndex],
    expected: Routing,
    definition: IndexDefinition,
) -> RowsResult:
    """Tally of all live rows of the version's snapshot. `balls`: its centroid blob, where it has one.

    A file without balls is never ruled out in an index with graphs. In one without, it must have no row.
    """
    slots = {expected.files[slot].path: slot for slot, _ in covered.files}
    of_files = balls_of(balls[0], slots) if balls else {}
    if definition.has_graphs:
        of_files = {slot: found for slot, found in of_files.items() if found}
    runner = small_work_runner(run.runner, 4 * expected.dims * covered.record_count)
    groups = min(len(covered.files), max(_TASKS, 2 * runner.parallelism))
    tasks = [
        RowsTask(
            files=group,
            column=covered.column,
            slots=len(expected.files),
            balls={slot: of_files[slot] for slot, _ in group if slot in of_files},
        )
        for group in (covered.files[first::groups] for first in range(groups))
    ]
    parts = runner.run(tally_rows, tasks, label="read all rows", progress=run.stage_progress("verify"))
    return RowsResult.joined(parts, len(expected.files))


def _self_search(
    run: RunContext,
    covered: _CoveredRows,
    expected: Routing,
    shards: Sequence[StoredShard],
    drawn: Sequence[npt.NDArray[np.int64]],
) -> SelfSearchResult:
    """Search the rows at the addresses `drawn` of each shard by their own vectors."""
    files, ends = dict(covered.files), np.cumsum([len(keys) for keys in drawn])
    every = np.concatenate([np.empty(0, np.int64), *drawn])  # at once: so a row group is read once, not for each shard
    vectors = vectors_of(every, files, covered.column)
    tasks = [
        SelfSearchTask(
            stored, deletion_vector_blob.encode(entry.tombstones), keys, vectors[end - len(keys) : end], run.storage
        )
        for stored, entry, keys, end in zip(shards, expected.shards, drawn, ends, strict=True)
    ]
    return search_shards(tasks, run.runner, run.stage_progress("search"))


def search_shards(
    tasks: Sequence[SelfSearchTask], runner: TaskRunner, progress: Progress | None = None
) -> SelfSearchResult:
    """Search the rows of all tasks by their own vectors, in this process where little is read."""
    runner = small_work_runner(runner, sum(task.shard.length for task in tasks))
    tasks = [replace(task, threads=runner.task_threads) for task in tasks]
    label = "search rows by their own vectors"
    return SelfSearchResult.joined(runner.run(self_search, tasks, label=label, progress=progress))


def _disagreements(nodes: Tally | None, read: RowsResult, paths: frozenset[str], expected: Routing) -> Iterator[str]:
    """One line on each file whose rows are not those of its nodes, or lie outside of its balls. `nodes`: None of a
    version without graphs.
    """
    rows = read.tally
    slots = {file.path: slot for slot, file in enumerate(expected.files) if file.present}
    for path in sorted(slots.keys() ^ paths):
        yield f"{path} is live in only one of snapshot and index"
    for slot, file in enumerate(expected.files):
        count = int(rows.counts[slot])
        of_nodes = count if nodes is None else int(nodes.counts[slot])
        if not of_nodes == count == file.live_rows:
            have = "" if nodes is None else f"{of_nodes:,} have a node, "
            yield (
                f"{file.path or 'a free slot'}: {count:,} live rows have a vector, {have}"
                f"the routing blob says {file.live_rows:,}"
            )
        elif nodes is not None and nodes.sums[slot] != rows.sums[slot]:
            yield f"{file.path}: a row's node has the vector of another row, or of an earlier value of the row"
        elif read.outside[slot]:
            yield f"{file.path}: {read.outside[slot]:,} of {count:,} rows lie in none of its balls"


def check_kept(stored: StoredShard, number: int, storage: StorageConfig) -> None:
    """Compare the sections of a shard that a refresh keeps with their checksums. Raises ChecksumError, StorageError."""
    try:
        check_shard(stored, storage)
    except PuffinError as error:
        raise ChecksumError(f"{stored.path}, shard {number}: {error}; `icepuffin refresh --verify` mends it") from error


def draw_nodes(shard: Shard, tombstones: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """int64[n], ascending: addresses of some live nodes of a shard, at most _FILES runs of _RUN nodes each."""
    addresses = np.sort(addresses_of(shard.file_slots, shard.row_positions)[live_nodes(shard.count, tombstones)])
    rng = np.random.default_rng(seed)
    slots = rows_at(addresses)[0]
    drawn = [np.empty(0, np.int64)]
    for slot in rng.permutation(np.unique(slots))[:_FILES]:
        first, last = np.searchsorted(slots, (slot, slot + 1))
        start = int(rng.integers(first, max(first, last - _RUN) + 1))
        drawn.append(addresses[start : min(start + _RUN, last)])
    return np.sort(np.concatenate(drawn))


def vectors_of(
    addresses: npt.NDArray[np.int64], files: Mapping[FileSlot, LiveFile], column: VectorColumn
) -> npt.NDArray[np.float32]:
    """f32[n, D] prepared: the vectors that the table has at addresses int64[n], which are live rows.

    Raises VectorColumnError, DataFileError, StorageError.
    """
    slots, positions = rows_at(addresses)
    out = np.empty((len(addresses), column.dims), np.float32)
    for slot, chosen in by_file(slots):
        file = files[FileSlot(slot)]
        store, at = open_storage(file.path, column.storage), positions[chosen]
        rows = take_rows(store, file, column.schema, [column.field_id], at)
        raw = column.vectors_at(rows.column(0).combine_chunks(), at, file)
        out[chosen] = prepared(raw, at, file, column.metric)
    return out
