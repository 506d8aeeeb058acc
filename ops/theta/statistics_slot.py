"""The statistics slot of a snapshot: one Puffin file that every engine reads, and the last writer owns.

Rules (Iceberg spec "Table statistics"; Trino and Spark as readers): every listed theta blob carries `ndv`, which is a
whole number, has exactly one field, and that field is in the current schema. What others left in the slot is carried
over: their sketches of columns that we do not sketch stay listed, blobs of other types are copied but not listed
(PyIceberg cannot load a table that lists a type which it does not know).
"""

import io
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import BlobMetadata as ListedBlob
from pyiceberg.table.statistics import StatisticsFile

from icepuffin.ann_kernels.sketches.theta_estimates import estimate
from icepuffin.ops.model import CREATED_BY
from icepuffin.ops.storage import ObjectMissingError, Storage
from icepuffin.ops.storage.base import ObjectSource
from icepuffin.ops.theta.build_id import PROPERTY, is_later, is_ours, is_outdated, sealed_as
from icepuffin.puffin import BlobMetadata, FileInfo, PuffinReader, PuffinWriter
from icepuffin.puffin.blobs import theta_blob
from icepuffin.puffin.blobs.theta_blob import ThetaSketch
from icepuffin.puffin.errors import PuffinError
from icepuffin.puffin.types import BlobType

_log = logging.getLogger(__name__)
_WHOLE_NUMBER = re.compile("[0-9]{1,18}")
"""What planners take for an `ndv`, whatever the engine: Java's long"""


@dataclass(frozen=True, slots=True)
class CarriedBlob:
    """A blob of another writer in the slot, with its bytes as the file has them."""

    metadata: BlobMetadata
    data: bytes
    listed: bool


@dataclass(frozen=True, slots=True)
class NewSketch:
    """A sketch of ours for the slot."""

    field_id: int
    sketch: ThetaSketch
    build_id: str
    most: int
    """Rows of the data files that it counts: there are no more distinct values"""

    @property
    def ndv(self) -> int:
        """Number of distinct values, as planners are to take it."""
        return ndv_of(self.sketch, self.most)


def listed_thetas(statistics: StatisticsFile | None) -> Mapping[int, ListedBlob]:
    """The listed theta blobs of a slot, by field id."""
    blobs = statistics.blob_metadata if statistics else []
    return {b.fields[0]: b for b in blobs if b.type == BlobType.THETA.value and len(b.fields) == 1}


def counted_for(blob: ListedBlob, snapshot: Snapshot) -> bool:
    """Whether a blob was counted for this very snapshot (tables of format v1 have no sequence numbers: 0)."""
    return (blob.snapshot_id, blob.sequence_number) == (snapshot.snapshot_id, snapshot.sequence_number or 0)


def left_to_later(statistics: StatisticsFile | None, snapshot: Snapshot) -> frozenset[int]:
    """Field ids of the columns whose sketch in the slot is a later release's, for this very snapshot."""
    thetas = listed_thetas(statistics).items()
    return frozenset(i for i, blob in thetas if is_later(blob.properties) and counted_for(blob, snapshot))


def ndv_of(sketch: ThetaSketch, most: int) -> int:
    """The `ndv` property of a sketch: the estimate, cut to a whole number as Java's `(long)` does, and at most `most`.

    Of a column of unique values every second estimate is over the number of rows, and planners take it as it is.
    """
    count = len(sketch.hashes)  # each is of another value
    return max(count, min(most, int(estimate(sketch.theta, count))))


def read_sketches(storage: Storage, statistics: StatisticsFile, build_ids: Mapping[int, str]) -> dict[int, ThetaSketch]:
    """The sketches in a statistics file that are sealed with these build ids, by field id.

    Raises PuffinError, or what the storage raises.
    """
    source = ObjectSource(storage, statistics.statistics_path)
    reader = PuffinReader(source)
    sealed = {
        b.fields[0]: b
        for b in reader.footer.of_type(BlobType.THETA)
        if len(b.fields) == 1 and sealed_as(b.properties) == build_ids.get(b.fields[0])
    }
    source.fetch([(blob.offset, blob.length) for blob in sealed.values()])
    return {i: theta_blob.decode(reader.read_blob(blob)) for i, blob in sealed.items()}


