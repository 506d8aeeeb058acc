"""What a search of a table costs, end to end: warm, in batches, cold, filtered; beside exact search in DuckDB.

    python -m benchmarks.search --vectors embeddings.npy --out search.json [--queries 1000] [--object-store]

The table holds all vectors but the queries (held out by a seeded permutation), and one shard of f32 vectors unless
options change that. `warm_single`: one query after another on one thread, with the id of each row fetched.
`index_only`: the same without columns, which places and distances suffice for. `targets`: what `target_recall` chooses,
and what the held-out queries get. `batch`: all queries in one call, beside the same kernels without a table. `cold`:
see `benchmarks.cold`; from an object store with `--object-store`. `filters`: conditions from all rows down to one in
10,000. `within`: all rows under a distance. `distributed`: one query by Spark tasks, beside Spark's own empty job
(`benchmarks.distributed` has more). Recall@10 is against brute force. DuckDB scans the same Parquet files (its
array_distance over fixed-size arrays); it is skipped where it is not installed.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import cold, distributed
from benchmarks.lake import STORAGE, Lake, held_out
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.cache.cache_settings import DIRECTORY as SHARD_CACHE
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.search.indexed.loaded_version import load_version
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.table.live_files import live_files

K = 10
BATCHES = 6
"""In turn with the kernels; the first of each is not counted"""
TARGETS = (0.9, 0.95, 0.99)
WIDTHS = (10, 14, 20, 28, 40, 56, 80, 112, 160, 224, 320)
FILTERS = (1.0, 0.5, 0.1, 0.01, 0.001, 0.0001)


def main() -> None:
    """Run all of it, one after the other."""
    options = _options()
    queries, base = held_out(options.vectors, options.queries)
    definition = IndexDefinition(
        name="bench", column="embedding", metric="l2", shards=options.shards, target_recall=0.0
    )
    out: dict[str, Any] = {"rows": len(base), "dims": base.shape[1], "shards": options.shards, "search_list": []}
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        os.environ[SHARD_CACHE] = f"{folder}/cache"
        lake = Lake(Path(folder), base, len(base), options.files, definition, options.threads)
        lake.index()
        truth = exact_top_k(queries, base, K, definition.metric)[0]
        reader = open_index(lake.table.refresh(), definition, storage=STORAGE, threads=1)
        width = _width_for(reader, queries, truth, options.recall)
        out["search_list"] = width
        out["warm_single"] = _warm_single(reader, queries, truth, width)
        out["targets"] = [_target(reader, queries, truth, target) for target in TARGETS]
        out["batch"] = _batch(lake, queries, truth, width, options.threads)
        out["filters"] = [_filtered(reader, queries[:100], base, share) for share in FILTERS]
        out["within"] = _within(reader, queries[:50], truth, base)
        out["cold"] = cold.from_disk(lake, queries, Path(folder))
        if options.object_store:
            out["cold"]["object_store"] = cold.from_object_store(base, queries, definition, options.files)
        out["exact_duckdb_p50_ms"] = _duckdb(lake, queries[:20])
        with distributed.no_shard_in_memory():
            spark = distributed.local_session(options.threads)
            out["distributed"] = distributed.single(lake, spark, queries[0], width)[1]
    print(json.dumps(out, indent=1))
    options.out.write_text(json.dumps(out, indent=1))


def _width_for(
    reader: IndexReader, queries: npt.NDArray[np.float32], truth: npt.NDArray[np.int64], recall: float
) -> int:
    """The smallest of some search lists that reaches the recall. Raises SystemExit where none does."""
    for width in WIDTHS:
        if _recall(reader, queries, truth, width) >= recall:
            return width
    raise SystemExit(f"a beam of {WIDTHS[-1]} does not reach a recall of {recall}: choose another --recall")


def _recall(reader: IndexReader, queries: npt.NDArray[np.float32], truth: npt.NDArray[np.int64], width: int) -> float:
    rows = reader.search(queries, K, search_list=width, columns=["id"]).rows
    ids = np.asarray(rows["id"]).reshape(len(queries), K)
    return float(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(ids, truth, strict=True)]))


def _target(
    reader: IndexReader, queries: npt.NDArray[np.float32], truth: npt.NDArray[np.int64], target: float
) -> dict[str, Any]:
    """What `target_recall` chooses, and what new queries then get."""
    result = reader.search(queries, K, target_recall=target, columns=["id"])
    ids = np.asarray(result.rows["id"]).reshape(len(queries), K)
    times = []
    for query in queries[:200]:
        begun = time.perf_counter()
        reader.search(query, K, target_recall=target)
        times.append(1000 * (time.perf_counter() - begun))
    parameters = result.profile.parameters
    return {
        "target": target,
        "recall": float(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(ids, truth, strict=True)])),
        "search_list": parameters.search_list if parameters else None,
        "shards_a_query": sum(item.queries for item in result.profile.work) / len(queries),
        "distances_a_query": result.profile.distances / len(queries),
        "p50_ms": float(np.median(times)),
    }


def _warm_single(
    reader: IndexReader, queries: npt.NDArray[np.float32], truth: npt.NDArray[np.int64], width: int
) -> dict[str, float]:
    for query in queries[:50]:
        reader.search(query, K, search_list=width)
    whole, alone = [], []
    for query in queries:
        begun = time.perf_counter()
        reader.search(query, K, search_list=width)
        whole.append(1000 * (time.perf_counter() - begun))
    for query in queries:
        begun = time.perf_counter()
        reader.search(query, K, search_list=width, columns=())
        alone.append(1000 * (time.perf_counter() - begun))
    return {
        "p50_ms": float(np.median(whole)),
        "p99_ms": float(np.quantile(whole, 0.99)),
        "recall": _recall(reader, queries, truth, width),
        "index_only_p50_ms": float(np.median(alone)),
    }


def _batch(
    lake: Lake, queries: npt.NDArray[np.float32], truth: npt.NDArray[np.int64], width: int, threads: int
) -> dict[str, float]:
    reader = open_index(lake.table, lake.definition, storage=STORAGE, threads=threads)
    many = np.tile(queries, (10_000 // len(queries) + 1, 1))[:10_000]
    searchers = _bare(lake)
    ways: dict[str, Callable[[npt.NDArray[np.float32]], object]] = {
        "table": lambda vectors: reader.search(vectors, K, search_list=width, columns=["id"]),
        "kernels": lambda vectors: [one.search(vectors, K, search_list=width, threads=threads) for one in searchers],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(BATCHES):
        for name, way in ways.items():
            begun = time.perf_counter()
            way(many)
            seconds[name].append(time.perf_counter() - begun)
    taken = {name: float(np.median(some[1:])) for name, some in seconds.items()}
    recall = _recall(reader, queries, truth, width)
    return {"qps": len(many) / taken["table"], "recall": recall, "ratio_to_kernels": taken["table"] / taken["kernels"]}


def _bare(lake: Lake) -> list[Searcher]:
    opened = open_version(index_versions(lake.table, lake.definition.name)[-1], STORAGE)
    live = live_files(lake.table, lake.head)
    return [shard.searcher for shard in load_version(opened, live, STORAGE, complete=True, threads=2).shards]


def _filtered(
    reader: IndexReader, queries: npt.NDArray[np.float32], base: npt.NDArray[np.float32], share: float
) -> dict[str, Any]:
    kept = max(1, int(share * len(base)))
    where = f"id < {kept}"
    truth = exact_top_k(queries, base[:kept], K, reader.definition.metric)[0]
    reader.search(queries[:1], K, where=where, columns=["id"])
    times, hits = [], []
    for query, true in zip(queries, truth, strict=True):
        begun = time.perf_counter()
        result = reader.search(query, K, where=where, columns=["id"])
        times.append(1000 * (time.perf_counter() - begun))
        wanted = true[true >= 0]
        hits.append(len(np.intersect1d(np.asarray(result.rows["id"]), wanted)) / len(wanted))
    return {
        "selectivity": share,
        "recall": float(np.mean(hits)),
        "p50_ms": float(np.median(times)),
        "strategy": result.profile.strategy,
    }


def _within(
    reader: IndexReader, queries: npt.NDArray[np.float32], truth: npt.NDArray[np.int64], base: npt.NDArray[np.float32]
) -> dict[str, float]:
    """Each query with the distance of its tenth neighbour: ten rows, exactly."""
    times, rows, pruned = [], [], []
    for query, true in zip(queries, truth, strict=False):
        limit = float(np.linalg.norm(base[true[-1]].astype(np.float64) - query))
        begun = time.perf_counter()
        result = reader.within(query, limit * (1 + 1e-6), columns=["id"])
        times.append(1000 * (time.perf_counter() - begun))
        rows.append(result.rows.num_rows)
        pruned.append(result.profile.pruning.share if result.profile.pruning else 0.0)
    return {
        "p50_ms": float(np.median(times)),
        "rows": float(np.mean(rows)),
        "pruned_share": float(np.mean(pruned)),
    }


def _duckdb(lake: Lake, queries: npt.NDArray[np.float32]) -> float | None:
    try:
        import duckdb  # noqa: PLC0415
    except ImportError:
        return None
    paths = [task.file.file_path.removeprefix("file://") for task in lake.table.scan().plan_files()]
    dims = queries.shape[1]
    times = []
    with duckdb.connect() as db:
        distance = f"array_distance(embedding::FLOAT[{dims}], ?::FLOAT[{dims}])"
        text = f"SELECT id FROM read_parquet(?) ORDER BY {distance} LIMIT {K}"  # noqa: S608  numbers of our own
        for query in queries:
            begun = time.perf_counter()
            db.execute(text, [paths, query.tolist()]).fetchall()
            times.append(1000 * (time.perf_counter() - begun))
    return float(np.median(times))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--recall", type=float, default=0.99, help="the search list is the smallest that reaches it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--object-store", action="store_true", help="cold from a local S3 server, too: needs Java")
    parser.add_argument("--scratch", type=Path, help="folder for the table [default: the system's temporary one]")
    return parser.parse_args()


if __name__ == "__main__":
    main()
