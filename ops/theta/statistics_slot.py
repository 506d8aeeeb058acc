"""The statistics slot of a snapshot: one Puffin file that every engine reads, and the last writer owns.

Rules (Iceberg spec "Table statistics"; Trino and Spark as readers): every listed theta blob carries `ndv`, which is a
whole number, has exactly one field, and that field is in the current schema. What others left in the slot is carried
over: their sketches of columns that we do not sketch stay listed, blobs of other types are copied but not listed
(PyIceberg cannot load a table that lists a type which it does not know).

Our statistics of other kinds lie in the same file and are not listed. Presto's types have no properties of ours, so the
file's property `icepuffin.others` says what they are, as docs/formats.md has it.
"""

import io
import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import BlobMetadata as ListedBlob
from pyiceberg.table.statistics import StatisticsFile

from icepuffin.ann_kernels.sketches.kll import KllSketch
from icepuffin.ann_kernels.sketches.theta_estimates import estimate
from icepuffin.ops.model import CREATED_BY
from icepuffin.ops.storage import ObjectMissingError, Storage
from icepuffin.ops.storage.base import ObjectSource
from icepuffin.ops.tasks.sketches.images import Sketch, decode, empty_histogram, encode
from icepuffin.ops.tasks.sketches.statistic import Kind, Statistic, StatisticKey, fields_of, kind_of
from icepuffin.ops.theta.build_id import (
    OTHERS,
    PROPERTY,
    is_later,
    is_later_others,
    is_ours,
    is_outdated,
    others_id,
    sealed_as,
)
from icepuffin.puffin import BlobMetadata, FileInfo, PuffinReader, PuffinWriter
from icepuffin.puffin.blobs import theta_blob
from icepuffin.puffin.blobs.theta_blob import ThetaSketch
from icepuffin.puffin.errors import BadBlobError, PuffinError
from icepuffin.puffin.footer import Footer
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

    statistic: Statistic
    sketch: Sketch
    build_id: str
    most: int
    """Rows of the data files that it counts: there are no more distinct values"""

    @property
    def ndv(self) -> int | None:
        """Number of distinct values, as planners are to take it; None where it is no theta sketch."""
        return ndv_of(self.sketch, self.most) if isinstance(self.sketch, ThetaSketch) else None

    @property
    def is_empty(self) -> bool:
        """Whether it is a histogram of no values, which Presto's own ANALYZE leaves out."""
        return isinstance(self.sketch, KllSketch) and self.sketch.count == 0

    def blob(self) -> tuple[str, bytes, dict[str, str]]:
        """(type, bytes, properties)"""
        kind, sketch = self.statistic.kind, self.sketch
        if isinstance(sketch, int):
            return BLOB_TYPES[kind], b"", {"data_size": str(sketch)}
        properties = {} if self.ndv is None else {"ndv": str(self.ndv)}
        if kind is Kind.NDV:
            properties[PROPERTY] = self.build_id
        return BLOB_TYPES[kind], encode(sketch), properties


BLOB_TYPES = {
    Kind.NDV: BlobType.THETA.value,
    Kind.HISTOGRAM: "presto-kll-sketch-bytes-v1",
    Kind.SIZE: "presto-sum-data-size-bytes-v1",
    Kind.FREQUENT: "icepuffin-frequent-values-v1",
    Kind.JOINT: "icepuffin-joint-theta-v1",
}
"""Type of the blobs of each kind"""


def listed_thetas(statistics: StatisticsFile | None) -> Mapping[int, ListedBlob]:
    """The listed theta blobs of a slot, by field id."""
    blobs = statistics.blob_metadata if statistics else []
    return {b.fields[0]: b for b in blobs if b.type == BlobType.THETA.value and len(b.fields) == 1}


def counted_for(blob: ListedBlob, snapshot: Snapshot) -> bool:
    """Whether a blob was counted for this very snapshot (tables of format v1 have no sequence numbers: 0)."""
    return (blob.snapshot_id, blob.sequence_number) == (snapshot.snapshot_id, snapshot.sequence_number or 0)


def is_copy(statistics: StatisticsFile) -> bool:
    """Whether an engine may have copied our blobs to a file that does not say what they are: it lists other types."""
    return any(blob.type != BlobType.THETA.value for blob in statistics.blob_metadata)


