"""Errors that icepuffin raises, in one place to catch them from.

All but the first two descend from `IcepuffinError`. Each message names the table, snapshot or file, and what to do.
"""

from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ops.catalog.bindings import BindingError, LostRaceError, UnknownOutcomeError, UnsupportedCatalogError
from icepuffin.ops.catalog.bound_versions import TagTakenError
from icepuffin.ops.catalog.commit import ClockError, TableReplacedError
from icepuffin.ops.catalog.files_folder import FilesFolderError
from icepuffin.ops.catalog.format_versions import UnsupportedFormatError
from icepuffin.ops.catalog.live_files import EqualityDeletesError, ManifestError, RepeatedFileError
from icepuffin.ops.catalog.restricted_tables import RestrictedTableError
from icepuffin.ops.catalog.snapshots import PartialMetadataError, TableUnavailableError, UnknownSnapshotError
from icepuffin.ops.catalog.statistics import StatisticsError
from icepuffin.ops.datafile import DataFileError
from icepuffin.ops.errors import CatalogUnavailableError, IcepuffinError
from icepuffin.ops.index.definition import DefinitionError
from icepuffin.ops.index.errors import (
    CoverageError,
    GateFailedError,
    LayoutMisfitError,
    NotAnIndexError,
    ShardTooLargeError,
)
from icepuffin.ops.index.tuning_record import TuningError
from icepuffin.ops.large_arrays import NoRoomError
from icepuffin.ops.search.errors import FilterError, IndexUnavailableError, QueryError, UnknownColumnError
from icepuffin.ops.search.recall_reports import RecallReportError
from icepuffin.ops.sql.errors import NotIndexableError, SqlError
from icepuffin.ops.storage import AccessError, StorageError
from icepuffin.ops.table_faults import TableFaultError
from icepuffin.ops.tasks.runner import RunnerError
from icepuffin.ops.tasks.sketch_types import SketchTypeError
from icepuffin.ops.theta.errors import ThetaError
from icepuffin.ops.vector_column import VectorColumnError
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
