"""The k nearest of each row among the columns of a leaf: one matrix product, then the k smallest of each row.

On CPUs with VNNI or AVX2, codes are multiplied as integers: the columns are packed once, and six rows at a time go
through them. Elsewhere BLAS multiplies the same integers as floats, which hold them exactly, so the results are the
same. Float vectors go through BLAS too; those results depend on the version of BLAS, but not on threads.

Keys are squared distances as int32 that sort as the distances do: for codes the integers, for floats their bits.
"""

from typing import Any, NamedTuple

import numpy as np

from icepuffin.ann_kernels.arrays import F32, I32, U16, AnyArray, Floats
from icepuffin.ann_kernels.compilation import inline_kernel, inner_kernel, kernel
from icepuffin.ann_kernels.distances.distance_computers import CodeSpace, Space
from icepuffin.ann_kernels.graphs.tie_order import tie_order
from icepuffin.ann_kernels.simd.bits import trailing_zeros
from icepuffin.ann_kernels.simd.codegen import LANES
from icepuffin.ann_kernels.simd.lane_selection import at_most, bound_of_smallest
from icepuffin.ann_kernels.simd.tiles import (
    HAS_TILES,
    STEPS_PER_QUAD,
    TILE_COLUMNS,
    TILE_ROWS,
    column_operand,
    row_operand,
    tile_products,
)

FAR = np.int32(2**31 - 1)
"""The key of no column"""
_NO_CODES = np.int32(-2139062144)
"""0x80808080: four codes that stand for zero, as the padding of rows does"""
_ROWS_PER_PRODUCT = 256
_EXACT_IN_F32 = 1_024
"""Dimensions up to which dot products of codes are exact in f32"""


class NearestColumns(NamedTuple):
    """The nearest columns of n rows, ascending."""

    indices: I32
    """Indices of columns, int32[n, k]; -1 where there are fewer"""
    keys: I32
    """int32[n, k]; FAR where there are fewer"""


def new_nearest(rows: int, k: int) -> NearestColumns:
    """Room for the k nearest columns of each row."""
    return NearestColumns(np.empty((rows, k), np.int32), np.empty((rows, k), np.int32))


def nearest_columns(space: Space, rows: I32, columns: I32, out: NearestColumns, *, same: bool) -> None:
    """Fill `out` with the k columns nearest to each row. Of equally near ones each row takes others (`tie_order`).

    `rows` int32[n] and `columns` int32[m] are node ids. With `same` they are equal, and no row is its own neighbour.
    """
    if isinstance(space, CodeSpace) and HAS_TILES:
        quads = space.codes.view(np.int32).reshape(len(space.norms), -1)
        _nearest_by_tiles(space, quads, rows, columns, same, out.indices, out.keys)
    else:
        nearest_by_blas(space, rows, columns, out, same=same)


def key_weights(space: Space, keys: I32) -> U16:
    """Keys as the upper half of a float's bits: enough to rank candidates, at half the memory."""
    bits = keys.astype(np.float32).view(np.int32) if isinstance(space, CodeSpace) else keys
    return (bits >> 16).astype(np.uint16)


# --------------------------------------------------------------------------------------------------------- tiles


