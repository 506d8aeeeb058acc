"""What the automatic layout makes of a table's size: arithmetic by the rules of a build; nothing is run.

    python -m benchmarks.layout [--rows 1e6 1e7 1e8 1e9] [--dims 128 768 1536] [--max-degree 64]
    python -m benchmarks.layout --vectors embeddings.npy [--centroids 4096 10000 25000]

With `--vectors`, an .npy f32[N, D], it measures the assignment instead: rows near these vectors are compared with so
many centroids near them, by groups as a build does it and with all, on one thread.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ann_kernels.codes.grouped_centroids import NEAR_GROUPS, CentroidGroups
from icepuffin.ops.index.index_layout import PARTITIONS_PER_SHARD, choose_shard_count, sample_size
from icepuffin.ops.index.versions.index_packs import divided
from icepuffin.ops.model import ObjectRange

STORED_PER_NODE = 50
"""Bytes of a node beside its vector: edges, address and hash. Measured: 56 at 63,666 x 384, 48 at 10 million x 128"""
_GIB, _MIB = 2**30, 2**20
_SAMPLE = 20_000


def main() -> None:
    """Print a table in Markdown, one row per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7, 1e8, 1e9])
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 768, 1536])
    parser.add_argument("--max-degree", type=int, default=64)
    parser.add_argument("--vectors", type=Path, help="measure the assignment of rows near these")
    parser.add_argument("--centroids", type=int, nargs="+", default=[4_097, 10_000, 25_000])
    options = parser.parse_args()
    if options.vectors:
        measure(np.load(options.vectors, mmap_mode="r"), options.centroids)
        return
    print("| rows | dims | shards | rows per shard | sample | codebook, MiB | assignment, flop | index, GiB | packs |")
    print("|---|---|---|---|---|---|---|---|---|")
    for dims in options.dims:
        for rows in map(int, options.rows):
            print(f"| {' | '.join(columns(rows, dims, options.max_degree))} |")


def columns(rows: int, dims: int, max_degree: int) -> list[str]:
    """Cells of one row of the table."""
    shards = choose_shard_count(rows, dims, max_degree)
    sample = sample_size(rows)
    partitions = max(shards, min(PARTITIONS_PER_SHARD * shards, sample // 8))
    node = 4 * dims + STORED_PER_NODE
    compared = partitions if partitions <= kmeans.MANY else isqrt(partitions) * (1 + NEAR_GROUPS)
    return [
        f"{rows:,}",
        str(dims),
        f"{shards:,}",
        f"{rows // shards:,}",
        f"{sample:,}",
        f"{partitions * dims * 4 / _MIB:,.1f}",
        f"{2 * rows * compared * dims:.1e}",
        f"{rows * node / _GIB:,.1f}",
        str(len(divided(_Shard(-(-rows // shards) * node) for _ in range(shards)))),
    ]


@dataclass(frozen=True)
class _Shard:
    """A shard as a task has written it: graph and vectors in one object."""

    length: int

    @property
    def sources(self) -> tuple[ObjectRange, ...]:
        return (ObjectRange("shard", 0, self.length),)


def measure(vectors: npt.NDArray[np.float32], counts: Sequence[int]) -> None:
    """Print a table in Markdown, one row per number of centroids."""
    rng = np.random.default_rng(0)
    spread = np.float32(vectors[:_SAMPLE].std() / 2)

    def near(count: int) -> npt.NDArray[np.float32]:
        noise = rng.standard_normal((count, vectors.shape[1]), dtype=np.float32)
        return np.asarray(vectors[rng.integers(0, len(vectors), count)] + spread * noise)

    print("| centroids | all, us per row | by groups, us per row | grouping, s | nearest of all | distance |")
    print("|---|---|---|---|---|---|")
    rows = near(_SAMPLE)
    for count in counts:
        centroids = near(count)
        kmeans.assign(rows[:64], centroids)
        clock = [time.process_time()]
        labels, squared = kmeans.assign(rows, centroids)
        clock.append(time.process_time())
        groups = CentroidGroups.from_centroids(centroids)
        clock.append(time.process_time())
        grouped_labels, grouped_squared = groups.assign(rows)
        clock.append(time.process_time())
        whole, grouping, grouped = np.diff(clock)
        farther = np.sqrt(grouped_squared).mean() / np.sqrt(squared).mean()
        print(
            f"| {count:,} | {1e6 * whole / len(rows):.1f} | {1e6 * grouped / len(rows):.1f} | {grouping:.2f} "
            f"| {(labels == grouped_labels).mean():.3f} | {farther:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
