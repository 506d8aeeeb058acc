"""Values of identity partitions: as rows have them, in conditions, in columns that files lack, and in deletes."""

import math
import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo, IsNaN
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    LongType,
    NestedField,
    TimestamptzType,
    UUIDType,
)

from examples.demo.row_deletes import commit_delete_files
from icepuffin.ops.filters.matches import find_matches
from icepuffin.ops.storage import open_storage
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import _identities, live_files
from icepuffin.ops.table.live_rows import read_live
from icepuffin.ops.table.row_deletes import deleted_positions
from tests.conftest import STORAGE, make_rows
from tests.ops.search.partitioned import append_rows

TableFactory = Callable[..., Table]
RNG = random.Random(7)
VALUES: dict[str, tuple[Any, pa.DataType, list[Any]]] = {
    "double": (DoubleType(), pa.float64(), [0.1, 1 / 3, 1e-300, -0.0, math.inf, *(RNG.random() for _ in range(5))]),
    "float": (FloatType(), pa.float32(), [float(np.float32(RNG.random())) for _ in range(5)]),
    "uuid": (UUIDType(), pa.uuid(), [uuid.UUID(int=RNG.getrandbits(128)) for _ in range(5)]),
    "decimal": (DecimalType(30, 2), pa.decimal128(30, 2), [Decimal("9" * 27 + ".99"), Decimal("-0.10")]),
    "fixed": (FixedType(3), pa.binary(3), [b"abc", b"\xff\xff\xff", b"\0\0\0"]),
    "time": (TimestamptzType(), pa.timestamp("us", "UTC"), [RNG.randrange(-(10**15), 10**15) for _ in range(3)]),
}  # fmt: skip
TYPES = pytest.mark.parametrize(("kind", "arrow", "values"), VALUES.values(), ids=list(VALUES))


@pytest.fixture
def partitioned(table_factory: TableFactory) -> Callable[..., Table]:
    """Gives a table whose rows are (id, value), with a partition per value."""

    def make(kind: Any, arrow: pa.DataType, values: list[Any]) -> Table:
        catalog = table_factory().catalog
        schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "v", kind, required=False))
        table = catalog.create_table("db.partitioned", schema, properties={"format-version": "2"})
        with table.update_spec() as spec:
            spec.add_field("v", IdentityTransform(), "part")
        stored = [value.bytes if isinstance(value, uuid.UUID) else value for value in values]
        append_rows(table.refresh(), pa.table({"id": range(len(values)), "v": pa.array(stored, arrow)}), "v")
        return table.refresh()

    return make


def delete_first_rows(table: Table, paths: list[str], partition: Record) -> None:
    """One position delete file for several data files of a partition, without bounds, as some writers make them."""
    path = table.location_provider().new_data_location("deletes.parquet")
    pq.write_table(pa.table({"file_path": sorted(paths), "pos": pa.array([0] * len(paths), pa.int64())}), to_path(path))
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=len(paths),
        file_size_in_bytes=to_path(path).stat().st_size,
    )
    file.spec_id = table.spec().spec_id
    commit_delete_files(table, [file])


@TYPES
def test_a_value_of_a_partition_finds_its_rows_and_no_others(
    partitioned: Callable[..., Table], kind: Any, arrow: pa.DataType, values: list[Any]
) -> None:
    table = partitioned(kind, arrow, values)
    live = live_files(table, table.metadata.current_snapshot_id or 0)
    of_file = [pq.read_table(to_path(file.path))["id"][0].as_py() for file in live.files]
    literals = pa.array(values, arrow).to_pylist() if arrow == pa.timestamp("us", "UTC") else values
    for number, value in enumerate(literals):
        literal = value.isoformat() if hasattr(value, "isoformat") else value
        matches = find_matches(table, live, table.schema(), EqualTo("v", literal), STORAGE)
        assert [of_file[file] for file in matches.positions] == [number]
        assert matches.files_read == 1


@TYPES
def test_files_that_lack_a_column_have_their_partitions_value(
    partitioned: Callable[..., Table], kind: Any, arrow: pa.DataType, values: list[Any]
) -> None:
    table = partitioned(kind, arrow, values)
    rows = []
    for file in live_files(table, table.metadata.current_snapshot_id or 0).files:
        path = to_path(file.path)
        pq.write_table(pq.read_table(path).drop_columns(["v"]), path)
        stripped = replace(file, size=path.stat().st_size)
        rows += [
            row
            for batch in read_live(open_storage(file.path, STORAGE), stripped, table.schema(), [1, 2])
            for row in batch.columns.to_pylist()
        ]
    stored = [value.bytes if isinstance(value, uuid.UUID) else value for value in values]
    assert sorted(rows, key=lambda row: row["id"]) == [
        {"id": number, "v": value} for number, value in enumerate(pa.array(stored, arrow).to_pylist())
    ]


@pytest.mark.parametrize(("kind", "arrow"), [(DoubleType(), pa.float64()), (FloatType(), pa.float32())])
def test_deletes_of_the_partition_of_nan_apply_to_its_files(
    partitioned: Callable[..., Table], kind: Any, arrow: pa.DataType
) -> None:
    table = partitioned(kind, arrow, [0.5, math.nan])
    append_rows(table, pa.table({"id": [2, 3], "v": pa.array([math.nan, math.nan], arrow)}), "v")
    live = live_files(table.refresh(), table.metadata.current_snapshot_id or 0)
    in_nan = [file.path for file in live.files if math.isnan(file.constants[0][1])]
    assert find_matches(table, live, table.schema(), IsNaN("v"), STORAGE).count == 3
    delete_first_rows(table, in_nan, Record(math.nan))
    live = live_files(table.refresh(), table.metadata.current_snapshot_id or 0)
    deleted = {file.path: deleted_positions(open_storage(file.path, STORAGE), file).tolist() for file in live.files}
    assert deleted == {file.path: [0] if file.path in in_nan else [] for file in live.files}


def test_deletes_of_the_partition_of_negative_zero_do_not_reach_that_of_zero(
    partitioned: Callable[..., Table],
) -> None:
    table = partitioned(DoubleType(), pa.float64(), [0.0, -0.0])
    live = live_files(table.refresh(), table.metadata.current_snapshot_id or 0)
    (negative,) = (file.path for file in live.files if math.copysign(1, file.constants[0][1]) < 0)
    delete_first_rows(table, [file.path for file in live.files], Record(-0.0))
    live = live_files(table.refresh(), table.metadata.current_snapshot_id or 0)
    deleted = {file.path: deleted_positions(open_storage(file.path, STORAGE), file).tolist() for file in live.files}
    assert len(deleted) == 2
    assert deleted == {path: [0] if path == negative else [] for path in deleted}


def test_the_start_of_a_text_is_no_value_of_its_column(table_factory: TableFactory) -> None:
    table = table_factory()
    with table.update_spec() as spec:
        spec.add_field("name", TruncateTransform(2), "start")
    append_rows(table.refresh(), make_rows(0, 1), "name")
    (file,) = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files
    assert file.constants == ()


def test_the_value_of_an_identity_column_is_at_its_place_among_all_fields_of_the_partition() -> None:
    transforms = (TruncateTransform(4), IdentityTransform(), TruncateTransform(2), IdentityTransform())
    fields = (PartitionField(7 + at, 1000 + at, transform, f"p{at}") for at, transform in enumerate(transforms))
    assert _identities(PartitionSpec(*fields)) == ((1, 8), (3, 10))
