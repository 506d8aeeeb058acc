"""Shards whose graph is new or changes: built, rebuilt without dead nodes, or inserted into."""

import hashlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.codes import grouped_centroids
from icepuffin.ann_kernels.codes.code_sizes import ROTATED_BITS
from icepuffin.ann_kernels.codes.product_quantization import encode_pq
from icepuffin.ann_kernels.codes.rotated_quantization import center_of, encode
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.graphs.locality import locality_order
from icepuffin.ann_kernels.graphs.vamana import Graph, VamanaParams
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import How, ObjectRange, ShardId, StorageConfig, StoredRun, StoredShard
from icepuffin.ops.process.large_arrays import converted, new_array
from icepuffin.ops.recall.curves import at_most
from icepuffin.ops.recall.shard_recall import ShardRecall
from icepuffin.ops.shards.shard_codes import as_kernels_take, as_stored
from icepuffin.ops.shards.vector_runs import lasting_runs
from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.tasks import markers
from icepuffin.ops.tasks.base_shard import BaseShard
from icepuffin.ops.tasks.delta_rows import PassedRows
from icepuffin.ops.tasks.found_rows import FoundRows, find_rows
from icepuffin.ops.tasks.recall_gate import CURVE_QUERIES, measure_curve, measure_recall, searcher_of
from icepuffin.ops.tasks.routing_distances import RoutingDistances, measure_distances
from icepuffin.ops.tasks.rows import VectorRows, undo_rounding
from icepuffin.ops.tasks.staged_blocks import Block, read_blocks
from icepuffin.ops.tasks.task_runner import SHARD_MEMORY_FACTOR, shard_bytes
from icepuffin.ops.tasks.written_cells import make_cells
from icepuffin.puffin.blobs import shard_blob
from icepuffin.puffin.blobs.shard_blob import Shard, ShardCodes, ShardReader, stored_vectors
from icepuffin.puffin.blobs.shard_header import ALIGNMENT
from icepuffin.puffin.types import MAX_BLOB_BYTES

RECALL_LOSS = 0.01
"""Recall that inserts may cost a shard before it is rebuilt"""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Partitions:
    """The partitions of a version, and the shards that they belong to."""

    codebook: npt.NDArray[np.float32]
    """f32[k, D]"""
    to_shard: npt.NDArray[np.uint32]
    """u32[k]"""

    def order(
        self, vectors: npt.NDArray[np.float32], rows: npt.NDArray[np.intp], *, threads: int
    ) -> npt.NDArray[np.intp]:
        """int[N], `rows` of f32[N, D] vectors by shard, those of one shard in the order in which they are given.

        A delta that is dissolved gives each shard a range of its nodes: their vectors need not be written again.
        """
        labels, _ = grouped_centroids.assign(vectors, self.codebook, threads=threads)
        return rows[np.argsort(self.to_shard[labels[rows]], kind="stable")]


@dataclass(frozen=True, slots=True, eq=False)
class ShardTask:
    """One shard that is to be written."""

    shard_id: ShardId
    how: How
    dims: int
    metric: Metric
    params: VamanaParams
    vectors: str
    """What the blob holds of vectors, as `IndexDefinition.vectors` has it"""
    cell_bits: int
    """Bits per dimension of the codes in cells; 0: the blob has no cells"""
    pq_codebook: npt.NDArray[np.float32] | None
    blocks: tuple[Block, ...]
    """Staged rows that come to the shard"""
    passed: tuple[PassedRows, ...]
    """Rows of dissolved deltas that come to the shard, and whose vectors stay where they lie"""
    base: BaseShard | None
    partitions: Partitions | None
    """Partitions that a delta shard orders its rows by; None for other shards"""
    is_delta: bool
    """Whether it is a delta shard; its recall curve is not measured, since the other shards' curves suffice"""
    target_recall: float
    """Recall under which a graph is rebuilt after inserts"""
    staging: str
    storage: StorageConfig
    recorded: bool
    """Whether a marker is written, so that a retry finds the result; else a retry does the work again"""
    curve_queries: int = CURVE_QUERIES
    """Queries of its recall curve"""
    shared_queries: int = 0
    """Number of the first `routing_queries` by which the recall of a search of all shards is measured"""
    routing_queries: npt.NDArray[np.float32] | None = None
    """f32[Q, D], prepared rows of the table that all shards are searched for; None: they are not"""
    threads: int = 1

    @property
    def memory_bytes(self) -> int | None:
        """Peak of its memory; None where a shard is changed, whose size is not known before it is read."""
        if self.base is not None:
            return None
        rows = sum(count for _, count in self.blocks) + sum(passed.count for passed in self.passed)
        return int(SHARD_MEMORY_FACTOR * shard_bytes(rows, self.dims, self.params.max_degree))


