"""Vectors read by their pages are what Arrow reads, batch by batch; what is no such page is left to Arrow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icepuffin.ops import parquet, vector_pages
from icepuffin.ops.parquet import ParquetObject
from icepuffin.ops.storage.local import LocalStorage
from icepuffin.ops.vector_pages import UnusualPageError, VectorChunk, read_vectors
from tests.naive import level_runs as naive
from tests.ops.test_parquet import CountingStorage

ROWS, DIMS, BATCH = 700, 12, 64


@pytest.fixture(autouse=True)
def every_page_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_pages, "LEAST_BYTES", 0)


def vectors(distinct: int | None = None, dims: int = DIMS, rows: int = ROWS) -> pa.Array:
    values = np.random.default_rng(0).standard_normal(rows * dims).astype(np.float32)
    if distinct:
        values = values[np.random.default_rng(1).integers(distinct, size=len(values))]
    values[:3] = np.nan, -0.0, np.inf
    return pa.ListArray.from_arrays(np.arange(0, len(values) + 1, dims, dtype=np.int32), pa.array(values))


def written(path: Path, column: pa.Array, **options: Any) -> Path:
    table = pa.table({"id": np.arange(len(column)), "vector": column})
    pq.write_table(table, path, **{"row_group_size": 300, "data_page_size": 900, **options})
    return path


def by_arrow(path: Path) -> list[pa.RecordBatch]:
    file = pq.ParquetFile(path)
    groups = range(file.num_row_groups)
    return [batch for group in groups for batch in file.iter_batches(BATCH, [group], ["vector"], use_threads=False)]


def by_pages(path: Path, scheme: str = "") -> tuple[list[pa.RecordBatch], list[int]]:
    """(batches, rows that were read by their pages of each row group)."""
    counts: list[int] = []
    real = parquet.read_vectors

    def counted(*arguments: Any) -> Any:
        counts.append(0)
        for batch in real(*arguments):
            counts[-1] += len(batch)
            yield batch

    storage = CountingStorage() if scheme else LocalStorage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "read_vectors", counted)
        opened = ParquetObject(storage, f"{scheme}{path}", path.stat().st_size)
        return list(opened.batches(["vector"], batch_rows=BATCH)), counts


def assert_equal(batches: list[pa.RecordBatch], expected: list[pa.RecordBatch]) -> None:
    """To the bit: NaN is equal to NaN, and zeros have signs."""
    assert [batch.num_rows for batch in batches] == [batch.num_rows for batch in expected]
    for batch, other in zip(batches, expected, strict=True):
        assert batch.schema.equals(other.schema)
        assert batch.column(0).value_lengths().equals(other.column(0).value_lengths())
        values, others = (column.flatten().to_numpy(zero_copy_only=False) for column in (batch[0], other[0]))
        assert values.tobytes() == others.tobytes()


@pytest.mark.parametrize("scheme", ["", "s3:/"])
@pytest.mark.parametrize("pages", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize(("distinct", "dictionary"), [(None, False), (None, True), (3, True), (300, True)], ids=str)
def test_pages_of_vectors_give_what_arrow_gives(
    tmp_path: Path, scheme: str, pages: str, compression: str, distinct: int | None, dictionary: bool
) -> None:
    path = written(
        tmp_path / "a.parquet",
        vectors(distinct),
        data_page_version=pages,
        compression=compression,
        use_dictionary=dictionary,
        dictionary_pagesize_limit=2_000,  # after which pages are plain
        write_batch_size=50,  # values: a page ends inside of a vector
    )
    batches, counts = by_pages(path, scheme)
    assert counts == [300, 300, 100]
    assert_equal(batches, by_arrow(path))


@pytest.mark.parametrize("dims", [1, 2, 8, 129])
def test_vectors_of_any_length_are_read_by_their_pages(tmp_path: Path, dims: int) -> None:
    path = written(tmp_path / "a.parquet", vectors(dims=dims))
    batches, counts = by_pages(path)
    assert counts == [300, 300, 100]
    assert_equal(batches, by_arrow(path))


@pytest.mark.parametrize("lists", [pa.list_, pa.large_list])
@pytest.mark.parametrize("optional", [True, False])
def test_lists_of_any_offsets_and_without_nulls_by_their_schema_are_read_by_their_pages(
    tmp_path: Path, optional: bool, lists: Any
) -> None:
    kind = lists(pa.field("element", pa.float32(), nullable=optional))
    column = vectors().cast(kind)
    schema = pa.schema([pa.field("vector", kind, nullable=optional, metadata={"PARQUET:field_id": "2"})])
    pq.write_table(pa.table([column], schema=schema), tmp_path / "a.parquet", row_group_size=300)
    batches, counts = by_pages(tmp_path / "a.parquet")
    assert counts == [300, 300, 100]
    assert_equal(batches, by_arrow(tmp_path / "a.parquet"))


def with_value(place: int, value: Any) -> pa.Array:
    rows = vectors().to_pylist()
    rows[place] = value
    return pa.array(rows, pa.list_(pa.float32()))


@pytest.mark.parametrize(
    "column",
    [
        with_value(450, None),
        with_value(450, []),
        with_value(450, [1.0] * (DIMS + 1)),
        with_value(450, [None, *[1.0] * (DIMS - 1)]),
    ],
    ids=["null", "empty", "longer", "null element"],
)
def test_rows_after_one_that_is_no_such_vector_are_read_by_arrow(tmp_path: Path, column: pa.Array) -> None:
    path = written(tmp_path / "a.parquet", column)
    batches, counts = by_pages(path)
    assert sum(counts) < ROWS
    assert_equal(batches, by_arrow(path))


def test_two_rows_that_are_longer_and_shorter_are_read_by_arrow(tmp_path: Path) -> None:
    """The number of values is as if all were equally long."""
    rows = vectors().to_pylist()
    rows[310], rows[311] = [*rows[310], 1.0], rows[311][1:]
    path = written(tmp_path / "a.parquet", pa.array(rows, pa.list_(pa.float32())))
    batches, counts = by_pages(path)
    assert counts == [300, 0, 100]
    assert_equal(batches, by_arrow(path))


@pytest.mark.parametrize(
    ("column", "options"),
    [
        (vectors(), {"compression": "gzip"}),
        (vectors(), {"use_dictionary": False, "column_encoding": {"vector.list.element": "BYTE_STREAM_SPLIT"}}),
        (vectors().cast(pa.list_(pa.float64())), {}),
        (vectors().cast(pa.list_(pa.float32(), DIMS)), {}),
    ],
    ids=["gzip", "split bytes", "doubles", "fixed lists"],
)
def test_other_columns_and_encodings_are_read_by_arrow(tmp_path: Path, column: pa.Array, options: Any) -> None:
    path = written(tmp_path / "a.parquet", column, **options)
    batches, counts = by_pages(path)
    assert sum(counts) == 0
    assert_equal(batches, by_arrow(path))


def test_few_vectors_are_read_by_arrow_which_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.parquet", vectors())
    monkeypatch.setattr(vector_pages, "LEAST_BYTES", 4 * 300 * DIMS)
    assert by_pages(path)[1] == [300, 300]
    monkeypatch.setattr(vector_pages, "LEAST_BYTES", 4 * 300 * DIMS + 1)
    assert by_pages(path)[1] == []


def page(values: np.ndarray, first: int, dims: int) -> bytes:
    """A plain page of version 1, not compressed, of values before which there are `first` others."""
    rows = [naive.packed([int((first + place) % dims > 0) for place in range(len(values))], 1)]
    levels = b"".join(len(run).to_bytes(4, "little") + run for run in (*rows, naive.repeated(3, len(values), 2)))
    body = levels + values.tobytes()
    numbers = [(1, len(values)), (1, 0), (1, 3), (1, 3)]  # (step to the field's number, its value)
    own = b"".join(bytes([step << 4 | 5]) + naive.varint(value << 1) for step, value in numbers) + b"\0"
    size = naive.varint(len(body) << 1)
    return b"\x15\0\x15" + size + b"\x15" + size + b"\x2c" + own + b"\0" + body


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_page_may_end_inside_of_a_vector(cut: int) -> None:
    """As older writers ended them."""
    values = np.arange(40, dtype=np.float32)
    data = page(values[:cut], 0, 4) + page(values[cut:], cut, 4)
    chunk = VectorChunk(0, len(data), 10, 4, None, 3)
    batches = list(read_vectors(chunk, lambda offset, length: data[offset : offset + length], 3))
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    assert np.concatenate(batches).reshape(-1).tolist() == values.tolist()
    shifted = page(values[:cut], 0, 4) + page(values[cut:], cut + 1, 4)
    with pytest.raises(UnusualPageError):
        list(read_vectors(chunk, lambda offset, length: shifted[offset : offset + length], 3))


def test_a_chunk_that_has_not_as_many_values_for_each_row_is_none_of_vectors(tmp_path: Path) -> None:
    rows = vectors().to_pylist()
    rows[-1].append(1.0)
    path = written(tmp_path / "a.parquet", pa.array(rows, pa.list_(pa.float32())))
    file = pq.ParquetFile(path)
    chunks = [VectorChunk.of(file.metadata, group, file.schema_arrow.field("vector")) for group in range(3)]
    assert [chunk is None for chunk in chunks] == [False, False, True]


def outcome(read: Callable[[], list[pa.RecordBatch]]) -> list[bytes] | type[Exception]:
    try:
        return [batch.column(0).flatten().to_numpy(zero_copy_only=False).tobytes() for batch in read()]
    except (OSError, pa.ArrowException) as error:
        return type(error)


@pytest.mark.parametrize("pages", ["1.0", "2.0"])
@pytest.mark.parametrize("distinct", [None, 50])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_damage_gives_an_error_or_what_arrow_reads_or_what_was_written(
    tmp_path: Path, pages: str, distinct: int | None, compression: str
) -> None:
    path = written(
        tmp_path / "a.parquet",
        vectors(distinct, rows=120),
        data_page_version=pages,
        compression=compression,
        use_dictionary=distinct is not None,
    )
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(1)
    start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
    data, rng = bytearray(path.read_bytes()), np.random.default_rng(0)
    whole = outcome(lambda: by_arrow(path))
    for place in [*range(start, start + 60), *rng.integers(start, start + chunk.total_compressed_size, 140)]:
        kept = data[place]
        data[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(data)
        data[place] = kept
        expected, result = outcome(lambda: by_arrow(path)), outcome(lambda: by_pages(path)[0])
        # Arrow minds numbers of a header that take no part in reading vectors
        assert result == expected or (isinstance(expected, type) and result == whole), f"byte {place}"
