"""Run statements: searches by `icepuffin.ops.search`, indexes by `icepuffin.ops.index`, others by Spark if there."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, NestedField

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.catalog.read_restrictions import require_unrestricted
from icepuffin.ops.catalog.redaction import other_reason, without_values
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.errors import require_type
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.index.definitions.ddl import find_definition, list_definitions
from icepuffin.ops.index.definitions.definition_columns import as_named_in, resolve_column
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning.current_versions import versions_of
from icepuffin.ops.messages import plural
from icepuffin.ops.model import DRIVER_ONLY_ROWS, IN_PROCESS_MB, StorageConfig
from icepuffin.ops.presentation import SHOWN_ROWS, Grid, Presentation
from icepuffin.ops.process.lru_cache import RecentValues
from icepuffin.ops.process.threads import thread_count
from icepuffin.ops.rows.datafile import arrow_schema, no_rows
from icepuffin.ops.rows.element_types import OF_BITS, OF_COLUMN
from icepuffin.ops.runs.snapshot import RefreshProgress
from icepuffin.ops.search.errors import FilterError
from icepuffin.ops.spark.errors import reported
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.spark.spark_types import as_spark
from icepuffin.ops.sql.errors import NotIndexableError, SqlError, UnknownTableError
from icepuffin.ops.sql.index_statements import MESSAGE, Builder, message_of, run_on
from icepuffin.ops.sql.parser import TOO_DEEP, parse
from icepuffin.ops.sql.postprocessing import PostprocessingStep, expand_star, named_field, require_distinct_names
from icepuffin.ops.sql.spark_statements import for_spark
from icepuffin.ops.sql.statements import (
    CreateIndex,
    DropIndex,
    Explain,
    Nearest,
    RefreshIndex,
    ShowIndexes,
    SparkStatement,
    Statement,
)
from icepuffin.ops.sql.values import DISTANCE
from icepuffin.ops.table.metadata_memo import snapshots_by_id
from icepuffin.ops.table.snapshots import ref_snapshot_id, schema_at, with_zone
from icepuffin.ops.tasks.task_runner import LocalRunner, TaskRunner

if TYPE_CHECKING:
    from icepuffin.ops.search.reader import IndexReader
    from icepuffin.ops.search.result import SearchResult

_READERS = 8
_MAX_DIGITS_OF_AN_ID = 20
_WORDS = (
    "needs an index with words, and is no function of Spark: write SELECT columns FROM ns.t "
    "[WHERE match(column, 'words') AND ...] ORDER BY match(column, 'words') DESC LIMIT k, or "
    "ORDER BY hybrid(cosine_distance(column, ARRAY(...)), match(column, 'words')) LIMIT k"
)
_WITHOUT_SPARK = (
    "For Spark, repeat the command with --spark, or give SqlSession a session (`spark=`). Without Spark, "
    "write SELECT columns FROM ns.t [WHERE ...] ORDER BY cosine_distance(column, ARRAY(...)) LIMIT k, or, for all "
    "rows within a distance, ... WHERE cosine_distance(column, ARRAY(...)) < 0.5: the distance by the index's metric"
)


@dataclass(frozen=True, slots=True, repr=False)
class SqlResult(Presentation):
    """The rows of an answer, and how they were found."""

    rows: pa.Table
    how: str
    """The path that answered, and why"""
    search: "SearchResult | None" = None
    """Coverage, profile and warnings, where a search answered"""
    is_text: bool = False
    """Whether the rows are lines to read: a plan, or what was done"""

    def headline(self) -> str:
        return f"{plural(self.rows.num_rows, 'row')}, {self.how}"

    def grids(self) -> Iterator[Grid]:
        """The first rows, or all lines."""
        lines = [(line,) for line in self.rows.column(0).to_pylist()] if self.is_text else []
        yield Grid("", lines) if self.is_text else Grid.of_rows("", self.rows, SHOWN_ROWS)


OpenTable = Callable[[str], tuple[Table, StorageConfig]]
"""Loads a table by its name in the text, with what its files are read with"""


class SqlSession:
    """Runs SQL on Iceberg tables: nearest rows by an index, statements on indexes, the rest by Spark if there is one.

    Made by `SqlSession.on(catalog)`. Readers stay open between statements for as long as the table is the same, and
    threads may share them. `spark`, a session that knows the same tables, runs what no index answers, and its tasks
    search indexes of more than `in_process_mb`. `runner_for` gives the runner that builds an index version, by the
    number of the table's rows. Default: the tasks of `spark` from 200,000 rows on, this process under that. `progress`
    is called while a version is built, as by `refresh`. `spark_catalog`: Spark's name of the catalog that tables named
    without one are in; a statement that Spark runs makes it the session's current one. Default: the current one.
    `ref_of` gives the branch or tag of a table for whose newest snapshot statements build. Default: `main`.

    Raises
    ------
    SqlError
        By `sql`: the statement is not understood, or needs Spark.
    ValueError
        `threads` is under 1.

    Examples
    --------
    >>> session = icepuffin.SqlSession.on(table.catalog)
    >>> text = "SELECT name FROM demo.packages ORDER BY cosine_distance(embedding, :query) LIMIT 3"
    >>> session.sql(text, {"query": query}).rows.num_rows
    3
    """

    def __init__(
        self,
        open_table: OpenTable,
        *,
        spark: Any = None,
        runner_for: Callable[[int], TaskRunner] | None = None,
        threads: int | None = None,
        in_process_mb: int = IN_PROCESS_MB,
        progress: RefreshProgress | None = None,
        spark_catalog: str | None = None,
        ref_of: Callable[[Table], str] = lambda table: "main",
    ) -> None:
        if not callable(open_table):
            raise TypeError("SqlSession takes a function that loads a table by its name; SqlSession.on takes a catalog")
        self._load = open_table
        self._spark = spark
        self._threads = thread_count(threads)
        self._runner_for = runner_for or self._own_runner
        self._in_process_mb = in_process_mb
        self._progress = progress
        self._spark_catalog = spark_catalog
        self._ref_of = ref_of
        self._readers: RecentValues[Hashable, IndexReader] = RecentValues(_READERS)

    @classmethod
    def on(
        cls, catalog: Catalog, *, storage: StorageConfig | None = None, spark: Any = None, threads: int | None = None
    ) -> "SqlSession":
        """Open a session on the tables of one catalog.

        Parameters
        ----------
        catalog : pyiceberg.catalog.Catalog
            The catalog. Statements name its tables with their namespaces. Before these its own name may stand.
        storage : StorageConfig
            How files are reached. Default: what the catalog says and vends.
        spark : pyspark.sql.SparkSession
            Session that knows the same tables, and runs what no index answers. Its tasks search large indexes and build
            those of tables of 200,000 rows and more. Default: this process does, and other statements are refused.
        threads : int
            Threads of this process. Default: one per core.

        Returns
        -------
        SqlSession
            Keep it: readers stay open between statements.
        """
        require_type(
            catalog, Catalog, "SqlSession.on takes a PyIceberg catalog", "open it first, as in load_catalog(...)"
        )

        def load(name: str) -> tuple[Table, StorageConfig]:
            if "." not in name:
                raise UnknownTableError(f"{name}: name the table with its namespace, as in ns.{name}")
            first, _, rest = name.partition(".")
            named = first == catalog.name and "." in rest
            absent: list[NoSuchTableError] = []
            for identifier in (rest, name) if named else (name,):
                try:
                    table = catalog.load_table(identifier)
                except NoSuchTableError as error:
                    absent.append(error)
                else:
                    return table, storage or storage_of(table)
            longer = (rest if named else name).count(".") > 1
            hint = "; a snapshot of one is VERSION AS OF its id or name" if longer else ""
            reason = other_reason(absent[0], catalog.properties)
            raise UnknownTableError(f"there is no table {name}{reason}{hint}") from without_values(
                absent[0], catalog.properties
            )

        return cls(load, spark=spark, threads=threads)

    def sql(self, text: str, parameters: Mapping[str, Any] | Sequence[Any] | None = None) -> SqlResult:
        """Run one statement.

        Parameters
        ----------
        text : str
            The statement.
        parameters : mapping or sequence
            Values of `:name` or of `?` in the statement. Default: none.

        Returns
        -------
        SqlResult
            `rows`, a pyarrow.Table; `how`, the path that answered, and why; `search`, the SearchResult if one answered.

        Raises
        ------
        SqlError
            The statement is not understood, or needs Spark. What searching and building raise is raised, too.
        """
        require_type(text, str, "sql takes a statement", 'write sql("SELECT ...")')
        try:
            return self._run(parse(text, parameters, has_spark=self._spark is not None))
        except RecursionError as error:
            raise SqlError(f"the statement cannot be run: {TOO_DEEP}") from error

    def _open(self, name: str) -> tuple[Table, StorageConfig]:
        """A table, and how its files are reached. Raises RestrictedTableError: open readers are shared by statements,
        and Spark answers what they do not.
        """
        table, storage = self._load(name)
        require_unrestricted(table)
        return table, storage

    def _own_runner(self, rows: int) -> TaskRunner:
        if self._spark is None or rows < DRIVER_ONLY_ROWS:
            return LocalRunner(self._threads)
        return SparkRunner(self._spark)

    def _run(self, statement: Statement) -> SqlResult:
        match statement:
            case Nearest():
                return self._search(statement)
            case Explain():
                return self._explain(statement)
            case CreateIndex() | RefreshIndex() | DropIndex() | ShowIndexes():
                table, storage = self._open(statement.table)
                builder = Builder(self._runner_for, storage, self._progress, self._ref_of)
                rows, how = run_on(table, statement, builder=builder)
                return SqlResult(rows, how, is_text=rows.column_names == [MESSAGE])
            case SparkStatement():
                return self._run_on_spark(statement)

    def _search(self, statement: Nearest) -> SqlResult:
        try:
            table, storage = self._open(statement.table)
            statement = self._at_snapshot(statement, table)
            return self._search_table(statement, table, schema_at(table, statement.snapshot), storage)
        except (NotIndexableError, FilterError) as error:
            if self._spark is None and isinstance(error, UnknownTableError):
                raise  # what works without Spark is no answer to a mistyped name
            return self._run_on_spark(_otherwise(statement, error))

    def _at_snapshot(self, statement: Nearest, table: Table) -> Nearest:
        """The statement at the branch that Spark is set to read, if it has no snapshot; and see `_with_id`."""
        audited = table.properties.get("write.wap.enabled", "").lower() == "true"
        if audited and statement.snapshot is None and self._spark is not None:
            with reported(self._spark, "the statement"):
                branch = self._spark.conf.get("spark.wap.branch", None)
            statement = replace(statement, snapshot=branch if branch in table.metadata.refs else None)
        return _with_id(statement, table)

    def _search_table(self, statement: Nearest, table: Table, schema: Schema, storage: StorageConfig) -> SqlResult:
        first = _first_step(schema, statement)
        index, why = _find_index(table, schema, statement)
        if statement.snapshot is None and table.metadata.current_snapshot_id is None:
            if statement.vector_column:
                resolve_column(statement.vector_column, schema, statement.table, _element_type(table, statement))
            empty = no_rows(arrow_schema(schema).append(pa.field(DISTANCE, pa.float64())))
            rows = _postprocessed(empty, statement.steps, _columns(schema))
            return SqlResult(rows, f"{statement.table} has no rows: nothing was ever written to it")
        needed = first.columns()
        columns = [field.name for field in schema.fields if field.name in needed]
        reader = self._reader(statement, table, index, storage)
        # a distance in SQL is that of the row, and no estimate by codes
        by_default = {"rerank": True} if statement.vector_column and index is not None and index.code_bits else {}
        result = _answer(statement, reader, columns, by_default | statement.hints.parameters)
        distance = result.rows["score" if statement.words else "distance"]
        distance = pc.negate(distance) if statement.negated else distance
        own = result.rows.num_columns - len(columns)
        rows_found = result.rows.select(range(own, own + len(columns))).rename_columns(columns)
        found = [field for field in _columns(schema) if field.name in {*columns, DISTANCE}]
        rows = _postprocessed(rows_found.append_column(DISTANCE, distance), statement.steps, found)
        return SqlResult(rows, f"{why}; {result.coverage}: {result.profile.why}", result)

    def _reader(
        self, statement: Nearest, table: Table, index: IndexDefinition | None, storage: StorageConfig
    ) -> "IndexReader":
        """A reader that is open already, if the table's metadata is still the same; else a new one."""
        name = (statement.vector_column, statement.metric) if index is None else index.name
        at = statement.snapshot
        # Python ignores `fold` where the zone is the same: the hour that a clock shows twice
        key = (*_state(table), name, (with_zone(at).timestamp(),) if isinstance(at, datetime) else at)
        return self._readers.get(key, lambda: self._open_reader(statement, table, index, storage))

    def _open_reader(
        self, statement: Nearest, table: Table, index: IndexDefinition | None, storage: StorageConfig
    ) -> "IndexReader":
        from icepuffin.ops.search.opening import open_exact, open_index  # noqa: PLC0415  kernels, where something is searched

        if index is None and statement.metric is not None:
            return open_exact(
                table,
                statement.vector_column,
                statement.metric,
                element_type=_element_type(table, statement),
                snapshot=statement.snapshot,
                storage=storage,
            )
        return open_index(
            table,
            index,
            snapshot=statement.snapshot,
            storage=storage,
            threads=self._threads,
            runner=None if self._spark is None else SparkRunner(self._spark),
            in_process_mb=self._in_process_mb,
        )

    def _explain(self, explained: Explain) -> SqlResult:
        statement = explained.statement
        if isinstance(statement, SparkStatement):
            engine = "Spark runs it as it is" if self._spark is not None else f"it does not run here. {_WITHOUT_SPARK}"
            if statement.functions or statement.hints:
                engine = _without_index(statement)
            return SqlResult(*message_of(f"no index answers it: {statement.why}; {engine}"), is_text=True)
        if not isinstance(statement, Nearest):
            return SqlResult(*message_of(str(type(statement).__doc__)), is_text=True)
        if explained.analyze:
            from icepuffin.ops.search.result import explain  # noqa: PLC0415  kernels, as above

            answer = self._search(statement)
            parts = [] if answer.search is None else explain(answer.search)
            lines = [answer.how, *(f"{part:<10} {text}" for part, text in parts)]
            return SqlResult(pa.table({"plan": lines}), answer.how, answer.search, is_text=True)
        try:
            table, storage = self._open(statement.table)
            statement = self._at_snapshot(statement, table)
            schema = schema_at(table, statement.snapshot)
            _first_step(schema, statement)
            if statement.where is not None:
                RowPredicate(statement.where.expression, schema)
        except (NotIndexableError, FilterError) as error:
            return self._explain(replace(explained, statement=_otherwise(statement, error)))
        index, why = _find_index(table, schema, statement)
        lines = [why]
        if index is not None and (table.metadata.current_snapshot_id is not None or statement.snapshot is not None):
            reader = self._reader(statement, table, index, storage)
            lines.append(f"coverage: {reader.coverage}; {reader.why}")
        return SqlResult(pa.table({"plan": [*lines, *_plan_lines(statement)]}), lines[0], is_text=True)

    def _run_on_spark(self, statement: SparkStatement) -> SqlResult:
        if statement.functions or (statement.hints and self._spark is not None):
            raise SqlError(f"no index answers this statement: {statement.why}; {_without_index(statement)}")
        if self._spark is None:
            raise SqlError(f"no index answers this statement: {statement.why}. {_WITHOUT_SPARK}")
        text = for_spark(statement)
        with reported(self._spark, "the statement", typed=False):
            if self._spark_catalog is not None:
                self._spark.catalog.setCurrentCatalog(self._spark_catalog)
            _refresh(self._spark, statement.tables)
            rows = self._spark.sql(text).toArrow()
        return SqlResult(rows, f"Spark ran it as it is: {statement.why}")