@dataclass(frozen=True, slots=True, eq=False)
class ShardResult:
    """A shard of the new version, and where its bytes are until they are copied to the version's file or pack."""

    shard_id: ShardId
    how: How
    stored: StoredShard
    sha256: bytes
    """sha256 of the blob"""
    count: int
    medoid: int
    written_recall: float
    """recall@10 when the shard was last written"""
    recall: ShardRecall
    """Recall as it was last measured"""
    curve: str
    """Recall curve as `icepuffin.ops.recall.curves` encodes it; empty where it was not measured"""
    tombstones: npt.NDArray[np.int64]
    inserted: int
    remapped: int
    slots: npt.NDArray[np.uint32] | None
    """File slots of all nodes, dead ones included; None where addresses were not read"""
    routing: RoutingDistances | None = None
    """Distances of the task's `routing_queries`; None without them, and under inner product"""
    found: tuple[FoundRows, ...] = ()
    """What the shard finds for them"""

    @property
    def length(self) -> int:
        """Bytes of the blob, and of vectors that lie apart from it."""
        return self.stored.blob.length + self.stored.vector_bytes

    @property
    def live_rows(self) -> int:
        return self.count - len(self.tombstones)


def make_shard(task: ShardTask) -> ShardResult:
    """Build, rebuild or insert, measure recall, and write the blob. Idempotent by its marker, where it is recorded.

    Memory: the shard's vectors and graph, also where the blob keeps no vectors. Raises StorageError, PuffinError.
    """
    storage = open_storage(task.staging, task.storage)
    incoming = read_blocks(task.storage, task.blocks, task.dims)
    addresses = [rows.addresses(task.storage) for rows in task.passed]
    if task.partitions is not None and task.how is How.INSERTED:
        incoming = incoming.reordered(
            task.partitions.order(incoming.vectors, np.arange(incoming.count), threads=task.threads)
        )
    if not task.recorded:
        return _make(task, storage, incoming, addresses)
    marker = markers.name_of(f"{task.staging}/shard-{task.shard_id}", _inputs(task, incoming, addresses))
    done = markers.find(storage, marker)
    if done is None:
        return _result(markers.record(storage, marker, _make(task, storage, incoming, addresses)))
    finished = _result(done)
    # swept by age, or by an equal build that was published meanwhile
    if not storage.exists(finished.stored.path):
        return _make(task, storage, incoming, addresses)
    return finished


def _inputs(
    task: ShardTask, incoming: VectorRows, addresses: Sequence[VectorRows]
) -> Iterator[bytes | npt.NDArray[Any] | str | int | float | None]:
    """Everything that the result depends on, whichever task staged it. `addresses`: those of the passed rows."""
    yield from (task.how, task.dims, task.metric.code, repr(task.params), task.vectors, task.cell_bits)
    yield task.pq_codebook
    yield from (task.is_delta, task.target_recall, task.curve_queries, task.shared_queries, task.routing_queries)
    yield from (incoming.slots, incoming.positions, incoming.hashes)
    for passed, rows in zip(task.passed, addresses, strict=True):
        yield from (repr(passed.runs), rows.slots, rows.positions, rows.hashes)
    if task.base is not None:
        yield from task.base.inputs()


def _result(recorded: dict[str, Any]) -> ShardResult:
    stored = recorded["stored"]
    runs = tuple(StoredRun(**{**run, "location": ObjectRange(**run["location"])}) for run in stored["runs"])
    stored = StoredShard(ObjectRange(**stored["blob"]), runs=runs)  # what a task writes has its own addresses
    recall, how = ShardRecall(**recorded["recall"]), How(recorded["how"])
    routing = recorded["routing"] and RoutingDistances(**recorded["routing"])
    found = tuple(FoundRows(**rows) for rows in recorded["found"])
    made = {"how": how, "stored": stored, "recall": recall, "routing": routing, "found": found}
    return ShardResult(**{**recorded, **made})


@dataclass(frozen=True, slots=True, eq=False)
class _MeasuredShard:
    """A shard in memory, with its measured recall."""

    shard: Shard
    vectors: npt.NDArray[np.float32]
    is_live: npt.NDArray[np.bool_]
    recall: ShardRecall
    searcher: Searcher | None
    """Searcher by which the recall was measured; None where there was nothing to find, and once nothing is measured"""
    runs: tuple[StoredRun, ...] = ()
    """Vectors of the first nodes, stored already"""


def search_base(task: ShardTask) -> tuple[RoutingDistances | None, tuple[FoundRows, ...]]:
    """What searches of the base version's shard find for the task's `routing_queries`, among the nodes that are live.

    Memory: the shard's vectors and graph, also where the blob keeps no vectors. Raises StorageError, PuffinError.
    """
    base = cast("BaseShard", task.base)
    reader = base.reader()
    rows, graph = base.rows(reader), Graph(*reader.read_graph(), reader.header.medoid)
    return _found(task, _assemble(task, graph, rows, reader), rows.vectors, base.is_live(reader), None)


