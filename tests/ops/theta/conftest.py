from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from icepuffin.ops.model import StorageConfig
from icepuffin.ops.theta.requested_statistics import RequestedStatistics

STORAGE = StorageConfig({})
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "at", TimestamptzType(), required=False),
    NestedField(4, "price", DecimalType(12, 2), required=False),
    NestedField(5, "weight", DoubleType(), required=False),
    NestedField(6, "size", IntegerType(), required=False),
    NestedField(7, "embedding", ListType(8, DoubleType(), element_required=False), required=False),
)


class ThreadlessRunner:
    """Runs tasks one after the other, and remembers them."""

    parallelism = 1
    task_threads = 2

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None
    ) -> list[Any]:
        assert label
        self.tasks += tasks
        results = []
        for number, task in enumerate(tasks, 1):
            results.append(function(task))
            if progress:
                progress(number, len(tasks))
        return results

    @property
    def files(self) -> set[str]:
        return {share.file.path for task in self.tasks for share in task.file_parts}

    @property
    def shares(self) -> list[Any]:
        return [share for task in self.tasks for share in task.file_parts]


def rows(start: int, stop: int) -> pa.Table:
    """Row i: all columns are functions of i; `name` has 7 values, every tenth is null, `price` has both signs."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

    numbers = range(start, stop)
    columns = {
        "id": list(numbers),
        "name": [None if i % 10 == 0 else f"name-{i % 7}" for i in numbers],
        "at": [1_700_000_000_000_000 + 1_000_000 * (i // 2) for i in numbers],
        "price": pa.array([i - 50 for i in numbers], pa.int64())
        .cast(pa.decimal128(19, 0))
        .cast(pa.decimal128(12, 2), safe=False),
        "weight": [i / 4 for i in numbers],
        "size": [i % 50 for i in numbers],
        "embedding": [[float(i)] for i in numbers],
    }
    arrow = schema_to_pyarrow(SCHEMA, include_field_ids=False)
    return pa.table(
        [
            pa.array(columns[f.name], f.type) if not isinstance(columns[f.name], pa.Array) else columns[f.name]
            for f in arrow
        ],
        schema=arrow,
    )


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    opened = SqlCatalog("test", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    opened.create_namespace("db")
    yield opened
    opened.engine.dispose()


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return catalog.create_table("db.t", SCHEMA, properties={"format-version": "2"})


@pytest.fixture
def runner() -> ThreadlessRunner:
    return ThreadlessRunner()


def append(table: Table, start: int, stop: int) -> int:
    """Append one data file; the new snapshot's id."""
    table.append(rows(start, stop))
    return current(table)


def current(table: Table) -> int:
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def named(columns: Iterable[str] | None) -> RequestedStatistics:
    """The numbers of distinct values of some columns; None: of those that their types choose. Others are kept up."""
    return RequestedStatistics(ndv=None if columns is None else tuple(columns))
