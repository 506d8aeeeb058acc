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

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.index.definitions.ddl import create_index, list_definitions
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.model import Action
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.runs.index_runs import ensure_defined
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.sql.errors import SqlError
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, make_rows, vectors_of
from tests.ops.index.comparison import DEFINITION, index_head

BALLS = IndexDefinition(name="e", column="embedding", metric="l2", method="centroid")
DIMS = 13
DTYPES = {"f32": "<f4", "f16": "<f2", "i8": "i1", "u8": "u1"}


def changed(**changes: Any) -> IndexDefinition:
    """A definition with changes; one without graphs has no parameters of graphs."""
    return replace(BALLS if changes.get("method") == "centroid" else DEFINITION, **changes)


def elements(first: int, last: int, element_type: str) -> npt.NDArray[Any]:
    """[n, DIMS] in clusters, as a writer has them; of bits [n, DIMS] bytes."""
    if element_type == "bit":
        return np.packbits(vectors_of(np.arange(first, last), dims=8 * DIMS) > 0, axis=1)
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


def numbers(vectors: npt.NDArray[Any], element_type: str) -> npt.NDArray[np.float64]:
    """The same as an oracle takes them."""
    return (np.unpackbits(vectors, axis=-1) if element_type == "bit" else vectors).astype(np.float64)


def distances(definition: IndexDefinition, vectors: npt.NDArray[Any], query: npt.NDArray[Any]) -> npt.NDArray[Any]:
    vectors, query = (numbers(stored, definition.element_type) for stored in (vectors, query))
    if definition.metric is Metric.HAMMING:
        return np.asarray((vectors != query).sum(axis=1))
    return np.asarray(np.sqrt(((vectors - query) ** 2).sum(axis=1)))


@pytest.mark.parametrize(
    ("element_type", "fixed", "changes"),
    [
        ("f32", True, {"vectors": "none", "pq_m": 13, "max_deltas": 0}),
        ("f16", False, {"vectors": "f16"}),
        ("i8", True, {}),
        ("u8", False, {"method": "centroid"}),
        ("bit", True, {"metric": "hamming", "vectors": "f16"}),
        ("bit", True, {"metric": "hamming", "vectors": "none", "pq_m": 13}),
        ("bit", False, {"metric": "hamming", "method": "centroid"}),
    ],
)
def test_answers_are_those_of_the_elements_after_every_change(
    table_factory: Callable[..., Table], element_type: str, *, fixed: bool, changes: dict[str, Any]
) -> None:
    everything = elements(0, 330, element_type)
    table, kind = table_of(table_factory, everything[:300], fixed=fixed)
    definition = create_index(table, changed(element_type=element_type, target_recall=0.9, **changes))
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
    assert check_integrity(RunContext(table, STORAGE), version).faults == ()


def assert_right(table: Table, definition: IndexDefinition, everything: npt.NDArray[Any], live: range) -> None:
    """Searches by numbers and by bytes, exact ones and SQL find what brute force over the elements finds."""
    queries = elements(1_000, 1_008, definition.element_type)
    reader = open_index(table, definition, storage=STORAGE)
    answer = reader.search([query.tobytes() for query in queries], 5, columns=["id", "embedding"])
    assert answer.coverage is Coverage.EXACT_VERSION
    plain = numbers(queries, definition.element_type)
    assert answer.rows.equals(reader.search(plain, 5, columns=["id", "embedding"]).rows)
    assert answer.rows.equals(reader.search(queries, 5, columns=["id", "embedding"]).rows)
    remote = open_index(table, definition, storage=STORAGE, runner=LocalRunner(1), in_process_mb=0)
    assert answer.rows.equals(remote.search(queries, 5, columns=["id", "embedding"]).rows)
    exact = open_exact(table, "embedding", definition.metric, element_type=definition.element_type, storage=STORAGE)
    true = exact.search(queries, 5).rows
    assert true.column_names == ["query", "rank", "distance", "id"], "vectors come where they are named"
    recalls = []
    for number, query in enumerate(queries):
        expected = np.sort(distances(definition, everything[live], query))[:5]
        of_exact = true.filter(pa.compute.equal(true["query"], number))
        assert_distances(of_exact, expected)
        assert_distances(of_exact, distances(definition, everything[of_exact["id"].to_pylist()], query))
        rows = answer.rows.filter(pa.compute.equal(answer.rows["query"], number))
        ids = rows["id"].to_pylist()
        assert rows["embedding"].to_pylist() == [everything[number].tobytes() for number in ids], "the column's bytes"
        assert_distances(rows, distances(definition, everything[ids], query))
        recalls += recalls_of(np.array([rows["distance"].to_pylist()]), expected[None], 1e-6 * expected[-1]).tolist()
    assert np.mean(recalls) >= 0.9
    certified = reader.search(queries, 5, certified=True).rows
    assert certified["distance"].to_pylist() == true["distance"].to_pylist()
    assert_sql_is_right(table, definition, everything, live, answer.rows["id"].to_pylist()[:5])


