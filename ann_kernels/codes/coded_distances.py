"""Bounds of the distances of vectors by their codes: what is known of N vectors and of one query.

A vector is no nearer than its code, less the distance between the two (triangle inequality); the same holds for the
query.
"""

from typing import Any, NamedTuple

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I8, I32, U8
from icepuffin.ann_kernels.codes.coded_bounds import ROUNDING
from icepuffin.ann_kernels.codes.scalar_quantization import LIMIT, ZERO
from icepuffin.ann_kernels.compilation import inline_kernel, kernel
from icepuffin.ann_kernels.metric import Metric

UNBOUNDED = 255
"""Error of a code that is larger than all others"""
STEP = 2.0**-52
"""Relative error that each further term adds to a sum in float64, at most"""
SLACK = 2.0**-20
"""Relative difference of a distance and a bound of it that no rounding reaches"""
_COSINE, _HAMMING = Metric.COSINE.code, Metric.HAMMING.code


class CodeTable(NamedTuple):
    """N vectors by their codes."""

    codes: U8
    """u8[N * P]"""
    norms: I32
    """int32[N]"""
    offset: F32
    """f32[D]"""
    scale: float
    errors: U8
    """u8[N]"""
    step: float


class CodedQuery(NamedTuple):
    """One query by its code int8[P], which it lacks: numba counts references to arrays at each access."""

    inner: bool
    """Whether the metric is the inner product"""
    norm: float
    """Squared length of what the code stands for"""
    squared_scale: float
    """Squared scale of the codes of vectors"""
    step: float
    """Length of a step of their errors"""
    unsigned: float
    """Excess of products with unsigned codes"""
    factor: float
    """Product of vectors that a product of codes stands for, per unit"""
    error: float
    """Distance of the query from what the code stands for, at least"""
    length: float
    """Length of the query"""
    shift: float
    """Part that all distances have in common, under inner product"""
    noise: float
    """Largest loss to rounding per length of the row, under inner product"""


@kernel
def coded_query(query: F64, coded: CodeTable, inner: bool, code: I8) -> CodedQuery:
    """A query f64[D] by its code (under inner product, that of the query without the offset), filled into int8[P]."""
    offset = coded.offset
    widest, length, shift, product = 0.0, 0.0, 0.0, 0.0
    for d in range(query.size):
        length += query[d] * query[d]
        shift += np.float64(offset[d]) ** 2
        product += query[d] * np.float64(offset[d])
        widest = max(widest, abs(query[d] if inner else query[d] - np.float64(offset[d])))
    scale = widest / LIMIT
    if scale == 0.0:
        scale = 1.0
    total, norm, codes = 0.0, 0.0, 0.0
    for d in range(query.size):
        gap = query[d] if inner else query[d] - np.float64(offset[d])
        code[d] = np.int8(np.rint(gap / scale))
        value = np.float64(code[d])
        total += (gap - scale * value) ** 2
        norm += value * value
        codes += value
    rounding = ROUNDING + query.size * STEP
    length, shift = np.sqrt(length), np.sqrt(shift)
    error = np.sqrt(total) * (1 + rounding) + rounding * (length + shift)
    return CodedQuery(
        inner,
        scale * scale * norm,
        coded.scale * coded.scale,
        coded.step,
        ZERO * codes,
        scale * coded.scale,
        error,
        length,
        -product - 4 * rounding * length * shift,
        4 * rounding * length,
    )


@inline_kernel
def distance_bounds(query: CodedQuery, product: Any, squares: Any, steps: Any) -> tuple[float, float]:
    """A lower and an upper bound of the distance of a row, in the units of `bound_reached`.

    By the product of the codes, the sum of the row's squared codes, and its error in steps.
    """
    error = np.inf if steps == UNBOUNDED else query.step * np.float64(steps)
    return bounds_within(query, product, squares, error)


@inline_kernel
def bounds_within(query: CodedQuery, product: Any, squares: Any, error: Any) -> tuple[float, float]:
    """`distance_bounds` of a row that is no farther than `error` from what its code stands for; inf: nobody knows."""
    bounded = error < np.inf
    error = error if bounded else 0.0  # a product with inf may be no number
    product = query.factor * (np.float64(product) - query.unsigned)
    norm = query.squared_scale * np.float64(squares)
    if query.inner:
        magnitude = np.sqrt(norm)
        low = high = query.shift - product
        reach = magnitude * query.error + error * query.length + query.noise * (magnitude + error)
    else:
        rounding = ROUNDING * (query.norm + norm)  # much, where query and row have nearly the same code
        squared = query.norm + norm - 2 * product
        low = np.sqrt(max(squared - rounding, 0.0)) * (1 - ROUNDING)
        high = np.sqrt(max(squared + rounding, 0.0)) * (1 + ROUNDING)
        reach = query.error + error
    if not bounded:
        reach = np.inf
    return low - reach, high + reach


@inline_kernel
def bound_reached(distance: float, metric: int) -> np.float32:
    """The largest lower bound that a row at a reported distance can have, rounding included."""
    if metric in (_COSINE, _HAMMING):
        distance = np.sqrt(2 * distance if metric == _COSINE else distance)
    return np.float32(distance + SLACK * abs(distance))
