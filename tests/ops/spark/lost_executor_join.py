"""Program: joins on a cluster of two executors, the first of which is killed in one stage after the other.

Prints, as JSON, how each join ended.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

from icepuffin.ops.search.opening import open_index
from icepuffin.ops.spark.knn_join import knn_join
from tests.conftest import STORAGE, queries
from tests.ops.index.comparison import DEFINITION
from tests.ops.spark.test_join import make_table

COUNT, K, STAGES = 640, 2, 5


def cluster_session() -> SparkSession:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.default.parallelism": "6",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.locality.wait": "0s",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,512]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def executors() -> list[int]:
    """Process ids of the executors, those that started first before the others."""
    processes = subprocess.run(["ps", "-wweo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    parents = {int(line.split()[0]): int(line.split()[1]) for line in processes.splitlines()[1:]}

    def is_ours(process: int) -> bool:
        while process > 1 and process != os.getpid():
            process = parents.get(process, 0)
        return process == os.getpid()

    lines = [line.split() for line in processes.splitlines() if "CoarseGrainedExecutorBackend" in line]
    return sorted(int(line[0]) for line in lines if is_ours(int(line[0])))


def changing(left: DataFrame, folder: Path, changes: str) -> DataFrame:
    """The left side in another order, or with other values, each time that a partition is computed."""

    def otherwise(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = pa.Table.from_batches(batches)
        again = len([*folder.iterdir()])
        (folder / str(again)).touch()
        if changes == "order":
            rows = rows.take(pa.array(np.random.default_rng(again).permutation(rows.num_rows)))
        else:
            vectors = np.array(rows["query"].to_pylist()) + 1e-3 * again
            rows = rows.set_column(1, "query", pa.array(vectors.tolist(), pa.list_(pa.float64())))
        yield from rows.combine_chunks().to_batches()

    return left.mapInArrow(otherwise, left.schema)


def slow(rows: DataFrame) -> DataFrame:
    """The result, each task of which takes a while: some end before the executor is killed, and some after."""

    def wait(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sleep(0.5)
        yield from batches

    return rows.mapInArrow(wait, rows.schema)


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def outcome(spark: SparkSession, table: Table, folder: Path, changes: str, stage: int) -> dict[str, Any]:
    folder.mkdir()
    rows = pa.table({"number": range(COUNT), "query": queries(COUNT).tolist()})
    left = changing(spark.createDataFrame(rows).repartition(2), folder, changes)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    matches = slow(knn_join(left, reader, on="query", k=K, columns=["id"], block_rows=16).rows.select("number"))
    tracker = spark.sparkContext.statusTracker()
    before = max((item for job in tracker.getJobIdsForGroup(None) for item in stages(spark, job)), default=-1)
    thread, results = in_background(matches.toArrow)
    killed = 0
    while thread.is_alive() and not killed:
        ours = sorted(item for job in tracker.getJobIdsForGroup(None) for item in stages(spark, job) if item > before)
        for item in ours:
            info = tracker.getStageInfo(item)
            reached = info is not None and info.numCompletedTasks >= min(2, info.numTasks)
            if reached and ran(spark, ours) > stage and (running := executors()):  # Spark may just have replaced them
                os.kill(running[0], signal.SIGKILL)
                killed = 1
                break
        sleep(0.05)
    thread.join()
    (result,) = results
    if isinstance(result, Exception):
        ended = "refused" if "the left side was not the same" in str(result) else f"{result}"[:2000]
    else:
        numbers = sorted(result["number"].to_pylist())
        ended = "all rows" if numbers == sorted([*range(COUNT)] * K) else f"{len(numbers)} rows"
    return {"changes": changes, "stage": stage, "killed": killed, "ended": ended, "computed": len([*folder.iterdir()])}


def stages(spark: SparkSession, job: int) -> list[int]:
    info = spark.sparkContext.statusTracker().getJobInfo(job)
    return [] if info is None else [*info.stageIds]


def ran(spark: SparkSession, numbers: list[int]) -> int:
    """Number of stages of which a task has ended."""
    infos = [spark.sparkContext.statusTracker().getStageInfo(number) for number in numbers]
    return sum(info is not None and info.numCompletedTasks > 0 for info in infos)


def main(folder: Path) -> None:
    table = make_table(folder)
    spark = cluster_session()
    outcomes = []
    for changes, stage in product(("order", "values"), range(STAGES)):
        outcomes.append(outcome(spark, table, folder / f"{changes}-{stage}", changes, stage))
        sys.stderr.write(f"{outcomes[-1]}\n")
    spark.stop()
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
