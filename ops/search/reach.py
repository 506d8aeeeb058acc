"""Which files a threshold query has to look at: balls of the version that answers, where the metric allows it."""

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.version_reader import OpenVersion, read_centroids
from icepuffin.ops.search.distributed import DistributedVersion
from icepuffin.ops.search.pruning import FileBalls, file_balls
from icepuffin.ops.search.range_search import RangeThreshold
from icepuffin.ops.search.result import Pruning
from icepuffin.ops.search.shards import LoadedVersion
from icepuffin.ops.search.target import SearchTarget, VersionChoice
from icepuffin.ops.storage import StorageError
from icepuffin.puffin.errors import PuffinError


class FilePruner:
    """Of one reader. Balls are read with the first query that needs them; thread-safe."""

    def __init__(self, target: SearchTarget, source: VersionChoice) -> None:
        self._target = target
        self._source = source
        self._balls: tuple[FileBalls, tuple[str, ...]] | None = None

    def files(
        self, queries: npt.NDArray[np.float64], threshold: RangeThreshold
    ) -> tuple[npt.NDArray[np.bool_], Pruning, tuple[str, ...]]:
        """bool[files] that may hold a row under the threshold, what that saves, and what could not be read for it."""
        counts = np.array([file.record_count for file in self._target.live.files], np.int64)
        near = np.ones(len(counts), np.bool_)
        unread: tuple[str, ...] = ()
        opened, loaded = self._source.opened, self._source.loaded
        if opened is None or loaded is None:
            why = "no index, no centroids: every file is looked at"
        elif threshold.metric is Metric.INNER_PRODUCT:
            why = "inner product obeys no triangle inequality: every file is looked at"
        else:
            balls, unread = self._read(opened, loaded)
            near = balls.reached(queries, threshold.distance, threshold.metric, rounded=loaded.column_is_double)
            why = f"{len(balls.radii)} balls of the centroid index, of {len(np.unique(balls.numbers))} files"
        gone = ~near
        return near, Pruning(len(counts), int(gone.sum()), int(counts.sum()), int(counts[gone].sum()), why), unread

    def _read(
        self, opened: OpenVersion, loaded: LoadedVersion | DistributedVersion
    ) -> tuple[FileBalls, tuple[str, ...]]:
        """Without them nothing is pruned, and the answer is as right."""
        if self._balls is None:
            live = self._target.live
            try:
                self._balls = file_balls(read_centroids(opened, self._target.storage), live, loaded), ()
            except (PuffinError, StorageError) as error:
                said = f"{opened.version.puffin_path}: no file is pruned, the centroids cannot be read: {error}"
                self._balls = FileBalls.none(len(live.files), loaded.dims), (said,)
        return self._balls
