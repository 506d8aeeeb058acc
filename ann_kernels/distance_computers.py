"""What kernels measure distances in: float vectors, SQ8 codes or PQ codes.

A space holds N nodes, a target queries besides; a point is one query of a target, or one node's place in its space.
Kernels are written once, and numba compiles them for each
type of point. Distances of a point to nodes are f32, smaller is nearer; all but DotPoint's and PqPoint's are squared
Euclidean distances, in the units of the space.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.extending import overload as untyped_overload

from icepuffin.ann_kernels.simd import BLOCK, JIT, LINE, dot, prefetch, prefetch_row

FAST = {"reassoc", "contract", "arcp", "nsz"}
"""Fast-math flags of all kernels here: never nnan or ninf, user data is checked but not trusted."""
overload: Any = untyped_overload


class FloatSpace(NamedTuple):
    """Vectors f32[N, D]."""

    vectors: npt.NDArray[np.float32]


class CodeSpace(NamedTuple):
    """Codes of `icepuffin.ann_kernels.scalar_quantization`."""

    codes: npt.NDArray[np.uint8]
    """u8[N * P], P = D padded to 64"""
    norms: npt.NDArray[np.int32]
    sums: npt.NDArray[np.int32]


class FloatTarget(NamedTuple):
    """Queries f32[Q, D] over vectors, by squared L2."""

    vectors: npt.NDArray[np.float32]
    queries: npt.NDArray[np.float32]


class DotTarget(NamedTuple):
    """The same by minus the dot product."""

    vectors: npt.NDArray[np.float32]
    queries: npt.NDArray[np.float32]


class CodeTarget(NamedTuple):
    """Queries over codes; see `CodePoint`."""

    codes: npt.NDArray[np.uint8]
    norms: npt.NDArray[np.int32]
    queries: npt.NDArray[np.int8]
    """int8[Q, P]"""
    norm_weight: np.float32
    dot_weights: npt.NDArray[np.float32]
    """f32[Q]"""


class PqTarget(NamedTuple):
    """Queries over PQ codes; see `PqPoint`."""

    codes: npt.NDArray[np.uint8]
    tables: npt.NDArray[np.float32]
    """f32[Q, m, 256]"""


class FloatPoint(NamedTuple):
    """Squared L2 from a vector."""

    vectors: npt.NDArray[np.float32]
    query: npt.NDArray[np.float32]


class DotPoint(NamedTuple):
    """Minus the dot product with a vector."""

    vectors: npt.NDArray[np.float32]
    query: npt.NDArray[np.float32]


class CodePoint(NamedTuple):
    """norm_weight * norm - dot_weight * dot + shift, of codes and a query of signed bytes."""

    codes: npt.NDArray[np.uint8]
    norms: npt.NDArray[np.int32]
    query: npt.NDArray[np.int8]
    """int8[P]"""
    norm_weight: np.float32
    dot_weight: np.float32
    shift: np.float32


class PqPoint(NamedTuple):
    """Sum of a query's table entries f32[m, 256] at codes u8[N, m]."""

    codes: npt.NDArray[np.uint8]
    table: npt.NDArray[np.float32]


@njit(nogil=True, cache=True, fastmath=FAST, inline="always")
def squared_l2(vectors, node, query):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for d in range(query.size):
        gap = vectors[node, d] - query[d]
        total += gap * gap
    return total


@njit(nogil=True, cache=True, fastmath=FAST, inline="always")
def _negated_dot(vectors, node, query):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for d in range(query.size):
        total -= vectors[node, d] * query[d]
    return total


def _float_distance(point, node):  # type: ignore[no-untyped-def]
    return squared_l2(point.vectors, node, point.query)


def _dot_distance(point, node):  # type: ignore[no-untyped-def]
    return _negated_dot(point.vectors, node, point.query)


