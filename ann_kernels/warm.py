"""Compiles every kernel into numba's cache: `python -m ann_kernels.warm`. Run it before processes share it."""

import time

import numpy as np

from ann_kernels import kmeans, quantize, vamana
from ann_kernels.distance import prepare
from ann_kernels.hashing import content_hash
from ann_kernels.metric import Metric
from ann_kernels.search import Searcher
from ann_kernels.topk import exact_top_k, merge_top_k
from ann_kernels.vamana import VamanaParams


def main() -> None:
    """Use each kernel once, on arrays of the types that the product uses."""
    begun = time.perf_counter()
    vectors = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    params = VamanaParams(max_degree=8, search_list=16)
    for metric in Metric:
        ready = prepare(vectors, metric)
        graph = vamana.insert(vamana.build(ready[:200], metric, params), ready, metric, params)
        found = Searcher(graph, ready, metric).search(vectors[:2], 3, search_list=16)
        merge_top_k([found[:2], exact_top_k(ready[:2], ready, 3, metric)], 3)
    codebook = quantize.train_pq(vectors, 4, seed=0, iterations=1)
    codes = quantize.encode_pq(vectors, codebook)
    Searcher(graph, None, Metric.L2, pq=(codebook, codes)).search(vectors[:2], 3, search_list=16)
    kmeans.assign(vectors, vectors[:4])
    content_hash(vectors)
    print(f"kernels compiled in {time.perf_counter() - begun:.1f} s")  # noqa: T201


if __name__ == "__main__":
    main()