def _found(
    task: ShardTask,
    shard: Shard,
    vectors: npt.NDArray[np.float32],
    is_live: npt.NDArray[np.bool_],
    searcher: Searcher | None,
) -> tuple[RoutingDistances | None, tuple[FoundRows, ...]]:
    """What searches of the shard find for the task's `routing_queries`, where it has some."""
    if (queries := task.routing_queries) is None:
        return None, ()
    searched = shard, vectors, is_live, queries
    routing = None
    if task.metric is not Metric.INNER_PRODUCT:  # which has no near centroids: no routing curve is made
        routing = measure_distances(*searched, threads=task.threads, searcher=searcher)
    return routing, find_rows(*searched, count=task.shared_queries, threads=task.threads, searcher=searcher)


def _make(task: ShardTask, storage: Storage, incoming: VectorRows, addresses: Sequence[VectorRows]) -> ShardResult:
    passed = [rows.with_vectors(new, task.storage, task.dims) for rows, new in zip(task.passed, addresses, strict=True)]
    incoming = VectorRows.joined([*passed, incoming])
    if task.base is not None and task.how is How.INSERTED:
        shard = _insert(task, task.base, incoming)
        if shard.recall.recall >= max(task.target_recall, task.base.recall - RECALL_LOSS):
            return _write(task, storage, shard, incoming.count)
        _log.warning(
            "%s: shard %s finds %.4f of the nearest rows after inserts, %.4f before, target %s: it is built anew",
            task.staging, task.shard_id, shard.recall.recall, task.base.recall, task.target_recall,
        )  # fmt: skip
        task = replace(task, how=How.REBUILT)
        del shard  # the build needs the room
    return _write(task, storage, _build(task, incoming), incoming.count)


def _build(task: ShardTask, incoming: VectorRows) -> _MeasuredShard:
    rows = incoming
    if task.base is not None:
        rows = task.base.live_rows(task.base.reader()).join(incoming).sorted()
    if task.vectors == "f16":
        undo_rounding(rows)
    order = locality_order(rows.vectors, seed=task.params.seed, threads=task.threads)
    if task.partitions is not None:
        order = task.partitions.order(rows.vectors, order, threads=task.threads)
    rows = rows.reordered(order)
    shard = _build_over(task, rows, coded=True)
    if shard.recall.recall < task.target_recall and vamana.is_coded(rows.vectors, task.metric, threads=task.threads):
        by_codes = shard.recall.recall
        del shard  # its graph: the second one needs the room
        shard = _build_over(task, rows, coded=False)
        _log.warning(
            "%s: shard %s, built by codes of one byte, finds %.4f of the nearest rows, target %s; by vectors %.4f",
            task.staging, task.shard_id, by_codes, task.target_recall, shard.recall.recall,
        )  # fmt: skip
    return shard


def _build_over(task: ShardTask, rows: VectorRows, *, coded: bool) -> _MeasuredShard:
    graph = vamana.build(rows.vectors, task.metric, task.params, threads=task.threads, coded=coded, allocate=new_array)
    return _measured(task, _assemble(task, graph, rows), rows.vectors, np.ones(rows.count, np.bool_))


def _insert(task: ShardTask, base: BaseShard, incoming: VectorRows) -> _MeasuredShard:
    reader = base.reader()
    base_rows = base.rows(reader)
    runs = (*base.stored.runs, *(run for rows in task.passed for run in rows.runs))
    rows = base_rows.join(incoming)
    del base_rows  # the graph needs the room
    if task.vectors == "f16":
        undo_rounding(rows)
    is_live = np.concatenate([base.is_live(reader), np.ones(incoming.count, np.bool_)])
    graph = Graph(*reader.read_graph(), reader.header.medoid)
    graph = vamana.insert(graph, rows.vectors, task.metric, task.params, threads=task.threads, allocate=new_array)
    return replace(_measured(task, _assemble(task, graph, rows, reader), rows.vectors, is_live), runs=runs)


def _measured(
    task: ShardTask, shard: Shard, vectors: npt.NDArray[np.float32], is_live: npt.NDArray[np.bool_]
) -> _MeasuredShard:
    searcher = searcher_of(shard, vectors, is_live) if np.count_nonzero(is_live) > 1 else None
    recall = measure_recall(shard, vectors, is_live, seed=task.params.seed, threads=task.threads, searcher=searcher)
    if task.base is not None and task.vectors == "f16":  # of the base's rows only the rounded vectors are known
        recall = recall.at_most(ShardRecall(task.base.recall, 0))
    return _MeasuredShard(shard, vectors, is_live, recall, searcher)


