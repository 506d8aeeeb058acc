"""What the automatic layout makes of a table's size: arithmetic by the rules of a build; nothing is run.

python -m benchmarks.layout [--rows 1e6 1e7 1e8 1e9] [--dims 128 768] [--max-degree 64]
"""

import argparse

from icepuffin.ops.index.layout import PARTITIONS_PER_SHARD, choose_shard_count, sample_size

STORED_PER_NODE = 50
"""Bytes of a node beside its vector: edges, address and hash. Measured: 56 at 63,666 x 384, 48 at 10 million x 128"""
_GIB, _MIB = 2**30, 2**20


def main() -> None:
    """Print a table in Markdown, one row per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7, 1e8, 1e9])
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 768])
    parser.add_argument("--max-degree", type=int, default=64)
    options = parser.parse_args()
    print("| rows | dims | shards | rows per shard | sample | codebook, MiB | assignment, flop | index, GiB |")
    print("|---|---|---|---|---|---|---|---|")
    for dims in options.dims:
        for rows in map(int, options.rows):
            print(f"| {' | '.join(columns(rows, dims, options.max_degree))} |")


def columns(rows: int, dims: int, max_degree: int) -> list[str]:
    """Cells of one row of the table."""
    shards = choose_shard_count(rows, dims, max_degree)
    sample = sample_size(rows)
    partitions = max(shards, min(PARTITIONS_PER_SHARD * shards, sample // 8))
    return [
        f"{rows:,}",
        str(dims),
        f"{shards:,}",
        f"{rows // shards:,}",
        f"{sample:,}",
        f"{partitions * dims * 4 / _MIB:,.1f}",
        f"{2 * rows * partitions * dims:.1e}",
        f"{rows * (4 * dims + STORED_PER_NODE) / _GIB:,.1f}",
    ]


if __name__ == "__main__":
    main()
