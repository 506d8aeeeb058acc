"""An overview of an index: its shards, its coverage, the cost of recall. Reads no shard."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions, tagged_version
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.sizes import code_row_bytes
from icepuffin.ops.index.versions.version_reader import OpenVersion, open_version, same_files, with_origins
from icepuffin.ops.messages import plural
from icepuffin.ops.model import ShardId, SnapshotId, StorageConfig
from icepuffin.ops.recall.curves import MEASURED_K, Reach, Width
from icepuffin.ops.recall.shard_recall import mean_recall
from icepuffin.ops.search.tuning import RecallModel
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import head_of, resolve_snapshot, table_name
from icepuffin.puffin import BlobMetadata


@dataclass(frozen=True, slots=True)
class ShardState:
    """One shard of a version."""

    shard: ShardId
    nodes: int
    live: int
    tombstones: int
    recall: float
    """recall@10, as it was last measured"""
    bytes: int
    routed: bool
    """Whether the codebook routes to the shard. Others hold later rows, and every query probes them"""
    pack: int = 0
    """Number of the pack that it lies in; 0: it lies in the version's own file"""
    addresses_bytes: int = 0
    """Bytes of new addresses beside its blob, in the version's own file, since its rows have moved"""
    changed: int = 0
    """Nodes that have lost their rows since the recall was measured, or have got one again"""


@dataclass(frozen=True, slots=True)
class PackState:
    """One pack of a version."""

    path: str
    bytes: int
    versions: int
    """Versions that name it, this one included"""


@dataclass(frozen=True, slots=True)
class IncludedState:
    """The values of one included column of a version."""

    column: str
    """Name in the head's schema; the field id, where the column is gone"""
    bytes: int
    files: int
    files_left_out: int
    """Files whose values are not stored: answers read these"""


