"""Files that cannot hold a row within a distance: the centroid index and the triangle inequality."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I64, Bool
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.version_reader import OpenVersion, read_centroids
from icepuffin.ops.model import LiveFiles
from icepuffin.ops.search.arguments import RangeThresholds
from icepuffin.ops.search.distributed_search import DistributedVersion
from icepuffin.ops.search.loaded_version import LoadedVersion
from icepuffin.ops.search.result import Pruning
from icepuffin.ops.search.target import SearchTarget, VersionChoice
from icepuffin.ops.storage import StorageError, relative_to
from icepuffin.puffin.blobs.centroid import CentroidIndex
from icepuffin.puffin.errors import BadBlobError, PuffinError

_ROUNDING = 2.0**-22
"""Twice the rounding of one f32 operation, relative"""
_TINY = 1e-18
"""Largest distance whose square may vanish in f32"""
_BYTES_AT_ONCE = 64 * 1024**2


@dataclass(frozen=True, slots=True, eq=False)
class FileBalls:
    """Balls around the live rows of a snapshot's files; a file may have several, or none."""

    files: int
    """Number of live files in the snapshot"""
    numbers: I64
    """int64[E]: file number of each ball"""
    centers: F32
    """f32[E, D], prepared as vectors are"""
    radii: F64
    """f64[E], Euclidean"""

    @classmethod
    def none(cls, files: int, dims: int) -> "FileBalls":
        """No ball around any file: no file is out of reach."""
        return cls(files, np.empty(0, np.int64), np.empty((0, dims), np.float32), np.empty(0))

    @property
    def description(self) -> str:
        """Number of balls and of their files, in words."""
        return f"{len(self.radii)} balls of the centroid index, of {len(np.unique(self.numbers))} files"

    def reachable(self, queries: F64, thresholds: RangeThresholds, *, rounded: bool = False) -> Bool:
        """bool[files]: whether a row of the file may be within the threshold of any query; True without a ball.

        `queries` f64[Q, D] prepared. No row is lost to rounding: radii were summed up in f32, and are taken as large as
        they may truly be. `rounded`: the balls enclose rows that were rounded to f32, and the rows are compared as they
        were before.
        """
        has_ball = np.zeros(self.files, np.bool_)
        has_ball[self.numbers] = True
        reachable = ~has_ball
        limits = thresholds.euclidean() * (1 + _ROUNDING) + _TINY
        for query, balls, gaps in self._gaps(queries, thresholds.metric, rounded=rounded):
            reachable[balls[gaps <= limits[query]]] = True
        return reachable

    def bounds(self, queries: F64, metric: Metric, *, rounded: bool = False) -> F64:
        """f64[Q, files]: a distance, as `metric` reports it, that no row of a file is under; 0 without a ball.

        `rounded` as in `reachable`.
        """
        nearest = np.full((len(queries), self.files), np.inf)
        for query, balls, gaps in self._gaps(queries, metric, rounded=rounded):
            np.minimum.at(nearest[query], balls, gaps)
        nearest[np.isinf(nearest)] = 0.0
        return _reported(nearest, metric)

    def nearest(self, queries: F64, files: Bool, metric: Metric, *, rounded: bool = False) -> F64:
        """f64[Q]: a distance, as `metric` reports it, that no row of `files` is under; inf where there are none.

        `files` bool[files] have balls. `rounded` as in `reachable`.
        """
        nearest = np.full(len(queries), np.inf)
        for query, balls, gaps in self._gaps(queries, metric, rounded=rounded):
            nearest[query] = min(nearest[query], gaps[files[balls]].min(initial=np.inf))
        return _reported(nearest, metric)

    def _gaps(self, queries: F64, metric: Metric, *, rounded: bool) -> Iterator[tuple[int, I64, F64]]:
        """(query, file number of each ball, Euclidean distance of each ball's surface from the query) of some balls.

        Negative for a query inside a ball. For each block of balls all queries come in turn.
        """
        reach = self.radii * (1 + queries.shape[1] * _ROUNDING)
        if rounded or metric is Metric.COSINE:
            reach += _ROUNDING * (np.linalg.norm(self.centers.astype(np.float64), axis=1) + self.radii)
        step = max(1, _BYTES_AT_ONCE // (8 * queries.shape[1]))
        for start in range(0, len(self.numbers), step):
            block = slice(start, start + step)
            centers = self.centers[block].astype(np.float64)
            for number, query in enumerate(queries):
                difference = centers - query
                distances = np.sqrt(np.einsum("ij,ij->i", difference, difference))
                yield number, self.numbers[block], distances - reach[block]


def _reported(gaps: F64, metric: Metric) -> F64:
    """Gaps between queries and balls as distances that `metric` reports, of rows right behind them."""
    nearest = np.maximum(0.0, (gaps - _TINY) / (1 + _ROUNDING))
    return np.asarray(nearest**2 / 2) if metric is Metric.COSINE else nearest


class FilePruner:
    """Decides which files a range search reads. The balls are read with the first query that needs them; thread-safe.

    The balls are those of the version that answers.
    """

    def __init__(self, target: SearchTarget, choice: VersionChoice) -> None:
        self._target = target
        self._choice = choice
        self._balls: tuple[FileBalls, tuple[str, ...]] | None = None

    def reachable(self, queries: F64, thresholds: RangeThresholds) -> tuple[Bool, Pruning, tuple[str, ...]]:
        """bool[files] that may hold a row under a threshold, what that saves, and warnings of what is unreadable."""
        reachable = np.ones(len(self._target.live.files), np.bool_)
        unreadable: tuple[str, ...] = ()
        opened, loaded = self._choice.opened, self._choice.loaded
        if opened is None or loaded is None:
            why = "no index, no centroids: every file is read"
        elif thresholds.metric is Metric.INNER_PRODUCT:
            why = "inner product obeys no triangle inequality: every file is read"
        else:
            balls, unreadable = self._read(opened, loaded)
            reachable = balls.reachable(queries, thresholds, rounded=loaded.column_is_double)
            why = balls.description
        return reachable, self._saved(~reachable, why), unreadable

    def bounds(self, queries: F64) -> tuple[F64, tuple[str, ...]]:
        """(f64[Q, files]: a distance that no row of a file is under, warnings of what is unreadable). Not by inner
        product. There must be a version.
        """
        opened, loaded = self._choice.opened, self._choice.loaded
        if opened is None or loaded is None:
            raise ValueError("there is no version")
        balls, unreadable = self._read(opened, loaded)
        return balls.bounds(queries, self._target.metric, rounded=loaded.column_is_double), unreadable

    def saved(self, pruned: Bool) -> Pruning:
        """What it saves not to read the files `pruned` bool[files], by the balls that `bounds` has read."""
        return self._saved(pruned, self._balls[0].description if self._balls else "")

    def _saved(self, pruned: Bool, why: str) -> Pruning:
        counts = np.array([file.record_count for file in self._target.live.files], np.int64)
        return Pruning(len(counts), int(pruned.sum()), int(counts.sum()), int(counts[pruned].sum()), why)

    def nearest_pruned(self, queries: F64, reachable: Bool) -> F64:
        """f64[Q]: a distance that no row of the files that are not `reachable` is under; inf where all are."""
        opened, loaded = self._choice.opened, self._choice.loaded
        if opened is None or loaded is None or reachable.all():
            return np.full(len(queries), np.inf)
        balls, _ = self._read(opened, loaded)
        return balls.nearest(queries, ~reachable, self._target.metric, rounded=loaded.column_is_double)

    def _read(
        self, opened: OpenVersion, loaded: LoadedVersion | DistributedVersion
    ) -> tuple[FileBalls, tuple[str, ...]]:
        """The balls, and a warning where they cannot be read: then nothing is pruned, and answers stay right."""
        if self._balls is None:
            live = self._target.live
            try:
                self._balls = file_balls(read_centroids(opened, self._target.storage), live, loaded), ()
            except (PuffinError, StorageError) as error:
                warning = f"{opened.bound.puffin_path}: no file is pruned, the centroids cannot be read: {error}"
                self._balls = FileBalls.none(len(live.files), loaded.dims), (warning,)
        return self._balls


def file_balls(index: CentroidIndex, live: LiveFiles, version: LoadedVersion | DistributedVersion) -> FileBalls:
    """The balls of a version that hold for the snapshot that the version was loaded for.

    A ball encloses the rows that were live in the version's own snapshot. Where other rows are live now, it is dropped.
    """
    if index.dims != version.dims:
        raise BadBlobError(f"the centroid blob has {index.dims} dimensions, the routing blob {version.dims}")
    numbers = {relative_to(file.path, live.location): number for number, file in enumerate(live.files)}
    by_path = np.array([numbers.get(path, -1) for path in index.files], np.int64)
    by_path[~np.isin(by_path, list(version.enclosed))] = -1
    by_ball = by_path[index.file_ordinals] if len(by_path) else np.empty(0, np.int64)
    kept = np.flatnonzero(by_ball >= 0)
    return FileBalls(
        files=len(live.files),
        numbers=by_ball[kept],
        centers=index.centroids[kept],
        radii=index.max_distances[kept].astype(np.float64),
    )
