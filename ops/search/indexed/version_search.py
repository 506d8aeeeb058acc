"""Searching an index version in memory, for the nearest of all its rows or of the rows that match a condition.

Under a condition there are two ways, and the faster one is taken: to compare every matching node, or to walk through
all nodes with a beam that is wide enough to meet matching ones.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I64, Bool
from icepuffin.ann_kernels.distances.lower_bounds import rounding_of_units
from icepuffin.ann_kernels.distances.top_k import Neighbors
from icepuffin.ann_kernels.graphs.graph_search import comparing_is_faster
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import process_cache
from icepuffin.ops.filters.matches import Matches
from icepuffin.ops.rows.candidates import Candidates, merge, nearest_rows
from icepuffin.ops.search.indexed.cold_shards import MAX_QUERIES, MAX_ROWS, ColdReads
from icepuffin.ops.search.indexed.loaded_version import LoadedShards, LoadedVersion, ShardsOnDemand
from icepuffin.ops.search.result import ShardWork
from icepuffin.ops.search.source_answer import SourceAnswer, work_by_shard
from icepuffin.ops.search.tuning import SearchParameters
from icepuffin.ops.shards.masked_shards import MaskedShard

_MATCHES_IN_BEAM = 3
"""Matching nodes that a beam should meet, as a multiple of k"""
COMPARED = "exact over matches"
"""Strategy of comparing every match"""
CELLS = "cells"
"""Strategy of reading the nearest cells of shards that this process does not have"""
EXTRA_ROWS = 8
"""Rows beyond k that are compared at first, because some may be as near as the k-th"""


def search_version(
    version: LoadedVersion,
    queries: F64,
    k: int,
    parameters: SearchParameters,
    matches: Matches | None,
    *,
    threads: int,
    probed: Bool | None = None,
) -> SourceAnswer:
    """The k nearest rows that the version covers (and that match). `queries` f64[Q, D] prepared. Distances may have to
    be replaced by those of the table's vectors.

    Without a condition, queries whose shards have fewer than k rows go on in the shards that were left out. The caller
    who gave the number of shards, or the shards of each query as `probed` bool[Q, shards], gets no others.
    """
    if matches is not None:
        return _search_matches(version, queries, k, parameters, matches, threads=threads)
    chosen = version.recall_model.probed(queries, parameters) if probed is None else probed
    answer = _walk(version, version.shards, queries, k, parameters, chosen, threads=threads)
    if chosen is None or probed is not None or parameters.shards is not None:
        return answer
    short = np.flatnonzero(answer.candidates.padded(k).files[:, k - 1] < 0)
    if not len(short):
        return answer
    walked = np.zeros(chosen.shape[1], np.bool_)
    walked[[shard.shard_id for shard in answer.work]] = True
    by_cells = chosen.any(axis=0) & ~walked  # for every query, whichever it was that probes the shard
    left = ~(chosen[short] | by_cells)
    others = _walk(version, version.shards, queries[short], k, parameters, left, threads=threads)
    parts = [answer.candidates, others.candidates.spread(short, len(queries))]
    answer.rows = merge(parts, max(part.files.shape[1] for part in parts))
    answer.work = work_by_shard([*answer.work, *others.work])
    answer.cold = answer.cold.plus(others.cold) if answer.cold and others.cold else answer.cold or others.cold
    answer.strategy = _strategy(answer.work, answer.cold)
    return answer


def _search_matches(
    version: LoadedVersion, queries: F64, k: int, parameters: SearchParameters, matches: Matches, *, threads: int
) -> SourceAnswer:
    """The nearest matching rows: each compared, or met by a beam, whichever is faster."""
    shards = version.restricted_shards(matches)
    matching = sum(shard.searcher.live_count for shard in shards)
    if not matching:
        return SourceAnswer(Candidates.none(len(queries), k), len(queries), COMPARED)
    width = _width(parameters.search_list, k, matching / sum(shard.nodes for shard in shards))
    coded = all(shard.searcher.compares_codes for shard in shards)
    if comparing_is_faster(matching, width * len(shards), coded=coded) and not version.lean:
        answer = _compare(version, shards, queries, k if version.exact else k * parameters.oversample)
    else:
        probed, meeting = version.recall_model.probed(queries, parameters), _MATCHES_IN_BEAM * k
        answer = _walk(version, shards, queries, k, parameters, probed, threads=threads, widest=width, meeting=meeting)
        answer.strategy = "filtered beam"
    answer.matching_rows = matches.count_by_nodes(matching, sum(shard.searcher.live_count for shard in version.shards))
    return answer


def most_compared(version: LoadedVersion, k: int, parameters: SearchParameters) -> int:
    """The largest number of matching nodes that `search_version` compares one by one."""
    nodes = sum(shard.nodes for shard in version.shards)
    coded = all(shard.searcher.compares_codes for shard in version.shards)
    least, most = 0, nodes
    while least < most:  # fewer matches take a wider beam
        middle = (least + most + 1) // 2
        width = _width(parameters.search_list, k, middle / nodes)
        if comparing_is_faster(middle, width * len(version.shards), coded=coded):
            least = middle
        else:
            most = middle - 1
    return least


def _width(search_list: int, k: int, share: float) -> int:
    """How wide a beam is that meets enough matching nodes, which are a share of all."""
    half = search_list // 2  # finds the way, as without a condition
    return max(search_list, half + int(np.ceil(_MATCHES_IN_BEAM * k / share)))


def exact_distances(version: LoadedVersion, queries: F64, k: int, matches: Matches | None) -> F64:
    """f64[Q, k]: distances of the k nearest rows that an exact version covers (and that match), by comparing each; inf
    where there are fewer.
    """
    shards = version.shards if matches is None else version.restricted_shards(matches)
    compared = _compare(version, shards, queries, k)
    return compared.candidates.padded(k).distances[:, :k]


def _walk(
    version: LoadedVersion,
    shards: LoadedShards | ShardsOnDemand,
    queries: F64,
    k: int,
    parameters: SearchParameters,
    probed: Bool | None,
    *,
    threads: int,
    widest: int = 0,
    meeting: int = 0,
) -> SourceAnswer:
    """The k nearest candidates (k x oversample where distances are not exact) of those of a version's shards, maybe
    restricted, that each query probes: bool[Q, shards], or all.

    `widest` and `meeting`: see `Searcher.search`.
    """
    count = k if version.exact else k * parameters.oversample
    width = max(parameters.search_list, count)
    parts: list[Candidates] = []
    intervals: list[tuple[F64, F64]] = []
    work = []
    needed = None if probed is None else frozenset(np.flatnonzero(probed.any(axis=0)).tolist())
    slots = [slot for slot, number in enumerate(version.shard_ids) if needed is None or number in needed]
    cold: ColdReads | None = None
    if isinstance(shards, ShardsOnDemand) and not meeting:
        slots, by_cells, cold = _search_cells(version, shards, slots, queries, count)
        parts += [by_cells] if cold is not None else []
    for slot, shard in zip(slots, shards.take(slots, threads=threads), strict=True):
        shard_id = version.shard_ids[slot]
        probing = None if probed is None else np.flatnonzero(probed[:, shard_id])
        shard_queries = queries if probing is None else queries[probing]
        if not shard.searcher.live_count or not len(shard_queries):
            continue
        searcher = parameters.grouped(shard, count // k) if parameters.grouped else shard.searcher
        nodes, distances, stats = searcher.search(
            shard_queries, count, search_list=width, widest=widest, meeting=meeting, threads=threads
        )
        candidates = shard.candidates(nodes, distances)
        parts.append(candidates if probing is None else candidates.spread(probing, len(queries)))
        is_bounded = parameters.rerank and not version.column_is_double  # whose rounding to float is in no interval
        if is_bounded and (interval := shard.searcher.interval(shard_queries, nodes, distances)):
            intervals.append(interval if probing is None else _spread(interval, probing, len(queries)))
        expanded, computed = stats.totals()
        work.append(ShardWork(shard_id, shard.nodes, len(shard_queries), expanded, computed))
    if parts and len(intervals) == len(parts):
        parts = _in_reach(parts, intervals, k)
    best = merge(parts or [Candidates.none(len(queries), count)], count)
    return SourceAnswer(
        best, len(queries), _strategy(work, cold), tuple(work), approximate=not version.exact, cold=cold
    )


def _strategy(work: Sequence[ShardWork], cold: ColdReads | None) -> str:
    """The strategy of walks through some shards, and of reading cells of others."""
    return "beam" if cold is None else CELLS if not work else f"{CELLS}, beam"


def _search_cells(
    version: LoadedVersion, shards: ShardsOnDemand, slots: list[int], queries: F64, count: int
) -> tuple[list[int], Candidates, ColdReads | None]:
    """(slots of shards to be searched as a whole, candidates of the others, what was read of these).

    The others are those that this process does not have, and that have cells. They are fetched in the background, so
    that later searches have them.
    """
    none = Candidates.none(len(queries), count)
    if version.cold is None or len(queries) > MAX_QUERIES or count > MAX_ROWS or not (cold := shards.cold(slots)):
        return slots, none, None
    candidates, reads, whole = version.cold.search(cold, version.recall_model.ranks(queries), queries, count)
    if not reads.shards:
        return slots, none, None
    if process_cache().settings.prefetch == "background":
        shards.fetch_in_background([slot for slot in cold if slot not in whole])
    return sorted({*slots}.difference(cold).union(whole)), candidates, reads


def _spread(interval: tuple[F64, F64], searched: I64, queries: int) -> tuple[F64, F64]:
    """The same among all queries, as `Candidates.spread` has it."""
    lowest, highest = (np.full((queries, bound.shape[1]), np.inf) for bound in interval)
    lowest[searched], highest[searched] = interval
    return lowest, highest


def _in_reach(parts: Sequence[Candidates], intervals: Sequence[tuple[F64, F64]], k: int) -> list[Candidates]:
    """The candidates that are, most likely, all that may be among the k nearest: those whose interval reaches the k-th
    of the farthest ends. The others need not be ranked by the table's vectors.
    """
    farthest = np.concatenate([highest for _, highest in intervals], axis=1)
    if farthest.shape[1] <= k:
        return list(parts)
    limits = np.partition(farthest, k - 1, axis=1)[:, k - 1 : k]
    return [part.without(lowest > limits) for part, (lowest, _) in zip(parts, intervals, strict=True)]


def _compare(version: LoadedVersion, shards: Iterable[MaskedShard], queries: F64, k: int) -> SourceAnswer:
    """The k nearest candidates by comparing every live node of some shards, those of a version, with every query."""
    directions = version.exact and version.metric is Metric.COSINE
    parts, work = [], []
    for shard_id, shard in zip(version.shard_ids, shards, strict=True):
        if not (count := shard.searcher.live_count):
            continue
        parts.append(_nearest_and_doubtful(shard, queries, k) if directions else shard.compare(queries, k))
        work.append(ShardWork(shard_id, shard.nodes, len(queries), 0, count * len(queries)))
    width = sum(distances.shape[1] for _, distances in parts) if directions else k
    return SourceAnswer(
        nearest_rows(parts, width) if parts else Candidates.none(len(queries), k),
        len(queries),
        COMPARED,
        tuple(work),
        approximate=not version.exact,
        rounded_directions=directions,
    )


def _nearest_and_doubtful(shard: MaskedShard, queries: F64, k: int) -> Neighbors:
    """At least the k nearest directions, and all that rounding to f32 may have put behind the k-th by mistake."""
    doubt = 2 * rounding_of_units(queries.shape[1])
    width = k + EXTRA_ROWS
    while True:
        addresses, distances = shard.compare(queries, width)
        euclidean = np.sqrt(2 * distances)
        if width >= shard.searcher.live_count or (euclidean[:, -1] > euclidean[:, k - 1] + doubt).all():
            return addresses, distances
        width *= 4