def _refresh(spark: Any, tables: frozenset[str]) -> None:
    """Let Spark read the newest state of tables, as searches do: its catalogs may keep one for as long as it is read.

    A metadata table or a branch that a name ends in, `ns.t.files`, has the state that its table has. Other names, as
    those of a query's own parts, are left to Spark, which reports what it does not know. So are tables of types that
    it lacks, as of times of day: it may drop them, or the statement's own parts may have their names.
    """
    from pyspark.errors import AnalysisException, UnsupportedOperationException  # noqa: PLC0415  only with a session

    names = {*tables, *(name.rpartition(".`")[0] for name in tables if name.count("`.`") > 1)}
    for name in sorted(names):
        with suppress(AnalysisException, UnsupportedOperationException):
            if "`.`" in name or not spark.catalog.getTable(name).isTemporary:  # what the user has cached stays
                spark.catalog.refreshTable(name)


def _without_index(statement: SparkStatement) -> str:
    """Why Spark does not get a statement with functions, or with hints, that are for an index."""
    if statement.functions:
        return f"{statement.functions[0]}(...) {_WORDS}"
    return f"Spark would ignore the hint {statement.hints[0].upper()}: leave it out"


def _state(table: Table) -> tuple[str, str, int]:
    """Key of a table's metadata. The name of a metadata file alone may come again: some catalogs number the files of a
    table, and number those of the next table of its name alike.
    """
    return str(table.metadata.table_uuid), table.metadata_location, table.metadata.last_updated_ms


