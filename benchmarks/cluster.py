"""Searches on a Spark standalone cluster of some workers: where shards are kept, and what more workers bring.

    python -m benchmarks.cluster --vectors embeddings.npy --out cluster.json [--workers 1,2,4] [--shards 16]

Each worker has one core, and its executor a shard cache of its own, as on a machine of its own. For each number of
workers, and with and without places that tasks keep (`SparkRunner(keep_places=...)`): `open_seconds`;
`first_seconds` and `seconds`, of the first single query and the median of some; `copies`: shards on the executors'
disks per shard of the index, after these; `batch`: all queries at once, seconds, tasks, bytes shuffled, and the peak of
this process's memory, in which the JVM is not.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from benchmarks.distributed import quiet_session
from benchmarks.lake import STORAGE, Lake, held_out
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.spark.spark_runner import SparkRunner
from tests.deploy.cluster import Cluster, standalone_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

K = 10
_SEARCHES = 15


def main() -> None:
    """An index of all vectors but the queries; then the figures on each cluster."""
    options = _options()
    queries, base = held_out(options.vectors, options.queries)
    definition = IndexDefinition(name="bench", column="embedding", metric="l2", shards=options.shards)
    out: dict[str, Any] = {"rows": len(base), "dims": base.shape[1], "shards": options.shards, "runs": []}
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        folder = Path(name)
        lake = Lake(folder, base, len(base), 8, definition, os.cpu_count() or 1)
        lake.index()
        for workers in options.workers:
            for keep_places in (False, True):
                run = folder / f"{workers}-{keep_places}"
                run.mkdir()
                with standalone_cluster(run, workers) as cluster:
                    figures = _measure(lake, cluster, run, queries, keep_places=keep_places)
                figures = {"workers": workers, "keep_places": keep_places, **figures}
                print(json.dumps(figures), flush=True)
                out["runs"].append(figures)
    options.out.write_text(json.dumps(out, indent=1))


def _measure(
    lake: Lake, cluster: Cluster, folder: Path, queries: npt.NDArray[np.float32], *, keep_places: bool
) -> dict[str, Any]:
    # a relative folder is in that of the executor; the executor's memory keeps what fits
    use_settings(CacheSettings(Path("shards")))
    events = folder / "events"
    events.mkdir()
    with _session(cluster, events) as spark:
        runner = SparkRunner(spark, keep_places=keep_places)
        runner.run(len, [()] * len(cluster.work), label="start Python")
        begun = time.perf_counter()
        reader = open_index(lake.table.refresh(), lake.definition, storage=STORAGE, runner=runner, in_process_mb=0)
        opened = time.perf_counter()
        times = []
        for query in queries[: 1 + _SEARCHES]:
            searched = time.perf_counter()
            reader.search(query, K)
            times.append(time.perf_counter() - searched)
        kept = [file.name for work in cluster.work for file in work.glob("app-*/*/shards/**/*.shard")]
        figures: dict[str, Any] = {
            "open_seconds": opened - begun,
            "first_seconds": times[0],
            "seconds": float(np.median(times[1:])),
            "copies": len(kept) / len(set(kept)),
        }
        searched = time.perf_counter()
        reader.search(queries, K)
        batch = {"queries": len(queries), "seconds": time.perf_counter() - searched}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {**figures, "batch": {**batch, **_last_search(events), "driver_peak_bytes": peak}}


def _last_search(events: Path) -> dict[str, int]:
    """Tasks of the last search's jobs, and the bytes that they shuffled, out of Spark's log of events."""
    (log,) = (file for file in events.rglob("events_*"))
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    jobs = [line for line in lines if line["Event"] == "SparkListenerJobStart"]
    searches = [job for job in jobs if job["Properties"].get("spark.job.description") == "icepuffin: search shards"]
    execution = searches[-1]["Properties"]["spark.sql.execution.id"]
    stages = {
        stage
        for job in searches
        if job["Properties"]["spark.sql.execution.id"] == execution
        for stage in job["Stage IDs"]
    }
    ended = [line for line in lines if line["Event"] == "SparkListenerTaskEnd" and line["Stage ID"] in stages]
    shuffled = sum(task["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"] for task in ended)
    return {"tasks": len(ended), "bytes_shuffled": shuffled}


@contextmanager
def _session(cluster: Cluster, events: Path) -> Iterator["SparkSession"]:
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    spark = quiet_session(cluster.master, conf)
    try:
        yield spark
    finally:
        spark.stop()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=_numbers, default=(1, 2, 4), help="of one core each [default: 1,2,4]")
    parser.add_argument("--queries", type=int, default=10_000, help="held out of the table")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--scratch", type=Path, help="folder for the table [default: the system's temporary one]")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    main()
