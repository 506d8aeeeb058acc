"""Scalar quantization to one byte a dimension (SQ8), for integer distances in builds and searches.

A code is 128 + round((x - offset[d]) / scale), clipped to 1..255: one scale for all dimensions, so that distances of
codes are distances of vectors, but for rounding. Where vectors are spread too widely for that, `faithful` says so.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels.candidate_list import NO_KEY, insert, key_node, new_pool, sort_key
from icepuffin.ann_kernels.distance_computers import (
    FAST,
    CodeSpace,
    CodeTarget,
    DotTarget,
    FloatTarget,
    aim,
    distance,
    frozen,
)
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.simd import BLOCK

MAX_CODE_DIMS = 16_384
"""Up to here all sums fit 32 bits"""
_ZERO = 128
_LIMIT = 127
_SAMPLE_ROWS = 4_096
_KEPT = 0.9995
"""Share of the sample's values that the scale covers; the rest is clipped"""
_ROWS_A_PIECE = 8_192
_ROWS_A_BLOCK = 256
_CHECKED_QUERIES = 64
_CHECKED_NEAREST = (1, 10)
_HEAD = 256
_FAITHFUL = 0.98


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """N vectors as bytes."""

    space: CodeSpace
    offset: npt.NDArray[np.float32]
    """f32[D]: mean of a sample"""
    scale: float

    @property
    def padded(self) -> int:
        return len(self.space.codes) // max(1, len(self.space.norms))

    def target(self, queries: npt.NDArray[np.float32], metric: Metric) -> CodeTarget:
        """Queries f32[Q, D] as bytes, each with a scale of its own.

        Distances come out in units of the scale: squared L2 but for a constant a query, or minus the dot product.
        """
        inner = metric is Metric.INNER_PRODUCT
        out = np.zeros((len(queries), self.padded), np.int8)
        weights = np.empty(len(queries), np.float32)
        _encode_queries(frozen(queries), self.offset, np.float32(2 / self.scale), inner, out, weights)
        return CodeTarget(self.space.codes, self.space.norms, out, np.float32(not inner), weights)


