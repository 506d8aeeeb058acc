"""Errors that icepuffin raises, in one place to catch them from.

All but the first two descend from `IcepuffinError`. Each message names the table, snapshot or file, and what to do.
"""

from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ops.binding.bindings import BindingError, LostRaceError, UnknownOutcomeError, UnsupportedCatalogError
from icepuffin.ops.binding.bound_versions import TagTakenError
from icepuffin.ops.binding.commit import ClockError, TableReplacedError
from icepuffin.ops.binding.files_folder import FilesFolderError
from icepuffin.ops.binding.statistics import StatisticsError
from icepuffin.ops.catalog.restricted_tables import RestrictedTableError
from icepuffin.ops.errors import CatalogUnavailableError, IcepuffinError, TableFaultError
from icepuffin.ops.index.definitions.index_definition import DefinitionError
from icepuffin.ops.index.errors import (
    CoverageError,
    GateFailedError,
    LayoutMisfitError,
    NotAnIndexError,
    ShardTooLargeError,
)
from icepuffin.ops.index.versions.tuning_record import TuningError
from icepuffin.ops.process.large_arrays import NoRoomError
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.search.errors import FilterError, IndexUnavailableError, QueryError, UnknownColumnError
from icepuffin.ops.search.measured.recall_reports import RecallReportError
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.storage import AccessError, StorageError
from icepuffin.ops.table.format_versions import UnsupportedFormatError
from icepuffin.ops.table.live_files import EqualityDeletesError, ManifestError, RepeatedFileError
from icepuffin.ops.table.snapshots import PartialMetadataError, TableUnavailableError, UnknownSnapshotError
from icepuffin.ops.tasks.sketches.sketch_types import SketchTypeError
from icepuffin.ops.tasks.task_runner import RunnerError
from icepuffin.ops.theta.errors import ThetaError
from icepuffin.orchestration.settings import SettingsError
from icepuffin.puffin.errors import PuffinError

__all__ = [
    "AccessError",
    "BindingError",
    "CatalogUnavailableError",
    "ClockError",
    "CoverageError",
    "DataFileError",
    "DefinitionError",
    "EqualityDeletesError",
    "FilesFolderError",
    "FilterError",
    "GateFailedError",
    "IcepuffinError",
    "IndexUnavailableError",
    "KernelError",
    "LayoutMisfitError",
    "LostRaceError",
    "ManifestError",
    "NoRoomError",
    "NotAnIndexError",
    "NotIndexableError",
    "PartialMetadataError",
    "PuffinError",
    "QueryError",
    "RecallReportError",
    "RepeatedFileError",
    "RestrictedTableError",
    "RunnerError",
    "SettingsError",
    "ShardTooLargeError",
    "SketchTypeError",
    "SqlError",
    "StatisticsError",
    "StorageError",
    "TableFaultError",
    "TableReplacedError",
    "TableUnavailableError",
    "TagTakenError",
    "ThetaError",
    "TuningError",
    "UnknownColumnError",
    "UnknownOutcomeError",
    "UnknownSnapshotError",
    "UnsupportedCatalogError",
    "UnsupportedFormatError",
    "VectorColumnError",
]
