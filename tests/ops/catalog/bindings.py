"""Bindings of small files that nobody reads, and entries of statistics."""

from pyiceberg.table import Table
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile

from icepuffin.ops.binding.derived_snapshots import Binding
from icepuffin.ops.binding.joint_commit import commit_together
from icepuffin.ops.binding.statistics import StatisticsPart
from icepuffin.ops.model import StorageConfig
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
    build = f"build {number}"
    return Binding(
        BlobKind.INDEX, name, tag or index_tag(name), base, build, path, info.file_size, info.footer_size, expected
    )


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
