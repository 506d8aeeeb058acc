"""`vector_search(...)` as a table function of Spark SQL: a Python UDTF, on a classic session and through Spark Connect.

Spark calls `analyze` once per query, where the plan is made: there the catalog is read, the snapshot chosen and the
schema of the answer known. Tasks read the table's metadata file, whose location they get: none calls the catalog, and
all see the same snapshot.
"""

import logging
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    NullType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from icepuffin.ops.cache import CacheSettings, process_cache, use_settings
from icepuffin.ops.catalog.stored_file_io import file_io
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.errors import require_type
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.index.definitions.ddl import load_definition
from icepuffin.ops.index.definitions.definition_columns import resolve_field
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.resources import Catalogs
from icepuffin.ops.rows.candidates import answer_names
from icepuffin.ops.rows.datafile import arrow_schema
from icepuffin.ops.rows.element_types import OF_COLUMN
from icepuffin.ops.rows.vector_column import VectorSchema
from icepuffin.ops.search.arguments import BYTES, field_ids, require_at_least_one
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.text_search import texts_of
from icepuffin.ops.spark.errors import reported
from icepuffin.ops.spark.spark_types import as_spark, spark_schema
from icepuffin.ops.table.snapshots import TableUnavailableError, schema_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_READERS = 4
"""Readers that a Python worker keeps open between tasks and jobs"""


@dataclass(frozen=True)
class TableFunctionSettings:
    """What the function is registered with. It is pickled to planner and workers; `repr` hides it."""

    catalog: str
    properties: Mapping[str, str] = field(repr=False)
    storage: StorageConfig | None
    cache: CacheSettings = field(default_factory=CacheSettings.from_environment)


@dataclass
class CallPlan(AnalyzeResult):
    """The result of planning one call."""

    identifier: tuple[str, ...] = ()
    metadata_location: str = ""
    metadata_key: tuple[str, int] = ("", 0)
    """Uuid of the table, and the time of its last change: the name of a metadata file may come again"""
    snapshot: int | str | datetime | None = None
    index: str = ""
    k: int = 0
    columns: tuple[str, ...] = ()
    where: str | None = None
    search_list: int | None = None
    by_words: bool = False
    """Whether a text is given, which may be null for some rows; then the answer has scores"""
    text_weight: float | None = None
    storage: StorageConfig = field(default_factory=StorageConfig)


def register_vector_search(
    spark: "SparkSession",
    catalog: Catalog,
    *,
    storage: StorageConfig | None = None,
    name: str = "vector_search",
) -> None:
    """Let SQL on a Spark session search indexes, by the table function `vector_search`.

        SELECT * FROM vector_search('ns.table', 'index', array(0.1, 0.2, ...), 10)
        SELECT q.id, v.* FROM queries q, LATERAL vector_search('ns.table', 'index', q.embedding, where => 'id > 5') v

    The function takes table, index, query and k (10); by name also columns (an array), where (an Iceberg row filter),
    snapshot (id, tag, branch or time), search_list, text (words to search for; with a null query by these alone) and
    text_weight. It gives rank int, with a text score double, distance double, then the columns: those of the table that
    are not nested, unless named. A reader stays open in each Python worker, its shards in the worker's cache.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session, classic or Connect.
    catalog : pyiceberg.catalog.Catalog
        Catalog of the tables. Workers open it by its properties.
    storage : StorageConfig, optional
        How tasks reach files. Default: what the catalog's properties say and it vends.
    name : str
        Name of the function in SQL.

    Raises
    ------
    RunnerError
        The session was stopped.

    Examples
    --------
    >>> icepuffin.register_vector_search(spark, table.catalog)
    >>> vector = f"array({', '.join(map(str, query))})"
    >>> spark.sql(f"SELECT name FROM vector_search('demo.packages', 'embedding', {vector}, 3)").count()
    3
    """
    require_type(
        catalog, Catalog, "register_vector_search takes a PyIceberg catalog", "open it first, as in load_catalog(...)"
    )
    settings = TableFunctionSettings(catalog.name, dict(catalog.properties), storage, process_cache().settings)
    # by the session's kind: one process may have both kinds
    functions = "pyspark.sql.connect.functions" if "connect" in type(spark).__module__ else "pyspark.sql.functions"
    udtf = import_module(functions).udtf
    with reported(spark, name, typed=False):  # PySpark would open another session, and register the function there
        spark.udtf.register(name, udtf(_function(settings)))


