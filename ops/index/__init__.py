"""ANN indexes of a table: define, materialise for a snapshot, keep in shape, drop."""

from typing import TYPE_CHECKING

from icepuffin.ops.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from icepuffin.ops.index.ddl import create_index, drop_index, list_definitions, load_definition
    from icepuffin.ops.index.definition import DefinitionError, IndexDefinition
    from icepuffin.ops.index.errors import CoverageError, GateFailedError, NotAnIndexError
    from icepuffin.ops.index.gc import collect_garbage
    from icepuffin.ops.index.materialization import materialize_index, rebuild_tombstoned_shards
    from icepuffin.ops.index.plan import plan_version
    from icepuffin.ops.index.report import GcReport, IndexReport, ShardReport
    from icepuffin.ops.model import Action
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "ddl": "create_index drop_index list_definitions load_definition",
            "definition": "DefinitionError IndexDefinition",
            "errors": "CoverageError GateFailedError NotAnIndexError",
            "gc": "collect_garbage",
            "materialization": "materialize_index rebuild_tombstoned_shards",
            "plan": "plan_version",
            "report": "Action GcReport IndexReport ShardReport",
        },
    )

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
