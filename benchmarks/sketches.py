"""Distinct values of a Parquet file's columns: our theta sketches beside Iceberg's own, and DuckDB's HyperLogLog.

    python -m benchmarks.sketches --out sketches.json [--rows 10000000] [--systems icepuffin,duckdb]

The file is made first: ten row groups, four columns without nulls, each with a known number of distinct values. Each
system runs in a process of its own, after one call to warm up. A figure is the median time from the file, in the page
cache, to the finished answer: of each column, and of all in one call. `seconds` are of the clock, `cpu_seconds` of all
threads, the JVM's included; others on the machine move these less. So is `peak_mb`. `error` is the estimate over the
truth, less 1.

icepuffin         `count_theta_sketches` of a snapshot without sketches, the commit included
icepuffin-count   the same without the commits
duckdb            approx_count_distinct: a mark for speed, not the same answer
iceberg           compute_table_stats on Spark, of an Iceberg copy of the file; writes and commits its Puffin file, too.
                  Its jar is the one of the tests: `tests/services/artifacts.lock`. Start-up is not counted
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
DISTINCT = {"long": 1_000_000, "string": 100_000, "timestamptz": 500_000, "decimal": 250_000}
SYSTEMS = ("icepuffin", "icepuffin-count", "duckdb", "iceberg")
_GROUPS = 10


class DuckDB:
    """A HyperLogLog per column."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec

    def start(self) -> None:
        """Open a database in memory."""
        import duckdb  # noqa: PLC0415  each system in its own process

        self.connection = duckdb.connect(config={"threads": self.spec["threads"]})

    def many(self, columns: list[str]) -> dict[str, tuple[float, None]]:
        """Estimates of some columns in one query."""
        wanted = ", ".join(f'approx_count_distinct("{column}")' for column in columns)
        query = f"SELECT {wanted} FROM read_parquet(?)"  # noqa: S608  names of `DISTINCT`
        row = self.connection.execute(query, [self.spec["parquet"]]).fetchone()
        assert row is not None
        return {column: (float(value), None) for column, value in zip(columns, row, strict=True)}


class Iceberg:
    """Iceberg's procedure on Spark."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec

    def start(self) -> None:
        """Start Spark, and copy the file into an Iceberg table."""
        from pyspark.sql import SparkSession  # noqa: PLC0415  starts a JVM

        from tests.services.jars import ICEBERG_SPARK, fetch_all  # noqa: PLC0415

        conf = {
            "spark.jars": ",".join(map(str, fetch_all([ICEBERG_SPARK]))),
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.bench": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.bench.type": "hadoop",
            "spark.sql.catalog.bench.warehouse": f"{self.spec['scratch']}/iceberg",
            "spark.driver.memory": "4g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.sql.session.timeZone": "UTC",
        }
        builder = SparkSession.builder.master(f"local[{self.spec['threads']}]")
        for key, value in conf.items():
            builder = builder.config(key, value)
        self.spark = builder.getOrCreate()
        self.spark.read.parquet(self.spec["parquet"]).writeTo("bench.db.t").create()

    def many(self, columns: list[str]) -> dict[str, tuple[float, None]]:
        """Compute and commit the sketches of some columns; Spark returns no estimates."""
        names = ", ".join(f"'{column}'" for column in columns)
        call = f"CALL bench.system.compute_table_stats(table => 'db.t', columns => array({names}))"
        self.spark.sql(call).collect()
        return {}


def make_file(file: Path, rows: int) -> None:
    """Each column draws from its distinct values, all of which come, in random order."""
    rng = np.random.default_rng(0)
    group = -(-rows // _GROUPS)
    numbers = {name: rng.permutation(np.arange(rows) % count) for name, count in DISTINCT.items()}
    columns = {
        "long": pa.array(numbers["long"] * 7919),
        "string": pa.array(np.char.zfill(numbers["string"].astype("U20"), 20)),
        "timestamptz": pa.array(numbers["timestamptz"] * 1_000_003, pa.timestamp("us", "UTC")),
        "decimal": pa.array(numbers["decimal"] - 125_000).cast(pa.decimal128(19, 0)).cast(pa.decimal128(23, 4)),
    }
    columns["decimal"] = columns["decimal"].cast(pa.decimal128(18, 4))
    pq.write_table(pa.table(columns), file, compression="snappy", row_group_size=group)


def inside(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Time one system, in its own process."""
    from benchmarks.theta_plugin import SYSTEMS as OURS  # noqa: PLC0415

    system: Any = {**OURS, "duckdb": DuckDB, "iceberg": Iceberg}[name](spec)
    started = time.perf_counter()
    system.start()
    out: dict[str, Any] = {"start_seconds": time.perf_counter() - started, "columns": {}}
    columns = list(DISTINCT)
    for single in ([column] for column in columns):
        times, answer = _timed(system, single, spec["repeats"])
        out["columns"][single[0]] = dict(zip(("seconds", "cpu_seconds"), times, strict=True))
        if single[0] in answer:
            truth = min(DISTINCT[single[0]], spec["rows"])
            out["columns"][single[0]]["error"] = answer[single[0]][0] / truth - 1
    (out["all_seconds"], out["all_cpu_seconds"]), _ = _timed(system, columns, spec["repeats"])
    out["peak_mb"] = sum(map(_peak_mb, [os.getpid(), *_children(os.getpid())]))
    return out


