"""A random rotation that takes D log D steps: it spreads every vector evenly over all dimensions.

Three times, signs are drawn, each block of 128 dimensions is put through a Hadamard transform, and blocks are
interleaved. Source: N. Ailon, B. Chazelle, The Fast Johnson-Lindenstrauss Transform (2009); of three rounds, A. Andoni
et al., Practical and Optimal LSH for Angular Distance (2015).
"""

from collections.abc import Iterator

import numpy as np

from icepuffin.ann_kernels.arrays import F32, read_only
from icepuffin.ann_kernels.codes.code_sizes import HADAMARD
from icepuffin.ann_kernels.compilation import fast_inner_kernel, fast_kernel

ROUNDS = 3
_UNROLLED = 8
_MASK = 2**64 - 1


def signs(dims: int, seed: int) -> F32:
    """Signs f32[ROUNDS, D'], 1 or -1: the bits of SplitMix64's words, the lowest first; a bit that is set is -1."""
    words = np.array([word for _, word in zip(range(ROUNDS * dims // 64), _splitmix64(seed), strict=False)], np.uint64)
    bits = words[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    return read_only((1 - 2 * bits.astype(np.float32)).reshape(ROUNDS, dims))


def _splitmix64(seed: int) -> Iterator[int]:
    state = seed & _MASK
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        word = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        word = ((word ^ word >> 27) * 0x94D049BB133111EB) & _MASK
        yield word ^ word >> 31


def rotate(vectors: F32, center: F32, own_signs: F32) -> F32:
    """f32[n, D']: vectors f32[n, D] less a center f32[D], rotated; the dimensions beyond D count as 0."""
    out = np.empty((len(vectors), own_signs.shape[1]), np.float32)
    _rotate(read_only(vectors), read_only(center), own_signs, out)
    return out


def rotate_back(rotated: F32, center: F32, own_signs: F32) -> F32:
    """The inverse of `rotate`, but for rounding: f32[n, D]."""
    out = np.empty((len(rotated), len(center)), np.float32)
    _rotate_back(read_only(rotated), read_only(center), own_signs, out)
    return out


@fast_inner_kernel
def _transform(row: F32) -> None:
    """The Hadamard transform of each block of a row f32[D'], in place, unscaled."""
    for start in range(0, row.size, HADAMARD):
        half = HADAMARD // 2
        while half >= _UNROLLED:
            for first in range(np.uint64(start), np.uint64(start + HADAMARD), np.uint64(2 * half)):
                for i in range(first, first + np.uint64(half)):
                    a, b = row[i], row[i + np.uint64(half)]
                    row[i] = a + b
                    row[i + np.uint64(half)] = a - b
            half //= 2
    for start in range(0, row.size, _UNROLLED):  # its last three steps in registers
        part = row[start : start + _UNROLLED]
        a, b, c, d, e, f, g, h = part[0], part[1], part[2], part[3], part[4], part[5], part[6], part[7]
        a, b, c, d, e, f, g, h = a + e, b + f, c + g, d + h, a - e, b - f, c - g, d - h
        a, b, c, d, e, f, g, h = a + c, b + d, a - c, b - d, e + g, f + h, e - g, f - h
        part[0], part[1], part[2], part[3] = a + b, a - b, c + d, c - d
        part[4], part[5], part[6], part[7] = e + f, e - f, g + h, g - h


@fast_inner_kernel
def rotate_row(row: F32, own_signs: F32, scratch: F32) -> None:
    """Rotate a row f32[D'] in place; scratch f32[D']."""
    rounds, dims = own_signs.shape
    blocks = dims // HADAMARD
    scale = np.float32(HADAMARD**-0.5)
    for step in range(rounds):
        for d in range(dims):
            scratch[d] = row[d] * own_signs[step, d] * scale
        _transform(scratch)
        for block in range(np.uint64(blocks)):
            part = scratch[block * np.uint64(HADAMARD) :][:HADAMARD]
            for i in range(np.uint64(HADAMARD)):
                row[i * np.uint64(blocks) + block] = part[i]


@fast_kernel
def _rotate(vectors: F32, center: F32, own_signs: F32, out: F32) -> None:
    scratch = np.empty(own_signs.shape[1], np.float32)
    for index in range(vectors.shape[0]):
        row = out[index]
        row[:] = np.float32(0)
        for d in range(center.size):
            row[d] = vectors[index, d] - center[d]
        rotate_row(row, own_signs, scratch)


@fast_kernel
def _rotate_back(rotated: F32, center: F32, own_signs: F32, out: F32) -> None:
    rounds, dims = own_signs.shape
    blocks = dims // HADAMARD
    scale = np.float32(HADAMARD**-0.5)
    row, turned = np.empty(dims, np.float32), np.empty(dims, np.float32)
    for index in range(rotated.shape[0]):
        for d in range(dims):
            turned[d] = rotated[index, d]
        for back in range(rounds):
            for block in range(blocks):
                for i in range(HADAMARD):
                    row[block * HADAMARD + i] = turned[i * blocks + block]
            _transform(row)
            for d in range(dims):
                turned[d] = row[d] * own_signs[rounds - 1 - back, d] * scale
        for d in range(center.size):
            out[index, d] = turned[d] + center[d]