def encode(
    vectors: npt.NDArray[np.float32], *, extra: npt.NDArray[np.float32] | None = None, threads: int = 1
) -> Codes | None:
    """Codes of prepared vectors f32[N, D] (extra f32[N]: one dimension more). None where D is over MAX_CODE_DIMS."""
    last = np.empty((len(vectors), 0), np.float32) if extra is None else extra[:, None]
    count, dims = len(vectors), vectors.shape[1] + last.shape[1]
    if dims > MAX_CODE_DIMS:
        return None
    step = max(1, count // _SAMPLE_ROWS)
    sample = np.concatenate([vectors[::step], last[::step]], axis=1)
    offset = sample.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = _scale(np.abs(sample - offset).reshape(-1))
    width = dims + -dims % BLOCK
    codes = _of_whole_lines(count * width).reshape(count, width)
    norms, sums = np.empty(count, np.int32), np.empty(count, np.int32)

    def piece(start: int) -> None:
        rows = slice(start, start + _ROWS_A_PIECE)
        _encode(
            frozen(vectors[rows]),
            frozen(last[rows]),
            offset,
            np.float32(1 / scale),
            codes[rows],
            norms[rows],
            sums[rows],
        )

    with ThreadPoolExecutor(max(1, threads)) as pool:
        list(pool.map(piece, range(0, count, _ROWS_A_PIECE)))
    return Codes(CodeSpace(codes.reshape(-1), norms, sums), offset, scale)


def _of_whole_lines(size: int) -> npt.NDArray[np.uint8]:
    """u8[size] that begins with a cache line, so that a row of blocks touches no line more than it has; numpy's own
    arrays begin anywhere.
    """
    room = np.empty(size + BLOCK, np.uint8)
    first = -room.ctypes.data % BLOCK
    return room[first : first + size]


def _scale(gaps: npt.NDArray[np.float32]) -> float:
    kept = min(gaps.size - 1, int(_KEPT * gaps.size))
    widest = float(np.partition(gaps, kept)[kept]) if gaps.size else 0.0
    widest = widest or float(gaps.max(initial=0))
    return widest / _LIMIT if widest > 0 else 1.0


@njit(nogil=True, cache=True, error_model="numpy")
def _encode_queries(queries, offset, unit, inner, codes, dot_weights):  # type: ignore[no-untyped-def]
    """Each query by a scale of its own, so that none is clipped. For inner product the offset stays where it is."""
    for row in range(queries.shape[0]):
        widest = np.float32(0)
        for d in range(queries.shape[1]):
            gap = queries[row, d] if inner else queries[row, d] - offset[d]
            widest = max(widest, abs(gap))
        scale = widest / np.float32(_LIMIT)
        if scale == 0:
            scale = np.float32(1)
        for d in range(queries.shape[1]):
            gap = queries[row, d] if inner else queries[row, d] - offset[d]
            codes[row, d] = np.int8(np.rint(gap / scale))
        dot_weights[row] = np.float32(1) if inner else unit * scale


@njit(nogil=True, cache=True, inline="always")
def _code(value):  # type: ignore[no-untyped-def]
    limit = np.float32(_LIMIT)
    return np.int32(np.floor(min(max(value, -limit), limit) + np.float32(0.5)))


@njit(nogil=True, cache=True)
def _encode(vectors, last, offset, inverse, codes, norms, sums):  # type: ignore[no-untyped-def]
    dims = vectors.shape[1]
    for row in range(vectors.shape[0]):
        norm, total = np.int32(0), np.int32(0)
        for d in range(dims):
            code = _code((vectors[row, d] - offset[d]) * inverse)
            codes[row, d] = np.uint8(code + _ZERO)
            norm = np.int32(norm + code * code)
            total = np.int32(total + code)
        for d in range(dims, codes.shape[1]):
            code = _code((last[row, d - dims] - offset[d]) * inverse) if d < dims + last.shape[1] else np.int32(0)
            codes[row, d] = np.uint8(code + _ZERO)
            norm = np.int32(norm + code * code)
            total = np.int32(total + code)
        norms[row] = norm
        sums[row] = total


def ranked_exactly(k: int) -> int:
    """How many of the nearest by code are put in order by exact distance, where the k nearest are wanted."""
    return max(2 * k, k + 10)


def faithful(
    codes: Codes, vectors: npt.NDArray[np.float32], metric: Metric, *, extra: npt.NDArray[np.float32] | None = None
) -> bool:
    """Whether codes rank as what they were made of: the rows nearest to a row are among the nearest by code, so far as
    a search ranks these exactly.

    Some rows are asked for, but all are compared: among fewer, neighbours lie farther apart than they do, and codes
    that cannot tell near-duplicates from each other would pass. What counts as near comes from a few hundred rows that
    are nearest by code: were the true ones not among them, they would not be among the first of them either.
    """
    own = _spread(len(vectors), _CHECKED_QUERIES)
    if len(vectors) < 2:
        return True
    last = np.empty(0, np.float32) if extra is None else extra
    asked = vectors[own] if extra is None else np.concatenate([vectors[own], extra[own, None]], axis=1)
    heads = np.full((len(own), min(_HEAD, len(vectors) - 1)), -1, np.int32)
    _nearest_by_code(codes.target(asked, metric), own, heads)
    exact = np.empty(heads.shape, np.float32)
    kind = DotTarget if metric is Metric.INNER_PRODUCT else FloatTarget
    _exact(kind(frozen(vectors), frozen(vectors[own])), frozen(last), own, heads, exact)
    for k in _CHECKED_NEAREST:
        wanted = min(k, heads.shape[1])
        limits = np.partition(exact, wanted - 1, axis=1)[:, wanted - 1 : wanted]
        near = exact[:, : ranked_exactly(k)] <= limits + 1e-5 * np.abs(limits)
        if np.minimum(near.sum(axis=1), wanted).sum() < _FAITHFUL * wanted * len(own):
            return False
    return True


def _spread(count: int, wanted: int) -> npt.NDArray[np.int32]:
    """int32[..], so many rows, evenly spread."""
    some = min(count, wanted)
    return ((2 * np.arange(some, dtype=np.int64) + 1) * count // (2 * max(1, some))).astype(np.int32)


@njit(nogil=True, cache=True, fastmath=FAST)
def _nearest_by_code(target, own, heads):  # type: ignore[no-untyped-def]
    """The nodes nearest to each query of a target into heads int32[Q, n], in order; own int32[Q] are not their own.

    Some nodes are compared with all queries, then the next: they are read once.
    """
    width = heads.shape[1]
    pools = np.empty((own.size, new_pool(width).size), np.int64)
    pools[:] = NO_KEY
    for start in range(0, target.norms.size, _ROWS_A_BLOCK):
        for row in range(own.size):
            point = aim(target, row)
            pool = pools[row]
            for node in range(start, min(start + _ROWS_A_BLOCK, target.norms.size)):
                key = sort_key(distance(point, node), np.int32(node))
                if key < pool[width - 1] and node != own[row]:
                    insert(pool, width - 1, key)
    for row in range(own.size):
        for place in range(width):
            heads[row, place] = key_node(pools[row, place])


@njit(nogil=True, cache=True, fastmath=FAST)
def _exact(target, last, own, heads, out):  # type: ignore[no-untyped-def]
    """Distances f32[Q, n] of the nodes of heads int32[Q, n]; last f32[N], where there is one, is one dimension more."""
    for row in range(heads.shape[0]):
        point = aim(target, row)
        for place in range(heads.shape[1]):
            node = heads[row, place]
            far = distance(point, node)
            if last.size:
                gap = last[node] - last[own[row]]
                far += gap * gap
            out[row, place] = far
