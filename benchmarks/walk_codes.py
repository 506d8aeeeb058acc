"""One graph, searched by codes of one byte per dimension, of four bits, and of four bits that have signs, which ranks
by vectors; and by rotated codes, which ranks by codes alone: recall, queries per second, distances.

    python -m benchmarks.walk_codes --vectors X.npy [--parts 2] [--k 10 100] [--rounds 3] [--threads 2]

Rows are split and joined as `benchmarks.kernels` does it. At each width the kinds of codes search in turn, as often as
`--rounds` says; the median is printed. With one thread its CPU seconds count. Needs 256 dimensions or more.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.kernels import joined_rows, recall_of
from icepuffin.ann_kernels.codes import four_bit_quantization, rotated_quantization, scalar_quantization
from icepuffin.ann_kernels.codes.code_sizes import rotated_bytes
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.graphs.locality import locality_order, reorder
from icepuffin.ann_kernels.graphs.neighbor_check import preserves_neighbors
from icepuffin.ann_kernels.metric import Metric

WIDTHS = (10, 20, 30, 50, 100, 200, 400)
KINDS = "bytes", "four bits", "signs"
ROTATED = (4, 5, 8)


def main(arguments: list[str] | None = None) -> None:
    """Build once, then time all kinds."""
    options = _options(arguments)
    rows = joined_rows(np.load(options.vectors, mmap_mode="r"), options.parts)
    order = np.random.default_rng(1).permutation(len(rows))
    queries, base = (np.ascontiguousarray(rows[part], np.float32) for part in np.split(order, [options.queries]))
    reorder(base, locality_order(base, threads=options.threads))
    graph = vamana.build(base, Metric.L2, vamana.VamanaParams(), threads=options.threads)
    by_bytes = scalar_quantization.encode(base, threads=options.threads)
    by_four_bits = four_bit_quantization.encode(base, threads=options.threads)
    if by_bytes is None or by_four_bits is None:
        raise SystemExit(f"there are no codes of both kinds for {base.shape[1]} dimensions")
    searchers = {}
    for kind, codes in zip(KINDS, (by_bytes, by_four_bits, by_four_bits.with_signs()), strict=True):
        print(f"{kind}: preserve the nearest neighbours: {preserves_neighbors(codes, base, Metric.L2)}")
        searchers[kind] = Searcher(graph, base, Metric.L2, codes=codes)
    for bits in ROTATED:
        began = time.process_time()
        rotated = rotated_quantization.encode(base, bits, rotated_quantization.center_of(base), seed=0)
        spent_us = 1e6 * (time.process_time() - began) / len(base)
        print(f"rq{bits}: {rotated_bytes(base.shape[1], bits)} bytes per vector, {spent_us:.1f} us to encode one")
        searchers[f"rq{bits}"] = Searcher(graph, None, Metric.L2, rotated=rotated)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    print(f"{len(base)} x {base.shape[1]}, {options.threads} threads; k, width, kind: recall, QPS, distances per query")
    for k in options.k:
        true = exact_top_k(queries, base, k, Metric.L2)[1]
        for width in (width for width in WIDTHS if width >= k):
            spent: dict[str, list[float]] = {kind: [] for kind in searchers}
            for _ in range(options.rounds + 1):
                for kind, searcher in searchers.items():
                    begun = clock()
                    searcher.search(queries, k, search_list=width, threads=options.threads)
                    spent[kind].append(clock() - begun)
            for kind, searcher in searchers.items():
                ids, _, stats = searcher.search(queries, k, search_list=width, threads=options.threads)
                rate = len(queries) / float(np.median(spent[kind][1:]))
                recall = recall_of(base, queries, ids, true)
                print(f"{k:4} {width:4} {kind:10} {recall:.4f} {rate:8.0f} {stats.distances.mean():7.0f}", flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True, help="an .npy [rows, dims]")
    parser.add_argument("--parts", type=int, default=1, help="rows that are joined to one vector [default: 1]")
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--k", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
