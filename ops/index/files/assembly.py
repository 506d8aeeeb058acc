"""Assembly: the Puffin file of a version out of its shards, and packs where they are large. Bytes are copied inside
the store where it can.

Shards come first in a file, by id, so that those which stay are copied while the others are made.
"""

import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from types import TracebackType

import numpy as np

from icepuffin.ops.binding.bound_versions import BoundPack
from icepuffin.ops.binding.derived_snapshots import NewPack
from icepuffin.ops.index.files.background_file import BackgroundFile, Segments
from icepuffin.ops.index.files.ball_limits import limited, merged
from icepuffin.ops.index.files.included_blobs import (
    ColumnKey,
    IncludedColumn,
    PackOffset,
    Values,
    ValuesBlob,
    included_blob,
    values_blobs,
)
from icepuffin.ops.index.files.pack_files import PackedBlob, PackFiles, blob_bodies, new_offsets, unlike_written
from icepuffin.ops.index.files.planned_blobs import (
    ShardPart,
    planned_addresses,
    planned_attributes,
    planned_blob,
    planned_included,
    planned_included_values,
    shard_ranges,
    tombstone_ratio,
    written_parts,
)
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.stages import ShardSet
from icepuffin.ops.index.versions.index_packs import MAX_PACK_BYTES, is_pack, pack_number, packs_to_share
from icepuffin.ops.index.versions.version_reader import (
    ACROSS_SHARDS,
    COLUMN_NAMES,
    RECALL_CURVES,
    ROUTING_CURVE,
    SAMPLE_CURVE,
    SHARD_RECALL,
    decode_routing,
    read_centroids,
    stored_shards,
)
from icepuffin.ops.model import CREATED_BY, ObjectRange, ShardId, StorageConfig, StoredShard
from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.tasks.included_task import IncludedPart
from icepuffin.ops.tasks.shard_task import ShardResult
from icepuffin.puffin import DistinctCount, PuffinLayout, PuffinReader, plan_puffin
from icepuffin.puffin.blobs import attributes_blob as attribute_blob
from icepuffin.puffin.blobs import centroid_blob, routing_blob
from icepuffin.puffin.blobs import included_columns_blob as included_codec
from icepuffin.puffin.blobs.attributes_blob import AttributeBlob
from icepuffin.puffin.blobs.centroid_blob import CentroidIndex
from icepuffin.puffin.blobs.routing_blob import AddressesEntry, Routing, ShardEntry, VectorRun
from icepuffin.puffin.blobs.shard_header import ALIGNMENT
from icepuffin.puffin.codec import encode
from icepuffin.puffin.types import BlobType, canonical_type

_log = logging.getLogger(__name__)
MAX_CENTROID_BYTES = 2**31 - 1
"""Largest centroid blob, in bytes, that readers take. A version without one can be neither pruned nor refreshed"""
_GROWTH = 4
"""Bytes of a version as a multiple of its base version's, at most: with fewer rows of before it is built anew"""


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A version's file, and the packs that its shards lie in: complete, read back, not yet bound."""

    path: str
    file_size: int
    footer_size: int
    bytes_copied: int
    """Bytes copied from files of the base version"""
    bytes_shared: int
    """Bytes in packs that the base version has, too"""
    copy_seconds: float
    """Seconds of waiting for the store to join the parts"""
    routing: Routing
    """The routing blob, as it was read back"""
    shards: tuple[StoredShard, ...]
    packs: tuple[BoundPack, ...] = ()
    """Packs that the base version has, too"""
    new_packs: tuple[NewPack, ...] = ()

    @property
    def bytes_total(self) -> int:
        """Bytes of everything that a reader of the version may read."""
        return self.file_size + self.bytes_shared + sum(pack.size for pack in self.new_packs)