def assert_distances(rows: pa.Table, expected: npt.NDArray[Any]) -> None:
    """Whole numbers to the last bit, others but for the order of the sum."""
    is_whole = np.issubdtype(expected.dtype, np.integer)
    assert rows["distance"].to_pylist() == (expected.tolist() if is_whole else pytest.approx(expected.tolist()))


def assert_sql_is_right(
    table: Table, definition: IndexDefinition, everything: npt.NDArray[Any], live: range, nearest: list[int]
) -> None:
    sql = SqlSession(lambda name: (table.catalog.load_table(name), STORAGE)).sql
    query = elements(1_000, 1_001, definition.element_type)[0]
    plain = numbers(query, definition.element_type)
    function = "hamming_distance" if definition.metric is Metric.HAMMING else "l2_distance"
    to_query = distances(definition, everything[live], query)
    radius = float(np.sort(to_query)[9:11].mean())
    for text in (f"X'{query.tobytes().hex()}'", str(plain.tolist())):
        distance = f"{function}(embedding, {text})"
        assert sql(f"SELECT id FROM db.octets ORDER BY {distance} LIMIT 5").rows["id"].to_pylist() == nearest
        near = sql(f"SELECT id FROM db.octets WHERE {distance} < {radius}").rows["id"].to_pylist()
        assert {*near} == {live.start + at for at in np.flatnonzero(to_query < radius).tolist()}
    by_product = sql(f"SELECT id FROM db.octets ORDER BY inner_product(embedding, {text}) DESC LIMIT 1")
    products = numbers(everything[live], definition.element_type) @ plain
    assert products[by_product.rows["id"].to_pylist()[0] - live.start] == pytest.approx(products.max())
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
    with pytest.raises(
        DefinitionError, match=r"is list<float>, and element_type i8 is for bytes: leave element_type out$"
    ):
        create_index(lists, replace(DEFINITION, element_type="i8"))
    with pytest.raises(DefinitionError, match="element_type is 'i4'; it takes column, f32, f16, i8, u8, bit"):
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
        (bytes(28), "row 3 has a vector of 14 dimensions, not 13"),
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


@pytest.mark.parametrize("changes", [{}, {"vectors": "none", "pq_m": 13}, {"method": "centroid"}], ids=str)
def test_another_element_type_is_another_index(table_factory: Callable[..., Table], changes: dict[str, Any]) -> None:
    """Versions of before answer for it nowhere: not until it is built, nor at snapshots that have no other."""
    everything = elements(0, 120, "i8")
    table, kind = table_of(table_factory, everything[:60])
    definition = create_index(table, changed(element_type="u8", **changes))
    assert index_head(table, definition).action is Action.BUILT
    other = replace(definition, element_type="i8")
    with pytest.raises(DefinitionError, match="has an index 'e' already, with element_type u8; drop it"):
        create_index(table, other)
    with pytest.raises(DefinitionError, match="'e' has element_type u8, and is to have i8: drop the index, and the"):
        ensure_defined(table, other)
    assert_nearest(open_index(table, other, storage=STORAGE), everything[:60], Coverage.EXACT_SCAN)
    first = table.metadata.current_snapshot_id
    table.append(rows_of(everything[60:], 60, kind))
    assert index_head(table, other).action is Action.BUILT
    assert index_head(table, other).action is Action.REUSED
    assert_nearest(open_index(table, other, storage=STORAGE), everything, Coverage.EXACT_VERSION)
    earlier = open_index(table, other, snapshot=first, storage=STORAGE)
    assert_nearest(earlier, everything[:60], earlier.coverage)


def assert_nearest(reader: IndexReader, vectors: npt.NDArray[Any], coverage: Coverage) -> None:
    query = elements(1_000, 1_001, "i8")[0]
    expected = np.sort(distances(replace(DEFINITION, element_type="i8"), vectors, query))
    assert reader.coverage is coverage
    certified = reader.search(query, 5, certified=True).rows
    assert certified["distance"].to_pylist() == pytest.approx(expected[:5].tolist())
    assert reader.within(query, expected[9:11].mean()).rows.num_rows == 10


