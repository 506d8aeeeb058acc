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

from icepuffin.ann_kernels.arrays import F64, I64, Bool
from icepuffin.ann_kernels.exact_distances import pair_distances
from icepuffin.ann_kernels.lower_bounds import QUERIES_AT_ONCE, bounds_of, rounding_of_units
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.top_k import ExactTopK
from icepuffin.ops.addresses import addresses_of, rows_at
from icepuffin.ops.catalog.row_deletes import growing_groups
from icepuffin.ops.datafile import batch_rows
from icepuffin.ops.model import FileNumber
from icepuffin.ops.search.arguments import RangeThresholds
from icepuffin.ops.search.candidates import Candidates, DistanceReader, Hits
from icepuffin.ops.search.loaded_version import LoadedVersion
from icepuffin.ops.search.matches import Matches
from icepuffin.ops.search.pruning import FilePruner
from icepuffin.ops.search.result import Certificate, Profile, Pruning
from icepuffin.ops.search.row_reader import Meter, RowReader
from icepuffin.ops.search.scan import RowVectors, SkippedRows, VectorSource
from icepuffin.ops.search.target import SearchTarget, VersionChoice
from icepuffin.ops.stage_clock import StageClock

_PAIRS_PENDING = 1 << 20
"""Pairs of query and row that a search with a limit collects before it keeps the nearest ones"""
_SLACK = 1 + 1e-9
"""Ratio of a bound to the distance that it is made from, for sums in another order"""


@dataclass(frozen=True, slots=True, eq=False)
class RangeHits:
    """The rows under a threshold, and the cost of finding them."""

    hits: Hits
    compared: int
    """Rows whose vectors were compared"""
    read: int
    """Rows of the data files that were read, deleted ones included"""
    reachable: Bool
    """bool[files]: live files that were not pruned"""
    pruning: Pruning
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
    warnings: tuple[str, ...] = ()

    def profile(self, first: Profile) -> Profile:
        """The profile of the whole search, from that of its first answer."""
        return replace(
            first,
            strategy=f"{first.strategy} + certified",
            distances=first.distances + self.compared,
            tail_rows=first.tail_rows + self.read,
            pruning=self.pruning,
            certificate=self.certificate,
            bytes_read={**first.bytes_read, "compare": self.bytes_read},
        )


