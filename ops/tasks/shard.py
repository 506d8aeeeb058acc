"""Stage 1b: one shard's version for a snapshot: built, or derived from an older version of the same shard."""

import hashlib
import uuid
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.schema import Schema

from ann_kernels import vamana
from ann_kernels.distance import prepare
from ann_kernels.metric import Metric
from ann_kernels.quantize import decode_pq, encode_pq
from ann_kernels.search import Searcher
from ann_kernels.topk import exact_top_k
from ann_kernels.vamana import Graph, VamanaParams
from ops.catalog.deletes import deleted_positions
from ops.datafile import StorageFile, take_rows, vectors_from_arrow
from ops.model import LiveFile, ObjectRange, StorageConfig
from ops.storage import Storage, open_storage
from ops.tasks import markers
from puffin.blobs import shard as shard_blob
from puffin.blobs.shard import Shard, ShardReader

GATE_QUERIES = 64
GATE_K = 10
OVERSAMPLE = 3
"""Candidates a result row that a lean shard hands over for exact ranking."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardTask:
    """One shard of one version."""

    number: int
    dims: int
    metric: int
    params: VamanaParams
    vectors: str
    """`none`, `f32` or `f16`: what the blob keeps"""
    pq_codebook: npt.NDArray[np.float32] | None
    blocks: tuple[tuple[str, int], ...]
    """(path, rows) of staged blocks with vectors for this shard, by scatter task"""
    base: ObjectRange | None
    """The shard's blob in the version that this one starts from"""
    base_recall: float
    slots: tuple[tuple[int, LiveFile], ...]
    """Every slot whose file is live in the snapshot"""
    schema: Schema
    field_id: int
    rebuild_ratio: float
    staging: str
    storage: StorageConfig
    threads: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class ShardResult:
    """What became of a shard; its bytes lie at `path[offset : offset + length]`."""

    number: int
    how: str
    path: str
    offset: int
    length: int
    sha256: bytes
    """Empty where the base's bytes are kept: the base's routing blob knows it."""
    count: int
    medoid: int
    recall: float
    tombstones: npt.NDArray[np.int64]
    inserted: int
    remapped: int


def make_shard(task: ShardTask) -> ShardResult:
    """Idempotent by its marker.

    Memory: the shard's vectors and graph; of a lean shard the vectors too, while it is worked on.
    """
    storage = open_storage(task.staging, task.storage)
    marker = f"{task.staging}/shard-{task.number}.json"
    done = markers.find(storage, marker)
    if done is None:
        return ShardResult(**markers.record(storage, marker, _make(task, storage)))
    finished = ShardResult(**done)
    if not storage.exists(finished.path):  # swept by age, or by an equal build that was published meanwhile
        return _make(task, storage)
    return finished


def _make(task: ShardTask, storage: Storage) -> ShardResult:
    incoming = _Incoming.read(storage, task)
    if task.base is None:
        return _write(task, storage, _build(task, incoming), "built", incoming.count, 0)
    source = _BlobRange(storage, task.base)
    live = _live_nodes(task, ShardReader(source))
    dead = np.flatnonzero(~live)
    if not incoming.count and len(dead) <= task.rebuild_ratio * len(live):
        return _mask(task, source, dead)
    return _refresh(task, storage, ShardReader(source).read(), live, incoming)


# ---------------------------------------------------------------------------------------------- incoming rows


