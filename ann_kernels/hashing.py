"""MurmurHash3 x64 128 (first half), over single values and over whole vectors.

Source: Austin Appleby's MurmurHash3_x64_128 (public domain); the same function that Apache DataSketches uses.
Everything here is `nogil`; kernels take validated arrays and unsigned positions (numba then checks no sign).

Bytes are read little-endian, whatever the host. The kernels also run as plain Python (NUMBA_DISABLE_JIT=1); the callers
of kernels wrap them in `wrapping()`, since numpy warns of unsigned overflow there.
"""

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from icepuffin.ann_kernels.errors import DimensionError

CONTENT_SEED = 0
"""Seed of `content_hash`. It is part of the shard format: another seed is another format."""

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


@njit(inline="always")
def _rotl(x, r):  # type: ignore[no-untyped-def]
    return (x << uint64(r)) | (x >> uint64(64 - r))


@njit(inline="always")
def _fmix(x):  # type: ignore[no-untyped-def]
    x ^= x >> uint64(33)
    x *= _F1
    x ^= x >> uint64(33)
    x *= _F2
    return x ^ (x >> uint64(33))


@njit(inline="always")
def _mix_k1(k1):  # type: ignore[no-untyped-def]
    return _rotl(k1 * _C1, 31) * _C2


@njit(inline="always")
def _mix_k2(k2):  # type: ignore[no-untyped-def]
    return _rotl(k2 * _C2, 33) * _C1


@njit(inline="always")
def _finish(h1, h2, length):  # type: ignore[no-untyped-def]
    h1 ^= length
    h2 ^= length
    h1 += h2
    h2 += h1
    return _fmix(h1) + _fmix(h2)


@njit(nogil=True, cache=True, inline="always")
def murmur3_word(value, length, seed):  # type: ignore[no-untyped-def]
    """First half of the hash of the `length` (1 to 8) low bytes of a u64, the others being zero."""
    return _finish(seed ^ _mix_k1(value), seed, length)


@njit(nogil=True, cache=True, inline="always")
def murmur3_words(first, second, length, seed):  # type: ignore[no-untyped-def]
    """First half of the hash of 9 to 16 bytes, given as two little-endian u64 that are zero past the end."""
    if length < uint64(16):
        return _finish(seed ^ _mix_k1(first), seed ^ _mix_k2(second), length)
    h1 = (_rotl(seed ^ _mix_k1(first), 27) + seed) * _FIVE + _M1
    h2 = (_rotl(seed ^ _mix_k2(second), 31) + h1) * _FIVE + _M2
    return _finish(h1, h2, length)


@njit(inline="always")
def _load(data, at):  # type: ignore[no-untyped-def]
    # LLVM makes one unaligned 8-byte load of this
    word = uint64(data[at])
    for i in range(1, 8):
        word |= uint64(data[at + uint64(i)]) << uint64(8 * i)
    return word


@njit(inline="always")
def _load_tail(data, at, count):  # type: ignore[no-untyped-def]
    word = _ZERO
    for i in range(count):
        word |= uint64(data[at + uint64(i)]) << uint64(8 * i)
    return word


@njit(nogil=True, cache=True)
def murmur3_bytes(data, start, length, seed):  # type: ignore[no-untyped-def]
    """First half of the hash of data[start : start + length]; data u8[], all numbers u64."""
    h1 = seed
    h2 = seed
    at = start
    for _ in range(length >> uint64(4)):
        h1 ^= _mix_k1(_load(data, at))
        h1 = (_rotl(h1, 27) + h2) * _FIVE + _M1
        h2 ^= _mix_k2(_load(data, at + _WORD))
        h2 = (_rotl(h2, 31) + h1) * _FIVE + _M2
        at += uint64(16)
    tail = length & uint64(15)
    if tail > _WORD:
        h2 ^= _mix_k2(_load_tail(data, at + _WORD, tail - _WORD))
        h1 ^= _mix_k1(_load(data, at))
    elif tail == _WORD:
        h1 ^= _mix_k1(_load(data, at))
    elif tail:
        h1 ^= _mix_k1(_load_tail(data, at, tail))
    return _finish(h1, h2, length)


@njit(nogil=True, cache=True)
def _hash_rows(data, width, seed, out):  # type: ignore[no-untyped-def]
    for row in range(out.shape[0]):
        out[row] = murmur3_bytes(data, uint64(row) * width, width, seed)


def content_hash(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.uint64]:
    """The 64-bit content hash of each vector, by which a row is recognised after its file was rewritten.

    `vectors` f32[N, D] as stored in the data file (not normalised) -> u64[N]: murmur3_x64_128's first half, seed 0,
    over the D * 4 little-endian bytes of the row. Equal bits, equal hash: 0.0 and -0.0 differ. Raises DimensionError on
    another shape or dtype.
    """
    if vectors.ndim != 2 or vectors.dtype != np.float32:
        raise DimensionError(f"content_hash takes f32[N, D], got {vectors.dtype}{list(vectors.shape)}")
    rows = np.ascontiguousarray(vectors, dtype="<f4")
    out = np.empty(rows.shape[0], np.uint64)
    with wrapping():
        _hash_rows(rows.reshape(-1).view(np.uint8), np.uint64(4 * rows.shape[1]), np.uint64(CONTENT_SEED), out)
    return out