def _function(settings: TableFunctionSettings) -> type:
    """The class that Spark pickles, settings and all; what it does is in this module, which executors import."""

    class VectorSearch:
        def __init__(self, planned: CallPlan) -> None:
            self._planned = planned

        @staticmethod
        def analyze(  # type: ignore[no-untyped-def]
            table, index, query, k=None, columns=None, where=None, snapshot=None, search_list=None, text=None,
            text_weight=None,
        ):  # fmt: skip
            options = {"k": k, "columns": columns, "where": where, "snapshot": snapshot, "search_list": search_list}
            options |= {"text": text, "text_weight": text_weight}
            return plan(
                settings, table, index, query, {name: item for name, item in options.items() if item is not None}
            )

        def eval(  # type: ignore[no-untyped-def]
            self, table, index, query, k=None, columns=None, where=None, snapshot=None, search_list=None, text=None,
            text_weight=None,
        ):  # fmt: skip
            _ = table, index, k, columns, where, snapshot, search_list, text_weight
            yield from answer(settings, self._planned, query, text)

    return VectorSearch


def plan(
    settings: TableFunctionSettings,
    table: AnalyzeArgument,
    index: AnalyzeArgument,
    query: AnalyzeArgument,
    options: Mapping[str, AnalyzeArgument],
) -> CallPlan:
    """Body of `analyze`. Raises those errors of `open_index` and `search` that show without reading the index, so that
    no task starts. An option that is null counts as left out.
    """
    constants = {
        name: _constant(name, argument) for name, argument in {"table": table, "index": index, **options}.items()
    }
    text = options.get("text")
    by_words = text is not None and not (text.isConstantExpression and text.value is None)
    arguments = {name: value for name, value in constants.items() if value is not None}
    if absent := [name for name in ("table", "index") if name not in arguments]:
        raise QueryError(f"vector_search: {absent[0]} is null")
    if other := [name for name in ("table", "index", "where") if not isinstance(arguments.get(name, ""), str)]:
        shown = reprlib.repr(arguments[other[0]])
        raise QueryError(f"vector_search: {other[0]} is {shown}, not a text; call it with (table, index, query, k)")
    identifier = tuple(arguments["table"].split("."))
    if len(identifier) > 2 and identifier[0] == settings.catalog:
        identifier = identifier[1:]
    if len(identifier) < 2:
        raise QueryError(f"vector_search: {arguments['table']!r} names no table; write namespace.table")
    name = ".".join(identifier)
    loaded = Catalogs({settings.catalog: settings.properties}).table(settings.catalog, name)
    snapshot = arguments.get("snapshot")
    schema = schema_at(loaded, snapshot)
    definition = load_definition(loaded, arguments["index"])
    schema = VectorSchema.with_element_type(schema, resolve_field(definition, schema, name), definition.element_type)
    _require_vectors(query, definition)
    if text is not None and by_words and not (isinstance(text.dataType, StringType) and definition.text):
        what = (
            f"index {definition.name} is of vectors alone"
            if not definition.text
            else f"text is {text.dataType.simpleString()}"
        )
        raise QueryError(f"vector_search: {what}: give a text and an index with text, or leave text out")
    weight = arguments.get("text_weight")
    weight = float(weight) if isinstance(weight, Decimal) else weight
    texts_of("" if by_words else None, weight, None, 1)
    k, where, search_list = arguments.get("k", 10), arguments.get("where"), arguments.get("search_list")
    require_at_least_one(k=k, search_list=search_list)
    if where is not None:
        RowPredicate(where, schema)
    columns = [str(schema.find_column_name(field_id)) for field_id in field_ids(schema, arguments.get("columns"), name)]
    own = ["rank", *(["score"] if by_words else []), "distance"]
    fields = [StructField(own_name, IntegerType() if own_name == "rank" else DoubleType()) for own_name in own]
    if columns:
        arrow = spark_schema(arrow_schema(schema.select(*columns)))
        if nested := [column.name for column in arrow if _has_nested_keys(column.type)]:
            raise QueryError(
                f"vector_search: {nested[0]} has maps whose keys are structs or lists, and a Python function of "
                "Spark returns none: leave it out of columns, and join it by a key, or use knn_join"
            )
        renamed = answer_names(columns, ignores_case=True, taken=frozenset(["query", *own]))
        types = from_arrow_schema(arrow, prefer_timestamp_ntz=True)
        fields += [
            StructField(column_name, types[name].dataType) for name, column_name in zip(columns, renamed, strict=True)
        ]
    return CallPlan(
        schema=StructType(fields),
        identifier=identifier,
        metadata_location=loaded.metadata_location,
        metadata_key=(str(loaded.metadata.table_uuid), loaded.metadata.last_updated_ms),
        snapshot=snapshot,
        index=arguments["index"],
        k=k,
        columns=tuple(columns),
        where=where,
        search_list=search_list,
        by_words=by_words,
        text_weight=weight,
        storage=settings.storage or storage_of(loaded),
    )


