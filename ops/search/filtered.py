"""Searching an index version in memory, for the nearest of all its rows or of some only.

The latter in one of two ways, whichever is faster: comparing every matching node, or a beam that walks through all
nodes and returns matching ones, wide enough to meet some.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.graph_search import comparing_is_faster
from icepuffin.ann_kernels.lower_bounds import rounding_of_units
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.search.candidates import Candidates, merge
from icepuffin.ops.search.matches import Matches
from icepuffin.ops.search.shards import IndexAnswer, LoadedShard, LoadedVersion, ShardWork, search
from icepuffin.ops.search.tuning import SearchParameters

MATCHES_IN_BEAM = 3
"""Times k: how many matching nodes a beam is to hold"""
_COMPARED = "exact over matches"
_SPARE = 8
"""How many rows more than k are compared at first, as some may be as near as the k-th"""


def strategy_of(parts: Sequence[IndexAnswer]) -> str:
    """The strategy of groups of shards that were searched apart: one that walked its graphs makes the answer no exact
    one.
    """
    strategies = [part.strategy for part in parts]
    return next((strategy for strategy in strategies if strategy != _COMPARED), _COMPARED if strategies else "beam")


def search_version(
    version: LoadedVersion,
    queries: npt.NDArray[np.float64],
    k: int,
    knobs: SearchParameters,
    matches: Matches | None,
    *,
    threads: int,
) -> IndexAnswer:
    """The k nearest rows that the version covers (and that match). `queries` f64[Q, D] prepared."""
    if matches is None:
        return search(version, queries, k, knobs, threads=threads)
    version = version.restricted(matches)
    held = sum(shard.searcher.live_count for shard in version.shards)
    if not held:
        return IndexAnswer(Candidates.none(len(queries), k), _COMPARED)
    share = held / sum(len(shard.live) for shard in version.shards)
    width = max(knobs.search_list, int(np.ceil(MATCHES_IN_BEAM * k / share)))
    if comparing_is_faster(held, width * len(version.shards)) and not version.lean:
        return _compare(version, queries, k if version.exact else k * knobs.oversample)
    found = search(version, queries, k, replace(knobs, search_list=width), threads=threads)
    return replace(found, strategy="filtered beam")


def _compare(matching: LoadedVersion, queries: npt.NDArray[np.float64], k: int) -> IndexAnswer:
    """Every matching node with every query."""
    directions = matching.exact and matching.metric is Metric.COSINE
    parts, work = [], []
    for number, shard in zip(matching.numbers, matching.shards, strict=True):
        if not (held := shard.searcher.live_count):
            continue
        parts.append(_nearest_and_doubtful(shard, queries, k) if directions else shard.compare(queries, k))
        work.append(ShardWork(number, len(shard.live), len(queries), 0, held * len(queries)))
    wide = sum(part.files.shape[1] for part in parts) if directions else k
    return IndexAnswer(
        merge(parts, wide), _COMPARED, approximate=not matching.exact, rounded_directions=directions, work=tuple(work)
    )


def _nearest_and_doubtful(shard: LoadedShard, queries: npt.NDArray[np.float64], k: int) -> Candidates:
    """At least the k nearest directions, and all that lie so little farther that rounding to f32 may have put them
    there.
    """
    doubt = 2 * rounding_of_units(queries.shape[1])
    wide = k + _SPARE
    while True:
        found = shard.compare(queries, wide)
        reach = np.sqrt(2 * found.distances)
        if wide >= shard.searcher.live_count or (reach[:, -1] > reach[:, k - 1] + doubt).all():
            return found
        wide *= 4
