"""Queries under conditions of their own that are conjunctions of look-ups, such as two tags: many at once.

A condition is a few lists of rows, of an index version's own values. What the lists have in common, and the nearest of
these rows, is found by kernels for a block of queries, in as many threads as the reader has. The answers are those of
`version_search`, where it compares every match.

A look-up of several values has a list of each, and no row is in two of them. So the rows of a condition are those of
its combinations, which have one list of each look-up, one combination after the other.
"""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, product
from math import prod

import numpy as np
from pyiceberg.expressions import BooleanExpression

from icepuffin.ann_kernels.arrays import F64, I32, I64, U32
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.distances.listed_candidates import nearest_listed
from icepuffin.ann_kernels.distances.lower_bounds import rounding_of_units
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.postings import NO_NODE, CommonRows, Postings, common_rows
from icepuffin.ops.filters.attribute_conditions import Attributes
from icepuffin.ops.filters.condition_parser import LookUp, look_ups
from icepuffin.ops.model import FileNumber
from icepuffin.ops.process.process_lock import ProcessLock
from icepuffin.ops.rows.candidates import Hits
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.indexed.version_search import COMPARED, most_compared
from icepuffin.ops.search.result import ShardWork
from icepuffin.ops.search.source_answer import SourceAnswer, work_by_shard
from icepuffin.ops.search.tuning import SearchParameters
from icepuffin.ops.shards.masked_shards import MaskedShard

_MAX_KEPT = 1 << 17
"""Look-ups whose lists are kept, of some 200 bytes each"""
_QUERIES_PER_BLOCK = 64
_MAX_COMBINATIONS = 64
"""Combinations of a condition up to which going through each takes less than a bitmap of its rows"""
_NO_POSTINGS = Postings(
    np.zeros(1, np.int64), np.empty(0, np.uint32), np.empty(0, np.int32), np.empty((0, 0), np.uint64)
)
Lists = tuple[int, ...]
"""Numbers of the lists of one look-up, which have no row in common"""


@dataclass(frozen=True, slots=True, eq=False)
class _Nodes:
    """The nodes of all shards, numbered one shard after another."""

    shards: tuple[MaskedShard, ...]
    firsts: tuple[int, ...]
    """Number of the first node of each shard"""
    of_rows: U32
    """u32[rows]: node of each row; `NO_NODE` where it has none"""