def _code_distance(point, node):  # type: ignore[no-untyped-def]
    size = point.query.size
    product = dot(point.codes, np.intp(node) * size, point.query, np.intp(0), np.intp(size // BLOCK))
    weighted = point.norm_weight * np.float32(point.norms[node]) - point.dot_weight * np.float32(product)
    return np.float32(weighted + point.shift)


def _pq_distance(point, node):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for part in range(point.table.shape[0]):
        total += point.table[part, point.codes[node, part]]
    return total


def _float_focus(space, node, scratch):  # type: ignore[no-untyped-def]
    return FloatPoint(space.vectors, space.vectors[node])


def _code_focus(space, node, scratch):  # type: ignore[no-untyped-def]
    first = np.intp(node) * scratch.size
    row = space.codes[first : first + scratch.size]  # indices into it are known not to be negative: it vectorises
    for i in range(scratch.size):
        scratch[i] = np.int8(row[i] ^ np.uint8(128))
    shift = np.float32(space.norms[node] + np.int32(256) * space.sums[node])  # codes are 128 too large in the product
    return CodePoint(space.codes, space.norms, scratch, np.float32(1), np.float32(2), shift)


def _float_fetch(point, node):  # type: ignore[no-untyped-def]
    prefetch_row(point.vectors, node)


def _code_fetch(point, node):  # type: ignore[no-untyped-def]
    size = point.query.size
    for i in range(0, size, LINE):
        prefetch(point.codes, np.intp(node) * size + i)
    prefetch(point.norms, np.intp(node))


def _pq_fetch(point, node):  # type: ignore[no-untyped-def]
    prefetch_row(point.codes, node)


def _float_aim(target, row):  # type: ignore[no-untyped-def]
    return FloatPoint(target.vectors, target.queries[row])


def _dot_aim(target, row):  # type: ignore[no-untyped-def]
    return DotPoint(target.vectors, target.queries[row])


def _code_aim(target, row):  # type: ignore[no-untyped-def]
    weight = target.dot_weights[row]
    return CodePoint(target.codes, target.norms, target.queries[row], target.norm_weight, weight, np.float32(0))


def _pq_aim(target, row):  # type: ignore[no-untyped-def]
    return PqPoint(target.codes, target.tables[row])


_AIMS: dict[str, Any] = {"FloatTarget": _float_aim, "DotTarget": _dot_aim, "CodeTarget": _code_aim, "PqTarget": _pq_aim}
_DISTANCES: dict[str, Any] = {
    "FloatPoint": _float_distance, "DotPoint": _dot_distance, "CodePoint": _code_distance, "PqPoint": _pq_distance,
}  # fmt: skip
_FETCHES: dict[str, Any] = {
    "FloatPoint": _float_fetch,
    "DotPoint": _float_fetch,
    "CodePoint": _code_fetch,
    "PqPoint": _pq_fetch,
}
_FOCUSES: dict[str, Any] = {"FloatSpace": _float_focus, "CodeSpace": _code_focus}


def distance(point: Any, node: Any) -> Any:
    """f32 distance from a point to a node."""
    return _DISTANCES[type(point).__name__](point, node)


def fetch(point: Any, node: Any) -> Any:
    """Ask for the cache lines of a node, ahead of `distance`."""
    _FETCHES[type(point).__name__](point, node)


def focus(space: Any, node: Any, scratch: Any) -> Any:
    """The point at a node of a space; scratch int8[P] is what it may write the query to."""
    return _FOCUSES[type(space).__name__](space, node, scratch)


def aim(target: Any, row: Any) -> Any:
    """The point of one of a target's queries."""
    return _AIMS[type(target).__name__](target, row)


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only view. Numba compiles kernels apart for arrays that can and cannot be written: callers' arrays may be
    either, kernels always get the latter.
    """
    view = array.view()
    view.flags.writeable = False
    return view


if JIT:

    @overload(aim, inline="always")
    def _(target, row):  # type: ignore[no-untyped-def]
        return _AIMS[target.instance_class.__name__]

    @overload(distance, fastmath=FAST, inline="always")
    def _(point, node):  # type: ignore[no-untyped-def]
        return _DISTANCES[point.instance_class.__name__]

    @overload(fetch, inline="always")
    def _(point, node):  # type: ignore[no-untyped-def]
        return _FETCHES[point.instance_class.__name__]

    @overload(focus, inline="always")
    def _(space, node, scratch):  # type: ignore[no-untyped-def]
        return _FOCUSES[space.instance_class.__name__]
