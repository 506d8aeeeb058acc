"""A kNN join: for each row of a DataFrame, the k nearest rows of an indexed table, with their columns."""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyspark import TaskContext
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from icepuffin.ops.errors import require_type
from icepuffin.ops.model import FileNumber, SnapshotId
from icepuffin.ops.rows.datafile import arrow_schema
from icepuffin.ops.rows.element_types import OF_COLUMN
from icepuffin.ops.search.arguments import field_ids, require_at_least_one
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.indexed.distributed_search import balanced, balanced_shards
from icepuffin.ops.search.indexed.worker import SearchJob, SearchRequest, SearchShare
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.search.tuning import SearchOptions
from icepuffin.ops.spark.broadcasts import broadcast_for_plans
from icepuffin.ops.spark.errors import reported
from icepuffin.ops.spark.knn_blocks import (
    EXPECTED,
    ROW,
    ROW_HASH,
    Join,
    finish,
    last_stage,
    read,
    search,
    select,
    split,
    staged,
    unpickled,
)
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.spark.spark_types import spark_schema, spread_by

_OWN_COLUMNS = ("rank", "distance")
BLOCK_ROWS = 2_048
"""Queries per block: they are shipped and searched together"""
BLOCK_READS = 1 << 16
"""Rows of data files that a block reads, but for one query's: so many, at most, are in memory at a time"""
_BLOCK_CANDIDATES = 1 << 22
"""Candidates of a block that all shares return, but for one query's"""
_HASHED = (NumericType, StringType, BinaryType, BooleanType, DateType, TimestampType, TimestampNTZType)
"""Types of values that are not nested and that `xxhash64` takes"""
_SEARCHES_PER_CORE = 2
"""Search tasks per core: more, smaller tasks shorten the wait for the slowest. The other stages do little"""


@dataclass(frozen=True, slots=True)
class KnnJoin:
    """The matched rows, and the snapshot and version that they come from."""

    rows: DataFrame
    """The left columns, rank int (1 = nearest), distance double, the matched row's columns; in no order"""
    coverage: Coverage
    snapshot_id: SnapshotId
    index_snapshot_id: SnapshotId | None
    base_snapshot_id: SnapshotId | None
    why: str
    warnings: tuple[str, ...]