def _with_id(statement: Nearest, table: Table) -> Nearest:
    """The statement with an id in place of its text: to Spark, ids of snapshots come before names of refs, and a text
    that is neither is no time. Raises UnknownSnapshotError for such a text.
    """
    name = statement.snapshot
    if not isinstance(name, str):
        return statement
    is_number = name.isdecimal() and len(name) < _MAX_DIGITS_OF_AN_ID
    is_id = is_number and int(name) in snapshots_by_id(table.metadata)
    if is_id or (is_number and name not in table.metadata.refs):
        return replace(statement, snapshot=int(name))
    ref_snapshot_id(table, name)
    return statement


def _element_type(table: Table, statement: Nearest) -> str:
    """The element type of a column, as the indexes on it say; `OF_COLUMN` where there is none. Hamming's are bits.

    Raises SqlError where they differ.
    """
    if statement.metric is Metric.HAMMING:
        return OF_BITS
    definitions = _of_column(list_definitions(table), schema_at(table, statement.snapshot), statement)
    _require_one_element_type(definitions, "drop the others, or search from Python")
    return definitions[0].element_type if definitions else OF_COLUMN


def _of_column(definitions: Iterable[IndexDefinition], schema: Schema, statement: Nearest) -> list[IndexDefinition]:
    """The indexes on the column: by field id, as a rename does not lose an index, or by name where there is none."""
    field_ids = {field.name: field.field_id for field in schema.fields}
    field_id = field_ids.get(statement.vector_column)
    return [
        one
        for one in definitions
        if one.field_id == field_id is not None
        or (one.column == statement.vector_column and (one.field_id is None or field_id is None))
    ]