def answer(
    settings: TableFunctionSettings, planned: CallPlan, query: Any, text: str | None = None
) -> Iterator[tuple[Any, ...]]:
    """Body of `eval`: the rows of one call, by what is not null of query and text."""
    if query is None and text is None:
        return
    if process_cache().settings != settings.cache:
        use_settings(settings.cache)
    if not isinstance(query, BYTES | None) and any(number is None for number in query):
        raise QueryError("vector_search: the query has a null element; leave such a row out, or fill it with a number")
    reader = _reader(
        planned.identifier, planned.metadata_location, planned.metadata_key, planned.snapshot, planned.index,
        planned.storage,
    )  # fmt: skip
    result = reader.search(
        query if isinstance(query, BYTES | None) else np.asarray(query, np.float64),  # Spark reads literals as decimals
        planned.k,
        text=text,
        text_weight=None if query is None or text is None else planned.text_weight,
        columns=planned.columns,
        where=planned.where,
        search_list=planned.search_list,
    )
    for warning in result.warnings:
        _log_once(warning)
    rows = as_spark(result.rows.drop_columns(["query"]))
    yield from _values(_scored(rows, len(planned.columns)) if planned.by_words else rows)


def _scored(rows: pa.Table, columns: int) -> pa.Table:
    """rank, score and distance, null where an answer has none, and the last columns, of the table."""
    own = rows.num_columns - columns
    found = dict(zip(rows.column_names[:own], rows.columns[:own], strict=True))
    nulls = pa.chunked_array([pa.nulls(rows.num_rows, pa.float64())])
    arrays = [found["rank"], *(found.get(name, nulls) for name in ("score", "distance")), *rows.columns[own:]]
    return pa.Table.from_arrays(arrays, names=[str(number) for number in range(len(arrays))])


def _values(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows of values of Python. Raises QueryError for what Python lacks."""
    try:
        columns = [column.to_pylist(maps_as_pydicts="strict") for column in rows.columns]
    except OverflowError as error:
        raise QueryError(
            "vector_search: a column of the answer has a date or time before the year 1 or after 9999, and a Python "
            "function of Spark returns none: leave it out of columns, and join it by a key, or use knn_join"
        ) from error
    yield from zip(*columns, strict=True)


@lru_cache(maxsize=64)
def _log_once(warning: str) -> None:
    """Log a warning once: a call may be one of many, for the rows that it is joined to."""
    _log.warning("vector_search: %s", warning)


@lru_cache(maxsize=_READERS)
def _reader(
    identifier: tuple[str, ...],
    location: str,
    _key: tuple[str, int],
    snapshot: int | str | datetime | None,
    index: str,
    storage: StorageConfig,
) -> IndexReader:
    return open_index(_table_at(identifier, location, storage), index, snapshot=snapshot, storage=storage, threads=1)


def _table_at(identifier: tuple[str, ...], location: str, storage: StorageConfig) -> Table:
    """The table as of one metadata file. `storage` alone says how its files are read, not by its own properties.

    Raises TableUnavailableError where the file was deleted since the call was planned.
    """
    io = file_io(storage, location)
    try:
        metadata = FromInputFile.table_metadata(io.new_input(location))
    except FileNotFoundError as error:
        raise TableUnavailableError(
            f"{'.'.join(identifier)}: its metadata file {location} was deleted since the query was planned, by a drop "
            "of the table or by clean-up of old metadata: plan the query again"
        ) from error
    return Table(identifier, metadata, location, io, NoopCatalog("planned"))


def _require_vectors(query: AnalyzeArgument, definition: IndexDefinition) -> None:
    query_type = query.dataType
    numbers = isinstance(query_type, ArrayType) and isinstance(query_type.elementType, NumericType)
    of_bytes = isinstance(query_type, BinaryType) and definition.element_type != OF_COLUMN
    if not (numbers or of_bytes or isinstance(query_type, NullType)):
        raise QueryError(f"vector_search: the query is {query_type.simpleString()}, not an array of numbers")


def _has_nested_keys(arrow_type: pa.DataType) -> bool:
    """Whether there are maps in the type, at any depth, whose keys no dictionary of Python takes."""
    if pa.types.is_map(arrow_type) and pa.types.is_nested(arrow_type.key_type):
        return True
    return any(_has_nested_keys(arrow_type.field(number).type) for number in range(arrow_type.num_fields))


def _constant(name: str, argument: AnalyzeArgument) -> Any:
    """The value of an argument that is the same for all rows; None for a text that is not. A TIMESTAMP is an instant,
    which PySpark passes as a local time of this machine without a zone: the zone is added here.
    """
    if argument.isTable or not (argument.isConstantExpression or name == "text"):
        raise QueryError(
            f"vector_search: {name} is to be a constant: write it into the text; query and text may be variables, or "
            "differ from row to row, as in FROM queries, LATERAL vector_search('ns.table', 'index', queries.vector)"
        )
    if isinstance(argument.dataType, TimestampType) and argument.value is not None:
        return argument.value.astimezone(UTC)
    return argument.value
