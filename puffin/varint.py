"""LEB128 varints in numba: adjacency lists and location maps. Decoders check every byte; nothing is trusted.

A list is a varint degree, then its ids ascending: the first as it is, the others as the distance to the one before.
A signed sequence is zigzag-coded differences.
"""

import gc
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import read_only
from icepuffin.ann_kernels.compilation import inner_kernel, kernel
from icepuffin.puffin.errors import BadBlobError, BlobTooLargeError
from icepuffin.puffin.transient import transient

U8: TypeAlias = npt.NDArray[np.uint8]
U64: TypeAlias = npt.NDArray[np.uint64]
I32: TypeAlias = npt.NDArray[np.int32]
I64: TypeAlias = npt.NDArray[np.int64]

_MAX_VARINT32 = 5
_MAX_VARINT64 = 10
_NEIGHBORS_PER_LINE = 16


Allocate: TypeAlias = Callable[[tuple[int, int]], I32]


def new_lists(shape: tuple[int, int]) -> I32:
    """int32[shape] in memory, not filled."""
    return np.empty(shape, np.int32)


def encode_adjacency(neighbors: I32, degrees: I32) -> tuple[U8, U64]:
    """(lists as bytes u8[..], offsets u64[N + 1] into them) of `neighbors`, int32[N, R], whose row i holds `degrees[i]`
    ids, int32[N]. Each list is sorted: its order carries no meaning.
    """
    count, width = neighbors.shape
    out = np.empty(count * (width + 1) * _MAX_VARINT32, np.uint8)
    offsets = np.empty(count + 1, np.uint64)
    length = _encode_lists(neighbors, degrees.astype(np.int64), out, offsets)
    return out[:length], offsets


def decode_adjacency(
    data: U8, offsets: U64, max_degree: int, *, max_bytes: int | None = None, allocate: Allocate = new_lists
) -> tuple[I32, I32]:
    """Inverse of `encode_adjacency`: (neighbors int32[N, W] padded with -1, degrees int32[N]). W is `max_degree`, the
    longest list that is accepted, or less where no list is so long. `allocate` gives the neighbours' array.

    Raises BlobTooLargeError where the neighbours would take more than `max_bytes`, before memory is taken. Raises
    BadBlobError for offsets that do not match, a degree over `max_degree`, ids that are not ascending or not below N,
    and a node that is its own neighbour.
    """
    count = len(offsets) - 1
    _require_ascending(data, offsets)
    degrees = np.zeros(count, np.int32)
    bad = _decode_degrees(read_only(data), offsets.view(np.int64), max_degree, degrees)
    if bad >= 0:
        raise BadBlobError(f"adjacency: the list of node {bad} is malformed")
    width = padded_width(degrees, max_degree)
    if max_bytes is not None and 4 * count * width > max_bytes:
        raise BlobTooLargeError(
            f"adjacency: {count:,} lists of up to {width} neighbours take {4 * count * width:,} bytes, over the limit "
            f"of {max_bytes:,} for what is stored"
        )
    neighbors = allocate((count, width))
    neighbors[:] = -1
    bad = _decode_lists(read_only(data), offsets.view(np.int64), neighbors)
    if bad >= 0:
        raise BadBlobError(f"adjacency: the list of node {bad} is malformed")
    return neighbors, degrees


def check_adjacency(data: U8, offsets: U64, max_degree: int) -> int:
    """Check lists as `decode_adjacency` does, for readers that use the bytes as they are. Returns the longest length.

    Raises BadBlobError.
    """
    _require_ascending(data, offsets)
    bad, longest = _check_lists(read_only(data), offsets.view(np.int64), max_degree)
    if bad >= 0:
        raise BadBlobError(f"adjacency: the list of node {bad} is malformed")
    return int(longest)


def _require_ascending(data: U8, offsets: U64) -> None:
    if int(offsets[-1]) != len(data) or int(offsets[0]) != 0 or (offsets[1:] < offsets[:-1]).any():
        raise BadBlobError("adjacency: the offsets do not ascend from 0 to the end of the lists")


def padded_width(degrees: I32, max_degree: int) -> int:
    """Width of a row of padded lists int32: whole cache lines, and no more than `max_degree`."""
    longest = max(1, int(degrees.max(initial=0)))
    return min(max_degree, longest + -longest % _NEIGHBORS_PER_LINE)


def encode_signed(values: I64) -> U8:
    """Zigzag varints u8[..] of the differences of values int64[n]; the first is its difference to 0."""
    out = np.empty(len(values) * _MAX_VARINT64, np.uint8)
    with np.errstate(over="ignore"):
        return out[: _encode_deltas(np.ascontiguousarray(values, np.int64), out)]


def decode_signed(data: U8, count: int, what: str) -> I64:
    """Inverse of `encode_signed`: `count` values int64, named `what` in messages. Raises BadBlobError."""
    if not count <= len(data) <= count * _MAX_VARINT64:
        raise BadBlobError(f"{what}: {len(data)} bytes cannot be {count} varints")
    out = transient(8 * count).view(np.int64)
    with np.errstate(over="ignore"):
        end = _decode_deltas(read_only(data), out)
    if end != len(data):
        raise BadBlobError(f"{what}: {count} varints end at byte {end} of {len(data)}")
    return out


