"""Searches that cannot be answered as they were put: a clear error, or the exact answer and a warning."""

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding import bindings
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import DefinitionError
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.search.arguments import prepare_queries
from icepuffin.ops.search.errors import IndexUnavailableError, QueryError
from icepuffin.ops.search.indexed.worker import SearchShare
from icepuffin.ops.search.measured.tuning_run import tune
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage, StalePolicy
from icepuffin.ops.search.tuning import SearchOptions
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import UnknownSnapshotError
from icepuffin.ops.tasks.task_runner import LocalRunner
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, answer_with_recall, ids_by_query, index_head

TableFactory = Callable[..., Table]
Search = Callable[[IndexReader, object], object]
SEARCHES: dict[str, Search] = {
    "search": lambda reader, query: reader.search(query, 3),  # type: ignore[arg-type]
    "within": lambda reader, query: reader.within(query, 1.0),  # type: ignore[arg-type]
}


BAD_QUERIES = [
    (np.zeros(3, np.float32), "3 dimensions"),
    (np.zeros((2, 17)), "17 dimensions"),
    (np.full(16, np.nan, np.float32), "NaN"),
    (np.array([[np.inf] + [0.0] * 15]), "infinity"),
    ([1e300] * 16, "infinity"),
    ([["a"] * 16], "are text, not numbers"),
    ([True] * 16, "are true or false, not numbers"),
    (np.zeros(16, "M8[D]"), "are times, not numbers"),
    ([[1.0] * 16, [1.0] * 15], "vectors of one length"),
    (np.zeros((1, 2, 16)), "shape"),
    (np.ma.masked_array(np.ones(16), mask=[True] + [False] * 15), "some of whose numbers are masked"),
    ([], "dimensions"),
    ([None], "are Python objects, not numbers"),
    (pa.array([[1.0] * 16, None]), "row 1 has no vector"),
    (pa.array([["a"] * 16]), "list of numbers"),
]


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
@pytest.mark.parametrize("indexed", [True, False], ids=["indexed", "scanned"])
def test_a_query_that_is_no_vector_of_the_column_is_refused(table: Table, indexed: bool, search: Search) -> None:
    if indexed:
        index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    for query, message in BAD_QUERIES:
        with pytest.raises(QueryError, match=message):
            search(reader, query)


@pytest.mark.parametrize("number", [-1.0, 0.5, 2.0])
def test_a_query_of_bits_is_of_zeros_and_ones(number: float) -> None:
    with pytest.raises(QueryError, match="numbers that are 0 or 1"):
        prepare_queries([0.0, 1.0, number], Metric.HAMMING, None)
    assert prepare_queries([0.0, 1.0, 1.0], Metric.HAMMING, 3).tolist() == [[0.0, 1.0, 1.0]]


def test_numbers_of_one_byte_are_no_bytes_of_floats() -> None:
    numbers = np.arange(8, dtype=np.uint8)
    assert prepare_queries(numbers, Metric.L2, 8, "f32").tolist() == [numbers.tolist()]


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_a_zero_vector_has_no_direction(table: Table, search: Search) -> None:
    cosine = replace(DEFINITION, metric="cosine")
    index_head(table, cosine)
    with pytest.raises(QueryError, match="zero"):
        search(open_index(table, cosine, storage=STORAGE), np.zeros(16))


def test_an_empty_name_is_no_index_and_not_the_only_one(table: Table) -> None:
    """As where a variable of the environment is not set."""
    create_index(table, DEFINITION)
    index_head(table)
    with pytest.raises(DefinitionError, match="has no index ''; it has: e"):
        open_index(table, "", storage=STORAGE)
    with pytest.raises(DefinitionError, match="has no index ''; it has: e"):
        tune(table, queries(2), index="", storage=STORAGE)


def test_a_number_of_rows_that_is_none_is_refused(table: Table) -> None:
    reader = open_index(table, DEFINITION, storage=STORAGE)
    for k in (0, -1, 2.5, True, "3", None):
        with pytest.raises(QueryError, match="k is"):
            reader.search(queries(1), k)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", [None, "id >= 590", "id < 0"])
