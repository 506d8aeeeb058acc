"""Rows of data files as a snapshot's schema sees them: by field id, whatever the file calls or types its columns."""

import base64
import datetime as dt
import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ops.model import DeleteFile, DeleteKind, LiveFile, StorageConfig
from icepuffin.ops.rows.datafile import DataFile, DataFileError, arrow_schema, mapped_names, take_rows
from icepuffin.ops.rows.vector_column import exact_vectors
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.table.live_rows import read_live
from icepuffin.ops.tasks.attribute_task import column_values
from icepuffin.ops.tasks.sketches.column_updates import update_ndv
from icepuffin.ops.tasks.sketches.theta_task import FilePart, SketchTask, sketch_files
from icepuffin.puffin.blobs.theta_blob import decode
from tests.ops.tasks.sketches.ndvs import ndvs

STORE = LocalStorage()


def column(name: str, field_id: int | None, values: Any, kind: pa.DataType) -> tuple[pa.Field, pa.Array]:
    """A column as Iceberg writers mark it; without an id as other tools write it."""
    metadata = {"PARQUET:field_id": str(field_id)} if field_id is not None else None
    return pa.field(name, kind, metadata=metadata), pa.array(values, kind)


def write(folder: Path, *columns: tuple[pa.Field, pa.Array], row_group_size: int | None = None) -> LiveFile:
    path = folder / f"{len(list(folder.iterdir()))}.parquet"
    schema = pa.schema([field for field, _ in columns])
    table = pa.table([values for _, values in columns], schema=schema)
    pq.write_table(table, path, row_group_size=row_group_size)
    return LiveFile(f"file://{path}", path.stat().st_size, table.num_rows, 1, "PARQUET")


def rows(file: LiveFile, schema: Schema, *field_ids: int) -> list[dict[str, Any]]:
    return [row for batch in read_live(STORE, file, schema, field_ids) for row in batch.columns.to_pylist()]


def one(field_id: int, name: str, kind: Any) -> Schema:
    return Schema(NestedField(field_id, name, kind, required=False))


def test_a_renamed_column_is_read_under_its_new_name(tmp_path: Path) -> None:
    file = write(tmp_path, column("old", 7, [1, 2], pa.int64()))
    assert rows(file, one(7, "new", LongType()), 7) == [{"new": 1}, {"new": 2}]


def test_a_column_dropped_and_added_again_under_its_name_does_not_come_back(tmp_path: Path) -> None:
    file = write(tmp_path, column("a", 1, [1, 2], pa.int64()), column("b", 2, ["x", "y"], pa.string()))
    schema = Schema(NestedField(1, "a", LongType(), required=False), NestedField(3, "b", StringType(), required=False))
    assert rows(file, schema, 1, 3) == [{"a": 1, "b": None}, {"a": 2, "b": None}]


def test_a_file_without_any_of_the_columns_still_has_its_rows(tmp_path: Path) -> None:
    file = write(tmp_path, column("a", 1, [1, 2, 3], pa.int64()), row_group_size=2)
    schema = one(9, "later", ListType(10, FloatType(), element_required=False))
    assert rows(file, schema, 9) == [{"later": None}] * 3
    assert take_rows(STORE, file, schema, [9], np.array([2, 0])).to_pylist() == [{"later": None}] * 2


