"""Distances that kernels compute one node at a time: over float vectors or codes.

A space holds the vectors of N nodes. Queries stand beside a space. A distance computer measures from one query, or
from one node of a space, to any node. Kernels are written once; numba compiles them for each type of computer.

Distances are f32, and smaller is nearer. DotComputer, PqComputer and RotatedComputer give their own sums, the others
squared Euclidean distances in the units of the space.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from icepuffin.ann_kernels.arrays import F32, I8, I32, U8, U64
from icepuffin.ann_kernels.compilation import compiled_form, inline_kernel
from icepuffin.ann_kernels.simd.byte_products import BLOCK, dot, four_bit_dot
from icepuffin.ann_kernels.simd.prefetching import prefetch, prefetch_lines, prefetch_row
from icepuffin.ann_kernels.simd.sign_products import PLANES, WORDS, sum_of_chosen

CENTER = 7.5
"""The middle of the codes of four bits, which stands for the offset"""
QUERY_STEP = 8
"""Signed bytes of a query per one of the small integers that signs are multiplied by"""


class FloatSpace(NamedTuple):
    """Nodes as float vectors."""

    vectors: F32
    """f32[N, D]"""


class CodeSpace(NamedTuple):
    """Nodes as the codes of `scalar_quantization`."""

    codes: U8
    """u8[N * P]; P is D padded to 64"""
    norms: I32
    """Squared norms int32[N] of the signed codes"""
    sums: I32
    """Sums int32[N] of the signed codes"""


class FourBitSpace(NamedTuple):
    """Nodes as the codes of `four_bit_quantization`."""

    codes: U8
    """u8[N * P], two codes per byte; P is half of D padded to 128"""
    norms: F32
    """Squared norms f32[N] of what the codes stand for, from the offset on, in units of the scale"""


class SignSpace(NamedTuple):
    """The signs of four-bit codes, as of `sign_quantization`."""

    words: U64
    """u64[N * W], a bit per dimension, the lowest first; W is 2 P / 64 padded to whole cache lines"""
    terms: F32
    """f32[N, 2]: factor of the product with the signs, and its error per length of the query"""


class L2Queries(NamedTuple):
    """Queries over float vectors, by squared L2."""

    vectors: F32
    """f32[N, D]"""
    queries: F32
    """f32[Q, D]"""


class DotQueries(NamedTuple):
    """Queries over float vectors, by minus the dot product."""

    vectors: F32
    """f32[N, D]"""
    queries: F32
    """f32[Q, D]"""


class CodeQueries(NamedTuple):
    """Queries over SQ8 codes; see `CodeComputer`."""

    codes: U8
    """u8[N * P]"""
    norms: I32
    """int32[N]"""
    queries: I8
    """Signed codes int8[Q, P]"""
    norm_weight: np.float32
    dot_weights: F32
    """f32[Q]"""


class FourBitQueries(NamedTuple):
    """Queries over four-bit codes; see `FourBitComputer`. Codes without signs have empty words, terms and planes."""

    codes: U8
    """u8[N * P]"""
    norms: F32
    """f32[N]"""
    queries: I8
    """Signed codes int8[Q, 2 P]"""
    dot_weights: F32
    """f32[Q]"""
    words: U64
    """u64[N * W]"""
    sign_terms: F32
    """f32[N, 2]"""
    planes: U64
    """u64[Q, W * PLANES]"""
    query_terms: F32
    """f32[Q, 3]"""


class RotatedQueries(NamedTuple):
    """Queries over the highest four bits of `rotated_quantization`; see `RotatedComputer`."""

    codes: U8
    """u8[N * P]"""
    terms: F32
    """f32[N, 4]"""
    queries: I8
    """Signed codes int8[Q, 2 P]"""
    norm_weight: np.float32
    weights: F32
    """f32[Q, 2]"""


class PqQueries(NamedTuple):
    """Queries over PQ codes; see `PqComputer`."""

    codes: U8
    """u8[N, B]"""
    tables: F32
    """f32[Q, B, 256]"""


class L2Computer(NamedTuple):
    """Squared L2 from one vector."""

    vectors: F32
    """f32[N, D]"""
    query: F32
    """f32[D]"""


class DotComputer(NamedTuple):
    """Minus the dot product with one vector."""

    vectors: F32
    """f32[N, D]"""
    query: F32
    """f32[D]"""


class CodeComputer(NamedTuple):
    """norm_weight * norm - dot_weight * dot + shift, of codes and a query of signed bytes."""

    codes: U8
    """u8[N * P]"""
    norms: I32
    """int32[N]"""
    query: I8
    """int8[P]"""
    norm_weight: np.float32
    dot_weight: np.float32
    shift: np.float32


class FourBitComputer(NamedTuple):
    """norm - dot_weight * dot, of four-bit codes and a query of signed bytes.

    Where codes have signs, these tell alone what the distance is at least, most likely; elsewhere W is 0.
    """

    codes: U8
    """u8[N * P]"""
    norms: F32
    """f32[N]"""
    query: I8
    """int8[2 P]"""
    dot_weight: np.float32
    words: U64
    """u64[N * W]"""
    sign_terms: F32
    """f32[N, 2]"""
    planes: U64
    """The query as integers of PLANES bits: u64[W * PLANES], each register of the first, then of the second bits, .."""
    query_terms: F32
    """f32[3]: the sum of these integers, and 7.5 times the query's sum, both in units of the query; and by what a
    node's error is multiplied
    """


class RotatedComputer(NamedTuple):
    """norm_weight * norm - factor * (dot_weight * dot - shift), of codes with a norm and a factor per node."""

    codes: U8
    """u8[N * P]"""
    terms: F32
    """f32[N, 4]: norm, factor, and two that do not count here"""
    query: I8
    """int8[2 P]"""
    norm_weight: np.float32
    dot_weight: np.float32
    shift: np.float32


class PqComputer(NamedTuple):
    """Sum of one query's table entries at a node's codes."""

    codes: U8
    """u8[N, B]"""
    table: F32
    """f32[B, 256]"""


Space: TypeAlias = FloatSpace | CodeSpace
Queries: TypeAlias = L2Queries | DotQueries | CodeQueries | FourBitQueries | RotatedQueries | PqQueries
NodeData: TypeAlias = tuple[Any, ...]
"""The arrays of `Queries` that have a row per node: the first fields"""
DistanceComputer: TypeAlias = L2Computer | DotComputer | CodeComputer | FourBitComputer | RotatedComputer | PqComputer


def distance(computer: DistanceComputer, node: Any) -> Any:
    """f32: the distance from a computer's query to a node."""
    return _DISTANCES[type(computer)](computer, node)


