"""The nearest of some vectors, exactly, by codes first: a sixth of the bytes are read, or less.

Halves of one-byte codes are enough to leave most vectors out, and their codes most others. The few that remain are
compared as they are, in float64.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from icepuffin.ann_kernels.allocation import Allocate, in_memory
from icepuffin.ann_kernels.arrays import F32, F64, I8, I32, I64, U8, U32, read_only
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.codes import coarse_codes
from icepuffin.ann_kernels.codes.coarse_codes import CoarseTable
from icepuffin.ann_kernels.codes.coded_bounds import ROUNDING
from icepuffin.ann_kernels.codes.coded_distances import (
    SLACK,
    STEP,
    UNBOUNDED,
    CodedQuery,
    CodeTable,
    bound_reached,
    coded_query,
    distance_bounds,
)
from icepuffin.ann_kernels.codes.scalar_quantization import ZERO, ScalarCodes
from icepuffin.ann_kernels.compilation import inner_kernel, kernel
from icepuffin.ann_kernels.distances.candidate_list import new_candidates
from icepuffin.ann_kernels.distances.coarse_comparison import LINES_AHEAD, ROWS_AT_ONCE, keep_nearest
from icepuffin.ann_kernels.distances.exact_distances import INNER_PRODUCT, exact_distance
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.parallel import for_each
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ann_kernels.simd.byte_products import BLOCK, dot
from icepuffin.ann_kernels.simd.prefetching import LINE, prefetch, prefetch_lines, prefetch_row
from icepuffin.ann_kernels.simd.sort_keys import insert_key, key_distance, sort_key

_BOUNDED = 0.998
"""Share of the codes whose errors are told apart; the others' vectors are always read"""
ROWS_AHEAD = 12
"""Vectors between the one that is compared and the one that is requested from memory"""
_MIN_AHEAD = 8
_ROWS_PER_TASK = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class CodeErrors:
    """How far each vector is from what its code stands for, at most."""

    steps: U8
    """u8[N]: in steps, rounded up; UNBOUNDED where it is farther"""
    step: float
    """Length of one step"""

    @classmethod
    def from_codes(
        cls, codes: ScalarCodes, vectors: F32, *, threads: int = 1, allocate: Allocate = in_memory
    ) -> "CodeErrors":
        """The errors of the codes of vectors f32[N, D]. Memory beside the array: 16 bytes per vector."""
        errors = np.empty(len(vectors))

        def fill(start: int) -> None:
            rows = slice(start, start + _ROWS_PER_TASK)
            width = codes.row_bytes
            task_codes = codes.space.codes[start * width : (start + _ROWS_PER_TASK) * width]
            _fill_errors(read_only(vectors[rows]), read_only(task_codes), codes.offset, codes.scale, errors[rows])

        for_each(fill, range(0, len(vectors), _ROWS_PER_TASK), threads=threads)
        bounded = int(_BOUNDED * len(errors))
        widest = float(np.partition(errors, bounded)[bounded]) if len(errors) else 0.0
        # a little longer, so that rounding up does not leave out the rows with just that error
        step = max(widest * (1 + SLACK) / (UNBOUNDED - 1), float(np.finfo(np.float64).tiny))
        steps = allocate(errors.shape, np.uint8)
        for start in range(0, len(errors), _ROWS_PER_TASK):
            rows = slice(start, start + _ROWS_PER_TASK)
            steps[rows] = np.minimum(np.ceil(errors[rows] / step * (1 + ROUNDING)), UNBOUNDED)
        return cls(steps, step)

    def farthest(self, rows: slice) -> F64:
        """The errors of some rows, f64[n]; inf where they are unknown."""
        steps = self.steps[rows]
        return np.where(steps == UNBOUNDED, np.inf, self.step * steps.astype(np.float64))


