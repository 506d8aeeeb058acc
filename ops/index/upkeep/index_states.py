"""The indexes of a table as they are now: definition, versions, lag. From metadata alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.catalog.read_restrictions import require_table
from icepuffin.ops.index.definitions.ddl import list_definitions
from icepuffin.ops.index.definitions.definition_columns import as_named_in
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.current_versions import versions_of
from icepuffin.ops.index.upkeep.freshness import FreshnessLag, index_lag, missing_ref
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.presentation import Grid, Presentation

_COLUMNS = ("name", "column", "metric", "method", "versions", "snapshot_id")
"""What 80 columns of a terminal have room for"""


@dataclass(frozen=True, slots=True)
class IndexState:
    """One index of a table, and how far it is."""

    definition: IndexDefinition
    """The definition, with the names that its columns have now"""
    versions: tuple[SnapshotId, ...]
    """Ids of the data snapshots that have a version, the oldest version first"""
    snapshot_id: SnapshotId | None
    """Data snapshot of the version at the index tag; None where there is none"""
    lag: FreshnessLag | None
    """Distance from the ref that the index follows; None where the table has no such ref"""


class IndexList(Presentation, tuple[IndexState, ...]):
    """The indexes of a table, sorted by name."""

    __slots__ = ()

    def headline(self) -> str:
        return ", ".join(state.definition.name for state in self)

    def grids(self) -> Iterator[Grid]:
        yield self.grid("")

    def grid(self, title: str) -> Grid:
        """A row for each index."""
        rows = [
            (
                *(str(getattr(state.definition, name)) for name in _COLUMNS[:4]),
                f"{len(state.versions)}"
                + (f" ({state.lag.snapshots} behind)" if state.lag and state.lag.snapshots else ""),
                state.snapshot_id or "-",
            )
            for state in self
        ]
        return Grid(title, rows, _COLUMNS)


def list_indexes(table: Table, *, ref: str = "main") -> IndexList:
    """The indexes that a table's properties define, how many versions each has, and how far it is behind.

    Reads the metadata that `table` was loaded with, and no file but the manifest list of a newest snapshot that is said
    to have no rows. An index whose definition this release does not understand is left out, with a warning in the log.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table, loaded from its catalog.
    ref : str
        Branch that the indexes follow.

    Returns
    -------
    tuple of IndexState
        By name; `definition` (with the names that its columns have now), `versions` (ids of the data snapshots that
        have one), `snapshot_id` (of the version at the index tag) and `lag`: `lag.snapshots` newer ones without a
        version, the oldest of `lag.minutes` ago.

    Examples
    --------
    >>> [(index.definition.name, len(index.versions), index.lag.snapshots) for index in icepuffin.list_indexes(table)]
    [('embedding', 1, 0)]
    """
    require_table(table, "list_indexes")
    return IndexList(state_of(table, definition, ref) for definition in list_definitions(table))


def state_of(table: Table, definition: IndexDefinition, ref: str) -> IndexState:
    """One index, which the settings may define in place of the table."""
    tagged = tagged_version(table, definition.name)
    return IndexState(
        as_named_in(definition, table.schema()),
        tuple(version.base_snapshot_id for version in versions_of(table, definition)),
        tagged.base_snapshot_id if tagged else None,
        None if missing_ref(table, ref) else index_lag(table, definition, ref),
    )