class ConjunctionSearch:
    """Searches a version under conjunctions of look-ups in columns that it keeps. Thread-safe.

    Memory: 4 bytes per row of the snapshot, and per row and element of a list in the columns of conditions up to 8.
    """

    def __init__(
        self, attributes: Attributes, version: LoadedVersion, lacking: Collection[FileNumber], threads: int
    ) -> None:
        self._attributes = attributes
        self._version = version
        self._lacking = frozenset(lacking)
        self._threads = threads
        self._lock = ProcessLock()
        self._lists: dict[LookUp, Lists] = {}
        self._first_lists: dict[int, int] = {}
        """Number of the first list of each column, by field id, ascending. The last one of a column has no rows"""
        self._postings: Postings = _NO_POSTINGS

    @classmethod
    def open(
        cls, attributes: Attributes | None, version: object, lacking: Collection[FileNumber], threads: int
    ) -> "ConjunctionSearch | None":
        """None for a version whose nodes are not compared by the table's own vectors, here. `lacking`: live
        files that the version lacks, whose rows are searched elsewhere.
        """
        if attributes is None or not isinstance(version, LoadedVersion) or version.lean or not version.exact:
            return None
        return cls(attributes, version, lacking, threads) if int(attributes.starts[-1]) < NO_NODE else None

    def lists_of(self, where: str | BooleanExpression | None) -> tuple[Lists, ...] | None:
        """The lists of each look-up that a condition joins by AND; None for another condition, and for one of more than
        `_MAX_COMBINATIONS`.

        Raises IndexUnavailableError.
        """
        parts = None if where is None or self._nodes is None else look_ups(where)
        if parts is None:
            return None
        lists: list[Lists] = []
        for part in parts:
            found = self._lists.get(part) or self._new_lists(part)
            if found is None:
                return None
            lists.append(found)
        return tuple(lists) if prod(map(len, lists)) <= _MAX_COMBINATIONS else None

    def search(
        self, queries: F64, conditions: Sequence[tuple[Lists, ...]], k: int, parameters: SearchParameters
    ) -> tuple[SourceAnswer, I64]:
        """(the k nearest rows of each query f64[Q, D], prepared, queries int64[n] without an answer, since they match
        so many nodes that a beam is faster). `conditions` has the lists of each, as of `lists_of`.
        """
        nodes, postings = self._nodes, self._postings
        if nodes is None:
            raise ValueError("rows have several nodes: there are no lists for any condition")
        directions = self._version.metric is Metric.COSINE
        limit = most_compared(self._version, k, parameters)
        combinations = [list(product(*condition)) for condition in conditions]
        every = list(chain.from_iterable(combinations))
        lists = np.fromiter(chain.from_iterable(every), np.int32)
        starts = np.append(0, np.cumsum([len(combination) for combination in every]))
        of_queries = np.append(0, np.cumsum([len(of_query) for of_query in combinations]))
        firsts = range(0, len(queries), _QUERIES_PER_BLOCK)

        def search_block(first: int) -> tuple[list[Hits], list[ShardWork], I64]:
            block = slice(first, first + _QUERIES_PER_BLOCK)
            parts = of_queries[first : first + _QUERIES_PER_BLOCK + 1]
            ends = starts[parts[0] : parts[-1] + 1]
            rows = common_rows(postings, lists[ends[0] : ends[-1]], ends - ends[0], nodes.of_rows, limit)
            rows = _of_queries(rows, parts - parts[0], limit)
            return *_nearest(self._version, nodes, queries[block], rows, k, first), rows.counts

        if self._threads == 1 or len(firsts) < 2:
            blocks = [search_block(first) for first in firsts]
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                blocks = list(pool.map(search_block, firsts))
        hits = [Hits.none(), *chain.from_iterable(part for part, _, _ in blocks)]
        counts = np.concatenate([np.empty(0, np.int64), *(part for _, _, part in blocks)])
        answer = SourceAnswer(
            Hits.ranked(hits, None if directions else k),
            int(np.count_nonzero(counts >= 0)),
            COMPARED,
            work_by_shard([shard for _, work, _ in blocks for shard in work]),
            matching_rows=int(np.maximum(counts, 0).sum()),
            condition=f"by the index's values of {', '.join(self._columns(lists))}",
            parameters=parameters,
            rounded_directions=directions,
        )
        return answer, np.flatnonzero(counts < 0)

    @cached_property
    def _nodes(self) -> _Nodes | None:
        """The nodes of rows; None where a row has several."""
        shards = self._version.shards.take(range(len(self._version.shards)), threads=self._threads)
        firsts = np.cumsum([0, *(shard.nodes for shard in shards)])
        of_rows = np.full(int(self._attributes.starts[-1]), NO_NODE, np.uint32)
        live = 0
        for first, shard in zip(firsts.tolist(), shards, strict=False):
            nodes, rows = self._attributes.node_rows(shard)
            of_rows[rows] = first + nodes
            live += len(nodes)
        if live != np.count_nonzero(of_rows != NO_NODE) or firsts[-1] >= NO_NODE:  # a file may be listed twice
            return None
        return _Nodes(tuple(shards), tuple(firsts[:-1].tolist()), of_rows)

    def _new_lists(self, look_up: LookUp) -> Lists | None:
        """The lists of a look-up, which are kept; None where a row may be in several, or the values of some files are
        missing.
        """
        if not self._attributes.has_look_up(look_up):
            return None
        field_id = self._attributes.look_up_column(look_up)
        column = self._attributes.column(field_id)
        codes = column.values.codes(look_up.values)
        if not column.missing.keys() <= self._lacking or (len(codes) > 1 and column.is_of_lists):
            return None
        starts, rows = column.rows.postings
        with self._lock:
            if field_id not in self._first_lists:
                self._add(field_id, np.append(starts, starts[-1]), rows)
            first = self._first_lists[field_id]
        lists = tuple(first + code for code in codes or [len(starts) - 1])
        if len(self._lists) >= _MAX_KEPT:
            self._lists = {}  # other threads return values of the earlier one
        self._lists[look_up] = lists
        return lists

    def _add(self, field_id: int, starts: I64, rows: U32) -> None:
        """Add the lists of a column to those of others."""
        before = self._postings
        parts = [(before.starts, before.rows)] if len(before) else []
        self._postings = Postings.from_parts([*parts, (starts, rows)], int(self._attributes.starts[-1]))
        self._first_lists[field_id] = len(before)

    def _columns(self, lists: I32) -> list[str]:
        """The names of the columns that have some lists."""
        with self._lock:
            columns = list(self._first_lists.items())
        owners = np.searchsorted([first for _, first in columns], lists, side="right") - 1
        return [self._attributes.name(columns[owner][0]) for owner in np.unique(owners).tolist()]


def _of_queries(rows: CommonRows, ends: I64, limit: int) -> CommonRows:
    """The rows of all combinations of each query. `ends` int64[Q + 1]: numbers of combinations before its own."""
    if len(ends) == len(rows.starts):  # each query has one
        return rows
    nodes = np.diff(rows.starts)
    is_over = (np.add.reduceat(nodes, ends[:-1]) > limit) | (np.minimum.reduceat(rows.counts, ends[:-1]) < 0)
    counts = np.where(is_over, -1, np.add.reduceat(rows.counts, ends[:-1]))
    if is_over.any():  # rows of its other combinations may be here
        is_kept = np.repeat(~is_over, np.diff(ends))
        kept_nodes = rows.nodes[np.repeat(is_kept, nodes)]
        return CommonRows(counts, np.append(0, np.cumsum(nodes * is_kept))[ends], kept_nodes)
    return CommonRows(counts, rows.starts[ends], rows.nodes)


def _nearest(
    version: LoadedVersion, nodes: _Nodes, queries: F64, rows: CommonRows, k: int, first: int
) -> tuple[list[Hits], list[ShardWork]]:
    """(the nearest rows in each shard, the work), of queries of the numbers from `first` on, each among `rows`."""
    doubt = 2 * rounding_of_units(queries.shape[1]) if version.metric is Metric.COSINE else 0.0
    hits, work = [], []
    for shard_id, shard, first_node in zip(version.shard_ids, nodes.shards, nodes.firsts, strict=True):
        vectors = shard.searcher.coded or shard.vectors
        if vectors is None:
            raise TypeError(f"shard {shard_id} has no vectors, and the version is not lean")
        listed = rows.starts, rows.nodes
        nearest = nearest_listed(vectors, version.metric, queries, listed, k, first=first_node, doubt=doubt)
        candidates, numbers = shard.candidates(nearest.nodes, nearest.distances), nearest.queries + first
        hits.append(Hits(numbers, np.zeros_like(numbers), candidates.files, candidates.positions, nearest.distances))
        probing = int(np.count_nonzero(nearest.compared))
        work.append(ShardWork(shard_id, shard.nodes, probing, 0, int(nearest.compared.sum())))
    return hits, work
