"""LEB128 varints in numba: adjacency lists and location maps. Decoders check every byte; nothing is trusted.

A list is a varint degree, then its ids ascending: the first as it is, the others as the distance to the one before.
A signed sequence is zigzag-coded differences.
"""

import gc
from functools import cache

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.puffin.errors import BadBlobError, BlobTooLargeError

_MAX_VARINT32 = 5
_MAX_VARINT64 = 10
_NEIGHBORS_A_LINE = 16


def encode_adjacency(
    neighbors: npt.NDArray[np.int32], degrees: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
    """`neighbors` int32[N, R], of which row i holds `degrees[i]` ids -> (bytes, u64[N + 1] offsets into them).

    Lists are sorted: their order carries no meaning.
    """
    count, width = neighbors.shape
    out = np.empty(count * (width + 1) * _MAX_VARINT32, np.uint8)
    offsets = np.empty(count + 1, np.uint64)
    length = _encode_lists(neighbors, degrees.astype(np.int64), out, offsets)
    return out[:length], offsets


def decode_adjacency(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.uint64], max_degree: int, *, max_bytes: int | None = None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """-> (neighbors int32[N, W] padded with -1, degrees int32[N]); W is `max_degree`, or less where no list is so long.

    Raises BlobTooLargeError, before they are made, for neighbors of more than `max_bytes`; BadBlobError for offsets
    that do not match, a degree over `max_degree`, ids that are not ascending or not below N, and a node that is its own
    neighbour.
    """
    count = len(offsets) - 1
    if int(offsets[-1]) != len(data) or int(offsets[0]) != 0 or (offsets[1:] < offsets[:-1]).any():
        raise BadBlobError("adjacency: the offsets do not ascend from 0 to the end of the lists")
    degrees = np.zeros(count, np.int32)
    bad = _decode_degrees(data, offsets.view(np.int64), max_degree, degrees)
    if bad >= 0:
        raise BadBlobError(f"adjacency: the list of node {bad} is malformed")
    width = padded_width(degrees, max_degree)
    if max_bytes is not None and 4 * count * width > max_bytes:
        raise BlobTooLargeError(
            f"adjacency: {count:,} lists of up to {width} neighbours take {4 * count * width:,} bytes, over the limit "
            f"of {max_bytes:,} for what is stored"
        )
    neighbors = np.full((count, width), -1, np.int32)
    bad = _decode_lists(data, offsets.view(np.int64), neighbors)
    if bad >= 0:
        raise BadBlobError(f"adjacency: the list of node {bad} is malformed")
    return neighbors, degrees


def padded_width(degrees: npt.NDArray[np.int32], max_degree: int) -> int:
    """Neighbours that a row of padded lists has room for: whole cache lines, and no more than `max_degree`."""
    longest = max(1, int(degrees.max(initial=0)))
    return min(max_degree, longest + -longest % _NEIGHBORS_A_LINE)


def encode_signed(values: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Zigzag varints of the differences of int64 `values`; the first is its difference to 0."""
    out = np.empty(len(values) * _MAX_VARINT64, np.uint8)
    with np.errstate(over="ignore"):
        return out[: _encode_deltas(np.ascontiguousarray(values, np.int64), out)]


def decode_signed(data: npt.NDArray[np.uint8], count: int, what: str) -> npt.NDArray[np.int64]:
    """Inverse of `encode_signed`; every byte must be used."""
    if not count <= len(data) <= count * _MAX_VARINT64:
        raise BadBlobError(f"{what}: {len(data)} bytes cannot be {count} varints")
    out = np.empty(count, np.int64)
    with np.errstate(over="ignore"):
        used = _decode_deltas(data, out)
    if used != len(data):
        raise BadBlobError(f"{what}: {count} varints end at byte {used} of {len(data)}")
    return out


def warm() -> None:
    """Compile every kernel of this module into numba's cache, for bytes that were made here and that were read."""
    lists, offsets = encode_adjacency(np.array([[1, -1], [0, -1]], np.int32), np.ones(2, np.int32))
    deltas = encode_signed(np.arange(2))
    decode_adjacency(lists, offsets, 2)
    decode_signed(deltas, 2, "warm")
    load_decoders()


@cache
def load_decoders() -> None:
    """Load what decodes bytes that were read: a process's first kernel takes it 0.15 s, whatever it does.

    The garbage collector waits: numba makes 100,000 objects that stay, and looking at them would take as long again.
    """
    empty = np.frombuffer(b"", np.uint8)
    collecting = gc.isenabled()
    gc.disable()
    try:
        decode_adjacency(empty, np.zeros(1, np.uint64), 0)
        decode_signed(empty, 0, "none")
    finally:
        if collecting:
            gc.enable()


@njit(nogil=True, cache=True)
def _put(out, at, value):  # type: ignore[no-untyped-def]
    while value >= np.uint64(128):
        out[at] = np.uint8(value & np.uint64(127)) | np.uint8(128)
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@njit(nogil=True, cache=True)
def _encode_lists(neighbors, degrees, out, offsets):  # type: ignore[no-untyped-def]
    at = 0
    scratch = np.empty(neighbors.shape[1], np.int32)
    for node in range(neighbors.shape[0]):
        offsets[node] = at
        degree = degrees[node]
        # insertion sort: lists are short, and often nearly sorted
        for i in range(degree):
            value = neighbors[node, i]
            j = i
            while j > 0 and scratch[j - 1] > value:
                scratch[j] = scratch[j - 1]
                j -= 1
            scratch[j] = value
        at = _put(out, at, np.uint64(degree))
        last = 0
        for i in range(degree):
            at = _put(out, at, np.uint64(scratch[i] - last))
            last = scratch[i]
    offsets[neighbors.shape[0]] = at
    return at


@njit(nogil=True, cache=True)
def _get(data, at, end):  # type: ignore[no-untyped-def]
    """(value, next position), or (0, -1) where the varint is cut off or over 35 bits."""
    value = np.int64(0)
    for step in range(_MAX_VARINT32):
        if at >= end:
            return np.int64(0), np.int64(-1)
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 127) << (7 * step)
        if byte < 128:
            return value, at
    return np.int64(0), np.int64(-1)


@njit(nogil=True, cache=True)
def _decode_degrees(data, offsets, limit, degrees):  # type: ignore[no-untyped-def]
    """-1, or the first node whose list is too long, or cannot have the bytes that it would need."""
    for node in range(degrees.size):
        degree, at = _get(data, offsets[node], offsets[node + 1])
        if at < 0 or degree > min(limit, offsets[node + 1] - at):
            return node
        degrees[node] = degree
    return -1


@njit(nogil=True, cache=True)
def _decode_lists(data, offsets, neighbors):  # type: ignore[no-untyped-def]
    """-1, or the first node whose list is malformed."""
    count, width = neighbors.shape
    for node in range(count):
        end = offsets[node + 1]
        degree, at = _get(data, offsets[node], end)
        if at < 0 or degree > width:
            return node
        last = np.int64(0)
        for i in range(degree):
            step, at = _get(data, at, end)
            if at < 0:
                return node
            value = last + step
            if value >= count or value == node or (i > 0 and step == 0):
                return node
            neighbors[node, i] = value
            last = value
        if at != end:
            return node
    return -1


@njit(nogil=True, cache=True)
def _encode_deltas(values, out):  # type: ignore[no-untyped-def]
    at = 0
    last = np.int64(0)
    for i in range(values.size):
        delta = values[i] - last
        last = values[i]
        at = _put(out, at, np.uint64((delta << np.int64(1)) ^ (delta >> np.int64(63))))
    return at


@njit(nogil=True, cache=True)
def _decode_deltas(data, out):  # type: ignore[no-untyped-def]
    """Bytes used, or -1 where a varint is cut off or too long."""
    at = 0
    last = np.int64(0)
    for i in range(out.size):
        value = np.uint64(0)
        shift = np.uint64(0)
        while True:
            if at >= data.size or shift > np.uint64(63):
                return -1
            byte = np.uint64(data[at])
            at += 1
            value |= (byte & np.uint64(127)) << shift
            shift += np.uint64(7)
            if byte < np.uint64(128):
                break
        last += np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))
        out[i] = last
    return at
