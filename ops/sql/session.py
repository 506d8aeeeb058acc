"""Running statements: the nearest rows by `ops.probe`, indexes by `ops.index`, the rest by Spark where there is one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from ops.catalog.snapshots import resolve_snapshot
from ops.catalog.versions import versions
from ops.index import create, drop, list_definitions, load_definition, materialize_index
from ops.index.definition import IndexDefinition
from ops.model import StorageConfig
from ops.probe import SearchResult, exact_search, open_index
from ops.spark.runner import LocalRunner, TaskRunner
from ops.sql.errors import SqlError
from ops.sql.parse import parse
from ops.sql.statements import (
    CreateIndex,
    DropIndex,
    Explain,
    Foreign,
    Nearest,
    Output,
    RefreshIndex,
    ShowIndexes,
    Statement,
)

_WITHOUT_SPARK = (
    "Without a Spark session only the k nearest rows of one table can be asked for: "
    "SELECT columns FROM ns.t [VERSION AS OF ...] [WHERE ...] ORDER BY l2_distance(column, ARRAY(...)) LIMIT k"
)


@dataclass(frozen=True, slots=True)
class SqlResult:
    """Rows, and what answered."""

    rows: pa.Table
    how: str
    """What answered and why, in words"""
    search: SearchResult | None = None
    """Coverage, profile and warnings, where a search answered"""


OpenTable = Callable[[str], tuple[Table, StorageConfig]]
"""Loads a table by its name in the text, with what its files are read with"""


class SqlSession:
    """Runs SQL on Iceberg tables.

    `spark`, a session that knows the same tables, runs what no index answers. `runner` builds indexes.
    """

    def __init__(
        self, open_table: OpenTable, *, spark: Any = None, runner: TaskRunner | None = None, threads: int = 2
    ) -> None:
        self._open = open_table
        self._spark = spark
        self._runner = runner or LocalRunner(threads)
        self._threads = threads

    @classmethod
    def on(cls, catalog: Catalog, *, storage: StorageConfig, spark: Any = None, threads: int = 2) -> "SqlSession":
        """On the tables of one catalog; `storage` takes the catalog's own properties."""
        return cls(lambda name: (catalog.load_table(name), storage), spark=spark, threads=threads)

    def sql(self, text: str, parameters: Mapping[str, Any] | Sequence[Any] | None = None) -> SqlResult:
        """Run one statement; `:name` or `?` in it take their values from `parameters`.

        Raises SqlError, and what searching and building raise.
        """
        return self._run(parse(text, parameters))

    def _run(self, statement: Statement) -> SqlResult:  # noqa: PLR0911  one a kind of statement
        match statement:
            case Nearest():
                return self._search(statement)
            case Explain():
                return self._explain(statement.statement)
            case CreateIndex():
                return self._create(statement)
            case RefreshIndex():
                return self._refresh(statement)
            case DropIndex():
                tags = drop(self._open(statement.table)[0], statement.name)
                return _told(f"index {statement.name} is dropped", tag=list(tags))
            case ShowIndexes():
                return self._show(statement)
            case Foreign():
                return self._foreign(statement)

    def _search(self, asked: Nearest) -> SqlResult:
        table, storage = self._open(asked.table)
        index, why = _find_index(table, asked)
        names = [field.name for field in table.schemas()[self._schema_id(table, asked)].fields]
        outputs = asked.outputs or tuple(Output(name, name) for name in names)
        columns = list(dict.fromkeys(output.column for output in outputs if output.column is not None))
        query = np.array([asked.query])
        if index is None:
            found = exact_search(
                table, asked.vector_column, asked.metric, query, asked.limit, snapshot=asked.snapshot,
                storage=storage, columns=columns, where=asked.where,
            )  # fmt: skip
        else:
            reader = open_index(table, index, snapshot=asked.snapshot, storage=storage, threads=self._threads)
            found = reader.search(query, asked.limit, columns=columns, where=asked.where)
        distance = pc.negate(found.rows["distance"]) if asked.negated else found.rows["distance"]
        arrays = [distance if output.column is None else found.rows[output.column] for output in outputs]
        rows = pa.Table.from_arrays(arrays, names=[output.name for output in outputs])
        return SqlResult(rows, f"{why}; {found.coverage}: {found.profile.why}", found)

    @staticmethod
    def _schema_id(table: Table, asked: Nearest) -> int:
        return resolve_snapshot(table, asked.snapshot).schema_id

    def _explain(self, statement: Statement) -> SqlResult:
        if isinstance(statement, Foreign):
            engine = "Spark runs it as it is" if self._spark is not None else "it cannot run here"
            return _told(f"no index answers it: {statement.why}; {engine}")
        if not isinstance(statement, Nearest):
            return _told(str(type(statement).__doc__))
        table, storage = self._open(statement.table)
        index, why = _find_index(table, statement)
        lines = [why]
        if index is not None:
            reader = open_index(table, index, snapshot=statement.snapshot, storage=storage, threads=self._threads)
            lines.append(f"coverage: {reader.coverage}; {reader.why}")
        if statement.where is not None:
            lines.append(f"condition, pushed to partitions, statistics and rows: {statement.where}")
        return SqlResult(pa.table({"plan": lines}), lines[0])

    def _create(self, statement: CreateIndex) -> SqlResult:
        table, _ = self._open(statement.table)
        made = create(table, IndexDefinition(name=statement.name, column=statement.column, **_knobs(statement)))
        return _told(f"index {made.name} is defined; REFRESH INDEX {made.name} ON {statement.table} builds it")

    def _refresh(self, statement: RefreshIndex) -> SqlResult:
        table, storage = self._open(statement.table)
        definition = load_definition(table, statement.name)
        head = resolve_snapshot(table).snapshot_id
        report = materialize_index(table, definition, head, runner=self._runner, storage=storage)
        columns = ("action", "reason", "rows", "inserted", "remapped", "tombstones", "recall", "seconds")
        return SqlResult(pa.table({name: [getattr(report, name)] for name in columns}), report.reason)

    def _show(self, statement: ShowIndexes) -> SqlResult:
        table, _ = self._open(statement.table)
        found = list_definitions(table)
        columns: dict[str, list[Any]] = {
            name: [getattr(item, name) for item in found] for name in ("name", "column", "metric", "vectors")
        }
        columns["versions"] = [len(versions(table, "ann", item.name)) for item in found]
        return SqlResult(pa.table(columns), f"indexes in the properties of {statement.table}")

    def _foreign(self, statement: Foreign) -> SqlResult:
        if self._spark is None:
            raise SqlError(f"no index answers this statement: {statement.why}. {_WITHOUT_SPARK}")
        rows = self._spark.sql(statement.text).toArrow()
        return SqlResult(rows, f"Spark ran it as it is: {statement.why}")


