"""Hashes of rows over several columns, folded in column by column: murmur3 of the hash so far and that of the value.

A null has a hash of its own, 0. Kernels as in `hashing`.
"""

from typing import Any

import numpy as np
from numba import uint64

from icepuffin.ann_kernels.arrays import U8, U64, AnyArray, Bool, read_only
from icepuffin.ann_kernels.compilation import inline_kernel, kernel
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.sketches.hashing import murmur3_bytes, murmur3_word, murmur3_words, wrapping

_SEED = np.uint64(9001)
_NULL = np.uint64(0)
_ALL: Bool = np.empty(0, np.bool_)


@inline_kernel
def _folded(row: Any, value: Any) -> Any:
    return murmur3_words(row, value, uint64(16), _SEED)


@kernel
def _fold_words(words: U64, present: Bool, hashes: U64) -> None:
    for i in range(hashes.shape[0]):
        value = murmur3_word(words[i], uint64(8), _SEED)
        hashes[i] = _folded(hashes[i], value if present.shape[0] == 0 or present[i] else _NULL)


@kernel
def _fold_bytes(offsets: AnyArray, data: U8, present: Bool, hashes: U64) -> None:
    for i in range(hashes.shape[0]):
        value = _NULL
        if present.shape[0] == 0 or present[i]:
            begin = uint64(offsets[i])
            value = murmur3_bytes(data, begin, uint64(offsets[i + 1]) - begin, _SEED)
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
    """Compile every kernel of this module into numba's cache, for the array types that the product uses."""
    hashes = np.zeros(1, np.uint64)
    fold_words(hashes, hashes)
    for offsets in (np.int32, np.int64):
        fold_bytes(hashes, np.zeros(2, offsets), np.zeros(0, np.uint8))
