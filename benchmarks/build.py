"""Time and memory of building an index of a table, in the driver and on Spark, beside diskannpy where it is installed.

    python -m benchmarks.build --vectors embeddings.npy --out build.json [--threads 2] [--files 8]
        [--systems local,spark,diskannpy] [--diskannpy PATH/bin/python]

Each system runs in a process of its own, one after the other. `seconds` of ours is all of `materialize_index`: Parquet
is read, the recall gate passed, the Puffin file written, verified and bound; diskannpy gets its rows in memory and its
time is the graph's alone. Peak RSS is VmHWM of the process; for Spark that is the driver's Python alone,
neither the JVM nor the workers. `bound_mb` is 1.5 x (vectors + adjacency), `work_mb` is the peak less what the
interpreter and libraries took before. Figures move with the machine's load; only those of one sitting compare.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
PEER = """
import json, resource, sys, tempfile, time
import diskannpy, numpy as np
path, threads, degree, search_list = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
base = np.load(path).astype(np.float32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with tempfile.TemporaryDirectory() as folder:
    start = time.perf_counter()
    diskannpy.build_memory_index(base, "l2", folder, complexity=search_list, graph_degree=degree, num_threads=threads,
                                 alpha=1.2, use_pq_build=False, num_pq_bytes=0, use_opq=False, index_prefix="a")
    seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "peak_rss_mb": peak / 1024, "rss_before_mb": before / 1024}))
"""


def main() -> None:
    options = _options()
    if options.inside:
        print(json.dumps(_build(options)))
        return
    rows = np.load(options.vectors, mmap_mode="r")
    raw = rows.shape[0] * 4 * (rows.shape[1] + options.max_degree)
    out: dict[str, Any] = {
        "rows": rows.shape[0],
        "dims": rows.shape[1],
        "threads": options.threads,
        "R": options.max_degree,
        "L": options.search_list,
        "bound_mb": 1.5 * raw / 2**20,
        "systems": {},
    }
    for system in options.systems.split(","):
        load = Path("/proc/loadavg").read_text().split()[0]
        out["systems"][system] = {"load_before": float(load)} | _run(system, options)
        print(system, json.dumps(out["systems"][system]), flush=True)
        options.out.write_text(json.dumps(out, indent=1))


def _run(system: str, options: argparse.Namespace) -> dict[str, Any]:
    if system == "diskannpy":
        if not options.diskannpy.exists():
            return {"skipped": f"no {options.diskannpy}; make it as benchmarks/requirements-diskannpy.txt says"}
        given = [str(options.vectors), str(options.threads), str(options.max_degree), str(options.search_list)]
        command = [str(options.diskannpy), "-c", PEER, *given]
    else:
        command = [sys.executable, "-m", "benchmarks.build", *sys.argv[1:], "--inside", system]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr[-2000:]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _build(options: argparse.Namespace) -> dict[str, Any]:
    from icepuffin.ops.catalog.connection import open_catalog  # noqa: PLC0415
    from icepuffin.ops.index.definitions.index_definition import IndexDefinition  # noqa: PLC0415
    from icepuffin.ops.index.index_materialization import materialize_index  # noqa: PLC0415
    from icepuffin.ops.model import StorageConfig  # noqa: PLC0415
    from icepuffin.ops.tasks.task_runner import RunContext  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        uri = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        catalog = open_catalog("bench", uri)
        catalog.create_namespace("db")
        runner = _runner(options)
        storage = StorageConfig({})
        shape: dict[str, Any] = {"max_degree": options.max_degree, "search_list": options.search_list}
        definition = IndexDefinition(
            name="bench", column="embedding", metric="cosine", shards=options.shards, target_recall=0.0, **shape
        )
        warm = _table(catalog, "warm", np.load(options.vectors, mmap_mode="r")[:2000], 1)
        materialize_index(RunContext(warm, storage, runner), definition, warm.metadata.current_snapshot_id)
        table = _table(catalog, "t", np.load(options.vectors, mmap_mode="r"), options.files)
        before = restart_peak_mib()
        start = time.perf_counter()
        report = materialize_index(RunContext(table, storage, runner), definition, table.metadata.current_snapshot_id)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "stage_seconds": dict(report.stage_seconds),
            "recall_at_10": report.recall,
            "shards": report.shards,
            "bytes": report.bytes_total,
            "rss_before_mb": before,
            "peak_rss_mb": peak_mib(),
            "work_mb": peak_mib() - before,
        }


def _runner(options: argparse.Namespace) -> Any:
    from icepuffin.ops.spark.spark_runner import SparkRunner  # noqa: PLC0415
    from icepuffin.ops.tasks.task_runner import LocalRunner  # noqa: PLC0415

    if options.inside == "local":
        return LocalRunner(options.threads)
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{options.threads},4]").config("spark.driver.memory", "1g")
    builder = builder.config("spark.log.level", "ERROR")
    return SparkRunner(builder.config("spark.ui.enabled", "false").getOrCreate())


def _table(catalog: Any, name: str, vectors: Any, files: int) -> Any:
    from benchmarks.lake import SCHEMA, arrow_rows  # noqa: PLC0415

    table = catalog.create_table(f"db.{name}", SCHEMA, properties={"format-version": "2"})
    for rows in np.array_split(np.arange(len(vectors)), files):
        table.append(arrow_rows(rows, vectors[rows]))
    return table


def peak_mib() -> float:
    """Largest resident set of this process, in MiB, since it started or `restart_peak_mib` was called."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def restart_peak_mib() -> float:
    """Start the high-water mark anew. Returns MiB resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--max-degree", type=int, default=64)
    parser.add_argument("--search-list", type=int, default=100)
    parser.add_argument("--systems", default="local,spark,diskannpy")
    parser.add_argument("--diskannpy", type=Path, default=ROOT / ".venv-diskannpy/bin/python")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
