"""What a search covers: the column and snapshot that are searched, the version that answers, and the rest."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.messages import plural
from icepuffin.ops.model import FileNumber, LiveFiles, SnapshotId, StorageConfig
from icepuffin.ops.search.arguments import field_ids
from icepuffin.ops.search.indexed.distributed_search import DistributedVersion
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.restriction import Restriction
from icepuffin.ops.search.result import Coverage, StalePolicy


@dataclass(frozen=True, slots=True)
class SearchTarget:
    """One column of a table at one snapshot."""

    table: Table
    live: LiveFiles
    schema: Schema
    """Schema of the snapshot"""
    field_id: int
    """Field id of the vector column"""
    metric: Metric
    definition: IndexDefinition | None
    """Index to search; None where every row is compared, whatever indexes there are"""
    storage: StorageConfig
    restriction: Restriction | None = None
    """Rows and columns that its reader may see; None where these are all"""

    @property
    def visible(self) -> Schema:
        """Schema by which rows are returned: that of the snapshot, without masked columns."""
        return self.schema if self.restriction is None else self.restriction.visible

    @property
    def hides_rows(self) -> bool:
        """Whether the catalog hides rows from the reader."""
        return self.restriction is not None and self.restriction.row_filter is not None

    def returned(self, columns: Sequence[str] | None) -> list[int]:
        """Field ids of the columns to return, as of `field_ids`. Raises RestrictedTableError for a masked one, too."""
        if self.restriction is not None and not isinstance(columns, str | None):
            self.restriction.require_visible(columns)
        return field_ids(self.visible, columns, self.live.table)


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """The index version that answers, in memory or where tasks run. Without one, every row is compared."""

    opened: OpenVersion | None
    loaded: LoadedVersion | DistributedVersion | None
    why: str
    """Reason for this choice, in words"""
    warnings: tuple[str, ...]
    """Versions that could not be used"""
    tier_why: str = "no index is loaded: data files are read here"
    """Reason for the place where the version is searched, in words"""

    @property
    def is_of_balls(self) -> bool:
        """Whether the version has no graphs: its balls rule files out, and all rows of the others are compared."""
        return self.opened is not None and not self.opened.definition.has_graphs

    @property
    def graphs(self) -> LoadedVersion | DistributedVersion | None:
        """The version whose graphs are searched."""
        return None if self.is_of_balls else self.loaded

    @property
    def here(self) -> LoadedVersion | None:
        """The version whose graphs are searched in this process."""
        graphs = self.graphs
        return graphs if isinstance(graphs, LoadedVersion) else None

    @property
    def remote(self) -> DistributedVersion | None:
        """The version whose graphs are searched by tasks."""
        graphs = self.graphs
        return graphs if isinstance(graphs, DistributedVersion) else None

    @property
    def dims(self) -> int | None:
        """Dimensions of the vectors, where an index knows them."""
        return self.loaded.dims if self.loaded else None

    @property
    def covered(self) -> frozenset[FileNumber]:
        """File numbers of the live files that the version covers."""
        return self.loaded.covered if self.loaded else frozenset()


@dataclass(frozen=True, slots=True)
class SnapshotCoverage:
    """How the version that answers covers the snapshot that is searched."""

    coverage: Coverage
    tail: tuple[FileNumber, ...]
    """File numbers of the freshness tail, which every search scans"""
    warnings: tuple[str, ...]
    """Warnings that every answer has"""

    @classmethod
    def of(cls, target: SearchTarget, choice: VersionChoice, stale: StalePolicy) -> "SnapshotCoverage":
        """The coverage that the policy gives."""
        live = target.live
        uncovered = tuple(FileNumber(number) for number in range(len(live.files)) if number not in choice.covered)
        if choice.opened is None:
            return cls(Coverage.EXACT_SCAN, uncovered, choice.warnings)
        if is_own(choice.opened.bound, live.snapshot_id) and not uncovered:
            return cls(Coverage.EXACT_VERSION, (), choice.warnings)
        if stale is not StalePolicy.NEAREST_ONLY:
            return cls(Coverage.NEAREST_VERSION_AND_TAIL, uncovered, choice.warnings)
        rows = "rows" if target.hides_rows else f"up to {plural(live.record_count_of(uncovered), 'row')}"
        missing = f"{rows} of snapshot {live.snapshot_id} are not in the index that answered"
        warnings = (missing, *choice.warnings) if uncovered else choice.warnings
        return cls(Coverage.NEAREST_VERSION_ONLY, (), warnings)


def is_own(version: DerivedVersion, snapshot_id: SnapshotId) -> bool:
    """Whether the version was made for the snapshot. The index snapshot counts too: it has the same rows, and stands
    for the data snapshot once that has expired.
    """
    return snapshot_id in (version.base_snapshot_id, version.index_snapshot_id)