def _require_one_element_type(definitions: Sequence[IndexDefinition], remedy: str) -> None:
    """Raises SqlError where indexes read the bytes of their column as different numbers."""
    if len({one.element_type for one in definitions}) > 1:
        read = ", ".join(f"{one.name} as {one.element_type}" for one in definitions)
        raise SqlError(f"the indexes on {definitions[0].column} read its bytes as different numbers ({read}): {remedy}")


def _otherwise(statement: Nearest, error: NotIndexableError | FilterError) -> SparkStatement:
    """The statement for Spark, as the table is unknown here or has types that are not supported here."""
    if statement.otherwise is None:
        raise error
    return replace(statement.otherwise, why=str(error))


def _answer(
    statement: Nearest, reader: "IndexReader", columns: Sequence[str], parameters: Mapping[str, Any]
) -> "SearchResult":
    """The rows of the first step. `parameters`: search parameters of the k nearest."""
    query = np.array([statement.query]) if isinstance(statement.query, tuple) else statement.query
    if statement.limit is not None or query is None:
        return _nearest(query, statement, reader, columns, parameters)
    within = math.inf if statement.within is None else statement.within
    return reader.within(query, within, inclusive=statement.inclusive, columns=columns, where=_expression(statement))


def _expression(statement: Nearest) -> BooleanExpression | None:
    parts = [*statement.having, *([] if statement.where is None else [statement.where.expression])]
    return reduce(And, parts) if parts else None