DEFAULTS: dict[int, tuple[Any, Any]] = {
    2: (StringType(), "web"),
    3: (LongType(), 0),
    4: (BooleanType(), False),
    5: (DoubleType(), -0.5),
    6: (DecimalType(9, 2), Decimal("1.50")),
    7: (DateType(), dt.date(1969, 12, 31)),
    8: (TimestampType(), dt.datetime.fromisoformat("1969-12-31T23:59:59.999999")),
    9: (TimestamptzType(), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    10: (TimeType(), dt.time(23, 59, 59, 1)),
    11: (UUIDType(), UUID(int=7)),
    12: (BinaryType(), b""),
    13: (FixedType(2), b"xy"),
    14: (StringType(), ""),
}


def with_defaults() -> Schema:
    """As a catalog hands it over: out of JSON; and as an executor gets it: out of a pickle."""
    fields = [NestedField(i, f"c{i}", kind, initial_default=value) for i, (kind, value) in DEFAULTS.items()]
    made = Schema(NestedField(1, "a", LongType(), required=False), *fields)
    loaded = Schema.model_validate_json(made.model_dump_json())
    return pickle.loads(pickle.dumps(loaded))  # type: ignore[no-any-return]  # noqa: S301  made here


@pytest.mark.parametrize("field_ids", [*([i] for i in DEFAULTS), [*DEFAULTS], [1, *DEFAULTS]], ids=str)
def test_fields_that_a_file_lacks_have_their_default_whatever_else_is_read(
    tmp_path: Path, field_ids: list[int]
) -> None:
    file = write(tmp_path, column("a", 1, [5, None, 6], pa.int64()), row_group_size=2)
    schema = with_defaults()
    filled = {f"c{i}": DEFAULTS[i][1] for i in field_ids if i != 1}
    expected = [{**({"a": a} if 1 in field_ids else {}), **filled} for a in (5, None, 6)]
    assert rows(file, schema, *field_ids) == expected
    assert take_rows(STORE, file, schema, field_ids, np.array([2, 0])).to_pylist() == [expected[2], expected[0]]
    first = DataFile(STORE, file, schema, field_ids).first(9, 1)
    assert first is not None
    assert first.to_pylist() == expected[2:]
    (batch, _) = read_live(STORE, file, schema, field_ids)
    assert batch.columns.schema == arrow_schema(schema.select(*(schema.find_field(i).name for i in field_ids)))


def test_a_default_inside_a_field_is_of_the_rows_that_have_the_field(tmp_path: Path) -> None:
    inside = pa.struct([pa.field("x", pa.int64(), metadata={"PARQUET:field_id": "2"})])
    kind = StructType(
        NestedField(2, "x", LongType(), required=False),
        NestedField(3, "y", StringType(), required=False, initial_default="web"),
    )
    later = StructType(NestedField(3, "y", StringType(), required=False, initial_default="web"))
    with_x = write(tmp_path, column("s", 1, [{"x": 1}, None], inside))
    assert rows(with_x, one(1, "s", kind), 1) == [{"s": {"x": 1, "y": "web"}}, {"s": None}]
    assert rows(with_x, one(1, "s", later), 1) == [{"s": {"y": "web"}}, {"s": None}]
    without = write(tmp_path, column("a", 9, [1], pa.int64()))
    assert rows(without, one(1, "s", kind), 1) == [{"s": None}]


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("default", [None, dt.date(2000, 1, 1)])
@pytest.mark.parametrize(("field_ids"), [[3], [1, 3], [2, 3]])
def test_columns_of_an_identity_partition_that_a_file_lacks_have_the_partitions_value(
    tmp_path: Path, field_ids: list[int], default: dt.date | None, *, required: bool
) -> None:
    schema = Schema(
        NestedField(1, "a", LongType(), required=False),
        NestedField(2, "other", StringType(), required=False),
        NestedField(3, "day", DateType(), required=required, initial_default=default),
    )
    file = write(tmp_path, column("a", 1, [5, 6], pa.int64()))
    day = {"day": dt.date(1970, 1, 3)}
    own = {1: lambda a: {"a": a}, 2: lambda _: {"other": None}, 3: lambda _: {}}
    expected = [{**own[field_ids[0]](a), **day} for a in (5, 6)]
    assert rows(replace(file, constants=((3, 2),)), schema, *field_ids) == expected


def test_columns_of_a_null_partition_that_a_file_lacks_are_null_whatever_their_default(tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "a", LongType(), required=False),
        NestedField(2, "kind", StringType(), required=False, initial_default="web"),
    )
    file = replace(write(tmp_path, column("a", 1, [5], pa.int64())), constants=((2, None),))
    assert rows(file, schema, 1, 2) == [{"a": 5, "kind": None}]
    assert rows(file, schema, 2) == [{"kind": None}]


def test_a_file_without_ids_takes_the_partitions_value_before_a_column_of_the_name(tmp_path: Path) -> None:
    file = write(tmp_path, column("a", None, [5], pa.int64()), column("kind", None, ["stale"], pa.string()))
    schema = Schema(
        NestedField(1, "a", LongType(), required=False), NestedField(2, "kind", StringType(), required=False)
    )
    assert rows(replace(file, constants=((2, "web"),)), schema, 1, 2) == [{"a": 5, "kind": "web"}]


def test_a_required_column_that_a_file_lacks_is_an_error_whatever_else_is_read(tmp_path: Path) -> None:
    file = write(tmp_path, column("a", 1, [5], pa.int64()))
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType(), required=True))
    for field_ids in ([2], [1, 2]):
        with pytest.raises(DataFileError, match=r"0\.parquet cannot be read .* Field is required"):
            rows(file, schema, *field_ids)


