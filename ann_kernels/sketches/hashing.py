"""MurmurHash3 x64 128 (first half), over single values, whole vectors, and rows over several columns.

The hash of a row is folded in column by column: murmur3 of the hash so far and that of the value. A null has a hash of
its own, 0.

Source: Austin Appleby's MurmurHash3_x64_128 (public domain); the same function that Apache DataSketches uses.
Kernels take validated arrays and unsigned positions: numba then checks no sign. All other numbers are u64.

Bytes are read little-endian, whatever the host. The kernels also run as plain Python (NUMBA_DISABLE_JIT=1); callers
enter `wrapping()` around them, since NumPy warns of unsigned overflow there.
"""

from typing import Any

import numpy as np
from numba import uint64

from icepuffin.ann_kernels.arrays import F32, U8, U64, AnyArray, Bool, read_only
from icepuffin.ann_kernels.compilation import inline_kernel, kernel
from icepuffin.ann_kernels.errors import DimensionError, KernelError

CONTENT_SEED = 0
"""Seed of `content_hash`. It is part of the shard format: another seed is another format."""

_TUPLE_SEED = np.uint64(9001)
_ALL: Bool = np.empty(0, np.bool_)
_C1 = np.uint64(0x87C37B91114253D5)
_C2 = np.uint64(0x4CF5AD432745937F)
_M1 = np.uint64(0x52DCE729)
_M2 = np.uint64(0x38495AB5)
_F1 = np.uint64(0xFF51AFD7ED558CCD)
_F2 = np.uint64(0xC4CEB9FE1A85EC53)
_FIVE = np.uint64(5)
_WORD = np.uint64(8)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)


def wrapping() -> np.errstate:
    """The context in which kernels may run as plain Python: 64-bit arithmetic wraps around on purpose."""
    return np.errstate(over="ignore")


@inline_kernel
def _rotl(x: Any, r: int) -> Any:
    return (x << uint64(r)) | (x >> uint64(64 - r))


@inline_kernel
def _fmix(x: Any) -> Any:
    x ^= x >> uint64(33)
    x *= _F1
    x ^= x >> uint64(33)
    x *= _F2
    return x ^ (x >> uint64(33))


@inline_kernel
def _mix_k1(k1: Any) -> Any:
    return _rotl(k1 * _C1, 31) * _C2


@inline_kernel
def _mix_k2(k2: Any) -> Any:
    return _rotl(k2 * _C2, 33) * _C1


@inline_kernel
def _finish(h1: Any, h2: Any, length: Any) -> Any:
    h1 ^= length
    h2 ^= length
    h1 += h2
    h2 += h1
    return _fmix(h1) + _fmix(h2)


@inline_kernel
def murmur3_word(value: Any, length: Any, seed: Any) -> Any:
    """First half of the hash of the `length` (1 to 8) low bytes of a u64, the others being zero."""
    return _finish(seed ^ _mix_k1(value), seed, length)


@inline_kernel
def murmur3_words(first: Any, second: Any, length: Any, seed: Any) -> Any:
    """First half of the hash of 9 to 16 bytes, given as two little-endian u64 that are zero past the end."""
    if length < uint64(16):
        return _finish(seed ^ _mix_k1(first), seed ^ _mix_k2(second), length)
    h1 = (_rotl(seed ^ _mix_k1(first), 27) + seed) * _FIVE + _M1
    h2 = (_rotl(seed ^ _mix_k2(second), 31) + h1) * _FIVE + _M2
    return _finish(h1, h2, length)


@inline_kernel
def _load(data: U8, start: Any) -> Any:
    # LLVM makes one unaligned 8-byte load of this
    word = uint64(data[start])
    for i in range(1, 8):
        word |= uint64(data[start + uint64(i)]) << uint64(8 * i)
    return word


@inline_kernel
def _load_tail(data: U8, start: Any, count: Any) -> Any:
    word = _ZERO
    for i in range(count):
        word |= uint64(data[start + uint64(i)]) << uint64(8 * i)
    return word


