"""A shard of the base version, with the nodes whose rows have moved or are gone since."""

import hashlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.codes import rotated_quantization
from icepuffin.ann_kernels.codes.product_quantization import decode_pq
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import FileSlot, LiveFile, ObjectRange, ShardId, StorageConfig, StoredAddresses, StoredShard
from icepuffin.ops.process.large_arrays import as_floats, new_array
from icepuffin.ops.rows.datafile import take_rows
from icepuffin.ops.rows.vector_column import element_type_of, exact_vectors
from icepuffin.ops.shards.shard_codes import as_kernels_take
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.matching.match_hashes import StagedMoves, read_moves
from icepuffin.ops.tasks.rows import VectorRows, by_file, live_nodes
from icepuffin.puffin.blobs import addresses_blob, deletion_vector_blob
from icepuffin.puffin.blobs.shard_blob import ShardReader

_DECODED_AT_ONCE = 16_384
"""Vectors that are decoded from codes at once: all would be one of a task's largest arrays"""


@dataclass(frozen=True, slots=True, eq=False)
class BaseShard:
    """A shard of the base version, and the state of its nodes in the new snapshot."""

    stored: StoredShard
    recall: float
    curve: str
    tombstones: bytes
    """Nodes without a live row, as a deletion vector; moved nodes have one"""
    moves: tuple[StagedMoves, ...]
    """Nodes with a new address"""
    moved: int
    """Number of nodes with a new address"""
    files: tuple[tuple[FileSlot, LiveFile], ...]
    """(file slot, file) of all live files where the shard holds no vectors; else empty"""
    schema: Schema
    field_id: int
    storage: StorageConfig

    def reader(self) -> ShardReader:
        """A reader of the shard as the base version has it."""
        return open_shard(self.stored, self.storage)

    def inputs(self) -> Iterator[bytes | str | int | float]:
        """Everything that the shard's content depends on, whichever task staged it. File names are never used twice."""
        yield from (repr(self.stored), self.recall, self.curve, self.tombstones, self.moved, self.field_id)
        yield repr([(slot, file.path) for slot, file in self.files])
        for moves in self.moves:
            where = moves.staged
            yield moves.nodes
            yield open_storage(where.path, self.storage).read_range(where.path, where.offset, where.length)

    def is_live(self, reader: ShardReader) -> npt.NDArray[np.bool_]:
        """bool[N], whether each node has a live row."""
        return live_nodes(reader.header.count, deletion_vector_blob.decode(self.tombstones))

    def locations(self, reader: ShardReader) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """(file slots u32[N], row positions int64[N]) in the new snapshot."""
        slots, positions = reader.read_locations()
        for moves in self.moves:
            nodes, moved = read_moves(open_storage(moves.staged.path, self.storage), moves)
            slots[nodes], positions[nodes] = moved
        return slots, positions

    def rows(self, reader: ShardReader) -> VectorRows:
        """All nodes' rows.

        Vectors of a lean shard are read from the data files. The files of dead nodes may be gone: their vectors are
        decoded from codes, which is enough to pass through them.
        """
        slots, positions = self.locations(reader)
        vectors = reader.read_vectors()
        if vectors is None:
            vectors = self._from_files(reader, slots, positions)
        return VectorRows(slots, positions, reader.read_content_hashes(), as_floats(vectors))

    def live_rows(self, reader: ShardReader) -> VectorRows:
        """Rows of live nodes by file slot and position, as a build takes them."""
        return self.rows(reader).take(np.flatnonzero(self.is_live(reader))).sorted()

    def _from_files(
        self, reader: ShardReader, slots: npt.NDArray[np.uint32], positions: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        vectors = new_array((reader.header.count, reader.header.dims), np.float32)
        is_live = self.is_live(reader)
        _decode(reader, np.flatnonzero(~is_live), vectors)
        element_type = element_type_of(self.schema, self.field_id)
        files = dict(self.files)
        alive = np.flatnonzero(is_live)
        for slot, chosen in by_file(slots[alive]):
            nodes, file = alive[chosen], files[FileSlot(slot)]
            rows = take_rows(
                open_storage(file.path, self.storage), file, self.schema, [self.field_id], positions[nodes]
            )
            raw = exact_vectors(rows.column(0), reader.header.dims, element_type)
            vectors[nodes] = prepare(raw, Metric.of_code(reader.header.metric))
        return vectors


def _decode(reader: ShardReader, nodes: npt.NDArray[np.intp], vectors: npt.NDArray[np.float32]) -> None:
    """Fill the `vectors` f32[N, D] of some nodes by those that their codes stand for."""
    if not len(nodes):
        return
    rotated, (codebook, codes) = as_kernels_take(reader.read_codes()), reader.read_pq()
    for start in range(0, len(nodes), _DECODED_AT_ONCE):
        part = nodes[start : start + _DECODED_AT_ONCE]
        if rotated is not None:
            vectors[part] = rotated_quantization.decode(rotated.take(part))
        elif codebook is not None and codes is not None:
            vectors[part] = decode_pq(codes[part], codebook)
        else:
            raise ValueError("the shard has neither vectors nor codes")


@dataclass(frozen=True, slots=True, eq=False)
class RelocateTask:
    """Shards whose rows have only moved, and whose addresses are to be written."""

    shards: tuple[tuple[ShardId, BaseShard], ...]
    """(shard id in the new version, shard of the base version)"""
    staging: str
    storage: StorageConfig
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class RelocatedShard:
    """A shard of the base version with new addresses."""

    shard_id: ShardId
    """Id in the new version"""
    addresses: StoredAddresses
    slots: npt.NDArray[np.uint32]
    """File slots of all nodes, dead ones included"""


def relocate(task: RelocateTask) -> tuple[RelocatedShard, ...]:
    """Write the new addresses of all shards into one staged object. Of the shards nothing else is read.

    Raises StorageError, PuffinError.
    """
    path = f"{task.staging}/moved-{uuid.uuid4().hex}.bin"
    results, offset = [], 0
    with (
        open_storage(task.staging, task.storage).open_output(path, durable=False) as sink,
        ThreadPoolExecutor(task.threads) as threads,
    ):
        blobs = threads.map(_encoded, (base for _, base in task.shards))
        for (shard_id, _), (data, slots) in zip(task.shards, blobs, strict=True):
            sink.write(data)
            where = ObjectRange(path, offset, len(data))
            results.append(RelocatedShard(shard_id, StoredAddresses(where, hashlib.sha256(data).digest()), slots))
            offset += len(data)
    return tuple(results)


def _encoded(base: BaseShard) -> tuple[bytes, npt.NDArray[np.uint32]]:
    """(addresses blob of the shard as it is in the new snapshot, file slots of its nodes)."""
    slots, positions = base.locations(base.reader())
    return addresses_blob.encode(slots, positions), np.unique(slots)