def test_columns_come_in_the_order_of_the_request_whatever_the_files(tmp_path: Path) -> None:
    file = write(tmp_path, column("b", 2, ["x"], pa.string()), column("a", 1, [1], pa.int64()))
    schema = Schema(NestedField(1, "a", LongType(), required=False), NestedField(2, "b", StringType(), required=False))
    (batch,) = read_live(STORE, file, schema, [1, 2])
    assert batch.columns.schema.names == ["a", "b"]
    assert batch.columns.to_pylist() == [{"a": 1, "b": "x"}]


@pytest.mark.parametrize(
    ("kind", "values", "now", "arrow"),
    [
        (pa.int32(), [1, None, -5], LongType(), pa.int64()),
        (pa.float32(), [0.5, None, -2.0], DoubleType(), pa.float64()),
        (pa.decimal128(5, 2), [Decimal("1.25"), None], DecimalType(12, 2), pa.decimal128(12, 2)),
    ],
)
def test_a_promoted_type_is_widened(tmp_path: Path, kind: Any, values: list[Any], now: Any, arrow: Any) -> None:
    file = write(tmp_path, column("a", 1, values, kind))
    (batch,) = read_live(STORE, file, one(1, "a", now), [1])
    assert batch.columns.schema.field("a").type == arrow
    assert batch.columns["a"].to_pylist() == values


MICROS = [-1, 0, 1_767_225_600_000_001, None]
NANOS = [None if micros is None else 1_000 * micros for micros in MICROS]
NOON = 43_200_000


@pytest.mark.parametrize("field_id", [1, None])
@pytest.mark.parametrize(
    ("kind", "values", "now", "expected"),
    [
        (pa.timestamp("ns"), NANOS, TimestampType(), MICROS),
        (pa.timestamp("ns", "UTC"), [1_999, None], TimestamptzType(), [1, None]),
        (pa.timestamp("ns"), NANOS, TimestamptzType(), MICROS),
        (pa.timestamp("ns"), [7, None], TimestampNanoType(), [7, None]),
        (pa.timestamp("us", "Europe/Berlin"), MICROS, TimestamptzType(), MICROS),
        (pa.timestamp("ms", "UTC"), [5, None], TimestampType(), [5_000, None]),
        (pa.time32("ms"), [NOON, None], TimeType(), [1_000 * NOON, None]),
        (pa.time64("ns"), [1_000_000 * NOON, None], TimeType(), [1_000 * NOON, None]),
        (pa.decimal256(9, 2), [Decimal("1.25"), None], DecimalType(9, 2), [Decimal("1.25"), None]),
        (pa.decimal256(38, 2), [Decimal("1.25"), None], DecimalType(38, 2), [Decimal("1.25"), None]),
        (pa.decimal128(9, 3), [Decimal("1.25"), None], DecimalType(9, 2), [Decimal("1.25"), None]),
        (pa.decimal64(12, 2), [Decimal("1.25"), None], DecimalType(12, 2), [Decimal("1.25"), None]),
        (pa.decimal32(5, 2), [Decimal("-1.25"), None], DecimalType(5, 2), [Decimal("-1.25"), None]),
        (pa.json_(), ['{"a": 1}', None], StringType(), ['{"a": 1}', None]),
    ],
)
def test_types_that_other_writers_give_imported_files_are_the_schemas(
    tmp_path: Path, field_id: int | None, kind: Any, values: list[Any], now: Any, expected: list[Any]
) -> None:
    file = write(tmp_path, column("a", field_id, values, kind))
    schema = Schema(NestedField(1, "a", now, required=False), NestedField(2, "b", LongType(), required=False))
    (batch,) = read_live(STORE, file, schema, [1, 2])
    arrow = arrow_schema(schema).field("a").type
    assert batch.columns.schema.field("a").type == arrow
    assert batch.columns["a"] == pa.array(expected, arrow)
    share = FilePart(file, ndvs(str(now)))
    (result,) = sketch_files(SketchTask(StorageConfig({}), schema, (share,))).files
    counted = ThetaAccumulator()
    update_ndv(counted, pa.array(expected, arrow), str(now))
    assert decode(result.images[0]).hashes.tolist() == counted.result()[1].tolist()


