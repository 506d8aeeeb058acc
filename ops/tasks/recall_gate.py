"""The recall gate of a shard: its recall before it is published, and its recall curve over the width of the search."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.distances.recall import recalls_of, with_themselves
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs.graph_search import MIN_CODED, Searcher
from icepuffin.ann_kernels.graphs.vamana import Graph
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.process.large_arrays import as_floats
from icepuffin.ops.recall.curves import GATE_QUERIES, MEASURED_K, OVERSAMPLE, WIDE_K, Width, encode, longer_list
from icepuffin.ops.recall.shard_recall import ShardRecall
from icepuffin.ops.shards.shard_codes import as_kernels_take
from icepuffin.puffin.blobs.shard_blob import Shard

_WIDE_SHARE = 4
"""Queries for 10 rows per query for `WIDE_K` rows"""
CURVE_QUERIES = 128
"""Queries of a shard's curve for 10 rows, at most; a quarter as many tell about more rows in the curve for 100"""
_MIN_CURVE_QUERIES = 32
_ALL_CURVE_QUERIES = 1024
"""Queries of all shards together: a search takes the curves of all as one"""
CURVE_WIDTHS = (10, 16, 25, 40, 64, 100, 160, 250)
WIDE_CURVE_WIDTHS = (100, 130, 190, 280, 400)
"""Widths of the curve for `WIDE_K` rows"""
CURVE_OVERSAMPLES = (1, 2, 3, 5, 8, 16)
WIDE_CURVE_OVERSAMPLES = (1, 2, 3, 5)
_RERANKED = {
    MEASURED_K: [(100, 2), (100, 3), (160, 3), (250, 5)],
    WIDE_K: [(280, 2), (400, 3)],
}
"""(width, oversample) of searches by rotated codes whose candidates are ranked by the table's vectors, by rows"""


def measure_recall(
    shard: Shard,
    vectors: npt.NDArray[np.float32],
    is_live: npt.NDArray[np.bool_],
    *,
    seed: int,
    threads: int,
    queries: int = GATE_QUERIES,
    at_once: int = GATE_QUERIES,
    searcher: Searcher | None = None,
) -> ShardRecall:
    """recall@10 and recall@100 of a shard, with some of its own live rows as queries; a row is no answer to itself.

    vectors: f32[N, D], prepared, as the table has them. queries: their number. at_once: how many are compared with all
    rows together. searcher: the shard's own, as `searcher_of` makes it, for any live nodes; None: one is made here.
    Returns 1.0, of no queries, where there is nothing to find. Deterministic.
    """
    nodes = np.flatnonzero(is_live)
    if len(nodes) < 2:
        return ShardRecall(1.0, 0)
    query_nodes = np.sort(np.random.default_rng(seed).choice(nodes, min(queries, len(nodes)), replace=False))
    searcher = searcher_for(shard, vectors, is_live, searcher)

    def mean(query_nodes: npt.NDArray[np.intp], rows: int) -> float:
        parts = [query_nodes[start : start + at_once] for start in range(0, len(query_nodes), at_once)]
        recalls = [
            recall_of_nodes(searcher, shard, vectors, is_live, part, threads=threads, rows=rows) for part in parts
        ]
        return float(np.concatenate(recalls).mean())

    recall = mean(query_nodes, MEASURED_K)
    if len(nodes) <= WIDE_K:
        return ShardRecall(recall, len(query_nodes))
    wide_nodes = query_nodes[::_WIDE_SHARE]
    return ShardRecall(recall, len(query_nodes), mean(wide_nodes, WIDE_K), len(wide_nodes))


