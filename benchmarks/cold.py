"""The first answer of a new process with an empty shard cache, from the local disk and from an object store.

Seconds run from the end of the imports to the answer: catalog, table, index, one query and the `id` of each row. From
the disk, bytes are all that the process read, programs and compiled kernels included. From the object store they are
what came through a relay (`benchmarks.relay`), with the number of requests, by kind of object; with `latency_ms` each
request waits so long first. `index_bytes` are those of the shards as they are stored, and `row_bytes` those of the row
groups that hold the answer: neither can be left out.

    python -m benchmarks.cold --rows 200000 --cells sq8

does the latter alone, for an index with cells, or without: shards are not fetched behind the answer. It has simulated
vectors, and `recall` is that of other queries of a process whose cache stays empty.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from benchmarks.lake import SCHEMA, STORAGE, Lake, arrow_rows
from benchmarks.relay import Relay, by_kind, relayed
from benchmarks.simulated_vectors import SimulatedVectors, prepare
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import use_settings
from icepuffin.ops.cache.cache_settings import DIRECTORY as SHARD_CACHE
from icepuffin.ops.cache.cache_settings import PREFETCH, CacheSettings
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.services.s3proxy import BUCKET, s3proxy

LATENCIES_MS = (0.0, 20.0)
_K = 10
_RECALL_QUERIES = 100
_FIRST = """
import json, sys, time
begun = time.perf_counter()
import numpy as np
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.search.opening import open_index
imported = time.perf_counter()
def read():
    return int(open("/proc/self/io").read().split("rchar:")[1].split()[0])
before = read()
properties, storage = json.loads(sys.argv[1])
table = open_catalog("bench", properties).load_table("db.t")
definition = IndexDefinition(name="bench", column="embedding", metric="l2")
reader = open_index(table, definition, storage=StorageConfig(storage), threads=2)
opened = time.perf_counter()
found = reader.search(np.load(sys.argv[2]), 10, columns=["id"])
stages = {"strategy": found.profile.strategy, "open_seconds": opened - imported}
if found.profile.cold:
    stages["cells"] = {name: getattr(found.profile.cold, name) for name in ("cells", "bytes", "requests", "rounds")}
sizes = {"index_bytes": found.opening.index_bytes, "row_bytes": found.profile.bytes_read["rows"]}
done = {"import_seconds": imported - begun, "seconds": time.perf_counter() - imported, "bytes_read": read() - before}
print(json.dumps({**done, **sizes, **stages}))
"""


def from_disk(lake: Lake, queries: npt.NDArray[np.float32], folder: Path) -> dict[str, Any]:
    """With an empty shard cache, and as `cached` again with what the first process left in it."""
    first, again = (_first_answer(lake.properties, STORAGE, queries, folder) for _ in range(2))
    return {**first, "cached": again}


def from_object_store(
    base: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], definition: IndexDefinition, files: int
) -> dict[str, Any]:
    """Of the same table on a real S3 server of this machine, once for each latency; and the build."""
    with tempfile.TemporaryDirectory() as name, s3proxy(Path(name)) as direct:
        folder = Path(name)
        address = urlsplit(direct.properties["s3.endpoint"])
        with relayed(str(address.hostname), int(address.port or 80)) as relay:
            storage = StorageConfig({**direct.properties, "s3.endpoint": relay.endpoint})
            catalog = {
                "type": "sql",
                "uri": f"sqlite:///{folder}/catalog.db",
                "warehouse": f"s3://{BUCKET}/warehouse",
                **storage.properties,
            }
            spent = _make_table(catalog, storage, base, definition, files)
            relay.take()
            first = [_timed(relay, latency, catalog, storage, queries, folder) for latency in LATENCIES_MS]
            relay.latency_ms = 0
            recall = _recall(catalog, storage, definition, base, queries[:_RECALL_QUERIES])
            return {"build_core_seconds": spent, "recall": recall, "first": first}


def _recall(
    catalog: dict[str, str],
    storage: StorageConfig,
    definition: IndexDefinition,
    base: npt.NDArray[np.float32],
    queries: npt.NDArray[np.float32],
) -> float:
    """recall@10 of queries, one after the other, by a reader without a cache."""
    use_settings(CacheSettings(disk_bytes=0, memory_bytes=0, prefetch="never"))
    reader = open_index(open_catalog("bench", catalog).load_table("db.t"), definition, storage=storage, threads=2)
    truth = exact_top_k(queries, base, _K, Metric.L2)[0]
    answers = [reader.search(query, _K, columns=["id"]).rows["id"].to_pylist() for query in queries]
    use_settings(None)
    return float(np.mean([len({*own} & {*true}) / _K for own, true in zip(answers, truth.tolist(), strict=True)]))


def _timed(
    relay: Relay,
    latency_ms: float,
    catalog: dict[str, str],
    storage: StorageConfig,
    queries: npt.NDArray[np.float32],
    folder: Path,
) -> dict[str, Any]:
    relay.latency_ms = latency_ms
    with tempfile.TemporaryDirectory(dir=folder) as empty:
        first, again = (
            {**_first_answer(catalog, storage, queries, Path(empty)), "read": by_kind(relay.take())} for _ in range(2)
        )
    return {"latency_ms": latency_ms, **first, "cached": again}


def _make_table(
    catalog: dict[str, str],
    storage: StorageConfig,
    base: npt.NDArray[np.float32],
    definition: IndexDefinition,
    files: int,
) -> float:
    """Core-seconds of the index."""
    opened = open_catalog("bench", catalog)
    opened.create_namespace("db")
    table = opened.create_table("db.t", SCHEMA, properties={"format-version": "2"})
    for part in np.array_split(np.arange(len(base)), files):
        table.append(arrow_rows(part, base[part]))
    head = table.refresh().metadata.current_snapshot_id
    if head is None:
        raise ValueError("the table has no snapshot")
    begun = time.process_time()
    materialize_index(RunContext(table, storage, LocalRunner(2)), definition, head)
    return time.process_time() - begun


def _first_answer(
    catalog: dict[str, str], storage: StorageConfig, queries: Sequence[Any] | npt.NDArray[np.float32], folder: Path
) -> dict[str, Any]:
    np.save(folder / "query.npy", queries[:1])
    given = json.dumps([catalog, dict(storage.properties)])
    command = [sys.executable, "-c", _FIRST, given, str(folder / "query.npy")]
    environment = {**os.environ, SHARD_CACHE: str(folder / "first-cache"), PREFETCH: "never"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """An index of simulated vectors on an object store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dims", type=int, default=128)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--cells", default="none", choices=("none", "sq4", "sq8"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        prepare(None, options.dims, Path(name))
        base, queries = SimulatedVectors(Path(name), options.rows), SimulatedVectors(Path(name), 1_000, seed=1)
        definition = IndexDefinition(
            name="bench", column="embedding", metric="l2", shards=options.shards, target_recall=0.0, cells=options.cells
        )
        out = from_object_store(base[: options.rows], queries[:1_000], definition, options.files)
    print(json.dumps({"rows": options.rows, "dims": options.dims, "cells": options.cells, **out}, indent=1))


if __name__ == "__main__":
    main()
