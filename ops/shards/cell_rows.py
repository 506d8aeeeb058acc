"""What is read of a shard's cells for a query, and how its rows are ranked by their codes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import F32, F64, I64, Bool
from icepuffin.ann_kernels.codes import cells as kernels
from icepuffin.ann_kernels.codes.cells import CodedCell
from icepuffin.ann_kernels.metric import Metric
from icepuffin.puffin.blobs.cells_blob import Cell, ShardCells
from icepuffin.puffin.errors import BadBlobError

MAX_BYTES = 4 << 20
"""Bytes of cells that are read for a query, at most, unless they have too few live rows"""
_RANKED = {4: 4, 8: 2}
"""Candidates per row of the answer that are compared exactly, by bits per dimension"""
_MORE_RANKED = 10
_ROUNDING = np.float32(1e-3)
"""Relative rounding of f16, and of what codes stand for, both on the safe side"""
_SMALLEST = np.float32(1e-7)
"""Rounding of f16 near zero"""


@dataclass(frozen=True, slots=True, eq=False)
class CellRows:
    """Rows of cells, and their distances from one query as codes have them."""

    nodes: I64
    """int64[n]"""
    file_slots: I64
    row_positions: I64
    distances: F64
    vectors: F32
    """f32[n, D]: what the codes stand for"""
    roundings: F32
    """f32[n]: how far a number may be from its code, at most, but for the rounding of f32"""

    @classmethod
    def from_cell(cls, cell: Cell, query: F64, metric: Metric, bits: int) -> "CellRows":
        """The rows of a cell, for a query f64[D] that is prepared."""
        vectors = kernels.decode(CodedCell(cell.lows, cell.steps, cell.codes), bits)
        nodes, slots = cell.nodes.astype(np.int64), cell.file_slots.astype(np.int64)
        roundings = np.full(len(nodes), np.abs(cell.steps).max() / 2, np.float32)
        distances = kernels.distances(query, vectors, metric)
        return cls(nodes, slots, cell.row_positions, distances, vectors, roundings)

    @classmethod
    def joined(cls, parts: "Sequence[CellRows]") -> "CellRows":
        """The rows of all parts, of which there is one at least."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))

    def moved(self, file_slots: npt.NDArray[np.uint32], row_positions: I64) -> "CellRows":
        """The rows at new addresses, which are those of all nodes."""
        slots = file_slots[self.nodes].astype(np.int64)
        return replace(self, file_slots=slots, row_positions=row_positions[self.nodes])

    def take(self, chosen: npt.NDArray[np.intp] | Bool) -> "CellRows":
        """Some of the rows."""
        return CellRows(*(getattr(self, name)[chosen] for name in self.__slots__))


def are_coded(vectors: npt.NDArray[Any], decoded: F32, roundings: npt.NDArray[Any]) -> bool:
    """Whether vectors [n, D], maybe f16, are what codes f32[n, D] stand for, within roundings f32[n, 1] or f32[D]."""
    allowed = roundings * (1 + _ROUNDING) + _ROUNDING * np.abs(decoded) + _SMALLEST
    return vectors.shape == decoded.shape and bool((np.abs(vectors - decoded) <= allowed).all())


def require_codes(cells: ShardCells, vectors: npt.NDArray[Any]) -> None:
    """Raises BadBlobError unless the codes in all cells are those of the vectors f32 or f16 [N, D] of the shard."""
    for number in range(len(cells.directory.counts)):
        cell = cells.cell(number)
        decoded = kernels.decode(CodedCell(cell.lows, cell.steps, cell.codes), cells.directory.bits)
        if not are_coded(vectors[cell.nodes].astype(np.float32), decoded, np.abs(cell.steps) / 2):
            raise BadBlobError(f"cells: the codes of cell {number} are not those of the shard's vectors")


def chosen_cells(lengths: npt.NDArray[np.int64], probes: int) -> int:
    """How many of the nearest cells a query reads, of the bytes int64[c] of each, nearest first: one at least."""
    return max(1, int((np.cumsum(lengths[:probes]) <= MAX_BYTES).sum()))


def nearest_first(rows: CellRows, count: int, bits: int) -> I64:
    """Indices int64[n] of the rows that are worth an exact comparison where `count` are searched for, by distance."""
    width = max(_RANKED[bits] * count, count + _MORE_RANKED)
    return np.asarray(np.lexsort((rows.nodes, rows.distances))[:width])
