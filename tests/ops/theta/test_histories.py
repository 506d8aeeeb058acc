"""Random histories: after every change each NDV is the number of distinct values that a scan of the snapshot finds.

Another engine writes rows and statistics, too: what those say is never called fresh, and nothing is built on it.
"""

import datetime as dt
import struct
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import IsNull, LessThan
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    UUIDType,
)

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.snapshots import find_snapshot, is_derived
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta import sketch_packs
from icepuffin.ops.theta.file_sketches import BUDGET_BYTES
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.ops.theta.theta_bounds import parts_to_sketch
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.ops.theta import foreign
from tests.ops.theta.conftest import STORAGE, ThreadlessRunner, current, named

TYPES = {
    "count": IntegerType(),
    "id": LongType(),
    "text": StringType(),
    "octets": BinaryType(),
    "ratio": FloatType(),
    "weight": DoubleType(),
    "price": DecimalType(9, 2),
    "at": TimestamptzType(),
    "key": UUIDType(),
    "day": DateType(),
    "flag": BooleanType(),
    "code": FixedType(3),
}
SCHEMA = Schema(*(NestedField(i, name, kind, required=False) for i, (name, kind) in enumerate(TYPES.items(), 1)))
ODD = (0.0, -0.0, float("nan"), float("inf"), 0.5)


class History:
    """A table, and changes of it that chance chooses."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table = table
        self.random = Random(seed)
        self.kinds = dict(enumerate(TYPES, 1))
        """Kinds of the columns, by field id"""
        self.append()

    def change(self) -> None:
        self.random.choice(
            [
                self.append,
                self.append,
                self.insert_by_another_engine,
                self.insert_by_another_engine,
                self.delete,
                self.delete_rows,
                self.rewrite,
                self.evolve,
                self.add_column,
                self.go_back,
            ]
        )()
        self.table.refresh()

    def append(self) -> None:
        self.table.append(self.rows())

    def insert_by_another_engine(self) -> None:
        ids = [field.field_id for field in self.table.schema().fields]
        foreign.insert(self.table, self.rows(), self.random.sample(ids, self.random.randrange(1, len(ids) + 1)))

    def rows(self) -> pa.Table:
        rows, spread = self.random.randrange(1, 60), self.random.choice([2, 20, 200])
        columns = []
        for field, target in zip(self.table.schema().fields, self.table.schema().as_arrow(), strict=True):
            values = [self.value(self.kinds[field.field_id], spread) for _ in range(rows)]
            plain = target.type.storage_type if isinstance(target.type, pa.BaseExtensionType) else target.type
            made = pa.array(values, plain)
            columns.append(made if plain is target.type else pa.ExtensionArray.from_storage(target.type, made))
        return pa.table(columns, schema=self.table.schema().as_arrow())

    def value(self, name: str, spread: int) -> Any:
        number = self.random.randrange(spread)
        values = {
            "count": number, "id": number * 2**33, "text": "é" * number, "octets": bytes(number),
            "ratio": ODD[number % 5], "weight": ODD[number % 5] if number < 10 else number / 7,
            "price": Decimal(number - 10).scaleb(-2), "at": 10**15 - number, "key": UUID(int=number).bytes,
            "day": number - 100, "flag": number % 2 == 0, "code": number.to_bytes(3),
        }  # fmt: skip
        return None if self.random.random() < 0.1 else values[name]

    def delete(self) -> None:
        first, text = (self.table.schema().find_column_name(i) for i in (1, 3))
        self.table.delete(self.random.choice([LessThan(str(first), 3), IsNull(str(text))]))

    def delete_rows(self) -> None:
        files = {task.file.file_path: task.file.record_count for task in self.table.scan().plan_files()}
        if files:
            path = self.random.choice([*files])  # as written: names of files are drawn anew in each run
            append_position_deletes(self.table, {path: np.array([self.random.randrange(files[path])])})

    def rewrite(self) -> None:
        self.table.overwrite(self.table.scan().to_arrow())

    def evolve(self) -> None:
        with self.table.update_schema() as change:
            change.rename_column(str(self.table.schema().find_column_name(3)), f"text{self.random.randrange(10**6)}")
            if isinstance(self.table.schema().find_type(1), IntegerType):
                change.update_column("count", LongType())
                change.update_column("ratio", DoubleType())
                change.update_column("price", DecimalType(12, 2))

    def add_column(self) -> None:
        """Files of before have its default, or null."""
        kind = self.random.choice(["count", "text", "price", "at", "octets", "ratio"])
        default = None if self.random.random() < 0.3 else self.value(kind, 5)
        default = None if isinstance(default, float) and not np.isfinite(default) else default
        name = f"late{len(self.kinds)}"
        with self.table.update_schema() as change:
            change.add_column(name, TYPES[kind], default_value=literals(kind, default))
        self.kinds[self.table.schema().find_field(name).field_id] = kind

    def go_back(self) -> None:
        self.table.manage_snapshots().set_current_snapshot(snapshot_id=self.random.choice(self.snapshots())).commit()

    def snapshots(self) -> list[int]:
        return [item.snapshot_id for item in self.table.metadata.snapshots if not is_derived(item)]


def literals(kind: str, value: Any) -> Any:
    """A default as PyIceberg takes it."""
    return dt.datetime.fromtimestamp(value / 1e6, dt.UTC) if kind == "at" and value is not None else value


def distinct(column: pa.ChunkedArray) -> int:
    """As Iceberg's statistics count: floats by their bits, neither nulls nor what is empty."""
    values = [value for value in column.to_pylist() if value is not None and value not in ("", b"")]
    return len({struct.pack("<d", value) if isinstance(value, float) else value for value in values})


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("seed", range(4))
def test_sketches_follow_every_change(catalog: SqlCatalog, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch_packs, "PACK_BYTES", (sketch_packs.PACK_BYTES, 500)[seed % 2])
    monkeypatch.setattr(sketch_packs, "FEW_FILES", (sketch_packs.FEW_FILES, 0)[seed // 2])
    table = catalog.create_table("db.h", SCHEMA, properties={"format-version": "2"})
    history = History(table, seed)
    for step in range(10):
        history.change()
        snapshot_id = current(table) if step % 3 else history.random.choice(history.snapshots())
        names = [field.name for field in table.schema().fields]
        names = names if step % 2 else history.random.sample(names, 3)
        requested = named(names if step % 3 else None)
        most_parts = parts_to_sketch(table, find_snapshot(table, SnapshotId(snapshot_id)), requested)
        report = count_theta_sketches(
            RunContext(table, STORAGE, ThreadlessRunner()),
            snapshot_id,
            requested=requested,
            budget_bytes=history.random.choice([0, 2_000, BUDGET_BYTES]),
        ).publish()
        assert report.files_sketched <= most_parts
        entries = read_ndv(table, snapshot_id).entries
        then = table.schemas()[table.metadata.snapshot_by_id(snapshot_id).schema_id or 0]  # type: ignore[union-attr]
        rows = table.scan(snapshot_id=snapshot_id).to_arrow().rename_columns([field.name for field in then.fields])
        for name, ndv in report.ndv.items():
            field = table.schema().find_field(name)
            name_then = str(then.find_column_name(field.field_id))
            entry = entries[name_then]
            assert ndv == distinct(rows[name_then]) or not entry.ours, (step, name)
            assert entry.fresh == entry.ours
        assert report.fresh == (bool(entries) and all(entry.ours for entry in entries.values()))