def _postprocessed(rows: pa.Table, steps: Iterable[PostprocessingStep], fields: Sequence[NestedField]) -> pa.Table:
    """The rows of the answer, in types that Spark has. `fields`: the columns of the rows that were found."""
    for step in steps:
        rows, fields = step.apply(rows, fields), step.check(fields)
    return as_spark(rows)


def _columns(schema: Schema) -> list[NestedField]:
    """Columns of rows that were found: those of the table, and the distance."""
    return [*schema.fields, named_field(DISTANCE, DoubleType())]


def _nearest(
    query: bytes | npt.NDArray[np.float64] | None,
    statement: Nearest,
    reader: "IndexReader",
    columns: Sequence[str],
    parameters: Mapping[str, Any],
) -> "SearchResult":
    """The k nearest rows; with `ties`, also all rows at the distance of the last: further keys choose among them."""
    k = most = statement.limit or 1
    if (words := statement.words) is not None:
        parameters = {
            "text": words.text, "text_columns": words.columns, "text_weight": statement.text_weight, **parameters,
        }  # fmt: skip
    while True:
        most = most + 1 if statement.ties and most == k else 2 * most if statement.ties else k
        result = reader.search(query, most, columns=columns, where=_expression(statement), **parameters)
        distances = result.rows["score" if statement.words else "distance"]
        if not statement.ties or len(distances) < most or distances[k - 1].as_py() != distances[-1].as_py():
            return result


