"""Codes of 4, 5 or 8 bits per dimension by which vectors are ranked without the vectors: extended RaBitQ.

A vector less the center, rotated, is r. Its code c stands for the direction c - (2^B - 1) / 2 =: v, on a grid whose
width is the one of some that brings v nearest to the direction of r. With the factor f = |r|^2 / (v r), the rest
e = f v - r is orthogonal to r. So a product with a query q, estimated as f (v q), is wrong by e times the part of q
that is orthogonal to r. That part is no longer than q is far from r. In a random rotation e points anywhere: the error
has the mean 0 and the standard deviation |e| / sqrt(D' - 1) times that length, in D' dimensions.

Source: J. Gao et al., Practical and Asymptotically Optimal Quantization of High-Dimensional Vectors in Euclidean Space
for Approximate Nearest Neighbor Search (SIGMOD 2025). There the whole query counts in the error, not its distance.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from icepuffin.ann_kernels.allocation import in_memory
from icepuffin.ann_kernels.arrays import F32, F64, I8, I64, U8, read_only
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.codes.code_sizes import MAX_ROTATED_DIMS, MIN_ROTATED_DIMS, ROTATED_BITS, rotated_dims
from icepuffin.ann_kernels.codes.rotation import rotate, rotate_back, rotate_row, signs
from icepuffin.ann_kernels.codes.scalar_quantization import LIMIT, ROWS_PER_TASK
from icepuffin.ann_kernels.compilation import fast_inner_kernel, fast_kernel, inline_kernel
from icepuffin.ann_kernels.distances.distance_computers import CENTER, RotatedQueries
from icepuffin.ann_kernels.errors import DimensionError, KernelError
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.parallel import for_each
from icepuffin.ann_kernels.simd.byte_products import BLOCK

DEVIATIONS = 5.0
"""Standard deviations of the error within which a distance most likely lies: but for one of two million where errors
are normal, which they are not in few dimensions of few values"""
NORM, WALK_FACTOR, FACTOR, ERROR = range(4)
"""Columns of `RotatedCodes.terms`"""
_STEPS = {4: 0.3352, 5: 0.1881, 8: 0.0308}
"""Width of the grid in standard deviations, where a normal distribution has the least squared error (J. Max, Quantizing
for Minimum Distortion, 1960, table II; of 8 bits, extrapolated)"""
_WIDTHS = tuple(0.70 + 0.05 * step for step in range(14))
"""Widths of the grid that are tried for each vector, relative to that"""
_MEDIAN_ROWS = 1024
"""Vectors of which the median is taken, about"""
_FAR = 4.0
"""Distance from the median, in median distances, from which on a vector does not count in the center"""
_ONES = 16
"""Bytes that hold a bit of each of 128 dimensions: byte i has those of i, i + 16, i + 32, .., the lowest first"""
_MIN_SQUARE = 2.0**-120
"""Square of a length up to which a vector counts as the center: products with it stay in float's range"""


@dataclass(frozen=True, slots=True, eq=False)
class RankingQueries:
    """Q queries in a rotation, as they are and as bytes."""

    vectors: F32
    """f32[Q, D'], less the center but for inner products, divided by units: so no sum of products leaves float's range
    """
    shifts: F64
    """f64[Q, 3]: their squared lengths, or minus their products with the center; the sums of `vectors`; and the units,
    powers of two
    """
    inner: bool
    """Whether for inner products"""
    walked: RotatedQueries
    """The queries as bytes, by which a walk measures from them with the highest bits of codes: squared L2, but for a
    constant per query, or minus the product in units, but for that with the center
    """