@pytest.mark.parametrize("vectors", ["f32", "none"])
def test_more_rows_than_there_are_gives_all_of_them_once(table: Table, vectors: str, where: str | None) -> None:
    definition = replace(DEFINITION, vectors=vectors, target_recall=0.3)
    index_head(table, definition)
    found = open_index(table, definition, storage=STORAGE).search(queries(2), 10_000, where=where, columns=["id"])
    expected = {None: list(range(600)), "id >= 590": list(range(590, 600)), "id < 0": []}[where]
    rows = ids_by_query(found.rows)
    assert all(sorted(rows[query]) == expected for query in rows)
    assert len(rows) == (2 if expected else 0)


def test_an_empty_answer_has_the_columns_of_a_full_one(table: Table) -> None:
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    full, empty = reader.search(queries(1)), reader.search(queries(1), where="id < 0")
    assert empty.rows.schema == full.rows.schema
    assert empty.rows.num_rows == 0
    for no_queries in (np.empty((0, 16), np.float32), pa.array([], pa.list_(pa.float32()))):
        assert reader.search(no_queries).rows.num_rows == 0


def test_a_table_without_rows_answers_nothing(table_factory: TableFactory) -> None:
    empty = table_factory("empty")
    with pytest.raises(UnknownSnapshotError, match="no snapshot yet"):
        open_index(empty, DEFINITION, storage=STORAGE)
    empty.append(make_rows(0, 5))
    empty.delete("id >= 0")
    found = open_index(empty.refresh(), DEFINITION, storage=STORAGE).search(queries(1))
    assert (found.rows.num_rows, found.coverage) == (0, Coverage.EXACT_SCAN)
    assert found.profile.why == "the index has no version yet"


def test_a_snapshot_is_named_by_an_id_a_ref_or_a_time(table: Table) -> None:
    first = table.metadata.snapshots[0].snapshot_id
    assert open_index(table, DEFINITION, snapshot=np.int64(first), storage=STORAGE).snapshot_id == first  # type: ignore[arg-type]
    with pytest.raises(UnknownSnapshotError, match=r"1\.5 is no snapshot id, no tag or branch, and no time"):
        open_index(table, DEFINITION, snapshot=1.5, storage=STORAGE)  # type: ignore[arg-type]


def test_a_snapshot_that_has_expired_is_named(table: Table) -> None:
    first = table.metadata.snapshots[0].snapshot_id
    index_head(table)
    table.refresh().maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(UnknownSnapshotError, match=f"{first}: it has expired"):
        open_index(table.refresh(), DEFINITION, snapshot=first, storage=STORAGE)


def test_an_open_reader_goes_on_while_the_index_is_replaced(table: Table) -> None:
    """It was opened at a snapshot: what others publish and drop meanwhile changes nothing for it."""
    index_head(table)
    reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
    before = ids_by_query(reader.search(queries(), columns=["id"]).rows)
    stop, failures = threading.Event(), []

    def go_on() -> None:
        while not stop.is_set():
            try:
                assert ids_by_query(reader.search(queries(), columns=["id"]).rows) == before
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=go_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(600, 900, 100):
        table.refresh().append(make_rows(start, start + 100))
        index_head(table)
    bindings.drop(table.refresh(), "ann_e")
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert ids_by_query(reader.search(queries(), columns=["id"]).rows) == before