def _plan_lines(statement: Nearest) -> list[str]:
    """The steps of a search, one line each."""
    lines = []
    if statement.where is not None:
        lines.append(f"condition, pushed to partitions, statistics and rows: {statement.where.text}")
    lines += [f"only rows with a word of {match}" for match in statement.having]
    if statement.limit is None:
        sign = "<=" if statement.inclusive else "<"
        pruned = "" if statement.metric is not Metric.INNER_PRODUCT else "; inner product lets no file be left out"
        lines.append(f"every row with a distance {sign} {statement.within:g}, exactly{pruned}")
    elif statement.words is not None:
        fused = "by ranks" if statement.text_weight is None else f"with a text weight of {statement.text_weight:g}"
        vector = f"{statement.vector_column} and " if statement.vector_column else ""
        lines.append(f"the {statement.limit} best rows by {vector}{statement.words}{f', fused {fused}' * bool(vector)}")
    else:
        lines.append(f"the {statement.limit} nearest rows")
    if statement.hints.parameters:
        lines.append("hints: " + ", ".join(f"{name} = {value}" for name, value in statement.hints.parameters.items()))
    for step in statement.steps:
        done = [f"WHERE {step.where.text}"] if step.where is not None else []
        done += ["ORDER BY " + ", ".join(item.column for item in step.order)] if step.order else []
        done += [f"LIMIT {step.limit}"] if step.limit is not None and statement.limit != step.limit else []
        done += [f"OFFSET {step.offset}"] if step.offset else []
        if done:
            lines.append(
                "then, of these rows: " + ", ".join(done).replace(DISTANCE, "score" if statement.words else "distance")
            )
    return lines


