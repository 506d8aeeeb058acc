"""The recall gate of a shard: what share of the true nearest rows a search of the new graph finds, before it is
published.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ann_kernels.metric import Metric
from ann_kernels.search import Searcher
from ann_kernels.topk import exact_top_k
from ann_kernels.vamana import Graph
from puffin.blobs.shard import Shard

GATE_QUERIES = 64
GATE_K = 10
OVERSAMPLE = 3
"""Candidates a result row that a lean shard hands over for exact ranking."""


def measure_recall(
    shard: Shard, vectors: npt.NDArray[np.float32], live: npt.NDArray[np.bool_], *, seed: int, threads: int
) -> float:
    """recall@10 of this shard for some of its own live rows, each asked for its neighbours but itself.

    Equal distances count as hits. 1.0 where there is nothing to find. A lean shard is ranked again by exact distance,
    as a search does it.
    """
    nodes = np.flatnonzero(live)
    if len(nodes) < 2:
        return 1.0
    rng = np.random.default_rng(seed)
    asked = np.sort(rng.choice(nodes, min(GATE_QUERIES, len(nodes)), replace=False))
    metric = Metric(shard.metric)
    k = min(GATE_K + 1, len(nodes))
    exact_ids, exact = exact_top_k(vectors[asked], vectors, k, metric, live=live)
    graph = Graph(shard.neighbors, shard.degrees, shard.medoid)
    lean = shard.vectors is None and shard.pq_codebook is not None and shard.pq_codes is not None
    pq: Any = (shard.pq_codebook, shard.pq_codes) if lean else None
    searcher = Searcher(graph, None if lean else vectors, metric, live=live, pq=pq)
    wide = k * OVERSAMPLE if lean else k
    found, _, _ = searcher.search(vectors[asked], wide, search_list=shard.search_list, threads=threads)
    return _mean_recall(asked, vectors, found, exact_ids, exact, metric)


def _mean_recall(
    asked: npt.NDArray[np.intp],
    vectors: npt.NDArray[np.float32],
    found: npt.NDArray[np.int64],
    exact_ids: npt.NDArray[np.int64],
    exact: npt.NDArray[np.float32],
    metric: Metric,
) -> float:
    hits: list[float] = []
    for row, node in enumerate(asked):
        wanted = exact_ids[row] != node
        limit = exact[row][wanted][:GATE_K].max()
        mine = found[row][(found[row] >= 0) & (found[row] != node)]
        _, distances = exact_top_k(vectors[node : node + 1], vectors[mine], max(1, len(mine)), metric)
        count = min(GATE_K, int(wanted.sum()))
        hits.append(min(count, int((distances[0] <= limit * (1 + 1e-6) + 1e-7).sum())) / count)
    return float(np.mean(hits))
