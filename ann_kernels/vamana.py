"""Building a graph, in bulk, and inserting into one, greedily. Both give graphs of one form, and the same bytes for any
number of threads.

Distances are those of SQ8 codes where they rank as the vectors do (`codes.faithful`), else of the vectors themselves.
"""

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels import bulk_build, scalar_quantization
from icepuffin.ann_kernels.distance_computers import CodeSpace, FloatSpace, frozen
from icepuffin.ann_kernels.errors import DimensionError
from icepuffin.ann_kernels.graph import Graph, Space, VamanaParams, medoid_of, reach_all
from icepuffin.ann_kernels.greedy_insert import insert_all
from icepuffin.ann_kernels.metric import Metric

__all__ = ["Graph", "VamanaParams", "build", "insert"]


def build(
    vectors: npt.NDArray[np.float32],
    metric: Metric,
    params: VamanaParams,
    *,
    threads: int = 1,
    coded: bool = True,
) -> Graph:
    """A graph over prepared vectors f32[N, D]; by their codes, where these are faithful, unless `coded` is false.

    Takes, beside vectors and graph, N x (D + 2 R) bytes where codes serve; N x 2 R, and for the inner product a copy of
    the vectors, where they do not.
    """
    if not len(vectors):
        return Graph(np.empty((0, params.max_degree), np.int32), np.empty(0, np.int32), 0)
    space = build_space(vectors, metric, threads, coded=coded)
    return bulk_build.build(space, vectors, medoid_of(vectors), params, threads=threads)


def insert(
    graph: Graph,
    vectors: npt.NDArray[np.float32],
    metric: Metric,
    params: VamanaParams,
    *,
    threads: int = 1,
) -> Graph:
    """A graph over N + M nodes: `vectors` f32[N + M, D] prepared, the last M of them new. `graph` is not changed."""
    before, count = graph.count, len(vectors)
    if count < before:
        raise DimensionError(f"{count} vectors cannot hold the {before} that the graph has and new ones")
    if not before:
        return build(vectors, metric, params, threads=threads)
    width = graph.neighbors.shape[1]
    if width > params.max_degree:
        raise DimensionError(f"the graph has degree {width}, the parameters {params.max_degree}")
    space = build_space(vectors, metric, threads)
    neighbors = np.full((count, params.max_degree), -1, np.int32)
    neighbors[:before, :width] = graph.neighbors
    degrees = np.zeros(count, np.int32)
    degrees[:before] = graph.degrees
    out = Graph(neighbors, degrees, graph.medoid)
    order = np.concatenate([np.arange(before), before + np.random.default_rng(params.seed).permutation(count - before)])
    insert_all(out, space, order.astype(np.int32), before, params, threads=threads)
    reach_all(out, space, params)
    return out


def is_coded(vectors: npt.NDArray[np.float32], metric: Metric, *, threads: int = 1) -> bool:
    """Whether a build of prepared vectors f32[N, D] goes by their codes."""
    return isinstance(build_space(vectors, metric, threads), CodeSpace)


def build_space(vectors: npt.NDArray[np.float32], metric: Metric, threads: int, *, coded: bool = True) -> Space:
    """A space whose squared L2 ranks as the metric does. Inner product gets one dimension more, which makes all norms
    equal (Bachrach et al., RecSys 2014): the walk itself then uses the plain inner product.
    """
    extra = None
    if metric is Metric.INNER_PRODUCT:
        norms = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
        extra = np.sqrt(np.maximum(norms.max() - norms, 0)).astype(np.float32)
    made = scalar_quantization.encode(vectors, extra=extra, threads=threads) if coded else None
    if made is not None and scalar_quantization.faithful(made, vectors, Metric.L2, extra=extra):
        return made.space
    if extra is None:
        return FloatSpace(frozen(vectors))
    return FloatSpace(frozen(np.concatenate([vectors, extra[:, None]], axis=1)))
