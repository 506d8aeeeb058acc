"""Ruling out most of some vectors by the halves of their codes, which are read first."""

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I8, I32, I64, U32
from icepuffin.ann_kernels.codes.coarse_codes import CENTER, STEPS, CoarseTable, arranged
from icepuffin.ann_kernels.codes.coded_distances import CodedQuery, bound_reached, bounds_within
from icepuffin.ann_kernels.codes.scalar_quantization import ZERO
from icepuffin.ann_kernels.compilation import inline_kernel, inner_kernel, kernel
from icepuffin.ann_kernels.distances.candidate_list import new_candidates
from icepuffin.ann_kernels.distances.exact_distances import exact_distance
from icepuffin.ann_kernels.simd.byte_products import four_bit_dot
from icepuffin.ann_kernels.simd.prefetching import LINE, prefetch_lines
from icepuffin.ann_kernels.simd.sort_keys import NO_KEY, insert_key, key_distance, key_node, sort_key

LINES_AHEAD = 64
"""Cache lines between the row that is multiplied and the one that is requested from memory"""
ROWS_AT_ONCE = 1_024
_LANES = 64
"""Rows that are judged at once before they are one by one"""


@kernel
def keep_nearest(
    coarse: CoarseTable,
    query: CodedQuery,
    code: I8,
    vectors: F32,
    exact: F64,
    metric: int,
    rows: U32,
    k: int,
    kept: U32,
) -> int:
    """Keep the rows, of u32[n], that may be among the k nearest, into u32[n]; k is at most n. Returns their number.

    `query` and its `code` are those of `exact`, f64[D]. The k vectors that seem nearest are compared with it: no row is
    among the nearest whose lower bound is above all of these distances.
    """
    coarse_code, arrangement = coarse_query(query), arranged(code, exact.size)[: 2 * coarse.width]
    least, keys, limit = np.empty(rows.size, np.float32), new_candidates(k), np.float32(np.inf)
    guesses = np.empty(ROWS_AT_ONCE, np.float32)
    products, squares = np.empty(ROWS_AT_ONCE, np.int32), np.empty(ROWS_AT_ONCE, np.int32)
    errors = np.empty(ROWS_AT_ONCE, np.float32)
    for first in range(0, rows.size, ROWS_AT_ONCE):
        size = min(ROWS_AT_ONCE, rows.size - first)
        _read(coarse, arrangement, rows, first, products[:size], squares, errors)
        _bound(coarse_code, products[:size], squares, errors, least[first : first + size], guesses)
        limit = _choose(guesses[:size], first, keys, k, limit)
    if keys[k - 1] == NO_KEY:  # of too many rows nothing is known
        for index in range(rows.size):
            kept[index] = rows[index]
        return rows.size
    farthest = -np.inf
    for key in keys[:k]:
        farthest = max(farthest, exact_distance(vectors, np.int64(rows[key_node(key)]), exact, metric))
    return _keep(rows, least, bound_reached(farthest, metric), kept)


@inline_kernel
def coarse_query(query: CodedQuery) -> CodedQuery:
    """The same query, for products of its code with halves of codes, and errors that are lengths."""
    return CodedQuery(
        query.inner,
        query.norm,
        query.squared_scale / 4,
        1.0,
        CENTER * (query.unsigned / ZERO),
        STEPS * query.factor,
        query.error,
        query.length,
        query.shift,
        query.noise,
    )


@inner_kernel
def _read(coarse: CoarseTable, query: I8, rows: U32, first: int, products: I32, norms: I32, reaches: F32) -> None:
    """The products of a query with some of the rows, from the `first` on, and what is known of these, in their order.

    Nothing else is done here, so that reading the rows, which is most of the time, waits for nothing else.
    """
    lines = query.size // (2 * LINE)
    if lines == 1:  # LLVM makes faster code where it knows the number
        _read_lines(coarse, query, rows, first, 1, products, norms, reaches)
    else:
        _read_lines(coarse, query, rows, first, lines, products, norms, reaches)


@inline_kernel
def _read_lines(
    coarse: CoarseTable,
    query: I8,
    rows: U32,
    first: int,
    lines: int,
    products: I32,
    norms: I32,
    reaches: F32,
) -> None:
    ahead = max(1, LINES_AHEAD // lines)
    for index in range(products.size):
        if first + index + ahead < rows.size:
            following = np.intp(rows[first + index + ahead]) * lines
            prefetch_lines(coarse.halves, following * LINE, lines * LINE)
        row = np.intp(rows[first + index])
        products[index] = four_bit_dot(coarse.halves, row * lines * LINE, query, np.intp(0), np.intp(lines))
        norms[index], reaches[index] = coarse.squares[row * coarse.step], coarse.errors[row * coarse.step]


@kernel
def _bound(query: CodedQuery, products: I32, squares: I32, errors: F32, least: F32, guesses: F32) -> None:
    """Lower bounds of the distances of rows, and guesses of these f32[n]; inf where nothing is known."""
    weight = query.length if query.inner else 1.0
    for index in range(products.size):
        error = np.float64(errors[index])
        low, _ = bounds_within(query, products[index], squares[index], error)
        least[index] = low
        guesses[index] = low + weight * error if error < np.inf else np.inf


@kernel
def _choose(guesses: F32, first: int, keys: I64, k: int, limit: np.float32) -> np.float32:
    """Put the rows of smallest guesses, whose numbers begin with `first`, among the k keys. `limit`: the largest guess
    of these, inf while there are fewer. Returns that of now.
    """
    for start in range(0, guesses.size, _LANES):
        part, count = guesses[start : start + _LANES], 0
        for guess in part:  # LLVM makes vectors of this, and few parts have one
            count += int(guess < limit)
        if count == 0:
            continue
        for index in range(part.size):
            if part[index] < limit:
                insert_key(keys, k - 1, sort_key(part[index], np.int32(first + start + index)))
                if keys[k - 1] != NO_KEY:
                    limit = key_distance(keys[k - 1])
    return limit


@kernel
def _keep(rows: U32, least: F32, limit: np.float32, kept: U32) -> int:
    """Keep the rows u32[n] whose lower bounds f32[n] are not above a limit, into u32[n]. Returns their number."""
    kept_rows = 0
    for start in range(0, rows.size, _LANES):
        part, count = least[start : start + _LANES], 0
        for bound in part:
            count += int(not bound > limit)  # what is no number rules out nothing
        if count == 0:
            continue
        for index in range(part.size):
            if not part[index] > limit:
                kept[kept_rows] = rows[start + index]
                kept_rows += 1
    return kept_rows
