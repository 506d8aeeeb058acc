"""ANN indexes of a table: define, materialise for a snapshot, keep in shape, drop."""

from typing import TYPE_CHECKING

from icepuffin.ops.imports import lazy_exports

if TYPE_CHECKING:
    from icepuffin.ops.index.definitions.ddl import create_index, drop_index, list_definitions, load_definition
    from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
    from icepuffin.ops.index.errors import CoverageError, GateFailedError, NotAnIndexError
    from icepuffin.ops.index.index_materialization import materialize_index, rebuild_tombstoned_shards
    from icepuffin.ops.index.planning.index_report import GcReport, IndexReport, ShardReport
    from icepuffin.ops.index.planning.version_plan import plan_version
    from icepuffin.ops.index.upkeep.garbage import collect_garbage
    from icepuffin.ops.model import Action
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "definitions.ddl": "create_index drop_index list_definitions load_definition",
            "definitions.index_definition": "DefinitionError IndexDefinition",
            "errors": "CoverageError GateFailedError NotAnIndexError",
            "upkeep.garbage": "collect_garbage",
            "index_materialization": "materialize_index rebuild_tombstoned_shards",
            "planning.version_plan": "plan_version",
            "planning.index_report": "Action GcReport IndexReport ShardReport",
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
