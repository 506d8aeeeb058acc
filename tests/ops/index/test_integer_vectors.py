"""Vectors of integers, as embeddings of bytes have them, through the life of an index."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import ListType, LongType

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.table.live_files import live_files
from tests.conftest import STORAGE
from tests.ops.index.comparison import DEFINITION, index_head

DIMS = 24
CENTERS = np.random.default_rng(5).integers(-90, 90, (6, DIMS))


def octets(first: int, last: int) -> npt.NDArray[np.int64]:
    """int64[n, DIMS] from -128 to 127, in clusters."""
    noise = np.stack([np.random.default_rng(number).normal(0, 9, DIMS) for number in range(first, last)])
    return np.clip(CENTERS[np.arange(first, last) % 6] + noise, -128, 127).astype(np.int64)


def rows_of(vectors: npt.NDArray[np.int64], first: int, kind: pa.DataType) -> pa.Table:
    schema = pa.schema([("id", pa.int64()), ("embedding", pa.list_(kind))])
    return pa.table({"id": range(first, first + len(vectors)), "embedding": vectors.tolist()}, schema=schema)


def nearest_by_whole_numbers(vectors: npt.NDArray[np.int64], query: npt.NDArray[np.int64], k: int) -> list[float]:
    return np.sqrt(np.sort(((vectors - query) ** 2).sum(axis=1))[:k]).tolist()


@pytest.mark.parametrize("kept", ["f32", "f16", "none"])
def test_an_index_of_bytes_is_right_after_appends_and_deletes(table_factory: Callable[..., Table], kept: str) -> None:
    catalog = table_factory().catalog
    everything = octets(0, 330)
    table = catalog.create_table("db.octets", rows_of(everything[:1], 0, pa.int32()).schema)
    table.append(rows_of(everything[:300], 0, pa.int32()))
    definition = create_index(table, replace(DEFINITION, vectors=kept, target_recall=0.9))
    assert index_head(table, definition).rows == 300
    table.append(rows_of(everything[300:], 300, pa.int32()))
    first_file = min(live_files(table, table.metadata.current_snapshot_id).files, key=lambda file: -file.record_count)
    append_position_deletes(table, {first_file.path: np.arange(0, 20)})
    report = index_head(table, definition)
    assert (report.inserted, report.tombstones) == (30, 20)
    queries = octets(1_000, 1_008)
    answer = open_index(table, definition, storage=STORAGE).search(queries, 5, columns=["id", "embedding"])
    assert answer.coverage is Coverage.EXACT_VERSION
    recalls = []
    for number, query in enumerate(queries):
        rows = answer.rows.filter(pa.compute.equal(answer.rows["query"], number))
        ids, found = np.array(rows["id"].to_pylist()), np.array(rows["embedding"].to_pylist())
        assert np.array_equal(found, everything[ids]), "the column's own integers"
        assert rows["distance"].to_pylist() == pytest.approx(
            np.sqrt(((everything[ids] - query) ** 2).sum(axis=1)).tolist(), rel=1e-6
        )
        wanted = nearest_by_whole_numbers(everything[20:], query, 5)
        answered = np.array([rows["distance"].to_pylist()])
        recalls += recalls_of(answered, np.array([wanted]), 1e-6 * wanted[-1]).tolist()
    assert np.mean(recalls) >= 0.9


def test_wider_integers_after_a_promotion_are_the_same_vectors(table_factory: Callable[..., Table]) -> None:
    catalog = table_factory().catalog
    vectors = octets(0, 120)
    table = catalog.create_table("db.octets", rows_of(vectors[:1], 0, pa.int32()).schema)
    table.append(rows_of(vectors[:100], 0, pa.int32()))
    definition = create_index(table, DEFINITION)
    index_head(table, definition)
    with table.update_schema() as change:
        change.update_column(("embedding", "element"), LongType())
    assert isinstance(table.refresh().schema().find_type("embedding"), ListType)
    table.append(rows_of(vectors[100:], 100, pa.int64()))
    assert index_head(table, definition).inserted == 20
    query = ", ".join(map(str, vectors[110].tolist()))
    nearest = SqlSession(lambda name: (catalog.load_table(name), STORAGE)).sql(
        f"SELECT id FROM db.octets ORDER BY l2_distance(embedding, [{query}]) LIMIT 1"
    )
    assert nearest.rows["id"].to_pylist() == [110]


def test_an_integer_beyond_floats_is_refused_by_file_and_row(table_factory: Callable[..., Table]) -> None:
    catalog = table_factory().catalog
    vectors = octets(0, 10)
    vectors[7, 3] = (1 << 24) + 1
    table = catalog.create_table("db.octets", rows_of(vectors[:1], 0, pa.int32()).schema)
    table.append(rows_of(vectors, 0, pa.int32()))
    definition = create_index(table, DEFINITION)
    with pytest.raises(VectorColumnError, match=r"\.parquet: row 7 holds 16777217 in its vector"):
        index_head(table, definition)
    for inexact in (
        open_exact(table, "embedding", "l2", storage=STORAGE),
        open_index(table, definition, storage=STORAGE),
    ):
        with pytest.raises(VectorColumnError, match=r"row 7 holds 16777217 .* mend or delete the row"):
            inexact.search(vectors[7], 1)