@dataclass(frozen=True, slots=True)
class Overview:
    """One version of an index, beside the head of the ref that the index follows."""

    table: str
    index: str
    base_snapshot_id: SnapshotId
    index_snapshot_id: SnapshotId
    head_snapshot_id: SnapshotId
    rows: int
    """Rows in the files of the head snapshot, deleted ones included"""
    rows_covered: int
    """Rows in files of the head snapshot that the version covers, deleted ones included"""
    shards: tuple[ShardState, ...]
    curve: tuple[Width, ...]
    """Recall curve for 10 rows"""
    routing: tuple[Reach, ...]
    file_bytes: int = 0
    """Bytes of the version's own file"""
    packs: tuple[PackState, ...] = ()
    wide_curve: tuple[Width, ...] = ()
    """Recall curve for 100 rows; empty where a shard was made by a release that did not measure it"""
    balls: int = 0
    """Balls around the files' vectors, by which files are ruled out"""
    files: int = 0
    """Data files that the version knows"""
    included: tuple[IncludedState, ...] = ()
    across: float = 1.0
    """Share of the shards' recall@10 that a search of all of them finds"""
    bytes_by_part: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the version by what they hold, those in packs included"""

    @property
    def without_graphs(self) -> str:
        """What an index without graphs holds, in words; empty where there are shards."""
        balls, files = plural(self.balls, "ball"), plural(self.files, "file")
        return "" if self.shards else f"no graphs: {balls} around the vectors of {files}"

    @property
    def bytes_alone(self) -> int:
        """Bytes that no other version uses: they are free when this one goes."""
        return self.file_bytes + sum(pack.bytes for pack in self.packs if pack.versions == 1)

    @property
    def bytes_shared(self) -> int:
        """Bytes of the packs that other versions use, too."""
        return sum(pack.bytes for pack in self.packs if pack.versions > 1)

    @property
    def recall(self) -> float | None:
        """recall@10 of the version; None where it has no shards"""
        return mean_recall(((shard.recall, shard.live) for shard in self.shards), self.across)

    @property
    def coverage(self) -> float:
        return self.rows_covered / self.rows if self.rows else 1.0

    @property
    def tombstone_ratio(self) -> float:
        nodes = sum(shard.nodes for shard in self.shards)
        return sum(shard.tombstones for shard in self.shards) / nodes if nodes else 0.0


def overview(
    table: Table,
    definition: IndexDefinition,
    storage: StorageConfig,
    *,
    version: DerivedVersion | None = None,
    ref: str = "main",
) -> Overview | None:
    """The version at the index tag, or the one given; None where there is none. Raises NotAnIndexError for a broken
    file.

    ref: branch or tag that the index follows, with whose head the version is compared.
    """
    version = version or tagged_version(table, definition.name)
    if version is None:
        return None
    opened = with_origins(table, open_version(version, storage))
    head = _head(table, opened, ref)
    live = live_files(table, head)
    model = RecallModel.from_version(opened)
    routed = set(model.routed.shards.tolist())
    return Overview(
        table=table_name(table),
        index=definition.name,
        base_snapshot_id=opened.bound.base_snapshot_id,
        index_snapshot_id=opened.bound.index_snapshot_id,
        head_snapshot_id=head,
        rows=live.record_count,
        rows_covered=live.record_count_of(same_files(opened, live).values()),
        shards=tuple(
            ShardState(
                ShardId(number),
                entry.count,
                entry.live_rows,
                len(entry.tombstones),
                recall.recall,
                entry.all_bytes,
                number in routed,
                entry.pack,
                entry.addresses.length if entry.addresses else 0,
                recall.changed,
            )
            for number, (entry, recall) in enumerate(zip(opened.routing.shards, opened.recalls, strict=True))
        ),
        curve=model.curve,
        routing=model.routing_for(MEASURED_K),
        file_bytes=opened.file_size,
        packs=_packs(table, opened),
        wide_curve=model.wide_curve,
        balls=int(opened.centroid.properties.get("entries", 0)),
        files=sum(file.present for file in opened.routing.files),
        included=_included(table, opened),
        across=opened.across.share(),
        bytes_by_part=_bytes_by_part(opened),
    )


def _bytes_by_part(opened: OpenVersion) -> dict[str, int]:
    """Codes are nodes times their bytes, which are stored as they are; graphs are with all else of a shard."""
    shards, dims = opened.routing.shards, opened.routing.codebook.shape[1]
    codes = sum(entry.count for entry in shards) * code_row_bytes(opened.definition, dims) if shards else 0
    parts = {
        "vectors": sum(entry.all_bytes - entry.length for entry in shards),
        "graphs": sum(entry.length for entry in shards) - codes,
        "codes": codes,
        "new addresses": sum(entry.addresses.length for entry in shards if entry.addresses),
        "attributes": sum(blob.length for blob in opened.attributes.values()),
        "included columns": _bytes(opened.included.values()),
        "words of texts": _bytes(opened.texts.values()),
    }
    return {**parts, "routing, file centroids": max(0, opened.bytes_total - sum(parts.values()))}


def _bytes(blobs: Iterable[BlobMetadata]) -> int:
    return sum(int(blob.properties.get("bytes", 0)) for blob in blobs)


def _head(table: Table, opened: OpenVersion, ref: str) -> SnapshotId:
    """The head of a ref; the version's own snapshot where there is no such ref, or nobody has written to main yet."""
    name = opened.bound.index_snapshot_id if head_of(table, ref) is None else ref
    return resolve_snapshot(table, name).snapshot_id


def _included(table: Table, opened: OpenVersion) -> tuple[IncludedState, ...]:
    names = {field.field_id: field.name for field in table.schema().fields}
    return tuple(
        IncludedState(
            names.get(field_id, str(field_id)),
            *(int(blob.properties.get(key, 0)) for key in ("bytes", "files", "files_left_out")),
        )
        for field_id, blob in opened.included.items()
    )


def _packs(table: Table, opened: OpenVersion) -> tuple[PackState, ...]:
    names = Counter(pack.holder_id for version in index_versions(table, opened.bound.name) for pack in version.packs)
    return tuple(PackState(pack.path, pack.size, names[pack.holder_id]) for pack in opened.bound.packs)
