"""The kNN join on Spark, classic and through a Connect server: the rows that the reader finds in this process."""

import gc
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import FileNumber, ShardId, StorageConfig
from icepuffin.ops.search import tuning
from icepuffin.ops.search.arguments import prepare_queries
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.indexed import loaded_version
from icepuffin.ops.search.indexed.distributed_search import DistributedVersion
from icepuffin.ops.search.indexed.worker import SearchShare
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.search.tuning import SearchOptions
from icepuffin.ops.spark import broadcasts
from icepuffin.ops.spark.knn_blocks import ROW_HASH, Join, split
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.table.live_files import live_files
from tests.conftest import ROWS, STORAGE, make_rows, queries, vectors_of
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.spark.test_spark_runner import files_of_driver
from tests.patience import until
from tests.selection import nightly, some

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from icepuffin.ops.spark.knn_join import KnnJoin

pytestmark = pytest.mark.jvm
BALLS = replace(DEFINITION, name="balls", method="centroid")
LEAN = replace(DEFINITION, vectors="none", pq_m=8)
CODED = replace(DEFINITION, name="coded", vectors="rq4")
SMALL = replace(DEFINITION, shards=24)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return make_table(tmp_path_factory.mktemp("join"))


@pytest.fixture(scope="module")
def emptied(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table whose rows were all deleted since."""
    full = make_table(tmp_path_factory.mktemp("emptied"))
    full.delete("id >= 0")
    return full.refresh()


def empty_table(folder: Path, rows: pa.Table | None = None) -> Table:
    """A table, empty but for `rows`."""
    catalog = open_catalog("j", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"})
    catalog.create_namespace("db")
    new_table = catalog.create_table("db.t", ROWS if rows is None else rows.schema, properties={"format-version": "2"})
    if rows is not None:
        new_table.append(rows)
    return new_table


def make_table(folder: Path) -> Table:
    """Indexed, then written to: 600 rows in the index; since then 50 were deleted and 100 added."""
    new_table = empty_table(folder)
    new_table.append(make_rows(0, 300))
    new_table.append(make_rows(300, 600))
    index_head(new_table)
    index_head(new_table, replace(LEAN, name="lean"))
    index_head(new_table, BALLS)
    index_head(new_table, CODED)
    new_table.refresh()
    new_table.append(make_rows(600, 700))
    file = live_files(new_table, new_table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(new_table, {file.path: np.arange(0, 50)})
    return new_table.refresh()


def left_side(session: "SparkSession", count: int, parts: int = 3) -> "DataFrame":
    rows = pa.table({"number": pa.array(range(count), pa.int64()), "query": queries(count).tolist()})
    return session.createDataFrame(rows).repartition(parts)


def joined(left: "DataFrame", reader: IndexReader, **options: Any) -> "KnnJoin":
    from icepuffin.ops.spark.knn_join import knn_join  # noqa: PLC0415  imports pyspark

    return knn_join(left, reader, on="query", block_rows=16, **options)


def in_order(found: "KnnJoin") -> pa.Table:
    rows = found.rows.drop("query").toArrow()
    return rows.sort_by([("number", "ascending"), ("rank", "ascending")])


@pytest.mark.parametrize(
    ("definition", "options"),
    some(
        [
            (DEFINITION, {"columns": ["id", "name"]}),
            (replace(LEAN, name="lean"), {"columns": ["name", "section"], "search_list": 30}),
            (replace(LEAN, name="lean"), {"columns": []}),
            (DEFINITION, {"columns": ["id"], "shards": 2, "where": "section != 'section 1'"}),
            (BALLS, {"columns": ["id"], "where": "section != 'section 1'"}),
            (CODED, {"columns": ["id"]}),
            (CODED, {"columns": ["id"], "oversample": 3}),
        ],
        3,
    ),
)
def test_the_join_gives_the_rows_of_the_reader(
    session: "SparkSession", table: Table, definition: IndexDefinition, options: dict[str, Any]
) -> None:
    reader = open_index(table, definition, storage=STORAGE)
    result = joined(left_side(session, 50), reader, k=6, **options)
    local_result = reader.search(queries(50), 6, **options)
    assert result.coverage is local_result.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert (result.snapshot_id, result.index_snapshot_id) == (local_result.snapshot_id, local_result.index_snapshot_id)
    other_rows = in_order(result)
    assert other_rows.column_names == ["number", "rank", "distance", *options["columns"]]
    assert other_rows["number"].to_pylist() == local_result.rows["query"].to_pylist()
    by_codes = definition is CODED and "oversample" not in options
    for name in ("rank", "distance", *options["columns"]):
        expected: Any = local_result.rows[name].to_pylist()
        if by_codes and name == "distance":  # sums of floats, whose order a process chooses when it compiles them
            expected = pytest.approx(expected, rel=1e-5)
        assert other_rows[name].to_pylist() == expected, name
    if definition is CODED:
        exact = open_exact(table, "embedding", "l2", storage=STORAGE).search(queries(50), 6).rows
        assert (other_rows["distance"].to_pylist()[:6] == exact["distance"].to_pylist()[:6]) is not by_codes


def test_a_join_finds_the_rows_of_a_tail_whose_matches_its_reader_has_in_memory(
    spark: "SparkSession", table_factory: Callable[..., Table]
) -> None:
    """Tasks read the tail, and the reader tells them which rows match. Compared with brute force over the ids."""
    table = table_factory()
    table.append(make_rows(0, 300))
    definition = replace(DEFINITION, shards=1, search_list=300, filters=("section", "id"))
    index_head(table, definition)
    table.append(make_rows(300, 360))
    for file in live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files:
        append_position_deletes(table, {file.path: np.arange(0, file.record_count, 5)})
    live = np.flatnonzero(np.arange(360) % 5)
    vectors = queries(6)
    distances = np.linalg.norm(vectors_of(live).astype(np.float64) - vectors[:, None].astype(np.float64), axis=2)
    reader = open_index(table.refresh(), definition, storage=STORAGE)
    for first in range(2):
        reader.search(vectors, 1, columns=[])
        reader.search(vectors, 1, columns=[], where=f"id > {first} and section != 'x'")
    for where, matching in (
        (None, np.ones(len(live), np.bool_)),
        ("section in ('section 1', 'section 3') and id > 250", np.isin(live % 5, (1, 3)) & (live > 250)),
    ):
        local_result = reader.search(vectors, 6, where=where, columns=["id"])
        assert local_result.profile.tail == "48 rows in memory, compared each"
        rows = in_order(joined(left_side(spark, 6), reader, k=6, where=where, columns=["id", "section"]))
        order = np.argsort(np.where(matching, distances, np.inf), axis=1)[:, :6]
        assert rows["id"].to_pylist() == live[order].ravel().tolist() == local_result.rows["id"].to_pylist()
        assert rows["distance"].to_pylist() == pytest.approx(np.take_along_axis(distances, order, 1).ravel().tolist())
        assert rows["section"].to_pylist() == [f"section {number % 5}" for number in live[order].ravel()]
    assert "those in memory of 1 data file that" in local_result.profile.condition


@pytest.fixture(scope="module")
def small_shards(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Of a dozen rows each, some of which were deleted since; others were added."""
    table = empty_table(tmp_path_factory.mktemp("small"))
    table.append(make_rows(0, 300))
    index_head(table, SMALL)
    table.refresh()
    table.append(make_rows(300, 320))
    file = live_files(table, table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {file.path: np.arange(0, 60)})
    return table.refresh()


@pytest.mark.parametrize("tier", ["loaded", "on demand", "distributed"])
@pytest.mark.parametrize("k", [5, 40])
def test_a_join_finds_k_rows_where_the_nearest_shards_have_fewer(
    spark: "SparkSession", small_shards: Table, tier: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_ROWS_PER_CENTROID", 1)
    if tier == "on demand":
        monkeypatch.setattr(loaded_version, "LOADED_AT_ONCE", 0)
    if tier == "distributed":
        monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")
    runner = SparkRunner(spark) if tier == "distributed" else None
    snapshot = None if tier != "on demand" else first_snapshot(small_shards)
    reader = open_index(small_shards, SMALL, snapshot=snapshot, storage=STORAGE, runner=runner, in_process_mb=0)
    assert isinstance(reader._choice.loaded, DistributedVersion) == (tier == "distributed")
    expected = reader.search(queries(50), k, columns=["id"], target_recall=0.3).rows
    rows = in_order(joined(left_side(spark, 50), reader, k=k, columns=["id"], target_recall=0.3))
    assert rows.num_rows == 50 * k
    assert rows["id"].to_pylist() == expected["id"].to_pylist()


def first_snapshot(table: Table) -> int:
    return table.metadata.snapshots[0].snapshot_id


def test_a_share_gets_the_queries_that_probe_one_of_its_shards(
    small_shards: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_ROWS_PER_CENTROID", 1)
    reader = open_index(small_shards, SMALL, storage=STORAGE)
    job, (request, _) = reader.search_job(), reader.search_request(5, SearchOptions(target_recall=0.3), None)
    shares = tuple(SearchShare(shards=(ShardId(number),)) for number in range(SMALL.shards))
    join = Join(
        job.serialize(), request, (*shares, SearchShare(files=(FileNumber(0),))), 1, 1, "query", (), (), False, 50
    )
    left = pa.RecordBatch.from_pylist([{"query": vector, ROW_HASH: 0} for vector in queries(50).tolist()])
    probed = join.job.worker().probed(prepare_queries(queries(50), reader.metric, reader.dims), request)
    assert probed is not None
    sent = [pickle.loads(row["payload"][0].as_py()) for row in split(join, 0, [left])]  # noqa: S301  our own
    assert [own.numbers.tolist() for own in sent[:-1]] == [np.flatnonzero(column).tolist() for column in probed.T]
    assert sent[-1].numbers is None
    assert sum(len(own.vectors) for own in sent[:-1]) == probed.sum() < 0.5 * 50 * 24


def test_the_tier_on_spark_gives_the_rows_of_this_process(
    session: "SparkSession", table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")
    here = open_index(table, DEFINITION, storage=STORAGE)
    there = open_index(table, DEFINITION, storage=STORAGE, runner=SparkRunner(session), in_process_mb=0)
    assert there.tier == "distributed"
    local_result = here.search(queries(5), 8)
    assert there.search(queries(5), 8).rows.equals(local_result.rows)
    found = joined(left_side(session, 5), there, k=8, columns=["id"])
    assert in_order(found)["id"].to_pylist() == local_result.rows["id"].to_pylist()


def test_tasks_on_spark_read_data_files_as_this_process_does(spark: "SparkSession", table: Table) -> None:
    here = open_index(table, BALLS, storage=STORAGE)
    there = open_index(table, BALLS, storage=STORAGE, runner=SparkRunner(spark), in_process_mb=0)
    where = "section != 'section 1'"
    for local_result, result in (
        (here.search(queries(5), 8, where=where), there.search(queries(5), 8, where=where)),
        (here.within(queries(5), 2.5), there.within(queries(5), 2.5)),
    ):
        assert result.profile.tier == "distributed"
        assert result.rows.num_rows > 5
        assert result.rows.equals(local_result.rows)
        assert result.profile.tail_rows == local_result.profile.tail_rows


def test_every_task_reads_the_snapshot_that_was_current_when_the_reader_was_opened(
    spark: "SparkSession", tmp_path: Path
) -> None:
    table = make_table(tmp_path)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    result = joined(left_side(spark, 20), reader, columns=["id"])
    local_result = reader.search(queries(20), columns=["id"])
    table.append(make_rows(0, 700))
    index_head(table)
    assert in_order(result)["id"].to_pylist() == local_result.rows["id"].to_pylist()


def test_credentials_show_neither_in_the_plan_nor_in_what_is_pinned(spark: "SparkSession", table: Table) -> None:
    storage = StorageConfig({"s3.access-key-id": "a-key", "s3.secret-access-key": "not-to-be-shown"})
    reader = open_index(table, DEFINITION, storage=storage)
    found = joined(left_side(spark, 3), reader, columns=["id"])
    shown = (
        found.rows._jdf.queryExecution().toString() + repr(reader.search_job()) + repr(reader.search_job().serialize())
    )
    assert "MapInArrow" in shown
    assert "not-to-be-shown" not in shown


def test_what_a_join_sends_is_gone_with_all_frames_that_were_made_of_it(
    spark: "SparkSession", table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasts, "INLINE_BYTES", 0)
    broadcasts._remove_collected()
    before = files_of_driver(spark)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    frame = joined(left_side(spark, 3), reader, k=2, columns=["id"]).rows.select("number")
    del reader
    collect_everywhere(spark)
    assert len(files_of_driver(spark) - before) == 1, "one for all stages, as long as a frame needs it"
    assert frame.count() == 6
    del frame

    def is_gone() -> bool:
        collect_everywhere(spark)
        return files_of_driver(spark) <= before

    until(is_gone)


def collect_everywhere(spark: "SparkSession") -> None:
    gc.collect()
    spark.sparkContext._jvm.System.gc()  # type: ignore[union-attr]
    broadcasts._remove_collected()


def test_rows_without_a_vector_have_no_neighbours_and_an_empty_side_has_none(
    spark: "SparkSession", table: Table
) -> None:
    reader = open_index(table, DEFINITION, storage=STORAGE)
    query_vectors = [None if number % 2 else vector for number, vector in enumerate(queries(6).tolist())]
    left = spark.createDataFrame(
        pa.table({"number": range(6), "query": pa.array(query_vectors, pa.list_(pa.float64()))})
    )
    found = in_order(joined(left, reader, k=2, columns=["id"]))
    assert found["number"].to_pylist() == [0, 0, 2, 2, 4, 4]
    assert joined(left.where("number > 100"), reader, columns=["id"]).rows.count() == 0


@pytest.mark.parametrize("columns", [None, []], ids=["all", "none"])
@pytest.mark.parametrize("name", ["e", "lean", "other"])
def test_a_table_that_was_emptied_has_no_neighbours(
    spark: "SparkSession", emptied: Table, name: str, columns: list[str] | None
) -> None:
    definition = replace(LEAN if name == "lean" else DEFINITION, name=name)
    reader = open_index(emptied, definition, storage=STORAGE)
    found = in_order(joined(left_side(spark, 3), reader, columns=columns))
    assert found.num_rows == reader.search(queries(3)).rows.num_rows == 0
    assert ("name" in found.column_names) == (columns is None)


def test_a_version_whose_rows_are_all_deleted_has_no_neighbours(
    spark: "SparkSession", table_factory: Callable[..., Table]
) -> None:
    """Whatever dimensions they had: as between the two commits of an overwrite by another model."""
    table = table_factory()
    table.append(make_rows(0, 50))
    index_head(table)
    file = live_files(table, table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {file.path: np.arange(50)})
    index_head(table)
    reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
    assert reader.coverage is Coverage.EXACT_VERSION
    for dims in (16, 24):
        left = spark.createDataFrame(pa.table({"query": queries(2, dims).tolist()}))
        found = joined(left, reader, columns=["id"]).rows
        assert found.count() == reader.search(queries(2, dims)).rows.num_rows == 0


def test_a_join_does_not_depend_on_the_partitions_of_its_left_side(spark: "SparkSession", table: Table) -> None:
    reader = open_index(table, DEFINITION, storage=STORAGE)
    one, many = (in_order(joined(left_side(spark, 70, parts), reader, columns=["id"])) for parts in (1, 9))
    assert one.equals(many)


def shuffle_files(spark: "SparkSession") -> list[str]:
    """Folders in which executors, here this process's JVM, keep their shuffles."""
    environment = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get()  # type: ignore[union-attr]
    return [*environment.blockManager().diskBlockManager().localDirsString()]


def test_a_left_side_whose_joins_spark_plans_anew_is_computed_once(
    spark: "SparkSession", table: Table, tmp_path: Path
) -> None:
    """Spark takes a join for one of a broadcast once it knows the sizes, and other partitions with it."""

    def mark(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (tmp_path / uuid4().hex).touch()
        yield from batches

    settings = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.adaptive.autoBroadcastJoinThreshold": "10MB",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.shuffle.partitions": "3",
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        names = spark.range(64).selectExpr("id AS number", "id % 9 AS label").groupBy("label").count()
        left = (
            left_side(spark, 64, 2).groupBy("number").agg({"query": "first"}).withColumnRenamed("first(query)", "query")
        )
        left = left.selectExpr("*", "number % 9 AS label").join(names, "label")
        rows = joined(left.mapInArrow(mark, left.schema), open_index(table, DEFINITION, storage=STORAGE), k=2)
        assert sorted(rows.rows.select("number").toArrow()["number"].to_pylist()) == sorted([*range(64)] * 2)
        times = 2 if spark.version.startswith("4.0") else 1
        assert len([*tmp_path.iterdir()]) == 3 * times
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


@nightly  # Spark counts its one executor as lost then, to the harm of whoever has the session next
@pytest.mark.parametrize("columns", [[], ["id"]], ids=["no column", "columns"])
@pytest.mark.parametrize("changes", ["order", "values"])
def test_shuffles_that_are_lost_once_tasks_have_given_their_rows(
    spark: "SparkSession",
    table: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: str,
    columns: list[str],
) -> None:
    """Spark computes the left side again. In another order it gives the same rows; with other values it is refused."""
    folders, computed, mark = shuffle_files(spark), tmp_path / "computed", tmp_path / "mark"
    computed.mkdir()

    def otherwise(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(batches)
        again = len([*computed.iterdir()])
        (computed / str(again)).touch()
        if again and changes == "order":
            rows = rows.take(pa.array(np.random.default_rng(again).permutation(rows.num_rows)))
        elif again:
            vectors = np.array(rows["query"].to_pylist()) + 1e-3
            rows = rows.set_column(1, "query", pa.array(vectors.tolist(), pa.list_(pa.float64())))
        yield from rows.combine_chunks().to_batches()

    def lose(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not mark.exists():
            mark.touch()
            for folder in folders:
                for file in Path(folder).rglob("shuffle_*"):
                    file.unlink(missing_ok=True)

    monkeypatch.setattr(SparkRunner, "parallelism", 6)  # tasks of the last stage: some start after the loss
    left = left_side(spark, 64, 1)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    matches = joined(left.mapInArrow(otherwise, left.schema), reader, k=2, columns=columns)
    rows = matches.rows.select("number").mapInArrow(lose, "number long")
    if changes == "values":
        with pytest.raises(Exception, match=r"QueryError.*the left side was not the same"):
            rows.toArrow()
        return
    assert sorted(rows.toArrow()["number"].to_pylist()) == sorted([*range(64)] * 2)
    assert len([*computed.iterdir()]) == 2, "once, and once more when it was lost"


def test_a_table_without_an_index_is_joined_by_scanning(spark: "SparkSession", table: Table) -> None:
    reader = open_index(table, replace(DEFINITION, name="other"), storage=STORAGE)
    found = joined(left_side(spark, 20), reader, k=4, columns=["id"])
    assert found.coverage is Coverage.EXACT_SCAN
    assert in_order(found)["id"].to_pylist() == reader.search(queries(20), 4).rows["id"].to_pylist()


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32()], ids=str)
def test_queries_of_integers_are_joined_as_the_same_numbers(
    spark: "SparkSession", table: Table, kind: pa.DataType
) -> None:
    whole = np.round(3 * queries(4)).astype(np.int64)
    rows = pa.table({"number": range(4), "query": pa.array(whole.tolist(), pa.list_(kind))})
    reader = open_index(table, DEFINITION, storage=STORAGE)
    found = in_order(joined(spark.createDataFrame(rows), reader, k=4, columns=["id"]))
    assert found["id"].to_pylist() == reader.search(whole.astype(np.float32), 4).rows["id"].to_pylist()


def test_names_that_differ_in_case_alone_are_refused_where_spark_ignores_case(
    session: "SparkSession", tmp_path: Path
) -> None:
    """In a frame with both, `drop` drops both, `withColumn` replaces both, and none can be selected."""
    rows = make_rows(0, 50)
    ranked = empty_table(tmp_path, rows.append_column("Rank", rows["id"]).append_column("ID", rows["id"]))
    reader = open_exact(ranked, "embedding", "l2", storage=STORAGE)
    left = left_side(session, 3)
    with pytest.raises(QueryError, match="the left side has two columns 'query'"):
        joined(left.withColumnRenamed("number", "QUERY"), reader, columns=["id"])
    with pytest.raises(QueryError, match="both sides have a column 'id'"):
        joined(left.withColumnRenamed("number", "Id"), reader, columns=["id"])
    with pytest.raises(QueryError, match="left side has a column 'DISTANCE', as the result has one"):
        joined(left.withColumnRenamed("number", "DISTANCE"), reader, columns=["id"])
    with pytest.raises(QueryError, match="the result has two columns 'Rank'"):
        joined(left, reader, columns=["Rank"])
    with pytest.raises(QueryError, match="the result has two columns 'ID'"):
        joined(left, reader, columns=["id", "ID"])
    session.conf.set("spark.sql.caseSensitive", "true")
    try:
        both = joined(left, reader, k=2, columns=["id", "ID", "Rank"]).rows.toArrow()
    finally:
        session.conf.unset("spark.sql.caseSensitive")
    assert both["id"].to_pylist() == both["ID"].to_pylist() == both["Rank"].to_pylist()
    assert set(both["rank"].to_pylist()) == {1, 2}


def test_rows_that_differ_within_nested_columns_or_in_the_sign_of_a_zero_have_hashes_of_their_own(
    spark: "SparkSession",
) -> None:
    """Two of one hash could change places when Spark computes them again: one would be doubled, the other lost."""
    from icepuffin.ops.spark import knn_join  # noqa: PLC0415  imports pyspark

    sides: list[tuple[str, list[Any]]] = [
        ("struct<a: int, b: int>", [{"a": 5, "b": None}, {"a": None, "b": 5}]),
        ("array<int>", [[1, None], [None, 1]]),
        ("array<array<int>>", [[[1], [2]], [[1, 2]]]),
        ("double", [0.0, -0.0]),
        ("array<float>", [[1.0, -0.0], [1.0, 0.0]]),
    ]
    query = queries(1)[0].tolist()
    lefts = [
        spark.createDataFrame([(value, query) for value in values], f"x {kind}, query array<float>")
        for kind, values in sides
    ]
    beside = [([1, 0], [2, 0], []), ([1], [0, 2], [0])]
    lefts.append(spark.createDataFrame(beside, "x array<int>, query array<int>, y array<int>"))
    lefts.append(spark.createDataFrame([([0.0, -0.0, 1.0],), ([-0.0, 0.0, 1.0],)], "query array<float>"))
    join: Any = SimpleNamespace(vector="query", unhashed=())
    for left in lefts:
        hashes = knn_join._in_order(left, join).toArrow()[ROW_HASH].to_pylist()
        assert hashes[0] != hashes[1], left.schema.simpleString()


def test_texts_that_are_equal_by_their_collation_have_hashes_of_their_own(own_session: "SparkSession") -> None:
    from icepuffin.ops.spark import knn_join  # noqa: PLC0415  imports pyspark

    own_session.conf.set("spark.sql.legacy.collationAwareHashFunctions", "true")  # as Spark 4.0 does without it
    rows = [(text, queries(1)[0].tolist()) for text in ("a", "A", "a ")]
    join: Any = SimpleNamespace(vector="query", unhashed=())
    for kind, value in (("UTF8_LCASE", "x"), ("UNICODE_CI_RTRIM", "x"), ("UTF8_LCASE", "array(x)")):
        left = own_session.createDataFrame(rows, f"x string COLLATE {kind}, query array<float>")
        hashes = knn_join._in_order(left.selectExpr(f"{value} AS x", "query"), join).toArrow()[ROW_HASH].to_pylist()
        assert len(set(hashes)) == 3, (kind, value)


def test_columns_whose_names_have_dots_and_backticks_are_joined(session: "SparkSession", table: Table) -> None:
    """Beside them a struct whose field has the path that one of the names is."""
    from icepuffin.ops.spark.knn_join import knn_join  # noqa: PLC0415  imports pyspark

    reader = open_index(table, DEFINITION, storage=STORAGE)
    left = left_side(session, 3).selectExpr(
        "number AS `a.b`", "named_struct('b', -1) AS a", "number AS `c``d`", "query"
    )
    found = knn_join(left.withColumnRenamed("query", "q.v"), reader, on="q.v", k=1, columns=["id"]).rows.toArrow()
    assert found.column_names == ["a.b", "a", "c`d", "q.v", "rank", "distance", "id"]
    found = found.sort_by("a.b")
    assert found["a.b"].to_pylist() == found["c`d"].to_pylist() == [0, 1, 2]
    assert found["a"].to_pylist() == 3 * [{"b": -1}]
    assert found["id"].to_pylist() == reader.search(queries(3), 1).rows["id"].to_pylist()


def test_what_cannot_be_joined_is_refused(spark: "SparkSession", table: Table) -> None:
    from icepuffin.ops.spark.knn_join import knn_join  # noqa: PLC0415  imports pyspark

    reader = open_index(table, DEFINITION, storage=STORAGE)
    left = left_side(spark, 3)
    with pytest.raises(QueryError, match="no column 'query'"):
        joined(left.withColumnRenamed("query", "vector"), reader)
    with pytest.raises(QueryError, match="both sides have a column 'id'"):
        joined(left.withColumnRenamed("number", "id"), reader)
    with pytest.raises(QueryError, match="left side has a column 'rank', as the result has one"):
        joined(left.withColumnRenamed("number", "rank"), reader, prefix="found_")
    with pytest.raises(QueryError, match=f"a column '{ROW_HASH}', by which the join itself names one: rename it"):
        joined(left.withColumnRenamed("number", ROW_HASH), reader)
    with pytest.raises(QueryError, match="left side has two columns 'number'"):
        joined(left.select("number", "number", "query"), reader)
    with pytest.raises(QueryError, match="'number' of the left side is bigint"):
        knn_join(left, reader, on="number")
    with pytest.raises(TypeError, match="on is the name of a column, not a value of type Column: write on="):
        knn_join(left, reader, on=left["query"])
    with pytest.raises(TypeError, match="prefix is put before names of columns, not a value of type NoneType: write"):
        joined(left, reader, prefix=None)
    with pytest.raises(QueryError, match=r"a stream: join each batch of it, in writeStream\.foreachBatch"):
        joined(spark.readStream.format("rate").load().selectExpr("array(1.0) AS query"), reader)
    for value, kind in (
        ("array(make_ym_interval(1))[0]", "interval year to month"),
        ("array(make_interval(1))[0]", "interval"),
        ("array()", "array<void>"),
    ):
        with pytest.raises(QueryError, match=f"'x' of the left side is {kind}, of which PySpark makes no Arrow"):
            joined(left.selectExpr("query", f"{value} AS x"), reader)
    with pytest.raises(QueryError, match="block_rows is 0"):
        knn_join(left, reader, on="query", block_rows=0)
    renamed = joined(left.withColumnRenamed("number", "id"), reader, prefix="found_", columns=["id"])
    assert renamed.rows.columns == ["id", "query", "rank", "distance", "found_id"]
    bad = spark.createDataFrame(pa.table({"query": [[float("nan")] * 16]}))
    with pytest.raises(Exception, match=r"QueryError.*NaN"):
        joined(bad, reader).rows.count()
