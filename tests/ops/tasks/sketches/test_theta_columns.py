import datetime as dt
import struct
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.conversions import to_bytes
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
    PrimitiveType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ops.tasks.sketches.column_updates import update_ndv
from icepuffin.ops.tasks.sketches.sketch_types import SketchTypeError, type_name_of
from tests.naive import theta as naive

UTC = dt.UTC
MOMENTS = [dt.datetime(1969, 12, 31, 23, 59, 59, 1), dt.datetime(2026, 11, 21, 3, 4, 5, 678901)]  # noqa: DTZ001
CASES: list[tuple[PrimitiveType, pa.DataType, list[object]]] = [
    (BooleanType(), pa.bool_(), [True, False]),
    (IntegerType(), pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31)]),
    (LongType(), pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63)]),
    (FloatType(), pa.float32(), [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan")]),
    (DoubleType(), pa.float64(), [0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan")]),
    (DateType(), pa.date32(), [dt.date(1950, 1, 1), dt.date(1970, 1, 1), dt.date(2026, 11, 21)]),
    (TimeType(), pa.time64("us"), [dt.time(0, 0), dt.time(23, 59, 59, 999999)]),
    (TimestampType(), pa.timestamp("us"), list(MOMENTS)),
    (TimestamptzType(), pa.timestamp("us", "UTC"), [m.replace(tzinfo=UTC) for m in MOMENTS]),
    (TimestampNanoType(), pa.timestamp("ns"), [-1, 0, 1_700_000_000_000_000_001]),
    (TimestamptzNanoType(), pa.timestamp("ns", "UTC"), [-1, 0, 1_700_000_000_000_000_001]),
    (StringType(), pa.string(), ["a", "iceberg", "ü", "x" * 70]),
    (StringType(), pa.large_string(), ["a", "iceberg", "ü", "x" * 70]),
    (StringType(), pa.string_view(), ["a", "iceberg", "ü", "x" * 70]),
    (BinaryType(), pa.binary(), [b"\0", b"abc", b"x" * 33]),
    (BinaryType(), pa.large_binary(), [b"\0", b"abc", b"x" * 33]),
    (FixedType(5), pa.binary(5), [b"\0\0\0\0\0", b"abcde"]),
    (UUIDType(), pa.uuid(), [uuid.UUID(int=1).bytes, uuid.UUID(int=2**128 - 1).bytes]),
    (UUIDType(), pa.binary(16), [uuid.UUID(int=1).bytes, uuid.UUID(int=2**128 - 1).bytes]),
    (DecimalType(9, 2), pa.decimal128(9, 2), [Decimal(x) for x in ("0.00", "1.27", "1.28", "-1.28", "-1.29", "-0.01")]),
    (DecimalType(38, 0), pa.decimal128(38, 0), [Decimal(x) for x in (2**63 - 1, 2**63, -(2**63), 2**71, 10**38 - 1)]),
    (DecimalType(9, 2), pa.decimal256(9, 2), [Decimal("1.27"), Decimal("-1.29")]),
]
IDS = [f"{iceberg} from {arrow}" for iceberg, arrow, _ in CASES]


def serialised(iceberg: PrimitiveType, value: object) -> bytes:
    """PyIceberg's own single-value serialisation, but where it is lossy or picky about its input."""
    match iceberg, value:
        case ((TimestampNanoType() | TimestamptzNanoType()), int()):
            return struct.pack("<q", value)
        case UUIDType(), bytes():
            return value
    return to_bytes(iceberg, value)


def sketch_of(array: pa.Array | pa.ChunkedArray, iceberg: PrimitiveType) -> tuple[int, list[int]]:
    accumulator = ThetaAccumulator()
    update_ndv(accumulator, array, str(iceberg))
    theta, hashes = accumulator.result()
    return theta, hashes.tolist()


@pytest.mark.parametrize(("iceberg", "arrow", "values"), CASES, ids=IDS)
def test_values_are_hashed_as_their_single_value_serialisation(
    iceberg: PrimitiveType, arrow: pa.DataType, values: list[object]
) -> None:
    expected = naive.sketch(serialised(iceberg, value) for value in values)
    assert len(expected[1]) == len(values)
    assert sketch_of(pa.array(values, arrow), iceberg) == expected


@pytest.mark.parametrize(("iceberg", "arrow", "values"), CASES, ids=IDS)
def test_nulls_slices_chunks_and_repeats_do_not_show(
    iceberg: PrimitiveType, arrow: pa.DataType, values: list[object]
) -> None:
    expected = naive.sketch(serialised(iceberg, value) for value in values[1:])
    array = pa.array([values[0]] * 9 + [None] + [v for v in values[1:] for _ in range(9)] + [None, values[0]], arrow)
    live = array.slice(9, len(array) - 10)
    assert sketch_of(live, iceberg) == expected
    assert sketch_of(pa.chunked_array([live.slice(0, 4), live.slice(4), live.slice(2, 0)]), iceberg) == expected


@pytest.mark.parametrize(("iceberg", "arrow", "values"), CASES, ids=IDS)
def test_all_nulls_and_no_rows_are_the_empty_sketch(
    iceberg: PrimitiveType, arrow: pa.DataType, values: list[object]
) -> None:
    assert sketch_of(pa.nulls(20, arrow), iceberg) == naive.sketch([])
    assert sketch_of(pa.array(values, arrow)[:0], iceberg) == naive.sketch([])


@pytest.mark.parametrize("values", [["a", None, "b", "a", "unused"], [b"a", None, b"b", b"a", b"unused"]])
def test_only_values_of_a_dictionary_that_rows_use_count(values: list[object]) -> None:
    array = pa.array(values).dictionary_encode().slice(0, 4)
    iceberg = StringType() if isinstance(values[0], str) else BinaryType()
    assert sketch_of(array, iceberg) == naive.sketch([b"a", b"b"])


def test_a_dictionary_that_holds_a_null_counts_no_null() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1]), pa.array(["a", None]))
    assert sketch_of(array, StringType()) == naive.sketch([b"a"])


