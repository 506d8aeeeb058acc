"""Where the time of a graph build goes, and how much memory it takes.

    python -m benchmarks.build_steps --vectors embeddings.npy [--rows 100000]

CPU seconds of each step on one thread, after a build of a few rows has loaded the kernels. Memory is the peak of a
build without clocks: (vectors + all that the build adds to the process) / (vectors + adjacency).
"""

import argparse
import gc
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.build import peak_mib, restart_peak_mib
from icepuffin.ann_kernels.graphs import bulk_build, locality, vamana
from icepuffin.ann_kernels.metric import Metric

CANDIDATES = "candidates: all of it"
PARTS = ("leaves: products, and the nearest of each row", "candidates into lists")
STEPS: dict[str, tuple[tuple[ModuleType, str], ...]] = {
    "order of nodes": ((locality, "locality_order"), (locality, "reorder")),
    "codes, and whether they serve": ((vamana, "build_space"),),
    "equal rows": ((bulk_build, "find_duplicates"), (bulk_build, "mark_copies")),
    CANDIDATES: ((bulk_build, "_collect_candidates"),),
    PARTS[0]: ((bulk_build, "_leaf_pairs"),),
    PARTS[1]: ((bulk_build, "offer_pairs"),),
    "the sample's graph": ((bulk_build, "_long_edges"),),
    "prune": ((bulk_build, "_prune"), (bulk_build, "_reverse_edges_of_rare_nodes")),
    "repair": ((bulk_build, "attach_unreachable"),),
}


def clock(seconds: Counter[str]) -> None:
    """Add the CPU seconds of each step to `seconds` from now on."""
    for step, functions in STEPS.items():
        for module, name in functions:
            setattr(module, name, _timed(getattr(module, name), step, seconds))


def _timed(function: Callable[..., Any], step: str, seconds: Counter[str]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        begun = time.process_time()
        try:
            return function(*arguments, **named)
        finally:
            seconds[step] += time.process_time() - begun  # type: ignore[assignment]

    return call


def build(vectors: npt.NDArray[np.float32], degree: int, threads: int) -> int:
    """Move the rows of `vectors` into the order of nodes and build. Returns bytes of vectors and adjacency."""
    locality.reorder(vectors, locality.locality_order(vectors, threads=threads))
    graph = vamana.build(vectors, Metric.L2, vamana.VamanaParams(degree), threads=threads)
    return vectors.nbytes + graph.neighbors.nbytes


def main() -> None:
    """Build three times: a few rows, for memory, for time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, required=True, help="an .npy [rows, dims]")
    parser.add_argument("--rows", type=int, help="of the vectors, the first so many alone")
    parser.add_argument("--max-degree", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2, help="of the build whose memory is measured")
    options = parser.parse_args()
    stored = np.load(options.vectors, mmap_mode="r")[: options.rows]
    build(np.array(stored[:4_096], np.float32), options.max_degree, options.threads)
    vectors = np.array(stored, np.float32)
    gc.collect()
    before = restart_peak_mib()
    kept = build(vectors, options.max_degree, options.threads)
    ratio = (vectors.nbytes + (peak_mib() - before) * 2**20) / kept
    seconds: Counter[str] = Counter()
    clock(seconds)
    vectors[:] = stored
    begun = time.process_time()
    build(vectors, options.max_degree, 1)
    whole = time.process_time() - begun
    seconds["balls"] = seconds[CANDIDATES] - sum(seconds[part] for part in PARTS)
    del seconds[CANDIDATES]
    seconds["all else"] = whole - sum(seconds.values())
    for step, spent in seconds.most_common():
        print(f"{step:46} {spent:6.2f} s")
    print(f"{'all':46} {whole:6.2f} s of CPU, {len(vectors):,} x {vectors.shape[1]}, one thread")
    print(f"{'memory, beside vectors and adjacency':46} {ratio:6.2f} times, {options.threads} threads")


if __name__ == "__main__":
    main()
