"""Range search: every row nearer than a distance, exactly.

Files that no ball of the centroid index lets come near enough are skipped. Vectors of the other files are taken from
the index where it holds them unrounded, and from the data files elsewhere.
Under cosine the index holds directions that were rounded to f32. What they leave in doubt, the data files decide.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import F64, Bool
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.model import FileNumber
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.rows.candidates import Candidates, DistanceReader, Hits, merge_sorted
from icepuffin.ops.rows.datafile import batch_rows
from icepuffin.ops.rows.row_reader import Meter, RowReader
from icepuffin.ops.search.exact.file_scans import FileScans, FilesRead
from icepuffin.ops.search.exact.pruning import FileBalls, read_balls
from icepuffin.ops.search.exact.scan import (
    RangeThresholds,
    RowVectors,
    SkippedRows,
    VectorSource,
    hits_within,
    resolve_rounding,
)
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.result import Certificate, Pruning
from icepuffin.ops.search.source_answer import SourceAnswer
from icepuffin.ops.search.target import SearchTarget, VersionChoice
from icepuffin.ops.search.tuning import SearchParameters

_SLACK = 1 + 1e-9
"""Ratio of a bound to the distance that it is made from, for sums in another order"""


class RangeSearch:
    """Searches of the data files that balls leave in reach, and of the index where it has their vectors. Thread-safe.

    It is the source of nearest rows where an index has no graphs. `is_complete`: whether all live rows can be found.
    """

    def __init__(
        self,
        target: SearchTarget,
        choice: VersionChoice,
        vectors: VectorSource,
        tail: Sequence[FileNumber],
        rows: RowReader,
        files: FileScans,
        *,
        is_complete: bool,
    ) -> None:
        self._rows = rows
        self._files = files
        self._live = target.live
        self._vectors = vectors
        self._is_complete = is_complete
        self._read_balls = partial(read_balls, target, choice)
        here = choice.here
        self._version = here if here is not None and here.exact and len(here.shards) else None
        """Version whose vectors are compared; None where they are rounded, or not in this process"""
        self._scanned = sorted(tail if self._version else choice.covered.union(tail))
        """File numbers of the data files that are read, unless they are pruned"""

    @property
    def shards(self) -> int:
        """Number of shards that are compared."""
        return len(self._version.shards) if self._version else 0

    def within(
        self, queries: F64, thresholds: RangeThresholds, matches: Matches | None, limit: int | None, clock: StageClock
    ) -> SourceAnswer:
        """The rows (that match), nearest first; the first `limit` per query. `queries` f64[Q, D] prepared."""
        return self._find(queries, thresholds, matches, limit, clock, Meter())[0]

    def certify(self, queries: F64, first: Hits, k: int, matches: Matches | None, clock: StageClock) -> SourceAnswer:
        """The k nearest rows (that match) of each query with their proof, by up to k rows in `first`. Not by inner
        product.

        The k-th nearest row is no farther than the farthest of any k rows. So rows within that distance are all that
        can be among the k nearest. Where fewer were found, every row can be.
        """
        meter = Meter()
        farthest = np.where(np.bincount(first.queries, minlength=len(queries)) >= k, 0.0, np.inf)
        exact = self._distances(queries, meter).read(first.queries, first.files, first.positions)
        np.maximum.at(farthest, first.queries, exact)
        thresholds = RangeThresholds(farthest * _SLACK, inclusive=True, metric=self._vectors.metric)
        answer, reachable = self._find(queries, thresholds, matches, k, clock, meter)
        last = answer.hits.first_distances(len(queries), k)[:, -1]
        pruned_from, margins = self._balls.proof(queries, last, ~reachable)
        answer.strategy, answer.certificate = "certified", self._certificate(last, pruned_from, ~reachable, margins)
        return answer

    def settle(self, answer: SourceAnswer, queries: F64, k: int) -> int:
        """Leave the k nearest of rows that are ranked by rounded directions: data files decide where these leave
        doubt. Returns the bytes that were read.
        """
        meter, every = Meter(), RangeThresholds.none(len(queries), self._vectors.metric)
        answer.rows = resolve_rounding(answer.hits, every, k, self._distances(queries, meter))
        return meter.bytes

    def nearest(
        self, queries: F64, k: int, matches: Matches | None, parameters: SearchParameters | None
    ) -> SourceAnswer:
        """See Source. By the data files alone, with a proof of their rows. Not by inner product.

        Files are read in the order of their lower bounds. None is left that may hold one of the k nearest rows of a
        query: its bound is over the distance of the k-th row by then.
        Memory: a bound of 8 bytes for each pair of a query and a file.
        """
        bounds = self._balls.bounds(queries)
        matching = (number for number in self._scanned if matches is None or number in matches.positions)
        numbers = np.array(list(matching), np.intp)
        order = numbers[np.argsort(bounds.min(axis=0, initial=np.inf)[numbers], kind="stable")]
        best = Candidates.none(len(queries), k)
        pruned = np.isin(np.arange(len(self._live.files)), numbers)
        compared, read, skipped = 0, FilesRead(), SkippedRows()
        for part in self._files.groups(len(order)):
            members, farthest = order[part], best.distances[:, -1]
            in_reach = np.zeros(len(members), np.bool_)
            for nearest, last in zip(bounds, farthest, strict=True):
                in_reach |= nearest[members] <= last
            members = members[in_reach]
            group, least = [FileNumber(number) for number in members.tolist()], bounds[:, members]
            scan = self._files.nearest(queries, k, group, least, farthest, matches, self._balls.refined, read)
            bounds[:, members] = least
            best = merge_sorted([best, scan.candidates], k)
            pruned[list(scan.files)] = False
            compared += scan.compared
            skipped.add(scan.skipped.count, scan.skipped.first)
        pruned_from, last = bounds.min(axis=1, initial=np.inf, where=pruned), best.distances[:, -1]
        margins = (bounds[:, pruned] - last[:, None]).min(axis=0, initial=np.inf)
        proof = self._certificate(last, pruned_from, pruned, margins) if self._is_complete else None
        return SourceAnswer(
            best,
            len(queries),
            "pruned scan",
            condition="" if matches is None else matches.how,
            scanned=compared,
            bytes_read=self._vectors.value_bytes * compared * queries.shape[1],
            pruning=self._saved(pruned),
            certificate=proof,
            tier=read.tier,
            where=f"the index has no graphs: {self._files.where(read)}",
            warnings=(*self._balls.warnings, *skipped.warnings),
        )

    def _distances(self, queries: F64, meter: Meter) -> DistanceReader:
        """Distances by the vectors of the data files."""
        return DistanceReader(queries, self._rows, self._vectors.field_id, self._vectors.metric, meter)

    @cached_property
    def _balls(self) -> FileBalls:
        """The balls by which files are pruned: read with the first query that needs them."""
        return self._read_balls()

    def _saved(self, pruned: Bool) -> Pruning:
        """What it saves not to read the files `pruned` bool[files]."""
        rows = np.array([file.record_count for file in self._live.files], np.int64)
        return Pruning(len(rows), int(pruned.sum()), int(rows.sum()), int(rows[pruned].sum()), self._balls.why)

    def _certificate(self, last: F64, pruned_from: F64, pruned: Bool, margins: F64) -> Certificate:
        """The proof of an answer, by the distances f64[Q] of its last rows, and the margins f64[n] of pruned files."""
        paths = [self._live.files[number].path for number in np.flatnonzero(pruned).tolist()]
        return Certificate(
            tuple(last.tolist()), tuple(pruned_from.tolist()), dict(zip(paths, margins.tolist(), strict=True))
        )

    def _find(
        self,
        queries: F64,
        thresholds: RangeThresholds,
        matches: Matches | None,
        limit: int | None,
        clock: StageClock,
        meter: Meter,
    ) -> tuple[SourceAnswer, Bool]:
        """(the rows (that match) within thresholds, bool[files] that were not pruned).

        `meter` counts what is read to resolve the rounding of directions.
        """
        directions = self._version is not None and thresholds.metric is Metric.COSINE
        reachable = self._balls.reachable(queries, thresholds)
        clock.lap("prune")
        files, read = [number for number in self._scanned if reachable[number]], FilesRead()
        indexed = index_rows(self._version, reachable, matches) if self._version else ()
        # directions of the index are rounded: what they leave in doubt is resolved for all rows together
        limits, most = (thresholds.widened(queries.shape[1]), None) if directions else (thresholds, limit)
        hits, compared = hits_within(queries, limits, indexed, most)
        scan = self._files.within(queries, limits, files, matches, most, read)
        hits = Hits.ranked([hits, scan.hits], most) if files else hits
        if directions:
            hits = resolve_rounding(hits, thresholds, limit, self._distances(queries, meter))
        clock.lap("compare")
        compared += scan.compared
        where = self._files.where(read)
        answer = SourceAnswer(
            hits,
            len(queries),
            "threshold",
            compared=compared * len(queries),
            scanned=self._live.record_count_of(files),
            bytes_read=self._vectors.value_bytes * read.rows * queries.shape[1] + meter.bytes,
            condition="" if matches is None else matches.how,
            pruning=self._saved(~reachable),
            tier=read.tier,
            where=f"the index is in this process's memory; {where}" if self._version else where,
            warnings=(*self._balls.warnings, *scan.skipped.warnings),
        )
        return answer, reachable


def index_rows(version: LoadedVersion, files: Bool, matches: Matches | None) -> Iterator[RowVectors]:
    """The live rows of a version that lie in `files` bool[files] (and match)."""
    reaches_all = bool(files.all())
    files = np.append(files, False)  # file number -1: not live
    for shard in version.shards if matches is None else version.restricted_shards(matches):
        if shard.vectors is None:
            raise ValueError("a lean shard has no vectors to compare")
        numbers = shard.file_numbers
        if reaches_all and shard.searcher.live_count == shard.nodes:
            nodes = np.arange(shard.nodes)
        else:
            nodes = np.flatnonzero(shard.is_live & files[numbers])
        step = batch_rows(shard.vectors.shape[1])
        for start in range(0, len(nodes), step):
            batch: npt.NDArray[np.intp] | slice = nodes[start : start + step]
            if len(nodes) == shard.nodes:  # all of them: a slice copies nothing
                batch = slice(start, start + step)
            yield RowVectors(numbers[batch], shard.positions[batch], shard.vectors[batch])