def test_timestamps_of_old_spark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "int96.parquet"
    at = pa.array(NANOS, pa.timestamp("ns"))
    pq.write_table(pa.table({"a": at}), path, use_deprecated_int96_timestamps=True)
    file = LiveFile(f"file://{path}", path.stat().st_size, len(at), 1, "PARQUET")
    (batch,) = read_live(STORE, file, one(1, "a", TimestampType()), [1])
    assert batch.columns["a"] == pa.array(MICROS, pa.timestamp("us"))


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (pa.list_view(pa.float32()), [[1.0, 2.0], None, [], [3.0]]),
        (pa.large_list_view(pa.float32()), [None, [1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]),
        (pa.fixed_shape_tensor(pa.float32(), (2, 1)), [[1.0, 2.0], None, [3.0, 4.0]]),
        (pa.list_(pa.json_()), [["1", None], None, [], ["{}"]]),
        (pa.struct([("x", pa.list_(pa.decimal64(9, 2)))]), [{"x": [Decimal("1.25")]}, {"x": None}, None]),
    ],
)
def test_lists_are_read_as_what_they_are_stored_as_whatever_their_writers_type(
    tmp_path: Path, kind: Any, stored: list[Any]
) -> None:
    kinds = {"decimal": DecimalType(9, 2), "json": StringType()}
    element = next((iceberg for name, iceberg in kinds.items() if name in str(kind)), FloatType())
    schema: Any = ListType(2, element, element_required=False)
    if pa.types.is_struct(kind):
        schema = StructType(NestedField(3, "x", schema, required=False))
    plain = pa.list_(pa.string()) if "json" in str(kind) else kind
    file = write(tmp_path, (pa.field("a", kind), pa.array(stored, plain).cast(kind)))
    for read in (
        rows(file, one(1, "a", schema), 1),
        take_rows(STORE, file, one(1, "a", schema), [1], np.arange(len(stored))).to_pylist(),
    ):
        assert [row["a"] for row in read] == stored


@pytest.mark.parametrize("field_id", [1, None])
def test_a_type_that_no_table_has_is_reported(tmp_path: Path, field_id: int | None) -> None:
    file = write(tmp_path, column("a", field_id, [1], pa.duration("ms")))
    with pytest.raises(DataFileError, match=r"0\.parquet cannot be read as the snapshot's schema says"):
        rows(file, one(1, "a", LongType()), 1)


def test_promoted_list_elements_are_widened(tmp_path: Path) -> None:
    element = pa.field("element", pa.float32(), metadata={"PARQUET:field_id": "2"})
    file = write(tmp_path, column("v", 1, [[0.5, 1.5], [2.5, 3.5]], pa.list_(element)))
    schema = one(1, "v", ListType(2, DoubleType(), element_required=False))
    (batch,) = read_live(STORE, file, schema, [1])
    assert batch.columns["v"].to_pylist() == [[0.5, 1.5], [2.5, 3.5]]
    assert exact_vectors(batch.columns["v"]).dtype == np.float64


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
@pytest.mark.parametrize("child", ["element", "item", "array"])
def test_lists_are_read_whatever_the_writer_called_their_elements(tmp_path: Path, kind: Any, child: str) -> None:
    element = pa.field(child, pa.float32(), metadata={"PARQUET:field_id": "2"})
    file = write(tmp_path, column("old", 1, [[0.5], None, [1.5, 2.5]], kind(element)))
    (batch,) = read_live(STORE, file, one(1, "v", ListType(2, FloatType(), element_required=False)), [1])
    assert batch.columns.schema.field("v").type == pa.list_(pa.field("element", pa.float32()))
    assert batch.columns.to_pylist() == [{"v": [0.5]}, {"v": None}, {"v": [1.5, 2.5]}]


def test_fields_inside_a_field_are_found_by_their_ids(tmp_path: Path) -> None:
    inside = [pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(at)}) for name, at in (("x", 2), ("y", 3))]
    file = write(tmp_path, column("s", 1, [{"x": 1, "y": 2}], pa.struct(inside)))
    swapped = StructType(
        NestedField(3, "x", LongType(), required=False), NestedField(2, "y", LongType(), required=False)
    )
    assert rows(file, one(1, "s", swapped), 1) == [{"s": {"x": 2, "y": 1}}]