def _first_step(schema: Schema, statement: Nearest) -> PostprocessingStep:
    """The first step over rows of the table. Raises SqlError for a column that the table does not have."""
    names = [field.name for field in schema.fields]
    if DISTANCE in names:
        raise NotIndexableError(f"{statement.table} has a column `{DISTANCE}`, which is the name of the distance here")
    if ambiguous := sorted(statement.absent & {name.lower() for name in names}):
        raise NotIndexableError(
            f"{ambiguous[0]} is a column of {statement.table} and a name that SELECT gives beside *"
        )
    first = replace(statement.steps[0], outputs=expand_star(statement.outputs, names))
    filtered = frozenset() if statement.where is None else statement.where.columns
    words = statement.words_columns
    if unknown := sorted((first.columns() | filtered | words) - set(names)):
        spark_may = unknown[0].lower() in {name.lower() for name in names}  # it ignores case
        hint = ""
        if unknown[0] in {output.name for output in first.outputs or () if output.column != output.name}:
            spark_may = unknown[0] in replace(first, where=None, order=()).columns()
            hint = "; in SELECT, only Spark reads its names" if spark_may else "; WHERE comes before SELECT gives names"
        error = NotIndexableError if spark_may else SqlError
        raise error(f"{statement.table} has no column {unknown[0]!r}; it has {', '.join(names)}{hint}")
    require_distinct_names((statement.vector_column, *filtered, *words), names)
    if statement.where is not None:
        statement.where.require_as_in_spark({field.name: field.field_type for field in schema.fields})
    fields: Sequence[NestedField] = _columns(schema)
    for step in statement.steps:
        fields = step.check(fields)
    return first


def _find_index(table: Table, schema: Schema, statement: Nearest) -> tuple[IndexDefinition | None, str]:
    """The index on the column with the metric: the one that a hint names, else of several the first by name that has a
    version, if one has.

    Raises SqlError where there is none of that name, or indexes read the column's bytes as different numbers, and
    DefinitionError where the one of that name is broken.
    """
    definitions = list_definitions(table)
    words = statement.words_columns
    fitting = [one for one in definitions if words <= {*as_named_in(one, schema).text}]
    if statement.vector_column:
        fitting = [one for one in _of_column(fitting, schema, statement) if one.metric is statement.metric]
    wanted = [f"on {statement.vector_column} by {statement.metric}"] if statement.vector_column else []
    wanted += [f"with the words of {', '.join(sorted(words))}"] if words else []
    if (name := statement.hints.index) is not None:
        named = next((one for one in fitting if one.name == name), None)
        if named is None:
            find_definition(table, name)  # raises where this release does not understand it
            names = ", ".join(one.name for one in fitting) or "none"
            what = f"{statement.table} has no index {name} {', '.join(wanted)}"
            raise SqlError(f"the hint INDEX({name}): {what}; there are: {names}")
        return named, f"index {name}, by a hint"
    if statement.vector_column:
        _require_one_element_type(fitting, "name one by a hint, SELECT /*+ INDEX(name) */")
    if fitting:
        chosen = next((one for one in fitting if versions_of(table, one)), fitting[0])
        return chosen, f"index {chosen.name}"
    others = ", ".join(map(_shown_index, (as_named_in(one, schema) for one in definitions))) or "none"
    why = f"no index {', '.join(wanted)} (there are: {others})"
    if words:
        column, metric = statement.vector_column or "vector_column", statement.metric or Metric.COSINE
        raise SqlError(
            f"{statement.table} has {why}: CREATE INDEX name ON {statement.table} USING diskann ({column}) "
            f"WITH (metric = '{metric}', text = '{','.join(sorted(words))}'); CREATE OR REPLACE INDEX gives text to an "
            "index that is there"
        )
    return None, why


def _shown_index(definition: IndexDefinition) -> str:
    text = [f"text {', '.join(definition.text)}"] if definition.text else []
    return f"{definition.name} ({', '.join([definition.column, str(definition.metric), *text])})"
