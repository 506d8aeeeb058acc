"""The k nearest of each row among the columns of a leaf: one matrix product, then the k smallest of each row.

On CPUs with VNNI, codes are multiplied as bytes: the columns are packed once, six rows at a time go through them.
Elsewhere BLAS multiplies the same integers as floats, which hold them exactly, so that the results are the same. Float
vectors go through BLAS too; those results hang on its version, but not on threads.

Keys are squared distances as int32 that sort as the distances do: of codes the integers, of floats their bits.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels.distance_computers import CodeSpace
from icepuffin.ann_kernels.graph import Space
from icepuffin.ann_kernels.simd import (
    HAS_VNNI,
    LANES,
    TILE_PANELS,
    TILE_ROWS,
    at_most,
    bound_of_smallest,
    lowest_bit,
    vnni_tile,
)

FAR = np.int32(2**31 - 1)
_TILE_COLUMNS = LANES * TILE_PANELS
_SIGN = np.int32(-2139062144)  # 0x80808080: makes four unsigned codes signed ones
_ROWS_A_PRODUCT = 256
_EXACT_IN_F32 = 1_024
"""Dimensions up to which dot products of codes are exact in f32"""
Ints = npt.NDArray[np.int32]


def nearest(space: Space, rows: Ints, columns: Ints, near: Ints, keys: Ints, *, same: bool) -> None:
    """The places of each row's nearest columns into near int32[n, k], ascending; their keys into keys int32[n, k].

    `rows` and `columns` are node ids; -1 and FAR where there are fewer than k. With `same` they are equal, and no row
    is its own neighbour. Ties go to the smaller place.
    """
    if isinstance(space, CodeSpace) and HAS_VNNI:
        _nearest_by_tiles(_quads(space), space.norms, space.sums, rows, columns, same, near, keys)
    else:
        _nearest_by_blas(space, rows, columns, same, near, keys)


def key_weights(space: Space, keys: Ints) -> npt.NDArray[np.uint16]:
    """Keys as the upper half of a float's bits: enough to rank candidates, at half the memory."""
    bits = keys.astype(np.float32).view(np.int32) if isinstance(space, CodeSpace) else keys
    return (bits >> 16).astype(np.uint16)


def _quads(space: CodeSpace) -> Ints:
    return space.codes.view(np.int32).reshape(len(space.norms), -1)


# ---------------------------------------------------------------------------------------------------------- VNNI


@njit(nogil=True, cache=True)
def _nearest_by_tiles(quads, norms, sums, rows, columns, same, near, keys):  # type: ignore[no-untyped-def]
    steps = quads.shape[1]
    width = (columns.size + _TILE_COLUMNS - 1) // _TILE_COLUMNS * _TILE_COLUMNS
    packed = np.empty(width * steps, np.int32)
    column_norms = np.empty(width, np.int32)
    _pack_columns(quads, norms, columns, packed, column_norms)
    packed_rows = np.zeros(steps * TILE_ROWS, np.int32)
    dots = np.empty((TILE_ROWS, width), np.int32)
    for first in range(0, rows.size, TILE_ROWS):
        count = min(TILE_ROWS, rows.size - first)
        for r in range(count):
            for step in range(steps):
                packed_rows[step * TILE_ROWS + r] = quads[rows[first + r], step] ^ _SIGN
        for start in range(0, width, _TILE_COLUMNS):
            vnni_tile(packed_rows, 0, packed, start * steps, steps, dots.reshape(-1), start, width)
        for r in range(count):
            node = rows[first + r]
            for j in range(width):
                dots[r, j] = np.int32(column_norms[j] - np.int32(2) * dots[r, j])
            if same:
                dots[r, first + r] = FAR
            _smallest(dots[r], near[first + r], keys[first + r])
            shift = np.int32(norms[node] + np.int32(256) * sums[node])  # columns are 128 too large in the products
            for place in range(near.shape[1]):
                if near[first + r, place] >= 0:
                    keys[first + r, place] += shift


