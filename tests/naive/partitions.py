"""Partition statistics from all manifests of a table's history, entry by entry, by PyIceberg's own reader."""

from typing import Any

from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import VoidTransform


def partition_rows(table: Table, snapshot_id: int) -> list[dict[str, Any]]:
    """Rows of the snapshot, in no order: `values` by the name of the newest spec that has the field, the spec, the
    counts that are not 0, and the last change that the snapshots tell which are there still.
    """
    line = _ancestors(table, snapshot_id)
    rows: dict[Any, dict[str, Any]] = {}
    for manifest in line[0].manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            file = entry.data_file
            row = rows.setdefault(_key(file), {"file": file, "counts": {}, "changes": []})
            if entry.status == ManifestEntryStatus.DELETED:
                continue
            row["changes"].append(entry.snapshot_id)
            for name, amount in _amounts(file).items():
                row["counts"][name] = row["counts"].get(name, 0) + amount
    for snapshot in line:
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.status != ManifestEntryStatus.EXISTING and _key(entry.data_file) in rows:
                    rows[_key(entry.data_file)]["changes"].append(snapshot.snapshot_id)
    return [_row(table, **row) for row in rows.values()]


def _ancestors(table: Table, snapshot_id: int | None) -> list[Snapshot]:
    line = []
    while snapshot_id is not None and (snapshot := table.metadata.snapshot_by_id(snapshot_id)) is not None:
        line.append(snapshot)
        snapshot_id = snapshot.parent_snapshot_id
    return line


def _key(file: Any) -> Any:
    return file.spec_id, tuple(map(repr, file.partition._data))


def _amounts(file: Any) -> dict[str, int]:
    kind = {
        DataFileContent.DATA: "data",
        DataFileContent.POSITION_DELETES: "position_delete",
        DataFileContent.EQUALITY_DELETES: "equality_delete",
    }[file.content]
    is_vector = file.file_format == FileFormat.PUFFIN
    amounts = {f"{kind}_record_count": file.record_count, "dv_count" if is_vector else f"{kind}_file_count": 1}
    return {**amounts, "total_data_file_size_in_bytes": file.file_size_in_bytes} if kind == "data" else amounts


def _row(table: Table, file: Any, counts: dict[str, int], changes: list[int]) -> dict[str, Any]:
    columns = table.schema().field_ids
    specs = sorted(table.metadata.partition_specs, key=lambda spec: spec.spec_id)
    names = {part.field_id: part.name for spec in specs for part in spec.fields if part.source_id in columns}
    own = table.specs()[file.spec_id].fields
    values = dict.fromkeys(names.values())
    for part, value in zip(own, file.partition._data, strict=True):
        if part.field_id in names and not isinstance(part.transform, VoidTransform):
            values[names[part.field_id]] = value
    there = [item for item in map(table.metadata.snapshot_by_id, changes) if item is not None]
    last = max(there, key=lambda item: (item.timestamp_ms, item.sequence_number or 0), default=None)
    return {
        "values": values,
        "spec_id": file.spec_id,
        "counts": {name: count for name, count in sorted(counts.items()) if count},
        "at": last and last.timestamp_ms,
        "by": last and last.snapshot_id,
    }