@dataclass(frozen=True, eq=False)
class CodedVectors:
    """Vectors f32[N, D], prepared for a metric, with their codes. Thread-safe."""

    vectors: F32
    codes: ScalarCodes
    earlier_errors: CodeErrors | None = None
    """Errors of an earlier reader of the same vectors: finding them reads all vectors"""
    earlier_halves: U8 | None = None
    """Halves of the codes, of that earlier reader"""
    threads: int = 1
    scans: bool = False
    """Whether most uses compare most rows, in order"""
    allocate: Allocate = in_memory
    """Function that gives the arrays of errors and halves that are made"""

    @cached_property
    def errors(self) -> CodeErrors:
        """Errors of the codes."""
        return self.earlier_errors or CodeErrors.from_codes(
            self.codes, self.vectors, threads=self.threads, allocate=self.allocate
        )

    @cached_property
    def table(self) -> CodeTable:
        """The codes, as kernels take them. The first use finds the errors."""
        space, errors = self.codes.space, self.errors
        return CodeTable(
            read_only(space.codes),
            read_only(space.norms),
            read_only(self.codes.offset),
            self.codes.scale,
            read_only(errors.steps),
            errors.step,
        )

    @cached_property
    def halves(self) -> U8:
        """The halves of the codes, as `coarse_codes.encode` makes them."""
        return self._encoded() if self.earlier_halves is None else self.earlier_halves

    def _encoded(self) -> U8:
        (count, dims), codes = self.vectors.shape, self.codes
        by_row = codes.space.codes.reshape(count, -1)
        return coarse_codes.encode(
            by_row, dims, codes.scale, self.errors.farthest, threads=self.threads, allocate=self.allocate
        )

    @cached_property
    def coarse(self) -> CoarseTable:
        """The halves, as kernels take them."""
        dims = self.vectors.shape[1]
        return CoarseTable.of_scan(self._encoded(), dims) if self.scans else CoarseTable.from_rows(self.halves, dims)

    def nearest(self, query: F64, k: int, metric: Metric, live: Bitmap) -> tuple[I64, F64]:
        """(rows int64[n], reported distances f64[n]) of all that are no farther than the k-th nearest, in any order.

        `query` f64[D] prepared; `live`: the rows to compare.
        """
        return _nearest(
            self.table, self.coarse, self._vectors, read_only(query), metric.code, read_only(live.rows()), k
        )

    @cached_property
    def _vectors(self) -> F32:
        return read_only(self.vectors)


@kernel
def _fill_errors(vectors: F32, codes: U8, offset: F32, scale: float, errors: F64) -> None:
    """The distance f64[n] of vectors f32[n, D] from what codes u8[n * P] stand for, at least."""
    rows, dims = vectors.shape
    width = codes.size // max(1, rows)
    shift = 0.0
    for d in range(dims):
        shift += np.float64(offset[d]) ** 2
    for row in range(rows):
        row_codes = codes[row * width : (row + 1) * width]
        total, length = 0.0, 0.0
        for d in range(dims):
            coded = scale * (np.float64(row_codes[d]) - ZERO)
            gap = np.float64(vectors[row, d]) - np.float64(offset[d]) - coded
            total += gap * gap
            length += coded * coded
        error = np.sqrt(total)
        errors[row] = error + (ROUNDING + dims * STEP) * (error + np.sqrt(shift) + np.sqrt(length))


