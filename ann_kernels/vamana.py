"""Vamana graphs: build and greedy insert, in batches, so that the result does not depend on the number of threads.

A batch searches the graph as it was before the batch; then reverse edges are added, grouped by the node that gets
them. Both halves touch each node once, so threads share nothing. Source: DiskANN (2019), algorithm 3, in the batches of
ParlayANN (2024).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from ann_kernels.beam import FAST, SQUARED_L2, beam_search, squared_l2
from ann_kernels.errors import DimensionError, KernelError
from ann_kernels.metric import Metric
from ann_kernels.prune import robust_prune

Progress = Callable[[int, int], None]
"""Told (nodes done, nodes in all) after each batch."""
_LARGEST_BATCH = 0.02
_SMALLEST_BATCH = 64
_REPAIR_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class VamanaParams:
    """What a build costs and how good it is."""

    max_degree: int = 64
    """R: edges a node; memory and build time grow with it."""
    search_list: int = 100
    """L: how wide a build searches; build time grows with it, recall too."""
    alpha: float = 1.2
    """Over 1: keep longer edges, so that walks are shorter."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.max_degree <= 4_096 or self.search_list < 1 or not 1.0 <= self.alpha <= 4.0:
            raise KernelError(f"{self}: max_degree is 1 to 4096, search_list at least 1, alpha 1 to 4")


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A directed graph over N nodes; every node can be reached from the medoid."""

    neighbors: npt.NDArray[np.int32]
    """int32[N, R], padded with -1"""
    degrees: npt.NDArray[np.int32]
    """int32[N]"""
    medoid: int

    @property
    def count(self) -> int:
        return len(self.degrees)


def build(
    vectors: npt.NDArray[np.float32],
    metric: Metric,
    params: VamanaParams,
    *,
    threads: int = 1,
    progress: Progress | None = None,
) -> Graph:
    """A graph over prepared vectors f32[N, D]. The same bytes for any number of threads."""
    if not len(vectors):
        return Graph(np.empty((0, params.max_degree), np.int32), np.empty(0, np.int32), 0)
    space = _build_space(vectors, metric)
    neighbors = np.full((len(space), params.max_degree), -1, np.int32)
    graph = Graph(neighbors, np.zeros(len(space), np.int32), _medoid(space))
    order = np.random.default_rng(params.seed).permutation(len(space)).astype(np.int32)
    order = np.concatenate([[graph.medoid], order[order != graph.medoid]]).astype(np.int32)
    _insert_all(graph, space, order, 1, params, threads, progress)
    _reach_all(graph, space, params)
    return graph


def insert(
    graph: Graph,
    vectors: npt.NDArray[np.float32],
    metric: Metric,
    params: VamanaParams,
    *,
    threads: int = 1,
    progress: Progress | None = None,
) -> Graph:
    """A graph over N + M nodes: `vectors` f32[N + M, D] prepared, the last M of them new. `graph` is not changed."""
    before, count = graph.count, len(vectors)
    if count < before:
        raise DimensionError(f"{count} vectors cannot hold the {before} that the graph has and new ones")
    if not before:
        return build(vectors, metric, params, threads=threads, progress=progress)
    if graph.neighbors.shape[1] != params.max_degree:
        raise DimensionError(f"the graph has degree {graph.neighbors.shape[1]}, the parameters {params.max_degree}")
    space = _build_space(vectors, metric)
    neighbors = np.full((count, params.max_degree), -1, np.int32)
    neighbors[:before] = graph.neighbors
    degrees = np.zeros(count, np.int32)
    degrees[:before] = graph.degrees
    out = Graph(neighbors, degrees, graph.medoid)
    order = np.concatenate([np.arange(before), before + np.random.default_rng(params.seed).permutation(count - before)])
    _insert_all(out, space, order.astype(np.int32), before, params, threads, progress)
    _reach_all(out, space, params)
    return out


def _build_space(vectors: npt.NDArray[np.float32], metric: Metric) -> npt.NDArray[np.float32]:
    """Vectors whose squared L2 ranks as the metric does. Inner product gets one dimension more, which makes all norms
    equal (Bachrach et al., RecSys 2014): the walk itself then uses the plain inner product.
    """
    if metric is not Metric.INNER_PRODUCT:
        return vectors
    norms = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    extra = np.sqrt(np.maximum(norms.max() - norms, 0)).astype(np.float32)
    return np.ascontiguousarray(np.concatenate([vectors, extra[:, None]], axis=1))


def _medoid(vectors: npt.NDArray[np.float32]) -> int:
    mean = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    gap = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), 65_536):
        part = vectors[start : start + 65_536] - mean
        gap[start : start + len(part)] = np.einsum("ij,ij->i", part, part)
    return int(gap.argmin())


def _batches(start: int, count: int) -> Iterator[tuple[int, int]]:
    """Doubling prefixes, then steps of at most 2 %."""
    largest = max(_SMALLEST_BATCH, int(count * _LARGEST_BATCH))
    while start < count:
        end = min(count, start + min(start, largest))
        yield start, end
        start = end


def _insert_all(
    graph: Graph,
    space: npt.NDArray[np.float32],
    order: npt.NDArray[np.int32],
    first: int,
    params: VamanaParams,
    threads: int,
    progress: Progress | None,
) -> None:
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for start, end in _batches(first, len(order)):
            _insert_batch(graph, space, order[start:end], params, pool, threads)
            if progress:
                progress(end, len(order))


def _insert_batch(
    graph: Graph,
    space: npt.NDArray[np.float32],
    batch: npt.NDArray[np.int32],
    params: VamanaParams,
    pool: ThreadPoolExecutor,
    threads: int,
) -> None:
    alpha_squared = np.float32(params.alpha**2)
    neighbors, degrees = graph.neighbors, graph.degrees
    chosen = np.full((len(batch), params.max_degree), -1, np.int32)
    counts = np.zeros(len(batch), np.int32)

    def choose(low: int, high: int) -> None:
        nodes, out, sizes = batch[low:high], chosen[low:high], counts[low:high]
        _choose(neighbors, degrees, graph.medoid, space, nodes, params.search_list, alpha_squared, out, sizes)

    _each(pool, threads, len(batch), choose)
    neighbors[batch] = chosen
    degrees[batch] = counts
    targets, sources, heads = _reverse_edges(batch, chosen, counts)

    def add_reverse(low: int, high: int) -> None:
        _add_reverse(neighbors, degrees, space, targets, sources, heads[low : high + 1], alpha_squared)

    _each(pool, threads, len(heads) - 1, add_reverse)


def _each(pool: ThreadPoolExecutor, threads: int, count: int, work: Callable[[int, int], None]) -> None:
    """Run `work(low, high)` over pieces of range(count)."""
    pieces = max(1, min(count, 4 * threads if threads > 1 else 1))
    bounds = np.linspace(0, count, pieces + 1).astype(int)
    list(pool.map(work, bounds[:-1], bounds[1:]))


def _reverse_edges(
    batch: npt.NDArray[np.int32], chosen: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """(targets, sources) of the new edges turned round, by target then source, and where each target starts."""
    used = np.arange(chosen.shape[1])[None, :] < counts[:, None]
    targets = chosen[used]
    sources = np.repeat(batch, counts)
    order = np.lexsort((sources, targets))
    targets, sources = targets[order], sources[order]
    starts = np.flatnonzero(np.concatenate([[True], targets[1:] != targets[:-1]])) if len(targets) else np.empty(0, int)
    return targets, sources, np.concatenate([starts, [len(targets)]]).astype(np.int64)


@njit(nogil=True, cache=True, fastmath=FAST)
def _choose(neighbors, degrees, medoid, space, batch, width, alpha_squared, chosen, counts):  # type: ignore[no-untyped-def]
    """Out-edges of each node of a batch: what its search expanded, pruned."""
    limit = chosen.shape[1]
    seen = np.zeros(neighbors.shape[0], np.uint32)
    pool_ids = np.empty(width, np.int32)
    pool_distances = np.empty(width, np.float32)
    expanded = np.empty(width, np.bool_)
    path_ids = np.empty(width * 4, np.int32)
    path_distances = np.empty(width * 4, np.float32)
    no_codes = np.empty((0, 0), np.uint8)
    no_table = np.empty((0, 0), np.float32)
    for i in range(batch.size):
        _, walked, _ = beam_search(
            SQUARED_L2,
            space,
            space[batch[i]],
            no_codes,
            no_table,
            neighbors,
            degrees,
            medoid,
            seen,
            np.uint32(i + 1),
            pool_ids,
            pool_distances,
            expanded,
            path_ids,
            path_distances,
        )
        counts[i] = robust_prune(space, batch[i], path_ids, path_distances, walked, alpha_squared, limit, chosen[i])


@njit(nogil=True, cache=True, fastmath=FAST)
def _add_reverse(neighbors, degrees, space, targets, sources, heads, alpha_squared):  # type: ignore[no-untyped-def]
    """Give each target its new in-edges turned round; prune where they do not fit."""
    limit = neighbors.shape[1]
    out = np.empty(limit, np.int32)
    for head in range(heads.size - 1):
        target = targets[heads[head]]
        fresh = heads[head + 1] - heads[head]
        degree = degrees[target]
        count = degree + fresh
        if count <= limit:
            for i in range(fresh):
                neighbors[target, degree + i] = sources[heads[head] + i]
            degrees[target] = count
            continue
        ids = np.empty(count, np.int32)
        ids[:degree] = neighbors[target, :degree]
        ids[degree:] = sources[heads[head] : heads[head + 1]]
        distances = np.empty(count, np.float32)
        for i in range(count):
            distances[i] = squared_l2(space, ids[i], space[target])
        kept = robust_prune(space, target, ids, distances, count, alpha_squared, limit, out)
        for i in range(limit):
            neighbors[target, i] = out[i] if i < kept else -1
        degrees[target] = kept


def _reach_all(graph: Graph, space: npt.NDArray[np.float32], params: VamanaParams) -> None:
    """Hang nodes that no walk from the medoid reaches onto near ones with room (or in place of a far edge)."""
    for round_number in range(_REPAIR_ROUNDS):
        reached = np.zeros(graph.count, np.bool_)
        _mark_reached(graph.neighbors, graph.degrees, graph.medoid, reached)
        lost = np.flatnonzero(~reached).astype(np.int32)
        if not len(lost):
            return
        width = params.search_list << round_number
        _hang(graph.neighbors, graph.degrees, graph.medoid, space, lost, min(width, graph.count), reached)


@njit(nogil=True, cache=True, fastmath=FAST)
def _mark_reached(neighbors, degrees, medoid, reached):  # type: ignore[no-untyped-def]
    stack = np.empty(reached.size, np.int32)
    stack[0] = medoid
    reached[medoid] = True
    height = 1
    while height:
        height -= 1
        node = stack[height]
        for slot in range(degrees[node]):
            other = neighbors[node, slot]
            if not reached[other]:
                reached[other] = True
                stack[height] = other
                height += 1


@njit(nogil=True, cache=True, fastmath=FAST)
def _hang(neighbors, degrees, medoid, space, lost, width, reached):  # type: ignore[no-untyped-def]
    limit = neighbors.shape[1]
    seen = np.zeros(neighbors.shape[0], np.uint32)
    pool_ids = np.empty(width, np.int32)
    pool_distances = np.empty(width, np.float32)
    expanded = np.empty(width, np.bool_)
    nothing = np.empty(0, np.int32)
    no_distances = np.empty(0, np.float32)
    no_codes = np.empty((0, 0), np.uint8)
    no_table = np.empty((0, 0), np.float32)
    for i in range(lost.size):
        node = lost[i]
        size, _, _ = beam_search(
            SQUARED_L2,
            space,
            space[node],
            no_codes,
            no_table,
            neighbors,
            degrees,
            medoid,
            seen,
            np.uint32(i + 1),
            pool_ids,
            pool_distances,
            expanded,
            nothing,
            no_distances,
        )
        host = pool_ids[0]
        for place in range(size):
            if pool_ids[place] == node:
                host = node
                break
            if degrees[pool_ids[place]] < limit:
                host = pool_ids[place]
                break
        if host == node:
            continue  # a node that was hung before leads here
        if degrees[host] < limit:
            neighbors[host, degrees[host]] = node
            degrees[host] += 1
        else:
            neighbors[host, limit - 1] = node
        reached[node] = True
