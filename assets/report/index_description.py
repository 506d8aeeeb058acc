"""What a page says of an index: its versions, one of them in detail, how far behind it is. Reads no vector."""

from dataclasses import dataclass

from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.errors import NotAnIndexError
from icepuffin.ops.index.planning.current_versions import versions_of
from icepuffin.ops.index.upkeep.freshness import FreshnessLag, index_lag
from icepuffin.ops.index.versions.tuning_record import TuningError, TuningRecord, find_record
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.search.overview import Overview, overview


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """An index and one version of it."""

    definition: IndexDefinition
    versions: tuple[DerivedVersion, ...]
    """Versions in the table's metadata, oldest first"""
    overview: Overview | None
    """The version that is shown; None where there is none, or it cannot be read"""
    warnings: tuple[str, ...]
    """Reasons why the version, or the record of tuning, cannot be read"""
    tuning: TuningRecord | None
    """Recall by queries of a user's; None where none was measured"""
    lag: FreshnessLag
    """Distance from the ref that the index follows"""

    @property
    def tail(self) -> int:
        """Rows in files of the head that the version lacks."""
        return self.overview.rows - self.overview.rows_covered if self.overview else 0


def describe_index(
    table: Table, definition: IndexDefinition, storage: StorageConfig, ref: str, version: DerivedVersion | None = None
) -> IndexDescription:
    """An index with the version at its tag, or the one that is given. What cannot be read is a warning."""
    shown, tuning, warnings = None, None, list[str]()
    try:
        shown = overview(table, definition, storage, version=version, ref=ref)
    except NotAnIndexError as error:
        warnings.append(str(error))
    try:
        tuning = find_record(table, definition.name)
    except TuningError as error:
        warnings.append(str(error))
    lag = index_lag(table, definition, ref)
    return IndexDescription(definition, versions_of(table, definition), shown, tuple(warnings), tuning, lag)
