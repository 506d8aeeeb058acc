"""Theta sketches: the k smallest distinct hashes of a column's values.

A sketch is a pair (theta, hashes): `hashes` u64 ascending, distinct, 0 < hash < theta. It is exact while theta is
`MAX_THETA`; else the number of distinct values is estimated as len(hashes) / (theta / 2^63). The hash of a value is
murmur3_x64_128(bytes, seed 9001).h1 >> 1 over its Iceberg single-value serialisation, as Apache DataSketches hashes
`byte[]`; hash 0 and the empty string are ignored, as there.

Source: Dasgupta, Lang, Rhodes, Thaler, "A Framework for Estimating Stream Expression Cardinalities" (theta sketches);
Bar-Yossef et al. 2002 (k minimum values). Keeping exactly the k smallest (theta is the one after them) makes the sketch
a function of the set of values: it does not depend on order, batches or threads.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import uint64

from icepuffin.ann_kernels.arrays import U8, U64, AnyArray, read_only
from icepuffin.ann_kernels.compilation import inline_kernel, inner_kernel, kernel
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.sketches.hashing import murmur3_bytes, murmur3_word, murmur3_words, wrapping
from icepuffin.ann_kernels.sketches.theta_estimates import DEFAULT_K, MAX_THETA

DATASKETCHES_SEED = 9001

_SEED = np.uint64(DATASKETCHES_SEED)
_BLOCK = 1024
_ONE = np.uint64(1)
_ZERO = np.uint64(0)

Hashes: TypeAlias = U64
_ALL_VALID: U8 = read_only(np.empty(0, np.uint8))


class _HashTable(NamedTuple):
    """The hashes that a sketch keeps so far."""

    slots: U64
    """Open addressing, u64[2^b]; zero where a slot is free"""
    state: U64
    """Theta and the number of hashes, u64[2]"""
    k: int


class _Validity(NamedTuple):
    """Which values are present."""

    bitmap: U8
    """Bits u8[..], lowest first; empty where all values are present"""
    first_bit: int
    """Index of the first value's bit"""


