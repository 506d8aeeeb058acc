"""Errors that icepuffin raises, in one place to catch them from.

They are grouped by what a caller does: `ArgumentError` (call otherwise), `TableStateError` (change the table first),
`UnreachableError` (look after the catalog or store, try again), `BindingError` (a commit was not made: others may have
been first), `FileDamageError` (make or restore a file), `LimitError` (give more room, or set another limit). All of
these are `IcepuffinError`, whose `retryable` says whether the same call might succeed later. `KernelError` and
`PuffinError` are of single arrays and files, and are `ValueError`. Each message names the table, snapshot or file, and
what to do.
"""

from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ops.binding.bound_versions import TagTakenError
from icepuffin.ops.binding.errors import BindingError, LostRaceError, UnknownOutcomeError, UnsupportedCatalogError
from icepuffin.ops.catalog.restricted_tables import RestrictedTableError
from icepuffin.ops.errors import (
    ArgumentError,
    CatalogUnavailableError,
    FileDamageError,
    IcepuffinError,
    LimitError,
    TableFaultError,
    TableStateError,
    UnreachableError,
)
from icepuffin.ops.index.definitions.index_definition import DefinitionError
from icepuffin.ops.index.errors import (
    CoverageError,
    GateFailedError,
    NotAnIndexError,
    ShardTooLargeError,
)
from icepuffin.ops.process.large_arrays import NoRoomError
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.search.errors import FilterError, IndexUnavailableError, QueryError, UnknownColumnError
from icepuffin.ops.sql.errors import SqlError
from icepuffin.ops.storage import AccessError, StorageError
from icepuffin.ops.table.format_versions import UnsupportedFormatError
from icepuffin.ops.table.live_files import EqualityDeletesError, ManifestError
from icepuffin.ops.table.snapshots import TableUnavailableError, UnknownSnapshotError
from icepuffin.ops.tasks.task_runner import RunnerError
from icepuffin.ops.theta.errors import ThetaError
from icepuffin.orchestration.overrides import SettingsError
from icepuffin.puffin.errors import PuffinError

__all__ = [
    "AccessError",
    "ArgumentError",
    "BindingError",
    "CatalogUnavailableError",
    "CoverageError",
    "DataFileError",
    "DefinitionError",
    "EqualityDeletesError",
    "FileDamageError",
    "FilterError",
    "GateFailedError",
    "IcepuffinError",
    "IndexUnavailableError",
    "KernelError",
    "LimitError",
    "LostRaceError",
    "ManifestError",
    "NoRoomError",
    "NotAnIndexError",
    "PuffinError",
    "QueryError",
    "RestrictedTableError",
    "RunnerError",
    "SettingsError",
    "ShardTooLargeError",
    "SqlError",
    "StorageError",
    "TableFaultError",
    "TableStateError",
    "TableUnavailableError",
    "TagTakenError",
    "ThetaError",
    "UnknownColumnError",
    "UnknownOutcomeError",
    "UnknownSnapshotError",
    "UnreachableError",
    "UnsupportedCatalogError",
    "UnsupportedFormatError",
    "VectorColumnError",
]