def damage_of(storage: Storage, statistics: StatisticsFile) -> str:
    """Why sketches of ours that an entry lists cannot be read from its file; empty where all can.

    Raises what the storage raises, unless the file is lost.
    """
    ours = {i: sealed_as(blob.properties) for i, blob in listed_thetas(statistics).items() if is_ours(blob.properties)}
    try:
        lacking = ours.keys() - read_sketches(storage, statistics, ours).keys()
    except (ObjectMissingError, PuffinError) as error:
        return f"{statistics.statistics_path} is damaged: {error}"
    return f"{statistics.statistics_path} lacks sketches that the table lists" if lacking else ""


def carried_over(
    storage: Storage, statistics: StatisticsFile, *, replaced: Collection[int], current_fields: Collection[int]
) -> tuple[CarriedBlob, ...]:
    """The blobs that a new statistics file must take over from the one in the slot.

    Sketches of `replaced` columns, of dropped columns, and of an earlier format of ours are left out. A sketch that
    cannot be decoded, or has no whole number as `ndv` in the file nor in the table's entry, is copied but no longer
    listed.
    """
    reader = PuffinReader(storage.source(statistics.statistics_path))
    listed = listed_thetas(statistics)
    carried = []
    for blob in reader.footer.blobs:
        if blob.type == BlobType.THETA and len(blob.fields) == 1:
            if blob.fields[0] in replaced or blob.fields[0] not in current_fields or is_outdated(blob.properties):
                continue
            counted, data = _with_ndv(blob, listed.get(blob.fields[0])), reader.read_blob_range(blob, 0, blob.length)
            readable = _WHOLE_NUMBER.fullmatch(counted.properties.get("ndv", "")) is not None
            carried.append(CarriedBlob(counted, data, listed=readable and _is_sketch(reader, blob)))
        else:
            carried.append(CarriedBlob(blob, reader.read_blob_range(blob, 0, blob.length), listed=False))
    return tuple(carried)


def _with_ndv(blob: BlobMetadata, entry: ListedBlob | None) -> BlobMetadata:
    """The blob with the `ndv` of its entry in the table's metadata, which planners read, where the file has none."""
    ndv = (entry.properties or {}).get("ndv") if entry is not None and _describes(entry, blob) else None
    return blob if ndv is None else replace(blob, properties={"ndv": ndv, **blob.properties})


def _describes(entry: ListedBlob, blob: BlobMetadata) -> bool:
    return (entry.snapshot_id, entry.sequence_number) == (blob.snapshot_id, blob.sequence_number)


def _is_sketch(reader: PuffinReader, blob: BlobMetadata) -> bool:
    try:
        theta_blob.decode(reader.read_blob(blob))
    except PuffinError as error:
        _log.warning("a theta sketch in the statistics slot cannot be read and is no longer listed: %s", error)
        return False
    return True


def statistics_file(
    snapshot: Snapshot, sketches: Iterable[NewSketch], carried: Iterable[CarriedBlob]
) -> tuple[bytes, FileInfo, list[ListedBlob]]:
    """(the Puffin file for a slot, its sizes, the blobs to list in the table's entry)."""
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    listed: list[ListedBlob] = []
    for new in sketches:
        blob = writer.add_blob(
            BlobType.THETA,
            fields=[new.field_id],
            snapshot_id=snapshot.snapshot_id,
            sequence_number=snapshot.sequence_number or 0,
            data=theta_blob.encode(new.sketch),
            codec="zstd",
            properties={"ndv": str(new.ndv), PROPERTY: new.build_id},
        )
        listed.append(_list_entry(blob))
    for old in carried:
        meta = old.metadata
        blob = writer.add_blob(
            meta.type,
            fields=meta.fields,
            snapshot_id=meta.snapshot_id,
            sequence_number=meta.sequence_number,
            data=old.data,
            codec=meta.compression_codec,
            properties=meta.properties,
            is_stored=True,
        )
        if old.listed:
            listed.append(_list_entry(blob))
    finished = writer.finish({"created-by": CREATED_BY})
    return sink.getvalue(), finished, listed


def _list_entry(blob: BlobMetadata) -> ListedBlob:
    return ListedBlob.model_validate(
        {
            "type": blob.type,
            "snapshot-id": blob.snapshot_id,
            "sequence-number": blob.sequence_number,
            "fields": list(blob.fields),
            "properties": dict(blob.properties),
        }
    )
