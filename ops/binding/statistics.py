"""The statistics slots of a data snapshot: one file per snapshot, and one of its partitions; the last writer wins.
Iceberg's protocol has no compare-and-swap for them.
"""

from collections.abc import Hashable
from typing import Any, ClassVar

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.statistics import StatisticsCommonFields, StatisticsFile
from pyiceberg.table.update import (
    RemovePartitionStatisticsUpdate,
    SetPartitionStatisticsUpdate,
    SetStatisticsUpdate,
    TableUpdate,
)

from icepuffin.ops.binding.assertions import unchanged
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.binding.joint_commit import Change, CommitPart
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.metadata_memo import partition_statistics_by_id, snapshots_by_id, statistics_by_id
from icepuffin.ops.table.snapshots import find_snapshot, table_name


def find_statistics(table: Table, snapshot_id: SnapshotId) -> StatisticsFile | None:
    """The entry of a snapshot, whoever registered it; None where there is none."""
    return statistics_by_id(table.metadata).get(snapshot_id)


class StatisticsPart(CommitPart[bool]):
    """The part of a commit that puts a file into the slot of a data snapshot, in place of the file `over`.

    Its outcome is False where the slot holds another file, written before our commit or right after it: read that one
    first. A server overwrites a writer during the commit itself, and may take an entry of a snapshot that expires
    meanwhile, which nothing removes then. Where PyIceberg writes the metadata, both are seen.
    """

    _kind: ClassVar = "statistics"
    _entries: ClassVar[Any] = staticmethod(statistics_by_id)
    _switch: ClassVar = 'statistics.ndv = "off"'

    def __init__(self, entry: StatisticsCommonFields, over: str | None) -> None:
        super().__init__()
        self.entry = entry
        self._over = over

    def find(self, table: Table) -> bool | None:
        """Raises UnknownSnapshotError where the snapshot expired, BindingError where the slot holds another file and
        an answer was lost: the commit may land yet, so the file must stay.
        """
        find_snapshot(table, SnapshotId(self.entry.snapshot_id))
        registered = self._path_in(table.metadata)
        if registered == self.entry.statistics_path:
            return True
        return None if registered == self._over else self._overtaken(table)

    def change(self, table: Table) -> Change:
        snapshot_id = SnapshotId(self.entry.snapshot_id)
        seen = unchanged(
            table,
            f"snapshot {snapshot_id} with the file of its {self._kind}",
            lambda now: (snapshot_id in snapshots_by_id(now), self._slot(now)),
        )
        return self._updates(table), (seen,)

    def _updates(self, table: Table) -> tuple[TableUpdate, ...]:
        return (SetStatisticsUpdate(statistics=self.entry),)

    def _slot(self, metadata: TableMetadata) -> Hashable:
        """What the updates are made for."""
        return self._path_in(metadata)

    def verify(self, table: Table) -> bool:
        """Raises what `find` raises, and BindingError where the catalog did not take it."""
        is_kept = self.find(table)
        if is_kept is None:
            raise BindingError(
                f"{table_name(table)}: catalog {table.catalog.name!r} accepted {self._kind} of "
                f"{self.entry.snapshot_id} and did not keep them; use another catalog, or set {self._switch} for the "
                "table"
            )
        return is_kept

    def failure(self, table: Table, attempts: int) -> IcepuffinError:
        return BindingError(
            f"{table_name(table)}: {self._kind} of {self.entry.snapshot_id} not set in {attempts} attempts; try again"
        )

    def _overtaken(self, table: Table) -> bool:
        if self.is_unanswered:
            raise BindingError(
                f"{table_name(table)}: the catalog's answer was lost, and somebody else wrote {self._kind} of "
                f"{self.entry.snapshot_id} meanwhile, which are kept; run it again"
            )
        return False

    def _path_in(self, metadata: TableMetadata) -> str | None:
        entry = self._entries(metadata).get(self.entry.snapshot_id)
        return entry.statistics_path if entry else None


class PartitionStatisticsPart(StatisticsPart):
    """The same for the slot of partition statistics. Entries go whose snapshots have expired: PyIceberg leaves them."""

    _kind: ClassVar = "partition statistics"
    _entries: ClassVar[Any] = staticmethod(partition_statistics_by_id)
    _switch: ClassVar = "statistics.partitions = false"

    def _updates(self, table: Table) -> tuple[TableUpdate, ...]:
        # a server removes them itself, and may show fewer snapshots than there are
        left = _left_by_expiry(table.metadata) if isinstance(table.catalog, MetastoreCatalog) else ()
        removed = (RemovePartitionStatisticsUpdate(snapshot_id=item) for item in left)
        return (*removed, SetPartitionStatisticsUpdate(partition_statistics=self.entry))

    def _slot(self, metadata: TableMetadata) -> Hashable:
        return self._path_in(metadata), _left_by_expiry(metadata)


def _left_by_expiry(metadata: TableMetadata) -> tuple[int, ...]:
    """Snapshots that have expired, and whose partition statistics have an entry still."""
    return tuple(sorted(partition_statistics_by_id(metadata).keys() - snapshots_by_id(metadata).keys()))
