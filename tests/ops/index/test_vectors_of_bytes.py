"""Vectors that lie in columns of bytes, through the life of an index."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BinaryType, FixedType, LongType, NestedField

from icepuffin.ops.catalog.bound_versions import tagged_version
from icepuffin.ops.catalog.live_files import live_files
from icepuffin.ops.index import Action, DefinitionError, IndexDefinition, create_index, list_definitions
from icepuffin.ops.index.integrity import check_integrity
from icepuffin.ops.search import Coverage, QueryError, exact_search, open_exact, open_index
from icepuffin.ops.sql import SqlSession
from icepuffin.ops.tasks.runner import LocalRunner
from icepuffin.ops.vector_column import VectorColumnError
from icepuffin.orchestration.demo.rowdeletes import append_position_deletes
from tests.conftest import STORAGE, make_rows, vectors_of
from tests.ops.index.comparison import DEFINITION, index_head

DIMS = 13
DTYPES = {"f32": "<f4", "f16": "<f2", "i8": "i1", "u8": "u1"}


def elements(first: int, last: int, element_type: str) -> npt.NDArray[Any]:
    """[n, DIMS] in clusters, as a writer has them."""
    plain = vectors_of(np.arange(first, last), dims=DIMS)
    if element_type in ("i8", "u8"):
        low, high = (-128, 127) if element_type == "i8" else (0, 255)
        plain = np.clip(np.rint(30 * plain + (low + high) / 2), low, high)
    return plain.astype(DTYPES[element_type])


def rows_of(vectors: npt.NDArray[Any], first: int, kind: pa.DataType) -> pa.Table:
    values = pa.array([vector.tobytes() for vector in vectors], kind)
    schema = pa.schema([("id", pa.int64()), ("embedding", kind)])
    return pa.table({"id": range(first, first + len(vectors)), "embedding": values}, schema=schema)


def table_of(make: Callable[..., Table], vectors: npt.NDArray[Any], *, fixed: bool = True) -> tuple[Table, pa.DataType]:
    size = vectors.itemsize * vectors.shape[1]
    column = FixedType(size) if fixed else BinaryType()
    fields = NestedField(1, "id", LongType()), NestedField(2, "embedding", column)
    table = make().catalog.create_table("db.octets", Schema(*fields))
    kind = pa.binary(size if fixed else -1)
    table.append(rows_of(vectors, 0, kind))
    return table, kind


def distances(vectors: npt.NDArray[Any], query: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(np.sqrt(((vectors.astype(np.float64) - query.astype(np.float64)) ** 2).sum(axis=1)))


@pytest.mark.parametrize(
    ("element_type", "fixed", "changes"),
    [
        ("f32", True, {"vectors": "none", "pq_m": 13, "max_deltas": 0}),
        ("f16", False, {"vectors": "f16"}),
        ("i8", True, {}),
        ("u8", False, {"method": "centroid"}),
    ],
)
def test_answers_are_those_of_the_elements_after_every_change(
    table_factory: Callable[..., Table], element_type: str, *, fixed: bool, changes: dict[str, Any]
) -> None:
    everything = elements(0, 330, element_type)
    table, kind = table_of(table_factory, everything[:300], fixed=fixed)
    definition = create_index(table, replace(DEFINITION, element_type=element_type, target_recall=0.9, **changes))
    assert list_definitions(table) == (definition,)
    assert index_head(table, definition).rows == 300
    table.append(rows_of(everything[300:], 300, kind))
    first_file = min(live_files(table, table.metadata.current_snapshot_id).files, key=lambda file: -file.record_count)
    append_position_deletes(table, {first_file.path: np.arange(0, 20)})
    report = index_head(table, definition)
    assert report.rows == 310
    assert not definition.has_graphs or (report.inserted, report.tombstones) == (30, 20)
    assert_right(table, definition, everything, range(20, 330))
    table.overwrite(rows_of(everything[20:], 20, kind))
    report = index_head(table, definition)
    assert report.rows == 310
    assert not definition.has_graphs or (report.action, report.inserted) == (Action.REFRESHED, 0)
    assert_right(table, definition, everything, range(20, 330))
    version = tagged_version(table, definition.name)
    assert version is not None
    assert check_integrity(table, version, STORAGE).faults == ()


def assert_right(table: Table, definition: IndexDefinition, everything: npt.NDArray[Any], live: range) -> None:
    """Searches by numbers and by bytes, exact ones and SQL find what brute force over the elements finds."""
    queries = elements(1_000, 1_008, definition.element_type)
    reader = open_index(table, definition, storage=STORAGE)
    answer = reader.search([query.tobytes() for query in queries], 5, columns=["id", "embedding"])
    assert answer.coverage is Coverage.EXACT_VERSION
    assert answer.rows.equals(reader.search(queries, 5, columns=["id", "embedding"]).rows)
    remote = open_index(table, definition, storage=STORAGE, runner=LocalRunner(1), in_process_mb=0)
    assert answer.rows.equals(remote.search(queries, 5, columns=["id", "embedding"]).rows)
    exact = exact_search(table, "embedding", "l2", queries, 5, element_type=definition.element_type, storage=STORAGE)
    assert exact.rows.column_names == ["query", "rank", "distance", "id"], "vectors come where they are named"
    hits = 0
    for number, query in enumerate(queries):
        wanted = distances(everything[live], query)
        of_exact = exact.rows.filter(pa.compute.equal(exact.rows["query"], number))
        assert of_exact["id"].to_pylist() == (live.start + np.argsort(wanted, kind="stable")[:5]).tolist()
        rows = answer.rows.filter(pa.compute.equal(answer.rows["query"], number))
        ids = rows["id"].to_pylist()
        assert rows["embedding"].to_pylist() == [everything[number].tobytes() for number in ids], "the column's bytes"
        assert rows["distance"].to_pylist() == pytest.approx(distances(everything[ids], query).tolist(), rel=1e-6)
        hits += len({*ids} & {*of_exact["id"].to_pylist()})
    assert hits >= 0.9 * 5 * len(queries)
    sql = SqlSession(lambda name: (table.catalog.load_table(name), STORAGE)).sql
    for text in (f"X'{queries[0].tobytes().hex()}'", str(queries[0].tolist())):
        found = sql(f"SELECT id FROM db.octets ORDER BY l2_distance(embedding, {text}) LIMIT 5")
        assert found.rows["id"].to_pylist() == answer.rows["id"].to_pylist()[:5]
    to_first = distances(everything[live], queries[0])
    radius = float(np.sort(to_first)[9:11].mean())
    near = sql(f"SELECT id FROM db.octets WHERE l2_distance(embedding, {text}) < {radius}").rows["id"].to_pylist()
    assert {*near} == {live.start + at for at in np.flatnonzero(to_first < radius).tolist()}
    by_product = sql(f"SELECT id FROM db.octets ORDER BY inner_product(embedding, {text}) DESC LIMIT 1")
    assert by_product.rows["id"].to_pylist() == [
        live.start + int(np.argmax(everything[live] @ queries[0].astype(float)))
    ]
    assert "no index on embedding by ip" in by_product.how


def test_an_element_type_that_does_not_fit_the_column_is_refused(table_factory: Callable[..., Table]) -> None:
    lists = table_factory()
    lists.append(make_rows(0, 2))
    table, _ = table_of(lambda: lists, elements(0, 3, "u8"))
    for element_type, message in (
        ("column", r"'embedding' is fixed\[13\]: say which numbers its bytes are, by an element_type of f32, f16"),
        ("f32", r"fixed\[13\]: 13 bytes are no whole number of f32 elements, 1 would be left over"),
    ):
        with pytest.raises(DefinitionError, match=message):
            create_index(table, replace(DEFINITION, element_type=element_type))
        with pytest.raises(DefinitionError, match=message):
            open_exact(table, "embedding", "l2", element_type=element_type)
    with pytest.raises(DefinitionError, match=r"is list<float>, and element_type i8 is for bytes: leave element_type"):
        create_index(lists, replace(DEFINITION, element_type="i8"))
    with pytest.raises(DefinitionError, match="element_type is 'i4'; it takes column, f32, f16, i8, u8"):
        IndexDefinition(name="e", column="embedding", element_type="i4")
    with pytest.raises(QueryError, match="queries are bytes, not numbers"):
        open_exact(lists, "embedding", "l2", storage=STORAGE).search(bytes(64))


def test_bytes_of_another_length_or_without_a_number_are_refused_by_file_and_row(
    table_factory: Callable[..., Table],
) -> None:
    vectors = elements(0, 40, "f16")
    table, kind = table_of(table_factory, vectors, fixed=False)
    definition = create_index(table, replace(DEFINITION, element_type="f16"))
    assert index_head(table, definition).rows == 40
    bad = rows_of(vectors[:4], 40, kind).to_pylist()
    bad[1]["embedding"] = None
    for value, message in (
        (bytes(25), "row 3 has 25 bytes, no whole number of f16 elements"),
        (bytes(28), "row 3 has a vector of 14 dimensions, 13 were expected"),
        (np.full(DIMS, np.nan, "<f2").tobytes(), "the vector of row 3 holds NaN or infinity"),
    ):
        bad[3]["embedding"] = value
        before = table.refresh().metadata.current_snapshot_id
        table.append(pa.Table.from_pylist(bad, schema=rows_of(vectors[:1], 0, kind).schema))
        with pytest.raises(VectorColumnError, match=rf"\.parquet: .*{message}"):
            index_head(table, definition)
        answer = open_index(table, definition, storage=STORAGE).search(vectors[0], 43, columns=["id"])
        assert {*answer.rows["id"].to_pylist()} == {*range(40), 40, 42}
        assert message in answer.warnings[0]
        table.manage_snapshots().set_current_snapshot(before).commit()


def test_another_element_type_is_another_index(table_factory: Callable[..., Table]) -> None:
    table, _ = table_of(table_factory, elements(0, 60, "u8"))
    definition = create_index(table, replace(DEFINITION, element_type="u8"))
    assert index_head(table, definition).action is Action.BUILT
    other = replace(definition, element_type="i8")
    with pytest.raises(DefinitionError, match="has an index 'e' already, with element_type u8; drop it"):
        create_index(table, other)
    assert index_head(table, other).action is Action.BUILT
    assert index_head(table, other).action is Action.REUSED
