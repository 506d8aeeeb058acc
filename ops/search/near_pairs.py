"""Pairs of near rows, such as duplicates: every row is searched for in the index by its own vector."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.messages import plural, readable_share
from icepuffin.ops.model import FileNumber
from icepuffin.ops.presentation import Grid, Presentation
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.recall.confidence import confidence_interval
from icepuffin.ops.rows.addresses import addresses_of, rows_at
from icepuffin.ops.rows.candidates import Hits, fetch
from icepuffin.ops.rows.row_reader import RowReader
from icepuffin.ops.search.arguments import prepare_queries
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.exact.scan import RangeThresholds, SkippedRows, VectorSource
from icepuffin.ops.search.pipeline import RowsRequest, SearchPipeline
from icepuffin.ops.search.result import SearchCosts
from icepuffin.ops.search.tuning import SearchOptions

_FIRST_K, _WIDER = 16, 4
"""Rows that are searched for first, and times as many where all of them are near"""
_OPTIONS = SearchOptions(None, None, None, None, True)
_Pairs = tuple[I64, I64, F64]
"""(address of the lower row, address of the higher one, distance)"""


@dataclass(frozen=True, slots=True, repr=False)
class NearPairs(Presentation):
    """Pairs of rows within a distance of each other, and how complete they are. Made by `IndexReader.pairs`."""

    rows: pa.Table
    """A row per pair, the nearest first: distance, then the columns of both rows, `left_*` and `right_*`"""
    found: int
    """Pairs of the sampled rows that were found"""
    expected: int
    """Pairs of the sampled rows that there are, by exact comparison with all rows"""
    skipped: int
    """Rows without a distance, such as of NaN, which have no pair"""

    @property
    def recall(self) -> float:
        """Share of the pairs that was found, by the sample; 1 where its rows have none."""
        return self.found / self.expected if self.expected else 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high): 95 % interval of the share."""
        return confidence_interval(self.recall, self.expected)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def headline(self) -> str:
        low, high = map(readable_share, self.interval)
        return f"{plural(len(self), 'pair')}, {readable_share(self.recall)} of all ({low} to {high}) by a sample"

    def grids(self) -> Iterator[Grid]:
        yield Grid.of_rows("", self.rows, 10)


@dataclass(frozen=True, slots=True)
class PairSearch:
    """Finds the pairs of the rows of some files."""

    pipeline: SearchPipeline
    vectors: VectorSource
    reader: RowReader
    files: Sequence[FileNumber]
    most_k: int
    """Rows that a search can give"""

    def find(self, within: float, limit: int, sample: int, returned: Sequence[int]) -> NearPairs:
        """Pairs under a distance, with the fields `returned` of each row.

        Raises QueryError under inner product, and where there are more pairs than `limit`.
        """
        if self.vectors.metric is Metric.INNER_PRODUCT:
            raise QueryError("pairs are of rows near each other, and inner products are no distances")
        skipped, parts, count, drawn = SkippedRows(), list[_Pairs](), 0, list[tuple[I64, F64]]()
        chances, total = np.random.default_rng(0), self.vectors.live.record_count_of(self.files)
        matches = self.pipeline.conditions.matches(None, StageClock())
        for batch in self.vectors.rows(self.files, self.vectors.dims, matches, skipped):
            stored = batch.vectors if batch.raw is None else batch.raw
            queries = prepare_queries(stored, self.vectors.metric, self.vectors.dims)
            own = addresses_of(batch.files, batch.positions)
            parts.append(self._near(own, queries, within))
            count += len(parts[-1][0])
            if count > 2 * limit:  # each pair may be found from both of its rows
                break
            chosen = chances.random(len(own)) < sample / max(1, total)
            drawn.append((own[chosen], queries[chosen]))
        low, high, distances = _distinct(parts)
        if len(low) > limit:
            raise QueryError(f"over {limit:,} pairs are within {within:g}: narrow it, or raise limit")
        found, expected = self._checked(drawn, within, low, high)
        order = np.lexsort((high, low, distances))
        return NearPairs(
            self._rows(low[order], high[order], distances[order], returned), found, expected, skipped.count
        )

    def _near(self, own: I64, queries: F64, within: float) -> _Pairs:
        """The pairs of some rows by their own vectors: wider where all rows that were found are near."""
        left, right, far = list[I64](), list[I64](), list[F64]()
        todo, k = np.arange(len(own)), _FIRST_K
        while len(todo):
            request = RowsRequest(min(k, self.most_k), _OPTIONS, to_certify=False)
            hits = self.pipeline.nearest(queries[todo], request, None, SearchCosts()).hits
            near = hits.distances < within
            is_full = np.bincount(hits.queries[near], minlength=len(todo)) == request.k
            if request.k == self.most_k:
                is_full[:] = False
            kept = near & ~is_full[hits.queries]
            left.append(own[todo[hits.queries[kept]]])
            right.append(addresses_of(hits.files[kept], hits.positions[kept]))
            far.append(hits.distances[kept])
            todo, k = todo[is_full], _WIDER * k
        one, other, distances = (np.concatenate(arrays) for arrays in (left, right, far))
        apart = one != other
        one, other = one[apart], other[apart]
        return np.minimum(one, other), np.maximum(one, other), distances[apart]

    def _checked(self, drawn: Sequence[tuple[I64, F64]], within: float, low: I64, high: I64) -> tuple[int, int]:
        """(pairs of the drawn rows that were found, that there are by exact comparison)."""
        own = np.concatenate([addresses for addresses, _ in drawn]) if drawn else np.empty(0, np.int64)
        if not len(own):
            return 0, 0
        queries = np.concatenate([vectors for _, vectors in drawn])
        thresholds = RangeThresholds.from_distance(within, len(own), self.vectors.metric, inclusive=False)
        hits = self.pipeline.within(queries, thresholds, None, None, SearchCosts()).hits
        other, one = addresses_of(hits.files, hits.positions), own[hits.queries]
        pairs = {
            (min(pair), max(pair)) for pair in zip(one.tolist(), other.tolist(), strict=True) if pair[0] != pair[1]
        }
        return len(pairs & set(zip(low.tolist(), high.tolist(), strict=True))), len(pairs)

    def _rows(self, low: I64, high: I64, distances: F64, returned: Sequence[int]) -> pa.Table:
        numbers, columns = np.arange(len(low)), {"distance": pa.array(distances, pa.float64())}
        for side, addresses in (("left", low), ("right", high)):
            hits = Hits(numbers * 0, numbers + 1, *rows_at(addresses), distances)
            fetched = fetch(hits, self.reader, returned).drop_columns(["query", "rank", "distance"])
            columns |= {f"{side}_{name}": fetched[name] for name in fetched.column_names}
        return pa.table(columns)


def _distinct(parts: Sequence[_Pairs]) -> _Pairs:
    """Each pair once, at the lesser of its distances."""
    low, high = (np.concatenate([np.empty(0, np.int64), *(part[side] for part in parts)]) for side in (0, 1))
    distances = np.concatenate([np.empty(0), *(part[2] for part in parts)])
    order = np.lexsort((distances, high, low))
    low, high, distances = low[order], high[order], distances[order]
    is_first = np.append(True, (np.diff(low) != 0) | (np.diff(high) != 0))[: len(low)]
    return low[is_first], high[is_first], distances[is_first]
