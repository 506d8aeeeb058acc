"""Assembly: one Puffin file out of the shards. Bytes are copied inside the store where it can.

Shards come first in the file, by id, so that the first ones are copied while the last ones are made.
"""

import contextlib
import itertools
import json
import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np

from icepuffin.ops.created_by import CREATED_BY
from icepuffin.ops.index.errors import CoverageError
from icepuffin.ops.index.plan import VersionPlan
from icepuffin.ops.index.stages import ShardSet
from icepuffin.ops.index.version_reader import COLUMN_NAMES, RECALL_CURVE, ROUTING_CURVE, read_centroids
from icepuffin.ops.model import ObjectRange, StorageConfig
from icepuffin.ops.storage import Storage, StorageError, open_storage
from icepuffin.ops.tasks.file_balls import merge_balls
from icepuffin.ops.tasks.shard import ShardResult
from icepuffin.puffin import PlannedBlob, PuffinReader, plan_puffin
from icepuffin.puffin.blobs import centroid as centroid_blob
from icepuffin.puffin.blobs import routing as routing_blob
from icepuffin.puffin.blobs.centroid import CentroidIndex
from icepuffin.puffin.blobs.routing import Routing, ShardEntry
from icepuffin.puffin.codec import pack
from icepuffin.puffin.types import CENTROID_V1, ROUTING_V1, SHARD_V1

_ALIGNMENT = 64
_log = logging.getLogger(__name__)
MAX_CENTROID_BYTES = 2**31 - 1
"""Largest centroid blob, in bytes, that readers take. A version without one can be neither pruned nor refreshed"""
_Segments = tuple[bytes | ObjectRange, ...]
"""A blob, preceded by its padding"""


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A version's file: complete, read back, not yet bound."""

    path: str
    file_size: int
    footer_size: int
    bytes_copied: int
    """Bytes copied from the base version's file"""
    copy_seconds: float
    """Seconds of waiting for the store to join the parts"""
    routing: Routing
    """The routing blob, as it was read back"""
    shards: tuple[ObjectRange, ...]