@kernel
def _nearest_by_tiles(
    space: CodeSpace, quads: I32, rows: I32, columns: I32, same: bool, indices: I32, keys: I32
) -> None:
    """Fill indices and keys int32[n, k]; quads int32[N, P / 4] are the codes of the space, four to an integer."""
    norms, sums = space.norms, space.sums
    quad_count = _quads_of(quads, rows)
    steps = quad_count * STEPS_PER_QUAD
    width = (columns.size + TILE_COLUMNS - 1) // TILE_COLUMNS * TILE_COLUMNS
    packed = np.zeros(width * steps, np.int32)
    _pack_columns(quads, quad_count, columns, packed)
    packed_norms = np.full(width, FAR)
    for column in range(columns.size):
        packed_norms[column] = norms[columns[column]]
    packed_rows = np.zeros(steps * TILE_ROWS, np.int32)
    dots = np.empty(TILE_ROWS * width, np.int32)
    for first in range(0, rows.size, TILE_ROWS):
        count = min(TILE_ROWS, rows.size - first)
        for r in range(count):
            codes = quads[rows[first + r]]
            for step in range(steps):
                packed_rows[step * TILE_ROWS + r] = row_operand(codes[step // STEPS_PER_QUAD], step % STEPS_PER_QUAD)
        for start in range(0, width, TILE_COLUMNS):
            tile_products(packed_rows, 0, packed, start * steps, steps, dots, start, width)
        for r in range(count):
            node = rows[first + r]
            line = dots[r * width : (r + 1) * width]
            for j in range(line.size):
                line[j] = np.int32(packed_norms[j] - np.int32(2) * line[j])
            if same:
                line[first + r] = FAR
            _select_smallest(line, _first_column(node, columns.size), indices[first + r], keys[first + r])
            shift = np.int32(norms[node] + np.int32(256) * sums[node])  # columns are 128 too large in the products
            for index in range(indices.shape[1]):
                if indices[first + r, index] >= 0:
                    keys[first + r, index] += shift


@inner_kernel
def _quads_of(quads: I32, rows: I32) -> int:
    """Number of quads from the first to the last in which some row has a code; at least 1. The rest is padding."""
    quad_count: int = quads.shape[1]
    while quad_count > 1:
        for row in rows:
            if quads[row, quad_count - 1] != _NO_CODES:
                return quad_count
        quad_count -= 1
    return quad_count


@inner_kernel
def _pack_columns(quads: I32, quad_count: int, columns: I32, packed: I32) -> None:
    """Write the first `quad_count` quads of the columns as int32[tile, step, column of the tile], flat."""
    steps = quad_count * STEPS_PER_QUAD
    for column in range(columns.size):
        node = np.uint32(columns[column])  # unsigned: numba looks for negative indices otherwise
        index = np.uint64(column // TILE_COLUMNS * TILE_COLUMNS * steps + column % TILE_COLUMNS)
        for step in range(quad_count):
            quad = quads[node, np.uint64(step)]
            for part in range(STEPS_PER_QUAD):
                packed[index] = column_operand(quad, part)
                index += np.uint64(TILE_COLUMNS)


@inline_kernel
def _first_column(node: Any, columns: int) -> Any:
    """The column with which the order of a node's row begins: of equally near columns it takes those from there on."""
    return tie_order(node, 0) % columns


@inner_kernel
def _select_smallest(values: I32, first: int, indices: I32, keys: I32) -> None:
    """Write the smallest of `values` (a multiple of 16 keys; FAR: none) ascending into keys, with their indices.

    Ties go by index, from `first` on, and from 0 after the last.
    """
    k = indices.size
    bound = bound_of_smallest(values, 0, values.size, k) if k <= LANES else FAR
    indices[:] = -1
    keys[:] = FAR
    begin = first // LANES * LANES
    lanes_before = np.uint32((1 << (first - begin)) - 1)
    for step in range(0, values.size + LANES, LANES):  # the register of `first` twice: from it on, and up to it
        start = begin + step if begin + step < values.size else begin + step - values.size
        below = at_most(values, start, bound)
        if step == 0:
            below = below & ~lanes_before
        elif step == values.size:
            below = below & lanes_before
        while below:
            index = start + trailing_zeros(below)
            below = below & (below - np.uint32(1))
            value = values[index]
            if value < keys[k - 1]:
                rank = k - 1
                while rank > 0 and keys[rank - 1] > value:
                    keys[rank] = keys[rank - 1]
                    indices[rank] = indices[rank - 1]
                    rank -= 1
                keys[rank] = value
                indices[rank] = index


# ---------------------------------------------------------------------------------------------------------- BLAS


def nearest_by_blas(space: Space, rows: I32, columns: I32, out: NearestColumns, *, same: bool) -> None:
    """The same as `nearest_columns`, by a matrix product of floats.

    The caller holds BLAS to one thread: its own threads are busy already.
    """
    center = _center(space, columns)
    right, right_norms = _float_values(space, columns, center)
    products = np.empty((min(len(rows), _ROWS_PER_PRODUCT), len(columns)), right.dtype)
    line = np.full(len(columns) + -len(columns) % LANES, FAR)
    for start in range(0, len(rows), _ROWS_PER_PRODUCT):
        part = slice(start, min(start + _ROWS_PER_PRODUCT, len(rows)))
        left, left_norms = (right[part], right_norms[part]) if same else _float_values(space, rows[part], center)
        dots = np.dot(left, right.T, out=products[: len(left)])
        diagonal = start if same else -1
        part_out = NearestColumns(out.indices[part], out.keys[part])
        if isinstance(space, CodeSpace):
            _smallest_of_codes(dots, left_norms, right_norms, rows[part], diagonal, line, part_out)
        else:
            _smallest_of_floats(dots, left_norms, right_norms, rows[part], diagonal, line, part_out)


def _center(space: Space, nodes: I32) -> F32:
    """f32[D], subtracted from float vectors: of a large offset that all share, only rounding would be left."""
    if isinstance(space, CodeSpace) or not len(nodes):
        return np.zeros(1, np.float32)
    return np.asarray(space.vectors[nodes].mean(axis=0, dtype=np.float64), np.float32)


def _float_values(space: Space, nodes: I32, center: F32) -> tuple[Floats, AnyArray]:
    """(values [n, P] of nodes, in a float type that holds their products; squared norms [n])."""
    if isinstance(space, CodeSpace):
        codes = space.codes.reshape(len(space.norms), -1)[nodes]
        exact = np.float32 if codes.shape[1] <= _EXACT_IN_F32 else np.float64
        return np.asarray(codes, exact) - 128, space.norms[nodes]
    vectors = space.vectors[nodes] - center
    return vectors, np.einsum("ij,ij->i", vectors, vectors)


@kernel
def _smallest_of_codes(
    dots: Floats, row_norms: I32, column_norms: I32, rows: I32, diagonal: int, line: I32, out: NearestColumns
) -> None:
    indices, keys = out.indices, out.keys
    for r in range(dots.shape[0]):
        for j in range(dots.shape[1]):
            line[j] = np.int32(row_norms[r] + column_norms[j] - np.int32(2) * np.int32(dots[r, j]))
        if diagonal >= 0:
            line[diagonal + r] = FAR
        _select_smallest(line, _first_column(rows[r], dots.shape[1]), indices[r], keys[r])


@kernel
def _smallest_of_floats(
    dots: F32, row_norms: F32, column_norms: F32, rows: I32, diagonal: int, line: I32, out: NearestColumns
) -> None:
    indices, keys = out.indices, out.keys
    squared = line.view(np.float32)  # bits of floats that are not negative sort as the floats do
    for r in range(dots.shape[0]):
        for j in range(dots.shape[1]):
            squared[j] = max(row_norms[r] + column_norms[j] - np.float32(2) * dots[r, j], np.float32(0))
        if diagonal >= 0:
            line[diagonal + r] = FAR
        _select_smallest(line, _first_column(rows[r], dots.shape[1]), indices[r], keys[r])
