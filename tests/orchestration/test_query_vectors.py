"""Queries of files, texts and rows, and what holds none."""

import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.rows.element_types import OF_COLUMN
from icepuffin.orchestration.cli.query_vectors import parse_vectors, read_queries, read_vectors, vector_of_row
from tests.conftest import STORAGE


def npy(array: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.bin", b"\xff\xfe\x00", "q.bin is neither text nor named .npy"),
        ("q.npy", b"", "q.npy is no .npy file of numbers"),
        ("q.npy", b"[[1.0, 2.0]]", "q.npy is no .npy file of numbers"),
        ("q.npy", npy(np.array([None, 1], object)), "q.npy is no .npy file of numbers"),
        ("q.npy", npy(np.array(["x"])), "q.npy holds <U1 of shape (1,), not numbers [queries, dims]"),
        ("q.npy", npy(np.array([True])), "q.npy holds bool of shape (1,), not numbers"),
        ("q.npy", npy(np.zeros((1, 2, 3))), "q.npy holds float64 of shape (1, 2, 3), not numbers [queries, dims]"),
        ("q.npy", npy(np.float64(1)), "q.npy holds float64 of shape (), not numbers [queries, dims]"),
    ],
)
def test_a_file_without_vectors_is_named_with_what_it_holds(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(click.ClickException) as caught:
        read_vectors(tmp_path / name)
    assert message in caught.value.message


def test_one_vector_is_one_query(tmp_path: Path) -> None:
    (tmp_path / "q.npy").write_bytes(npy(np.arange(3)))
    assert read_vectors(tmp_path / "q.npy").tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float16, np.float64])
def test_vectors_of_a_file_keep_their_type(tmp_path: Path, dtype: Any) -> None:
    (tmp_path / "q.npy").write_bytes(npy(np.array([[1, 2]], dtype)))
    assert read_vectors(tmp_path / "q.npy").dtype == dtype


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, true]", "q has true or false at position 2, not a number"),
        ("[" * 100_000, "q is nested too deeply"),
        (f"[1{'0' * 400}]", "q has a number that is too large for a double"),
        ("[[1, 2], 3]", "q has a list at position 1, not a number"),
        ("[1, ]", "at character 5"),
        ("[]", "q is an empty list"),
        ("[[], []]", "q is an empty list"),
    ],
    ids=lambda part: part[:9],
)
def test_a_text_without_vectors_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(click.ClickException) as caught:
        parse_vectors(text, "q")
    assert message in caught.value.message


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2), pa.list_(pa.float32())], ids=str)
def test_the_only_column_that_may_hold_queries_needs_no_name(tmp_path: Path, kind: pa.DataType) -> None:
    values = [[1.0, 2.0]] if pa.types.is_nested(kind) else [b"ab"]
    pq.write_table(pa.table({"id": [1], "v": pa.array(values, kind)}), tmp_path / "q.parquet")
    assert read_queries(tmp_path / "q.parquet", None).to_pylist() == values  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("columns", "column", "message"),
    [
        ({"id": [1], "v": [[1.0]], "w": [b"\x01"]}, None, "name the column of the queries with --column: v, w"),
        ({"id": [1]}, None, "name the column of the queries with --column: none"),
        ({"id": [1], "v": [[1.0]]}, "absent", "has no column 'absent'; it has id, v"),
        ({"v": [[1.0], None, None]}, None, "column 'v' has 2 nulls; leave these rows out"),
        (b"PAR1", "v", "q.parquet is no Parquet file that can be read"),
        (b"PAR1\xff\xff\xff\xff\x04\x00\x00\x00PAR1", "v", "q.parquet is no Parquet file that can be read"),
    ],
)
def test_a_parquet_file_without_queries_is_named_with_what_to_do(
    tmp_path: Path, columns: dict[str, list[Any]] | bytes, column: str | None, message: str
) -> None:
    path = tmp_path / "q.parquet"
    path.write_bytes(columns) if isinstance(columns, bytes) else pq.write_table(pa.table(columns), path)
    with pytest.raises(click.ClickException) as caught:
        read_queries(path, column)
    assert message in caught.value.message


def test_the_vector_of_a_row_is_that_of_the_only_row_with_the_id(sql_catalog: Catalog) -> None:
    vectors = pa.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], None], pa.list_(pa.float32()))
    rows = pa.table({"id": [1, 2, 2, 3], "price": [Decimal("0.5")] * 4, "v": vectors})
    table = sql_catalog.create_table("db.v", rows.schema)
    table.append(rows)
    options: dict[str, Any] = {"element_type": OF_COLUMN, "storage": STORAGE}
    assert vector_of_row(table, "v", "1", id_column="id", **options).tolist() == [[1.0, 0.0]]
    table.append(rows.slice(0, 1))  # the same id in another file
    for column, row, message in (
        ("id", "1", "2 rows have id = 1; name a column that tells rows apart"),
        ("id", "2", "2 rows have id = 2; "),
        ("id", "3", "the row with id = 3 has no vector"),
        ("price", "x", "price = x cannot be looked up, price is decimal(1, 1); name another column"),
        ("no", "1", "db.v has no column 'no'; name one with --id-column: id, price, v"),
    ):
        with pytest.raises(click.ClickException) as caught:
            vector_of_row(table, "v", row, id_column=column, **options)
        assert message in caught.value.message