@njit(nogil=True, cache=True)
def _pack_columns(quads, norms, columns, packed, column_norms):  # type: ignore[no-untyped-def]
    """Codes of the columns as int32[tile, step, column of the tile], padded by far ones."""
    steps = quads.shape[1]
    for column in range(column_norms.size):
        base = column // _TILE_COLUMNS * _TILE_COLUMNS * steps + column % _TILE_COLUMNS
        inside = column < columns.size
        column_norms[column] = norms[columns[column]] if inside else FAR
        for step in range(steps):
            packed[base + step * _TILE_COLUMNS] = quads[columns[column], step] if inside else 0


@njit(nogil=True, cache=True)
def _smallest(values, near, keys):  # type: ignore[no-untyped-def]
    """The smallest of `values` (a multiple of 16 of them; FAR: none) ascending into keys, their places into near."""
    k = near.size
    bound = bound_of_smallest(values, 0, values.size, k) if k <= LANES else FAR
    near[:] = -1
    keys[:] = FAR
    for start in range(0, values.size, LANES):
        below = at_most(values, start, bound)
        while below:
            place = start + lowest_bit(below)
            below = below & (below - np.uint32(1))
            value = values[place]
            if value < keys[k - 1]:
                at = k - 1
                while at > 0 and keys[at - 1] > value:
                    keys[at] = keys[at - 1]
                    near[at] = near[at - 1]
                    at -= 1
                keys[at] = value
                near[at] = place


# ---------------------------------------------------------------------------------------------------------- BLAS


def _nearest_by_blas(space: Space, rows: Ints, columns: Ints, same: bool, near: Ints, keys: Ints) -> None:
    """BLAS must be held to one thread: the caller's threads are busy already."""
    middle = _middle(space, columns)
    right, right_norms = _values(space, columns, middle)
    room = np.empty((min(len(rows), _ROWS_A_PRODUCT), len(columns)), right.dtype)
    line = np.full(len(columns) + -len(columns) % LANES, FAR)
    for start in range(0, len(rows), _ROWS_A_PRODUCT):
        part = slice(start, min(start + _ROWS_A_PRODUCT, len(rows)))
        left, left_norms = (right[part], right_norms[part]) if same else _values(space, rows[part], middle)
        dots = np.dot(left, right.T, out=room[: len(left)])
        own = start if same else -1
        if isinstance(space, CodeSpace):
            _smallest_of_codes(dots, left_norms, right_norms, own, line, near[part], keys[part])
        else:
            _smallest_of_floats(dots, left_norms, right_norms, own, line, near[part], keys[part])


def _middle(space: Space, nodes: Ints) -> npt.NDArray[np.float32]:
    """f32[D]: what floats are moved by, as an offset that all share would leave of their distances only rounding."""
    if isinstance(space, CodeSpace) or not len(nodes):
        return np.zeros(1, np.float32)
    return np.asarray(space.vectors[nodes].mean(axis=0, dtype=np.float64), np.float32)


def _values(space: Space, nodes: Ints, middle: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """(values [n, P] of nodes, in a float type that holds their products; norms)."""
    if isinstance(space, CodeSpace):
        codes = space.codes.reshape(len(space.norms), -1)[nodes]
        exact = np.float32 if codes.shape[1] <= _EXACT_IN_F32 else np.float64
        return np.asarray(codes, exact) - 128, space.norms[nodes]
    vectors = space.vectors[nodes] - middle
    return vectors, np.einsum("ij,ij->i", vectors, vectors)


@njit(nogil=True, cache=True)
def _smallest_of_codes(dots, row_norms, column_norms, own, line, near, keys):  # type: ignore[no-untyped-def]
    for r in range(dots.shape[0]):
        for j in range(dots.shape[1]):
            line[j] = np.int32(row_norms[r] + column_norms[j] - np.int32(2) * np.int32(dots[r, j]))
        if own >= 0:
            line[own + r] = FAR
        _smallest(line, near[r], keys[r])


@njit(nogil=True, cache=True)
def _smallest_of_floats(dots, row_norms, column_norms, own, line, near, keys):  # type: ignore[no-untyped-def]
    bits = np.empty(dots.shape[1], np.float32)
    for r in range(dots.shape[0]):
        for j in range(dots.shape[1]):
            bits[j] = max(row_norms[r] + column_norms[j] - np.float32(2) * dots[r, j], np.float32(0))
        line[: bits.size] = bits.view(np.int32)
        if own >= 0:
            line[own + r] = FAR
        _smallest(line, near[r], keys[r])
