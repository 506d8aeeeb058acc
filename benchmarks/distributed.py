"""What searching by Spark tasks costs beside Spark itself: one query, and a join of 100,000.

    python -m benchmarks.distributed --vectors embeddings.npy --out distributed.json [--shards 4] [--joined 100000]

`seconds`: the median of some single queries by `IndexReader.search` on the distributed tier, ids of rows included.
`filtered_seconds`: the same under conditions that a tenth of the rows satisfies, on a column that the index keeps; no
query has a condition that another one had. The two are measured in turn.
`empty_job_seconds`: the median of Spark's own job with as many tasks, which do nothing: what no search by Spark can go
under. Both on `local[<threads>]`, warm. `join`: all queries against the index at one snapshot, ids attached, counted by
Spark; recall@10 of a sample is against brute force. `in_process`: the same queries in one batch in this process, by as
many threads as Spark has cores.
"""

import argparse
import json
import operator
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.lake import SCHEMA, STORAGE, Lake, arrow_rows, held_out
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.index.definitions.index_definition import IndexDefinition, VectorFormat
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.spark.spark_runner import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

K = 10
_COLUMN = "tenth"
_ROUNDS = 15
_CHECKED = 500


def measure(
    lake: Lake,
    base: npt.NDArray[np.float32],
    spark: "SparkSession",
    queries: npt.NDArray[np.float32],
    *,
    joined: int,
    search_list: int | None = None,
) -> dict[str, Any]:
    """All figures for a lake whose head is indexed and holds `base`. The join repeats `queries`, a little moved."""
    with no_shard_in_memory():
        reader, out = single(lake, spark, queries[0], search_list, conditions=_conditions())
        out["join"] = _join(reader, spark, queries, joined, search_list)
        out["join"]["in_process_seconds"] = _in_process(lake, queries, joined, search_list)
        out["join"]["recall"] = _recall(lake, base, reader, queries, search_list)
    return out


def single(
    lake: Lake,
    spark: "SparkSession",
    query: npt.NDArray[np.float32],
    search_list: int | None,
    *,
    conditions: Iterator[str] | None = None,
) -> tuple[IndexReader, dict[str, Any]]:
    """(a reader whose searches are tasks, what one of them costs beside as many empty tasks)."""
    runner = SparkRunner(spark)
    reader = open_index(lake.table.refresh(), lake.definition, storage=STORAGE, runner=runner, in_process_mb=0)
    tasks = min(runner.parallelism, len(reader.search(query, K).profile.work))
    out: dict[str, Any] = {"tier": reader.tier, "tasks": tasks}
    out["empty_job_seconds"] = _median(lambda: runner.run(operator.index, range(tasks), label="empty"))
    searches = {"seconds": lambda: reader.search(query, K, columns=["id"], search_list=search_list)}
    if conditions is not None:
        searches["filtered_seconds"] = lambda: reader.search(
            query, K, columns=["id"], search_list=search_list, where=next(conditions)
        )
    out |= _medians(searches)
    out["ratio"] = out["seconds"] / out["empty_job_seconds"]
    return reader, out


@contextmanager
def no_shard_in_memory() -> Iterator[None]:
    """The driver keeps none, as it would not of an index that needs this tier."""
    settings = CacheSettings.from_environment()
    use_settings(CacheSettings(settings.directory, settings.disk_bytes, 0))
    try:
        yield
    finally:
        use_settings(None)


def _median(work: Callable[[], Any]) -> float:
    return _medians({"": work})[""]


