"""What a page says of a table: its snapshots, its indexes, its distinct values, what is behind. Reads no vector."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from shlex import quote

from pyiceberg.table import Table

from icepuffin.assets.newest_snapshots import SnapshotEntry, newest_snapshots
from icepuffin.assets.report.index_description import IndexDescription, describe_index
from icepuffin.assets.report.value_counts import ValueCounts, value_counts
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.definition_columns import as_named_in
from icepuffin.ops.index.upkeep.freshness import missing_ref
from icepuffin.ops.messages import plural
from icepuffin.ops.model import SnapshotId, StorageConfig
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import head_of, table_name
from icepuffin.ops.table.summaries import snapshot_count
from icepuffin.ops.theta.errors import LostStatisticsError
from icepuffin.ops.theta.ndv import ndv_at
from icepuffin.ops.theta.snapshot_statistics import SnapshotStatistics, statistics_beside_ndvs

MAX_SNAPSHOTS = 500
"""Snapshots of a page, at most: the newest"""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Something that is behind, or wrong, and what mends it."""

    headline: str
    """State of the table in a few words"""
    text: str
    command: str = ""
    """Command of a shell; empty where none helps"""
    is_fault: bool = False
    """Whether something cannot be read, which waiting does not mend"""


@dataclass(frozen=True, slots=True)
class TableReport:
    """The state of a table at one time."""

    table: str
    location: str
    made: datetime
    """Time at which the table was read, in UTC"""
    head: SnapshotEntry | None
    """Head of the ref that indexes follow; None where it has none yet"""
    snapshots: tuple[SnapshotEntry, ...]
    """The newest data snapshots, oldest first"""
    snapshot_count: int
    """Number of all data snapshots"""
    indexes: tuple[IndexDescription, ...]
    values: Mapping[str, tuple[ValueCounts, ...]]
    """Rows of the head by the values of filter columns, by index"""
    distinct: Mapping[str, Mapping[SnapshotId, int]]
    """Numbers of distinct values by column, and by the snapshots that have sketches of their own"""
    rows_in_files: Mapping[int, int]
    """Rows of the data files by snapshot id, deleted ones included; 0 where its summary does not tell"""
    statistics: SnapshotStatistics | None
    """Statistics of the head, where it has some beside numbers of distinct values"""
    shortfalls: tuple[Shortfall, ...]

    def __repr__(self) -> str:
        counts = f"{plural(self.snapshot_count, 'snapshot')}, {plural(len(self.indexes), 'index')}"
        return f"{type(self).__name__}({self.table!r}, {counts})"

    @property
    def index_bytes(self) -> int:
        """Bytes of all versions, those of a shared pack once."""
        versions = [version for index in self.indexes for version in index.versions]
        packs = {pack.path: pack.size for version in versions for pack in version.packs}
        return sum(version.file_size or 0 for version in versions) + sum(packs.values())


def table_report(table: Table, spec: TableSpec, storage: StorageConfig) -> TableReport:
    """What there is to say of a loaded table. Reads metadata, manifests of the head, its statistics file where that has
    more than distinct values, and of each index its map and the columns in filters.
    """
    entries = newest_snapshots(table, spec)
    shown = tuple(reversed(entries[:MAX_SNAPSHOTS]))
    indexes, values = [], {}
    for definition in (as_named_in(index, table.schema()) for index in spec.indexes):
        index = describe_index(table, definition, storage, spec.first_ref)
        try:
            counts = value_counts(table, definition.name, storage, spec.first_ref) if index.overview else ()
            values[definition.name] = tuple(counts)
        except IcepuffinError as error:
            index = replace(index, warnings=(*index.warnings, str(error)))
        indexes.append(index)
    head_id = head_of(table, spec.first_ref)
    head = next((it for it in entries if it.snapshot_id == head_id), None)
    statistics, lost = None, list[Shortfall]()
    if head is not None:
        try:
            statistics = statistics_beside_ndvs(table, head.snapshot_id, table.schema(), storage)
        except LostStatisticsError as error:
            again = f"icepuffin refresh {quote(table_name(table))} --snapshot {head.snapshot_id}"
            lost.append(Shortfall("Statistics cannot be read", str(error), again, is_fault=True))
    return TableReport(
        table=table_name(table),
        location=table.location(),
        made=datetime.now(UTC),
        head=head,
        snapshots=shown,
        snapshot_count=len(entries),
        indexes=tuple(indexes),
        values=values,
        distinct=_distinct(table, shown),
        rows_in_files={it: snapshot_count(of, "total-records") for it, of in snapshots_by_id(table.metadata).items()},
        statistics=statistics,
        shortfalls=(*_shortfalls(table, spec, head, indexes), *lost),
    )


def _distinct(table: Table, entries: Sequence[SnapshotEntry]) -> dict[str, dict[SnapshotId, int]]:
    """By the columns' names now; columns that are gone are left out, and numbers that other engines have counted."""
    columns: dict[str, dict[SnapshotId, int]] = {}
    for entry in entries:
        if entry.theta_sketches:
            for name, column in ndv_at(table, entry.snapshot_id, table.schema()).entries.items():
                if column.fresh:
                    columns.setdefault(name, {})[entry.snapshot_id] = column.ndv
    return columns


def _shortfalls(
    table: Table, spec: TableSpec, head: SnapshotEntry | None, indexes: Sequence[IndexDescription]
) -> Iterator[Shortfall]:
    name = table_name(table)
    refresh = f"icepuffin refresh {quote(name)}"
    if missing := missing_ref(table, spec.first_ref):
        yield Shortfall("Nothing to follow", missing)
    elif head is None:
        yield Shortfall("No snapshot yet", "The table has no snapshot yet: there is nothing to count or to index.")
    left_out = spec.left_out(table)
    for error in left_out.values():
        yield Shortfall("An index is left out", str(error), is_fault=True)
    if not indexes and not left_out:
        create = f"icepuffin index create {quote(name)} --name NAME --column COLUMN"
        yield Shortfall("No index", "The table has no index: every search is an exact scan.", create)
    for index in indexes:
        of_index, lag = f"Index {index.definition.name}", index.lag
        version = tagged_version(table, index.definition.name)
        anew = f"{refresh} --snapshot {version.base_snapshot_id} --verify" if version and not index.overview else ""
        for warning in index.warnings:
            yield Shortfall("Something of an index cannot be read", f"{of_index}: {warning}", anew, is_fault=True)
        if not lag.snapshots:
            continue
        tail = f"; {plural(index.tail, 'row')} in files that searches scan" if index.tail else ""
        text = f"{of_index} is {lag.in_words}{tail}." if index.versions else f"{of_index} has no version yet."
        yield Shortfall(f"{plural(lag.snapshots, 'snapshot')} behind", text, refresh)
    if head is not None and "theta_sketches" in head.missing:
        yield Shortfall("Sketches are missing", "The newest snapshot has no theta sketches.", refresh)