def _find_index(table: Table, asked: Nearest) -> tuple[IndexDefinition | None, str]:
    """The index on the column with the metric. Columns are compared by field id: a rename does not lose an index."""
    field = next((field for field in table.schema().fields if field.name == asked.vector_column), None)
    known = list_definitions(table)
    for item in known:
        on_column = item.column == asked.vector_column if field is None else item.field_id == field.field_id
        if on_column and item.metric_value is asked.metric:
            return item, f"index {item.name}"
    others = ", ".join(f"{item.name} ({item.column}, {item.metric})" for item in known) or "none"
    return None, f"no index on {asked.vector_column} by {asked.metric.label} (there are: {others})"


def _knobs(statement: CreateIndex) -> dict[str, Any]:
    types = {field.name: field.type for field in fields(IndexDefinition)}
    knobs: dict[str, Any] = {}
    for key, value in statement.options.items():
        if key not in types or key in {"name", "column", "field_id"}:
            raise SqlError(f"WITH ({key} = ...): an index has {', '.join(sorted(set(types) - {'name', 'field_id'}))}")
        kind = str(types[key])
        try:
            knobs[key] = int(value) if "int" in kind else float(value) if "float" in kind else value
        except ValueError:
            raise SqlError(f"WITH ({key} = {value}): it is {kind}") from None
    return knobs


def _told(text: str, **columns: list[Any]) -> SqlResult:
    return SqlResult(pa.table(columns or {"result": [text]}), text)