def prefetch_node(computer: DistanceComputer, node: Any) -> None:
    """Request the cache lines of a node, ahead of `distance`."""
    _PREFETCHES[type(computer)](computer, node)


def keep_near(computer: DistanceComputer, nodes: I32, count: Any, farthest: Any) -> Any:
    """Request the cache lines of nodes int32[..][:count], ahead of `distance`, but leave out nodes that are most likely
    farther than `farthest`; inf leaves none out.

    Returns how many are kept. They are moved to the front, in their order.
    """
    return _KEEP_NEAR[type(computer)](computer, nodes, count, farthest)


def query_computer(queries: Queries, row: Any) -> Any:
    """The computer of distances from one of the queries."""
    return _QUERY_COMPUTERS[type(queries)](queries, row)


def queries_over(data: NodeData, queries: Queries) -> Any:
    """The same queries over other nodes, whose arrays these are."""
    return _QUERIES_OVER[type(queries)](data, queries)


def node_computer(space: Space, node: Any, scratch: I8) -> Any:
    """The computer of distances from a node of a space. It may keep the node's codes in scratch int8[P]."""
    return _NODE_COMPUTERS[type(space)](space, node, scratch)


def new_code_scratch(space: Space, nodes: int = 1) -> I8:
    """int8[nodes, P]: room for the codes of so many nodes, a row of which `node_computer` takes."""
    dims = len(space.codes) // len(space.norms) if isinstance(space, CodeSpace) else 0
    return np.empty((nodes, dims), np.int8)


@inline_kernel
def squared_l2(vectors: F32, node: Any, query: F32) -> Any:
    """f32: squared L2 distance of vectors[node] from a query."""
    total = np.float32(0)
    for d in range(query.size):
        gap = vectors[node, d] - query[d]
        total += gap * gap
    return total


@inline_kernel
def _negated_dot(vectors: F32, node: Any, query: F32) -> Any:
    total = np.float32(0)
    for d in range(query.size):
        total -= vectors[node, d] * query[d]
    return total


def _l2_distance(computer: L2Computer, node: Any) -> Any:
    return squared_l2(computer.vectors, node, computer.query)


def _dot_distance(computer: DotComputer, node: Any) -> Any:
    return _negated_dot(computer.vectors, node, computer.query)


