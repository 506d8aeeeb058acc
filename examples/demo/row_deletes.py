"""Row deletes, merge-on-read, for the demo: PyIceberg reads position delete files, and does not write them."""

import io
import uuid
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate

from icepuffin.ops.binding.commit import attempt_commit, reload_table
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.binding.manifest_lists import new_snapshot_id
from icepuffin.ops.model import NO_SNAPSHOT, SnapshotId
from icepuffin.ops.table.live_files import PATH_FIELD
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import find_snapshot, table_name

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def append_position_deletes(table: Table, positions: Mapping[str, npt.NDArray[np.int64]]) -> SnapshotId:
    """Delete rows by data file path and row position, in one `delete` snapshot on main of a v2 table.

    Writes one delete file per data file, in its partition. Returns the new snapshot's id. Raises BindingError where
    main moved meanwhile, or where the table is not v2.
    """
    if table.metadata.format_version != 2:
        raise BindingError(f"{table_name(table)}: position deletes are written to v2 tables only")
    reload_table(table)
    head = table.metadata.current_snapshot_id
    if head is None:
        raise BindingError(f"{table_name(table)} has no rows to delete")
    files = {task.file.file_path: task.file for task in table.scan(snapshot_id=head).plan_files()}
    if missing := set(positions) - set(files):
        raise BindingError(f"{table_name(table)}: no live data file {min(missing)}")
    deletes = [_write_delete_file(table, files[path], np.unique(rows)) for path, rows in sorted(positions.items())]
    return commit_delete_files(table, deletes)


def commit_delete_files(table: Table, files: Sequence[DataFile]) -> SnapshotId:
    """Commit delete files that are written already, in one `delete` snapshot on main as the table knows it.

    Returns the new snapshot's id. Raises BindingError where main moved meanwhile.
    """
    head = SnapshotId(table.metadata.current_snapshot_id or NO_SNAPSHOT)
    base, snapshot_id = find_snapshot(table, head), new_snapshot_id(table)
    specs = sorted({file.spec_id for file in files})
    manifests = [
        _write_manifest(table, snapshot_id, [file for file in files if file.spec_id == spec]) for spec in specs
    ]
    snapshot = _new_snapshot(table, base, snapshot_id, manifests, files)
    updates = (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate(
            ref_name="main",
            type=SnapshotRefType.BRANCH,
            snapshot_id=snapshot_id,
            max_ref_age_ms=None,
            max_snapshot_age_ms=None,
            min_snapshots_to_keep=None,
        ),
    )
    attempt_commit(table, updates, (AssertRefSnapshotId(ref="main", snapshot_id=head),))
    reload_table(table, patient=True)
    if snapshot_id not in snapshots_by_id(table.metadata):
        raise BindingError(f"{table_name(table)}: somebody else wrote to main first; try again")
    return snapshot_id


def _write_delete_file(table: Table, data: DataFile, rows: npt.NDArray[np.int64]) -> DataFile:
    buffer = io.BytesIO()
    pq.write_table(pa.table([[data.file_path] * len(rows), rows], schema=_SCHEMA), buffer, compression="zstd")
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-deletes.parquet")
    with table.io.new_output(path).create() as sink:
        sink.write(buffer.getvalue())
    bound = data.file_path.encode()
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=data.partition,
        record_count=len(rows),
        file_size_in_bytes=buffer.tell(),
        lower_bounds={PATH_FIELD: bound},  # both bounds the same, not cut off: the file is about one data file
        upper_bounds={PATH_FIELD: bound},
    )
    file.spec_id = data.spec_id
    return file


def _write_manifest(table: Table, snapshot_id: SnapshotId, files: list[DataFile]) -> ManifestFile:
    """A manifest of delete files, all of one partition spec."""
    path = table.location_provider().new_metadata_location(f"{uuid.uuid4()}-m0.avro")
    spec = table.specs()[files[0].spec_id]
    with _DeleteManifestWriter(spec, table.schema(), table.io.new_output(path), snapshot_id, "deflate") as writer:
        for file in files:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, sequence_number=None, data_file=file
            )
            writer.add(entry)
    return writer.to_manifest_file()


def _new_snapshot(
    table: Table, base: Snapshot, snapshot_id: SnapshotId, manifests: list[ManifestFile], files: Sequence[DataFile]
) -> Snapshot:
    sequence_number = table.metadata.next_sequence_number()
    path = table.location_provider().new_metadata_location(f"snap-{snapshot_id}-0-{uuid.uuid4()}.avro")
    with write_manifest_list(
        2, table.io.new_output(path), snapshot_id, base.snapshot_id, sequence_number, "deflate"
    ) as out:
        out.add_manifests([*manifests, *base.manifests(table.io)])
    files = [file for file in files if file.content is DataFileContent.POSITION_DELETES]
    rows = sum(file.record_count for file in files)
    before = base.summary.additional_properties if base.summary else {}
    summary = {
        **{key: before.get(key, "0") for key in ("total-records", "total-data-files", "total-equality-deletes")},
        "total-files-size": str(
            int(before.get("total-files-size", 0)) + sum(file.file_size_in_bytes for file in files)
        ),
        "total-delete-files": str(int(before.get("total-delete-files", 0)) + len(files)),
        "total-position-deletes": str(int(before.get("total-position-deletes", 0)) + rows),
        "added-delete-files": str(len(files)),
        "added-position-deletes": str(rows),
    }
    return Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=base.snapshot_id,
        sequence_number=sequence_number,
        manifest_list=path,
        summary=Summary(Operation.DELETE, **summary),
        schema_id=table.metadata.current_schema_id,
    )
