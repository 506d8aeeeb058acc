"""ANN indexes of a table: define, materialise for a snapshot, keep in shape, drop."""

from ops.index.definition import DefinitionError, IndexDefinition
from ops.index.errors import CoverageError, GateFailedError, NotAnIndexError
from ops.index.materialize import materialize_index
from ops.index.plan import plan_version
from ops.index.report import Action, GcReport, IndexReport, ShardReport
from ops.index.upkeep import collect_garbage, create, drop, list_definitions, load_definition, maintain

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