def _code_distance(computer: CodeComputer, node: Any) -> Any:
    size = computer.query.size
    product = dot(computer.codes, np.intp(node) * size, computer.query, np.intp(0), np.intp(size // BLOCK))
    weighted = computer.norm_weight * np.float32(computer.norms[node]) - computer.dot_weight * np.float32(product)
    return np.float32(weighted + computer.shift)


def _four_bit_distance(computer: FourBitComputer, node: Any) -> Any:
    size = computer.query.size >> 1
    product = four_bit_dot(computer.codes, np.intp(node) * size, computer.query, np.intp(0), np.intp(size // BLOCK))
    return np.float32(computer.norms[node] - computer.dot_weight * np.float32(product))


def _rotated_distance(computer: RotatedComputer, node: Any) -> Any:
    size = computer.query.size >> 1
    product = four_bit_dot(computer.codes, np.intp(node) * size, computer.query, np.intp(0), np.intp(size // BLOCK))
    weighted = computer.dot_weight * np.float32(product) - computer.shift
    return np.float32(computer.norm_weight * computer.terms[node, 0] - computer.terms[node, 1] * weighted)


def _pq_distance(computer: PqComputer, node: Any) -> Any:
    total = np.float32(0)
    for part in range(computer.table.shape[0]):
        total += computer.table[part, computer.codes[node, part]]
    return total


def _float_prefetch(computer: L2Computer | DotComputer, node: Any) -> None:
    prefetch_row(computer.vectors, node)


def _code_prefetch(computer: CodeComputer, node: Any) -> None:
    size = computer.query.size
    prefetch_lines(computer.codes, np.intp(node) * size, size)
    prefetch(computer.norms, np.intp(node))


def _four_bit_prefetch(computer: FourBitComputer, node: Any) -> None:
    size = computer.query.size >> 1
    prefetch_lines(computer.codes, np.intp(node) * size, size)
    prefetch(computer.norms, np.intp(node))


def _rotated_prefetch(computer: RotatedComputer, node: Any) -> None:
    size = computer.query.size >> 1
    prefetch_lines(computer.codes, np.intp(node) * size, size)
    prefetch_row(computer.terms, node)


def _pq_prefetch(computer: PqComputer, node: Any) -> None:
    prefetch_row(computer.codes, node)


def _keep_all(computer: DistanceComputer, nodes: I32, count: Any, farthest: Any) -> Any:
    for index in range(count):
        prefetch_node(computer, nodes[index])
    return count


def _keep_near_by_signs(computer: FourBitComputer, nodes: I32, count: Any, farthest: Any) -> Any:
    width = computer.planes.size // PLANES
    if width == 0 or not farthest < np.float32(np.inf):
        for index in range(count):
            prefetch_node(computer, nodes[index])
        return count
    weight = np.float32(2 * QUERY_STEP)
    rounded, shift, doubt = computer.query_terms[0], computer.query_terms[1], computer.query_terms[2]
    for index in range(count):
        prefetch_lines(computer.words, np.intp(nodes[index]) * width, width)
        prefetch(computer.sign_terms, np.intp(nodes[index]) * 2)
        prefetch(computer.norms, np.intp(nodes[index]))
    kept = 0
    for index in range(count):
        node = nodes[index]
        chosen = sum_of_chosen(computer.words, np.intp(node) * width, computer.planes, np.intp(width // WORDS))
        product = computer.sign_terms[node, 0] * (weight * np.float32(chosen) - rounded)
        most = product + computer.sign_terms[node, 1] * doubt + shift
        if computer.norms[node] - computer.dot_weight * most > farthest:
            continue
        nodes[np.uint32(kept)] = node
        kept += 1
        prefetch_node(computer, node)  # the codes come while the next signs are compared
    return kept


def _l2_query_computer(queries: L2Queries, row: Any) -> L2Computer:
    return L2Computer(queries.vectors, queries.queries[row])


def _dot_query_computer(queries: DotQueries, row: Any) -> DotComputer:
    return DotComputer(queries.vectors, queries.queries[row])


def _code_query_computer(queries: CodeQueries, row: Any) -> CodeComputer:
    weight = queries.dot_weights[row]
    return CodeComputer(queries.codes, queries.norms, queries.queries[row], queries.norm_weight, weight, np.float32(0))


def _four_bit_query_computer(queries: FourBitQueries, row: Any) -> FourBitComputer:
    return FourBitComputer(
        queries.codes,
        queries.norms,
        queries.queries[row],
        queries.dot_weights[row],
        queries.words,
        queries.sign_terms,
        queries.planes[row],
        queries.query_terms[row],
    )


def _rotated_query_computer(queries: RotatedQueries, row: Any) -> RotatedComputer:
    weight, shift = queries.weights[row, 0], queries.weights[row, 1]
    return RotatedComputer(queries.codes, queries.terms, queries.queries[row], queries.norm_weight, weight, shift)


def _pq_query_computer(queries: PqQueries, row: Any) -> PqComputer:
    return PqComputer(queries.codes, queries.tables[row])


def _l2_queries_over(data: NodeData, queries: L2Queries) -> L2Queries:
    return L2Queries(data[0], queries.queries)


def _dot_queries_over(data: NodeData, queries: DotQueries) -> DotQueries:
    return DotQueries(data[0], queries.queries)


def _code_queries_over(data: NodeData, queries: CodeQueries) -> CodeQueries:
    return CodeQueries(data[0], data[1], queries.queries, queries.norm_weight, queries.dot_weights)


def _four_bit_queries_over(data: NodeData, queries: FourBitQueries) -> FourBitQueries:
    """The signs stay those of all nodes: only distances are measured from these queries."""
    return FourBitQueries(
        data[0],
        data[1],
        queries.queries,
        queries.dot_weights,
        queries.words,
        queries.sign_terms,
        queries.planes,
        queries.query_terms,
    )


def _rotated_queries_over(data: NodeData, queries: RotatedQueries) -> RotatedQueries:
    return RotatedQueries(data[0], data[1], queries.queries, queries.norm_weight, queries.weights)


def _pq_queries_over(data: NodeData, queries: PqQueries) -> PqQueries:
    return PqQueries(data[0], queries.tables)


def _float_node_computer(space: FloatSpace, node: Any, scratch: I8) -> L2Computer:
    return L2Computer(space.vectors, space.vectors[node])


def _code_node_computer(space: CodeSpace, node: Any, scratch: I8) -> CodeComputer:
    first = np.intp(node) * scratch.size
    row = space.codes[first : first + scratch.size]  # numba knows that indices into it are not negative: it vectorises
    for i in range(scratch.size):
        scratch[i] = np.int8(row[i] ^ np.uint8(128))
    shift = np.float32(space.norms[node] + np.int32(256) * space.sums[node])  # codes are 128 too large in the product
    return CodeComputer(space.codes, space.norms, scratch, np.float32(1), np.float32(2), shift)


_DISTANCES: dict[type, Any] = {
    L2Computer: _l2_distance,
    DotComputer: _dot_distance,
    CodeComputer: _code_distance,
    FourBitComputer: _four_bit_distance,
    RotatedComputer: _rotated_distance,
    PqComputer: _pq_distance,
}
_PREFETCHES: dict[type, Any] = {
    L2Computer: _float_prefetch,
    DotComputer: _float_prefetch,
    CodeComputer: _code_prefetch,
    FourBitComputer: _four_bit_prefetch,
    RotatedComputer: _rotated_prefetch,
    PqComputer: _pq_prefetch,
}
_KEEP_NEAR: dict[type, Any] = {
    L2Computer: _keep_all,
    DotComputer: _keep_all,
    CodeComputer: _keep_all,
    FourBitComputer: _keep_near_by_signs,
    RotatedComputer: _keep_all,
    PqComputer: _keep_all,
}
_QUERY_COMPUTERS: dict[type, Any] = {
    L2Queries: _l2_query_computer,
    DotQueries: _dot_query_computer,
    CodeQueries: _code_query_computer,
    FourBitQueries: _four_bit_query_computer,
    RotatedQueries: _rotated_query_computer,
    PqQueries: _pq_query_computer,
}
_QUERIES_OVER: dict[type, Any] = {
    L2Queries: _l2_queries_over,
    DotQueries: _dot_queries_over,
    CodeQueries: _code_queries_over,
    FourBitQueries: _four_bit_queries_over,
    RotatedQueries: _rotated_queries_over,
    PqQueries: _pq_queries_over,
}
_NODE_COMPUTERS: dict[type, Any] = {FloatSpace: _float_node_computer, CodeSpace: _code_node_computer}


@compiled_form(distance)
def _(computer: Any, node: Any) -> Any:
    return _DISTANCES[computer.instance_class]


@compiled_form(prefetch_node)
def _(computer: Any, node: Any) -> Any:
    return _PREFETCHES[computer.instance_class]


@compiled_form(keep_near)
def _(computer: Any, nodes: Any, count: Any, farthest: Any) -> Any:
    return _KEEP_NEAR[computer.instance_class]


@compiled_form(query_computer)
def _(queries: Any, row: Any) -> Any:
    return _QUERY_COMPUTERS[queries.instance_class]


@compiled_form(queries_over)
def _(data: Any, queries: Any) -> Any:
    return _QUERIES_OVER[queries.instance_class]


@compiled_form(node_computer)
def _(space: Any, node: Any, scratch: Any) -> Any:
    return _NODE_COMPUTERS[space.instance_class]
