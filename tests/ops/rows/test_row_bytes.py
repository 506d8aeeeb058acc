"""Sizes of rows of every type."""

from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest

from icepuffin.ops.rows.row_bytes import row_bytes

UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID(int=1).bytes, None, None], pa.binary(16)))


@pytest.mark.parametrize(
    ("column", "sizes"),
    [
        (pa.array([1, None, 3]), [8, 8, 8]),
        (pa.array([True, False, None]), [1, 1, 1]),
        (pa.array([Decimal(1)] * 3, pa.decimal128(9, 0)), [16, 16, 16]),
        (pa.array([b"abc"] * 3, pa.binary(3)), [3, 3, 3]),
        (pa.nulls(3), [0, 0, 0]),
        (UUIDS, [16, 16, 16]),
        (pa.array(["ä" * 9, None, ""]), [4 + 18, 4, 4]),
        (pa.array([b"ab", b"", b"abc"], pa.large_binary()), [4 + 2, 4, 4 + 3]),
        (pa.array([["ab", None], None, []]), [4 + 4 + 2 + 4, 4, 4]),
        (pa.array([[[1.0], [2.0, 3.0]], [[]], []]), [4 + 2 * 4 + 3 * 8, 4 + 4, 4]),
        (pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())), [4 + (4 + 1) + 4, 4, 4]),
        (pa.array([{"a": 1, "b": b"123"}, None, {"a": None, "b": b""}]), [8 + 4 + 3, 8 + 4, 8 + 4]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_a_row_has_the_bytes_of_its_values(column: pa.Array, sizes: list[int]) -> None:
    rows = pa.table({"a": column, "b": column})
    assert row_bytes(rows).tolist() == [2 * size for size in sizes]
    parts = pa.concat_tables([rows.slice(1), rows.slice(0, 0), rows.slice(0, 1)])
    assert row_bytes(parts).tolist() == [2 * size for size in (*sizes[1:], sizes[0])]
    assert row_bytes(rows.slice(0, 0)).tolist() == []