def _medians(works: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of each, in turn."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(3 + _ROUNDS):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - begun)
    return {name: float(np.median(own[3:])) for name, own in times.items()}


class TenthLake(Lake):
    """A table with a column of numbers under ten beside its vectors."""

    schema = pa.schema([*SCHEMA, pa.field(_COLUMN, pa.int64())])

    def rows_of(self, ids: npt.NDArray[np.int64], vectors: npt.NDArray[Any]) -> pa.Table:
        numbers = np.random.default_rng(7).integers(0, 10, self.base_rows)[ids]
        return arrow_rows(ids, vectors).append_column(_COLUMN, pa.array(numbers))


def _conditions() -> Iterator[str]:
    """Conditions of a `TenthLake`, each a text of its own."""
    return (f"{_COLUMN} in ({number % 10}, {10 + number})" for number in count())


def _many(queries: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    rng = np.random.default_rng(0)
    many = queries[np.arange(count) % len(queries)]
    return np.asarray(many + rng.standard_normal(many.shape).astype(np.float32) * many.std() * 0.05, np.float32)


def _join(
    reader: IndexReader, spark: "SparkSession", queries: npt.NDArray[np.float32], count: int, search_list: int | None
) -> dict[str, Any]:
    from icepuffin.ops.spark.knn_join import knn_join  # noqa: PLC0415  imports pyspark

    with tempfile.TemporaryDirectory() as folder:
        rows = arrow_rows(np.arange(count), _many(queries, count)).rename_columns(["query", "embedding"])
        spark.createDataFrame(rows).write.parquet(f"{folder}/left")
        query_rows = spark.read.parquet(f"{folder}/left")

        def once(limit: int) -> tuple[float, int]:
            join = knn_join(
                query_rows.limit(limit) if limit < count else query_rows,
                reader, on="embedding", k=K, columns=["id"], search_list=search_list,
            )  # fmt: skip
            begun = time.perf_counter()
            join.rows.drop("embedding").write.mode("overwrite").parquet(f"{folder}/out")
            return time.perf_counter() - begun, spark.read.parquet(f"{folder}/out").count()

        once(min(count, 2_000))
        seconds, pairs = once(count)
    return {"queries": count, "pairs": pairs, "seconds": seconds, "queries_a_second": count / seconds}


def _in_process(lake: Lake, queries: npt.NDArray[np.float32], count: int, search_list: int | None) -> float:
    reader = open_index(lake.table, lake.definition, storage=STORAGE, threads=lake.runner.task_threads)
    reader.search(queries[:10], K, columns=["id"])
    many = _many(queries, count)
    begun = time.perf_counter()
    reader.search(many, K, columns=["id"], search_list=search_list)
    return time.perf_counter() - begun


def _recall(
    lake: Lake,
    base: npt.NDArray[np.float32],
    reader: IndexReader,
    queries: npt.NDArray[np.float32],
    search_list: int | None,
) -> float:
    checked = queries[:_CHECKED]
    found = reader.search(checked, K, columns=["id"], search_list=search_list).rows
    truth = exact_top_k(checked, base, K, lake.definition.metric)[0]
    ids = np.asarray(found["id"]).reshape(len(checked), K)
    return float(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(ids, truth, strict=True)]))


def local_session(threads: int) -> "SparkSession":
    """Spark in this process, quiet."""
    conf = {"spark.driver.memory": "3g", "spark.sql.shuffle.partitions": str(threads)}
    return quiet_session(f"local[{threads}]", conf)


def quiet_session(master: str, more: Mapping[str, str]) -> "SparkSession":
    """Spark without its UI and its messages."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  starts a JVM

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("icepuffin benchmark")
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    for key, value in {**conf, **more}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def main() -> None:
    """A table of all vectors but the queries, indexed; then the figures."""
    options = _options()
    queries, base = held_out(options.vectors, options.queries)
    definition = IndexDefinition(
        name="bench", column="embedding", metric="l2", shards=options.shards, vectors=options.kept, target_recall=0.0,
        filters=(_COLUMN,),
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        lake = TenthLake(Path(folder), base, len(base), 8, definition, options.threads)
        lake.index()
        spark = local_session(options.threads)
        out = {"rows": len(base), "dims": base.shape[1], "shards": options.shards, "vectors": options.kept}
        out |= measure(lake, base, spark, queries, joined=options.joined, search_list=options.search_list)
        spark.stop()
    print(json.dumps(out, indent=1))
    options.out.write_text(json.dumps(out, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=1000, help="held out of the table")
    parser.add_argument("--joined", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--kept", default="f32", choices=get_args(VectorFormat), help="vectors that shards hold")
    parser.add_argument("--search-list", type=int, help="beam [default: the index's own]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="folder for the table [default: the system's temporary one]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
