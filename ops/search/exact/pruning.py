"""Files that cannot hold a row within a distance: the centroid index and the triangle inequality."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I64, Bool
from icepuffin.ann_kernels.codes.coded_bounds import CodedBounds
from icepuffin.ann_kernels.distances.exact_distances import lengths
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.versions.version_reader import read_centroids
from icepuffin.ops.messages import plural
from icepuffin.ops.model import FileNumber, LiveFiles
from icepuffin.ops.search.exact.scan import RangeThresholds
from icepuffin.ops.search.indexed.distributed_search import DistributedVersion
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.target import SearchTarget, VersionChoice
from icepuffin.ops.storage import StorageError, relative_to
from icepuffin.puffin.blobs.centroid_blob import CentroidIndex
from icepuffin.puffin.errors import BadBlobError, PuffinError

_ROUNDING = 2.0**-22
"""Twice the rounding of one f32 operation, relative"""
_TINY = 1e-18
"""Largest distance whose square may vanish in f32"""
_BYTES_AT_ONCE = 64 * 1024**2
_MIN_CODED = 32
"""Balls from which on their centres have codes: of fewer the centres themselves are compared sooner"""


@dataclass(frozen=True, slots=True, eq=False)
class FileBalls:
    """Balls around the live rows of a snapshot's files; a file may have several, or none.

    Bounds come from one-byte codes of the centres first, which are a quarter of the bytes. The centres themselves
    decide about those few balls that codes leave in doubt.
    """

    files: int
    """Number of live files in the snapshot"""
    numbers: I64
    """int64[E]: file number of each ball, ascending"""
    centers: F32
    """f32[E, D], prepared as vectors are"""
    radii: F64
    """f64[E], Euclidean"""
    metric: Metric
    """Metric by which distances are reported"""
    is_rounded: bool = False
    """Whether the balls enclose rows that were rounded to f32, and the rows are compared as they were before"""
    why: str = ""
    """Means by which files are pruned, or the reason why they are not"""
    warnings: tuple[str, ...] = ()
    """Warnings of what is unreadable"""
    reaches: F64 = field(init=False)
    """f64[E]: radii, as large as they may truly be"""
    codes: CodedBounds | None = field(init=False)
    """Codes of the centres; None where they have none, or are few"""
    starts: I64 = field(init=False)
    """int64[files with a ball]: index of the first ball of each"""

    def __post_init__(self) -> None:
        order = np.argsort(self.numbers, kind="stable")
        for name in ("numbers", "centers", "radii"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name)[order]))
        reaches = self.radii * (1 + self.centers.shape[1] * _ROUNDING)
        if self.is_rounded or self.metric is Metric.COSINE:
            reaches = reaches + _ROUNDING * (lengths(self.centers) + self.radii)
        object.__setattr__(self, "reaches", reaches)
        object.__setattr__(
            self, "codes", CodedBounds.from_vectors(self.centers) if len(self.radii) >= _MIN_CODED else None
        )
        object.__setattr__(self, "starts", np.flatnonzero(np.diff(self.numbers, prepend=-1)))

    @classmethod
    def none(cls, files: int, dims: int, metric: Metric, why: str, warnings: tuple[str, ...] = ()) -> "FileBalls":
        """No ball around any file: no file is out of reach."""
        empty = np.empty(0, np.int64), np.empty((0, dims), np.float32), np.empty(0)
        return cls(files, *empty, metric, why=why, warnings=warnings)

    def reachable(self, queries: F64, thresholds: RangeThresholds) -> Bool:
        """bool[files]: whether a row of the file may be within the threshold of any query; True without a ball.

        `queries` f64[Q, D] prepared. No row is lost to rounding: radii were summed up in f32, and are taken as large as
        they may truly be.
        """
        reachable = np.ones(self.files, np.bool_)
        if not len(self.numbers):
            return reachable
        reachable[self.numbers] = False
        limits = thresholds.euclidean() * (1 + _ROUNDING) + _TINY
        for query, limit in zip(queries, limits, strict=True):
            doubtful = np.flatnonzero(~(self._least_gaps(query) > limit))  # NaN rules out nothing
            doubtful = doubtful[~reachable[self.numbers[doubtful]]]
            in_reach = doubtful[~(self._gaps(query, doubtful) > limit)]
            reachable[self.numbers[in_reach]] = True
        return reachable

    def bounds(self, queries: F64) -> F64:
        """f64[Q, files]: a distance that no row of a file is under; 0 without a ball. Not by inner product.

        By codes: `refined` gives a bound that is somewhat higher.
        """
        nearest = np.zeros((len(queries), self.files))
        for row, query in enumerate(queries if len(self.starts) else ()):
            gaps = np.minimum.reduceat(self._least_gaps(query), self.starts)
            nearest[row, self.numbers[self.starts]] = _reported(gaps, self.metric)
        return nearest

    def refined(self, queries: F64, number: FileNumber) -> F64:
        """f64[Q]: the same for one file, by the centres of its balls."""
        first, last = np.searchsorted(self.numbers, (number, number + 1))
        nearest = np.zeros(len(queries))
        centers = self.centers[first:last].astype(np.float64)
        step = max(1, _BYTES_AT_ONCE // max(1, centers.nbytes))
        for start in range(0, len(queries) if len(centers) else 0, step):
            difference = centers - queries[start : start + step, None]
            distances = np.sqrt(np.einsum("qbd,qbd->qb", difference, difference))
            gaps = distances - self.reaches[first:last]
            nearest[start : start + step] = gaps.min(axis=1)
        return _reported(nearest, self.metric)

    def proof(self, queries: F64, last: F64, files: Bool) -> tuple[F64, F64]:
        """(f64[Q]: a distance that no row of `files` is under, f64[n]: how much farther than `last` f64[Q] the rows of
        each of these n files are at least, for the query for which that is least). inf where there is nothing.

        `files` bool[files] have balls, all of them farther than `last`. Margins are by codes, where these tell.
        """
        balls = np.flatnonzero(files[self.numbers])
        starts = np.flatnonzero(np.diff(self.numbers[balls], prepend=-1))
        nearest, margins = np.full(len(queries), np.inf), np.full(len(starts), np.inf)
        for row, query in enumerate(queries if len(balls) else ()):
            gaps = self._least_gaps(query)[balls]
            first = self._gaps(query, balls[[gaps.argmin()]])
            doubtful = np.flatnonzero((gaps <= first) | (_reported(gaps, self.metric) <= last[row]))
            gaps[doubtful] = self._gaps(query, balls[doubtful])
            nearest[row] = gaps.min()  # no other than those `<= first` can be nearer
            bounds = _reported(np.minimum.reduceat(gaps, starts), self.metric)
            margins = np.minimum(margins, bounds - last[row])
        return _reported(nearest, self.metric), margins

    def _least_gaps(self, query: F64) -> F64:
        """f64[E]: distances that no ball's surface is under, from a query f64[D]; negative if it may be inside."""
        if self.codes is None:
            return self._gaps(query, np.arange(len(self.reaches)))
        return self.codes.least_distances(query) - self.reaches

    def _gaps(self, query: F64, balls: I64) -> F64:
        """f64[n]: Euclidean distances of the surfaces of balls int64[n] from a query; negative if it is inside."""
        distances = np.empty(len(balls))
        step = max(1, _BYTES_AT_ONCE // (8 * max(1, self.centers.shape[1])))
        for start in range(0, len(balls), step):
            difference = self.centers[balls[start : start + step]].astype(np.float64) - query
            distances[start : start + step] = np.sqrt(np.einsum("ij,ij->i", difference, difference))
        return np.asarray(distances - self.reaches[balls])


def _reported(gaps: F64, metric: Metric) -> F64:
    """Gaps between queries and balls as distances that `metric` reports, of rows right behind them."""
    nearest = np.maximum(0.0, (gaps - _TINY) / (1 + _ROUNDING))
    if metric is Metric.HAMMING:
        return np.asarray(nearest**2)
    return np.asarray(nearest**2 / 2) if metric is Metric.COSINE else nearest


def read_balls(target: SearchTarget, choice: VersionChoice) -> FileBalls:
    """The balls of the version that answers. Where there are none, or they cannot be read, nothing is pruned, and
    answers stay right.
    """
    opened, loaded, live = choice.opened, choice.loaded, target.live
    none = partial(FileBalls.none, len(live.files), 0 if loaded is None else loaded.dims, target.metric)
    if opened is None or loaded is None:
        return none("no index, no centroids: every file is read")
    if target.metric is Metric.INNER_PRODUCT:
        return none("inner product obeys no triangle inequality: every file is read")
    try:
        return file_balls(read_centroids(opened, target.storage), live, loaded, target.metric)
    except (PuffinError, StorageError) as error:
        warning = f"{opened.bound.puffin_path}: no file is pruned, the centroids cannot be read: {error}"
        return none(_description(0, 0), (warning,))


def file_balls(
    index: CentroidIndex, live: LiveFiles, version: LoadedVersion | DistributedVersion, metric: Metric
) -> FileBalls:
    """The balls of a version that hold for the snapshot that the version was loaded for.

    A ball encloses the rows that were live in the version's own snapshot. Where other rows are live now, it is dropped.
    """
    if index.dims != version.dims:
        raise BadBlobError(f"the centroid blob has {index.dims} dimensions, the routing blob {version.dims}")
    if index.metric != metric.code:
        raise BadBlobError(f"the centroid blob has metric {index.metric}, the index {metric.code} ({metric})")
    numbers = {relative_to(file.path, live.location): number for number, file in enumerate(live.files)}
    by_path = np.array([numbers.get(path, -1) for path in index.files], np.int64)
    by_path[~np.isin(by_path, list(version.enclosed))] = -1
    by_ball = by_path[index.file_ordinals] if len(by_path) else np.empty(0, np.int64)
    kept = np.flatnonzero(by_ball >= 0)
    return FileBalls(
        len(live.files),
        by_ball[kept],
        index.centroids[kept],
        index.max_distances[kept].astype(np.float64),
        metric,
        is_rounded=version.column_is_double,
        why=_description(len(kept), len(np.unique(by_ball[kept]))),
    )


def _description(balls: int, files: int) -> str:
    """Number of balls and of their files, in words."""
    return f"{plural(balls, 'ball')} of the centroid index, of {plural(files, 'file')}"
