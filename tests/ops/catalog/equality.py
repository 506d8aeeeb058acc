"""Equality deletes, as Flink writes them; neither PyIceberg nor Spark does."""

import io
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

from icepuffin.ops.catalog.commit import Outcome, attempt_commit
from icepuffin.ops.catalog.manifest_lists import new_snapshot_id
from icepuffin.ops.catalog.snapshots import find_snapshot
from icepuffin.orchestration.demo import rowdeletes


def write_delete_file(table: Table, *ids: int) -> tuple[str, int]:
    """A file that deletes rows by their `id` (field 1), not yet committed; -> (location, bytes)."""
    buffer = io.BytesIO()
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table([ids], schema=pa.schema([field])), buffer)
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-equality.parquet")
    with table.io.new_output(path).create() as sink:
        sink.write(buffer.getvalue())
    return path, buffer.tell()


def delete_where_id_is(table: Table, *ids: int) -> int:
    """Commit a snapshot on main that deletes rows by their `id`; -> its id.

    For PyIceberg's eyes only: it writes the field ids of equality deletes as longs, which Java cannot read.
    """
    table.refresh()
    head = find_snapshot(table, table.metadata.current_snapshot_id or 0)
    path, size = write_delete_file(table, *ids)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*[None] * len(table.spec().fields)),
        record_count=len(ids),
        file_size_in_bytes=size,
        equality_ids=[1],
    )
    file.spec_id = table.spec().spec_id
    snapshot_id = new_snapshot_id(table)
    manifest = rowdeletes._write_manifest(table, snapshot_id, [file])
    snapshot = rowdeletes._new_snapshot(table, head, snapshot_id, [manifest], [])
    to_main = SetSnapshotRefUpdate(
        ref_name="main",
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    assert attempt_commit(table, (AddSnapshotUpdate(snapshot=snapshot), to_main), ()) is Outcome.DONE
    table.refresh()
    return snapshot_id
