"""Range search: every row nearer than a distance, exactly.

Files that no ball of the centroid index lets come near enough are skipped. Vectors of the other files are taken from
the index where it holds them unrounded, and from the data files elsewhere.
Under cosine the index holds directions that were rounded to f32. What they leave in doubt, the data files decide.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import F64, Bool
from icepuffin.ann_kernels.distances.lower_bounds import rounding_of_units
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.model import FileNumber
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.rows.candidates import Candidates, DistanceReader, Hits, merge_sorted
from icepuffin.ops.rows.datafile import batch_rows
from icepuffin.ops.rows.row_reader import Meter, RowReader
from icepuffin.ops.search.arguments import RangeThresholds
from icepuffin.ops.search.exact.file_scans import IN_PROCESS, FileScans, FilesRead
from icepuffin.ops.search.exact.pruning import FilePruner
from icepuffin.ops.search.exact.scan import RowVectors, SkippedRows, VectorSource, hits_within
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.result import Certificate, Profile, Pruning
from icepuffin.ops.search.target import SearchTarget, VersionChoice

_SLACK = 1 + 1e-9
"""Ratio of a bound to the distance that it is made from, for sums in another order"""


@dataclass(frozen=True, slots=True, eq=False)
class RangeHits:
    """The rows under a threshold, and the cost of finding them."""

    hits: Hits
    compared: int
    """Rows whose vectors were compared"""
    read: int
    """Rows of the data files in reach, deleted ones included, in memory or not"""
    read_from_files: int
    """Rows of the files that were read"""
    reachable: Bool
    """bool[files]: live files that were not pruned"""
    pruning: Pruning
    tier: str
    """Tier as `Profile.tier` has it"""
    where: str
    """Place of the vectors that were compared, in words"""
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CertifiedHits:
    """The k nearest rows per query, and the proof of it with its cost."""

    hits: Hits
    certificate: Certificate
    pruning: Pruning
    compared: int
    """Pairs of query and row that were compared for the proof"""
    read: int
    """Rows of the data files that were read for the proof"""
    bytes_read: int
    tier: str
    """Tier of the proof as `Profile.tier` has it"""
    where: str
    """Place of the vectors that were compared for the proof, in words"""
    warnings: tuple[str, ...] = ()

    def profile(self, first: Profile) -> Profile:
        """The profile of the whole search, from that of its first answer."""
        return replace(
            first,
            tier=first.tier if self.tier == IN_PROCESS else self.tier,
            tier_why=f"{first.tier_why}; of the proof: {self.where}",
            strategy=f"{first.strategy} + certified",
            distances=first.distances + self.compared,
            tail_rows=first.tail_rows + self.read,
            pruning=self.pruning,
            certificate=self.certificate,
        )


@dataclass(frozen=True, slots=True, eq=False)
class NearestRows:
    """The k nearest rows per query by the data files in reach, the proof of it, and its cost."""

    candidates: Candidates
    certificate: Certificate
    pruning: Pruning
    compared: int
    """Rows whose vectors were compared"""
    tier: str
    """Tier as `Profile.tier` has it"""
    where: str
    """Place where data files were read, in words"""
    warnings: tuple[str, ...] = ()

    def profile(self, first: Profile, *, complete: bool) -> Profile:
        """The profile of the search, from one that lacks the proof. There is none unless all live rows are `complete`ly
        in these files.
        """
        return replace(
            first,
            strategy="pruned scan",
            pruning=self.pruning,
            certificate=self.certificate if complete else None,
            tier=self.tier,
            tier_why=f"the index has no graphs: {self.where}",
        )


class RangeSearch:
    """Range searches of one reader. Thread-safe."""

    def __init__(
        self,
        target: SearchTarget,
        choice: VersionChoice,
        vectors: VectorSource,
        tail: Sequence[FileNumber],
        rows: RowReader,
        files: FileScans,
    ) -> None:
        self._rows = rows
        self._files = files
        self._live = target.live
        self._vectors = vectors
        self._pruner = FilePruner(target, choice)
        loaded = choice.loaded
        self._version = loaded if isinstance(loaded, LoadedVersion) and loaded.exact and len(loaded.shards) else None
        """Version whose vectors are compared; None where they are rounded, or not in this process"""
        self._scanned = sorted(tail if self._version else choice.covered.union(tail))
        """File numbers of the data files that are read, unless they are pruned"""

    def certify(self, queries: F64, first: Hits, k: int, matches: Matches | None, clock: StageClock) -> CertifiedHits:
        """The k nearest rows (that match) of each query, by up to k rows in `first`. Not by inner product.

        The k-th nearest row is no farther than the farthest of any k rows. So rows within that distance are all that
        can be among the k nearest. Where fewer were found, every row can be.
        """
        meter, metric = Meter(), self._vectors.metric
        farthest = np.where(np.bincount(first.queries, minlength=len(queries)) >= k, 0.0, np.inf)
        distances = DistanceReader(queries, self._rows, self._vectors.field_id, metric, meter)
        np.maximum.at(farthest, first.queries, distances.read(first.queries, first.files, first.positions))
        thresholds = RangeThresholds(farthest * _SLACK, inclusive=True, metric=metric)
        answer = self.find(queries, thresholds, matches, k, clock, meter)
        last = answer.hits.first_distances(len(queries), k)[:, -1]
        pruned_from, margins = self._pruner.proof(queries, last, answer.reachable)
        return CertifiedHits(
            hits=answer.hits,
            certificate=self._certificate(last, pruned_from, ~answer.reachable, margins),
            pruning=answer.pruning,
            compared=answer.compared * len(queries),
            read=answer.read,
            bytes_read=meter.bytes + self._vectors.value_bytes * answer.read_from_files * queries.shape[1],
            tier=answer.tier,
            where=answer.where,
            warnings=answer.warnings,
        )

    def nearest(self, queries: F64, k: int, matches: Matches | None, skipped: SkippedRows) -> NearestRows:
        """The k nearest rows (that match) of each query, from the data files. Not by inner product.

        Files are read in the order of their lower bounds. None is left that may hold one of the k nearest rows of a
        query: its bound is over the distance of the k-th row by then. `skipped` counts rows without a distance.
        Memory: a bound of 8 bytes for each pair of a query and a file.
        """
        bounds, unreadable = self._pruner.bounds(queries)
        matching = (number for number in self._scanned if matches is None or number in matches.positions)
        numbers = np.array(list(matching), np.intp)
        order = numbers[np.argsort(bounds.min(axis=0, initial=np.inf)[numbers], kind="stable")]
        best = Candidates.none(len(queries), k)
        pruned = np.isin(np.arange(len(self._live.files)), numbers)
        compared, read = 0, FilesRead()
        for part in self._files.groups(len(order)):
            members, farthest = order[part], best.distances[:, -1]
            in_reach = np.zeros(len(members), np.bool_)
            for nearest, last in zip(bounds, farthest, strict=True):
                in_reach |= nearest[members] <= last
            members = members[in_reach]
            group, least = [FileNumber(number) for number in members.tolist()], bounds[:, members]
            scan = self._files.nearest(queries, k, group, least, farthest, matches, self._pruner.refined, read)
            bounds[:, members] = least
            best = merge_sorted([best, scan.candidates], k)
            pruned[list(scan.files)] = False
            compared += scan.compared
            skipped.add(scan.skipped.count, scan.skipped.first)
        pruned_from, last = bounds.min(axis=1, initial=np.inf, where=pruned), best.distances[:, -1]
        margins = (bounds[:, pruned] - last[:, None]).min(axis=0, initial=np.inf)
        return NearestRows(
            candidates=best,
            certificate=self._certificate(last, pruned_from, pruned, margins),
            pruning=self._pruner.saved(pruned),
            compared=compared,
            tier=read.tier,
            where=self._files.where(read),
            warnings=unreadable,
        )

    def _certificate(self, last: F64, pruned_from: F64, pruned: Bool, margins: F64) -> Certificate:
        """The proof of an answer, by the distances f64[Q] of its last rows, and the margins f64[n] of pruned files."""
        paths = [self._live.files[number].path for number in np.flatnonzero(pruned).tolist()]
        return Certificate(
            tuple(last.tolist()), tuple(pruned_from.tolist()), dict(zip(paths, margins.tolist(), strict=True))
        )

    @property
    def shards(self) -> int:
        """Number of shards that are compared."""
        return len(self._version.shards) if self._version else 0

    def find(
        self,
        queries: F64,
        thresholds: RangeThresholds,
        matches: Matches | None,
        limit: int | None,
        clock: StageClock,
        meter: Meter,
    ) -> RangeHits:
        """The rows (that match), nearest first; the first `limit` per query. `queries` f64[Q, D] prepared.

        `meter` counts what is read to resolve the rounding of directions.
        """
        directions = self._version is not None and thresholds.metric is Metric.COSINE
        reachable, pruning, unreadable = self._pruner.reachable(queries, thresholds)
        clock.lap("prune")
        files, read = [number for number in self._scanned if reachable[number]], FilesRead()
        indexed = index_rows(self._version, reachable, matches) if self._version else ()
        # directions of the index are rounded: what they leave in doubt is resolved for all rows together
        limits, most = (thresholds.widened(queries.shape[1]), None) if directions else (thresholds, limit)
        hits, compared = hits_within(queries, limits, indexed, most)
        scan = self._files.within(queries, limits, files, matches, most, read)
        hits = Hits.ranked([hits, scan.hits], most) if files else hits
        if directions:
            distances = DistanceReader(queries, self._rows, self._vectors.field_id, thresholds.metric, meter)
            hits = resolve_rounding(hits, thresholds, limit, distances)
        clock.lap("compare")
        return RangeHits(
            hits=hits,
            compared=compared + scan.compared,
            read=self._live.record_count_of(files),
            read_from_files=read.rows,
            reachable=reachable,
            pruning=pruning,
            tier=read.tier,
            where=self._where(read),
            warnings=(*unreadable, *scan.skipped.warnings),
        )

    def _where(self, read: FilesRead) -> str:
        """Place of the vectors that were compared, in words."""
        files = self._files.where(read)
        return f"the index is in this process's memory; {files}" if self._version else files


def index_rows(version: LoadedVersion, files: Bool, matches: Matches | None) -> Iterator[RowVectors]:
    """The live rows of a version that lie in `files` bool[files] (and match)."""
    reaches_all = bool(files.all())
    files = np.append(files, False)  # file number -1: not live
    if matches is not None:
        version = version.restricted(matches)
    for shard in version.shards:
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


def resolve_rounding(hits: Hits, thresholds: RangeThresholds, limit: int | None, distances: DistanceReader) -> Hits:
    """The hits that truly meet the thresholds, in their true order; the first `limit` per query.

    `hits` are ranked by directions rounded to f32, and were found with `widened` thresholds. The table's own vectors
    are read where rounding leaves it in doubt whether a row meets its threshold, or comes before the next one.
    """
    rounding = rounding_of_units(distances.queries.shape[1])
    euclidean = np.sqrt(2 * hits.distances)  # between unit vectors: wrong by `rounding`, at most
    close = (np.diff(euclidean) <= 2 * rounding) & (np.diff(hits.queries) == 0)
    first = np.flatnonzero(np.append(True, ~close)[: len(euclidean)])  # of rows whose order is in doubt
    sizes = np.diff(np.append(first, len(euclidean)))
    limits = thresholds.euclidean()[hits.queries]
    doubtful = np.repeat(sizes > 1, sizes) | (np.abs(euclidean - limits) <= rounding)
    if limit is not None:
        doubtful &= np.repeat(hits.ranks[first], sizes) <= limit
    rows = np.flatnonzero(doubtful)
    resolved = hits.distances.copy()
    resolved[rows] = distances.read(hits.queries[rows], hits.files[rows], hits.positions[rows])
    within = np.flatnonzero(thresholds.admit(hits.queries, resolved))
    return Hits.ranked([replace(hits.take(within), distances=resolved[within])], limit)