def test_the_empty_string_is_ignored_as_datasketches_does() -> None:
    assert sketch_of(pa.array(["", "a", ""]), StringType()) == naive.sketch([b"a"])
    assert sketch_of(pa.array([b"", b""]), BinaryType()) == naive.sketch([])


def test_columns_promoted_since_the_file_was_written_hash_as_the_new_type() -> None:
    assert sketch_of(pa.array([1, -1], pa.int32()), LongType()) == sketch_of(pa.array([1, -1]), LongType())
    assert sketch_of(pa.array([1.5], pa.float32()), DoubleType()) == sketch_of(pa.array([1.5]), DoubleType())


def test_many_random_strings_with_nulls_agree_with_the_naive_sketch() -> None:
    rng = np.random.default_rng(3)
    values = [None if rng.random() < 0.1 else f"key-{rng.integers(0, 9_000)}" for _ in range(20_000)]
    assert sketch_of(pa.array(values), StringType()) == naive.sketch(v.encode() for v in values if v is not None)


def test_types_without_a_sketch_and_data_of_another_type_are_refused() -> None:
    accumulator = ThetaAccumulator()
    with pytest.raises(SketchTypeError, match="type list<int> has no ndv, only binary, "):
        update_ndv(accumulator, pa.array([[1]]), "list<int>")
    for values, kind in (
        (pa.array([2**40]), "int"),
        (pa.array([[1]]), "long"),
        (pa.array(["x"]), "timestamp"),
        (pa.array([2**62], pa.timestamp("ms")), "timestamp"),
    ):
        with pytest.raises(SketchTypeError, match=f"is not Iceberg's {kind}"):
            update_ndv(accumulator, values, kind)
    assert type_name_of("decimal(9, 2)") == "decimal"
    assert type_name_of("fixed[16]") == "fixed"
