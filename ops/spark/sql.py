"""`vector_search(...)` as a table function of Spark SQL: a Python UDTF, on a classic session and through Spark Connect.

Spark asks `analyze` once a query, where the plan is made: there the catalog is asked, the snapshot decided and the
schema of the answer known. Tasks get the place of the table's metadata file and read that: none asks the catalog, and
all see the same snapshot.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import FloatType, IntegerType, StructField, StructType
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from ops.cache import CacheSettings, process_cache, use_settings
from ops.catalog.connect import open_catalog
from ops.catalog.file_io import file_io
from ops.catalog.snapshots import resolve_snapshot
from ops.catalog.vended import storage_of
from ops.datafile import arrow_schema
from ops.model import StorageConfig
from ops.probe.candidates import answer_names
from ops.probe.errors import QueryError
from ops.probe.opening import open_index
from ops.probe.question import field_ids
from ops.probe.reader import IndexReader
from ops.spark.types import as_spark, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)
_READERS = 4
"""That a Python worker keeps between tasks and jobs"""


@dataclass(frozen=True)
class Settings:
    """What the function is registered with; travels to whoever plans and runs it, and never shows."""

    catalog: str
    properties: Mapping[str, str] = field(repr=False)
    storage: StorageConfig | None
    cache: CacheSettings = field(default_factory=CacheSettings.from_environment)


@dataclass
class Planned(AnalyzeResult):
    """What planning one call has settled."""

    identifier: tuple[str, ...] = ()
    metadata_location: str = ""
    snapshot_id: int = 0
    index: str = ""
    columns: tuple[str, ...] = ()
    storage: StorageConfig = field(default_factory=StorageConfig)


def register_vector_search(
    spark: "SparkSession",
    catalog: Catalog,
    *,
    storage: StorageConfig | None = None,
    name: str = "vector_search",
) -> None:
    """Let SQL on `spark` call the table function `name`, on tables of `catalog`.

        SELECT * FROM vector_search('ns.table', 'index', array(0.1, 0.2, ...), 10)
        SELECT q.id, v.* FROM queries q, LATERAL vector_search('ns.table', 'index', q.embedding, where => 'id > 5') v

    Arguments: table, index, query, k (10), and by name columns (an array), where (an Iceberg row filter), snapshot (id,
    tag, branch or time), search_list. Rows: rank int, distance float, then the columns: those of the table that are
    not nested, unless named. `storage`: how tasks reach files; default what the catalog's settings say and it vends. A
    reader stays open in each Python worker, and its shards in the worker's cache.
    """
    settings = Settings(catalog.name, dict(catalog.properties), storage, process_cache().settings)
    # as the session is, not as the process: both kinds may live in one
    functions = "pyspark.sql.connect.functions" if "connect" in type(spark).__module__ else "pyspark.sql.functions"
    udtf = import_module(functions).udtf
    spark.udtf.register(name, udtf(_function(settings)))


def _function(settings: Settings) -> type:
    """The class that Spark pickles, settings and all; what it does is in this module, which executors import."""

    class VectorSearch:
        def __init__(self, planned: Planned) -> None:
            self._planned = planned

        @staticmethod
        def analyze(  # type: ignore[no-untyped-def]
            table, index, query, k=None, columns=None, where=None, snapshot=None, search_list=None
        ):
            _ = query, k, where, search_list
            return plan(settings, table, index, columns, snapshot)

        def eval(  # type: ignore[no-untyped-def]
            self, table, index, query, k=10, columns=None, where=None, snapshot=None, search_list=None
        ):
            _ = table, index, columns, snapshot
            yield from answer(settings, self._planned, query, k, where, search_list)

    return VectorSearch


def plan(
    settings: Settings,
    table: AnalyzeArgument,
    index: AnalyzeArgument,
    columns: AnalyzeArgument | None,
    snapshot: AnalyzeArgument | None,
) -> Planned:
    """Body of `analyze`. Raises IcepuffinError for a table, an index, a column or a snapshot that is not there."""
    identifier = tuple(_constant("table", table).split("."))
    if len(identifier) > 2 and identifier[0] == settings.catalog:
        identifier = identifier[1:]
    found = open_catalog(settings.catalog, dict(settings.properties)).load_table(identifier)
    at = _constant("snapshot", snapshot)
    resolved = resolve_snapshot(found, int(at) if isinstance(at, int) else at)
    schema = found.schemas()[resolved.schema_id]
    names = _constant("columns", columns)
    wanted = [str(schema.find_column_name(item)) for item in field_ids(schema, names, ".".join(identifier))]
    fields = [StructField("rank", IntegerType()), StructField("distance", FloatType())]
    if wanted:
        types = from_arrow_schema(spark_schema(arrow_schema(schema.select(*wanted))), prefer_timestamp_ntz=True)
        fields += [
            StructField(told, types[name].dataType) for name, told in zip(wanted, answer_names(wanted), strict=True)
        ]
    return Planned(
        schema=StructType(fields),
        identifier=identifier,
        metadata_location=found.metadata_location,
        snapshot_id=resolved.snapshot_id,
        index=_constant("index", index),
        columns=tuple(wanted),
        storage=settings.storage or storage_of(found),
    )


def answer(
    settings: Settings, planned: Planned, query: Any, k: int, where: str | None, search_list: int | None
) -> Iterator[tuple[Any, ...]]:
    """Body of `eval`: the rows of one call. No query (null) has no neighbours."""
    if query is None:
        return
    if process_cache().settings != settings.cache:
        use_settings(settings.cache)
    reader = _reader(planned.identifier, planned.metadata_location, planned.snapshot_id, planned.index, planned.storage)
    asked = np.asarray(query, np.float64)  # literals are decimals to Spark
    found = reader.search(asked, k, columns=planned.columns, where=where, search_list=search_list)
    for warning in found.warnings:
        _tell(warning)
    rows = as_spark(found.rows.drop_columns(["query"]))
    yield from zip(*(column.to_pylist(maps_as_pydicts="strict") for column in rows.columns), strict=True)


@lru_cache(maxsize=64)
def _tell(warning: str) -> None:
    """Once: a call may be one of many for the rows that it is joined to."""
    _logger.warning("vector_search: %s", warning)


@lru_cache(maxsize=_READERS)
def _reader(
    identifier: tuple[str, ...], location: str, snapshot_id: int, index: str, storage: StorageConfig
) -> IndexReader:
    return open_index(_table_at(identifier, location, storage), index, snapshot=snapshot_id, storage=storage, threads=1)


def _table_at(identifier: tuple[str, ...], location: str, storage: StorageConfig) -> Table:
    """The table as of one metadata file. What reads its files is told by `storage` alone, not by its own properties."""
    io = file_io(storage, location)
    metadata = FromInputFile.table_metadata(io.new_input(location))
    return Table(identifier, metadata, location, io, NoopCatalog("planned"))


def _constant(name: str, argument: AnalyzeArgument | None) -> Any:
    """The value of an argument that is the same for all rows."""
    if argument is None:
        return None
    if argument.isTable or not argument.isConstantExpression:
        raise QueryError(f"vector_search: {name} is to be a constant; only the query may differ from row to row")
    return argument.value