def warm() -> None:
    """Compile every kernel of this module into numba's cache."""
    lists, offsets = encode_adjacency(np.array([[1, -1], [0, -1]], np.int32), np.ones(2, np.int32))
    deltas = encode_signed(np.arange(2))
    decode_adjacency(lists, offsets, 2)
    check_adjacency(lists, offsets, 2)
    decode_signed(deltas, 2, "warm")


@cache
def load_decoders() -> None:
    """Load the decoders: the first kernel that a process loads takes 0.15 s, whatever it does.

    The garbage collector is off meanwhile: numba makes 100,000 objects that stay, and examining them would take as long
    again.
    """
    empty = np.frombuffer(b"", np.uint8)
    collecting = gc.isenabled()
    gc.disable()
    try:
        decode_adjacency(empty, np.zeros(1, np.uint64), 0)
        check_adjacency(empty, np.zeros(1, np.uint64), 0)
        decode_signed(empty, 0, "none")
    finally:
        if collecting:
            gc.enable()


@inner_kernel
def _put(out: U8, position: int, value: Any) -> int:
    """Write a varint. Returns the next position."""
    while value >= np.uint64(128):
        out[position] = np.uint8(value & np.uint64(127)) | np.uint8(128)
        value >>= np.uint64(7)
        position += 1
    out[position] = np.uint8(value)
    return position + 1


@kernel
def _encode_lists(neighbors: I32, degrees: I64, out: U8, offsets: U64) -> int:
    """Return the number of bytes written."""
    position = 0
    scratch = np.empty(neighbors.shape[1], np.int32)
    for node in range(neighbors.shape[0]):
        offsets[node] = position
        degree = degrees[node]
        # insertion sort: lists are short, and often nearly sorted
        for i in range(degree):
            value = neighbors[node, i]
            j = i
            while j > 0 and scratch[j - 1] > value:
                scratch[j] = scratch[j - 1]
                j -= 1
            scratch[j] = value
        position = _put(out, position, np.uint64(degree))
        last = 0
        for i in range(degree):
            position = _put(out, position, np.uint64(scratch[i] - last))
            last = scratch[i]
    offsets[neighbors.shape[0]] = position
    return position


@inner_kernel
def _get(data: U8, position: Any, end: Any) -> tuple[Any, Any]:
    """(value, next position), or (0, -1) where the varint is cut off or over 35 bits."""
    value = np.int64(0)
    for step in range(_MAX_VARINT32):
        if position >= end:
            return np.int64(0), np.int64(-1)
        byte = np.int64(data[position])
        position += 1
        value |= (byte & 127) << (7 * step)
        if byte < 128:
            return value, position
    return np.int64(0), np.int64(-1)


@kernel
def _decode_degrees(data: U8, offsets: I64, limit: int, degrees: I32) -> int:
    """Fill the degrees. Returns -1, or the first node whose list is too long, or longer than its bytes allow."""
    for node in range(degrees.size):
        degree, position = _get(data, offsets[node], offsets[node + 1])
        if position < 0 or degree > min(limit, offsets[node + 1] - position):
            return node
        degrees[node] = degree
    return -1


@kernel
def _decode_lists(data: U8, offsets: I64, neighbors: I32) -> int:
    """Fill the neighbours. Returns -1, or the first node whose list is malformed."""
    for node in range(neighbors.shape[0]):
        if _decode_list(data, offsets, node, neighbors[node]) < 0:
            return node
    return -1


@kernel
def _check_lists(data: U8, offsets: I64, limit: int) -> tuple[int, int]:
    """(-1, or the first node whose list is malformed or longer than `limit`; the length of the longest list)."""
    longest, ids = 0, np.empty(limit, np.int32)
    for node in range(offsets.size - 1):
        degree = _decode_list(data, offsets, node, ids)
        if degree < 0:
            return node, 0
        longest = max(longest, degree)
    return -1, longest


@inner_kernel
def _decode_list(data: U8, offsets: I64, node: int, ids: I32) -> Any:
    """Put the neighbours of one node into ids int32[R]. Returns their number, or -1 where the list is malformed."""
    count, end = offsets.size - 1, offsets[node + 1]
    degree, position = _get(data, offsets[node], end)
    if position < 0 or degree > ids.size:
        return -1
    last = np.int64(0)
    for i in range(degree):
        step, position = _get(data, position, end)
        if position < 0:
            return -1
        value = last + step
        if value >= count or value == node or (i > 0 and step == 0):
            return -1
        ids[i] = value
        last = value
    return degree if position == end else -1


@kernel
def _encode_deltas(values: I64, out: U8) -> int:
    """Return the number of bytes written."""
    position = 0
    last = np.int64(0)
    for i in range(values.size):
        delta = values[i] - last
        last = values[i]
        position = _put(out, position, np.uint64((delta << np.int64(1)) ^ (delta >> np.int64(63))))
    return position


@kernel
def _decode_deltas(data: U8, out: I64) -> int:
    """Fill `out`. Returns bytes used, or -1 where a varint is cut off or too long."""
    position = 0
    last = np.int64(0)
    for i in range(out.size):
        value = np.uint64(0)
        shift = np.uint64(0)
        while True:
            if position >= data.size or shift > np.uint64(63):
                return -1
            byte = np.uint64(data[position])
            position += 1
            value |= (byte & np.uint64(127)) << shift
            shift += np.uint64(7)
            if byte < np.uint64(128):
                break
        last += np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
        out[i] = last
    return position
