"""ANN indexes of a table: define, materialise for a snapshot, keep in shape, drop."""

from icepuffin.ops.index.definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.errors import CoverageError, GateFailedError, NotAnIndexError
from icepuffin.ops.index.materialize import materialize_index
from icepuffin.ops.index.plan import plan_version
from icepuffin.ops.index.report import Action, GcReport, IndexReport, ShardReport
from icepuffin.ops.index.upkeep import collect_garbage, create, drop, list_definitions, load_definition, maintain

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
    "create",
    "drop",
    "list_definitions",
    "load_definition",
    "maintain",
    "materialize_index",
    "plan_version",
]