@dataclass(frozen=True, slots=True, eq=False)
class _Incoming:
    """Rows for this shard, in the order of slot and position, so that node ids do not depend on who staged them."""

    slots: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    vectors: npt.NDArray[np.float32]

    @property
    def count(self) -> int:
        return len(self.slots)

    def take(self, rows: npt.NDArray[np.intp]) -> "_Incoming":
        return _Incoming(self.slots[rows], self.positions[rows], self.hashes[rows], self.vectors[rows])

    @classmethod
    def read(cls, storage: Storage, task: ShardTask) -> "_Incoming":
        total = sum(rows for _, rows in task.blocks)
        slots, positions = np.empty(total, np.uint32), np.empty(total, np.int64)
        hashes, vectors = np.empty(total, np.uint64), np.empty((total, task.dims), np.float32)
        at = 0
        for path, _ in task.blocks:
            staged = pa.PythonFile(StorageFile(storage, path, storage.size(path)), mode="r")
            for batch in pa.ipc.open_stream(staged):
                end = at + batch.num_rows
                slots[at:end] = batch["slot"].to_numpy()
                positions[at:end] = batch["position"].to_numpy()
                hashes[at:end] = batch["hash"].to_numpy()
                vectors[at:end] = batch["vector"].flatten().to_numpy().reshape(-1, task.dims)
                at = end
        order = np.lexsort((positions, slots))
        if (order[1:] < order[:-1]).any():  # several tasks staged for this shard
            slots, positions, hashes = slots[order], positions[order], hashes[order]
            _permute(vectors, order)
        return cls(slots, positions, hashes, vectors)


def _permute(rows: npt.NDArray[np.float32], order: npt.NDArray[np.intp]) -> None:
    """`rows[:] = rows[order]` without a second array: a shard's vectors are most of a task's memory."""
    left = order.copy()
    for start in range(len(left)):
        if left[start] in (start, -1):
            continue
        held, at = rows[start].copy(), start
        while left[at] != start:
            source = int(left[at])
            rows[at], left[at] = rows[source], -1
            at = source
        rows[at], left[at] = held, -1


# ------------------------------------------------------------------------------------------------ build, refresh


