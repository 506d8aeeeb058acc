"""Bindings of small files that nobody reads, and entries of statistics."""

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile

from icepuffin.ops.binding.derived_snapshots import Binding, version_updates
from icepuffin.ops.binding.joint_commit import commit_together
from icepuffin.ops.binding.statistics import StatisticsPart
from icepuffin.ops.index.versions.version_format import FORMAT_VERSION
from icepuffin.ops.model import SnapshotId, StorageConfig
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.blob_kind import BlobKind, index_tag
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.puffin import PuffinWriter
from tests.conftest import STORAGE


def binding(
    table: Table,
    number: int = 0,
    *,
    name: str = "e",
    tag: str | None = None,
    expected: int | None = None,
    storage: StorageConfig = STORAGE,
) -> Binding:
    """A binding of a new, empty Puffin file to the newest data snapshot."""
    path = f"{table.location()}/metadata/ann-{name}-{number}.puffin"
    with open_storage(path, storage).open_output(path) as sink:
        info = PuffinWriter(sink).finish()
    base = data_snapshots(table)[-1].snapshot_id
    build = f"{FORMAT_VERSION}-{number:032x}"
    return Binding(
        BlobKind.INDEX, name, tag or index_tag(name), base, build, path, info.file_size, info.footer_size, expected
    )


def bind_as_before(table: Table, name: str = "e") -> SnapshotId:
    """Bind an empty file to the newest data snapshot as commit 62dca91c did: without a kind, with a parent, and with a
    build id that names no format. Returns the index snapshot.
    """
    made, base = binding(table, name=name), table.metadata.snapshot_by_id(data_snapshots(table)[-1].snapshot_id)
    assert base is not None
    snapshot_id = SnapshotId(base.snapshot_id ^ 1)
    snapshot = base.model_copy(
        update={
            "snapshot_id": snapshot_id,
            "parent_snapshot_id": base.snapshot_id,
            "sequence_number": table.metadata.next_sequence_number(),
            "timestamp_ms": table.metadata.last_updated_ms + 1,
            "summary": Summary(
                Operation.REPLACE,
                **{
                    "total-records": "60",
                    "ann.index": name,
                    "ann.took": '{"action":"built","runner":"LocalRunner","threads":1,"seconds":1.0,"read":60}',
                    "ann.sizes": '{"definition":"a25de9e770b546aa","dims":8,"shards":1,"rows":60,"largest":60}',
                    "ann.distances": "3 l2 column diskann",
                    "statistics-file": made.puffin_path,
                    "ann.base-snapshot-id": str(base.snapshot_id),
                    "ann.build-id": "f791284f8a57bbbd772a9eb69ecc3827c713ece2735ee8067bfd6db1bb9c1d13",
                },
            ),
        }
    )
    table.catalog.commit_table(table, (), version_updates(made, snapshot))
    table.refresh()
    return snapshot_id


def register_statistics(
    table: Table,
    snapshot_id: int,
    *,
    path: str,
    file_size: int,
    footer_size: int,
    blobs: list[BlobMetadata],
    over: str | None,
) -> bool:
    """Put a file into the slot of a snapshot, in a commit of its own; False where the slot holds another file."""
    entry = StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path=path,
        file_size_in_bytes=file_size,
        file_footer_size_in_bytes=footer_size,
        blob_metadata=blobs,
    )
    part = StatisticsPart(entry, over)
    commit_together(table, (part,))
    return part.outcome()