def others_of(statistics: StatisticsFile | None, snapshot: Snapshot) -> str:
    """`others_id` of what an entry's file has beside NDVs, for this very snapshot; empty where it has nothing."""
    if statistics is None or is_copy(statistics):
        return ""
    ours = (blob.properties or {} for blob in listed_thetas(statistics).values() if counted_for(blob, snapshot))
    return next((properties[OTHERS] for properties in ours if OTHERS in properties), "")


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


@dataclass(frozen=True, slots=True)
class OtherSketch:
    """A statistic of ours in a statistics file that is no NDV."""

    build_id: str
    blob: BlobMetadata | None
    """The blob; None of a histogram without values"""


def others_in(footer: Footer) -> dict[StatisticKey, OtherSketch]:
    """The statistics of ours in a statistics file that are no NDVs. Raises BadBlobError where its property lies."""
    others: dict[StatisticKey, OtherSketch] = {}
    try:
        for number, field_id, counted_as, seal in json.loads(footer.properties.get(OTHERS, "[]")):
            key = int(field_id), str(counted_as)
            kind, blob = kind_of(key), None if number is None else footer.blobs[number]
            fits = kind is Kind.HISTOGRAM if blob is None else (blob.type, blob.fields) == (BLOB_TYPES[kind], key[:1])
            if kind is Kind.NDV or not fits or next(iter(fields_of(key))) != key[0]:
                raise ValueError(f"blob {number} is of another kind")  # noqa: TRY301
            others[key] = OtherSketch(str(seal), blob)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise BadBlobError(f"property {OTHERS!r} does not say what the blobs are: {error}") from error
    return others


def read_others(storage: Storage, statistics: StatisticsFile) -> dict[StatisticKey, OtherSketch]:
    """`others_in` of an entry's file. Raises PuffinError, and what the storage raises."""
    return others_in(PuffinReader(ObjectSource(storage, statistics.statistics_path)).footer)


def read_sketches(
    storage: Storage, statistics: StatisticsFile, build_ids: Mapping[StatisticKey, str]
) -> dict[StatisticKey, Sketch]:
    """The sketches in a statistics file that are sealed with these build ids.

    Raises PuffinError, or what the storage raises.
    """
    source = ObjectSource(storage, statistics.statistics_path)
    reader = PuffinReader(source)
    counted = {b.fields[0]: b for b in reader.footer.of_type(BlobType.THETA) if len(b.fields) == 1}
    others = others_in(reader.footer) if any(kind_of(key) is not Kind.NDV for key in build_ids) else {}
    sealed: dict[StatisticKey, BlobMetadata | None] = {}
    for key, seal in build_ids.items():
        if kind_of(key) is not Kind.NDV:
            if key in others and others[key].build_id == seal:
                sealed[key] = others[key].blob
        elif key[0] in counted and sealed_as(counted[key[0]].properties) == seal:
            sealed[key] = counted[key[0]]
    source.fetch([(blob.offset, blob.length) for blob in sealed.values() if blob is not None and blob.length])
    return {key: sketch_in(reader, key, blob) for key, blob in sealed.items()}


def sketch_in(reader: PuffinReader, key: StatisticKey, blob: BlobMetadata | None) -> Sketch:
    """The sketch of a statistic from its blob, None for a histogram without values. Raises PuffinError."""
    if blob is None:
        return empty_histogram(key)
    if kind_of(key) is not Kind.SIZE:
        return decode(key, memoryview(reader.read_blob(blob)))
    size = blob.properties.get("data_size", "")
    if _WHOLE_NUMBER.fullmatch(size) is None:
        raise BadBlobError(f"data_size {size!r} is no size")
    return int(size)


def damage_of(storage: Storage, statistics: StatisticsFile) -> str:
    """Why sketches of ours that an entry lists cannot be read from its file; empty where all can.

    Raises what the storage raises, unless the file is lost.
    """
    listed = listed_thetas(statistics)
    ours = {(i, ""): sealed_as(blob.properties) for i, blob in listed.items() if is_ours(blob.properties)}
    markers = {(blob.properties or {}).get(OTHERS, "") for blob in listed.values()}
    markers = {marker for marker in markers if marker and not is_later_others(marker)}
    try:
        others = {key: it.build_id for key, it in read_others(storage, statistics).items()} if markers else {}
        ours |= others
        lacking = markers - {others_id(others)} or ours.keys() - read_sketches(storage, statistics, ours).keys()
    except (ObjectMissingError, PuffinError) as error:
        return f"{statistics.statistics_path} is damaged: {error}"
    return f"{statistics.statistics_path} lacks sketches that the table lists" if lacking else ""


