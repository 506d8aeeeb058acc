"""Index metadata of a version, as Iceberg's draft of an index specification has it.

Source: apache/iceberg, pull request 16961, `format/index-spec.md` at commit
08288d3cf6e22134695a32d20d9ff04d2ed64470, "Index Metadata". The draft reserves the type VECTOR and does not define its
data: `index-data` names our Puffin file, where a SCALAR index has a tracking file.
"""

import json
import uuid
from contextlib import suppress
from typing import Any

from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.binding.files_folder import folder_of
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage import open_storage
from icepuffin.ops.storage.base import ObjectExistsError
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import UnknownSnapshotError, table_name

SUFFIX = ".index.json"
"""Ending of the metadata's name, after that of the version's file. It must not be `.metadata.json`: engines that read a
table by its folder take all such files for the table's metadata"""
_DRAFT_VERSION = 1
_FILE, _POSITION = 2147483646, 2147483645
"""Reserved ids of the columns `_file` and `_pos` (Iceberg spec, "Reserved Field IDs")"""
_SOURCE_FIELDS = (
    {"id": 2147483538, "name": "source_file_path", "required": True, "type": "string"},
    {"id": 2147483537, "name": "source_file_pos", "required": True, "type": "long"},
)


def export_metadata(
    table: Table, definition: IndexDefinition, version: DerivedVersion, storage: StorageConfig
) -> tuple[str, dict[str, Any]]:
    """(path, content) of the index metadata that is written beside the file of a version, if it is not there yet.

    Raises UnknownSnapshotError where the schema has no such column any more, and what the store raises.
    """
    content = index_metadata(table, definition, version)
    path = version.puffin_path + SUFFIX
    with suppress(ObjectExistsError):
        open_storage(path, storage).create(path, json.dumps(content, indent=2).encode() + b"\n")
    return path, content


def index_metadata(table: Table, definition: IndexDefinition, version: DerivedVersion) -> dict[str, Any]:
    """The index metadata of one version, as JSON. Reads the metadata that `table` shows."""
    snapshots = snapshots_by_id(table.metadata)
    schema = table.schemas().get(snapshots[version.index_snapshot_id].schema_id or 0, table.schema())
    by_id = (field for field in schema.fields if field.field_id == definition.field_id)
    by_name = (field for field in schema.fields if field.name == definition.column)
    field = next(by_name if definition.field_id is None else by_id, None)
    if field is None:
        raise UnknownSnapshotError(
            f"{table_name(table)}: snapshot {version.base_snapshot_id} has no column {definition.column}"
        )
    vector = {
        "id": field.field_id,
        "name": field.name,
        "required": field.required,
        "type": json.loads(field.field_type.model_dump_json()),
    }
    location = table.location().rstrip("/")
    return {
        "format-version": _DRAFT_VERSION,
        "uuid": str(uuid.uuid5(table.metadata.table_uuid, definition.name)),
        "table-uuid": str(table.metadata.table_uuid),
        "location": f"{location}/{folder_of(table)}",
        "type": "VECTOR",
        "index-values": _struct(field.field_id, _FILE, _POSITION)
        | {"result-type": {"type": "struct", "fields": [vector, *_SOURCE_FIELDS]}},
        "index-keys": _struct(_FILE, _POSITION),
        "properties": {"icepuffin.index": definition.name, "icepuffin.metric": definition.metric},
        "snapshots": [
            {
                "snapshot-id": version.index_snapshot_id,
                "source-table-snapshot-id": version.base_snapshot_id,
                "timestamp-ms": version.timestamp_ms,
                "index-data": version.puffin_path,
                "properties": {
                    "icepuffin.build-id": version.build_id,
                    "icepuffin.packs": json.dumps([pack.path for pack in version.packs]),
                },
            }
        ],
    }


def _struct(*field_ids: int) -> dict[str, Any]:
    return {
        "type": "apply",
        "function": {"catalog": "iceberg_functions", "identifier": ["struct"]},
        "arguments": [{"type": "reference", "id": field_id} for field_id in field_ids],
    }