def _timed(system: Any, columns: list[str], repeats: int) -> tuple[tuple[float, float], dict[str, Any]]:
    """(median seconds, median CPU seconds), and the answer."""
    system.many(columns)
    durations = []
    for _ in range(repeats):
        begun, cpu_begun = time.perf_counter(), _cpu_seconds()
        answer = system.many(columns)
        durations.append((time.perf_counter() - begun, _cpu_seconds() - cpu_begun))
    seconds, cpu_seconds = map(statistics.median, zip(*durations, strict=True))
    return (seconds, cpu_seconds), answer


def _cpu_seconds() -> float:
    """Of this process and of those that it started and that run."""
    ticks = 0
    for pid in _children(os.getpid()):
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        ticks += int(user) + int(system)
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    file = Path(f"/proc/{pid}/task/{pid}/children")
    direct = [int(child) for child in file.read_text().split()] if file.exists() else []
    return [each for child in direct for each in (child, *_children(child))]


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0.0)


def main() -> None:
    """Make the file, run each system, write and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="[default: %(default)s]")
    parser.add_argument("--scratch", type=Path, help="folder for the file [default: the system's temporary one]")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        name, spec = options.inside[0], json.loads(options.inside[1])
        Path(spec["result"]).write_text(json.dumps(inside(name, spec)), encoding="utf-8")
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.scratch) as place:
        file = Path(place) / "rows.parquet"
        make_file(file, options.rows)
        for name in options.systems.split(","):
            results[name] = _run(name, file, options)
            figures = results[name]["columns"] | {
                "all": {"seconds": results[name]["all_seconds"], "cpu_seconds": results[name]["all_cpu_seconds"]}
            }
            shown = ", ".join(f"{c} {r['seconds']:.2f} ({r['cpu_seconds']:.2f})" for c, r in figures.items())
            print(f"{name:16} s (CPU): {shown}; {results[name]['peak_mb']:.0f} MB", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def _run(name: str, file: Path, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:
        result = Path(scratch) / "result.json"
        spec = {"parquet": str(file), "rows": options.rows, "threads": options.threads, "repeats": options.repeats}
        spec |= {"calls": (len(DISTINCT) + 1) * (1 + options.repeats), "scratch": scratch, "result": str(result)}
        command = [sys.executable, "-m", "benchmarks.sketches", "--inside", name, json.dumps(spec)]
        subprocess.run(command, cwd=ROOT, check=True)
        return dict(json.loads(result.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
