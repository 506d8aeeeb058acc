"""Range search: every row nearer than a distance, exactly.

Files that no ball of the centroid index lets come near enough are skipped. Vectors of the other files are taken from
the index where it holds them unrounded, and from the data files elsewhere.
Under cosine the index holds directions that were rounded to f32. What they leave in doubt, the data files decide.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.exact_distances import pair_distances
from icepuffin.ann_kernels.lower_bounds import QUERIES_AT_ONCE, bounds_of, rounding_of_units
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.datafile import batch_rows
from icepuffin.ops.model import FileNumber
from icepuffin.ops.search.arguments import F64, I64, Bool, RangeThreshold
from icepuffin.ops.search.candidates import DistanceReader, Hits
from icepuffin.ops.search.loaded_version import LoadedVersion
from icepuffin.ops.search.matches import Matches
from icepuffin.ops.search.pruning import FilePruner
from icepuffin.ops.search.result import Pruning
from icepuffin.ops.search.row_reader import Meter, RowReader
from icepuffin.ops.search.scan import RowVectors, SkippedRows, VectorSource
from icepuffin.ops.search.target import SearchTarget, VersionChoice
from icepuffin.ops.timing import StageClock


@dataclass(frozen=True, slots=True, eq=False)
class RangeHits:
    """The rows under a threshold, and the cost of finding them."""

    hits: Hits
    compared: int
    """Rows whose vectors were compared"""
    read: int
    """Rows of the data files that were read, deleted ones included"""
    pruning: Pruning
    warnings: tuple[str, ...]


class RangeSearch:
    """Range searches of one reader. Thread-safe."""

    def __init__(
        self,
        target: SearchTarget,
        choice: VersionChoice,
        vectors: VectorSource,
        tail: Sequence[FileNumber],
        rows: RowReader,
    ) -> None:
        self._rows = rows
        self._live = target.live
        self._vectors = vectors
        self._pruner = FilePruner(target, choice)
        loaded = choice.loaded
        self._version = loaded if isinstance(loaded, LoadedVersion) and loaded.exact else None
        """Version whose vectors are compared; None where they are rounded, or not in this process"""
        self._scanned = sorted(tail if self._version else choice.covered.union(tail))
        """File numbers of the data files that are read, unless they are pruned"""

    @property
    def shards(self) -> int:
        """Number of shards that are compared."""
        return len(self._version.shards) if self._version else 0

    @property
    def where(self) -> str:
        """Place of the vectors that are compared, in words."""
        return "the index is in this process's memory" if self._version else "the data files in reach are read here"

    def find(
        self,
        queries: F64,
        threshold: RangeThreshold,
        matches: Matches | None,
        limit: int | None,
        clock: StageClock,
        meter: Meter,
    ) -> RangeHits:
        """The rows (that match), nearest first; the first `limit` per query. `queries` f64[Q, D] prepared.

        `meter` counts what is read to resolve the rounding of directions.
        """
        directions = self._version is not None and threshold.metric is Metric.COSINE
        reachable, pruning, unreadable = self._pruner.reachable(queries, threshold)
        clock.lap("prune")
        files, skipped = [number for number in self._scanned if reachable[number]], SkippedRows()
        indexed = index_rows(self._version, reachable, matches) if self._version else ()
        scanned = self._vectors.rows(files, queries.shape[1], matches, skipped)
        if directions:
            widened = threshold.widened(queries.shape[1])
            hits, compared = _hits_within(queries, widened, chain(indexed, scanned), None)
            distances = DistanceReader(queries, self._rows, self._vectors.field_id, threshold.metric, meter)
            hits = resolve_rounding(hits, threshold, limit, distances)
        else:
            hits, compared = _hits_within(queries, threshold, chain(indexed, scanned), limit)
        clock.lap("compare")
        read = sum(self._live.files[number].record_count for number in files)
        return RangeHits(hits, compared, read, pruning, (*unreadable, *skipped.warnings))


def index_rows(version: LoadedVersion, files: Bool, matches: Matches | None) -> Iterator[RowVectors]:
    """The live rows of a version that lie in `files` bool[files] (and match)."""
    files = np.append(files, False)  # file number -1: not live
    if matches is not None:
        version = version.restricted(matches)
    for shard in version.shards:
        if shard.vectors is None:
            raise ValueError("a lean shard has no vectors to compare")
        numbers = shard.file_numbers
        nodes = np.flatnonzero(shard.live & files[numbers])
        step = batch_rows(shard.vectors.shape[1])
        for start in range(0, len(nodes), step):
            batch: npt.NDArray[np.intp] | slice = nodes[start : start + step]
            if len(nodes) == len(shard.live):  # all of them: a slice copies nothing
                batch = slice(start, start + step)
            yield RowVectors(numbers[batch], shard.positions[batch], shard.vectors[batch])


def resolve_rounding(hits: Hits, threshold: RangeThreshold, limit: int | None, distances: DistanceReader) -> Hits:
    """The hits that truly meet the threshold, in their true order; the first `limit` per query.

    `hits` are ranked by directions rounded to f32, and were found with a `widened` threshold. The table's own vectors
    are read where rounding leaves it in doubt whether a row meets the threshold, or comes before the next one.
    """
    rounding = rounding_of_units(distances.queries.shape[1])
    euclidean = np.sqrt(2 * hits.distances)  # between unit vectors: wrong by `rounding`, at most
    close = (np.diff(euclidean) <= 2 * rounding) & (np.diff(hits.queries) == 0)
    first = np.flatnonzero(np.append(True, ~close)[: len(euclidean)])  # of rows whose order is in doubt
    sizes = np.diff(np.append(first, len(euclidean)))
    limit_distance = np.sqrt(2 * max(0.0, threshold.distance))
    doubtful = np.repeat(sizes > 1, sizes) | (np.abs(euclidean - limit_distance) <= rounding)
    if limit is not None:
        doubtful &= np.repeat(hits.ranks[first], sizes) <= limit
    rows = np.flatnonzero(doubtful)
    resolved = hits.distances.copy()
    resolved[rows] = distances.read(hits.queries[rows], hits.files[rows], hits.positions[rows])
    within = np.flatnonzero(threshold.admits(resolved))
    return Hits.ranked([replace(hits.take(within), distances=resolved[within])], limit)


def _hits_within(
    queries: F64, threshold: RangeThreshold, batches: Iterable[RowVectors], limit: int | None
) -> tuple[Hits, int]:
    """The rows that meet the threshold, by query, nearest first; -> (hits, rows compared).

    `queries` f64[Q, D] prepared. `limit`: only so many, the nearest ones, per query.
    """
    hits, compared = [Hits.none()], 0
    for batch in batches:
        compared += len(batch.positions)
        vectors, raw = (batch.vectors, False) if batch.raw is None else (batch.raw, True)
        for query, row in _near_pairs(queries, batch, threshold):
            distances = pair_distances(queries, vectors, query, row, threshold.metric, raw=raw)
            hit = np.flatnonzero(threshold.admits(distances))
            rows = row[hit]
            hits.append(Hits(query[hit], np.zeros_like(hit), batch.files[rows], batch.positions[rows], distances[hit]))
    return Hits.ranked(hits, limit), compared


def _near_pairs(queries: F64, batch: RowVectors, threshold: RangeThreshold) -> Iterator[tuple[I64, I64]]:
    """(query, row) pairs that may meet the threshold, by lower bounds of their distances."""
    if threshold.distance < 0 and threshold.metric is not Metric.INNER_PRODUCT:
        return  # no row is that near
    for rows, bound_of in bounds_of(batch.vectors, len(queries), threshold.metric, rounded=batch.raw is not None):
        for first in range(0, len(queries), QUERIES_AT_ONCE):
            block = queries[first : first + QUERIES_AT_ONCE]
            query, row = np.nonzero(bound_of(block).may_be_within(np.full(len(block), threshold.distance)))
            yield query + first, rows[row]