@dataclass(frozen=True, eq=False)
class RotatedCodes:
    """N vectors as B bits per dimension. D' is D padded to 128."""

    bits: int
    """B: 4, 5 or 8"""
    seed: int
    """Seed of the rotation"""
    center: F32
    """f32[D]"""
    terms: F32
    """f32[N, 4]: squared length of the rotated vector; the factors of its highest four bits, and of all; and the
    standard deviation of a distance's error
    """
    high: U8
    """The highest four bits of each code, u8[N * D' / 2], as `four_bit_quantization` lays them out"""
    low: U8
    """The other bits: none, 1 or 4; u8[N * D' / 8], 16 bytes per 128 dimensions, where bit
    j of byte i is that of dimension 16 j + i; or like the highest"""

    @property
    def count(self) -> int:
        return len(self.terms)

    @cached_property
    def signs(self) -> F32:
        """Signs of the rotation, f32[ROUNDS, D']."""
        return signs(rotated_dims(len(self.center)), self.seed)

    @property
    def row_bytes(self) -> int:
        """Bytes per row of the highest bits."""
        return rotated_dims(len(self.center)) // 2

    def queries(self, queries: F64, metric: Metric) -> "RankingQueries":
        """Queries f64[Q, D], prepared, as these codes are compared with."""
        count, dims, inner = len(queries), 2 * self.row_bytes, metric is Metric.INNER_PRODUCT
        vectors, codes = np.empty((count, dims), np.float32), np.empty((count, dims), np.int8)
        weights, shifts = np.empty((count, 2), np.float32), np.empty((count, 3))
        _encode_queries(read_only(queries), read_only(self.center), self.signs, inner, vectors, shifts, codes, weights)
        walked = RotatedQueries(read_only(self.high), read_only(self.terms), codes, np.float32(not inner), weights)
        return RankingQueries(vectors, shifts, inner, walked)

    def nearest(self, queries: "RankingQueries", nodes: I64, ids: I64, distances: F64) -> None:
        """Rank nodes int64[Q, n] by all bits, -1 as none: the nearest into ids int64[Q, k] and distances f64[Q, k], -1
        and inf where there are fewer; ties by id. Distances are squared, or minus products; estimates of squares may be
        below 0.
        """
        planes = read_only(self.high), read_only(self.low), read_only(self.terms), self.bits
        ranked = read_only(np.ascontiguousarray(nodes))
        _rank(queries.vectors, queries.shifts, *planes, queries.inner, ranked, ids, distances)

    def joined(self, others: "RotatedCodes") -> "RotatedCodes":
        """These vectors, then others that have the same rotation and center."""
        return replace(
            self,
            terms=np.concatenate([self.terms, others.terms]),
            high=np.concatenate([self.high, others.high]),
            low=np.concatenate([self.low, others.low]),
        )

    def take(self, rows: I64) -> "RotatedCodes":
        """Some of the vectors."""
        low_bytes = self.row_bytes * (self.bits - 4) // 4
        high = self.high.reshape(self.count, self.row_bytes)[rows].reshape(-1)
        low = self.low.reshape(self.count, low_bytes)[rows].reshape(-1)
        return replace(self, terms=self.terms[rows], high=high, low=low)


