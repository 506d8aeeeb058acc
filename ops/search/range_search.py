"""Threshold queries: every row nearer than a distance, exactly.

Files that no ball of the centroid index lets come near enough are not looked at. Of the others the vectors are taken
from the index where it holds them unrounded, and otherwise from the data files.
Under cosine the index holds directions that were rounded to f32: what they leave in doubt, the data files decide.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.exact_distances import pair_distances
from icepuffin.ann_kernels.lower_bounds import QUERIES_AT_ONCE, bounds_of, rounding_of_units
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.datafile import batch_rows
from icepuffin.ops.search.candidates import DistanceReader, Hits
from icepuffin.ops.search.matches import Matches
from icepuffin.ops.search.shards import LoadedVersion

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RowVectors:
    """Some rows of one or more files, with their vectors."""

    files: Integers
    positions: Integers
    vectors: npt.NDArray[Any]
    """[n, D]: of unit length under cosine, f32; otherwise as the table or the index has them, f32 or f64"""
    raw: npt.NDArray[Any] | None = None
    """Under cosine, what `vectors` are the rounded directions of, where it is known"""


@dataclass(frozen=True, slots=True)
class RangeThreshold:
    """A distance, as the metric reports it, that rows are to be under."""

    distance: float
    inclusive: bool
    metric: Metric

    @classmethod
    def none(cls, metric: Metric) -> "RangeThreshold":
        """The threshold that every distance meets."""
        return cls(np.inf, inclusive=True, metric=metric)

    def met(self, distances: Floats) -> npt.NDArray[np.bool_]:
        """bool[n], for distances as they are reported."""
        return distances <= self.distance if self.inclusive else distances < self.distance

    def widened(self, dims: int) -> "RangeThreshold":
        """Under cosine, met by all rows of which directions rounded to f32 may say that they meet this one."""
        if self.distance < 0:
            return self  # nothing is that near
        reach = np.sqrt(2 * self.distance) + rounding_of_units(dims)
        return replace(self, distance=float(reach**2 / 2), inclusive=True)


def rows_of(version: LoadedVersion, near: npt.NDArray[np.bool_], matches: Matches | None) -> Iterator[RowVectors]:
    """The live rows that the index holds of the files that are `near` bool[files], and that match."""
    near = np.append(near, False)  # file -1: not live
    if matches is not None:
        version = version.restricted(matches)
    for shard in version.shards:
        if shard.vectors is None:
            raise ValueError("a lean shard has no vectors to compare")
        nodes = np.flatnonzero(shard.live & near[shard.file_numbers])
        step = batch_rows(shard.vectors.shape[1])
        for start in range(0, len(nodes), step):
            some: npt.NDArray[np.intp] | slice = nodes[start : start + step]
            if len(nodes) == len(shard.live):  # all of them: no copies
                some = slice(start, start + step)
            yield RowVectors(shard.file_numbers[some], shard.positions[some], shard.vectors[some])


def hits_within(
    queries: Floats, threshold: RangeThreshold, parts: Iterable[RowVectors], limit: int | None
) -> tuple[Hits, int]:
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


def resolve_rounding(hits: Hits, threshold: RangeThreshold, limit: int | None, reading: DistanceReader) -> Hits:
    """What of `hits`, ranked by directions rounded to f32 and found with a `widened` threshold, meets the threshold.

    The table's own vectors are read where rounding leaves it in doubt whether a row meets the threshold, or whether it
    comes before the next one, and their distances are put in.
    """
    off = rounding_of_units(reading.queries.shape[1])
    reach = np.sqrt(2 * hits.distances)  # between unit vectors: wrong by `off`, at most
    close = (np.diff(reach) <= 2 * off) & (np.diff(hits.queries) == 0)
    first = np.flatnonzero(np.append(True, ~close)[: len(reach)])  # of rows whose order is in doubt
    sizes = np.diff(np.append(first, len(reach)))
    doubtful = np.repeat(sizes > 1, sizes) | (np.abs(reach - np.sqrt(2 * max(0.0, threshold.distance))) <= off)
    if limit is not None:
        doubtful &= np.repeat(hits.ranks[first], sizes) <= limit
    rows = np.flatnonzero(doubtful)
    distances = hits.distances.copy()
    distances[rows] = reading.distances(hits.queries[rows], hits.files[rows], hits.positions[rows])
    met = np.flatnonzero(threshold.met(distances))
    return Hits.ranked([replace(hits.taken(met), distances=distances[met])], limit)


def _near_pairs(queries: Floats, part: RowVectors, threshold: RangeThreshold) -> Iterator[tuple[Integers, Integers]]:
    """(query, row) pairs that may meet the threshold, by lower bounds of their distances."""
    if threshold.distance < 0 and threshold.metric is not Metric.INNER_PRODUCT:
        return  # nothing is that near
    for rows, bound_of in bounds_of(part.vectors, len(queries), threshold.metric, rounded=part.raw is not None):
        for first in range(0, len(queries), QUERIES_AT_ONCE):
            some = queries[first : first + QUERIES_AT_ONCE]
            asked, row = np.nonzero(bound_of(some).may_be_within(np.full(len(some), threshold.distance)))
            yield asked + first, rows[row]