class Assembly:
    """Writer of a version's file, beside the table's metadata. A context manager: on an error no file stays.

    A thread copies the shards that are passed to `begin` at once, and the others when they are passed to `finish`.
    """

    def __init__(self, plan: VersionPlan, storage: StorageConfig) -> None:
        self._plan = plan
        self._storage = storage
        self._store = open_storage(plan.live.location, storage)
        self._first: list[_Segments] = []
        self._rest: Future[list[_Segments]] = Future()
        self._thread = ThreadPoolExecutor(1)
        self._path: Future[str] | None = None
        self._is_left = False

    def __enter__(self) -> "Assembly":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_left = True
        self._rest.cancel()
        self._thread.shutdown()
        if error is not None and self._path is not None and self._path.exception() is None:
            with contextlib.suppress(StorageError, OSError):  # the first error matters more; gc removes the file
                self._store.delete(self._path.result())

    def begin(self, shards: Sequence[ShardResult]) -> None:
        """Start copying the version's first shards, which are final."""
        layout = plan_puffin([_planned_shard(self._plan, number, shard) for number, shard in enumerate(shards)])
        self._first = [(gap, *shard.parts) for gap, shard in zip(layout.gaps, shards, strict=True)]
        self._path = self._thread.submit(self._write)

    def finish(self, shard_set: ShardSet) -> VersionFile:
        """Write the rest, and read footer and routing blob back. Raises CoverageError, StorageError."""
        plan = self._plan
        heads = self._heads(shard_set)
        curve, names = shard_set.layout.routing_curve, plan.column_names
        of_routing = {ROUTING_CURVE: curve} if curve else {}
        of_routing |= {COLUMN_NAMES: json.dumps(names)} if names is not None else {}
        blobs = [_planned_shard(plan, number, shard) for number, shard in enumerate(shard_set.shards)]
        properties = {ROUTING_V1: of_routing}
        blobs += [
            _planned(plan, kind, len(data), codec=codec, **properties.get(kind, {})) for kind, data, codec in heads
        ]
        layout = plan_puffin(blobs, {"created-by": CREATED_BY})
        bodies: list[_Segments] = [*(shard.parts for shard in shard_set.shards), *((data,) for _, data, _ in heads)]
        segments = [(gap, *body) for gap, body in zip(layout.gaps, bodies, strict=True)]
        begun = time.perf_counter()
        self._rest.set_result([*segments[len(self._first) :], (layout.tail,)])
        self._path = self._path or self._thread.submit(self._write)
        path = self._path.result()
        copy_seconds = time.perf_counter() - begun
        routing, shards_read = _read_back(self._store, path, layout.file_size, plan)
        old = plan.base.version.puffin_path if plan.base else None
        copied = sum(part.length for shard in shard_set.shards for part in shard.parts if part.path == old)
        return VersionFile(path, layout.file_size, layout.footer_size, copied, copy_seconds, routing, shards_read)

    def _heads(self, shard_set: ShardSet) -> list[tuple[str, bytes, str | None]]:
        plan = self._plan
        routing = Routing(
            base_snapshot_id=plan.live.snapshot_id,
            build_id=plan.build_id,
            definition=plan.definition.to_json(),
            codebook=shard_set.layout.codebook,
            partition_to_shard=shard_set.layout.partition_to_shard,
            shards=tuple(_entry(shard) for shard in shard_set.shards),
            files=shard_set.files,
        )
        return [
            (ROUTING_V1, *pack(routing_blob.encode(routing), "zstd")),
            (CENTROID_V1, *pack(centroid_blob.encode(_fitting(_centroids(plan, shard_set, self._storage))), "zstd")),
        ]

    def _write(self) -> str:
        """Write the file under the paper's name for it, with a suffix so that no name is ever used twice."""
        plan = self._plan
        stem = f"{plan.live.location}/metadata/ann-{plan.definition.name}-snap-{plan.live.snapshot_id}"
        path = f"{stem}-{uuid.uuid4().hex}.puffin"
        self._store.concat(path, self._segments())
        return path

    def _segments(self) -> Iterator[bytes | ObjectRange]:
        for segments in itertools.chain(self._first, self._later()):
            if self._is_left:
                raise CancelledError
            yield from segments

    def _later(self) -> Iterator[_Segments]:
        yield from self._rest.result()


def _entry(shard: ShardResult) -> ShardEntry:
    return ShardEntry(
        count=shard.count,
        live=shard.live,
        medoid=shard.medoid,
        recall=shard.recall,
        length=shard.length,
        sha256=shard.sha256,
        tombstones=shard.tombstones,
    )


def _planned(plan: VersionPlan, kind: str, length: int, *, codec: str | None, **properties: str) -> PlannedBlob:
    return PlannedBlob(
        type=kind,
        fields=(plan.field_id,),
        snapshot_id=plan.live.snapshot_id,
        sequence_number=plan.live.sequence_number,
        length=length,
        codec=codec,
        properties={"algorithm": "vamana", "base_snapshot_id": str(plan.live.snapshot_id), **properties},
        align=_ALIGNMENT,
    )


def _planned_shard(plan: VersionPlan, number: int, shard: ShardResult) -> PlannedBlob:
    definition = plan.definition
    ratio = len(shard.tombstones) / shard.count if shard.count else 0.0
    properties = {
        "ann.shard_id": str(number),
        "ann.build_id": plan.build_id,
        "count": str(shard.count),
        "R": str(definition.max_degree),
        "L": str(definition.search_list),
        "alpha": str(definition.alpha),
        "metric": definition.metric,
        "ann.tombstone_ratio": f"{ratio:.6f}",
        "ann.recall": f"{shard.recall:.6f}",
    }
    if shard.curve:
        properties[RECALL_CURVE] = shard.curve
    return _planned(plan, SHARD_V1, shard.length, codec=None, **properties)


