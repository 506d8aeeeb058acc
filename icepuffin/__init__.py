"""Theta sketches and vector indexes for every snapshot of an Apache Iceberg table.

An index belongs to a snapshot of a table. `create_index` defines one, `refresh` makes its version for a snapshot, and
`open_index` opens it for searching:

    from pyiceberg.catalog import load_catalog
    import icepuffin

    table = load_catalog("demo").load_table("demo.packages")
    reader = icepuffin.open_index(table)
    reader.search(query, k=10, where="section = 'web'").to_pandas()

Reading needs neither Dagster nor Spark nor Java. In a Dagster project, `build_defs` and `IcepuffinTableComponent` give
the definitions of a table.
The names below are the interface that is kept; what lies deeper may change between releases. Each is imported when it
is first used.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icepuffin import errors
    from icepuffin.assets.report.report_file import write_report
    from icepuffin.ops.filters.list_predicate import ArrayContains
    from icepuffin.ops.index.definitions.ddl import create_index, drop_index
    from icepuffin.ops.index.definitions.index_definition import IndexDefinition
    from icepuffin.ops.index.upkeep.index_states import list_indexes
    from icepuffin.ops.metrics import metrics
    from icepuffin.ops.model import StorageConfig
    from icepuffin.ops.runs.index_verification import verify
    from icepuffin.ops.runs.maintenance import gc
    from icepuffin.ops.runs.refresh_plan import plan
    from icepuffin.ops.runs.snapshot import refresh
    from icepuffin.ops.search.following_reader import FollowingReader
    from icepuffin.ops.search.measured.tuning_run import tune
    from icepuffin.ops.search.opening import open_exact, open_index
    from icepuffin.ops.search.reader import IndexReader
    from icepuffin.ops.search.result import SearchResult
    from icepuffin.ops.spark.knn_join import knn_join
    from icepuffin.ops.spark.spark_runner import SparkRunner
    from icepuffin.ops.spark.table_function import register_vector_search
    from icepuffin.ops.sql.sql_session import SqlSession
    from icepuffin.ops.theta.ndv import read_ndv
    from icepuffin.ops.theta.snapshot_statistics import read_statistics
    from icepuffin.orchestration.component import IcepuffinTableComponent, build_defs

_HOMES = {
    "open_index": "icepuffin.ops.search.opening",
    "open_exact": "icepuffin.ops.search.opening",
    "IndexReader": "icepuffin.ops.search.reader",
    "FollowingReader": "icepuffin.ops.search.following_reader",
    "SearchResult": "icepuffin.ops.search.result",
    "tune": "icepuffin.ops.search.measured.tuning_run",
    "IndexDefinition": "icepuffin.ops.index.definitions.index_definition",
    "ArrayContains": "icepuffin.ops.filters.list_predicate",
    "create_index": "icepuffin.ops.index.definitions.ddl",
    "list_indexes": "icepuffin.ops.index.upkeep.index_states",
    "plan": "icepuffin.ops.runs.refresh_plan",
    "refresh": "icepuffin.ops.runs.snapshot",
    "verify": "icepuffin.ops.runs.index_verification",
    "gc": "icepuffin.ops.runs.maintenance",
    "metrics": "icepuffin.ops.metrics",
    "drop_index": "icepuffin.ops.index.definitions.ddl",
    "read_ndv": "icepuffin.ops.theta.ndv",
    "read_statistics": "icepuffin.ops.theta.snapshot_statistics",
    "write_report": "icepuffin.assets.report.report_file",
    "SqlSession": "icepuffin.ops.sql.sql_session",
    "knn_join": "icepuffin.ops.spark.knn_join",
    "SparkRunner": "icepuffin.ops.spark.spark_runner",
    "register_vector_search": "icepuffin.ops.spark.table_function",
    "StorageConfig": "icepuffin.ops.model",
    "build_defs": "icepuffin.orchestration.component",
    "IcepuffinTableComponent": "icepuffin.orchestration.component",
}
_NEEDS = {
    "SqlSession": "sqlglot",
    "knn_join": "pyspark",
    "register_vector_search": "pyspark",
    "build_defs": "dagster",
    "IcepuffinTableComponent": "dagster",
}
"""Packages of extras that a name needs when it is imported"""

__all__ = [
    "ArrayContains",
    "FollowingReader",
    "IcepuffinTableComponent",
    "IndexDefinition",
    "IndexReader",
    "SearchResult",
    "SparkRunner",
    "SqlSession",
    "StorageConfig",
    "build_defs",
    "create_index",
    "drop_index",
    "errors",
    "gc",
    "knn_join",
    "list_indexes",
    "metrics",
    "open_exact",
    "open_index",
    "plan",
    "read_ndv",
    "read_statistics",
    "refresh",
    "register_vector_search",
    "tune",
    "verify",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("icepuffin.errors")
    if name == "__version__":
        return import_module("importlib.metadata").version("icepuffin")
    if name not in _HOMES:
        raise AttributeError(f"module 'icepuffin' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        remedy = import_module("icepuffin.ops.imports").remedy(error)
        if not remedy:
            raise
        raise ModuleNotFoundError(f"icepuffin.{name} needs {error.name}: {remedy}", name=error.name) from error
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    """The names that can be imported here: tools such as Dagster's `dg` get each."""
    absent = {name for name, package in _NEEDS.items() if find_spec(package) is None}
    return sorted({*__all__, "__version__", *(name for name in globals() if name.startswith("__"))} - absent)