def _build(task: ShardTask, rows: _Incoming) -> tuple[Shard, npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    graph = vamana.build(rows.vectors, Metric(task.metric), task.params, threads=task.threads)
    return _assemble(task, graph, rows), rows.vectors, np.ones(rows.count, np.bool_)


def _refresh(
    task: ShardTask, storage: Storage, base: Shard, live: npt.NDArray[np.bool_], incoming: _Incoming
) -> ShardResult:
    task = replace(task, pq_codebook=base.pq_codebook)
    base, live, incoming, remapped = _remap(base, live, incoming)
    vectors = _node_vectors(task, base, live)
    dead = int((~live).sum())
    if dead > task.rebuild_ratio * (len(live) + incoming.count):
        kept = np.flatnonzero(live)
        rows = _join(_Incoming(base.file_slots, base.row_positions, base.content_hashes, vectors).take(kept), incoming)
        rows = rows.take(np.lexsort((rows.positions, rows.slots)))
        return _write(task, storage, _build(task, rows), "rebuilt", incoming.count, remapped)
    rows = _join(_Incoming(base.file_slots, base.row_positions, base.content_hashes, vectors), incoming)
    graph = Graph(base.neighbors, base.degrees, base.medoid)
    if incoming.count:
        graph = vamana.insert(graph, rows.vectors, Metric(task.metric), task.params, threads=task.threads)
    all_live = np.concatenate([live, np.ones(incoming.count, np.bool_)])
    return _write(
        task, storage, (_assemble(task, graph, rows), rows.vectors, all_live), "inserted", incoming.count, remapped
    )


def _remap(
    base: Shard, live: npt.NDArray[np.bool_], incoming: _Incoming
) -> tuple[Shard, npt.NDArray[np.bool_], _Incoming, int]:
    """Give incoming rows the dead nodes of equal vectors: compaction and re-added files cost no graph work.

    Equal content hashes are matched one to one, in order.
    """
    dead = np.flatnonzero(~live)
    dead = dead[np.argsort(base.content_hashes[dead], kind="stable")]
    rows = np.argsort(incoming.hashes, kind="stable")
    nodes, matched = _match(base.content_hashes[dead], incoming.hashes[rows])
    nodes, matched = dead[nodes], rows[matched]
    if not len(nodes):
        return base, live, incoming, 0
    slots, positions, now_live = base.file_slots.copy(), base.row_positions.copy(), live.copy()
    slots[nodes], positions[nodes] = incoming.slots[matched], incoming.positions[matched]
    now_live[nodes] = True
    rest = np.setdiff1d(np.arange(incoming.count), matched)
    moved = replace(base, file_slots=slots, row_positions=positions)
    return moved, now_live, incoming.take(rest), len(nodes)


def _match(
    left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Pairs of places of equal values in two sorted arrays, as multisets: n-th with n-th."""
    rank_left = np.arange(len(left)) - np.searchsorted(left, left)
    start = np.searchsorted(right, left, side="left")
    end = np.searchsorted(right, left, side="right")
    found = np.flatnonzero(start + rank_left < end)
    return found, (start + rank_left)[found]


def _join(first: _Incoming, second: _Incoming) -> _Incoming:
    if not second.count:
        return first
    return _Incoming(
        np.concatenate([first.slots, second.slots]),
        np.concatenate([first.positions, second.positions]),
        np.concatenate([first.hashes, second.hashes]),
        np.concatenate([first.vectors, second.vectors]),
    )


def _mask(task: ShardTask, source: "_BlobRange", dead: npt.NDArray[np.intp]) -> ShardResult:
    """The graph is untouched: keep the base's bytes, only the tombstones are new."""
    header = ShardReader(source).header
    return ShardResult(
        number=task.number,
        how="masked",
        path=source.range.path,
        offset=source.range.offset,
        length=source.range.length,
        sha256=b"",
        count=header.count,
        medoid=header.medoid,
        recall=task.base_recall,
        tombstones=dead.astype(np.int64),
        inserted=0,
        remapped=0,
    )


# ------------------------------------------------------------------------------------------------------- liveness


def _live_nodes(task: ShardTask, reader: ShardReader) -> npt.NDArray[np.bool_]:
    """Which nodes' rows are live in the snapshot: computed from the snapshot, never carried over."""
    slots, positions = reader.read_locations()
    live = np.zeros(len(slots), np.bool_)
    for slot, file in task.slots:
        nodes = np.flatnonzero(slots == slot)
        if not len(nodes):
            continue
        deleted = deleted_positions(open_storage(file.path, task.storage), file)
        live[nodes] = ~np.isin(positions[nodes], deleted)
    return live


def _node_vectors(task: ShardTask, base: Shard, live: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """f32[N, D], prepared. A lean shard's are read again from the data files; those of dead nodes, whose files may be
    gone, are what their PQ codes stand for: they only lead walks on.
    """
    if base.vectors is not None:
        return base.vectors.astype(np.float32, copy=False)
    if base.pq_codebook is None or base.pq_codes is None:
        raise ValueError(f"shard {task.number} has neither vectors nor PQ codes")
    vectors = decode_pq(base.pq_codes, base.pq_codebook)
    for slot, file in task.slots:
        nodes = np.flatnonzero(live & (base.file_slots == slot))
        if len(nodes):
            rows = take_rows(
                open_storage(file.path, task.storage), file, task.schema, [task.field_id], base.row_positions[nodes]
            )
            vectors[nodes] = prepare(vectors_from_arrow(rows.column(0), task.dims), Metric(task.metric))
    return vectors


# -------------------------------------------------------------------------------------------------------- writing


def _assemble(task: ShardTask, graph: Graph, rows: _Incoming) -> Shard:
    codes = None if task.pq_codebook is None else encode_pq(rows.vectors, task.pq_codebook, threads=task.threads)
    kept = {
        "none": None,
        "f32": rows.vectors,
        "f16": rows.vectors.astype(np.float16) if task.vectors == "f16" else None,
    }
    return Shard(
        metric=task.metric,
        dims=task.dims,
        max_degree=task.params.max_degree,
        search_list=task.params.search_list,
        alpha=task.params.alpha,
        medoid=graph.medoid,
        neighbors=graph.neighbors,
        degrees=graph.degrees,
        file_slots=rows.slots,
        row_positions=rows.positions,
        content_hashes=rows.hashes,
        vectors=kept[task.vectors],
        pq_codebook=task.pq_codebook,
        pq_codes=codes,
    )


def _write(
    task: ShardTask,
    storage: Storage,
    made: tuple[Shard, npt.NDArray[np.float32], npt.NDArray[np.bool_]],
    how: str,
    inserted: int,
    remapped: int,
) -> ShardResult:
    shard, vectors, live = made
    path = f"{task.staging}/shard-{task.number}-{uuid.uuid4().hex}.dann"
    digest, length = hashlib.sha256(), 0
    with storage.open_output(path) as sink:
        for chunk in shard_blob.encode(shard):
            digest.update(chunk)
            length += len(chunk)
            sink.write(chunk)  # type: ignore[arg-type]  # any buffer will do
    return ShardResult(
        number=task.number,
        how=how,
        path=path,
        offset=0,
        length=length,
        sha256=digest.digest(),
        count=shard.count,
        medoid=shard.medoid,
        recall=_measure_recall(task, shard, vectors, live),
        tombstones=np.flatnonzero(~live).astype(np.int64),
        inserted=inserted,
        remapped=remapped,
    )


def _measure_recall(
    task: ShardTask, shard: Shard, vectors: npt.NDArray[np.float32], live: npt.NDArray[np.bool_]
) -> float:
    """recall@10 of this shard for some of its own live rows, each asked for its neighbours but itself.

    Equal distances count as hits. 1.0 where there is nothing to find. A lean shard is ranked again by exact distance,
    as a search does it.
    """
    nodes = np.flatnonzero(live)
    if len(nodes) < 2:
        return 1.0
    rng = np.random.default_rng(task.params.seed)
    asked = np.sort(rng.choice(nodes, min(GATE_QUERIES, len(nodes)), replace=False))
    metric = Metric(task.metric)
    k = min(GATE_K + 1, len(nodes))
    exact_ids, exact = exact_top_k(vectors[asked], vectors, k, metric, live=live)
    graph = Graph(shard.neighbors, shard.degrees, shard.medoid)
    lean = shard.vectors is None and shard.pq_codebook is not None and shard.pq_codes is not None
    pq = (shard.pq_codebook, shard.pq_codes) if lean else None
    searcher = Searcher(graph, None if lean else vectors, metric, live=live, pq=pq)  # type: ignore[arg-type]
    wide = k * OVERSAMPLE if lean else k
    found, _, _ = searcher.search(vectors[asked], wide, search_list=task.params.search_list, threads=task.threads)
    return _mean_recall(asked, vectors, found, exact_ids, exact, metric)


def _mean_recall(
    asked: npt.NDArray[np.intp],
    vectors: npt.NDArray[np.float32],
    found: npt.NDArray[np.int64],
    exact_ids: npt.NDArray[np.int64],
    exact: npt.NDArray[np.float32],
    metric: Metric,
) -> float:
    hits: list[float] = []
    for row, node in enumerate(asked):
        wanted = exact_ids[row] != node
        limit = exact[row][wanted][:GATE_K].max()
        mine = found[row][(found[row] >= 0) & (found[row] != node)]
        _, distances = exact_top_k(vectors[node : node + 1], vectors[mine], max(1, len(mine)), metric)
        count = min(GATE_K, int(wanted.sum()))
        hits.append(min(count, int((distances[0] <= limit * (1 + 1e-6) + 1e-7).sum())) / count)
    return float(np.mean(hits))


class _BlobRange:
    """A blob inside a Puffin file, as a source of its own."""

    def __init__(self, storage: Storage, where: ObjectRange) -> None:
        self._storage = storage
        self.range = where

    def size(self) -> int:
        return self.range.length

    def read_range(self, offset: int, length: int) -> bytes:
        length = max(0, min(length, self.range.length - offset))
        return self._storage.read_range(self.range.path, self.range.offset + offset, length)
