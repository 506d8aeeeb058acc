"""Cells of a shard: near rows with codes and addresses, each cell in one piece that can be read alone.

Two sections of a shard blob. `CELLS` has the cells one after the other; of each: lows f32[D], steps f32[D], node ids
u32[n], file slots u32[n], row positions i64[n], codes u8[n, W]. `CELL_DIRECTORY` is read before: u32 bits per code, u32
cells c, f32 recall, u32 probes, origin f32[D], scales f32[c], rows of each cell u32[c], CRC-32 of each u32[c], centers
i8[c, D]. `docs/formats.md` is the normative text.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.puffin.errors import BadBlobError, ChecksumError

_HEADER = struct.Struct("<IIfI")
BITS = 4, 8


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One cell of n rows."""

    lows: npt.NDArray[np.float32]
    """f32[D]"""
    steps: npt.NDArray[np.float32]
    """f32[D]"""
    nodes: npt.NDArray[np.uint32]
    """u32[n]: node ids"""
    file_slots: npt.NDArray[np.uint32]
    """u32[n]: where the rows lay when the blob was written"""
    row_positions: npt.NDArray[np.int64]
    """int64[n]"""
    codes: npt.NDArray[np.uint8]
    """u8[n, W]"""


@dataclass(frozen=True, slots=True, eq=False)
class CellDirectory:
    """What is known of all cells of a shard before one is read."""

    bits: int
    """Bits per dimension of the codes: 4 or 8"""
    recall: float
    """recall@10 of some of the shard's rows, searched through so many cells when the blob was written"""
    probes: int
    """Number of cells that a query should read"""
    origin: npt.NDArray[np.float32]
    """f32[D]"""
    scales: npt.NDArray[np.float32]
    """f32[c]"""
    centers: npt.NDArray[np.int8]
    """i8[c, D]"""
    counts: npt.NDArray[np.uint32]
    """u32[c]: rows of each cell"""
    checksums: npt.NDArray[np.uint32]
    """u32[c]"""

    @property
    def dims(self) -> int:
        return len(self.origin)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """int64[c]: bytes of each cell."""
        counts = self.counts.astype(np.int64)
        return np.asarray(8 * self.dims + counts * row_bytes(self.dims, self.bits))

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """int64[c + 1]: bytes before each cell in the section, and of all."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def to_bytes(self) -> bytes:
        head = _HEADER.pack(self.bits, len(self.counts), self.recall, self.probes)
        arrays: tuple[tuple[npt.NDArray[Any], str], ...] = (
            (self.origin, "<f4"),
            (self.scales, "<f4"),
            (self.counts, "<u4"),
            (self.checksums, "<u4"),
            (self.centers, "i1"),
        )
        return head + _joined(arrays)

    @classmethod
    def checked(cls, data: bytes | memoryview, checksum: int, dims: int, count: int, length: int) -> "CellDirectory":
        """Parse after comparing with the CRC-32 of the section table. Raises ChecksumError, and what `parse` raises."""
        if zlib.crc32(data) != checksum:
            raise ChecksumError(f"cells: the directory does not have its checksum {checksum:08x}")
        return cls.parse(data, dims, count, length)

    @classmethod
    def parse(cls, data: bytes | memoryview, dims: int, count: int, length: int) -> "CellDirectory":
        """Parse and check, for a shard of `count` nodes whose section of cells has `length` bytes.

        Raises BadBlobError.
        """
        if len(data) < _HEADER.size:
            raise BadBlobError(f"cells: a directory of {len(data)} bytes has no header")
        bits, cells, recall, probes = _HEADER.unpack_from(data)
        if bits not in BITS or not probes or len(data) != directory_bytes(cells, dims):
            raise BadBlobError(f"cells: {len(data):,} bytes are no directory of {cells} cells of {bits} bits")
        offset, arrays = _HEADER.size, []
        for kind, shape in (("<f4", dims), ("<f4", cells), ("<u4", cells), ("<u4", cells), ("i1", cells * dims)):
            arrays.append(np.frombuffer(data, kind, shape, offset).copy())
            offset += arrays[-1].nbytes
        origin, scales, counts, checksums, centers = arrays
        directory = cls(bits, recall, probes, origin, scales, centers.reshape(cells, dims), counts, checksums)
        if not (np.isfinite(origin).all() and np.isfinite(scales).all() and (scales >= 0).all() and isfinite(recall)):
            raise BadBlobError("cells: the numbers of the directory are not finite, or negative")
        if int(counts.sum(dtype=np.uint64)) != count or not counts.all() or directory.offsets[-1] != length:
            raise BadBlobError(f"cells: {cells} cells in {length:,} bytes do not have the {count:,} nodes of the shard")
        return directory

    def cell(self, number: int, data: bytes | memoryview) -> Cell:
        """One cell out of its bytes. Raises BadBlobError, ChecksumError."""
        if len(data) != self.lengths[number]:
            raise BadBlobError(f"cells: cell {number} is cut off")
        if zlib.crc32(data) != self.checksums[number]:
            raise ChecksumError(f"cells: cell {number} does not have its checksum {self.checksums[number]:08x}")
        rows, dims = int(self.counts[number]), self.dims
        width = code_width(dims, self.bits)
        offset, arrays = 0, []
        layout = (("<f4", dims), ("<f4", dims), ("<u4", rows), ("<u4", rows), ("<i8", rows), ("u1", rows * width))
        for kind, size in layout:
            arrays.append(np.frombuffer(data, kind, size, offset).copy())  # of which most are not aligned there
            offset += arrays[-1].nbytes
        lows, steps, nodes, slots, positions, codes = arrays
        if not (np.isfinite(lows).all() and np.isfinite(steps).all()) or int(nodes.max()) >= self.counts.sum():
            raise BadBlobError(f"cells: cell {number} has a level that is not finite, or no node of the shard")
        return Cell(lows, steps, nodes, slots, positions, codes.reshape(rows, width))


@dataclass(frozen=True, slots=True, eq=False)
class ShardCells:
    """All cells of a shard, as a blob has them."""

    directory: CellDirectory
    cells: memoryview
    """The section of the cells"""

    def cell(self, number: int) -> Cell:
        """One cell. Raises BadBlobError, ChecksumError."""
        start, end = self.directory.offsets[number : number + 2].tolist()
        return self.directory.cell(number, self.cells[start:end])

    def check(self, file_slots: npt.NDArray[np.uint32], row_positions: npt.NDArray[np.int64]) -> None:
        """Raises BadBlobError unless each node of the shard is in one cell, with its address in the shard's blob."""
        counts = np.zeros(len(file_slots), np.int64)
        for number in range(len(self.directory.counts)):
            cell = self.cell(number)
            np.add.at(counts, cell.nodes, 1)
            if (file_slots[cell.nodes] != cell.file_slots).any() or (
                row_positions[cell.nodes] != cell.row_positions
            ).any():
                raise BadBlobError(f"cells: cell {number} has other addresses than the shard")
        if (counts != 1).any():
            raise BadBlobError(f"cells: node {int((counts != 1).argmax())} is not in one cell")


