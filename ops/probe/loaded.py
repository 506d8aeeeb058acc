"""An index version in memory: its shards as searchers, masked for the snapshot that is read."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ann_kernels.metric import Metric
from ann_kernels.search import Searcher
from ann_kernels.vamana import Graph
from ops.curves import OVERSAMPLE
from ops.index.versions import OpenVersion
from ops.model import LiveFiles, StorageConfig
from ops.probe.candidates import Candidates, merge
from ops.probe.knobs import Advice
from ops.probe.parts import Part, PartReader


@dataclass(frozen=True, slots=True, eq=False)
class LoadedShard:
    """One shard, ready to be searched."""

    graph: Graph
    vectors: npt.NDArray[np.float32] | None
    """f32[N, D] prepared; None in a lean shard"""
    pq: tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]] | None
    live: npt.NDArray[np.bool_]
    """bool[N]: what may be returned"""
    searcher: Searcher
    file_numbers: npt.NDArray[np.int64]
    """int64[N]: each node's file as a number into the snapshot's live files; -1 for files that are not live"""
    positions: npt.NDArray[np.int64]
    rounded: bool
    """Whether its vectors are the table's, rounded (f16) or coded, and not the table's own"""

    @property
    def lean(self) -> bool:
        return self.vectors is None

    def restricted(self, allowed: npt.NDArray[np.bool_]) -> "LoadedShard":
        """The same shard, of which only some live nodes may be returned."""
        live = self.live & allowed
        return replace(self, live=live, searcher=self.searcher.masked(live))


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVersion:
    """All shards of a version, for one snapshot."""

    shards: tuple[LoadedShard, ...]
    covered: frozenset[int]
    """Numbers of the live files all of whose live rows have a node"""
    metric: Metric
    search_list: int
    dims: int
    advice: Advice
    index_bytes: int
    """Of all shards, as they are stored"""
    balled: frozenset[int] = frozenset()
    """Numbers of the covered files all of whose live rows were live in the version's snapshot: the balls hold them"""

    @property
    def exact(self) -> bool:
        """Whether its distances are the table's own to the last bit."""
        return not any(shard.rounded for shard in self.shards)

    @property
    def lean(self) -> bool:
        """Whether a shard holds no vectors to compare with."""
        return any(shard.lean for shard in self.shards)


@dataclass(frozen=True, slots=True)
class ShardWork:
    """What one shard did for a search."""

    shard: int
    nodes: int
    queries: int
    """That were asked of it"""
    expanded: int
    distances: int


@dataclass(frozen=True, slots=True, eq=False)
class Indexed:
    """What an index version answered."""

    candidates: Candidates
    expanded: int
    """Nodes whose neighbours were looked at"""
    computed: int
    """Distances computed"""
    strategy: str
    approximate: bool = False
    """Distances are of codes or of rounded vectors: to be ranked again"""
    work: tuple[ShardWork, ...] = ()
    """Of the shards that were searched"""


def load(
    opened: OpenVersion, live: LiveFiles, storage: StorageConfig, *, complete: bool, threads: int
) -> LoadedVersion:
    """Read, check and mask every shard.

    With `complete`, nodes of files that are covered in part are left out: whoever wants all rows scans those files.
    """
    reader = PartReader(opened, live, storage)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        parts = list(pool.map(reader.read, range(len(opened.shards))))
    covered = reader.covered(reader.nodes_by_file(parts))
    if complete:
        parts = [part.within(covered) for part in parts]
    revived = [
        part.files[entry.tombstones][part.live[entry.tombstones]]
        for entry, part in zip(opened.routing.shards, parts, strict=True)
    ]
    balled = covered - set(np.concatenate([np.empty(0, np.int64), *revived]).tolist())
    return replace(version_of(opened, tuple(as_loaded(part) for part in parts), covered), balled=balled)


def version_of(opened: OpenVersion, shards: tuple[LoadedShard, ...], covered: frozenset[int]) -> LoadedVersion:
    """A version of which these shards are searched."""
    definition = opened.definition
    return LoadedVersion(
        shards,
        covered,
        definition.metric_value,
        definition.search_list,
        opened.routing.dims,
        Advice.of(opened),
        sum(part.length for part in opened.shards),
    )


def as_loaded(part: Part) -> LoadedShard:
    """A shard of which only live nodes are returned."""
    shard = part.shard
    searcher = shard.searcher.masked(part.live)
    return LoadedShard(
        shard.graph, shard.vectors, shard.pq, part.live, searcher, part.files, shard.row_positions, shard.rounded
    )


def search(
    version: LoadedVersion,
    queries: npt.NDArray[np.float32],
    k: int,
    *,
    search_list: int,
    threads: int,
    oversample: int = OVERSAMPLE,
    probed: npt.NDArray[np.bool_] | None = None,
) -> Indexed:
    """The k nearest candidates over all shards; k x oversample where distances are not exact.

    `probed` bool[Q, shards]: which shards each query is asked of; None is all.
    """
    wide = k if version.exact else k * oversample
    parts, work = [], []
    for number, shard in enumerate(version.shards):
        asked = np.arange(len(queries)) if probed is None else np.flatnonzero(probed[:, number])
        if not shard.searcher.live_count or not len(asked):
            continue
        some = queries if len(asked) == len(queries) else queries[asked]
        ids, distances, stats = shard.searcher.search(some, wide, search_list=max(search_list, wide), threads=threads)
        parts.append(as_candidates(shard, ids, distances).spread(asked, len(queries)))
        work.append(
            ShardWork(number, len(shard.live), len(asked), int(stats.expanded.sum()), int(stats.distances.sum()))
        )
    expanded, computed = sum(item.expanded for item in work), sum(item.distances for item in work)
    best = merge(parts or [Candidates.none(len(queries), wide)], wide)
    return Indexed(best, expanded, computed, "beam", approximate=not version.exact, work=tuple(work))


def as_candidates(shard: LoadedShard, nodes: npt.NDArray[np.int64], distances: npt.NDArray[np.float32]) -> Candidates:
    """Nodes int64[Q, k] of a shard (-1 and infinitely far where there are fewer) as rows of the table."""
    files, positions = shard.file_numbers[nodes], shard.positions[nodes]
    missing = nodes < 0
    if missing.any():
        files[missing], positions[missing] = -1, -1
    return Candidates(files, positions, distances)