def knn_join(
    left: DataFrame,
    reader: IndexReader,
    *,
    on: str,
    k: int = 10,
    columns: Sequence[str] | None = None,
    prefix: str = "",
    where: str | BooleanExpression | None = None,
    search_list: int | None = None,
    shards: int | None = None,
    oversample: int | None = None,
    target_recall: float | None = None,
    recall_share: float | None = None,
    block_rows: int = BLOCK_ROWS,
) -> KnnJoin:
    """For each row of a DataFrame, the k nearest rows of an indexed table: those that `IndexReader.search` finds.

    One exception: under cosine with a condition, rows that differ by less than the rounding to f32 are not ranked by
    the data files. Nothing runs until the rows are read. Each task of the job then reads the same snapshot by the
    same version, whatever happens to the table meanwhile.

    Parameters
    ----------
    left : pyspark.sql.DataFrame
        The queries, on a classic session or Connect.
    reader : IndexReader
        The index, opened at the snapshot to search.
    on : str
        Column of `left` that holds vectors. Rows without one (null) are left out.
    k : int
        Matches per row.
    columns : sequence of str, optional
        Columns to return of the matched rows. Default: all but nested ones.
    prefix : str
        Put before the names of these columns.
    where, search_list, shards, oversample, target_recall, recall_share : optional
        As for `IndexReader.search`.
    block_rows : int
        Queries that travel and are searched together, at most: fewer where they are large, or `k` is.

    Returns
    -------
    KnnJoin
        `rows`, a DataFrame: the columns of `left`, rank int (1 = nearest), distance double, the matched row's columns;
        and coverage, snapshot_id, why and warnings as answers have them.

    Raises
    ------
    QueryError, UnknownColumnError, FilterError
        An argument is wrong. The job itself fails where a vector of `left` cannot be searched for (NaN, another number
        of dimensions), a row of the table has no distance from any, or a shard cannot be read any more.

    Examples
    --------
    >>> left = spark.createDataFrame([("q", query)], "id string, vector array<double>")
    >>> icepuffin.knn_join(left, reader, on="vector", k=3, columns=["name"]).rows.count()
    3
    """
    require_type(left, DataFrame, "knn_join takes a Spark DataFrame", "read one first, as in spark.table(...)")
    require_type(reader, IndexReader, "knn_join takes an open index", "give open_index(table, index)")
    require_type(on, str, "on is the name of a column", 'write on="vector"')
    require_type(prefix, str, "prefix is put before names of columns", 'write prefix="match_"')
    with reported(left.sparkSession, "knn_join", typed=False):
        cores = SparkRunner(left.sparkSession).parallelism
        if left.isStreaming:
            raise QueryError("the left side is a stream: join each batch of it, in writeStream.foreachBatch")
        require_at_least_one(block_rows=block_rows)
        options = SearchOptions(search_list, shards, oversample, target_recall, recall_share=recall_share)
        request, unfollowed = reader.search_request(k, options, where)
        job = reader.search_job()
        returned = field_ids(job.schema, columns, reader.table)
        names = [str(job.schema.find_column_name(field_id)) for field_id in returned]
        schema = _schema(left.schema, on, names, prefix, job)
        _require_distinct(left.columns, [prefix + name for name in names], ignores_case=_ignores_case(left))
        shares = _shares(job, reader.scanned, cores)
        join = Join(
            job=job.serialize(),
            request=request,
            shares=shares,
            lanes=max(1, -(-_SEARCHES_PER_CORE * cores // len(shares))),
            parts=cores,
            vector=on,
            field_ids=tuple(returned),
            names=tuple(prefix + name for name in names),
            reads=bool(returned) or request.rerank,
            block_rows=_bounded(block_rows, request, len(shares)),
            unhashed=tuple(field.name for field in left.schema.fields if not _is_hashed(field.dataType)),
        )
        version = reader.version
        return KnnJoin(
            rows=_job(left, join, schema),
            coverage=reader.coverage,
            snapshot_id=reader.snapshot_id,
            index_snapshot_id=version.index_snapshot_id if version else None,
            base_snapshot_id=version.base_snapshot_id if version else None,
            why=reader.why,
            warnings=(*reader.warnings, *unfollowed),
        )


def _bounded(block_rows: int, request: SearchRequest, shares: int) -> int:
    """Queries per block, so that neither the rows to read nor what shares return takes more memory than is stated."""
    ranked = request.k * request.parameters.oversample if request.parameters and request.rerank else 0
    candidates = ranked or request.k
    return max(1, min(block_rows, BLOCK_READS // (request.k + ranked), _BLOCK_CANDIDATES // (candidates * shares)))


def _job(left: DataFrame, join: Join, schema: StructType) -> DataFrame:
    """The job: maps and shuffles only, which are the same on a classic session and through Spark Connect."""
    sent = broadcast_for_plans(left.sparkSession, pickle.dumps(join))

    names = [*left.columns, ROW_HASH]

    def split_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context: Any = TaskContext.get()
        named = (batch.rename_columns(names) for batch in batches)
        yield from split(unpickled(sent), context.partitionId(), named)

    blocks = spread_by(_in_order(left, join).mapInArrow(split_rows, ROW), "part", join.lanes * len(join.shares))
    expected = _expected(blocks, join)
    # sorted by share, so that a task loads one shard after the other
    blocks = blocks.sortWithinPartitions("number").mapInArrow(staged(sent, search), ROW)
    last = select
    if join.reads:
        blocks = _repartitioned(blocks, join, "block", "number").mapInArrow(staged(sent, select), ROW)
        blocks = _repartitioned(blocks, join, "number").mapInArrow(staged(sent, read), ROW)
        last = finish
    blocks = _repartitioned(blocks.unionAll(expected), join, "block", "number")
    return blocks.mapInArrow(staged(sent, last_stage(last)), schema)


def _repartitioned(rows: DataFrame, join: Join, *keys: str) -> DataFrame:
    return spread_by(rows, "part", join.parts).sortWithinPartitions(*keys)


def _in_order(left: DataFrame, join: Join) -> DataFrame:
    """The left side with `ROW_HASH`, in an order that depends on each partition's set of rows alone.

    Columns are called by numbers: PySpark's `mapInArrow` takes a name with a dot or a backtick for a path.
    Rows of one hash are alike. `xxhash64` skips nulls, so that a value and a null next to it could change places, has
    no bounds between nested values, and takes both zeros for one: as texts they have all that. Of texts that are equal
    by their collation it may make one hash, as in Spark 4.0, but not of their bytes. The vector, which has neither
    nulls nor another length, comes first, with the texts of its zeros alone.
    """
    numbered = {name: f"column_{number}" for number, name in enumerate(left.columns)}
    vector = numbered[join.vector]
    hashed = [vector]
    if isinstance(left.schema[join.vector].dataType, ArrayType):
        hashed.append(f"transform(filter({vector}, number -> number = 0), number -> CAST(number AS STRING))")
    for name in [name for name in left.columns if name not in (join.vector, *join.unhashed)]:
        field, data_type = numbered[name], left.schema[name].dataType
        if isinstance(data_type, StringType):
            field = f"CAST({field} AS BINARY)"
        hashed += [field, f"isnull({field})"]
        if isinstance(data_type, FloatType | DoubleType):
            hashed.append(f"CAST({field} AS STRING)")
        if isinstance(data_type, ArrayType | StructType):
            hashed.append(f"to_json(struct({field}), map('ignoreNullFields', 'false'))")
    rows = left.toDF(*numbered.values()).selectExpr("*", f"xxhash64({', '.join(hashed)}) AS {ROW_HASH}")
    return rows.sortWithinPartitions(ROW_HASH)


def _expected(blocks: DataFrame, join: Join) -> DataFrame:
    """The rows `EXPECTED` of all partitions of the last stage, out of the rows that `split` gave.

    All columns of `blocks` are read, as the join itself reads them: so both read one shuffle, where Spark plans them
    alike. Of fewer columns, it would make a shuffle of its own. So it would of a subquery where it plans adaptively:
    apart from the join, with other joins in the left side and so with other partitions. A broadcast is planned with
    the join. It has to end within `spark.sql.broadcastTimeout`: where plans are not adaptive, the left side included.
    """
    named = "CASE WHEN number = 0 AND payload IS NOT NULL AND part >= 0 THEN block END"
    names = blocks.selectExpr(f"collect_list({named}) AS names")
    partition = f"crc32(CAST(name AS BINARY)) % {join.parts}"  # as `knn_blocks` has it
    digest = f"sha2(CAST(array_join(array_sort(filter(names, name -> {partition} = id)), ',') AS BINARY), 256)"
    rows = blocks.sparkSession.range(0, join.parts, 1, 1)
    if str(blocks.sparkSession.conf.get("spark.sql.adaptive.enabled", "true")).strip().lower() == "true":
        rows = rows.crossJoin(names.hint("broadcast"))
    else:
        rows = rows.withColumn("names", names.scalar())
    return rows.selectExpr("'' AS block", "INT(id) AS part", f"{EXPECTED} AS number", f"BINARY({digest}) AS payload")


def _is_hashed(data_type: DataType) -> bool:
    """Whether `xxhash64` takes values of a type."""
    if isinstance(data_type, ArrayType):
        return _is_hashed(data_type.elementType)
    if isinstance(data_type, StructType):
        return all(_is_hashed(field.dataType) for field in data_type.fields)
    return isinstance(data_type, _HASHED)


def _shares(job: SearchJob, tail: Sequence[FileNumber], cores: int) -> tuple[SearchShare, ...]:
    """Shares of about equal work: shards by their size, files to scan by their rows."""
    shards = balanced_shards(job.opened, cores) if job.opened is not None else []
    files = balanced([job.live.files[number].record_count for number in tail], cores)
    shares = [SearchShare(shards=shard_ids) for shard_ids in shards]
    shares += [SearchShare(files=tuple(tail[index] for index in group)) for group in files]
    return tuple(shares) or (SearchShare(),)


def _schema(left: StructType, on: str, names: Sequence[str], prefix: str, job: SearchJob) -> StructType:
    if on not in left.names:
        raise QueryError(f"the left side has no column {on!r}; it has {', '.join(left.names)}")
    column_type = left[on].dataType
    is_number = FloatType | DoubleType | IntegralType
    numbers = isinstance(column_type, ArrayType) and isinstance(column_type.elementType, is_number)
    if not numbers and not (isinstance(column_type, BinaryType) and job.element_type != OF_COLUMN):
        raise QueryError(
            f"column {on!r} of the left side is {column_type.simpleString()}; cast it to array<float> or <double>"
        )
    for field in left.fields:
        try:
            to_arrow_type(field.dataType)
        except (PySparkTypeError, ValueError) as error:  # the latter for array() and map()
            raise QueryError(
                f"column {field.name!r} of the left side is {field.dataType.simpleString()}, of which PySpark makes no "
                "Arrow column: cast it, or leave it out"
            ) from error
    fields = [*left.fields, *map(StructField, _OWN_COLUMNS, (IntegerType(), DoubleType()))]
    if names:
        types = from_arrow_schema(spark_schema(arrow_schema(job.schema.select(*names))), prefer_timestamp_ntz=True)
        fields += [StructField(prefix + name, types[name].dataType) for name in names]
    return StructType(fields)


def _ignores_case(frame: DataFrame) -> bool:
    """Whether names that differ in case alone are the same name to a frame's session."""
    return str(frame.sparkSession.conf.get("spark.sql.caseSensitive", "false")).strip().lower() != "true"


def _require_distinct(left: Sequence[str], attached: Sequence[str], *, ignores_case: bool) -> None:
    """Raises QueryError where a column of the result could not be named, and `drop` would take two for one.

    `left`, `attached`: names of the left side's columns, and of those of the matched rows, as the result has them.
    """
    key = str.lower if ignores_case else str
    of_left: dict[str, str] = {}
    for name in left:
        if key(name) in of_left:
            raise QueryError(f"the left side has two columns {name!r}: rename one")
        of_left[key(name)] = name
    if ROW_HASH in left:
        raise QueryError(f"the left side has a column {ROW_HASH!r}, by which the join itself names one: rename it")
    if taken := [of_left[name] for name in _OWN_COLUMNS if name in of_left]:
        raise QueryError(f"the left side has a column {taken[0]!r}, as the result has one: rename it")
    others = dict.fromkeys(_OWN_COLUMNS)
    for name in attached:
        if key(name) in of_left:
            raise QueryError(f"both sides have a column {name!r}: give a prefix, or name other columns")
        if key(name) in others:
            raise QueryError(f"the result has two columns {name!r}: give a prefix, or name other columns")
        others[key(name)] = None
