"""The layout of a table that is too large to build here: trained on a sample, as a build does, and tried.

    python -m benchmarks.large_layout --base vectors.npy --dims 768 --shards 1280 --files 20000 --out layout.json

The sample has 200,000 rows, as that of any table of over 20 million rows, and they are those of `benchmarks.scale`.
Figures: processor seconds of training, the rows of the largest shard as a multiple of the mean (by rows
that were not in the sample), shards that a query probes by the recall they allow, milliseconds of a probe, and the
bytes of the routing blob and what decoding it takes.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.simulated_vectors import SimulatedVectors, prepare
from icepuffin.ann_kernels.codes import grouped_centroids, kmeans
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.index_layout import PARTITIONS_PER_SHARD, group_partitions
from icepuffin.ops.index.planning.sizes import LARGEST_SAMPLE
from icepuffin.ops.index.routing_recall import MAX_QUERIES, curve_in_sample, split_off_queries
from icepuffin.ops.recall.curves import ShardCentroids
from icepuffin.puffin.blobs import routing_blob
from icepuffin.puffin.blobs.routing_blob import NO_DELETES, CoveredFile, Routing, ShardEntry
from icepuffin.puffin.codec import encode

_PROBES = 200
_HELD_OUT = 100_000
_NO_NODES = np.empty(0, np.int64)


def main() -> None:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help=".npy f32[N, ..] that rows are made from [default: simulated]")
    parser.add_argument("--dims", type=int, default=768, help="[default: %(default)s]")
    parser.add_argument("--shards", type=int, required=True)
    parser.add_argument("--files", type=int, default=20_000, help="data files [default: %(default)s]")
    parser.add_argument("--sample", type=int, default=LARGEST_SAMPLE, help="[default: %(default)s]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepare(options.base, options.dims, Path(folder))
        rows = SimulatedVectors(Path(folder), options.sample + _HELD_OUT)
        figures = measure(rows[: options.sample], rows[options.sample :], options)
    options.out.write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1))


def measure(
    sample: npt.NDArray[np.float32], held_out: npt.NDArray[np.float32], options: argparse.Namespace
) -> dict[str, Any]:
    """All figures of one layout."""
    sample, queries = split_off_queries(sample, Metric.L2, options.shards, queries=MAX_QUERIES, seed=0)
    partitions = min(PARTITIONS_PER_SHARD * options.shards, len(sample) // 8)
    codebook, training = seconds_of(
        lambda: kmeans.train(sample, partitions, seed=0, threads=options.threads, nearest=grouped_centroids.assign)
    )
    labels, _ = grouped_centroids.assign(sample, codebook, threads=options.threads)
    sizes = np.bincount(labels, minlength=partitions)
    to_shard, grouping = seconds_of(lambda: group_partitions(codebook, sizes, options.shards))
    curve, measuring = seconds_of(lambda: curve_in_sample(sample, labels, queries, codebook, to_shard, Metric.L2))
    rows = np.bincount(to_shard[grouped_centroids.assign(held_out, codebook)[0]], minlength=options.shards)
    return {
        "partitions": partitions,
        "training_core_seconds": training,
        "grouping_core_seconds": grouping,
        "routing_curve_core_seconds": measuring,
        "largest_shard": float(rows.max() / rows.mean()),
        "smallest_shard": float(rows.min() / rows.mean()),
        "probes": [
            {"slack": slack, "shards": shards, "recall": recall} for slack, shards, recall in json.loads(curve or "[]")
        ],
        "probe_ms": probe_milliseconds(ShardCentroids.from_codebook(codebook, to_shard), held_out[:_PROBES]),
        **routing_figures(codebook, to_shard, options.shards, options.files),
    }


def seconds_of(work: Callable[[], Any]) -> tuple[Any, float]:
    """(result, processor seconds of all threads)."""
    begun = time.process_time()
    result = work()
    return result, time.process_time() - begun


def probe_milliseconds(centroids: ShardCentroids, queries: npt.NDArray[np.float32]) -> float:
    """Median milliseconds of finding the shards of one query, on one thread."""
    spent = []
    for query in queries:
        begun = time.thread_time()
        centroids.distances(query[None])
        spent.append(1000 * (time.thread_time() - begun))
    return float(np.median(spent))


def routing_figures(
    codebook: npt.NDArray[np.float32], to_shard: npt.NDArray[np.uint32], shards: int, files: int
) -> dict[str, Any]:
    """Bytes of the routing blob of such a version, and the seconds of decoding it."""
    names = (f"data/bucket={number % 64}/00000-{number}-5f0c6f5e-{number:012x}.parquet" for number in range(files))
    routing = Routing(
        base_snapshot_id=1,
        build_id="0" * 16,
        definition="{}",
        codebook=codebook,
        partition_to_shard=to_shard,
        shards=tuple(ShardEntry(1, 1, 0, 1.0, 1, bytes(range(32)), _NO_NODES) for _ in range(shards)),
        files=tuple(CoveredFile(name, 50_000, 50_000, NO_DELETES, present=True) for name in names),
    )
    raw = routing_blob.encode(routing)
    _, decoding = seconds_of(lambda: routing_blob.decode(raw))
    return {
        "routing_bytes": len(raw),
        "routing_stored_bytes": len(encode(raw, "zstd")[0]),
        "routing_decode_core_seconds": decoding,
    }


if __name__ == "__main__":
    main()
