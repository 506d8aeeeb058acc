"""The blobs of a version's file and of its pack, as they are planned: types, fields, properties."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from icepuffin.ops.index.files.included_blobs import PackOffset, ValuesBlob, blob_groups
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.versions.version_reader import ANALYZER, BYTES_BY_PACK, RECALL_CURVE
from icepuffin.ops.model import ObjectRange, StoredRun
from icepuffin.ops.rows.analyzers import analyzer_identity
from icepuffin.ops.tasks.shard_task import ShardResult
from icepuffin.puffin import BlobMetadata
from icepuffin.puffin.blobs import included_columns_blob as included_codec
from icepuffin.puffin.blobs.attributes_blob import AttributeBlob
from icepuffin.puffin.blobs.included_columns_blob import IncludedBlob, WordsBlob
from icepuffin.puffin.types import MAX_BLOB_BYTES, BlobType, community_type


def planned_blob(
    plan: VersionPlan, blob_type: BlobType, length: int, *, codec: str | None, **properties: str
) -> BlobMetadata:
    """A blob of the vector column, under the name that the definition has for its type."""
    algorithm = "vamana" if plan.definition.has_graphs else "centroid"  # what finds rows by the blob
    return BlobMetadata(
        type=community_type(blob_type) if plan.definition.blob_names == "community" else blob_type,
        fields=(plan.field_id,),
        snapshot_id=plan.live.snapshot_id,
        sequence_number=plan.live.sequence_number,
        offset=0,
        length=length,
        compression_codec=codec,
        properties={"algorithm": algorithm, "base_snapshot_id": str(plan.live.snapshot_id), **properties},
    )


def planned_attributes(plan: VersionPlan, column: AttributeBlob, length: int) -> BlobMetadata:
    """The values of a column for conditions."""
    blob_type = BlobType.TOKENS if column.of_lists else BlobType.ATTRIBUTES
    planned = planned_blob(plan, blob_type, length, codec=None)
    left_out = sum(bool(entry.left_out) for entry in column.entries)
    return replace(
        planned,
        fields=(column.field_id,),
        properties={"files": str(len(column.entries)), "files_left_out": str(left_out)},
    )


def planned_included(plan: VersionPlan, blob: IncludedBlob) -> BlobMetadata:
    """The locations of the values of an included column, or of the words of one of texts. Neither length nor properties
    depend on their offsets.
    """
    properties = {
        "files": str(len(blob.entries)),
        "files_left_out": str(sum(bool(entry.left_out) for entry in blob.entries)),
        "bytes": str(sum(entry.length for entry in blob.entries)),
        BYTES_BY_PACK: json.dumps(blob.bytes_by_pack),
    }
    of_words = isinstance(blob, WordsBlob)
    if of_words:
        properties[ANALYZER] = analyzer_identity(plan.definition.analyzer)
    kind = BlobType.TEXT if of_words else BlobType.INCLUDED
    planned = planned_blob(plan, kind, len(included_codec.encode(blob)), codec=None)
    return replace(planned, fields=(blob.field_id,), properties=properties)


def planned_included_values(plan: VersionPlan, blob: ValuesBlob) -> BlobMetadata:
    """Values of an included column, or words."""
    kind = BlobType.WORDS if blob.of_words else BlobType.INCLUDED_VALUES
    planned = planned_blob(plan, kind, blob.length, codec=None)
    return replace(planned, fields=(blob.field_id,), properties={})


def planned_shard(plan: VersionPlan, shard: ShardResult) -> BlobMetadata:
    """A shard."""
    definition = plan.definition
    properties = {
        "ann.shard_id": str(shard.shard_id),
        "ann.build_id": plan.build_id,
        "count": str(shard.count),
        "R": str(definition.max_degree),
        "L": str(definition.search_list),
        "alpha": str(definition.alpha),
        "metric": definition.metric,
        "ann.tombstone_ratio": tombstone_ratio(shard),
        "ann.recall": f"{shard.written_recall:.6f}",
    }
    if shard.curve:
        properties[RECALL_CURVE] = shard.curve
    return planned_blob(plan, BlobType.SHARD, shard.stored.blob.length, codec=None, **properties)


def planned_vectors(plan: VersionPlan, shard: ShardResult, length: int) -> BlobMetadata:
    """Vectors of a shard that lie apart from it. Later versions may have them in other shards."""
    return planned_blob(plan, BlobType.VECTORS, length, codec=None, **{"ann.shard_id": str(shard.shard_id)})


def tombstone_ratio(shard: ShardResult) -> str:
    """Share of the nodes that are tombstones, with six decimals."""
    return f"{len(shard.tombstones) / shard.count if shard.count else 0.0:.6f}"


def planned_addresses(plan: VersionPlan, shard: ShardResult, length: int) -> BlobMetadata:
    """Where the rows of a shard lie since they have moved."""
    properties = {"ann.shard_id": str(shard.shard_id), "ann.build_id": plan.build_id, "count": str(shard.count)}
    return planned_blob(plan, BlobType.ADDRESSES, length, codec=None, **properties)


@dataclass(frozen=True, slots=True)
class ShardPart:
    """The blob of a shard, or vectors that lie apart from it."""

    shard: ShardResult
    runs: tuple[StoredRun, ...] = ()
    """Runs of vectors; empty for the blob of the shard"""

    @property
    def sources(self) -> tuple[ObjectRange, ...]:
        """The locations of its bytes now, in order."""
        return tuple(run.location for run in self.runs) or (self.shard.stored.blob,)

    @property
    def length(self) -> int:
        return sum(source.length for source in self.sources)

    def planned(self, plan: VersionPlan) -> BlobMetadata:
        """The blob that it is to be."""
        return planned_vectors(plan, self.shard, self.length) if self.runs else planned_shard(plan, self.shard)

    def offsets(self, number: int, offset: int) -> dict[ObjectRange, PackOffset]:
        """The new offset of each of its sources, where it begins at `offset` of a pack, or of the own file."""
        offsets = {}
        for source in self.sources:
            offsets[source] = number, offset
            offset += source.length
        return offsets


def shard_ranges(shard: ShardResult) -> tuple[ObjectRange, ...]:
    """The locations of a shard and of its vectors now; without its addresses."""
    return shard.stored.blob, *(run.location for run in shard.stored.runs)


def written_parts(shards: Iterable[ShardResult], is_shared: Callable[[ObjectRange], bool]) -> list[ShardPart]:
    """The parts of the shards that a version has to write, in the order of a file."""
    return [part for shard in shards for part in _parts(shard, is_shared)]


def _parts(shard: ShardResult, is_shared: Callable[[ObjectRange], bool]) -> Iterator[ShardPart]:
    if not is_shared(shard.stored.blob):
        yield ShardPart(shard)
    written = (run for run in shard.stored.runs if not is_shared(run.location))
    for runs in blob_groups(written, lambda run: run.location.length, MAX_BLOB_BYTES):
        yield ShardPart(shard, runs)
