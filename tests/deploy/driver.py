"""The driver of a build and of searches, in a process of its own: a session of the suite's process would be taken
instead.

`python -m tests.deploy.driver SNAPSHOT`: settings as everywhere; prints JSON.
"""

import inspect
import json
import os
import signal
import sys
import time
from pathlib import Path

from pyiceberg.table import Table

from icepuffin.ann_kernels.graphs.vamana import Graph
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.runs.index_runs import refresh_index
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.spark import task_placement
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.tasks.scatter import scatter
from icepuffin.ops.tasks.shard_task import make_shard
from icepuffin.orchestration.engines import catalogs_of, engine_of
from icepuffin.orchestration.settings import load
from icepuffin.puffin.blobs.shard_blob import Shard
from tests.orchestration.evaluation import found_spec

SHARD_CACHE = Path("shards")
"""Folder of the shard cache in the folder of each executor"""
SEARCHES = 6


def search(table: Table, runner: SparkRunner) -> int:
    """Opens the index, and searches all of its shards some times. Returns the shards that the last search walked."""
    use_settings(CacheSettings(directory=SHARD_CACHE, memory_bytes=0))
    reader = open_index(table, runner=runner, in_process_mb=0)
    results = [reader.search([0.5] * (reader.dims or 0), k=5) for _ in range(SEARCHES)]
    return len(results[-1].profile.work)


def places_after_a_loss(runner: SparkRunner) -> list[list[str]]:
    """Folders of the executors that run two tasks in place: before one of them is killed, and after another started."""

    def folders() -> list[str]:
        return runner.in_place().run(os.path.abspath, [".", "."], label="folders")

    before = folders()
    (process,) = (
        int(link.parent.name)
        for link in Path("/proc").glob("[0-9]*/cwd")
        if os.path.realpath(link) == before[0] and b"java" in (link.parent / "cmdline").read_bytes().split(b"\0")[0]
    )
    os.kill(process, signal.SIGKILL)
    task_placement.SETTLED_SECONDS = 1.0
    deadline = time.monotonic() + 600
    while (after := folders())[0] == after[1] or before[0] in after:
        if time.monotonic() > deadline:
            break
    return [before, after]


def main() -> None:
    settings = load()
    catalogs, engine = catalogs_of(settings), engine_of(settings)
    spec = found_spec(settings.tables["packages"], catalogs)
    table = catalogs.table(spec.catalog, spec.identifier)
    report = refresh_index(engine.run_on(table, int(sys.argv[1])), spec.indexes[0], int(sys.argv[1]))
    runner = engine.runner(report.rows)
    document = {"action": str(report.action), "path": report.puffin_path, "shards": report.shards, "sources": []}
    if isinstance(runner, SparkRunner):
        # Pickled by name, so that an executor looks them up in what it imports itself
        document["sources"] = runner.run(inspect.getfile, [make_shard, scatter, Graph, Shard], label="sources")
        document["searched"] = search(table.refresh(), runner)
        document["places"] = places_after_a_loss(runner)
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
