"""An index version in memory: its shards as searchers, masked for the snapshot that is read."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.graph_search import Searcher
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.vamana import Graph
from icepuffin.ops.addresses import pack, unpack
from icepuffin.ops.index.version_reader import OpenVersion
from icepuffin.ops.model import LiveFiles, StorageConfig
from icepuffin.ops.search.candidates import Candidates, merge
from icepuffin.ops.search.matches import Matches
from icepuffin.ops.search.parts import Part, PartReader
from icepuffin.ops.search.tuning import RecallModel, SearchParameters


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
    """Whether its vectors are the table's, rounded (f16, or doubles) or coded, and not the table's own"""

    def compare(self, queries: npt.NDArray[np.float64], k: int) -> Candidates:
        """The k nearest live nodes by comparing every one; ties by file, then position."""
        keys, distances = self.searcher.compare(
            queries, k, ids=lambda nodes: pack(self.file_numbers[nodes], self.positions[nodes])
        )
        return Candidates(*unpack(keys), distances)

    @property
    def lean(self) -> bool:
        return self.vectors is None

    def restricted(self, allowed: npt.NDArray[np.bool_]) -> "LoadedShard":
        """The same shard, of which only some live nodes may be returned."""
        live = self.live & allowed
        return replace(self, live=live, searcher=self.searcher.masked(live))


@dataclass(frozen=True, slots=True, eq=False)
class LoadedVersion:
    """Shards of a version, for one snapshot: all of them, or those that one task searches."""

    shards: tuple[LoadedShard, ...]
    numbers: tuple[int, ...]
    """Theirs in the version"""
    covered: frozenset[int]
    """Numbers of the live files all of whose live rows have a node"""
    metric: Metric
    search_list: int
    dims: int
    recall_model: RecallModel
    index_bytes: int
    """Of all shards, as they are stored"""
    balled: frozenset[int] = frozenset()
    """Numbers of the covered files all of whose live rows were live in the version's snapshot: the balls hold them"""
    column_is_double: bool = False
    """Whether the column's vectors are doubles, which shards hold as floats"""
    _restricted: "WeakKeyDictionary[Matches, LoadedVersion]" = field(
        default_factory=WeakKeyDictionary, init=False, repr=False
    )

    def restricted(self, matches: Matches) -> "LoadedVersion":
        """The version, of which only matching rows are returned. It is kept for as long as somebody holds the matches,
        as making it takes longer than most searches. Memory: a byte a node.
        """
        found = self._restricted.get(matches)
        if found is None:
            shards = (shard.restricted(matches.mask(shard.file_numbers, shard.positions)) for shard in self.shards)
            found = self._restricted[matches] = replace(self, shards=tuple(shards))
        return found

    @property
    def exact(self) -> bool:
        """Whether its distances are those of the table's own vectors (under cosine, of their directions in f32)."""
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
class IndexAnswer:
    """What an index version answered."""

    candidates: Candidates
    strategy: str
    approximate: bool = False
    """Distances are of codes or of rounded vectors: to be ranked again"""
    rounded_directions: bool = False
    """Distances are of directions rounded to f32, and all rows are here that may be among the k nearest: to be settled
    by the data files, where that is in doubt
    """
    work: tuple[ShardWork, ...] = ()
    """Of the shards that were searched"""

    @property
    def expanded(self) -> int:
        """Nodes whose neighbours were looked at."""
        return sum(item.expanded for item in self.work)

    @property
    def computed(self) -> int:
        """Distances computed."""
        return sum(item.distances for item in self.work)


def load(
    opened: OpenVersion,
    live: LiveFiles,
    storage: StorageConfig,
    *,
    complete: bool,
    threads: int,
    column_is_double: bool = False,
) -> LoadedVersion:
    """Read, check and mask every shard.

    `column_is_double`: the column's vectors are doubles, which shards hold as floats.

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
    shards = {number: as_loaded(part, column_is_double=column_is_double) for number, part in enumerate(parts)}
    return replace(version_of(opened, shards, covered), balled=balled, column_is_double=column_is_double)


def version_of(opened: OpenVersion, shards: Mapping[int, LoadedShard], covered: frozenset[int]) -> LoadedVersion:
    """A version of which these shards, by their numbers, are searched."""
    definition = opened.definition
    return LoadedVersion(
        tuple(shards.values()),
        tuple(shards),
        covered,
        definition.metric_value,
        definition.search_list,
        opened.routing.dims,
        RecallModel.of(opened),
        sum(part.length for part in opened.shards),
    )


def as_loaded(part: Part, *, column_is_double: bool) -> LoadedShard:
    """A shard of which only live nodes are returned; `column_is_double` as `load` has it."""
    shard = part.shard
    searcher = shard.searcher.masked(part.live)
    return LoadedShard(
        shard.graph, shard.vectors, shard.pq, part.live, searcher, part.files, shard.row_positions,
        shard.rounded or column_is_double,
    )  # fmt: skip


def search(
    version: LoadedVersion, queries: npt.NDArray[np.float64], k: int, knobs: SearchParameters, *, threads: int
) -> IndexAnswer:
    """The k nearest candidates over the shards that a query is to be asked of; k x oversample where distances are not
    exact.
    """
    probed = version.recall_model.probed(queries, knobs)
    wide = k if version.exact else k * knobs.oversample
    width = max(knobs.search_list, wide)
    parts, work = [], []
    for number, shard in zip(version.numbers, version.shards, strict=True):
        asked = None if probed is None else np.flatnonzero(probed[:, number])
        some = queries if asked is None else queries[asked]
        if not shard.searcher.live_count or not len(some):
            continue
        ids, distances, stats = shard.searcher.search(some, wide, search_list=width, threads=threads)
        found = as_candidates(shard, ids, distances)
        parts.append(found if asked is None else found.spread(asked, len(queries)))
        expanded, computed = int(stats.expanded.sum()), int(stats.distances.sum())
        work.append(ShardWork(number, len(shard.live), len(some), expanded, computed))
    best = merge(parts or [Candidates.none(len(queries), wide)], wide)
    return IndexAnswer(best, "beam", approximate=not version.exact, work=tuple(work))


def as_candidates(shard: LoadedShard, nodes: npt.NDArray[np.int64], distances: npt.NDArray[np.float64]) -> Candidates:
    """Nodes int64[Q, k] of a shard (-1 and infinitely far where there are fewer) as rows of the table."""
    files, positions = shard.file_numbers[nodes], shard.positions[nodes]
    missing = nodes < 0
    if missing.any():
        files[missing], positions[missing] = -1, -1
    return Candidates(files, positions, distances)
