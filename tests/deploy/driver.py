"""The driver of a build, in a process of its own: a session of the suite's process would be taken instead.

`python -m tests.deploy.driver SNAPSHOT`: settings as everywhere; prints JSON.
"""

import inspect
import json
import sys

from icepuffin.ann_kernels.vamana import Graph
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.runs.index import refresh_index
from icepuffin.ops.spark.runner import SparkRunner
from icepuffin.ops.tasks.scatter import scatter
from icepuffin.ops.tasks.shard import make_shard
from icepuffin.orchestration.discovery import table_spec
from icepuffin.orchestration.engines import catalogs_of, engine_of
from icepuffin.orchestration.settings import load
from icepuffin.puffin.blobs.shard import Shard


def main() -> None:
    settings = load()
    catalogs, engine = catalogs_of(settings), engine_of(settings)
    spec = table_spec(settings.tables["packages"], catalogs)
    table = catalogs.table(spec.catalog, spec.identifier)
    report = refresh_index(table, spec.indexes[0], int(sys.argv[1]), engine=engine, storage=storage_of(table))
    runner = engine.runner(report.rows)
    # Pickled by name, so that an executor looks them up in what it imports itself
    looked_up = [make_shard, scatter, Graph, Shard] if isinstance(runner, SparkRunner) else []
    sources = runner.run(inspect.getfile, looked_up, label="sources")
    document = {"action": str(report.action), "path": report.puffin_path, "shards": report.shards, "sources": sources}
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