class Assembly:
    """Writer of a version's file, and of its packs, beside the table's metadata. A context manager: on an error no file
    stays.

    Threads copy the shards that are passed to `begin` at once, and the others when they are passed to `finish`.
    """

    def __init__(
        self,
        plan: VersionPlan,
        storage: StorageConfig,
        kept_values: Mapping[ColumnKey, Sequence[IncludedPart]] | None = None,
    ) -> None:
        """`kept_values`: those of included columns and of texts that the base version has, by column."""
        self._plan = plan
        self._storage = storage
        self._store = open_storage(plan.live.location, storage)
        # the paper's name for the file, with a suffix so that no name is ever used twice
        name = f"{plan.files_prefix}-snap-{plan.live.snapshot_id}-{uuid.uuid4().hex}.puffin"
        self._file = BackgroundFile(self._store, name)
        self._pack_files = PackFiles(plan, self._store)
        self._kept_values = [part.location for parts in (kept_values or {}).values() for part in parts]
        self._shared: tuple[BoundPack, ...] = ()
        self._shared_bytes = 0
        self._packed: list[PackedBlob] = []
        self._inline: list[ShardPart] = []
        self._begun: frozenset[ShardId] = frozenset()
        self._inline_values: list[ValuesBlob] = []
        self._is_begun = False
        self._has_pack = False

    def __enter__(self) -> "Assembly":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._file, self._pack_files):
            file.leave(failed=error is not None)

    def begin(self, kept: Mapping[ShardId, ShardResult], lasting: Sequence[ObjectRange] = ()) -> None:
        """Start copying shards that keep the base version's bytes, but for bytes in packs that can be shared.

        `lasting`: locations of the vectors that other shards keep.
        """
        self._is_begun = True
        kept_ranges = [*(location for shard in kept.values() for location in shard_ranges(shard)), *self._kept_values]
        kept_ranges += lasting
        if self._plan.base is not None:
            self._shared = packs_to_share(self._plan.base.bound, kept_ranges)
        copied_bytes = sum(location.length for location in kept_ranges if not self._is_shared(location))
        self._shared_bytes = sum(location.length for location in kept_ranges) - copied_bytes
        self._has_pack = is_pack(copied_bytes, self._shared_bytes)
        if self._has_pack:
            self._begun = frozenset(kept)
            self._packed = [*written_parts(kept.values(), self._is_shared)]
            self._pack_files.begin(self._packed, self._most_bytes())
        else:
            first = [kept[shard_id] for shard_id in takewhile(kept.__contains__, map(ShardId, count()))]
            self._begun = frozenset(shard.shard_id for shard in first)
            self._inline = written_parts(first, self._is_shared)
            self._file.begin(blob_bodies(self._own_layout(self._inline), self._inline), self._most_bytes())

    def finish(
        self,
        shard_set: ShardSet,
        columns: Sequence[AttributeBlob] = (),
        included: Sequence[IncludedColumn] = (),
        counts: Sequence[DistinctCount] = (),
    ) -> VersionFile:
        """Write the rest, and read footers and routing blob back. Raises CoverageError, StorageError.

        `columns`: the values of the columns for conditions. `included`: those of the included columns. `counts`: NDVs
        of the table's columns for planners.
        """
        if not self._is_begun:
            self.begin({})
        kept = [location for shard in shard_set.shards for location in shard_ranges(shard)]
        kept += [part.location for column in included for part in column.parts]
        self._keep_packs_in_use(kept)
        rest = written_parts(
            [shard for shard in shard_set.shards if shard.shard_id not in self._begun], self._is_shared
        )
        values = values_blobs(included, self._is_written)
        size = sum(part.length for part in rest) + sum(blob.length for blob in values)
        self._has_pack = self._has_pack or is_pack(size, self._shared_bytes)
        if self._has_pack:
            self._packed += [*rest, *values]
        else:
            self._inline += rest
            self._inline_values = values
        start = time.perf_counter()
        new_packs, offsets, value_offsets = self._pack_files.finish(self._packed, len(self._shared) + 1, counts)
        offsets |= new_offsets(self._inline, self._own_layout(self._inline).footer.blobs, 0)[0]
        entries = tuple(self._entry(shard, offsets) for shard in shard_set.shards)
        for column in included:
            for part in column.parts:
                if number := pack_number(part.location, self._shared):
                    value_offsets[part.values] = number, part.location.offset
        layout = self._write_file(shard_set, entries, columns, included, value_offsets, counts)
        copy_seconds = time.perf_counter() - start
        packs: tuple[BoundPack | NewPack, ...] = (*self._shared, *new_packs)
        routing, shards = _read_back(self._store, self._file.path, layout.file_size, self._plan, packs)
        old, blobs = self._base_files(), [*self._packed, *self._inline, *self._inline_values]
        staged = [source for blob in blobs for source in blob.sources]
        staged += [shard.stored.addresses.blob for shard in shard_set.shards if shard.stored.addresses]
        return VersionFile(
            path=self._file.path,
            file_size=layout.file_size,
            footer_size=layout.footer_size,
            bytes_copied=sum(part.length for part in staged if part.path in old),
            bytes_shared=self._shared_bytes,
            copy_seconds=copy_seconds,
            routing=routing,
            shards=shards,
            packs=self._shared,
            new_packs=new_packs,
        )

    def _most_bytes(self) -> int:
        """Bytes, at most, of a file that is begun before all of its blobs are there."""
        base = self._plan.base.bound if self._plan.base else None
        sizes = (base.file_size or 0, *(pack.size for pack in base.packs)) if base else ()
        return min(MAX_PACK_BYTES, _GROWTH * sum(sizes))

    def _is_shared(self, location: ObjectRange) -> bool:
        return bool(pack_number(location, self._shared))

    def _keep_packs_in_use(self, kept: Sequence[ObjectRange]) -> None:
        """Share only the packs that hold something of the version: vectors of others may have been written again."""
        paths = {location.path for location in kept}
        self._shared = tuple(pack for pack in self._shared if pack.path in paths)
        self._shared_bytes = sum(location.length for location in kept if self._is_shared(location))

    def _is_written(self, part: IncludedPart) -> bool:
        return part.location.length > 0 and not self._is_shared(part.location)

    def _base_files(self) -> frozenset[str]:
        version = self._plan.base.bound if self._plan.base else None
        return frozenset({version.puffin_path, *(pack.path for pack in version.packs)}) if version else frozenset()

    def _own_layout(self, parts: Sequence[ShardPart]) -> PuffinLayout:
        """The version's own file, as far as its first blobs."""
        return plan_puffin([part.planned(self._plan) for part in parts], align=ALIGNMENT)

    def _pack_offset(self, source: ObjectRange, offsets: Mapping[ObjectRange, PackOffset]) -> PackOffset:
        number = pack_number(source, self._shared)
        return (number, source.offset) if number else offsets[source]

    def _entry(self, shard: ShardResult, offsets: Mapping[ObjectRange, PackOffset]) -> ShardEntry:
        moved = shard.stored.addresses
        number, offset = self._pack_offset(shard.stored.blob, offsets)
        return ShardEntry(
            count=shard.count,
            live_rows=shard.live_rows,
            medoid=shard.medoid,
            recall=shard.written_recall,
            length=shard.stored.blob.length,
            sha256=shard.sha256,
            tombstones=shard.tombstones,
            pack=number,
            offset=offset if number else 0,
            addresses=AddressesEntry(moved.blob.length, moved.sha256) if moved else None,
            runs=tuple(
                VectorRun(*self._pack_offset(run.location, offsets), run.location.length, run.count, run.sha256)
                for run in shard.stored.runs
            ),
        )

    def _write_file(
        self,
        shard_set: ShardSet,
        entries: tuple[ShardEntry, ...],
        columns: Sequence[AttributeBlob],
        included: Sequence[IncludedColumn],
        value_offsets: Mapping[Values, PackOffset],
        counts: Sequence[DistinctCount],
    ) -> PuffinLayout:
        """`value_offsets`: those of the values of included columns in packs."""
        plan = self._plan
        balls = _fitting(_centroids(plan, shard_set, self._storage))
        heads = self._heads(shard_set, entries, balls)
        names = plan.column_names
        curves = {SAMPLE_CURVE: shard_set.layout.sample_curve, ROUTING_CURVE: shard_set.layout.routing_curve}
        curves[ACROSS_SHARDS] = shard_set.layout.across.text()
        of_routing = {name: curve for name, curve in curves.items() if curve}
        of_routing |= {COLUMN_NAMES: json.dumps(names)} if names is not None else {}
        if any(any(entry.bytes_by_pack) for entry in entries):  # whose blobs' properties lie elsewhere
            of_routing[RECALL_CURVES] = json.dumps([shard.curve for shard in shard_set.shards])
        for shard in shard_set.shards:
            of_routing[f"ann.shard_{shard.shard_id}.tombstone_ratio"] = tombstone_ratio(shard)
            of_routing[SHARD_RECALL.format(shard.shard_id)] = shard.recall.text()
        of_balls = {
            "dimensions": str(balls.dims),
            "metric": plan.definition.metric,
            "entries": str(len(balls.centroids)),
        }
        properties = {BlobType.ROUTING: of_routing, BlobType.CENTROID: of_balls}
        moved = [(shard, shard.stored.addresses.blob) for shard in shard_set.shards if shard.stored.addresses]
        blobs = [part.planned(plan) for part in self._inline]
        blobs += [planned_addresses(plan, shard, blob.length) for shard, blob in moved]
        blobs += [
            planned_blob(plan, blob_type, len(data), codec=codec, **properties.get(blob_type, {}))
            for blob_type, data, codec in heads
        ]
        values = [attribute_blob.encode(column) for column in columns]
        blobs += [planned_attributes(plan, column, len(data)) for column, data in zip(columns, values, strict=True)]
        before, inline = len(blobs), self._inline_values
        blobs += [planned_included_values(plan, blob) for blob in inline]
        blobs += [planned_included(plan, included_blob(column, value_offsets)) for column in included]
        layout = plan_puffin(blobs, {"created-by": CREATED_BY}, counts, align=ALIGNMENT)
        _, inline_offsets = new_offsets(inline, layout.footer.blobs[before : before + len(inline)], 0)
        offsets = {**value_offsets, **inline_offsets}
        tables = [included_codec.encode(included_blob(column, offsets)) for column in included]
        bodies: list[Segments] = [part.sources for part in self._inline]
        bodies += [(blob,) for _, blob in moved]
        bodies += [(data,) for data in (*(data for _, data, _ in heads), *values)]
        bodies += [*(blob.sources for blob in inline), *((table,) for table in tables)]
        segments = [(gap, *body) for gap, body in zip(layout.gaps, bodies, strict=True)]
        self._file.finish([*segments, (layout.tail,)])
        return layout

    def _heads(
        self, shard_set: ShardSet, entries: tuple[ShardEntry, ...], balls: CentroidIndex
    ) -> list[tuple[BlobType, bytes, str | None]]:
        plan = self._plan
        routing = Routing(
            base_snapshot_id=plan.live.snapshot_id,
            build_id=plan.build_id,
            definition=plan.definition.to_json(),
            codebook=shard_set.layout.codebook,
            partition_to_shard=shard_set.layout.partition_to_shard,
            shards=entries,
            files=shard_set.files,
        )
        return [
            (BlobType.ROUTING, *encode(routing_blob.encode(routing), "zstd")),
            (BlobType.CENTROID, *encode(centroid_blob.encode(balls), "zstd")),
        ]


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
        kept_balls = np.flatnonzero(slot_of_ball >= 0)
        slots.append(slot_of_ball[kept_balls].astype(np.uint32))
        centers.append(old.centroids[kept_balls])
        radii.append(old.max_distances[kept_balls])
    ordinals = np.concatenate(slots) if slots else np.empty(0, np.uint32)
    order = np.argsort(ordinals, kind="stable")  # by file, so that the grouping of files into tasks does not show
    index = CentroidIndex(
        metric=plan.definition.metric.code,
        dims=dims,
        centroids=np.concatenate(centers)[order] if centers else np.empty((0, dims), np.float32),
        file_ordinals=ordinals[order],
        max_distances=np.concatenate(radii)[order] if radii else np.empty(0, np.float32),
        files=tuple(file.path for file in shard_set.files),
    )
    is_kept = np.isin(np.arange(len(index.files)), list(kept.values()))
    return index if plan.definition.has_graphs else limited(index, is_kept)