def _centroids(plan: VersionPlan, shard_set: ShardSet, storage: StorageConfig) -> CentroidIndex:
    """Balls of the files that were read, and of the base version's other files that are still live."""
    dims = shard_set.layout.dims
    slots = [balls.slots for balls in shard_set.read.balls]
    centers = [balls.centers for balls in shard_set.read.balls]
    radii = [balls.radii for balls in shard_set.read.balls]
    kept = {
        file.path: slot for slot, file in enumerate(shard_set.files) if file.present and slot not in shard_set.read.rows
    }
    if plan.base is not None and kept:
        old = read_centroids(plan.base, storage)
        slot_of_ball = np.array([kept.get(path, -1) for path in old.files], np.int64)[old.file_ordinals]
        live = np.flatnonzero(slot_of_ball >= 0)
        slots.append(slot_of_ball[live].astype(np.uint32))
        centers.append(old.centroids[live])
        radii.append(old.max_distances[live])
    ordinals = np.concatenate(slots) if slots else np.empty(0, np.uint32)
    order = np.argsort(ordinals, kind="stable")  # by file, so that the grouping of files into tasks does not show
    return CentroidIndex(
        metric=int(plan.definition.metric_value),
        dims=dims,
        centroids=np.concatenate(centers)[order] if centers else np.empty((0, dims), np.float32),
        file_ordinals=ordinals[order],
        max_distances=np.concatenate(radii)[order] if radii else np.empty(0, np.float32),
        files=tuple(file.path for file in shard_set.files),
    )


def _fitting(index: CentroidIndex) -> CentroidIndex:
    """The index with one ball per file, or with none, where its blob would be too large: that prunes fewer files."""
    if centroid_blob.encoded_bytes(index) <= MAX_CENTROID_BYTES:
        return index
    starts = np.flatnonzero(np.diff(index.file_ordinals, prepend=-1))
    ends = np.append(starts[1:], len(index.file_ordinals))
    balls = [
        merge_balls(list(zip(index.centroids[start:end], index.max_distances[start:end].tolist(), strict=True)), 1)[0]
        for start, end in zip(starts, ends, strict=True)
    ]
    one = replace(
        index,
        centroids=np.array([center for center, _ in balls], np.float32).reshape(-1, index.dims),
        file_ordinals=index.file_ordinals[starts],
        max_distances=np.array([radius for _, radius in balls], np.float32),
    )
    kept = one if centroid_blob.encoded_bytes(one) <= MAX_CENTROID_BYTES else _without_balls(index)
    _log.warning(
        "%s balls around %s files are more than a blob may hold (2 GiB); %s are kept, and fewer files are pruned",
        f"{len(index.centroids):,}", f"{len(starts):,}", f"{len(kept.centroids):,}",
    )  # fmt: skip
    return kept


def _without_balls(index: CentroidIndex) -> CentroidIndex:
    return replace(
        index,
        centroids=index.centroids[:0],
        file_ordinals=index.file_ordinals[:0],
        max_distances=index.max_distances[:0],
    )


def _read_back(store: Storage, path: str, size: int, plan: VersionPlan) -> tuple[Routing, tuple[ObjectRange, ...]]:
    """(routing, where the shards lie) of the file as it is in the store now."""
    reader = PuffinReader(store.source(path))
    blobs = reader.footer.blobs
    data = reader.read_blob(next(blob for blob in blobs if blob.type == ROUTING_V1))
    routing = routing_blob.decode(data, file_size=size)
    if store.size(path) != size or routing.build_id != plan.build_id:
        raise CoverageError(f"{path} does not read back as it was written; nothing was published. Try again")
    return routing, tuple(ObjectRange(path, blob.offset, blob.length) for blob in blobs if blob.type == SHARD_V1)
