"""Stage 1b: one shard's version for a snapshot: built, or derived from an older version of the same shard."""

import hashlib
import uuid
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from ann_kernels import vamana
from ann_kernels.distance import prepare
from ann_kernels.metric import Metric
from ann_kernels.quantize import decode_pq, encode_pq
from ann_kernels.vamana import Graph, VamanaParams
from ops.catalog.deletes import deleted_by_file
from ops.datafile import take_rows, vectors_from_arrow
from ops.model import LiveFile, ObjectRange, StorageConfig
from ops.storage import PartSource, Storage, open_storage
from ops.tasks import markers
from ops.tasks.gate import measure_curve, measure_recall
from ops.tasks.rows import Rows, match, read_staged, same_vectors
from puffin.blobs import shard as shard_blob
from puffin.blobs.shard import Shard, ShardReader


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
    base_curve: str
    """As the gate measured it when the graph was built"""
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
    curve: str = ""
    """Recall over the width of the search, see `ops.curves`"""


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
    incoming = read_staged(storage, task.blocks, task.dims)
    if task.base is None:
        return _build(task, storage, incoming, "built", incoming.count, 0)
    source = PartSource(storage, task.base)
    live = _live_nodes(task, ShardReader(source))
    dead = np.flatnonzero(~live)
    if not incoming.count and len(dead) <= task.rebuild_ratio * len(live):
        return _mask(task, source, dead)
    return _refresh(task, storage, ShardReader(source).read(), live, incoming)


# ------------------------------------------------------------------------------------------------ build, refresh


def _build(task: ShardTask, storage: Storage, rows: Rows, how: str, inserted: int, remapped: int) -> ShardResult:
    graph = vamana.build(rows.vectors, Metric(task.metric), task.params, threads=task.threads)
    live = np.ones(rows.count, np.bool_)
    shard = _assemble(task, graph, rows)
    recall = _recall(task, shard, rows.vectors, live)
    curve = measure_curve(shard, rows.vectors, live, seed=task.params.seed, threads=task.threads)
    task = replace(task, base_curve=curve)
    return _write(task, storage, shard, live, how=how, recall=recall, inserted=inserted, remapped=remapped)


def _refresh(
    task: ShardTask, storage: Storage, base: Shard, live: npt.NDArray[np.bool_], incoming: Rows
) -> ShardResult:
    task = replace(task, pq_codebook=base.pq_codebook)
    base, live, incoming, remapped = _remap(base, live, incoming)
    worn = int((~live).sum()) > task.rebuild_ratio * (len(live) + incoming.count)
    if not worn and not incoming.count:  # every row was here before: the graph and its recall are the base's
        return _write(task, storage, base, live, how="remapped", recall=task.base_recall, inserted=0, remapped=remapped)
    rows = Rows(base.file_slots, base.row_positions, base.content_hashes, _node_vectors(task, base, live))
    if worn:
        rows = rows.take(np.flatnonzero(live)).join(incoming).sorted()
        return _build(task, storage, rows, "rebuilt", incoming.count, remapped)
    rows = rows.join(incoming)
    live = np.concatenate([live, np.ones(incoming.count, np.bool_)])
    graph = Graph(base.neighbors, base.degrees, base.medoid)
    graph = vamana.insert(graph, rows.vectors, Metric(task.metric), task.params, threads=task.threads)
    shard = _assemble(task, graph, rows, base.pq_codes)
    recall = _recall(task, shard, rows.vectors, live)
    return _write(task, storage, shard, live, how="inserted", recall=recall, inserted=incoming.count, remapped=remapped)


def _remap(base: Shard, live: npt.NDArray[np.bool_], incoming: Rows) -> tuple[Shard, npt.NDArray[np.bool_], Rows, int]:
    """Give incoming rows the dead nodes of equal vectors: compaction and re-added files cost no graph work.

    Equal content hashes are matched one to one, in order; where the shard holds vectors they must be equal too.
    """
    dead = np.flatnonzero(~live)
    dead = dead[np.argsort(base.content_hashes[dead], kind="stable")]
    rows = np.argsort(incoming.hashes, kind="stable")
    nodes, matched = match(base.content_hashes[dead], incoming.hashes[rows])
    nodes, matched = dead[nodes], rows[matched]
    if base.vectors is not None:
        equal = same_vectors(base.vectors, nodes, incoming.vectors, matched)
        nodes, matched = nodes[equal], matched[equal]
    if not len(nodes):
        return base, live, incoming, 0
    slots, positions, now_live = base.file_slots.copy(), base.row_positions.copy(), live.copy()
    slots[nodes], positions[nodes] = incoming.slots[matched], incoming.positions[matched]
    now_live[nodes] = True
    rest = np.setdiff1d(np.arange(incoming.count), matched)
    moved = replace(base, file_slots=slots, row_positions=positions)
    return moved, now_live, incoming.take(rest), len(nodes)


def _mask(task: ShardTask, source: PartSource, dead: npt.NDArray[np.intp]) -> ShardResult:
    """The graph is untouched: keep the base's bytes, only the tombstones are new."""
    header = ShardReader(source).header
    return ShardResult(
        number=task.number,
        how="masked",
        path=source.part.path,
        offset=source.part.offset,
        length=source.part.length,
        sha256=b"",
        count=header.count,
        medoid=header.medoid,
        recall=task.base_recall,
        tombstones=dead.astype(np.int64),
        inserted=0,
        remapped=0,
        curve=task.base_curve,
    )


# ------------------------------------------------------------------------------------------------------- liveness


def _live_nodes(task: ShardTask, reader: ShardReader) -> npt.NDArray[np.bool_]:
    """Which nodes' rows are live in the snapshot: computed from the snapshot, never carried over."""
    slots, positions = reader.read_locations()
    live = np.zeros(len(slots), np.bool_)
    present = set(np.unique(slots).tolist())
    held = [(slot, file) for slot, file in task.slots if slot in present]
    deleted = deleted_by_file(lambda path: open_storage(path, task.storage), [file for _, file in held])
    for slot, file in held:
        nodes = np.flatnonzero(slots == slot)
        live[nodes] = ~np.isin(positions[nodes], deleted[file.path])
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


def _assemble(task: ShardTask, graph: Graph, rows: Rows, old_codes: npt.NDArray[np.uint8] | None = None) -> Shard:
    """The shard of a graph. `old_codes` u8[n, m] are the PQ codes of the first n rows, where they are known."""
    codes = None
    if task.pq_codebook is not None:
        known = 0 if old_codes is None else len(old_codes)
        codes = encode_pq(rows.vectors[known:], task.pq_codebook, threads=task.threads)
        codes = codes if old_codes is None else np.concatenate([old_codes, codes])
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


def _recall(task: ShardTask, shard: Shard, vectors: npt.NDArray[np.float32], live: npt.NDArray[np.bool_]) -> float:
    return measure_recall(shard, vectors, live, seed=task.params.seed, threads=task.threads)


def _write(
    task: ShardTask,
    storage: Storage,
    shard: Shard,
    live: npt.NDArray[np.bool_],
    *,
    how: str,
    recall: float,
    inserted: int,
    remapped: int,
) -> ShardResult:
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
        recall=recall,
        tombstones=np.flatnonzero(~live).astype(np.int64),
        inserted=inserted,
        remapped=remapped,
        curve=task.base_curve,
    )
