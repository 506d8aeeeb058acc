"""Threshold queries: every row nearer than a distance, exactly.

Files that no ball of the centroid index lets come near enough are not looked at. Of the others the vectors are taken
from the index where it holds them unrounded, and otherwise from the data files.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ann_kernels.distance import internal_pairwise, reported
from ann_kernels.metric import Metric
from ops.probe.candidates import Hits
from ops.probe.filters import Matches
from ops.probe.loaded import LoadedVersion

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
_ROWS_AT_ONCE = 8_192
_PAIRS_AT_ONCE = 16_384
_ULP = 2.0**-22


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some rows of one or more files, with their vectors."""

    files: Integers
    positions: Integers
    vectors: Floats
    """f32[n, D] prepared"""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A distance, as the metric reports it, that rows are to be under."""

    distance: float
    inclusive: bool
    metric: Metric

    def met(self, distances: Floats) -> npt.NDArray[np.bool_]:
        """bool[n], for distances as they are reported."""
        far = distances.astype(np.float64)
        return far <= self.distance if self.inclusive else far < self.distance

    @property
    def internal(self) -> float:
        """What kernels compare with: squared for L2 and cosine; -inf where no distance is small enough."""
        if self.metric is Metric.INNER_PRODUCT:
            return self.distance
        if self.distance < 0:
            return -np.inf
        return self.distance * self.distance if self.metric is Metric.L2 else 2 * self.distance


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

    `queries` f32[Q, D] prepared. `limit`: only so many, the nearest ones, of each query.
    """
    found, compared = [Hits.none()], 0
    for part in parts:
        compared += len(part.positions)
        for asked, row in _near_pairs(queries, part.vectors, threshold):
            distances = _distances(queries[asked], part.vectors[row], threshold.metric)
            met = np.flatnonzero(threshold.met(distances))
            rows = row[met]
            found.append(Hits(asked[met], np.zeros_like(met), part.files[rows], part.positions[rows], distances[met]))
    return Hits.ranked(found, limit), compared


def _near_pairs(queries: Floats, vectors: Floats, threshold: Threshold) -> Iterator[tuple[Integers, Integers]]:
    """(query, row) pairs that may meet the threshold, some at a time: by one matrix product, generously."""
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is kept, and looked at closely
        rough = internal_pairwise(queries, vectors, threshold.metric).astype(np.float64)
        squares = [np.einsum("ij,ij->i", array, array).astype(np.float64) for array in (queries, vectors)]
        slack = queries.shape[1] * _ULP * (squares[0][:, None] + squares[1][None, :])
        limit = threshold.internal + (abs(threshold.internal) * _ULP if np.isfinite(threshold.internal) else 0.0)
        keep = ~(rough > limit + slack) & (limit > -np.inf)
    asked, row = np.nonzero(keep)
    for start in range(0, len(asked), _PAIRS_AT_ONCE):
        yield asked[start : start + _PAIRS_AT_ONCE], row[start : start + _PAIRS_AT_ONCE]


def _distances(queries: Floats, vectors: Floats, metric: Metric) -> Floats:
    """Reported distances f32[n] of pairs, summed up in float64 from differences, as exact search does it."""
    near = vectors.astype(np.float64)
    if metric is Metric.INNER_PRODUCT:
        internal = -np.einsum("ij,ij->i", near, queries.astype(np.float64))
    else:
        near -= queries
        internal = np.einsum("ij,ij->i", near, near)
    with np.errstate(over="ignore", under="ignore"):
        return reported(internal.astype(np.float32), metric).astype(np.float32)