@kernel
def murmur3_bytes(data: U8, start: Any, length: Any, seed: Any) -> Any:
    """First half of the hash of data[start : start + length]; data u8[], all numbers u64."""
    h1 = seed
    h2 = seed
    offset = start
    for _ in range(length >> uint64(4)):
        h1 ^= _mix_k1(_load(data, offset))
        h1 = (_rotl(h1, 27) + h2) * _FIVE + _M1
        h2 ^= _mix_k2(_load(data, offset + _WORD))
        h2 = (_rotl(h2, 31) + h1) * _FIVE + _M2
        offset += uint64(16)
    tail = length & uint64(15)
    if tail > _WORD:
        h2 ^= _mix_k2(_load_tail(data, offset + _WORD, tail - _WORD))
        h1 ^= _mix_k1(_load(data, offset))
    elif tail == _WORD:
        h1 ^= _mix_k1(_load(data, offset))
    elif tail:
        h1 ^= _mix_k1(_load_tail(data, offset, tail))
    return _finish(h1, h2, length)


@kernel
def _hash_rows(data: U8, width: Any, seed: Any, out: U64) -> None:
    for row in range(out.shape[0]):
        out[row] = murmur3_bytes(data, uint64(row) * width, width, seed)


def content_hash(vectors: F32) -> U64:
    """The 64-bit content hash of each vector, by which a row is recognised after its file was rewritten.

    Parameters
    ----------
    vectors : f32[N, D]
        As stored in the data file (not normalised).

    Returns
    -------
    u64[N]
        murmur3_x64_128's first half, seed 0, over the D * 4 little-endian bytes of each row. Equal bits have equal
        hashes: 0.0 and -0.0 differ.

    Raises
    ------
    DimensionError
        Another shape or dtype.
    """
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise DimensionError(f"content_hash takes f32[N, D], got {vectors.dtype}{list(vectors.shape)}")
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    out = np.empty(rows.shape[0], np.uint64)
    with wrapping():
        data = read_only(rows.reshape(-1).view(np.uint8))
        _hash_rows(data, np.uint64(4 * rows.shape[1]), np.uint64(CONTENT_SEED), out)
    return out


@inline_kernel
def _folded(row: Any, value: Any) -> Any:
    return murmur3_words(row, value, uint64(16), _TUPLE_SEED)


@kernel
def _fold_words(words: U64, present: Bool, hashes: U64) -> None:
    for i in range(hashes.shape[0]):
        value = murmur3_word(words[i], uint64(8), _TUPLE_SEED)
        hashes[i] = _folded(hashes[i], value if present.shape[0] == 0 or present[i] else _ZERO)


@kernel
def _fold_bytes(offsets: AnyArray, data: U8, present: Bool, hashes: U64) -> None:
    for i in range(hashes.shape[0]):
        value = _ZERO
        if present.shape[0] == 0 or present[i]:
            begin = uint64(offsets[i])
            value = murmur3_bytes(data, begin, uint64(offsets[i + 1]) - begin, _TUPLE_SEED)
        hashes[i] = _folded(hashes[i], value)


def fold_words(hashes: U64, words: U64, present: Bool | None = None) -> None:
    """Fold values of 8 bytes u64[N] into the hashes u64[N] of their rows; None: none is null."""
    if words.shape != hashes.shape or (present is not None and present.shape != hashes.shape):
        raise KernelError(f"{len(words)} values do not fit {len(hashes)} rows")
    with wrapping():
        _fold_words(read_only(np.ascontiguousarray(words)), read_only(_ALL if present is None else present), hashes)


def fold_bytes(hashes: U64, offsets: AnyArray, data: U8, present: Bool | None = None) -> None:
    """Fold byte strings data[offsets[i] : offsets[i + 1]], offsets i32 or i64[N + 1], into the hashes of their rows."""
    if len(offsets) != len(hashes) + 1 or (present is not None and present.shape != hashes.shape):
        raise KernelError(f"{len(offsets) - 1} values do not fit {len(hashes)} rows")
    if bool(np.any(offsets[1:] < offsets[:-1])) or offsets[0] < 0 or offsets[-1] > len(data):
        raise KernelError(f"offsets must ascend within the {len(data)} bytes of data")
    with wrapping():
        _fold_bytes(read_only(offsets), read_only(data), read_only(_ALL if present is None else present), hashes)


def warm() -> None:
    """Compile the kernels of rows over several columns into numba's cache, for the array types in use."""
    hashes = np.zeros(1, np.uint64)
    fold_words(hashes, hashes)
    for offsets in (np.int32, np.int64):
        fold_bytes(hashes, np.zeros(2, offsets), np.zeros(0, np.uint8))