@inner_kernel
def _read_codes(
    codes: U8, norms: I32, errors: U8, code: I8, rows: U32, first: Any, products: I32, squares: I32, steps: U8
) -> Any:
    """The products of a code with those of rows[first:], what is known of these, in their order. Returns their number.

    Nothing else is done here, so that reading the codes, which is most of the time, waits for nothing else.
    """
    width = code.size
    lines = width // LINE
    ahead = max(_MIN_AHEAD, LINES_AHEAD // lines)
    count = min(products.size, rows.size - first)
    for index in range(count):
        if first + index + ahead < rows.size:
            following = np.intp(rows[first + index + ahead])
            prefetch_lines(codes, following * width, width)
            prefetch(norms, following)
            prefetch(errors, following)
        row = np.intp(rows[first + index])
        products[index] = dot(codes, row * width, code, np.intp(0), np.intp(width // BLOCK))
        squares[index] = norms[row]
        steps[index] = errors[row]
    return count


@inner_kernel
def _bounds_of(query: CodedQuery, products: I32, squares: I32, steps: U8, least: F32, most: F32) -> None:
    """Lower and upper bounds of the distances of rows, f32[n]; rounding to f32 makes no upper bound too small."""
    for index in range(products.size):
        low, high = distance_bounds(query, products[index], squares[index], steps[index])
        least[index], most[index] = low, high + SLACK * abs(high)


@inner_kernel
def _may_be_near(
    codes: U8, norms: I32, errors: U8, query: CodedQuery, code: I8, rows: U32, k: int, candidates: I32, least: F32
) -> int:
    """Find the rows, of u32[n], that may be among the k nearest: into `candidates` int32[n], and lower bounds of
    their distances into f32[n].

    Returns their number.
    """
    keys = new_candidates(k)
    products, squares = np.empty(ROWS_AT_ONCE, np.int32), np.empty(ROWS_AT_ONCE, np.int32)
    steps = np.empty(ROWS_AT_ONCE, np.uint8)
    lows, highs = np.empty(ROWS_AT_ONCE, np.float32), np.empty(ROWS_AT_ONCE, np.float32)
    limit, count, first = np.float32(np.inf), 0, np.int64(0)  # numba compiles a kernel anew for a constant
    while first < rows.size:
        size = _read_codes(codes, norms, errors, code, rows, first, products, squares, steps)
        _bounds_of(query, products[:size], squares, steps, lows, highs)
        for index in range(size):
            if not lows[index] > limit:  # what is no number rules out nothing
                candidates[count], least[count] = rows[first + index], lows[index]
                key = sort_key(highs[index], np.int32(count))
                count += 1
                if key < keys[k - 1]:
                    insert_key(keys, k - 1, key)
                    if count >= k:
                        limit = key_distance(keys[k - 1])
        first += size
    kept = 0
    for index in range(count):
        if not least[index] > limit:
            candidates[kept], least[kept] = candidates[index], least[index]
            kept += 1
    return kept


@kernel
def _nearest(
    coded: CodeTable, coarse: CoarseTable, vectors: F32, query: F64, metric: int, rows: U32, k: int
) -> tuple[I64, F64]:
    """The rows, of u32[n], that are no farther than the k-th nearest, and their distances."""
    k = min(k, rows.size)
    if k == 0:
        return np.empty(0, np.int64), np.empty(0)
    code = np.zeros(coded.codes.size // coded.norms.size, np.int8)
    code_query = coded_query(query, coded, metric == INNER_PRODUCT, code)
    kept_rows = np.empty(rows.size, np.uint32)
    rows = kept_rows[: keep_nearest(coarse, code_query, code, vectors, query, metric, rows, k, kept_rows)]
    candidates, least = np.empty(rows.size, np.int32), np.empty(rows.size, np.float32)
    count = _may_be_near(coded.codes, coded.norms, coded.errors, code_query, code, rows, k, candidates, least)
    distances, best = np.empty(count), np.full(k, np.inf)
    for index in range(count):
        if index + ROWS_AHEAD < count:
            prefetch_row(vectors, candidates[index + ROWS_AHEAD])
        distances[index] = np.inf
        if not least[index] > bound_reached(best[k - 1], metric):
            distances[index] = exact_distance(vectors, np.int64(candidates[index]), query, metric)
            keep_smallest(distances[index], best)
    nodes, kept = np.empty(count, np.int64), 0
    for index in range(count):
        if distances[index] <= best[k - 1]:
            nodes[kept], distances[kept] = candidates[index], distances[index]
            kept += 1
    return nodes[:kept].copy(), distances[:kept].copy()


@inner_kernel
def keep_smallest(value: float, best: F64) -> None:
    """Put a number among the smallest so far, f64[k] ascending."""
    index = best.size - 1
    if value >= best[index]:
        return
    while index > 0 and best[index - 1] > value:
        best[index] = best[index - 1]
        index -= 1
    best[index] = value
