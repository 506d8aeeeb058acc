"""Shards for tests of what searches them."""

import numpy as np

from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.metric import Metric
from icepuffin.puffin.blobs.shard_blob import Shard


def searchable_shard(
    metric: Metric,
    *,
    rows: int,
    scale: float = 1.0,
    offset: float = 0.0,
    search_list: int | None = None,
    constant: float | None = None,
    copies: int = 1,
) -> tuple[Shard, np.ndarray]:
    """A shard whose search list reaches every node, or has another length; `constant`: what all have in a dimension;
    `copies`: rows of each vector.
    """
    values = offset + scale * np.random.default_rng(0).standard_normal((rows, 8))
    if constant is not None:
        values[:, 0] = constant
    vectors = prepare(values[np.arange(rows) % (rows // copies)], metric)
    search_list = search_list or rows
    params = vamana.VamanaParams(max_degree=32, search_list=search_list, alpha=1.2)
    graph = vamana.build(vectors, metric, params)
    zeros = np.zeros(rows, np.uint32)
    shard = Shard(
        metric=metric.code, dims=8, max_degree=32, search_list=search_list, alpha=1.2, medoid=graph.medoid,
        neighbors=graph.neighbors, degrees=graph.degrees, file_slots=zeros, row_positions=np.arange(rows),
        content_hashes=zeros.astype(np.uint64), vectors=vectors,
    )  # fmt: skip
    return shard, vectors
