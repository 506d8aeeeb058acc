"""Freshness: how far an index is behind its table, from metadata alone: a snapshot's, or its manifest list."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.current_versions import versions_of, why_given_up
from icepuffin.ops.messages import plural, readable_seconds
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.live_files import ManifestError, reading_manifests
from icepuffin.ops.table.manifests import lists_rows
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import DataSnapshot, data_snapshots
from icepuffin.ops.table.summaries import summary_of


@dataclass(frozen=True, slots=True)
class FreshnessLag:
    """How far one index is behind one ref."""

    snapshots: int
    """Data snapshots newer than the newest one that has a version or nothing to index."""
    minutes: float
    """Age of the oldest data snapshot without a version; 0 where every snapshot has one."""
    coverage: float
    """Share of the ref's snapshots that have a version or nothing to index."""
    newest: str
    """Id of the ref's newest data snapshot."""
    why: str = ""
    """Reason for which the newest data snapshot counts as one without a version, though it has any; else empty."""

    @property
    def in_words(self) -> str:
        if not self.snapshots:
            return "up to date"
        why = f"; {self.why}" if self.why else ""
        age = readable_seconds(60 * self.minutes)
        return f"{plural(self.snapshots, 'snapshot')} behind, the oldest of {age} ago{why}"


def index_lag(
    table: Table, index: IndexDefinition, ref: str, *, empty: Collection[int] = (), now: float | None = None
) -> FreshnessLag:
    """How far the index is behind a ref. A ref that does not exist yet is not behind.

    The newest snapshot that is said to have no rows is looked up in its manifest list: any writer may set a summary.
    empty: snapshots that are known to have nothing to index, beside those whose metadata shows it.
    now: seconds since the epoch.
    """
    if ref != "main" and ref not in table.metadata.refs:
        return FreshnessLag(0, 0.0, 1.0, "none")
    indexed = {version.base_snapshot_id for version in versions_of(table, index)} | set(empty)
    lineage = data_snapshots(table, ref)
    without, surely_without = nothing_to_index(table, index), nothing_to_index(table, index, proven=True)
    newest_first = enumerate(reversed(lineage))
    covered = (back for back, it in newest_first if it.snapshot_id in indexed or surely_without(it))
    behind = next(covered, len(lineage))
    seconds = (time.time() if now is None else now) - lineage[-behind].timestamp_ms / 1000 if behind else 0.0
    older = lineage[: len(lineage) - behind]
    share = sum(it.snapshot_id in indexed or without(it) for it in older) / len(lineage) if lineage else 1.0
    why = why_given_up(table, index.name, lineage[-1].snapshot_id) if behind else ""
    newest = str(lineage[-1].snapshot_id) if lineage else "none"
    return FreshnessLag(behind, max(0.0, seconds / 60), share, newest, why)


def missing_ref(table: Table, ref: str) -> str:
    """What is wrong where the ref that indexes follow does not exist, in words; empty where it does, or where the table
    has no snapshot yet.
    """
    if ref == "main" or ref in table.metadata.refs or not table.metadata.snapshots:
        return ""
    return f"the table has no branch or tag '{ref}', the first of watched_refs: no snapshot is indexed until it has"


def nothing_to_index(
    table: Table, index: IndexDefinition, *, proven: bool = False
) -> Callable[[DataSnapshot | Snapshot], bool]:
    """A test of a snapshot's metadata for nothing to index: no rows, or without the column of the index.

    proven: whether the manifest list must have no rows, too, where the summary says so.
    """
    now = table.schema().fields
    field_id = next((column.field_id for column in now if _names(index, column)), None)
    lacking = {
        schema_id
        for schema_id, schema in table.schemas().items()
        if field_id is not None and all(column.field_id != field_id for column in schema.fields)
    }
    snapshots = snapshots_by_id(table.metadata)

    def without(snapshot: DataSnapshot | Snapshot) -> bool:
        stored = snapshots[SnapshotId(snapshot.snapshot_id)]
        is_empty = summary_of(stored).get("total-records") == "0"
        return snapshot.schema_id in lacking or (is_empty and not (proven and _may_have_rows(table, stored)))

    return without


def _may_have_rows(table: Table, snapshot: Snapshot) -> bool:
    try:
        with reading_manifests(table, SnapshotId(snapshot.snapshot_id)):
            return lists_rows(table.io, snapshot)
    except ManifestError:  # the refresh that is due then says what is wrong with them
        return True


def _names(index: IndexDefinition, field: NestedField) -> bool:
    return field.field_id == index.field_id if index.field_id is not None else field.name == index.column