def inside(name: str, field_id: int, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


def nested_in(around: str, element: Any) -> Any:
    """A list or a map of `element`, a type of Arrow or of Iceberg."""
    if isinstance(element, pa.DataType):
        of_list = (pa.large_list if around == "large list" else pa.list_)(inside("element", 10, element))
        of_map = pa.map_(inside("key", 11, pa.string()).with_nullable(False), inside("value", 10, element))
        return of_map if around == "map" else of_list
    of_list = ListType(10, element, element_required=False)
    return of_list if around != "map" else MapType(11, StringType(), 10, element, value_required=False)


def nested_value(around: str, struct: dict[str, Any], *, deep: bool) -> Any:
    items: list[Any] = [[None, struct], None, []] if deep else [None, struct]
    return items if around != "map" else list(zip("pqr", items, strict=False))


@pytest.mark.parametrize("around", ["list", "large list", "map"])
@pytest.mark.parametrize("deep", [False, True], ids=["of structs", "of lists of structs"])
def test_fields_of_nested_values_are_found_by_their_ids_and_nulls_stay(
    tmp_path: Path, around: str, *, deep: bool
) -> None:
    """One field is renamed, one is dropped and added again under its name. Null is not empty."""
    struct: Any = pa.struct([inside("a", 2, pa.int64()), inside("b", 3, pa.string())])
    later: Any = StructType(
        NestedField(4, "b", StringType(), required=False), NestedField(2, "renamed", LongType(), required=False)
    )
    if deep:
        struct = pa.list_(inside("element", 20, struct))
        later = ListType(20, later, element_required=False)
    stored = [nested_value(around, {"a": number, "b": "x"}, deep=deep) for number in range(3)]
    expected = [nested_value(around, {"b": None, "renamed": number}, deep=deep) for number in range(3)]
    file = write(tmp_path, column("n", 1, [None, *stored, [], None], nested_in(around, struct)), row_group_size=4)
    schema = one(1, "n", nested_in(around, later))
    for batch_rows in (2, 100):
        batches = read_live(STORE, file, schema, [1], batch_rows=batch_rows)
        read = [value for batch in batches for value in batch.columns["n"].to_pylist()]
        assert read == [None, *expected, [], None]
    assert take_rows(STORE, file, schema, [1], np.array([3, 0])).column(0).to_pylist() == [expected[2], None]


def test_lists_of_structs_that_are_all_equally_long_are_read(tmp_path: Path) -> None:
    struct = pa.struct([inside("a", 2, pa.int64())])
    stored = [[{"a": 1}, None], None, [{"a": 3}, {"a": 4}]]
    file = write(tmp_path, column("n", 1, stored, pa.list_(inside("element", 10, struct), 2)))
    schema = one(1, "n", nested_in("list", StructType(NestedField(2, "b", LongType(), required=False))))
    read = [batch.columns["n"].to_pylist() for batch in read_live(STORE, file, schema, [1], batch_rows=2)]
    assert read == [[[{"b": 1}, None], None], [[{"b": 3}, {"b": 4}]]]


def test_files_of_one_schema_share_what_is_made_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choosing columns takes 8 ms of a schema of 2,000; an equal schema of another table is another one."""
    selected = []
    select = Schema.select
    monkeypatch.setattr(Schema, "select", lambda schema, *names: [selected.append(names), select(schema, *names)][1])
    file = write(tmp_path, column("a", 1, [1], pa.int64()), column("b", 2, [2], pa.int64()))
    schema, equal = (
        Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType()), NestedField(3, "c", LongType()))
        for _ in range(2)
    )
    assert [rows(file, schema, *fields) for fields in ((1,), (1,), (2,), (2, 1))] == [
        [{"a": 1}], [{"a": 1}], [{"b": 2}], [{"b": 2, "a": 1}]
    ]  # fmt: skip
    assert selected == [("a",), ("b",), ("b", "a")]
    assert rows(replace(file, constants=((3, None),)), schema, 1) == rows(file, equal, 1) == [{"a": 1}]
    assert selected == [("a",), ("b",), ("b", "a"), ("a",), ("a",)]


@pytest.mark.parametrize("field_ids", [(2, 1), (3, 1, 2), (2, 3)], ids=str)
def test_fields_come_in_the_order_of_the_request(tmp_path: Path, field_ids: tuple[int, ...]) -> None:
    """Here of a file that lacks the third."""
    file = write(tmp_path, column("a", 1, [1], pa.int64()), column("b", 2, [2], pa.int64()))
    schema = Schema(NestedField(1, "a", LongType()), NestedField(2, "b", LongType()), NestedField(3, "c", LongType()))
    names = [str(schema.find_column_name(field_id)) for field_id in field_ids]
    assert take_rows(STORE, file, schema, field_ids, np.array([0])).schema.names == names
    (batch,) = read_live(STORE, file, schema, field_ids)
    assert batch.columns.schema.names == names


def test_a_type_that_cannot_become_the_schemas_is_reported(tmp_path: Path) -> None:
    file = write(tmp_path, column("a", 1, ["text"], pa.string()))
    with pytest.raises(DataFileError, match=r"0\.parquet cannot be read as the snapshot's schema says"):
        rows(file, one(1, "a", IntegerType()), 1)


@pytest.mark.parametrize("by_name", [False, True], ids=["by id", "by name"])
@pytest.mark.parametrize("inside_of_list", [False, True])
@pytest.mark.parametrize(
    ("kind", "value", "now"),
    [
        (pa.string(), "[1.0, 2.0]", ListType(9, FloatType(), element_required=False)),
        (pa.binary(), b"12345678", ListType(9, FloatType(), element_required=False)),
        (pa.string(), "{}", StructType(NestedField(9, "x", LongType(), required=False))),
        (pa.list_(pa.int64()), [1], StructType(NestedField(9, "x", LongType(), required=False))),
        (pa.int64(), 1, MapType(9, StringType(), 11, LongType(), value_required=False)),
        (pa.date32(), 1, TimestampType()),
        (pa.int64(), 1, TimestampType()),
    ],
)
def test_no_value_becomes_null_because_its_type_does_not_fit(
    tmp_path: Path, kind: Any, value: Any, now: Any, *, by_name: bool, inside_of_list: bool
) -> None:
    def field(name: str, field_id: int, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind) if by_name else inside(name, field_id, kind)

    later = NestedField(2, "a", now, required=False)
    stored = field("a", 2, pa.list_(field("element", 9, kind.value_type)) if pa.types.is_list(kind) else kind)
    if inside_of_list:
        later = NestedField(1, "n", ListType(3, StructType(later), element_required=False), required=False)
        stored, value = field("n", 1, pa.list_(field("element", 3, pa.struct([stored])))), [{"a": value}]
    file = write(tmp_path, (stored, pa.array([value], stored.type)))
    with pytest.raises(DataFileError, match=r"0\.parquet(: its columns| cannot be read)"):
        rows(file, Schema(later), later.field_id)


@pytest.mark.parametrize(
    "kind",
    [
        LongType(),
        TimestampType(),
        ListType(9, FloatType(), element_required=False),
        StructType(NestedField(9, "x", LongType(), required=False)),
        MapType(9, StringType(), 11, LongType(), value_required=False),
    ],
    ids=str,
)
def test_columns_of_nulls_without_a_type_are_null(tmp_path: Path, kind: Any) -> None:
    """Arrow and pandas write such columns where no row has a value."""
    inner = pa.struct([inside("a", 2, pa.null())])
    file = write(
        tmp_path,
        column("a", 2, [None, None], pa.null()),
        column("n", 1, [[{"a": None}, None], None], pa.list_(inside("element", 3, inner))),
    )
    nothing = NestedField(2, "a", kind, required=False)
    assert rows(file, Schema(nothing), 2) == [{"a": None}] * 2
    nested = one(1, "n", ListType(3, StructType(nothing), element_required=False))
    assert rows(file, nested, 1) == [{"n": [{"a": None}, None]}, {"n": None}]


def test_a_file_without_field_ids_is_read_by_name(tmp_path: Path) -> None:
    vectors = column("v", None, [[1.0], [2.0]], pa.list_(pa.float32()))
    file = write(tmp_path, column("a", None, [1, 2], pa.int64()), column("other", None, [3, 4], pa.int64()), vectors)
    schema = Schema(
        NestedField(1, "a", LongType(), required=False),
        NestedField(2, "v", ListType(3, FloatType(), element_required=False), required=False),
        NestedField(4, "later", LongType(), required=False),
    )
    assert rows(file, schema, 1, 2, 4)[1] == {"a": 2, "v": [2.0], "later": None}
    assert rows(file, schema, 4) == [{"later": None}] * 2


def test_a_file_without_field_ids_is_read_by_the_tables_name_mapping(tmp_path: Path) -> None:
    vectors = column("vec", None, [[1.0], [2.0]], pa.list_(pa.float32()))
    file = write(tmp_path, column("b", None, [1, 2], pa.int64()), column("a", None, [3, 4], pa.int64()), vectors)
    element = {"field-id": 3, "names": ["element"]}
    mapping = [{"field-id": 1, "names": ["b", "older"]}, {"field-id": 2, "names": ["vec"], "fields": [element]}]
    schema = Schema(
        NestedField(1, "newer", LongType(), required=False),
        NestedField(2, "v", ListType(3, FloatType(), element_required=False), required=False),
        NestedField(4, "a", LongType(), required=False),
    )
    mapped = replace(file, name_mapping=json.dumps(mapping))
    assert rows(mapped, schema, 1, 2, 4)[1] == {"newer": 2, "v": [2.0], "a": None}, "the mapping has no a"


@pytest.mark.parametrize("mapping", ["[", '[{"field-id": 9, "names": ["w"]}, {"field-id": 2, "names": ["v"]}]'])
def test_a_name_mapping_that_does_not_fit_is_reported(tmp_path: Path, mapping: str) -> None:
    file = write(tmp_path, column("v", None, [[1.0], [2.0]], pa.list_(pa.float32())))
    assert mapped_names(mapping, 2) == ({"v"} if "names" in mapping else set())
    assert mapped_names(None, 2) is None
    with pytest.raises(DataFileError, match=r"0\.parquet"):
        rows(replace(file, name_mapping=mapping), one(2, "v", ListType(3, FloatType(), element_required=False)), 2)


def test_a_field_that_the_schema_lacks_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, column("a", 1, [1], pa.int64()))
    with pytest.raises(DataFileError, match="no field 5: the column was dropped"):
        rows(file, one(1, "a", LongType()), 5)


class Meter(LocalStorage):
    """A store under an s3 name that counts what is read."""

    def __init__(self) -> None:
        self.bytes = 0

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.bytes += sum(length for _, length in ranges)
        return super().read_ranges(path.removeprefix("s3:/"), ranges)


def test_only_row_groups_that_hold_a_row_are_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 2**60, 200_000)
    file = write(tmp_path, column("a", 1, noise, pa.int64()), row_group_size=10_000)
    remote = LiveFile(file.path.replace("file://", "s3:/"), file.size, file.record_count, 1, "PARQUET")
    meter = Meter()
    taken = take_rows(meter, remote, one(1, "a", LongType()), [1], np.array([199_999, 7, 7, 199_800]))
    assert taken["a"].to_pylist() == noise[[199_999, 7, 7, 199_800]].tolist(), "in the order of the positions"
    assert meter.bytes < file.size / 5, "two of twenty groups, and the footer"


def test_no_rows_are_a_table_of_no_rows(tmp_path: Path) -> None:
    file = write(tmp_path, column("a", 1, [1], pa.int64()))
    taken = take_rows(STORE, file, one(1, "a", LongType()), [1], np.empty(0, np.int64))
    assert (taken.num_rows, taken.schema.names) == (0, ["a"])


def test_more_rows_than_the_manifest_counts_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, column("a", 1, [1, 2, 3], pa.int64()))
    with pytest.raises(
        DataFileError,
        match=r"0\.parquet has 3 rows, and the manifest that names it says 2: add the file to the table again",
    ):
        rows(replace(file, record_count=2), one(1, "a", LongType()), 1)
    assert len(rows(replace(file, record_count=4), one(1, "a", LongType()), 1)) == 3


@pytest.mark.parametrize("position", [-1, 3])
def test_a_position_outside_the_file_is_refused(tmp_path: Path, position: int) -> None:
    file = write(tmp_path, column("a", 1, [1, 2, 3], pa.int64()))
    with pytest.raises(DataFileError, match=r"0\.parquet has 3 rows"):
        take_rows(STORE, file, one(1, "a", LongType()), [1], np.array([position]))


def test_other_formats_damage_and_absence_are_named(tmp_path: Path) -> None:
    file = write(tmp_path, column("a", 1, range(1000), pa.int64()))
    schema, path = one(1, "a", LongType()), Path(file.path.removeprefix("file://"))
    assert len(rows(replace(file, file_format="parquet"), schema, 1)) == 1000
    with pytest.raises(DataFileError, match="ORC; only Parquet"):
        rows(LiveFile(file.path, file.size, 1, 1, "ORC"), schema, 1)
    path.write_bytes(b"PAR1" + bytes(file.size - 8) + b"PAR1")
    with pytest.raises(DataFileError, match=r"0\.parquet is no readable Parquet file"):
        rows(file, schema, 1)
    path.unlink()
    with pytest.raises(DataFileError, match=r"0\.parquet is missing, although the snapshot's manifests name it"):
        rows(file, schema, 1)


def test_rows_that_cannot_be_decoded_are_damage_whichever_error_arrow_has_for_it(tmp_path: Path) -> None:
    texts = [f"text {number % 50}" for number in range(1000)]
    file = write(tmp_path, column("a", 1, texts, pa.string()))
    path, causes = Path(file.path.removeprefix("file://")), set()
    whole = path.read_bytes()
    for place in range(4, 4 + pq.read_metadata(path).row_group(0).column(0).total_compressed_size, 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            list(read_live(STORE, file, one(1, "a", StringType()), [1]))
        except DataFileError as error:
            assert "0.parquet is damaged: " in str(error)  # noqa: PT017  some bytes are of no use
            causes.add(type(error.__cause__))
    assert causes == {OSError, pa.ArrowInvalid}


class PlainKeys(pe.KmsClient):
    """Keys that are wrapped by nothing."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("plaintext_footer", [False, True])
def test_an_encrypted_file_is_not_called_damaged(tmp_path: Path, *, plaintext_footer: bool) -> None:
    field, values = column("a", 1, range(10), pa.int64())
    encryption = pe.CryptoFactory(lambda _: PlainKeys()).file_encryption_properties(
        pe.KmsConnectionConfig(),
        pe.EncryptionConfiguration(footer_key="key", column_keys={"key": ["a"]}, plaintext_footer=plaintext_footer),
    )
    path = tmp_path / "encrypted.parquet"
    table = pa.table([values], schema=pa.schema([field]))
    with pq.ParquetWriter(path, table.schema, encryption_properties=encryption) as writer:
        writer.write_table(table)
    file = LiveFile(f"file://{path}", path.stat().st_size, 10, 1, "PARQUET")
    with pytest.raises(DataFileError, match=r"encrypted\.parquet is encrypted, and icepuffin reads plain data files"):
        rows(file, one(1, "a", LongType()), 1)


def test_the_longer_values_are_the_fewer_are_read_at_once(tmp_path: Path) -> None:
    """Texts of random letters, which do not compress, so that a batch takes about as much as in the file."""
    letters = np.random.default_rng(0).integers(32, 127, 12_000_000, np.uint8).tobytes().decode()
    for length, most in ((4_000, 6 << 20), (100, 1 << 20)):
        texts = [letters[first : first + length] for first in range(0, 3_000 * length, length)]
        file = write(tmp_path, column("a", 1, texts, pa.string()))
        batches = list(column_values(DataFile(STORE, file, one(1, "a", StringType()), [1])))
        assert max(batch.nbytes for batch in batches) < most
        assert (len(batches) == 1) == (length == 100)
        assert pa.concat_arrays(batches).to_pylist() == texts


@settings(deadline=None)
@given(st.lists(st.integers(0, 99), max_size=100), st.integers(1, 40), st.integers(1, 40))
def test_deleted_rows_are_left_out_wherever_batches_and_row_groups_end(
    tmp_path_factory: pytest.TempPathFactory, deleted: list[int], batch_rows: int, group: int
) -> None:
    folder = tmp_path_factory.mktemp("deletes")
    file = write(folder, column("a", 1, range(100), pa.int64()), row_group_size=group)
    deletes = pa.table(
        {"file_path": pa.array([file.path] * len(deleted), pa.string()), "pos": pa.array(deleted, pa.int64())}
    )
    pq.write_table(deletes, folder / "d.parquet")
    size = (folder / "d.parquet").stat().st_size
    delete = DeleteFile(f"file://{folder}/d.parquet", DeleteKind.POSITION, len(deleted), 2, size)
    dirty = LiveFile(file.path, file.size, 100, 1, "PARQUET", deletes=(delete,))
    batches = list(read_live(STORE, dirty, one(1, "a", LongType()), [1], batch_rows=batch_rows))
    left = sorted(set(range(100)) - set(deleted))
    assert [position for batch in batches for position in batch.positions.tolist()] == left
    assert [value for batch in batches for value in batch.columns["a"].to_pylist()] == left
