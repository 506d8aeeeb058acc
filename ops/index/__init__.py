"""ANN indexes of a table: define, materialise for a snapshot, keep in shape, drop."""

from icepuffin.ops.index.ddl import create_index, drop_index, list_definitions, load_definition
from icepuffin.ops.index.definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.errors import CoverageError, GateFailedError, NotAnIndexError
from icepuffin.ops.index.gc import collect_garbage
from icepuffin.ops.index.materialize import materialize_index, rebuild_tombstoned_shards
from icepuffin.ops.index.plan import plan_version
from icepuffin.ops.index.report import Action, GcReport, IndexReport, ShardReport

__all__ = [
    "Action",
    "CoverageError",
    "DefinitionError",
    "GateFailedError",
    "GcReport",
    "IndexDefinition",
    "IndexReport",
    "NotAnIndexError",
    "ShardReport",
    "collect_garbage",
    "create_index",
    "drop_index",
    "list_definitions",
    "load_definition",
    "materialize_index",
    "plan_version",
    "rebuild_tombstoned_shards",
]