def recall_of_nodes(
    searcher: Searcher,
    shard: Shard,
    vectors: npt.NDArray[np.float32],
    is_live: npt.NDArray[np.bool_],
    query_nodes: npt.NDArray[np.intp],
    *,
    threads: int,
    rows: int = MEASURED_K,
) -> npt.NDArray[np.float64]:
    """f64[Q], recall@`rows` of searches by the vectors of some live nodes; a node is no answer to itself.

    vectors: f32[N, D], prepared. The shard may hold them rounded, or as codes only; the search uses what it holds, and
    answers are compared by `vectors`. Candidates of a lean shard are re-ranked by exact distance, as in a search. Ties
    count as `recalls_of` and `with_themselves` say. There must be two live nodes at least.
    """
    metric = Metric.of_code(shard.metric)
    k = min(rows + 1, int(is_live.sum()))
    exact_ids, exact = exact_top_k(vectors[query_nodes], vectors, k, metric, is_live=is_live)
    answers, _ = search_by_defaults(searcher, shard, vectors[query_nodes], k, threads=threads)
    distances = exact_of(vectors[query_nodes], vectors, answers, metric)
    itself = query_nodes[:, None]
    others = np.sort(np.where(exact_ids == itself, np.inf, exact), axis=1)[:, :rows]
    own = np.where(exact_ids == itself, exact, np.inf).min(axis=1)
    recalls = recalls_of(np.where(answers == itself, np.inf, distances), others)
    return with_themselves(recalls, others, own, (answers == itself).any(axis=1))


