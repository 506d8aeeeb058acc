"""Searching an index version for the nearest of some rows only.

Two ways, by what they cost in distances: comparing every matching node, or a beam that walks through all nodes and
returns matching ones, wide enough to meet some.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ann_kernels.topk import exact_top_k
from ops.curves import OVERSAMPLE
from ops.probe.candidates import Candidates, merge
from ops.probe.filters import Matches
from ops.probe.loaded import Indexed, LoadedShard, LoadedVersion, as_candidates, search

MATCHES_IN_BEAM = 3
"""Times k: how many matching nodes a beam is to hold"""
DISTANCES_A_NODE = 30
"""Computed per expanded node: neighbours that were not met before (measured, R = 64)"""


def search_matches(
    version: LoadedVersion,
    matches: Matches,
    queries: npt.NDArray[np.float32],
    k: int,
    *,
    search_list: int,
    threads: int,
    oversample: int = OVERSAMPLE,
) -> Indexed:
    """The k nearest matching rows that the version covers. `queries` f32[Q, D] prepared."""
    shards = tuple(shard.restricted(matches.mask(shard.file_numbers, shard.positions)) for shard in version.shards)
    held = sum(int(shard.live.sum()) for shard in shards)
    if not held:
        return Indexed(Candidates.none(len(queries), k), 0, 0, "exact over matches")
    share = held / sum(len(shard.live) for shard in shards)
    width = max(search_list, int(np.ceil(MATCHES_IN_BEAM * k / share)))
    if held <= DISTANCES_A_NODE * width and not version.lean:
        wide = k if version.exact else k * oversample
        parts = [_exact(shard, version, queries, wide) for shard in shards if shard.live.any()]
        count = held * len(queries)
        return Indexed(merge(parts, wide), 0, count, "exact over matches", approximate=not version.exact)
    found = search(
        replace(version, shards=shards), queries, k, search_list=width, threads=threads, oversample=oversample
    )
    return replace(found, strategy="filtered beam")


def _exact(shard: LoadedShard, version: LoadedVersion, queries: npt.NDArray[np.float32], k: int) -> Candidates:
    if shard.vectors is None:
        raise ValueError("a lean shard has no vectors to compare")
    nodes = np.flatnonzero(shard.live)
    places, distances = exact_top_k(queries, shard.vectors[nodes], k, version.metric)
    return as_candidates(shard, np.where(places >= 0, nodes[places], -1), distances)