@inner_kernel
def _select(hashes: Hashes, count: int, k: int) -> None:
    """Put the hash of rank k, of hashes[:count], into its place, and smaller ones before it: Hoare's selection."""
    low, high = 0, count - 1
    while low < high:
        pivot, left, right = hashes[(low + high) // 2], low, high
        while left <= right:
            while hashes[left] < pivot:
                left += 1
            while hashes[right] > pivot:
                right -= 1
            if left <= right:
                hashes[left], hashes[right] = hashes[right], hashes[left]
                left += 1
                right -= 1
        if k <= right:
            high = right
        elif k >= left:
            low = left
        else:
            return


@kernel
def _shrink(table: _HashTable) -> Hashes:
    """Keep the k smallest hashes, lower theta to the next one, rebuild the table. Returns the hashes, in any order."""
    slots, state, k = table.slots, table.state, table.k
    theta = state[0]
    kept = np.empty(state[1], np.uint64)
    count = 0
    for slot in range(slots.shape[0]):
        h = slots[slot]
        if h != _ZERO and h < theta:
            kept[count] = h
            count += 1
        slots[slot] = _ZERO
    if count > k:
        _select(kept, count, k)
        state[0] = kept[k]
        count = k
    state[1] = uint64(count)
    mask = uint64(slots.shape[0] - 1)
    for i in range(count):
        slot = kept[i] & mask
        while slots[slot] != _ZERO:
            slot = (slot + _ONE) & mask
        slots[slot] = kept[i]
    return kept[:count]


@kernel
def _offer(hashes: Hashes, count: int, validity: _Validity, start: int, table: _HashTable) -> None:
    """Put hashes[:count] of values that are present into the table; the first is that of value `start`."""
    slots, state, k = table.slots, table.state, table.k
    bitmap = validity.bitmap
    first_bit = validity.first_bit + start
    mask = uint64(slots.shape[0] - 1)
    for i in range(count):
        h = hashes[i]
        if h >= state[0] or h == _ZERO:
            continue
        if bitmap.shape[0] > 0:
            bit = uint64(first_bit + i)
            if (bitmap[bit >> uint64(3)] >> (bit & uint64(7))) & _ONE == _ZERO:
                continue
        slot = h & mask
        while slots[slot] != _ZERO and slots[slot] != h:
            slot = (slot + _ONE) & mask
        if slots[slot] == _ZERO:
            slots[slot] = h
            state[1] += _ONE
            if state[1] >= uint64(2 * k):
                _shrink(table)


@kernel
def _update_words(values: AnyArray, width: Any, validity: _Validity, table: _HashTable) -> None:
    """Add the hashes of values of `width` bytes."""
    block = np.empty(_BLOCK, np.uint64)
    for start in range(0, values.shape[0], _BLOCK):
        count = min(_BLOCK, values.shape[0] - start)
        for i in range(count):
            block[i] = murmur3_word(uint64(values[start + i]), width, _SEED) >> _ONE
        _offer(block, count, validity, start, table)


@kernel
def _update_bytes(offsets: AnyArray, data: U8, validity: _Validity, table: _HashTable) -> None:
    """Add the hashes of byte strings."""
    block = np.empty(_BLOCK, np.uint64)
    rows = offsets.shape[0] - 1
    for start in range(0, rows, _BLOCK):
        count = min(_BLOCK, rows - start)
        for i in range(count):
            begin = uint64(offsets[start + i])
            length = uint64(offsets[start + i + 1]) - begin
            block[i] = murmur3_bytes(data, begin, length, _SEED) >> _ONE if length else _ZERO
        _offer(block, count, validity, start, table)


@inline_kernel
def _byte_swapped(x: Any) -> Any:
    x = ((x >> uint64(8)) & uint64(0x00FF00FF00FF00FF)) | ((x & uint64(0x00FF00FF00FF00FF)) << uint64(8))
    x = ((x >> uint64(16)) & uint64(0x0000FFFF0000FFFF)) | ((x & uint64(0x0000FFFF0000FFFF)) << uint64(16))
    return (x >> uint64(32)) | (x << uint64(32))


@inline_kernel
def _signed_bytes(magnitude: Any) -> Any:
    """Bytes of the shortest two's complement of a number; `magnitude` has its bits, inverted if it is negative."""
    length = _ONE
    for i in range(7):
        length += uint64(magnitude >= uint64(1) << uint64(8 * i + 7))
    return length


@inline_kernel
def _sign(x: Any) -> Any:
    """All ones where the top bit of a u64 is set, else zero."""
    return _ZERO - (x >> uint64(63))


@inner_kernel
def _hash_wide(low: Any, high: Any) -> Any:
    """Hash of a 128-bit number that needs 9 to 16 bytes of big-endian two's complement."""
    length = uint64(8) + _signed_bytes(high ^ _sign(high))
    first, second = _byte_swapped(high), _byte_swapped(low)
    drop = (uint64(16) - length) * uint64(8)
    if drop:
        first = (first >> drop) | (second << (uint64(64) - drop))
        second >>= drop
    return murmur3_words(first, second, length, _SEED)


@kernel
def _update_decimals(words: U64, validity: _Validity, table: _HashTable) -> None:
    """Add the hashes of unscaled 128-bit numbers u64[N, 2] (low, high)."""
    block = np.empty(_BLOCK, np.uint64)
    for start in range(0, words.shape[0], _BLOCK):
        count = min(_BLOCK, words.shape[0] - start)
        narrow = True
        for i in range(count):
            low, high = words[start + i, 0], words[start + i, 1]
            sign = _sign(low)
            length = _signed_bytes(low ^ sign)
            narrow &= high == sign
            block[i] = murmur3_word(_byte_swapped(low) >> ((uint64(8) - length) * uint64(8)), length, _SEED) >> _ONE
        if not narrow:
            for i in range(count):
                low, high = words[start + i, 0], words[start + i, 1]
                if high != _sign(low):
                    block[i] = _hash_wide(low, high) >> _ONE
        _offer(block, count, validity, start, table)


class ThetaAccumulator:
    """A sketch that grows with each update. Arrays may come in any order and in any batches; `result` at any time.

    Memory: an open-addressing table of 4k to 8k hashes (128 KiB at k = 4096). The updates release the GIL; one
    accumulator belongs to one thread at a time. `validity` is an Arrow bitmap u8[] (bit first_bit + i for value i,
    lowest bit first); None means that every value is present. All methods raise KernelError for other shapes and types.
    """

    __slots__ = ("_table",)

    def __init__(self, k: int = DEFAULT_K) -> None:
        if not 1 <= k <= 2**26:
            raise KernelError(f"a theta sketch keeps 1 to 2^26 hashes, got k = {k}")
        slots = np.zeros(1 << (4 * k - 1).bit_length(), np.uint64)
        self._table = _HashTable(slots, np.array([MAX_THETA, 0], np.uint64), k)

    def update_fixed(self, values: AnyArray, validity: U8 | None = None, first_bit: int = 0) -> None:
        """Values of 1, 4 or 8 bytes each, hashed as their little-endian bytes: bool as u8, int, float, date ..."""
        if values.ndim != 1 or values.dtype.itemsize not in (1, 4, 8) or values.dtype.kind not in "uif":
            raise KernelError(f"update_fixed takes numbers of 1, 4 or 8 bytes, got {values.dtype}{list(values.shape)}")
        width = values.dtype.itemsize
        words = read_only(np.ascontiguousarray(values).view(f"<u{width}"))
        present = _validity(validity, first_bit, len(words))
        with wrapping():
            _update_words(words, np.uint64(width), present, self._table)

    def update_bytes(self, offsets: AnyArray, data: U8, validity: U8 | None = None, first_bit: int = 0) -> None:
        """Byte strings data[offsets[i] : offsets[i + 1]], offsets i32 or i64[N + 1]; empty ones are ignored."""
        if offsets.ndim != 1 or offsets.dtype not in (np.dtype(np.int32), np.dtype(np.int64)) or len(offsets) == 0:
            raise KernelError(f"update_bytes takes offsets i32 or i64[N + 1], got {offsets.dtype}{list(offsets.shape)}")
        if data.ndim != 1 or data.dtype != np.uint8:
            raise KernelError(f"update_bytes takes data u8[], got {data.dtype}{list(data.shape)}")
        if offsets[0] < 0 or offsets[-1] > len(data) or bool(np.any(offsets[1:] < offsets[:-1])):
            raise KernelError(f"offsets must ascend from 0 or more to at most {len(data)}, the length of the data")
        present = _validity(validity, first_bit, len(offsets) - 1)
        starts, octets = read_only(np.ascontiguousarray(offsets)), read_only(np.ascontiguousarray(data))
        with wrapping():
            _update_bytes(starts, octets, present, self._table)

    def update_decimals(self, words: U64, validity: U8 | None = None, first_bit: int = 0) -> None:
        """Unscaled 128-bit numbers u64[N, 2] (low, high), hashed as the fewest big-endian two's complement bytes."""
        if words.ndim != 2 or words.shape[1] != 2 or words.dtype != np.uint64:
            raise KernelError(f"update_decimals takes u64[N, 2], got {words.dtype}{list(words.shape)}")
        present = _validity(validity, first_bit, len(words))
        with wrapping():
            _update_decimals(read_only(np.ascontiguousarray(words)), present, self._table)

    def update_sketch(self, theta: int, hashes: Hashes) -> None:
        """Add all that another sketch (with this seed, of any k) has seen."""
        if not 0 < theta <= MAX_THETA:
            raise KernelError(f"theta must be in 1 .. 2^63 - 1, got {theta}")
        state = self._table.state
        state[0] = min(int(state[0]), theta)
        added = np.ascontiguousarray(hashes, np.uint64)
        if not added.flags.writeable:  # numba would compile the kernel anew
            added = added.copy()
        with wrapping():
            _offer(added, len(added), _Validity(_ALL_VALID, 0), 0, self._table)

    def result(self) -> tuple[int, Hashes]:
        """(theta, hashes u64 ascending): at most k hashes."""
        with wrapping():
            hashes = _shrink(self._table)
        return int(self._table.state[0]), np.sort(hashes)


def _validity(bitmap: U8 | None, first_bit: int, count: int) -> _Validity:
    if bitmap is None or count == 0:
        return _Validity(_ALL_VALID, first_bit)
    if bitmap.dtype != np.uint8 or first_bit < 0 or 8 * len(bitmap) < first_bit + count:
        raise KernelError(f"a bitmap of {len(bitmap)} bytes does not hold bits {first_bit} .. {first_bit + count}")
    return _Validity(read_only(bitmap), first_bit)


def union(sketches: Iterable[tuple[int, Hashes]], k: int = DEFAULT_K) -> tuple[int, Hashes]:
    """The sketch of all values that any of the sketches has seen; associative, commutative, idempotent."""
    united = ThetaAccumulator(k)
    for theta, hashes in sketches:
        united.update_sketch(theta, hashes)
    return united.result()


def warm() -> None:
    """Compile every kernel of this module into numba's cache, for the array types that the product uses."""
    accumulator = ThetaAccumulator(4)
    for width in (1, 4, 8):
        accumulator.update_fixed(np.arange(9, dtype=f"<u{width}"), np.full(2, 255, np.uint8), 3)
    for offsets in (np.int32, np.int64):
        accumulator.update_bytes(np.arange(9, dtype=offsets), np.arange(8, dtype=np.uint8))
    accumulator.update_decimals(np.arange(6, dtype=np.uint64).reshape(3, 2))
    union([accumulator.result()], 4)
