"""A table with a long history: opening a reader, and evaluations of the sensor.

    python -m benchmarks.history --out history.json [--snapshots 70000] [--versions 3000] [--runs-ahead 100]

Each snapshot has a summary as Spark's, and every so many have an index version; the snapshots share one manifest list.
Seconds of CPU, as the metadata is one file that one thread reads: `load` is PyIceberg's part, and the evaluations
contain it. `tick.<policy>` has two evaluations, of which the first sees the table for the first time. Each writes into
Dagster for 3 s of the clock, and `recorded` is how many snapshots it wrote.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import icepuffin
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.orchestration.instance import open_instance
from tests.orchestration.backlog import Backlog, Daemon, make_backlog

T = TypeVar("T")
_WATCH = "watch_demo_demo_t0"
_SUMMARY = {
    "spark.app.id": "application_1763900000000_0001",
    "app-id": "application_1763900000000_0001",
    "engine-name": "spark",
    "engine-version": "4.1.1",
    "iceberg-version": "Apache Iceberg 1.11.0 (commit 8e9d59d299be42b0bca9461457cd1e95dbaad086)",
    "changed-partition-count": "1",
    "comment": "x" * 330,
}


def cpu_seconds(work: Callable[[], T]) -> tuple[T, float]:
    """(result, seconds of CPU of this process)."""
    begun = time.process_time()
    return work(), time.process_time() - begun


def make_history(folder: Path, snapshots: int, versions: int) -> tuple[Backlog, int]:
    """(the table, bytes of metadata that one version adds)."""
    backlog = make_backlog(folder, tables=1, snapshots=1)
    table = backlog.catalog.load_table("demo.t0")
    icepuffin.refresh(table, IndexDefinition(name="e", column="embedding", target_recall=0.0))
    location = Path(backlog.with_history("t0", snapshots, versions, _SUMMARY).removeprefix("file://"))
    record = json.loads(location.read_text())
    own = record["statistics"][-1]
    bound = next(item for item in record["snapshots"] if item["snapshot-id"] == own["snapshot-id"])
    return backlog, sum(len(json.dumps(part, separators=(",", ":"))) for part in (own, bound))


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one table."""
    backlog, version_bytes = make_history(folder, options.snapshots, options.versions)
    table, load = cpu_seconds(lambda: backlog.catalog.load_table("demo.t0"))
    icepuffin.open_index(backlog.catalog.load_table("demo.t0"), "e")  # imports and kernels
    _, opening = cpu_seconds(lambda: icepuffin.open_index(table, "e"))
    ticks = {}
    for policy in ("newest", "every"):
        with tempfile.TemporaryDirectory(dir=folder) as home, open_instance(Path(home)) as instance:
            daemon = Daemon(instance, backlog.settings(snapshots=policy, runs_ahead=options.runs_ahead))
            pairs = [cpu_seconds(lambda: daemon.tick(_WATCH)) for _ in range(2)]  # noqa: B023  called at once
            ticks[policy] = [
                {"cpu_seconds": seconds, "recorded": tick.shown, "runs": len(tick.launched)} for tick, seconds in pairs
            ]
    file = Path(table.metadata_location.removeprefix("file://"))
    return {
        "snapshots": len(table.metadata.snapshots),
        "versions": options.versions,
        "metadata_bytes": file.stat().st_size,
        "bytes_per_version": version_bytes,
        "load": load,
        "open_index": opening,
        "tick": ticks,
    }


def main() -> None:
    """Measure one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--snapshots", type=int, default=70_000)
    parser.add_argument("--versions", type=int, default=3_000)
    parser.add_argument("--runs-ahead", type=int, default=100)
    parser.add_argument("--scratch", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        report = measure(Path(folder), options)
    options.out.write_text(json.dumps(report, indent=2))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
