"""Exact comparison of vectors with the thresholds of a range search."""

from collections.abc import Iterable, Iterator

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.distances.lower_bounds import QUERIES_AT_ONCE, bounds_of
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.rows.candidates import Hits
from icepuffin.ops.search.arguments import RangeThresholds
from icepuffin.ops.search.exact.scan import RowVectors

_PAIRS_PENDING = 1 << 20
"""Pairs of query and row that a search with a limit collects before it keeps the nearest ones"""


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
