"""The manifest list of a derived snapshot: the manifests of its base, under a path of its own.

Its own, because Java's `expireSnapshots` deletes by path: sharing the base's list made it delete main's.
"""

import uuid

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.manifest import write_manifest_list
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.format_versions import UnsupportedFormatError
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import table_name

OWN_LISTS = "icepuffin-snap-"
"""Prefix of the names of icepuffin's manifest lists, the only ones that garbage collection may delete"""
_SNAPSHOT_ID_MASK = 2**63 - 1


def new_snapshot_id(table: Table) -> SnapshotId:
    """An id that no snapshot of the table has."""
    while True:
        raw = uuid.uuid4().int
        snapshot_id = ((raw >> 64) ^ raw) & _SNAPSHOT_ID_MASK
        if snapshot_id and snapshot_id not in snapshots_by_id(table.metadata):
            return SnapshotId(snapshot_id)


def write_own_manifest_list(table: Table, base: Snapshot, snapshot_id: SnapshotId, sequence_number: int | None) -> str:
    """Write the list and return its path. Raises UnsupportedFormatError for v3 tables of SQL catalogs."""
    path = _new_path(table, snapshot_id)
    if table.metadata.format_version >= 3:
        require_committable(table)
        with table.io.new_input(base.manifest_list).open() as source, table.io.new_output(path).create() as sink:
            sink.write(source.read())
        return path
    with write_manifest_list(
        format_version=table.metadata.format_version,
        output_file=table.io.new_output(path),
        snapshot_id=snapshot_id,
        parent_snapshot_id=None,
        sequence_number=sequence_number,
        avro_compression="deflate",
    ) as manifest_list:
        manifest_list.add_manifests(base.manifests(table.io))
    return path


def write_empty_manifest_list(table: Table, snapshot_id: SnapshotId, sequence_number: int | None) -> str:
    """Write the list of a snapshot without files, and return its path. Raises UnsupportedFormatError."""
    require_committable(table)
    path = _new_path(table, snapshot_id)
    with write_manifest_list(
        format_version=min(2, table.metadata.format_version),  # an empty list of version 2 is one of version 3
        output_file=table.io.new_output(path),
        snapshot_id=snapshot_id,
        parent_snapshot_id=None,
        sequence_number=sequence_number,
        avro_compression="deflate",
    ) as manifest_list:
        manifest_list.add_manifests([])
    return path


def _new_path(table: Table, snapshot_id: SnapshotId) -> str:
    """A path that garbage collection lists, whatever `write.metadata.path` says: other tables may share that folder."""
    return f"{table.location().rstrip('/')}/metadata/{OWN_LISTS}{snapshot_id}.avro"


def require_committable(table: Table) -> None:
    """Raises UnsupportedFormatError where PyIceberg cannot commit to the table, before any work is done for it: in
    catalogs whose metadata it writes itself.
    """
    if table.metadata.format_version >= 3 and isinstance(table.catalog, MetastoreCatalog):
        raise UnsupportedFormatError(
            f"{table_name(table)} has format version {table.metadata.format_version}: PyIceberg cannot commit to such "
            f"tables in catalog {table.catalog.name}. Use a REST catalog, or format version 2"
        )
