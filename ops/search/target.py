"""What is searched, what answers, and which part of the one the other covers."""

from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icepuffin.ops.catalog.bound_versions import DerivedVersion
from icepuffin.ops.index.definition import IndexDefinition
from icepuffin.ops.index.version_reader import OpenVersion
from icepuffin.ops.model import LiveFiles, StorageConfig
from icepuffin.ops.search.distributed import DistributedVersion
from icepuffin.ops.search.result import Coverage, StalePolicy
from icepuffin.ops.search.shards import LoadedVersion


@dataclass(frozen=True, slots=True)
class SearchTarget:
    """What is searched: one column of a table at one snapshot."""

    table: Table
    live: LiveFiles
    schema: Schema
    definition: IndexDefinition
    field_id: int
    storage: StorageConfig


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """What answers: an index version in memory or where tasks run, or none, and then every row is compared."""

    opened: OpenVersion | None
    loaded: LoadedVersion | DistributedVersion | None
    why: str
    """Why this one, in words"""
    warnings: tuple[str, ...]
    """What could not be used"""
    tier_why: str = "no index is loaded: data files are read here"
    """Why it is searched where it is"""

    @property
    def dims(self) -> int | None:
        """Of the vectors, where an index tells."""
        return self.loaded.dims if self.loaded else None

    @property
    def covered(self) -> frozenset[int]:
        """Numbers of the live files that the index answers for."""
        return self.loaded.covered if self.loaded else frozenset()


@dataclass(frozen=True, slots=True)
class SnapshotCoverage:
    """How what answers covers what is searched."""

    coverage: Coverage
    tail: tuple[int, ...]
    """Numbers of the live files that every search scans"""
    warnings: tuple[str, ...]
    """Of every answer"""

    @classmethod
    def of(cls, target: SearchTarget, source: VersionChoice, stale: StalePolicy) -> "SnapshotCoverage":
        """As the policy has it."""
        live = target.live
        lacking = tuple(number for number in range(len(live.files)) if number not in source.covered)
        if source.opened is None:
            return cls(Coverage.EXACT_SCAN, lacking, source.warnings)
        if is_own(source.opened.version, live.snapshot_id) and not lacking:
            return cls(Coverage.EXACT_VERSION, (), source.warnings)
        if stale is not StalePolicy.NEAREST_ONLY:
            return cls(Coverage.NEAREST_VERSION_AND_TAIL, lacking, source.warnings)
        rows = sum(live.files[number].record_count for number in lacking)
        missing = f"up to {rows:,} rows of snapshot {live.snapshot_id} are not in the index that answered"
        return cls(Coverage.NEAREST_VERSION_ONLY, (), (missing, *source.warnings) if lacking else source.warnings)


def is_own(version: DerivedVersion, snapshot_id: int) -> bool:
    """Whether the version was made for the snapshot; where that has expired, S' stands for it, with the same rows."""
    return snapshot_id in (version.base_snapshot_id, version.index_snapshot_id)