@dataclass(frozen=True, slots=True, eq=False)
class NearestRows:
    """The k nearest rows per query by the data files in reach, the proof of it, and its cost."""

    candidates: Candidates
    certificate: Certificate
    pruning: Pruning
    compared: int
    """Rows whose vectors were compared"""
    warnings: tuple[str, ...] = ()

    def profile(self, first: Profile, *, complete: bool) -> Profile:
        """The profile of the search, from one that lacks the proof. There is none unless all live rows are `complete`ly
        in these files.
        """
        certificate = self.certificate if complete else None
        return replace(first, strategy="pruned scan", pruning=self.pruning, certificate=certificate)


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
        pruned_from = self._pruner.nearest_pruned(queries, answer.reachable)
        return CertifiedHits(
            hits=answer.hits,
            certificate=Certificate.of(answer.hits, k, pruned_from),
            pruning=answer.pruning,
            compared=answer.compared * len(queries),
            read=answer.read,
            bytes_read=meter.bytes + self._vectors.value_bytes * answer.read * queries.shape[1],
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
        top = ExactTopK(queries, k, self._vectors.metric)
        pruned = np.isin(np.arange(len(self._live.files)), numbers)
        compared = 0
        for part in growing_groups(len(order)):
            members = order[part]
            in_reach = np.zeros(len(members), np.bool_)
            for nearest, farthest in zip(bounds, top.farthest, strict=True):
                in_reach |= nearest[members] <= farthest
            group = [FileNumber(number) for number in members[in_reach].tolist()]
            deleted = self._vectors.deleted_in_group(group if matches is None else ())
            for number in group:
                undecided = np.flatnonzero(bounds[:, number] <= top.farthest)
                bounds[undecided, number] = self._pruner.refined(queries[undecided], number)
                if (bounds[undecided, number] > top.farthest[undecided]).all():
                    continue
                pruned[number] = False
                for rows in self._vectors.rows([number], queries.shape[1], matches, skipped, deleted):
                    top.update(rows.vectors, addresses_of(rows.files, rows.positions), raw=rows.raw)
                    compared += len(rows.positions)
        addresses, distances = top.result()
        pruned_from = bounds.min(axis=1, initial=np.inf, where=pruned)
        return NearestRows(
            candidates=Candidates(*rows_at(addresses), distances),
            certificate=Certificate(tuple(distances[:, -1].tolist()), tuple(pruned_from.tolist())),
            pruning=self._pruner.saved(pruned),
            compared=compared,
            warnings=unreadable,
        )

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
        files, skipped = [number for number in self._scanned if reachable[number]], SkippedRows()
        indexed = index_rows(self._version, reachable, matches) if self._version else ()
        scanned = self._vectors.rows(files, queries.shape[1], matches, skipped)
        if directions:
            widened = thresholds.widened(queries.shape[1])
            hits, compared = _hits_within(queries, widened, chain(indexed, scanned), None)
            distances = DistanceReader(queries, self._rows, self._vectors.field_id, thresholds.metric, meter)
            hits = resolve_rounding(hits, thresholds, limit, distances)
        else:
            hits, compared = _hits_within(queries, thresholds, chain(indexed, scanned), limit)
        clock.lap("compare")
        read = sum(self._live.files[number].record_count for number in files)
        return RangeHits(hits, compared, read, reachable, pruning, (*unreadable, *skipped.warnings))


def index_rows(version: LoadedVersion, files: Bool, matches: Matches | None) -> Iterator[RowVectors]:
    """The live rows of a version that lie in `files` bool[files] (and match)."""
    files = np.append(files, False)  # file number -1: not live
    if matches is not None:
        version = version.restricted(matches)
    for shard in version.shards:
        if shard.vectors is None:
            raise ValueError("a lean shard has no vectors to compare")
        numbers = shard.file_numbers
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


def _hits_within(
    queries: F64, thresholds: RangeThresholds, batches: Iterable[RowVectors], limit: int | None
) -> tuple[Hits, int]:
    """(rows that meet the thresholds, by query, nearest first; number of rows compared).

    `queries` f64[Q, D] prepared. `limit`: only so many, the nearest ones, per query. Memory: all rows that meet the
    thresholds; with a limit that many per query, and `_PAIRS_PENDING`.
    """
    hits, compared, pending = [Hits.none()], 0, 0
    for batch in batches:
        compared += len(batch.positions)
        vectors, raw = (batch.vectors, False) if batch.raw is None else (batch.raw, True)
        for query, row in _near_pairs(queries, batch, thresholds):
            distances = pair_distances(queries, vectors, query, row, thresholds.metric, raw=raw)
            hit = np.flatnonzero(thresholds.admit(query, distances))
            rows = row[hit]
            hits.append(Hits(query[hit], np.zeros_like(hit), batch.files[rows], batch.positions[rows], distances[hit]))
            pending += len(hit)
            if limit is not None and pending > max(_PAIRS_PENDING, limit * len(queries)):
                hits, pending = [Hits.ranked(hits, limit)], 0
    return Hits.ranked(hits, limit), compared


def _near_pairs(queries: F64, batch: RowVectors, thresholds: RangeThresholds) -> Iterator[tuple[I64, I64]]:
    """(query, row) pairs that may meet the thresholds, by lower bounds of their distances."""
    distances = thresholds.distances
    if thresholds.metric is not Metric.INNER_PRODUCT:
        if (distances < 0).all():
            return  # no row is that near
        distances = np.maximum(distances, 0.0)
    for rows, bound_of in bounds_of(batch.vectors, len(queries), thresholds.metric, rounded=batch.raw is not None):
        for first in range(0, len(queries), QUERIES_AT_ONCE):
            block = slice(first, first + QUERIES_AT_ONCE)
            query, row = np.nonzero(bound_of(queries[block]).may_be_within(distances[block]))
            yield query + first, rows[row]
