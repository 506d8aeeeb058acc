"""Ruling out most of some vectors by the halves of their codes, which are read first."""

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I8, I32, U8, U32
from icepuffin.ann_kernels.candidate_list import new_candidates
from icepuffin.ann_kernels.coarse_codes import CENTER, STEPS, CoarseTable, arranged
from icepuffin.ann_kernels.coded_distances import SLACK, CodedQuery, bound_reached, bounds_within
from icepuffin.ann_kernels.compilation import inline_kernel, kernel
from icepuffin.ann_kernels.exact_distances import exact_distance
from icepuffin.ann_kernels.scalar_quantization import ZERO
from icepuffin.ann_kernels.simd.byte_products import BLOCK, four_bit_dot
from icepuffin.ann_kernels.simd.prefetching import LINE, prefetch
from icepuffin.ann_kernels.simd.sort_keys import insert_key, key_node, sort_key

LINES_AHEAD = 64
"""Cache lines between the row that is multiplied and the one that is requested from memory"""
ROWS_AT_ONCE = 1_024


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
    own, arrangement = coarse_query(query), arranged(code, exact.size)
    least, keys = np.empty(rows.size, np.float32), new_candidates(k)
    most = np.empty(ROWS_AT_ONCE, np.float32)
    products, squares = np.empty(ROWS_AT_ONCE, np.int32), np.empty(ROWS_AT_ONCE, np.int32)
    errors = np.empty(ROWS_AT_ONCE, np.float32)
    for first in range(0, rows.size, ROWS_AT_ONCE):
        size = min(ROWS_AT_ONCE, rows.size - first)
        _read(coarse.halves, coarse.squares, coarse.errors, arrangement, rows, first, products[:size], squares, errors)
        _bounds_of(own, products[:size], squares, errors, least[first : first + size], most)
        for place in range(size):
            key = sort_key(most[place], np.int32(first + place))
            if key < keys[k - 1]:
                insert_key(keys, k - 1, key)
    farthest = -np.inf
    for key in keys[:k]:
        farthest = max(farthest, exact_distance(vectors, rows[key_node(key)], exact, metric, False))
    limit, count = bound_reached(farthest, metric), 0
    for place in range(rows.size):  # branch-free: written first and counted after
        kept[np.uint32(count)] = rows[place]
        count += int(not least[place] > limit)  # what is no number rules out nothing
    return count


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


@kernel
def _read(
    halves: U8, squares: I32, errors: F32, query: I8, rows: U32, first: int, products: I32, norms: I32, reaches: F32
) -> None:
    """The products of a query with some of the rows, from the `first` on, and what is known of these, in their order.

    Nothing else is done here, so that reading the rows, which is most of the time, waits for nothing else.
    """
    width = query.size // 2
    lines, terms = width // LINE, width // 4
    ahead = max(1, LINES_AHEAD // lines)
    for place in range(products.size):
        if first + place + ahead < rows.size:
            following = np.intp(rows[first + place + ahead])
            for line in range(lines):
                prefetch(halves, following * width + line * LINE)
        row = np.intp(rows[first + place])
        products[place] = four_bit_dot(halves, row * width, query, np.intp(0), np.intp(width // BLOCK))
        norms[place] = squares[row * terms + (terms - 2)]
        reaches[place] = errors[row * terms + (terms - 1)]


@kernel
def _bounds_of(query: CodedQuery, products: I32, squares: I32, errors: F32, least: F32, most: F32) -> None:
    """Lower and upper bounds of the distances of rows, f32[n]; rounding to f32 makes no upper bound too small."""
    for place in range(products.size):
        low, high = bounds_within(query, products[place], squares[place], np.float64(errors[place]))
        least[place], most[place] = low, high + SLACK * abs(high)
