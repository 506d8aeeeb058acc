"""Building a graph in bulk, and inserting into one greedily.

Both give graphs of one form, and the same bytes for any number of threads. Distances are those of SQ8 codes where the
codes preserve the nearest neighbours (`neighbor_check`), else those of the vectors themselves.
"""

import numpy as np

from icepuffin.ann_kernels.allocation import Allocate, in_memory
from icepuffin.ann_kernels.arrays import F32, read_only
from icepuffin.ann_kernels.codes import scalar_quantization
from icepuffin.ann_kernels.distances.distance_computers import CodeSpace, FloatSpace, Space
from icepuffin.ann_kernels.errors import DimensionError
from icepuffin.ann_kernels.graphs import bulk_build
from icepuffin.ann_kernels.graphs.duplicates import copies_of, find_new_duplicates, mark_copies
from icepuffin.ann_kernels.graphs.graph import Graph, VamanaParams, empty_graph, medoid_of
from icepuffin.ann_kernels.graphs.greedy_insert import insert_all
from icepuffin.ann_kernels.graphs.neighbor_check import preserves_neighbors
from icepuffin.ann_kernels.graphs.reachability import attach_unreachable
from icepuffin.ann_kernels.metric import Metric

__all__ = ["Graph", "VamanaParams", "build", "insert"]


def build(
    vectors: F32,
    metric: Metric,
    params: VamanaParams,
    *,
    threads: int = 1,
    coded: bool = True,
    allocate: Allocate = in_memory,
) -> Graph:
    """Build a graph over vectors in bulk.

    Memory, beside vectors and graph: N * (D + 2 R) bytes where codes serve. Where they do not, N * 2 R bytes, and for
    the inner product a copy of the vectors.

    Parameters
    ----------
    vectors : f32[N, D]
        Prepared for the metric (`distance.prepare`).
    metric : Metric
    params : VamanaParams
    threads : int
        Threads to use; the graph does not depend on them.
    coded : bool
        False measures by the vectors even where their codes would serve.
    allocate : Allocate
        Gives the array of that copy.
    """
    if not len(vectors):
        return empty_graph(0, params.max_degree, 0)
    space = build_space(vectors, metric, threads, coded=coded, allocate=allocate)
    return bulk_build.build(space, vectors, medoid_of(vectors), params, threads=threads)


def insert(
    graph: Graph,
    vectors: F32,
    metric: Metric,
    params: VamanaParams,
    *,
    threads: int = 1,
    allocate: Allocate = in_memory,
) -> Graph:
    """Insert new nodes into a copy of a graph.

    Parameters
    ----------
    graph : Graph
        A graph over the first N vectors; it is not changed.
    vectors : f32[N + M, D]
        Prepared for the metric; the last M rows are new.
    metric : Metric
    params : VamanaParams
    threads : int
        Threads to use; the graph does not depend on them.
    allocate : Allocate
        As for `build`.

    Returns
    -------
    Graph
        A graph over N + M nodes.

    Raises
    ------
    DimensionError
        There are fewer vectors than nodes, or the graph's degree is larger than `params.max_degree`.
    """
    before, count = graph.count, len(vectors)
    if count < before:
        raise DimensionError(f"{count} vectors cannot hold the {before} that the graph has and new ones")
    if not before:
        return build(vectors, metric, params, threads=threads, allocate=allocate)
    width = graph.neighbors.shape[1]
    if width > params.max_degree:
        raise DimensionError(f"the graph has degree {width}, the parameters {params.max_degree}")
    space = build_space(vectors, metric, threads, allocate=allocate)
    out = empty_graph(count, params.max_degree, graph.medoid)
    out.neighbors[:before, :width] = graph.neighbors
    out.degrees[:before] = graph.degrees
    old_copies = copies_of(out.adjacency, graph.medoid)
    copies = old_copies.joined(find_new_duplicates(vectors, before, old_copies))
    order = copies.others(count)
    first = before - len(old_copies.nodes)
    order[first:] = np.random.default_rng(params.seed).permutation(order[first:])
    insert_all(out, space, order, first, params, threads=threads)
    mark_copies(out, copies)
    attach_unreachable(out, space, params, copies)
    return out


def is_coded(vectors: F32, metric: Metric, *, threads: int = 1) -> bool:
    """Whether a build of prepared vectors f32[N, D] measures by their codes."""
    return isinstance(build_space(vectors, metric, threads), CodeSpace)


def build_space(
    vectors: F32, metric: Metric, threads: int, *, coded: bool = True, allocate: Allocate = in_memory
) -> Space:
    """A space whose squared L2 ranks as the metric does.

    Inner product gets one dimension more, which makes all norms equal (Bachrach et al., RecSys 2014); searches then use
    the plain inner product.
    """
    extra = None
    if metric is Metric.INNER_PRODUCT:
        norms = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
        extra = np.sqrt(np.maximum(norms.max() - norms, 0)).astype(np.float32)
    codes = scalar_quantization.encode(vectors, extra=extra, threads=threads) if coded else None
    if codes is not None and preserves_neighbors(codes, vectors, Metric.L2, extra=extra, threads=threads):
        return codes.space
    if extra is None:
        return FloatSpace(read_only(vectors))
    lifted = allocate((len(vectors), vectors.shape[1] + 1), np.float32)
    return FloatSpace(read_only(np.concatenate([vectors, extra[:, None]], axis=1, out=lifted)))
