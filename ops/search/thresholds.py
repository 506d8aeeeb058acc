"""All rows within a distance: of an index in memory and of the data files in reach, as far as each is needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.search.candidates import DistanceReader, Hits
from icepuffin.ops.search.matches import Matches
from icepuffin.ops.search.range_search import RangeThreshold, hits_within, resolve_rounding, rows_of
from icepuffin.ops.search.reach import FilePruner
from icepuffin.ops.search.result import Pruning
from icepuffin.ops.search.row_reader import Meter, RowReader
from icepuffin.ops.search.scan import SkippedRows, VectorSource
from icepuffin.ops.search.shards import LoadedVersion
from icepuffin.ops.search.target import SearchTarget, VersionChoice
from icepuffin.ops.timing import StageClock


@dataclass(frozen=True, slots=True, eq=False)
class RangeHits:
    """The rows that meet a threshold, and what it took to know them."""

    hits: Hits
    compared: int
    """Rows whose vectors were looked at"""
    read: int
    """Rows of the data files that were read, deleted ones included"""
    pruning: Pruning
    warnings: tuple[str, ...]


class RangeSearch:
    """Threshold queries of one reader. Thread-safe."""

    def __init__(
        self, target: SearchTarget, source: VersionChoice, vectors: VectorSource, tail: Sequence[int], rows: RowReader
    ) -> None:
        self._rows = rows
        self._live = target.live
        self._vectors = vectors
        self._reach = FilePruner(target, source)
        loaded = source.loaded
        self._held = loaded if isinstance(loaded, LoadedVersion) and loaded.exact else None
        self._files = sorted(tail if self._held else source.covered.union(tail))
        """Whose vectors the index does not hold here as they are"""

    @property
    def shards(self) -> int:
        """That are looked at."""
        return len(self._held.shards) if self._held else 0

    @property
    def where(self) -> str:
        """What is looked at, in words."""
        return "the index is in this process's memory" if self._held else "the data files in reach are read here"

    def find(
        self,
        queries: npt.NDArray[np.float64],
        threshold: RangeThreshold,
        matches: Matches | None,
        limit: int | None,
        clock: StageClock,
        meter: Meter,
    ) -> RangeHits:
        """The rows (that match), nearest first; the first `limit` a query. `queries` f64[Q, D] prepared.

        `meter`: of what is read to settle what directions rounded to f32 leave in doubt.
        """
        directions = self._held is not None and threshold.metric is Metric.COSINE
        near, pruning, unread = self._reach.files(queries, threshold)
        clock.lap("prune")
        files, skipped = [number for number in self._files if near[number]], SkippedRows()
        inner = rows_of(self._held, near, matches) if self._held else ()
        outer = self._vectors.rows(files, queries.shape[1], matches, skipped)
        if directions:
            wide = threshold.widened(queries.shape[1])
            hits, compared = hits_within(queries, wide, chain(inner, outer), None)
            reading = DistanceReader(queries, self._rows, self._vectors.field_id, threshold.metric, meter)
            hits = resolve_rounding(hits, threshold, limit, reading)
        else:
            hits, compared = hits_within(queries, threshold, chain(inner, outer), limit)
        clock.lap("compare")
        read = sum(self._live.files[number].record_count for number in files)
        return RangeHits(hits, compared, read, pruning, (*unread, *skipped.warnings))