def code_width(dims: int, bits: int) -> int:
    """Bytes of the codes of one row."""
    return (dims * bits + 7) // 8


def row_bytes(dims: int, bits: int) -> int:
    """Bytes of one row in a cell."""
    return 16 + code_width(dims, bits)


def directory_bytes(cells: int, dims: int) -> int:
    """Bytes of a directory of so many cells."""
    return _HEADER.size + 4 * dims + cells * (12 + dims)


def encode(
    cells: Iterable[Cell],
    *,
    counts: Sequence[int],
    bits: int,
    recall: float,
    probes: int,
    origin: npt.NDArray[np.float32],
    scales: npt.NDArray[np.float32],
    centers: npt.NDArray[np.int8],
) -> ShardCells:
    """The cells of a shard with their directory, one after the other: it takes the memory of the section alone.

    `counts`: rows of each cell. `origin`, `scales`, `centers` as `CellDirectory` has them.
    """
    checksums = np.zeros(len(counts), np.uint32)
    directory = CellDirectory(bits, recall, probes, origin, scales, centers, np.array(counts, np.uint32), checksums)
    offsets = directory.offsets.tolist()
    section = memoryview(bytearray(offsets[-1]))
    for number, (cell, (start, end)) in enumerate(zip(cells, pairwise(offsets), strict=True)):
        piece = _cell_bytes(cell)
        section[start:end] = piece
        checksums[number] = zlib.crc32(piece)
    return ShardCells(directory, section)


def _cell_bytes(cell: Cell) -> bytes:
    arrays: tuple[tuple[npt.NDArray[Any], str], ...] = (
        (cell.lows, "<f4"),
        (cell.steps, "<f4"),
        (cell.nodes, "<u4"),
        (cell.file_slots, "<u4"),
        (cell.row_positions, "<i8"),
        (cell.codes, "u1"),
    )
    return _joined(arrays)


def _joined(arrays: Iterable[tuple[npt.NDArray[Any], str]]) -> bytes:
    """Arrays as they are stored, one after the other."""
    return b"".join(array.astype(kind).tobytes() for array, kind in arrays)