def _corrupt(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 0xFF
    path.write_bytes(data)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


HARMS = [_corrupt, _truncate, _empty, Path.unlink]


def _harmed(report: IndexReport, harm: Callable[[Path], None]) -> None:
    harm(to_path(str(report.puffin_path)))


@pytest.mark.parametrize("harm", HARMS)
def test_harm_to_the_index_file_under_an_open_reader_changes_no_answer(
    table: Table, uncached: None, harm: Callable[[Path], None]
) -> None:
    """The shards are in memory; centroids that were not read yet are missing for pruning, and that is reported."""
    report = index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    before = ids_by_query(reader.search(queries(), columns=["id"]).rows)
    within = ids_by_query(reader.within(queries(), 2.6, columns=["id"]).rows)
    other = open_index(table, DEFINITION, storage=STORAGE)
    _harmed(report, harm)
    assert ids_by_query(reader.search(queries(), columns=["id"]).rows) == before
    late = other.within(queries(), 2.6, columns=["id"])
    assert ids_by_query(late.rows) == within
    if harm is not _corrupt:  # that hits a shard, not the centroids
        assert "centroids cannot be read" in late.warnings[0]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("policy", list(StalePolicy))
def test_an_index_file_that_cannot_be_read_is_answered_as_the_policy_says(
    table: Table, uncached: None, harm: Callable[[Path], None], policy: StalePolicy
) -> None:
    _harmed(index_head(table), harm)
    if policy is StalePolicy.FAIL:
        with pytest.raises(IndexUnavailableError, match=r"\.puffin"):
            open_index(table, DEFINITION, storage=STORAGE, stale=policy)
        return
    result = open_index(table, DEFINITION, storage=STORAGE, stale=policy).search(queries(), columns=["id"])
    true = open_exact(table, "embedding", Metric.L2, storage=STORAGE).search(queries(), columns=["id"])
    assert result.coverage is Coverage.EXACT_SCAN
    assert ids_by_query(result.rows) == ids_by_query(true.rows)
    assert any(".puffin" in warning for warning in result.warnings)


def test_every_byte_that_is_flipped_is_noticed_or_does_not_matter(table: Table, uncached: None) -> None:
    report = index_head(table)
    path = to_path(str(report.puffin_path))
    whole = path.read_bytes()
    for at in np.linspace(0, len(whole) - 1, 60).astype(int):
        data = bytearray(whole)
        data[at] ^= 0x41
        path.write_bytes(data)
        found, recall = answer_with_recall(table)
        assert found.coverage in (Coverage.EXACT_SCAN, Coverage.EXACT_VERSION)
        assert recall == 1.0 if found.coverage is Coverage.EXACT_SCAN else recall >= 0.9


def test_a_reader_serves_many_threads(table: Table) -> None:
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    query_vectors = queries(40)
    alone = [ids_by_query(reader.search(query, 5, columns=["id"]).rows)[0] for query in query_vectors]
    conditions = [None, "id < 500", "section = 'section 1'"]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda at: reader.search(query_vectors[at % 40], 5, columns=["id"]).rows, range(200)))
        filtered = list(
            pool.map(lambda at: reader.search(query_vectors[at % 40], 5, where=conditions[at % 3]).rows, range(90))
        )
    assert [ids_by_query(rows)[0] for rows in answers] == [alone[at % 40] for at in range(200)]
    assert all(rows.num_rows == 5 for rows in filtered)


def test_queries_and_answers_are_those_of_the_tools_at_hand(table: Table) -> None:
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    query_vectors = queries(3)
    expected = reader.search(query_vectors, 4).rows
    frames = (pd.DataFrame(query_vectors), pl.DataFrame(query_vectors))
    for given in (query_vectors.tolist(), query_vectors.astype(np.float64), np.asfortranarray(query_vectors), *frames):
        assert ids_by_query(reader.search(given, 4).rows) == ids_by_query(expected)
    assert expected.to_pandas()["id"].tolist() == expected["id"].to_pylist()
    frame = pl.from_arrow(expected)
    assert isinstance(frame, pl.DataFrame)
    assert frame["id"].to_list() == expected["id"].to_pylist()


