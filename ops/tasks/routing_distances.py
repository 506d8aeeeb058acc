"""Distances from some queries to their nearest rows in one shard: all shards' together tell where neighbours lie."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.recall.curves import MEASURED_K, OVERSAMPLE, WIDE_K
from icepuffin.ops.tasks.recall_gate import exact_of, is_lean, searcher_for
from icepuffin.puffin.blobs.shard_blob import Shard

_WIDE_SHARE = 2
"""Queries for 10 rows per query for 100 rows"""
_WIDTHS = {MEASURED_K: 40, WIDE_K: 160}
"""Widths of the beam, by k: a row that is missed tells nothing about the shards that the others lie in"""


@dataclass(frozen=True, slots=True, eq=False)
class RoutingDistances:
    """Distances from queries to their nearest rows in one shard, ascending. Queries may be rows of it."""

    nearest: npt.NDArray[np.float64]
    """f64[Q, 11], inf where there are fewer rows"""
    wide_nearest: npt.NDArray[np.float64]
    """f64[Q / 2, 101], of the first queries"""


def measure_distances(
    shard: Shard,
    vectors: npt.NDArray[np.float32],
    is_live: npt.NDArray[np.bool_],
    queries: npt.NDArray[np.float32],
    *,
    threads: int,
    searcher: Searcher | None = None,
) -> RoutingDistances:
    """Search the graph. vectors: f32[N, D], prepared, of all nodes. is_live: bool[N]. queries: f32[Q, D], prepared.

    searcher: as of `measure_recall`. Memory: codes of the vectors, as the recall gate takes them. Deterministic.
    """
    searcher = searcher_for(shard, vectors, is_live, searcher)
    metric = Metric.of_code(shard.metric)
    oversample = OVERSAMPLE if is_lean(shard) or shard.codes is not None else 1

    def distances(queries: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.float64]:
        count = oversample * (k + 1)
        answers, _, _ = searcher.search(queries, count, search_list=max(_WIDTHS[k], count), threads=threads)
        return np.sort(exact_of(queries, vectors, answers, metric), axis=1)[:, : k + 1]

    wide_queries = queries[: -(-len(queries) // _WIDE_SHARE)]
    return RoutingDistances(distances(queries, MEASURED_K), distances(wide_queries, WIDE_K))
