"""Distances that rows of a range search stay under: the rows that do, and those about which rounding leaves doubt."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I64, Bool
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.distances.lower_bounds import QUERIES_AT_ONCE, bounds_of, rounding_of_units
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.rows.candidates import DistanceReader, Hits
from icepuffin.ops.search.exact.scan import RowVectors

_PAIRS_PENDING = 1 << 20
"""Pairs of query and row that a search with a limit collects before it keeps the nearest ones"""


@dataclass(frozen=True, slots=True, eq=False)
class RangeThresholds:
    """The distances, as the metric reports them, that a range search stays under: one per query."""

    distances: F64
    """f64[Q]"""
    inclusive: bool
    """Whether rows exactly at the threshold count"""
    metric: Metric

    @classmethod
    def from_distance(cls, distance: float, queries: int, metric: Metric, *, inclusive: bool) -> "RangeThresholds":
        """The same distance for all queries."""
        return cls(np.full(queries, distance, np.float64), inclusive, metric)

    @classmethod
    def none(cls, queries: int, metric: Metric) -> "RangeThresholds":
        """Thresholds that every distance meets."""
        return cls.from_distance(np.inf, queries, metric, inclusive=True)

    def admit(self, queries: I64, distances: F64) -> Bool:
        """bool[n]: whether reported distances f64[n] from queries int64[n] are within the thresholds."""
        limits = self.distances[queries]
        return distances <= limits if self.inclusive else distances < limits

    def euclidean(self) -> F64:
        """f64[Q]: distances between prepared vectors at which the metric reports these; inner product has none."""
        positive = np.maximum(self.distances, 0.0)
        if self.metric is Metric.HAMMING:
            return np.asarray(np.sqrt(positive))
        # of unit vectors: |q - x|^2 = 2 (1 - q x)
        return np.sqrt(2 * positive) if self.metric is Metric.COSINE else positive

    def widened(self, dims: int) -> "RangeThresholds":
        """For cosine, thresholds for directions rounded to f32: every row that may meet these meets them."""
        wide = (self.euclidean() + rounding_of_units(dims)) ** 2 / 2
        none = self.distances < 0  # no row is that near
        return replace(self, distances=np.where(none, self.distances, wide), inclusive=True)


def hits_within(
    queries: F64, thresholds: RangeThresholds, batches: Iterable[RowVectors], limit: int | None
) -> tuple[Hits, int]:
    """(rows that meet the thresholds, by query, nearest first; number of rows compared).

    `queries` f64[Q, D] prepared. `limit`: only so many, the nearest ones, per query. Memory: all rows that meet the
    thresholds; with a limit that many per query, and `_PAIRS_PENDING`.
    """
    hits, compared, pending = [Hits.none()], 0, 0
    for batch in batches:
        compared += len(batch.positions)
        vectors, raw = (batch.vectors, False) if batch.raw is None else (batch.raw, True)
        for query, row in _near_pairs(queries, batch, thresholds):
            distances = pair_distances(queries, vectors, query, row, thresholds.metric, raw=raw)
            hit = np.flatnonzero(thresholds.admit(query, distances))
            rows = row[hit]
            hits.append(Hits(query[hit], np.zeros_like(hit), batch.files[rows], batch.positions[rows], distances[hit]))
            pending += len(hit)
            if limit is not None and pending > max(_PAIRS_PENDING, limit * len(queries)):
                hits, pending = [Hits.ranked(hits, limit)], 0
    return Hits.ranked(hits, limit), compared


def _near_pairs(queries: F64, batch: RowVectors, thresholds: RangeThresholds) -> Iterator[tuple[I64, I64]]:
    """(query, row) pairs that may meet the thresholds, by lower bounds of their distances."""
    distances = thresholds.distances
    if thresholds.metric is not Metric.INNER_PRODUCT:
        if (distances < 0).all():
            return  # no row is that near
        distances = np.maximum(distances, 0.0)
    for rows, bound_of in bounds_of(batch.vectors, len(queries), thresholds.metric, rounded=batch.raw is not None):
        for first in range(0, len(queries), QUERIES_AT_ONCE):
            block = slice(first, first + QUERIES_AT_ONCE)
            query, row = np.nonzero(bound_of(queries[block]).may_be_within(distances[block]))
            yield query + first, rows[row]


def resolve_rounding(hits: Hits, thresholds: RangeThresholds, limit: int | None, distances: DistanceReader) -> Hits:
    """The hits that truly meet the thresholds, in their true order; the first `limit` per query.

    `hits` are ranked by directions rounded to f32, and were found with `widened` thresholds. The table's own vectors
    are read where rounding leaves it in doubt whether a row meets its threshold, or comes before the next one.
    """
    rounding = rounding_of_units(distances.queries.shape[1])
    euclidean = np.sqrt(2 * hits.distances)  # between unit vectors: wrong by `rounding`, at most
    close = (np.diff(euclidean) <= 2 * rounding) & (np.diff(hits.queries) == 0)
    first = np.flatnonzero(np.append(True, ~close)[: len(euclidean)])  # of rows whose order is in doubt
    sizes = np.diff(np.append(first, len(euclidean)))
    limits = thresholds.euclidean()[hits.queries]
    doubtful = np.repeat(sizes > 1, sizes) | (np.abs(euclidean - limits) <= rounding)
    if limit is not None:
        doubtful &= np.repeat(hits.ranks[first], sizes) <= limit
    rows = np.flatnonzero(doubtful)
    resolved = hits.distances.copy()
    resolved[rows] = distances.read(hits.queries[rows], hits.files[rows], hits.positions[rows])
    within = np.flatnonzero(thresholds.admit(hits.queries, resolved))
    return Hits.ranked([replace(hits.take(within), distances=resolved[within])], limit)
