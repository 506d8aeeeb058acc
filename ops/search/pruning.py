"""Which files can hold a row within a distance: the centroid blob and the triangle inequality."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import LiveFiles
from icepuffin.ops.search.distributed import DistributedVersion
from icepuffin.ops.search.shards import LoadedVersion
from icepuffin.ops.storage import relative_to
from icepuffin.puffin.blobs.centroid import CentroidIndex
from icepuffin.puffin.errors import BadBlobError

_ROUNDING = 2.0**-22
"""Twice the rounding of one f32 operation, relative"""
_TINY = 1e-18
"""Squares of smaller distances vanish in f32"""
_BYTES_AT_ONCE = 64 * 1024**2


@dataclass(frozen=True, slots=True, eq=False)
class FileBalls:
    """Balls around the live rows of files of one snapshot; a file may have several, or none."""

    files: int
    """Live files of the snapshot"""
    numbers: npt.NDArray[np.int64]
    """int64[E], the live file of each ball"""
    centers: npt.NDArray[np.float32]
    """f32[E, D], prepared as vectors are"""
    radii: npt.NDArray[np.float64]
    """f64[E], Euclidean"""

    @classmethod
    def none(cls, files: int, dims: int) -> "FileBalls":
        """No ball, of any file: nothing is out of reach."""
        return cls(files, np.empty(0, np.int64), np.empty((0, dims), np.float32), np.empty(0))

    def reached(
        self, queries: npt.NDArray[np.float64], distance: float, metric: Metric, *, rounded: bool = False
    ) -> npt.NDArray[np.bool_]:
        """bool[files]: whether a row of the file may be within `distance`, as `metric` reports it, of any query.

        `queries` f64[Q, D] prepared. True for files without a ball. No row is lost to rounding: radii were summed up in
        f32, and are taken as large as that can have made them too small. `rounded`: rows are compared as they were
        before they were rounded to f32, and put into a ball.
        """
        held = np.zeros(self.files, np.bool_)
        held[self.numbers] = True
        near = ~held
        limit = euclidean(distance, metric) * (1 + _ROUNDING) + _TINY
        reach = self.radii * (1 + queries.shape[1] * _ROUNDING) + limit
        if rounded or metric is Metric.COSINE:
            reach += _ROUNDING * (np.linalg.norm(self.centers.astype(np.float64), axis=1) + self.radii)
        step = max(1, _BYTES_AT_ONCE // (8 * queries.shape[1]))
        for start in range(0, len(self.numbers), step):
            part = slice(start, start + step)
            centers = self.centers[part].astype(np.float64)
            open_ = np.zeros(len(centers), np.bool_)
            for query in queries:
                gap = centers - query
                open_ |= np.sqrt(np.einsum("ij,ij->i", gap, gap)) <= reach[part]
            near[self.numbers[part][open_]] = True
        return near


def euclidean(distance: float, metric: Metric) -> float:
    """The Euclidean distance between prepared vectors at which `metric` reports `distance`; inner product has none."""
    if metric is Metric.COSINE:  # of unit vectors: |q - x|^2 = 2 (1 - q x)
        return math.sqrt(2 * max(0.0, distance))
    return max(0.0, distance)


def file_balls(index: CentroidIndex, live: LiveFiles, version: LoadedVersion | DistributedVersion) -> FileBalls:
    """The balls of a version that hold for the snapshot that it was loaded for.

    A ball holds the rows that were live in the version's own snapshot. Where others are live now it says nothing.
    """
    if index.dims != version.dims:
        raise BadBlobError(f"the centroid blob has {index.dims} dimensions, the routing blob {version.dims}")
    numbers = {relative_to(file.path, live.location): number for number, file in enumerate(live.files)}
    of_file = np.array([numbers.get(path, -1) for path in index.files], np.int64)
    of_file[~np.isin(of_file, list(version.balled))] = -1
    of_ball = of_file[index.file_ordinals] if len(of_file) else np.empty(0, np.int64)
    kept = np.flatnonzero(of_ball >= 0)
    return FileBalls(
        files=len(live.files),
        numbers=of_ball[kept],
        centers=index.centroids[kept],
        radii=index.max_distances[kept].astype(np.float64),
    )