def _rotated_codes(task: ShardTask, rows: VectorRows, base: ShardReader | None) -> ShardCodes | None:
    """Rotated codes of the rows, where the blob is to hold them; the first ones keep those that `base` has."""
    if (bits := ROTATED_BITS.get(task.vectors)) is None:
        return None
    before = None if base is None else as_kernels_take(base.read_codes())
    coded_rows = 0 if before is None else before.count
    center = center_of(rows.vectors) if before is None else before.center
    seed = task.params.seed if before is None else before.seed
    codes = encode(rows.vectors[coded_rows:], bits, center, seed=seed, threads=task.threads)
    return as_stored(codes if before is None else before.joined(codes))


def _assemble(task: ShardTask, graph: Graph, rows: VectorRows, base: ShardReader | None = None) -> Shard:
    """The shard of a graph. `base` has the first rows already: these keep its codes, if there are any."""
    codes = None
    if task.pq_codebook is not None:
        old_codes = None if base is None else base.read_pq()[1]
        coded_rows = 0 if old_codes is None else len(old_codes)
        codes = encode_pq(rows.vectors[coded_rows:], task.pq_codebook, threads=task.threads)
        codes = codes if old_codes is None else np.concatenate([old_codes, codes])
    kept = {"f32": rows.vectors, "f16": converted(rows.vectors, np.float16) if task.vectors == "f16" else None}
    return Shard(
        metric=task.metric.code,
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
        vectors=kept.get(task.vectors),
        pq_codebook=task.pq_codebook,
        pq_codes=codes,
        codes=_rotated_codes(task, rows, base),
    )


def _write(task: ShardTask, storage: Storage, measured: _MeasuredShard, inserted: int) -> ShardResult:
    curve = ""
    if not task.is_delta:
        curve = measure_curve(
            measured.shard,
            measured.vectors,
            measured.is_live,
            seed=task.params.seed,
            threads=task.threads,
            queries=task.curve_queries,
            searcher=measured.searcher,
        )
    if task.base is not None and task.vectors == "f16":  # of the base's rows only the rounded vectors are known
        curve = at_most(curve, task.base.curve)
    routing, found = _found(task, measured.shard, measured.vectors, measured.is_live, measured.searcher)
    measured = replace(measured, searcher=None)  # what follows needs the room
    if task.cell_bits:
        cells = make_cells(
            measured.shard,
            measured.vectors,
            measured.is_live,
            task.cell_bits,
            seed=task.params.seed,
            threads=task.threads,
        )
        measured = replace(measured, shard=replace(measured.shard, cells=cells))
    path = f"{task.staging}/shard-{task.shard_id}-{uuid.uuid4().hex}.dann"
    digest, length = hashlib.sha256(), 0
    with storage.open_output(path, durable=task.recorded) as sink:
        for chunk in shard_blob.encode(measured.shard):
            digest.update(chunk)
            length += len(chunk)
            sink.write(chunk)  # type: ignore[arg-type]  # any buffer will do
        gap = bytes(-length % ALIGNMENT)  # as in a version's file, so that blob and vectors are copied in one piece
        runs, pieces = _stored_runs(measured, ObjectRange(path, length + len(gap), 0))
        for piece in (gap, *pieces) if pieces else ():
            sink.write(piece)  # type: ignore[arg-type]
    return ShardResult(
        shard_id=task.shard_id,
        how=task.how,
        stored=StoredShard(ObjectRange(path, 0, length), runs=runs),
        sha256=digest.digest(),
        count=measured.shard.count,
        medoid=measured.shard.medoid,
        written_recall=measured.recall.recall,
        recall=measured.recall,
        curve=curve,
        tombstones=np.flatnonzero(~measured.is_live).astype(np.int64),
        inserted=inserted,
        remapped=task.base.moved if task.base is not None else 0,
        slots=np.unique(measured.shard.file_slots),
        routing=routing,
        found=found,
    )


def _stored_runs(measured: _MeasuredShard, end: ObjectRange) -> tuple[tuple[StoredRun, ...], list[memoryview]]:
    """(runs of all vectors, bytes of those that are to be written from `end` on, a piece per run)."""
    vectors = measured.shard.vectors
    if vectors is None:
        return (), []
    kept = lasting_runs(measured.runs, vectors.nbytes - sum(run.location.length for run in measured.runs))
    runs, pieces, offset = [*kept], [], end.offset
    rows = MAX_BLOB_BYTES // (vectors.itemsize * vectors.shape[1])
    for start in range(sum(run.count for run in kept), len(vectors), rows):
        part = vectors[start : start + rows]
        piece = stored_vectors(part)
        location = replace(end, offset=offset, length=len(piece))
        runs.append(StoredRun(location, len(part), hashlib.sha256(piece).digest()))
        pieces.append(piece)
        offset += len(piece)
    return tuple(runs), pieces