def test_the_reader_needs_neither_dagster_nor_spark() -> None:
    heavy = "{'dagster', 'pyspark'}"
    modules = "icepuffin.ops.search.opening, icepuffin.ops.sql.sql_session"
    code = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_data_files_of_other_rows_may_be_away(table: Table) -> None:
    """A search reads the files that hold its rows, and no others."""
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    result = reader.search(queries(1), 1, columns=["id"]).rows["id"][0].as_py()
    kept = next(task.file.file_path for task in table.scan(row_filter=f"id = {result}").plan_files())
    for file in live_files(table, reader.snapshot_id).files:
        if file.path != kept:
            to_path(file.path).unlink()
    fresh = open_index(table, DEFINITION, storage=STORAGE)
    assert fresh.search(queries(1), 1, columns=["id"]).rows["id"].to_pylist() == [result]


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_rows_without_a_vector_are_near_nothing(table: Table, search: Search) -> None:
    index_head(table)
    more = make_rows(600, 604)
    vectors = [None, more["embedding"][1], None, more["embedding"][3]]
    table.append(more.set_column(3, "embedding", pa.array(vectors, pa.list_(pa.float32()))))
    table.append(make_rows(604, 606).drop_columns("embedding"))
    for reader in (
        open_index(table, DEFINITION, storage=STORAGE),
        open_index(table, DEFINITION, storage=STORAGE, runner=LocalRunner(), in_process_mb=-1),
        open_index(table, DEFINITION, storage=STORAGE, stale=StalePolicy.EXACT),
    ):
        found = reader.search(queries(5), 1000, columns=["id"])
        assert sorted(ids_by_query(found.rows)[0]) == [*range(600), 601, 603]
        for numbers, where in (([601], "id = 601"), ([], "id = 602")):
            assert reader.search(queries(1), where=where, columns=["id"]).rows["id"].to_pylist() == numbers
        search(reader, queries(1))


WITHOUT_A_DISTANCE = [
    ([float("nan")] * 16, "holds NaN or infinity"),
    ([float("inf")] + [0.0] * 15, "holds NaN or infinity"),
    ([1.0] * 15, "has a vector of 15 dimensions, not 16"),
    ([], "has a vector of 0 dimensions"),
    ([None] * 16, "has a null element in its vector"),
    ([0.0] * 16, "is zero, under cosine"),
]


@pytest.mark.parametrize(("vector", "message"), WITHOUT_A_DISTANCE)
def test_rows_without_a_distance_are_in_no_answer_and_are_reported(
    table: Table, monkeypatch: pytest.MonkeyPatch, vector: list[float], message: str
) -> None:
    """One bad row that somebody appends leaves the others to be found."""
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")  # else no task would search what is in memory
    cosine = replace(DEFINITION, metric="cosine")
    index_head(table, cosine)
    more = make_rows(600, 640)
    vectors = [vector if number in (7, 23) else more["embedding"][number].as_py() for number in range(40)]
    table.append(more.set_column(3, "embedding", pa.array(vectors, pa.list_(pa.float32()))))
    others = [number for number in range(640) if number not in (607, 623)]
    readers = (
        open_index(table, cosine, storage=STORAGE),
        open_index(table, cosine, storage=STORAGE, runner=LocalRunner(), in_process_mb=-1),
        open_index(table, cosine, storage=STORAGE, stale=StalePolicy.EXACT),
    )
    assert [reader.tier for reader in readers] == ["in-process", "distributed", "in-process"]
    for reader in readers:
        for found in (reader.search(queries(2), 1000, columns=["id"]), reader.within(queries(2), 3.0, columns=["id"])):
            assert [sorted(rows) for rows in ids_by_query(found.rows).values()] == [others, others]
            (warning,) = found.warnings
            assert warning.startswith("2 rows have no distance from anything, and no search finds them: file:")
            assert "row 7 " in warning
            assert message in warning
        assert reader.search(queries(1), where="id = 600", columns=["id"]).warnings == ()


def test_where_nobody_can_be_warned_a_row_without_a_distance_is_an_error(table: Table) -> None:
    """In a join on executors, which is over before anybody could look at warnings."""
    index_head(table)
    more = make_rows(600, 602)
    vectors = [[float("nan")] * 16, more["embedding"][1].as_py()]
    table.append(more.set_column(3, "embedding", pa.array(vectors, pa.list_(pa.float32()))))
    reader = open_index(table, DEFINITION, storage=STORAGE)
    request, _ = reader.search_request(5, SearchOptions(), None)
    with pytest.raises(VectorColumnError, match="the vector of row 0 holds NaN or infinity"):
        reader.search_job().serialize().worker().find(queries(1), SearchShare(files=reader.tail), request)