def test_a_statement_does_not_choose_between_indexes_that_read_other_numbers(
    table_factory: Callable[..., Table],
) -> None:
    table, _ = table_of(table_factory, elements(0, 20, "i8"))
    create_index(table, replace(DEFINITION, name="a", element_type="u8"))
    sql = SqlSession(lambda name: (table.catalog.load_table(name), STORAGE)).sql
    assert sql("SELECT id FROM db.octets ORDER BY l2_distance(embedding, X'" + "00" * DIMS + "') LIMIT 1").rows.num_rows
    create_index(table, replace(DEFINITION, name="b", element_type="i8"))
    for function in ("l2_distance", "cosine_distance"):
        with pytest.raises(SqlError, match=r"read its bytes as different numbers \(a as u8, b as i8\)"):
            sql(f"SELECT id FROM db.octets ORDER BY {function}(embedding, X'{'00' * DIMS}') LIMIT 1")


def test_a_query_may_be_any_kind_of_bytes(table_factory: Callable[..., Table]) -> None:
    vectors = elements(0, 20, "i8")
    exact = open_exact(table_of(table_factory, vectors)[0], "embedding", "l2", element_type="i8", storage=STORAGE)
    octets = vectors[7].tobytes()
    for query in (octets, bytearray(octets), memoryview(octets), [bytearray(octets)]):
        assert exact.search(query, 1).rows["distance"].to_pylist() == [0]


def test_a_parameter_of_sql_may_be_any_kind_of_bytes(table_factory: Callable[..., Table]) -> None:
    vectors = elements(0, 20, "i8")
    table, _ = table_of(table_factory, vectors)
    create_index(table, replace(DEFINITION, element_type="i8"))
    sql = SqlSession(lambda name: (table.catalog.load_table(name), STORAGE)).sql
    octets = vectors[7].tobytes()
    assert vectors[7].min() < 0  # read as unsigned, they would be another vector
    for query in (octets, bytearray(octets), memoryview(octets)):
        for condition in ("", "WHERE embedding = :q"):
            text = f"SELECT id FROM db.octets {condition} ORDER BY l2_distance(embedding, :q) LIMIT 1"
            assert sql(text, {"q": query}).rows["id"].to_pylist() == [7]


def test_hamming_counts_bits_alone(table_factory: Callable[..., Table]) -> None:
    message = "metric hamming counts bits that differ, so it needs element_type bit, not"
    with pytest.raises(DefinitionError, match=f"index e: {message} u8"):
        replace(DEFINITION, metric="hamming", element_type="u8")
    table, _ = table_of(table_factory, np.array([[0x80, 0x01], [0xFF, 0xFF]], np.uint8))
    with pytest.raises(DefinitionError, match=f"{message} column"):
        open_exact(table, "embedding", "hamming")
    exact = open_exact(table, "embedding", "hamming", element_type="bit", storage=STORAGE)
    first = [1.0, *[0.0] * 14, 1.0]
    for query in (first, np.array(first) > 0, bytes([0x80, 0x01]), np.array([0x80, 0x01], np.uint8)):
        assert exact.search(query, 2).rows["distance"].to_pylist() == [0, 14]
    assert exact.within(first, 14).rows["id"].to_pylist() == [0]
    assert exact.within(first, 14, inclusive=True).rows["id"].to_pylist() == [0, 1]
    for query in ([0.5] * 16, [-1.0] * 16):
        with pytest.raises(QueryError, match="under hamming a query is numbers that are 0 or 1, or their bits packed"):
            exact.search(query, 1)
    with pytest.raises(QueryError, match="shape"):
        exact.search(np.zeros((2, 1, 2), np.uint8), 1)
    with pytest.raises(QueryError, match=r"the query has 24 dimensions, the vectors of .* have 16"):
        exact.search(bytes(3), 1)
    no_index = SqlSession(lambda name: (table, STORAGE)).sql
    near = no_index("SELECT id FROM db.octets ORDER BY hamming_distance(embedding, X'ff7f') LIMIT 1")
    assert near.rows["id"].to_pylist() == [1]


def test_files_are_ruled_out_by_their_counts_of_bits(table_factory: Callable[..., Table]) -> None:
    low, high = np.zeros((20, 32), np.uint8), np.full((20, 32), 0xFF, np.uint8)
    table, kind = table_of(table_factory, low)
    table.append(rows_of(high, 20, kind))
    definition = create_index(table, replace(BALLS, element_type="bit", metric="hamming"))
    index_head(table, definition)
    reader = open_index(table, definition, storage=STORAGE)
    answer = reader.within(low[0], 20)
    assert answer.rows["id"].to_pylist() == list(range(20))
    assert answer.profile.pruning is not None
    assert answer.profile.pruning.files_pruned == 1, "it is 256 bits away, which are 16 of Euclidean distance"
    certificate = reader.search(low[0], 3, certified=True).profile.certificate
    assert certificate is not None
    assert certificate.pruned_from == (pytest.approx(256, rel=1e-3),)
