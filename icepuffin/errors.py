"""Errors that icepuffin raises, in one place to catch them from.

They are grouped by what a caller does: `ArgumentError` (call otherwise), `TableStateError` (change the table first),
`UnreachableError` (look after the catalog or store, try again), `BindingError` (a commit was not made: others may have
been first), `FileDamageError` (make or restore a file), `LimitError` (give more room, or set another limit). All of
these are `IcepuffinError`, whose `retryable` says whether the same call might succeed later. `KernelError` and
`PuffinError` are of single arrays and files, and are `ValueError`. Each message names the table, snapshot or file, and
what to do.
"""

from icepuffin.ann_kernels.errors import KernelError as KernelError
from icepuffin.ops.binding.bound_versions import TagTakenError as TagTakenError
from icepuffin.ops.binding.errors import (
    BindingError as BindingError,
    LostRaceError as LostRaceError,
    UnknownOutcomeError as UnknownOutcomeError,
    UnsupportedCatalogError as UnsupportedCatalogError,
)
from icepuffin.ops.catalog.restricted_tables import RestrictedTableError as RestrictedTableError
from icepuffin.ops.errors import (
    ArgumentError as ArgumentError,
    CatalogUnavailableError as CatalogUnavailableError,
    FileDamageError as FileDamageError,
    IcepuffinError as IcepuffinError,
    LimitError as LimitError,
    TableFaultError as TableFaultError,
    TableStateError as TableStateError,
    UnreachableError as UnreachableError,
)
from icepuffin.ops.index.definitions.index_definition import DefinitionError as DefinitionError
from icepuffin.ops.index.errors import (
    CoverageError as CoverageError,
    GateFailedError as GateFailedError,
    NotAnIndexError as NotAnIndexError,
    ShardTooLargeError as ShardTooLargeError,
)
from icepuffin.ops.process.large_arrays import NoRoomError as NoRoomError
from icepuffin.ops.rows.datafile import DataFileError as DataFileError
from icepuffin.ops.rows.vector_column import VectorColumnError as VectorColumnError
from icepuffin.ops.search.errors import (
    FilterError as FilterError,
    IndexUnavailableError as IndexUnavailableError,
    QueryError as QueryError,
    UnknownColumnError as UnknownColumnError,
)
from icepuffin.ops.sql.errors import SqlError as SqlError
from icepuffin.ops.storage import AccessError as AccessError, StorageError as StorageError
from icepuffin.ops.table.format_versions import UnsupportedFormatError as UnsupportedFormatError
from icepuffin.ops.table.live_files import EqualityDeletesError as EqualityDeletesError, ManifestError as ManifestError
from icepuffin.ops.table.snapshots import (
    TableUnavailableError as TableUnavailableError,
    UnknownSnapshotError as UnknownSnapshotError,
)
from icepuffin.ops.tasks.task_runner import RunnerError as RunnerError
from icepuffin.ops.theta.errors import ThetaError as ThetaError
from icepuffin.orchestration.overrides import SettingsError as SettingsError
from icepuffin.puffin.errors import PuffinError as PuffinError