def carried_over(
    storage: Storage,
    statistics: StatisticsFile,
    *,
    replaced: Collection[tuple[str, int]],
    current_fields: Collection[int],
) -> tuple[CarriedBlob, ...]:
    """The blobs that a new statistics file must take over from the one in the slot.

    Sketches of `replaced` (type, field id), of dropped columns, of ours those of an earlier format and the unlisted
    ones, and stale ones of other kinds are left out. A sketch that cannot be decoded, or has no whole number as `ndv`
    in the file nor in the table's entry, is copied but no longer listed. Where the file does not say which of its blobs
    are ours, all are another's.
    """
    reader = PuffinReader(storage.source(statistics.statistics_path))
    listed, ours = listed_thetas(statistics), list[BlobMetadata | None]()
    try:
        ours += [other.blob for other in others_in(reader.footer).values()]
    except BadBlobError as error:
        _log.warning("%s: %s", statistics.statistics_path, error)
    carried = []
    for blob in reader.footer.blobs:
        if blob in ours or (blob.type, *blob.fields) in replaced or _is_stale(blob, statistics):
            continue
        if blob.type == BlobType.THETA and len(blob.fields) == 1:
            if blob.fields[0] not in current_fields or is_outdated(blob.properties):
                continue
            counted, data = _with_ndv(blob, listed.get(blob.fields[0])), reader.read_blob_range(blob, 0, blob.length)
            readable = _WHOLE_NUMBER.fullmatch(counted.properties.get("ndv", "")) is not None
            carried.append(CarriedBlob(counted, data, listed=readable and _is_sketch(reader, blob)))
        else:
            carried.append(CarriedBlob(blob, reader.read_blob_range(blob, 0, blob.length), listed=False))
    return tuple(carried)


def _is_stale(blob: BlobMetadata, statistics: StatisticsFile) -> bool:
    """Whether a blob is a copy that another engine made of ours, or of Presto's kind and of another snapshot: Presto
    looks for the snapshot that it names, which may have expired.
    """
    kind = next((kind for kind, type_ in BLOB_TYPES.items() if type_ == blob.type), None)
    if kind in (Kind.FREQUENT, Kind.JOINT):
        return True
    return kind in (Kind.HISTOGRAM, Kind.SIZE) and blob.snapshot_id != statistics.snapshot_id


def _with_ndv(blob: BlobMetadata, entry: ListedBlob | None) -> BlobMetadata:
    """The blob with the `ndv` of its entry in the table's metadata, which planners read, where the file has none, and
    without `icepuffin.others`, which is of the file that it was in.
    """
    properties = {name: text for name, text in blob.properties.items() if name != OTHERS}
    stamp = blob.snapshot_id, blob.sequence_number
    is_its = entry is not None and (entry.snapshot_id, entry.sequence_number) == stamp
    ndv = (entry.properties or {}).get("ndv") if entry is not None and is_its else None
    return replace(blob, properties=properties if ndv is None else {"ndv": ndv, **properties})


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
    sequence_number = snapshot.sequence_number or 0
    add = partial(writer.add_blob, snapshot_id=snapshot.snapshot_id, sequence_number=sequence_number)
    listed: list[ListedBlob] = []
    ordered = sorted(sketches, key=lambda new: new.statistic.kind is not Kind.NDV)
    others: list[tuple[int | None, int, str, str]] = []
    others_seal = others_id({new.statistic.key: new.build_id for new in ordered})
    for number, new in enumerate(new for new in ordered if not new.is_empty):
        type_, data, properties = new.blob()
        is_ndv = new.statistic.kind is Kind.NDV
        blob = add(
            type_,
            fields=[new.statistic.key[0]],
            data=data,
            codec="zstd" if data else None,
            properties=properties | ({OTHERS: others_seal} if others_seal and number == 0 else {}),
        )
        if is_ndv:
            listed.append(_list_entry(blob))
        else:
            others.append((number, *new.statistic.key, new.build_id))
    others += [(None, *new.statistic.key, new.build_id) for new in ordered if new.is_empty]
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
    finished = writer.finish({"created-by": CREATED_BY, **({OTHERS: json.dumps(others)} if others else {})})
    return sink.getvalue(), finished, listed


def _list_entry(blob: BlobMetadata) -> ListedBlob:
    stamp = {"snapshot_id": blob.snapshot_id, "sequence_number": blob.sequence_number}
    return ListedBlob.model_validate(
        {"type": blob.type, **stamp, "fields": list(blob.fields), "properties": dict(blob.properties)}
    )
