"""Staged blocks: rows on their way from one stage to the next, as Arrow streams in the table's own storage.

Each batch has a sha256 of its block's path and of its values, which its reader compares.
"""

import contextlib
import hashlib
import resource
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ops.model import FileSlot, StorageConfig
from icepuffin.ops.process.large_arrays import new_array
from icepuffin.ops.rows.parquet import StorageFile
from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.tasks.file_balls import BallSet
from icepuffin.ops.tasks.markers import StagedDamageError
from icepuffin.ops.tasks.rows import VectorRows

_OPEN_FILES = 65_536
"""Limit of open files that a process gets, where the system allows it: Linux begins with 1,024"""
_DIGEST = b"sha256"
Block = tuple[str, int]
"""(path, rows)"""
StagedBlock = tuple[int, str, int]
"""(destination, path, rows): a block with the shard, or the range of hashes, that its rows are for"""


@dataclass(frozen=True, slots=True, eq=False)
class StagedRows:
    """The staged rows of data files, and a summary of the files."""

    blocks: tuple[StagedBlock, ...]
    """Vectors by shard, or hashes by range"""
    live_rows: tuple[tuple[FileSlot, int], ...]
    """(file slot, live rows with a vector)"""
    without_vector: int
    """Live rows without a vector, in all of the files"""
    balls: BallSet
    distances: tuple[float, ...] = ()
    """Sums of the distances of the rows from their centroids, by file; empty where rows are not assigned to any"""


def block_schema(dims: int) -> pa.Schema:
    """Columns of a block. With `dims` 0 a block holds addresses and hashes only."""
    address = [pa.field("slot", pa.uint32()), pa.field("position", pa.int64()), pa.field("hash", pa.uint64())]
    return pa.schema([*address, pa.field("vector", pa.list_(pa.float32(), dims))] if dims else address)


class BlockWriters:
    """One Arrow stream per destination, opened with its first row. All are published when the task ends.

    On a local disk each is an open file until then: the process's limit of these is raised.
    """

    def __init__(
        self, stem: str, dims: int, storage: Storage, stack: contextlib.ExitStack, *, durable: bool = False
    ) -> None:
        self._stem = stem
        self._storage = storage
        self._stack = stack
        self._durable = durable
        self._schema = block_schema(dims)
        self._options = pa.ipc.IpcWriteOptions(compression=None if dims else "zstd")  # vectors hardly shrink
        self._open: dict[int, tuple[str, Any]] = {}
        self._rows: dict[int, int] = {}
        _allow_open_files(_OPEN_FILES)

    def write(self, rows: VectorRows, destinations: npt.NDArray[np.integer[Any]]) -> None:
        """Write each row to the block of its destination."""
        for destination in np.unique(destinations).tolist():
            chosen = rows.take(np.flatnonzero(destinations == destination))
            columns = [pa.array(chosen.slots), pa.array(chosen.positions), pa.array(chosen.hashes)]
            if chosen.vectors.shape[1]:
                flat = pa.array(chosen.vectors.reshape(-1))
                columns.append(pa.FixedSizeListArray.from_arrays(flat, chosen.vectors.shape[1]))
            writer, batch = self._writer(destination), pa.record_batch(columns, schema=self._schema)
            digest = _digest(self._open[destination][0], chosen)
            writer.write_batch(batch, custom_metadata=pa.KeyValueMetadata({_DIGEST: digest}))
            self._rows[destination] += chosen.count

    def _writer(self, destination: int) -> Any:
        if destination not in self._open:
            path = f"{self._stem}-{destination}-{uuid.uuid4().hex}.arrows"
            sink = self._stack.enter_context(self._storage.open_output(path, durable=self._durable))
            file = pa.PythonFile(sink, mode="w")
            writer = self._stack.enter_context(pa.ipc.new_stream(file, self._schema, options=self._options))
            self._open[destination] = path, writer
            self._rows[destination] = 0
        return self._open[destination][1]

    def blocks(self) -> tuple[StagedBlock, ...]:
        """All blocks, by destination."""
        return tuple((to, path, self._rows[to]) for to, (path, _) in sorted(self._open.items()))


def _allow_open_files(count: int) -> None:
    """Raise this process's limit of open files to `count`, as far as its hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if resource.RLIM_INFINITY != soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def blocks_by_destination(results: Sequence[Sequence[StagedBlock]]) -> dict[int, tuple[Block, ...]]:
    """Blocks that several tasks wrote, by destination, in the order of the tasks."""
    blocks: dict[int, list[Block]] = {}
    for destination, path, rows in (block for result in results for block in result):
        blocks.setdefault(destination, []).append((path, rows))
    return {destination: tuple(parts) for destination, parts in blocks.items()}


def read_blocks(storage: StorageConfig, blocks: Sequence[Block], dims: int) -> VectorRows:
    """Read the rows of blocks, by file slot and position, so that node ids do not depend on which task staged a row.

    dims: as the blocks were written. Raises StagedDamageError.
    """
    return read_in_order(storage, blocks, dims).sorted()  # several tasks may have staged for this destination


def read_in_order(storage: StorageConfig, blocks: Sequence[Block], dims: int) -> VectorRows:
    """Read the rows of blocks as they were written. See `read_blocks`."""
    total = sum(rows for _, rows in blocks)
    slots, positions = np.empty(total, np.uint32), np.empty(total, np.int64)
    hashes, vectors = np.empty(total, np.uint64), new_array((total, dims), np.float32)
    start = 0
    for path, _ in blocks:
        for batch in _checked_batches(storage, path, dims):
            end = start + batch.count
            slots[start:end], positions[start:end], hashes[start:end] = batch.slots, batch.positions, batch.hashes
            vectors[start:end] = batch.vectors
            start = end
    if start != total:
        raise StagedDamageError(f"{[path for path, _ in blocks]} hold {start:,} of the {total:,} rows staged")
    return VectorRows(slots, positions, hashes, vectors)


def _checked_batches(storage: StorageConfig, path: str, dims: int) -> Iterator[VectorRows]:
    """The batches of a block. Raises StagedDamageError."""
    store = open_storage(path, storage)
    staged = pa.PythonFile(StorageFile(store, path, store.size(path)), mode="r")
    try:
        with pa.ipc.open_stream(staged) as stream:
            for batch, properties in stream.iter_batches_with_custom_metadata():
                slots, positions, hashes = (batch[name].to_numpy() for name in ("slot", "position", "hash"))
                flat = batch["vector"].flatten().to_numpy() if dims else np.empty(0, np.float32)
                rows = VectorRows(slots, positions, hashes, flat.reshape(len(batch), dims))
                if properties is None or properties[_DIGEST] != _digest(path, rows):
                    raise StagedDamageError(f"{path} is not as it was written")
                yield rows
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise StagedDamageError(f"{path} is not as it was written: {error}") from error


def _digest(path: str, rows: VectorRows) -> bytes:
    digest = hashlib.sha256(path.rpartition("/")[2].encode())
    for values in (rows.slots, rows.positions, rows.hashes, rows.vectors):
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest().encode()
