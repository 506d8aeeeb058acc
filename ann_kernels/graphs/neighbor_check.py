"""Whether codes preserve the nearest neighbours: by some rows as queries, which are compared with all rows.

Among fewer rows, neighbours lie farther apart than they do, and codes that cannot tell near-duplicates from each other
would pass.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I32, I64, Bool
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.codes.scalar_quantization import ranked_exactly
from icepuffin.ann_kernels.compilation import fast_kernel
from icepuffin.ann_kernels.distances.candidate_list import new_candidates
from icepuffin.ann_kernels.distances.distance_computers import (
    CodeQueries,
    FourBitQueries,
    distance,
    keep_near,
    query_computer,
)
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.parallel import for_each
from icepuffin.ann_kernels.simd.sort_keys import NO_KEY, insert_key, key_distance, key_node, sort_key

_ROWS_PER_BLOCK = 256
_QUERIES = 64
_NEAREST = (1, 10)
_CANDIDATES = 256
"""Nearest rows by code among which the truly nearest are looked for"""
_REQUIRED_RECALL = 0.98
_REQUIRED_KEPT = 0.995
"""Share of the nearest that signs must leave in a beam. Narrow beams lost a tenth of their recall where it was .91, a
thirtieth at .94, a hundredth at .98, and less than a thousandth at .998 and more (4,000 x 1,280 of ten kinds)"""


class Codes(Protocol):
    """Codes of N vectors, by which distances from queries are estimated."""

    def queries(self, vectors: F32, metric: Metric) -> CodeQueries | FourBitQueries:
        """Queries f32[Q, D] as the codes are compared with."""


@dataclass(frozen=True, eq=False)
class NeighborCheck:
    """The rows nearest to some rows, by their codes. Rows may have one dimension more than vectors."""

    metric: Metric
    queries: F32
    """f32[Q, D]: rows that are queries"""
    candidates: I32
    """int32[Q, n]: rows nearest by code, in order, without the query itself"""
    exact: F64
    """f64[Q, n]: their distances"""

    @classmethod
    def from_codes(
        cls, codes: Codes, vectors: F32, metric: Metric, *, extra: F32 | None = None, threads: int = 1
    ) -> "NeighborCheck":
        """Compare rows by the codes of vectors f32[N, D], and of one dimension more, `extra` f32[N]; N is 2 or more.

        The truly nearest are looked for among a few hundred rows that are nearest by code: if they are not there, they
        are not among the first of them either.
        """
        nodes = _evenly_spread(len(vectors), _QUERIES)
        queries = vectors[nodes] if extra is None else np.concatenate([vectors[nodes], extra[nodes, None]], axis=1)
        candidates = np.full((len(nodes), min(_CANDIDATES, len(vectors) - 1)), -1, np.int32)

        def fill(rows: slice) -> None:
            _nearest_by_code(codes.queries(queries[rows], metric), nodes[rows], candidates[rows])

        step = -(-len(nodes) // threads)
        for_each(fill, (slice(start, start + step) for start in range(0, len(nodes), step)), threads=threads)
        exact = _candidate_distances(vectors, nodes, candidates, metric)
        if extra is not None:
            exact = np.hypot(exact, extra[candidates].astype(np.float64) - extra[nodes, None])
        return cls(metric, queries, candidates, exact)

    @cached_property
    def are_preserved(self) -> bool:
        """Whether the nearest rows are among the nearest by code, as far as a search ranks these exactly."""
        if self.metric is Metric.INNER_PRODUCT and not _are_floats(self.exact):
            return False
        return all(self._recall(self.exact[:, : ranked_exactly(k)], k) >= _REQUIRED_RECALL for k in _NEAREST)

    def are_kept(self, codes: Codes) -> bool:
        """Whether signs that the codes have leave the nearest rows in the narrowest beam, which meets the candidates in
        the order of their numbers.
        """
        k = _NEAREST[-1]
        in_beam = np.zeros(self.candidates.shape, np.bool_)
        order = np.argsort(self.candidates, axis=1)
        ranked = self.exact[:, : ranked_exactly(k)]
        _fill_beams(codes.queries(self.queries, self.metric), self.candidates, order, ranked.shape[1], in_beam)
        kept = np.where(in_beam[:, : ranked.shape[1]], ranked, np.inf)
        return self._recall(kept, k) >= _REQUIRED_KEPT * self._recall(ranked, k)

    def _recall(self, distances: F64, k: int) -> float:
        """Mean recall of some candidates, by their distances f64[Q, n]: inf for those that are none."""
        return float(recalls_of(distances, np.sort(self.exact, axis=1)[:, :k]).mean())


def preserves_neighbors(
    codes: Codes, vectors: F32, metric: Metric, *, extra: F32 | None = None, threads: int = 1
) -> bool:
    """Whether the rows nearest to a row of vectors f32[N, D] are among the nearest by code; see `NeighborCheck`."""
    return (
        len(vectors) < 2 or NeighborCheck.from_codes(codes, vectors, metric, extra=extra, threads=threads).are_preserved
    )


def _evenly_spread(count: int, largest: int) -> I32:
    """At most `largest` of `count` rows, int32[..], evenly spread."""
    size = min(count, largest)
    return ((2 * np.arange(size, dtype=np.int64) + 1) * count // (2 * max(1, size))).astype(np.int32)


@fast_kernel
def _nearest_by_code(queries: CodeQueries | FourBitQueries, nodes: I32, candidates: I32) -> None:
    """The nodes nearest to each query into candidates int32[Q, n], in order, without its own of nodes int32[Q].

    Some nodes are compared with all queries, then the next ones: each node is read once.
    """
    width = candidates.shape[1]
    lists = np.empty((nodes.size, new_candidates(width).size), np.int64)
    lists[:] = NO_KEY
    for start in range(0, queries.norms.size, _ROWS_PER_BLOCK):
        for row in range(nodes.size):
            computer = query_computer(queries, row)
            keys = lists[row]
            for node in range(start, min(start + _ROWS_PER_BLOCK, queries.norms.size)):
                key = sort_key(distance(computer, np.int32(node)), np.int32(node))
                if key < keys[width - 1] and node != nodes[row]:
                    insert_key(keys, width - 1, key)
    for row in range(nodes.size):
        for index in range(width):
            candidates[row, index] = key_node(lists[row, index])


def _candidate_distances(vectors: F32, nodes: I32, candidates: I32, metric: Metric) -> F64:
    """Distances f64[Q, n] of candidates int32[Q, n] from the rows of nodes int32[Q]; vectors may overflow a float's."""
    kind = metric if metric is Metric.INNER_PRODUCT else Metric.L2  # which rank as the others do
    query_rows, rows = np.repeat(np.arange(len(nodes)), candidates.shape[1]), candidates.reshape(-1).astype(np.int64)
    return pair_distances(vectors[nodes], vectors, query_rows, rows, kind).reshape(candidates.shape)


def _are_floats(products: F64) -> bool:
    """Whether products are within float's range, as checks of an index, which walk by vectors, need them."""
    limits = np.finfo(np.float32)
    largest = float(np.abs(products).max(initial=0.0))
    return 1_000 * float(limits.smallest_subnormal) < largest < float(limits.max)


@fast_kernel
def _fill_beams(queries: CodeQueries | FourBitQueries, candidates: I32, order: I64, width: int, out: Bool) -> None:
    """Mark in bool[Q, n] the candidates int32[Q, n] that a beam of some width holds when it has met all of a query, in
    an order int64[Q, n].
    """
    one, keys = np.empty(1, np.int32), new_candidates(width)
    for row in range(candidates.shape[0]):
        computer = query_computer(queries, row)
        keys[:] = NO_KEY
        size = 0
        for index in order[row]:
            one[0] = candidates[row, index]
            farthest = key_distance(keys[width - 1]) if size == width else np.float32(np.inf)
            if keep_near(computer, one, 1, farthest):
                insert_key(keys, width - 1, sort_key(distance(computer, one[0]), np.int32(index)))
                size = min(size + 1, width)
        for index in range(size):
            out[row, key_node(keys[index])] = True
