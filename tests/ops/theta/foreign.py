"""Statistics as another engine leaves them: Trino's INSERT unites the newest that it finds with the new rows.

`TableStatisticsWriter` of Trino, mode INCREMENTAL_UPDATE: whichever ancestor the older statistics are of, and whatever
was deleted or appended since, the union is stamped with the new snapshot's id and sequence number.
"""

import io
import sys
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator, union
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.storage import Storage
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.ops.tasks.sketches.column_updates import update_ndv
from icepuffin.ops.theta.statistics_slot import listed_thetas, ndv_of
from icepuffin.puffin import PuffinReader, PuffinWriter
from icepuffin.puffin.blobs.theta_blob import ThetaSketch, decode, encode
from icepuffin.puffin.types import BlobType
from tests.ops.catalog.bindings import register_statistics


def sketch(column: pa.ChunkedArray, kind: str) -> ThetaSketch:
    accumulator = ThetaAccumulator()
    update_ndv(accumulator, column, kind)
    return ThetaSketch(*accumulator.result())


def stamp(
    table: Table,
    snapshot: Snapshot,
    sketches: Mapping[int, ThetaSketch],
    *more: Any,
    folder: str | None = None,
    **options: Any,
) -> None:
    """Register sketches for a snapshot as Trino does. `more` and `options` are those of `write_statistics`."""
    entry = write_statistics(folder or table.location(), snapshot, sketches, *more, **options)
    over = find_statistics(table.refresh(), snapshot.snapshot_id)
    done = register_statistics(
        table,
        snapshot.snapshot_id,
        path=entry.statistics_path,
        blobs=entry.blob_metadata,
        over=over and over.statistics_path,
        file_size=entry.file_size_in_bytes,
        footer_size=entry.file_footer_size_in_bytes,
    )
    assert done


def analyze(table: Table, columns: Collection[str]) -> str:
    """Count the distinct values of the head of `main`, and take its slot, whatever is there; path of the new file.

    Raises what PyIceberg raises where another commit came first.
    """
    snapshot = table.current_snapshot()
    assert snapshot is not None
    rows = table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=tuple(columns)).to_arrow()
    fields = [table.schema().find_field(name) for name in columns]
    sketches = {field.field_id: sketch(rows[field.name], str(field.field_type)) for field in fields}
    entry = write_statistics(table.location(), snapshot, sketches)
    with table.update_statistics() as update:
        update.set_statistics(entry)
    return entry.statistics_path


def write_statistics(
    folder: str,
    snapshot: Snapshot,
    sketches: Mapping[int, ThetaSketch],
    more: Mapping[int, Mapping[str, str]] = {},
    without_ndv: Collection[int] = (),
    listed_ndv: Collection[int] = (),
    store: Storage | None = None,
) -> StatisticsFile:
    """A file of sketches under `folder`; its entry. One blob a column, `ndv` its only property, but for `more`.

    listed_ndv: columns whose `ndv` stands in the table's metadata alone, not in the file.
    """
    sink, store = io.BytesIO(), store or LocalStorage()
    writer, listed = PuffinWriter(sink), []
    for field_id, counted in sorted(sketches.items()):
        about = {"snapshot_id": snapshot.snapshot_id, "sequence_number": snapshot.sequence_number or 0}
        ndv = {} if field_id in without_ndv else {"ndv": str(ndv_of(counted, sys.maxsize))}
        properties = {**ndv, **more.get(field_id, {})}
        stored = {} if field_id in listed_ndv else properties
        writer.add_blob(
            BlobType.THETA, fields=[field_id], data=encode(counted), codec="zstd", properties=stored, **about
        )
        listed.append(BlobMetadata(type=BlobType.THETA.value, fields=[field_id], properties=properties, **about))
    info = writer.finish({"created-by": "another engine"})
    path = f"{folder}/metadata/{snapshot.snapshot_id}-{uuid.uuid4()}.stats"
    store.create(path, sink.getvalue())
    return StatisticsFile(
        snapshot_id=snapshot.snapshot_id,
        statistics_path=path,
        file_size_in_bytes=info.file_size,
        file_footer_size_in_bytes=info.footer_size,
        blob_metadata=listed,
    )


def add_unlisted(table: Table, blobs: Iterable[tuple[str, int, bytes, Mapping[str, str]]]) -> None:
    """Add blobs (type, field id, bytes, properties) to the file in the head's slot, whose entry goes on listing what it
    lists.
    """
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    entry = find_statistics(table, snapshot.snapshot_id)
    assert entry is not None
    reader, sink = PuffinReader(LocalStorage().source(entry.statistics_path)), io.BytesIO()
    writer = PuffinWriter(sink)
    for blob in reader.footer.blobs:
        about = {"snapshot_id": blob.snapshot_id, "sequence_number": blob.sequence_number}
        data = reader.read_blob_range(blob, 0, blob.length)
        stored: Any = {"codec": blob.compression_codec, "properties": blob.properties, "is_stored": True}
        writer.add_blob(blob.type, fields=blob.fields, data=data, **about, **stored)
    about = {"snapshot_id": snapshot.snapshot_id, "sequence_number": snapshot.sequence_number or 0}
    for kind, field_id, data, properties in blobs:
        writer.add_blob(kind, fields=[field_id], data=data, properties=properties, **about)
    info = writer.finish()
    path = f"{table.location()}/metadata/{snapshot.snapshot_id}-{uuid.uuid4()}.stats"
    LocalStorage().create(path, sink.getvalue())
    done = register_statistics(
        table,
        snapshot.snapshot_id,
        path=path,
        blobs=entry.blob_metadata,
        over=entry.statistics_path,
        file_size=info.file_size,
        footer_size=info.footer_size,
    )
    assert done


def insert(table: Table, rows: pa.Table, field_ids: Collection[int]) -> int:
    """Append rows and stamp the union of the newest statistics with them; the new snapshot's id."""
    before = [
        found for item in data_snapshots(table) if (found := find_statistics(table, item.snapshot_id)) is not None
    ]
    table.append(rows)
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    old = sketches_in(before[-1].statistics_path) if before and listed_thetas(before[-1]) else {}
    sketches = {}
    for field_id in field_ids:
        field = table.schema().find_field(field_id)
        parts = [sketch(rows[field.name], str(field.field_type)), *([old[field_id]] if field_id in old else [])]
        sketches[field_id] = ThetaSketch(*union((part.theta, part.hashes) for part in parts))
    stamp(table, snapshot, sketches)
    return snapshot.snapshot_id


def sketches_in(path: str) -> dict[int, ThetaSketch]:
    reader = PuffinReader(LocalStorage().source(path))
    return {blob.fields[0]: decode(reader.read_blob(blob)) for blob in reader.footer.of_type(BlobType.THETA)}
