"""What is searched, and what answers."""

from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from ops.catalog.versions import DerivedVersion
from ops.index.definition import IndexDefinition
from ops.index.versions import OpenVersion
from ops.model import LiveFiles, StorageConfig
from ops.probe.distributed import RemoteVersion
from ops.probe.loaded import LoadedVersion


@dataclass(frozen=True, slots=True)
class Target:
    """What is searched: one column of a table at one snapshot."""

    table: Table
    live: LiveFiles
    schema: Schema
    definition: IndexDefinition
    field_id: int
    storage: StorageConfig


@dataclass(frozen=True, slots=True)
class Source:
    """What answers: an index version in memory or where tasks run, or none, and then every row is compared."""

    opened: OpenVersion | None
    loaded: LoadedVersion | RemoteVersion | None
    why: str
    """Why this one, in words"""
    warnings: tuple[str, ...]
    """What could not be used"""
    tier_why: str = "no index is loaded: data files are read here"
    """Why it is searched where it is"""


def is_own(version: DerivedVersion, snapshot_id: int) -> bool:
    """Whether the version was made for the snapshot; where that has expired, S' stands for it, with the same rows."""
    return snapshot_id in (version.base_snapshot_id, version.derived_snapshot_id)