def center_of(vectors: F32) -> F32:
    """The center f32[D] of prepared vectors f32[N, D]: the mean of those that are not far from their median.

    One long vector would draw the mean of all away from them, and codes are as coarse as vectors are far from the
    center. Where no vector is far, it is the mean of all.
    """
    count, dims = vectors.shape
    if not count:
        return np.zeros(dims, np.float32)
    middle = np.median(vectors[:: max(1, count // _MEDIAN_ROWS)], axis=0).astype(np.float64)
    starts = range(0, count, ROWS_PER_TASK)
    gaps = [np.linalg.norm(vectors[start : start + ROWS_PER_TASK] - middle, axis=1) for start in starts]
    distances = np.concatenate(gaps)
    is_near = distances <= _FAR * np.median(distances)
    if is_near.all():
        return np.asarray(vectors.mean(axis=0, dtype=np.float64), np.float32)
    return np.asarray(vectors.mean(axis=0, dtype=np.float64, where=is_near[:, None]), np.float32)


def encode(vectors: F32, bits: int, center: F32, *, seed: int, threads: int = 1) -> RotatedCodes:
    """Codes of prepared vectors f32[N, D], in a rotation and around a center f32[D].

    Raises KernelError for another number of bits, DimensionError for under MIN_ROTATED_DIMS or over
    MAX_ROTATED_DIMS dimensions.
    """
    count, dims = vectors.shape
    if bits not in ROTATED_BITS.values():
        raise KernelError(f"rotated codes have 4, 5 or 8 bits, not {bits}")
    if not MIN_ROTATED_DIMS <= dims <= MAX_ROTATED_DIMS:
        raise DimensionError(
            f"vectors have {dims:,} dimensions; rotated codes take {MIN_ROTATED_DIMS} to {MAX_ROTATED_DIMS:,}"
        )
    own_signs = signs(rotated_dims(dims), seed)
    width = own_signs.shape[1] // 2
    terms = np.empty((count, 4), np.float32)
    high = in_memory((count, width), np.uint8)
    rest = width * (bits - 4) // 4
    low = in_memory((count, rest), np.uint8)
    steps = _STEPS[bits] * np.array(_WIDTHS)

    def encode_rows(start: int) -> None:
        rows = slice(start, start + ROWS_PER_TASK)
        rotated = rotate(vectors[rows], center, own_signs)
        _encode(rotated, bits, steps, terms[rows], high[rows], low[rows])

    for_each(encode_rows, range(0, count, ROWS_PER_TASK), threads=threads)
    return RotatedCodes(bits, seed, center, terms, high.reshape(-1), low.reshape(-1))


def decode(codes: RotatedCodes) -> F32:
    """The vectors f32[N, D] that codes stand for: those whose distance is estimated."""
    width = codes.row_bytes
    rotated = np.empty((codes.count, 2 * width), np.float32)
    _decode(read_only(codes.high), read_only(codes.low), read_only(codes.terms), codes.bits, rotated)
    return rotate_back(rotated, codes.center, codes.signs)


def interval(distances: F64, deviations: F64, metric: Metric, lengths: F64) -> tuple[F64, F64]:
    """(lowest, highest) that true distances most likely have, of the estimated ones f64[Q, n], as they are reported.

    deviations: f64[Q, n], of the nodes, as `RotatedCodes.terms` have them. lengths: f64[Q], of the queries, by which
    the error of an inner product is bounded. A squared distance s, estimated as t, has s = t + 2 x sqrt(s) for an |x|
    of at most w, DEVIATIONS times the deviation: so sqrt(s) lies within sqrt(t + w^2) +- w.
    """
    widths = DEVIATIONS * deviations
    if metric is Metric.INNER_PRODUCT:
        widths = widths * lengths[:, None]
        return distances - widths, distances + widths
    squares = np.square(distances) if metric is Metric.L2 else 2 * distances
    middles = np.sqrt(squares + np.square(widths))
    lowest, highest = middles - widths, middles + widths
    if metric is Metric.L2:
        return lowest, highest
    return np.square(lowest) / 2, np.square(highest) / 2


@fast_kernel
def _encode_queries(
    queries: F64, center: F32, own_signs: F32, inner: bool, vectors: F32, shifts: F64, codes: I8, weights: F32
) -> None:
    """Rotate each query, and encode it by a scale of its own; weights f32[Q, 2] of a product of codes, and of the
    center of the grid.
    """
    scratch = np.empty(vectors.shape[1], np.float32)
    for row in range(queries.shape[0]):
        turned = vectors[row]
        turned[:] = np.float32(0)
        shift, largest = 0.0, 0.0
        for d in range(center.size):
            middle = np.float64(center[d])
            gap = queries[row, d] if inner else queries[row, d] - middle
            shift += -gap * middle if inner else gap * gap
            largest = max(largest, abs(gap))
        unit = math.ldexp(1.0, math.frexp(largest)[1]) if largest > 0 else 1.0
        for d in range(center.size):
            gap = queries[row, d] if inner else queries[row, d] - np.float64(center[d])
            turned[d] = np.float32(gap / unit)
        rotate_row(turned, own_signs, scratch)
        widest, total = np.float32(0), np.float32(0)
        for d in range(turned.size):
            widest = max(widest, abs(turned[d]))
            total += turned[d]
        shifts[row, 0], shifts[row, 1], shifts[row, 2] = shift, total, unit
        scale = widest / np.float32(LIMIT) if widest > 0 else np.float32(1)
        inverse = np.float32(1) / scale
        sum_of_codes = np.int32(0)
        for d in range(turned.size):
            code = np.int32(np.rint(turned[d] * inverse))
            codes[row, d] = np.int8(min(max(code, np.int32(-LIMIT)), np.int32(LIMIT)))
            sum_of_codes = np.int32(sum_of_codes + codes[row, d])
        weight = scale if inner else np.float32(2 * np.float64(scale) * unit)
        weights[row, 0] = weight
        weights[row, 1] = weight * np.float32(CENTER) * np.float32(sum_of_codes)


@fast_kernel
def _encode(rotated: F32, bits: int, steps: F64, terms: F32, high: U8, low: U8) -> None:
    """Codes of rotated vectors f32[n, D'], each on the width of the grid that keeps its direction best."""
    dims = rotated.shape[1]
    middle, highest = np.float32((1 << bits) - 1) / np.float32(2), np.float32((1 << bits) - 1)
    rest = bits - 4
    codes = np.empty(dims, np.uint8)
    for row in range(rotated.shape[0]):
        x = rotated[row]
        norm = 0.0
        for d in range(dims):
            norm += np.float64(x[d]) * np.float64(x[d])
        high[row] = np.uint8(0)
        low[row] = np.uint8(0)
        if not norm > _MIN_SQUARE:
            terms[row] = np.float32(0)
            continue
        best, inverse = np.float32(-1), np.float32(0)
        for step in steps:
            scale = np.float32(np.sqrt(dims / norm) / step)
            product, square = np.float32(0), np.float32(0)
            for d in range(dims):
                level = min(max(np.floor(x[d] * scale + middle + np.float32(0.5)), np.float32(0)), highest) - middle
                product += level * x[d]
                square += level * level
            fit = product / np.sqrt(square)
            if fit > best:
                best, inverse = fit, scale
        for d in range(dims):
            level = min(max(np.floor(x[d] * inverse + middle + np.float32(0.5)), np.float32(0)), highest)
            codes[d] = np.uint8(level)
        along, squares, walked = 0.0, 0.0, 0.0
        for d in range(dims):
            exact = np.float64(codes[d]) - np.float64(middle)
            along += exact * np.float64(x[d])
            squares += exact * exact
            walked += (np.float64(codes[d] >> np.uint8(rest)) - CENTER) * np.float64(x[d])
        factor = norm / along
        terms[row, NORM] = norm
        terms[row, WALK_FACTOR] = norm / walked
        terms[row, FACTOR] = factor
        terms[row, ERROR] = np.sqrt(max(0.0, factor * factor * squares - norm) / (dims - 1))
        for d in range(dims):
            byte, shift = d // (2 * BLOCK) * BLOCK + d % BLOCK, np.uint8(4 if d // BLOCK % 2 else 0)
            high[row, byte] |= (codes[d] >> np.uint8(rest)) << shift
            if rest == 4:
                low[row, byte] |= (codes[d] & np.uint8(15)) << shift
            elif rest == 1:
                low[row, d // (8 * _ONES) * _ONES + d % _ONES] |= (codes[d] & np.uint8(1)) << np.uint8(d // _ONES % 8)


@fast_inner_kernel
def _product(high: U8, low: U8, node: Any, bits: int, query: F32) -> np.float32:
    """The product of a node's code, as an unsigned integer per dimension, with a query f32[D']."""
    width = query.size // 2
    unit, total = np.float32(1 << (bits - 4)), np.float32(0)
    for block in range(width // BLOCK):
        codes = high[node * width + block * BLOCK :][:BLOCK]
        first, second = query[2 * block * BLOCK :][:BLOCK], query[(2 * block + 1) * BLOCK :][:BLOCK]
        part = np.float32(0)
        for i in range(BLOCK):
            part += np.float32(codes[i] & np.uint8(15)) * first[i]
            part += np.float32(codes[i] >> np.uint8(4)) * second[i]
        total += unit * part
        if bits == 8:
            codes = low[node * width + block * BLOCK :][:BLOCK]
            for i in range(BLOCK):
                total += np.float32(codes[i] & np.uint8(15)) * first[i]
                total += np.float32(codes[i] >> np.uint8(4)) * second[i]
        elif bits == 5:
            ones = low[(node * width + block * BLOCK) // 4 :][:_ONES]
            for bit in range(8):
                part_of_query = query[2 * block * BLOCK + bit * _ONES :][:_ONES]
                for i in range(_ONES):
                    total += np.float32(ones[i] >> np.uint8(bit) & np.uint8(1)) * part_of_query[i]
    return total


@fast_kernel
def _decode(high: U8, low: U8, terms: F32, bits: int, rotated: F32) -> None:
    """Rotated vectors f32[N, D'] of codes."""
    width, middle = rotated.shape[1] // 2, np.float32((1 << bits) - 1) / np.float32(2)
    for node in range(rotated.shape[0]):
        for d in range(rotated.shape[1]):
            byte, shift = d // (2 * BLOCK) * BLOCK + d % BLOCK, np.uint8(4 if d // BLOCK % 2 else 0)
            level = np.int32(high[node * width + byte] >> shift & np.uint8(15))
            if bits == 8:
                level = np.int32(16 * level + np.int32(low[node * width + byte] >> shift & np.uint8(15)))
            elif bits == 5:
                ones = low[node * (width // 4) + d // (8 * _ONES) * _ONES + d % _ONES]
                level = np.int32(2 * level + np.int32(ones >> np.uint8(d // _ONES % 8) & np.uint8(1)))
            rotated[node, d] = (np.float32(level) - middle) * terms[node, FACTOR]


@fast_kernel
def _rank(
    vectors: F32,
    shifts: F64,
    high: U8,
    low: U8,
    terms: F32,
    bits: int,
    inner: bool,
    nodes: I64,
    ids: I64,
    distances: F64,
) -> None:
    middle, k = ((1 << bits) - 1) / 2, ids.shape[1]
    for row in range(nodes.shape[0]):
        query, size = vectors[row], 0
        for node in nodes[row]:
            if node < 0:
                continue
            product = np.float64(_product(high, low, np.intp(node), bits, query)) - middle * shifts[row, 1]
            scaled = np.float64(terms[node, FACTOR]) * product * shifts[row, 2]
            distance = shifts[row, 0] + (-scaled if inner else np.float64(terms[node, NORM]) - 2 * scaled)
            if size == k and not _before(distance, node, distances[row, k - 1], ids[row, k - 1]):
                continue
            index = min(size, k - 1)
            while index > 0 and _before(distance, node, distances[row, index - 1], ids[row, index - 1]):
                distances[row, index], ids[row, index] = distances[row, index - 1], ids[row, index - 1]
                index -= 1
            distances[row, index], ids[row, index] = distance, node
            size = min(size + 1, k)
        ids[row, size:] = -1
        distances[row, size:] = np.inf


@inline_kernel
def _before(distance: float, node: int, other_distance: float, other: int) -> bool:
    return distance < other_distance or (distance == other_distance and node < other)
