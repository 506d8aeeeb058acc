"""Threshold queries: every row nearer than a distance, exactly.

Files that no ball of the centroid index lets come near enough are not looked at. Of the others the vectors are taken
from the index where it holds them unrounded, and otherwise from the data files.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.bounds import QUERIES_AT_ONCE, bounds_of
from icepuffin.ann_kernels.exact import pair_distances
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.probe.candidates import Hits
from icepuffin.ops.probe.filters import Matches
from icepuffin.ops.probe.loaded import LoadedVersion

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
_ROWS_AT_ONCE = 8_192


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some rows of one or more files, with their vectors."""

    files: Integers
    positions: Integers
    vectors: npt.NDArray[Any]
    """[n, D]: of unit length under cosine, f32; otherwise as the table or the index has them, f32 or f64"""
    raw: npt.NDArray[Any] | None = None
    """Under cosine, what `vectors` are the rounded directions of, where it is known"""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A distance, as the metric reports it, that rows are to be under."""

    distance: float
    inclusive: bool
    metric: Metric

    def met(self, distances: Floats) -> npt.NDArray[np.bool_]:
        """bool[n], for distances as they are reported."""
        return distances <= self.distance if self.inclusive else distances < self.distance


def rows_of(version: LoadedVersion, near: npt.NDArray[np.bool_], matches: Matches | None) -> Iterator[Rows]:
    """The live rows that the index holds of the files that are `near` bool[files], and that match."""
    near = np.append(near, False)  # file -1: not live
    if matches is not None:
        version = version.restricted(matches)
    for shard in version.shards:
        if shard.vectors is None:
            raise ValueError("a lean shard has no vectors to compare")
        nodes = np.flatnonzero(shard.live & near[shard.file_numbers])
        for start in range(0, len(nodes), _ROWS_AT_ONCE):
            some: npt.NDArray[np.intp] | slice = nodes[start : start + _ROWS_AT_ONCE]
            if len(nodes) == len(shard.live):  # all of them: no copies
                some = slice(start, start + _ROWS_AT_ONCE)
            yield Rows(shard.file_numbers[some], shard.positions[some], shard.vectors[some])


def hits_within(queries: Floats, threshold: Threshold, parts: Iterable[Rows], limit: int | None) -> tuple[Hits, int]:
    """The rows that meet the threshold, by query, nearest first; -> (hits, rows compared).

    `queries` f64[Q, D] prepared. `limit`: only so many, the nearest ones, of each query.
    """
    found, compared = [Hits.none()], 0
    for part in parts:
        compared += len(part.positions)
        vectors, raw = (part.vectors, False) if part.raw is None else (part.raw, True)
        for asked, row in _near_pairs(queries, part, threshold):
            distances = pair_distances(queries, vectors, asked, row, threshold.metric, raw=raw)
            met = np.flatnonzero(threshold.met(distances))
            rows = row[met]
            found.append(Hits(asked[met], np.zeros_like(met), part.files[rows], part.positions[rows], distances[met]))
    return Hits.ranked(found, limit), compared


def _near_pairs(queries: Floats, part: Rows, threshold: Threshold) -> Iterator[tuple[Integers, Integers]]:
    """(query, row) pairs that may meet the threshold, by lower bounds of their distances."""
    if threshold.distance < 0 and threshold.metric is not Metric.INNER_PRODUCT:
        return  # nothing is that near
    for rows, bound_of in bounds_of(part.vectors, len(queries), threshold.metric, rounded=part.raw is not None):
        for first in range(0, len(queries), QUERIES_AT_ONCE):
            some = queries[first : first + QUERIES_AT_ONCE]
            asked, row = np.nonzero(bound_of(some).may_be_within(np.full(len(some), threshold.distance)))
            yield asked + first, rows[row]
