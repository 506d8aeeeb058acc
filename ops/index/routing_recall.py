"""Routing curves of an index: the share of a query's nearest rows that lie in the shards near it.

There are two. The first is measured in the sample that the codebook is trained on, before there are shards. Neighbours
are farther apart there than in the table: it understates what few shards give, and holds for more rows than were
counted. The second is measured in the table itself, by searches of every shard that is built; see
`icepuffin.ops.tasks.routing_distances`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.recall.curves import MEASURED_K, WIDE_K, Reach, ShardCentroids, encode
from icepuffin.ops.tasks.routing_distances import RoutingDistances

MIN_QUERIES = 256
MAX_QUERIES = 1024
_ROWS_PER_QUERY = 500
"""Rows of a shard per query: searching a shard for its queries takes 1 % of the time of building it, or less"""
PROBE_SLACKS = (0.0, 0.02, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.8)


def routing_queries(rows: int, shards: int) -> int:
    """Number of queries by which the curves of a table with so many rows and shards are measured.

    Searches for 256 rows tell a recall of .95 to .01 only (one standard error), and for 1,024 to .005.
    """
    return int(np.clip(rows // max(1, shards) // _ROWS_PER_QUERY, MIN_QUERIES, MAX_QUERIES))


def split_off_queries(
    sample: npt.NDArray[np.float32], shards: int, *, queries: int, seed: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(rows f32[n, D] that the codebook is to be trained on, queries f32[Q, D]). The rows are a view of the sample, in
    which some change places.

    A row that a codebook was trained on lies nearer to its centroid than a query does. There are fewer queries where
    there are few rows, and none for one shard.
    """
    count = max(0, min(queries, len(sample) // MEASURED_K - 1)) if shards > 1 else 0
    rest = len(sample) - count
    rng = np.random.default_rng([seed, 2])
    chosen = rng.choice(len(sample), count, replace=False)
    moving, leaving = np.setdiff1d(np.arange(rest, len(sample)), chosen), np.sort(chosen[chosen < rest])
    sample[moving], sample[leaving] = sample[leaving], sample[moving]
    return sample[:rest], rng.permutation(sample[rest:])


def curve_in_sample(
    rows: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int32],
    queries: npt.NDArray[np.float32],
    codebook: npt.NDArray[np.float32],
    to_shard: npt.NDArray[np.uint32],
    metric: Metric,
) -> str:
    """The curve for the 10 nearest rows f32[n, D] of the sample, whose partitions are `labels`; "" without queries, and
    under inner product, which has no near centroids.
    """
    if not len(queries) or metric is Metric.INNER_PRODUCT:
        return ""
    nearest, _ = exact_top_k(queries, rows, MEASURED_K, metric)
    shards = to_shard[labels[nearest]].astype(np.int64)
    return encode(_points(ShardCentroids.from_codebook(codebook, to_shard), queries, shards, MEASURED_K))


def curve_in_table(
    codebook: npt.NDArray[np.float32],
    to_shard: npt.NDArray[np.uint32],
    queries: npt.NDArray[np.float32],
    distances: Sequence[RoutingDistances],
    metric: Metric,
) -> str:
    """The curve for the 10 and the 100 nearest rows of the table; "" where nothing was measured, and
    for inner products.

    queries: f32[Q, D], rows of the table. distances: those of each shard, by shard id.
    """
    if metric is Metric.INNER_PRODUCT:
        return ""
    centroids = ShardCentroids.from_codebook(codebook, to_shard)
    by_k = ((MEASURED_K, [of_shard.nearest for of_shard in distances]),
            (WIDE_K, [of_shard.wide_nearest for of_shard in distances]))  # fmt: skip
    points: list[Reach] = []
    for k, parts in by_k:
        shards = _shards_of_nearest(parts, k)
        if shards.size and (shards >= 0).all():
            points += _points(centroids, queries[: len(shards)], shards, k)
    return encode(points) if points else ""


def _shards_of_nearest(parts: Sequence[npt.NDArray[np.float64]], k: int) -> npt.NDArray[np.int64]:
    """int64[Q, k], the shards of the k nearest rows but for the query itself, which is the nearest; -1: no such row.

    parts: f64[Q, <= k + 1] by shard, the distances of its nearest rows, inf where there are fewer.
    """
    joined = np.concatenate(parts, axis=1)
    shards = np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts])
    nearest = np.argsort(joined, axis=1, kind="stable")[:, 1 : k + 1]
    if nearest.shape[1] < k:
        return np.full((len(joined), k), -1)
    return np.where(np.isfinite(np.take_along_axis(joined, nearest, axis=1)), shards[nearest], -1)


def _points(
    centroids: ShardCentroids, queries: npt.NDArray[np.float32], shards: npt.NDArray[np.int64], k: int
) -> list[Reach]:
    """The points for k rows; but for those that probe all shards. shards: int64[Q, k], those of the nearest rows."""
    ratios = centroids.distances(queries)
    ratios = ratios / np.maximum(ratios.min(axis=1, keepdims=True), np.float32(1e-12))
    columns = np.minimum(np.searchsorted(centroids.shards, shards), len(centroids.shards) - 1)
    of_neighbor = np.take_along_axis(ratios, columns, axis=1)
    of_neighbor[centroids.shards[columns] != shards] = 0  # no centroid leads there: it is always probed
    points = [
        Reach(slack, float((ratios <= 1 + slack).sum(axis=1).mean()), float((of_neighbor <= 1 + slack).mean()), k)
        for slack in PROBE_SLACKS
    ]
    return [point for point in points if point.shards < ratios.shape[1]]
