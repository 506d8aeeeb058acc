"""The recall of an opened version for some queries, measured end to end at chosen search parameters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import F64, I64, Bool
from icepuffin.ann_kernels.distances.lower_bounds import rounding_of_units
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.model import FileNumber
from icepuffin.ops.recall.measured_points import MeasuredPoint, margin_of, reached_of
from icepuffin.ops.rows.addresses import addresses_of
from icepuffin.ops.rows.candidates import Candidates
from icepuffin.ops.search.arguments import prepare_queries
from icepuffin.ops.search.exact.scan import FileScan, SkippedRows, VectorSource
from icepuffin.ops.search.source_answer import VersionSearch
from icepuffin.ops.search.tuning import SearchParameters, TunableVersion

_TIES = 16
"""Rows beyond k that are looked for at first, because some may be as near as the k-th"""
_MORE_TIES = 8
"""Factor by which more rows are looked for where all rows beyond k are as near as the k-th"""
_MAX_PAIRS = 1 << 24
"""Pairs of a query and a row that are looked for at once, at most: 16 bytes each"""
_NO_DISTANCE = np.float32(1e-12)


@dataclass(frozen=True, slots=True, eq=False)
class GroundTruth:
    """The k nearest rows that a version covers, by comparing each."""

    addresses: tuple[I64, ...]
    """Addresses of the rows that are no farther than the k-th, nearest first, int64[n] per query"""
    distances: tuple[F64, ...]
    """Their distances"""
    exact: F64
    """f64[Q, k]: distances of the k nearest rows; inf where there are fewer"""
    more_ties: Bool
    """bool[Q]: whether there may be more rows as near as the k-th than `addresses` has"""

    @classmethod
    def from_candidates(cls, candidates: Candidates, k: int) -> "GroundTruth":
        is_row = np.isfinite(candidates.distances)
        last = np.maximum(is_row[:, :k].sum(axis=1) - 1, 0)[:, None]
        limits = np.take_along_axis(candidates.distances, last, axis=1)
        nearest = is_row & (candidates.distances <= limits)
        addresses = addresses_of(candidates.files, candidates.positions)
        rows, distances = (
            tuple(part[chosen] for part, chosen in zip(array, nearest, strict=True))
            for array in (addresses, candidates.distances)
        )
        return cls(rows, distances, candidates.distances[:, :k], nearest[:, -1])

    def replaced(self, queries: I64, other: "GroundTruth") -> "GroundTruth":
        """With the rows of `other` for some queries, which are all of its own."""
        addresses, distances, more_ties = list(self.addresses), list(self.distances), self.more_ties.copy()
        for row, query in enumerate(queries.tolist()):
            addresses[query], distances[query] = other.addresses[row], other.distances[row]
        more_ties[queries] = other.more_ties
        return replace(self, addresses=tuple(addresses), distances=tuple(distances), more_ties=more_ties)

    def distances_of(self, addresses: I64) -> F64:
        """f64[Q, n]: the distances of rows int64[Q, n] as they are here; inf of others, and of addresses under 0."""
        out = np.full(addresses.shape, np.inf)
        for row, (listed, distances) in enumerate(zip(self.addresses, self.distances, strict=True)):
            order = np.argsort(listed)
            found = np.searchsorted(listed, addresses[row], sorter=order)
            is_row = np.isin(addresses[row], listed) & (addresses[row] >= 0)
            out[row, is_row] = distances[order[found[is_row]]]
        return out


@dataclass(frozen=True, slots=True, eq=False)
class RecallTrial:
    """An opened version, for measuring its recall where it is searched: in this process, or by tasks."""

    search: VersionSearch
    scan: FileScan
    vectors: VectorSource
    opened: OpenVersion
    version: TunableVersion
    files: tuple[FileNumber, ...]
    """File numbers of the live files that the version covers"""

    @property
    def rows(self) -> int:
        """Live rows that the version covers."""
        return sum(entry.live_rows for entry in self.opened.routing.shards)

    def prepared(self, queries: npt.ArrayLike) -> F64:
        """f64[Q, D]: queries as searches take them. Raises QueryError."""
        source = self.vectors
        return prepare_queries(queries, source.metric, self.opened.routing.dims, source.element_type)

    def ground_truth(self, queries: F64, k: int) -> GroundTruth:
        """The k nearest of the rows that the version covers, by comparing each of them. `queries` f64[Q, D] prepared.

        Reads the vector column of the data files, again where more rows are as near as the k-th than were looked for.
        """
        width = k + _TIES
        truth = GroundTruth.from_candidates(self._nearest(queries, width), k)
        while not self.version.exact and width <= self.rows and len(tied := np.flatnonzero(truth.more_ties)):
            width = min(_MORE_TIES * width, self.rows + 1)
            if len(tied) * width > _MAX_PAIRS:
                break
            truth = truth.replaced(tied, GroundTruth.from_candidates(self._nearest(queries[tied], width), k))
        return truth

    def _nearest(self, queries: F64, count: int) -> Candidates:
        candidates, _ = self.scan(queries, count, self.files, None, SkippedRows())
        return candidates

    def measure(self, queries: F64, k: int, parameters: SearchParameters, truth: GroundTruth) -> MeasuredPoint:
        """Search as the parameters say, and compare with the nearest rows.

        Reads no data file: candidates that a search would rank by the table's vectors count where the nearest rows are
        among them, since exact distances put these first.
        """
        answer = self.search(queries, k, replace(parameters, rerank=False), None)
        recalls = self._recalls(answer.candidates, truth)
        count = len(queries)
        return MeasuredPoint(
            k,
            parameters.search_list,
            parameters.oversample,
            parameters.probe_slack,
            float(recalls.mean()),
            margin_of(recalls),
            answer.distances / count,
            sum(shard.queries for shard in answer.work) / count,
            reached_of(recalls),
        )

    def slacks(self, queries: F64, shards: Sequence[float]) -> tuple[float, ...]:
        """The probe slacks by which each query probes so many shards of the codebook on average, and inf.

        Inner product has no near centroids.
        """
        routed = self.version.recall_model.routed
        if len(routed.shards) < 2 or routed.metric is Metric.INNER_PRODUCT:
            return (math.inf,)
        distances = routed.distances(queries)
        ratios = np.sort((distances / np.maximum(distances.min(axis=1, keepdims=True), _NO_DISTANCE)).ravel())
        fewer = (number for number in shards if number < len(routed.shards))
        slacks = (float(ratios[int(number * len(queries)) - 1]) - 1 for number in fewer)
        return (*sorted({math.ceil(slack * 10_000) / 10_000 for slack in slacks}), math.inf)

    def _recalls(self, candidates: Candidates, truth: GroundTruth) -> F64:
        """f64[Q]: the share of the nearest rows that each query's candidates have; ties count as `recalls_of` says.

        Where the index has the table's vectors, rows that are no farther than the k-th and not listed count by their
        own distances. A pair has the same bits in both, but under cosine, where the index has directions rounded to
        f32: there chords are compared.
        """
        distances, exact = truth.distances_of(addresses_of(candidates.files, candidates.positions)), truth.exact
        if self.version.exact:
            distances = np.where(np.isfinite(distances), distances, candidates.distances)
        if self.vectors.metric is not Metric.COSINE:
            return recalls_of(distances, exact)
        chords, true_chords = (np.sqrt(np.maximum(2 * values, 0)) for values in (distances, exact))
        return recalls_of(chords, true_chords, rounding_of_units(self.opened.routing.dims))
