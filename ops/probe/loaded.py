"""An index version in memory: its shards as searchers, masked for the snapshot that is read."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ann_kernels.metric import Metric
from ann_kernels.search import Searcher
from ann_kernels.vamana import Graph
from ops.catalog.deletes import deleted_by_file
from ops.curves import OVERSAMPLE
from ops.index.versions import OpenVersion
from ops.model import LiveFiles, StorageConfig
from ops.probe.candidates import Candidates, merge
from ops.probe.knobs import Advice
from ops.storage import open_storage, relative_to
from puffin.blobs import shard as shard_blob
from puffin.blobs.shard import Shard
from puffin.errors import BadBlobError


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
    balled: frozenset[int] = frozenset()
    """Numbers of the covered files all of whose live rows were live in the version's snapshot: the balls hold them"""

    @property
    def exact(self) -> bool:
        """Whether its distances are the table's own to the last bit."""
        return not any(shard.rounded for shard in self.shards)

    @property
    def lean(self) -> bool:
        """Whether distances are approximate until rows are read."""
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
    """Distances are by PQ codes: to be ranked again"""
    work: tuple[ShardWork, ...] = ()
    """Of the shards that were searched"""


def load(
    opened: OpenVersion, live: LiveFiles, storage: StorageConfig, *, complete: bool, threads: int
) -> LoadedVersion:
    """Read, check and mask every shard.

    A node may be returned when its row is live in `live`, whatever the version's own snapshot was. With `complete`,
    nodes of files that are covered in part are left out: whoever wants all rows scans those files.
    """
    metric = opened.definition.metric_value
    numbers = {relative_to(file.path, live.location): number for number, file in enumerate(live.files)}
    slot_to_number = np.array(
        [numbers.get(slot.path, -1) if slot.present else -1 for slot in opened.routing.files], np.int64
    )
    store = open_storage(opened.version.puffin_path, storage)
    deleted = deleted_by_file(lambda path: open_storage(path, storage), live.files)

    def read(number: int) -> tuple[Shard, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        where = opened.shards[number]
        blob = store.read_range(where.path, where.offset, where.length)
        shard = shard_blob.decode(blob)
        if shard.count != opened.routing.shards[number].count:
            raise BadBlobError(
                f"shard {number} has {shard.count} nodes, the routing blob says {opened.routing.shards[number].count}"
            )
        files = slot_to_number[shard.file_slots] if len(slot_to_number) else np.empty(0, np.int64)
        return shard, files, _live_mask(shard, files, live, deleted)

    with ThreadPoolExecutor(max(1, threads)) as pool:
        parts = list(pool.map(read, range(len(opened.shards))))
    covered = _covered(live, deleted, [(files, mask) for _, files, mask in parts])
    if complete:
        parts = [(shard, files, mask & np.isin(files, list(covered))) for shard, files, mask in parts]
    shards = tuple(_loaded(shard, files, mask, metric) for shard, files, mask in parts)
    revived = [
        files[entry.tombstones][mask[entry.tombstones]]
        for entry, (_, files, mask) in zip(opened.routing.shards, parts, strict=True)
    ]
    balled = covered - set(np.concatenate([np.empty(0, np.int64), *revived]).tolist())
    return LoadedVersion(
        shards, covered, metric, opened.definition.search_list, opened.routing.dims, Advice.of(opened), balled
    )


def _live_mask(
    shard: Shard, files: npt.NDArray[np.int64], live: LiveFiles, deleted: Mapping[str, npt.NDArray[np.int64]]
) -> npt.NDArray[np.bool_]:
    mask = files >= 0
    for number in np.unique(files[mask]):
        file = live.files[number]
        nodes = np.flatnonzero(files == number)
        beyond = shard.row_positions[nodes] >= file.record_count
        mask[nodes] = ~(np.isin(shard.row_positions[nodes], deleted[file.path]) | beyond)
    return np.asarray(mask)


def _covered(
    live: LiveFiles,
    deleted: Mapping[str, npt.NDArray[np.int64]],
    parts: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]],
) -> frozenset[int]:
    """Files whose live rows all have a live node: counted, not assumed."""
    nodes = np.zeros(len(live.files), np.int64)
    for files, mask in parts:
        nodes += np.bincount(files[mask], minlength=len(live.files)).astype(np.int64)
    expected = np.array([file.record_count - len(deleted[file.path]) for file in live.files], np.int64)
    return frozenset(np.flatnonzero(nodes == expected).tolist())


def _loaded(shard: Shard, files: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_], metric: Metric) -> LoadedShard:
    graph = Graph(shard.neighbors, shard.degrees, shard.medoid)
    vectors = None if shard.vectors is None else np.ascontiguousarray(shard.vectors, np.float32)
    pq = None
    if vectors is None and shard.pq_codebook is not None and shard.pq_codes is not None:
        pq = (shard.pq_codebook, shard.pq_codes)
    searcher = Searcher(graph, vectors, metric, live=mask, pq=pq)
    rounded = shard.vectors is None or shard.vectors.dtype != np.float32
    return LoadedShard(graph, vectors, pq, mask, searcher, files, shard.row_positions, rounded)


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
    """The k nearest candidates over all shards; of lean shards k x oversample, by approximate distances.

    `probed` bool[Q, shards]: which shards each query is asked of; None is all.
    """
    wide = k * oversample if version.lean else k
    parts, work = [Candidates.none(len(queries), 1)], []
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
    return Indexed(merge(parts, wide), expanded, computed, "beam", approximate=version.lean, work=tuple(work))


def as_candidates(shard: LoadedShard, nodes: npt.NDArray[np.int64], distances: npt.NDArray[np.float32]) -> Candidates:
    """Nodes int64[Q, k] of a shard (-1 where there are fewer) as rows of the table."""
    found = nodes >= 0
    return Candidates(
        np.where(found, shard.file_numbers[nodes], -1),
        np.where(found, shard.positions[nodes], -1),
        np.where(found, distances, np.float32(np.inf)),
    )