def _fitting(index: CentroidIndex) -> CentroidIndex:
    """The index with one ball per file, or with none, where its blob would be too large: that prunes fewer files."""
    if centroid_blob.encoded_bytes(index) <= MAX_CENTROID_BYTES:
        return index
    one = merged(index, np.ones(len(index.files), np.bool_))
    kept = one if centroid_blob.encoded_bytes(one) <= MAX_CENTROID_BYTES else _without_balls(index)
    _log.warning(
        "%s balls around %s files are more than a blob may hold (2 GiB); %s are kept, and fewer files are pruned",
        f"{len(index.centroids):,}", f"{len(one.centroids):,}", f"{len(kept.centroids):,}",
    )  # fmt: skip
    return kept


def _without_balls(index: CentroidIndex) -> CentroidIndex:
    return replace(
        index,
        centroids=index.centroids[:0],
        file_ordinals=index.file_ordinals[:0],
        max_distances=index.max_distances[:0],
    )


def _read_back(
    store: Storage,
    path: str,
    size: int,
    plan: VersionPlan,
    packs: Sequence[BoundPack | NewPack],
) -> tuple[Routing, tuple[StoredShard, ...]]:
    """(routing, where the shards lie) of the file as it is in the store now."""
    reader = PuffinReader(store.source(path))
    blobs = reader.footer.blobs
    routing = decode_routing(
        reader, next(blob for blob in blobs if canonical_type(blob.type) == BlobType.ROUTING), size, packs
    )
    if store.size(path) != size or routing.build_id != plan.build_id:
        raise unlike_written(path)
    return routing, stored_shards(path, blobs, routing, packs, size)