def search_by_defaults(
    searcher: Searcher, shard: Shard, queries: npt.NDArray[np.float32], k: int, *, threads: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Candidates of a search by default parameters: nodes int64[Q, k], or k x OVERSAMPLE where PQ codes tell distances,
    and the distances f64 of the same shape that they are ranked by.

    One of the k rows may be the query itself.
    """
    oversample = OVERSAMPLE if is_lean(shard) else 1
    width = shard.search_list + longer_list(k - 1, oversample)
    answers, distances, _ = searcher.search(queries, k * oversample, search_list=width, threads=threads)
    return answers, distances


def curve_queries(shards: int) -> int:
    """Queries of the curve of each of so many shards."""
    return max(_MIN_CURVE_QUERIES, min(CURVE_QUERIES, _ALL_CURVE_QUERIES // max(1, shards)))


def measure_curve(
    shard: Shard,
    vectors: npt.NDArray[np.float32],
    is_live: npt.NDArray[np.bool_],
    *,
    seed: int,
    threads: int,
    queries: int = CURVE_QUERIES,
    searcher: Searcher | None = None,
) -> str:
    """The recall curve of a shard: recall@10 and distances per query for several widths; "" for very few rows.

    The same for recall@100, where the shard has 100 rows for each of its queries.

    Encoded as in `icepuffin.ops.recall.curves`. Queries are some of the shard's own rows, held out: no edge leads to
    them and none of them is an answer. Otherwise they would be found at once, and new vectors would not reach the
    recall that the curve says. searcher: as of `measure_recall`. Deterministic.
    """
    counts = {WIDE_K: queries // _WIDE_SHARE, MEASURED_K: queries}
    parts = [
        _curve(shard, vectors, is_live, k, count, seed=seed, threads=threads, searcher=searcher)
        for k, count in counts.items()
    ]
    return encode([point for part in parts for point in part]) if parts[-1] else ""


def _curve(
    shard: Shard,
    vectors: npt.NDArray[np.float32],
    is_live: npt.NDArray[np.bool_],
    k: int,
    queries: int,
    *,
    seed: int,
    threads: int,
    searcher: Searcher | None,
) -> list[Width]:
    """The points for k rows; none for very few rows."""
    searcher = searcher_for(shard, vectors, is_live, searcher)
    nodes = np.setdiff1d(np.flatnonzero(is_live), searcher.landmarks)
    count = min(queries, len(nodes) // k)
    if not count:
        return []
    query_nodes = np.sort(np.random.default_rng([seed, 1]).choice(nodes, count, replace=False))
    others = is_live.copy()
    others[query_nodes] = False
    if others.sum() < k:
        return []
    metric = Metric.of_code(shard.metric)
    _, exact = exact_top_k(vectors[query_nodes], vectors, k, metric, is_live=others)
    searcher = searcher.masked(Bitmap.from_mask(others), unreachable=count)
    points = []
    with held_out(shard, query_nodes):
        for width, oversample in curve_settings(shard, k):
            answers, _, stats = searcher.search(
                vectors[query_nodes], k * oversample, search_list=width, threads=threads
            )
            distances = exact_of(vectors[query_nodes], vectors, answers, metric)
            recall = float(recalls_of(distances, exact).mean())
            points.append(Width(width, oversample, recall, float(stats.distances.mean()), k))
    return points


def curve_settings(shard: Shard, k: int) -> list[tuple[int, int]]:
    """(width, oversample) of the points of a shard's curve for k rows."""
    if is_lean(shard):
        oversamples = CURVE_OVERSAMPLES if k == MEASURED_K else WIDE_CURVE_OVERSAMPLES
        return [(max(shard.search_list, 2 * k * oversample), oversample) for oversample in oversamples]
    widths = CURVE_WIDTHS if k == MEASURED_K else WIDE_CURVE_WIDTHS
    return [*((width, 1) for width in widths), *(_RERANKED[k] if shard.codes is not None else ())]


def is_lean(shard: Shard) -> bool:
    """Whether PQ codes alone tell distances."""
    return shard.vectors is None and shard.pq_codebook is not None and shard.pq_codes is not None


def searcher_of(
    shard: Shard,
    vectors: npt.NDArray[np.float32] | None,
    is_live: npt.NDArray[np.bool_],
    *,
    coded_from: int = MIN_CODED,
) -> Searcher:
    """A searcher of what the shard holds: vectors, or else codes; or else of `vectors` f32[N, D].

    coded_from: number of vectors from which the graph is walked by one-byte codes.
    """
    graph = Graph(shard.neighbors, shard.degrees, shard.medoid)
    if is_lean(shard):
        pq: Any = shard.pq_codebook, shard.pq_codes
        return Searcher(graph, None, Metric.of_code(shard.metric), is_live=is_live, pq=pq)
    if (rotated := as_kernels_take(shard.codes)) is not None:
        return Searcher(graph, None, Metric.of_code(shard.metric), is_live=is_live, rotated=rotated)
    kept = vectors if shard.vectors is None else as_floats(shard.vectors)
    return Searcher(graph, kept, Metric.of_code(shard.metric), is_live=is_live, coded_from=coded_from)


def searcher_for(
    shard: Shard, vectors: npt.NDArray[np.float32], is_live: npt.NDArray[np.bool_], searcher: Searcher | None
) -> Searcher:
    """A searcher for some live nodes: the one there is, whose codes take reading all vectors, or a new one."""
    return searcher_of(shard, vectors, is_live) if searcher is None else searcher.masked(Bitmap.from_mask(is_live))


@contextmanager
def held_out(shard: Shard, nodes: npt.NDArray[np.intp]) -> Iterator[None]:
    """Remove the edges to `nodes` for a while, in place: a copy would be the largest array of a build."""
    held_out = np.zeros(shard.count, np.bool_)
    held_out[nodes] = True
    block = 16_384
    leading = [
        start + np.flatnonzero((held_out[part] & (part >= 0)).any(axis=1))
        for start in range(0, shard.count, block)
        for part in (shard.neighbors[start : start + block],)
    ]
    rows = np.concatenate(leading)
    neighbors, degrees = shard.neighbors[rows], shard.degrees[rows]
    try:
        for row in rows:
            kept = shard.neighbors[row][: shard.degrees[row]]
            kept = kept[~held_out[kept]]
            shard.neighbors[row] = -1
            shard.neighbors[row, : len(kept)] = kept
            shard.degrees[row] = len(kept)
        yield
    finally:
        shard.neighbors[rows], shard.degrees[rows] = neighbors, degrees


def exact_of(
    query_vectors: npt.NDArray[np.float32],
    vectors: npt.NDArray[np.float32],
    answers: npt.NDArray[np.int64],
    metric: Metric,
) -> npt.NDArray[np.float64]:
    """f64[Q, k], exact distances of the answers, each in its answer's slot; inf where there is no answer.

    A pair has the same bits here and in `exact_top_k`: a limit needs no tolerance. With one, farther rows would count
    where all distances are large and lie close together, as inner products may.
    """
    out = np.full(answers.shape, np.inf)
    queries, columns = np.divmod(np.flatnonzero(answers >= 0), answers.shape[1])
    chosen = answers[queries, columns]
    out[queries, columns] = pair_distances(query_vectors, vectors, queries, chosen, metric)
    return out
