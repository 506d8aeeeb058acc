"""The new packs of a version: their blobs, and the files that these are copied to."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from icepuffin.ops.binding.derived_snapshots import NewPack
from icepuffin.ops.index.errors import CoverageError
from icepuffin.ops.index.files.background_file import BackgroundFile, Segments
from icepuffin.ops.index.files.included_blobs import PackOffset, Values, ValuesBlob
from icepuffin.ops.index.files.planned_blobs import ShardPart, planned_included_values
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.versions.index_packs import divided
from icepuffin.ops.model import CREATED_BY, ObjectRange
from icepuffin.ops.steps import RunStep, reached
from icepuffin.ops.storage import Storage
from icepuffin.puffin import BlobMetadata, DistinctCount, PuffinLayout, PuffinReader, plan_puffin
from icepuffin.puffin.blobs.shard_header import ALIGNMENT

PackedBlob = ShardPart | ValuesBlob


class PackFiles:
    """Writer of the packs that only this version has yet. See `icepuffin.ops.index.versions.index_packs.divided`."""

    def __init__(self, plan: VersionPlan, store: Storage) -> None:
        self._plan = plan
        self._store = store
        self._files: list[BackgroundFile] = []

    def begin(self, first: Sequence[PackedBlob], most_bytes: int) -> None:
        """Start copying the first blobs. `most_bytes`: of one pack, about."""
        for blobs in divided(first):
            self._add_file().begin(blob_bodies(self._layout(blobs), blobs), most_bytes)

    def finish(
        self, blobs: Sequence[PackedBlob], number: int, counts: Sequence[DistinctCount]
    ) -> tuple[tuple[NewPack, ...], dict[ObjectRange, PackOffset], dict[Values, PackOffset]]:
        """(the packs, offsets in them of parts of shards, offsets of values). Raises CoverageError, StorageError.

        `blobs`: all, those of `begin` included. `number`: of the first pack. `counts`: NDVs for planners.
        """
        packs: list[NewPack] = []
        offsets: dict[ObjectRange, PackOffset] = {}
        value_offsets: dict[Values, PackOffset] = {}
        for index, group in enumerate(divided(blobs)):
            file = self._files[index] if index < len(self._files) else self._add_file()
            layout = self._layout(group, counts)
            file.finish([*blob_bodies(layout, group), (layout.tail,)])
            if PuffinReader(self._store.source(file.path)).footer != layout.footer:
                raise unlike_written(file.path)
            packs.append(NewPack(file.path, layout.file_size, layout.footer_size))
            part_offsets, own_values = new_offsets(group, layout.footer.blobs, number + index)
            offsets |= part_offsets
            value_offsets |= own_values
        if packs:
            reached(RunStep.PACKED)
        return tuple(packs), offsets, value_offsets

    def leave(self, *, failed: bool) -> None:
        """Stop writing; where the work `failed`, no file stays."""
        for file in self._files:
            file.leave(failed=failed)

    def _add_file(self) -> BackgroundFile:
        self._files.append(BackgroundFile(self._store, f"{self._plan.files_prefix}-pack-{uuid.uuid4().hex}.puffin"))
        return self._files[-1]

    def _layout(self, blobs: Sequence[PackedBlob], counts: Sequence[DistinctCount] = ()) -> PuffinLayout:
        plan = self._plan
        planned = [
            blob.planned(plan) if isinstance(blob, ShardPart) else planned_included_values(plan, blob) for blob in blobs
        ]
        return plan_puffin(planned, {"created-by": CREATED_BY}, counts, align=ALIGNMENT)


def blob_bodies(layout: PuffinLayout, blobs: Sequence[PackedBlob]) -> list[Segments]:
    """The first blobs of a layout. A shard and its vectors that lie in one object as they are to lie here are one
    piece, of the first of the two: S3 takes an object of 10,000 pieces at most.
    """
    bodies: list[Segments] = [(gap, *blob.sources) for gap, blob in zip(layout.gaps, blobs, strict=False)]
    for index, (part, following) in enumerate(pairwise(blobs)):
        if not isinstance(part, ShardPart) or not isinstance(following, ShardPart):
            continue
        if following.shard is part.shard and not part.runs:
            blob, gap, vectors = part.sources[-1], layout.gaps[index + 1], following.sources[0]
            if (vectors.path, vectors.offset) == (blob.path, blob.offset + blob.length + len(gap)):
                length = blob.length + len(gap) + vectors.length
                bodies[index : index + 2] = (layout.gaps[index], replace(blob, length=length)), following.sources[1:]
    return bodies


def new_offsets(
    blobs: Sequence[PackedBlob], stored: Sequence[BlobMetadata], number: int
) -> tuple[dict[ObjectRange, PackOffset], dict[Values, PackOffset]]:
    """(offsets of all sources of parts of shards, offsets of values), of blobs that are stored in a pack, or in the
    version's own file.
    """
    offsets: dict[ObjectRange, PackOffset] = {}
    values: dict[Values, PackOffset] = {}
    for blob, entry in zip(blobs, stored, strict=True):
        if isinstance(blob, ShardPart):
            offsets |= blob.offsets(number, entry.offset)
        else:
            values |= blob.offsets(number, entry.offset)
    return offsets, values


def unlike_written(path: str) -> CoverageError:
    """The error for a file whose footer, or routing blob, is another one than was written."""
    return CoverageError(f"{path} does not read back as it was written; nothing was published. Try again")
