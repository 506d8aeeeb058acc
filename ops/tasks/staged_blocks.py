"""Staged blocks: rows on their way from one stage to the next, as Arrow streams in the table's own storage."""

import contextlib
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ops.parquet import StorageFile
from icepuffin.ops.storage import Storage, StorageError
from icepuffin.ops.tasks.rows import VectorRows

Block = tuple[str, int]
"""(path, rows)"""


def block_schema(dims: int) -> pa.Schema:
    """Columns of a block; `dims` 0: addresses and hashes alone."""
    address = [pa.field("slot", pa.uint32()), pa.field("position", pa.int64()), pa.field("hash", pa.uint64())]
    return pa.schema([*address, pa.field("vector", pa.list_(pa.float32(), dims))] if dims else address)


class BlockWriters:
    """One Arrow stream a destination, opened when its first row comes, published together when the task ends."""

    def __init__(
        self, stem: str, dims: int, storage: Storage, stack: contextlib.ExitStack, *, durable: bool = False
    ) -> None:
        self._stem = stem
        self._storage = storage
        self._stack = stack
        self._durable = durable
        self._schema = block_schema(dims)
        self._open: dict[int, tuple[str, Any]] = {}
        self._rows: dict[int, int] = {}

    def write(self, rows: VectorRows, destinations: npt.NDArray[np.integer[Any]]) -> None:
        """Each row to the block of its destination."""
        for number in np.unique(destinations):
            mine = rows.take(np.flatnonzero(destinations == number))
            columns = [pa.array(mine.slots), pa.array(mine.positions), pa.array(mine.hashes)]
            if mine.vectors.shape[1]:
                flat = pa.array(mine.vectors.reshape(-1))
                columns.append(pa.FixedSizeListArray.from_arrays(flat, mine.vectors.shape[1]))
            self._writer(int(number)).write_batch(pa.record_batch(columns, schema=self._schema))
            self._rows[int(number)] += mine.count

    def _writer(self, number: int) -> Any:
        if number not in self._open:
            path = f"{self._stem}-{number}-{uuid.uuid4().hex}.arrows"
            sink = self._stack.enter_context(self._storage.open_output(path, durable=self._durable))
            writer = self._stack.enter_context(pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), self._schema))
            self._open[number] = path, writer
            self._rows[number] = 0
        return self._open[number][1]

    def blocks(self) -> tuple[tuple[int, str, int], ...]:
        """(destination, path, rows), by destination."""
        return tuple((number, self._open[number][0], self._rows[number]) for number in sorted(self._open))


def read_blocks(storage: Storage, blocks: Sequence[Block], dims: int) -> VectorRows:
    """Rows of blocks by slot and position: node ids do not depend on who staged them. `dims` as they were written.

    Raises StorageError where some of the rows are lost.
    """
    total = sum(rows for _, rows in blocks)
    slots, positions = np.empty(total, np.uint32), np.empty(total, np.int64)
    hashes, vectors = np.empty(total, np.uint64), np.empty((total, dims), np.float32)
    at = 0
    for path, _ in blocks:
        staged = pa.PythonFile(StorageFile(storage, path, storage.size(path)), mode="r")
        for batch in pa.ipc.open_stream(staged):
            end = at + batch.num_rows
            slots[at:end] = batch["slot"].to_numpy()
            positions[at:end] = batch["position"].to_numpy()
            hashes[at:end] = batch["hash"].to_numpy()
            if dims:
                vectors[at:end] = batch["vector"].flatten().to_numpy().reshape(-1, dims)
            at = end
    if at != total:
        raise StorageError(f"{[path for path, _ in blocks]} hold {at:,} of the {total:,} rows staged; run it again")
    return VectorRows(slots, positions, hashes, vectors).sorted()  # several tasks may have staged for this destination
