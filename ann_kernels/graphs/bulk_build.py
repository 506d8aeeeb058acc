"""Bulk builder: a graph of many vectors without searching it. Source: PiPNN (arXiv 2602.21247), with changes.

1. Rows that are equal are put aside; one of each group stands for all (`duplicates`).
2. Random balls are carved into leaves that overlap (`carving`), several times over.
3. In each leaf, a vector's k nearest become candidates, both ways (`leaf_neighbors`); each vector keeps its R nearest
   (`reservoir`).
4. A random sample gets a graph of its own by greedy insert: its long edges connect regions that share no leaf. Some
   nodes of each cluster that no candidate leads out of are in the sample.
5. One robust prune of each node's candidates. Where few edges lead to a node, the reverses of its own edges are added.
6. Equal rows are marked as copies of their representatives; other nodes that cannot be reached are attached to near
   ones.

Every step gives the same result for any number of threads.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import F32, I8, I32, read_only
from icepuffin.ann_kernels.blas_threads import one_blas_thread
from icepuffin.ann_kernels.compilation import fast_kernel, kernel
from icepuffin.ann_kernels.distances.distance_computers import (
    CodeSpace,
    FloatSpace,
    Space,
    distance,
    new_code_scratch,
    node_computer,
    prefetch_node,
)
from icepuffin.ann_kernels.graphs.carving import Carving, carve
from icepuffin.ann_kernels.graphs.duplicates import find_duplicates, mark_copies
from icepuffin.ann_kernels.graphs.graph import Adjacency, Graph, VamanaParams, empty_graph
from icepuffin.ann_kernels.graphs.greedy_insert import Workers, add_reverse_edges, insert_all
from icepuffin.ann_kernels.graphs.leaf_neighbors import key_weights, nearest_columns, new_nearest
from icepuffin.ann_kernels.graphs.reachability import attach_unreachable
from icepuffin.ann_kernels.graphs.reservoir import CandidatePairs, Reservoirs, offer_pairs
from icepuffin.ann_kernels.graphs.robust_prune import PruneCandidates, robust_prune


@dataclass(frozen=True, slots=True)
class BulkParams:
    """Parameters of a bulk build: what it costs and how good it is."""

    runs: int = 2
    """Carvings: time grows with them, recall too"""
    carving: Carving = field(default_factory=Carving)
    nearest: int = 6
    """k: neighbours that a vector takes from each leaf"""
    sample: float = 0.02
    """Share of the vectors that get long edges"""
    fewest_sampled: int = 1_000
    """Smallest number of vectors that get long edges, in a graph that has so many"""
    most_sampled: int = 4_000
    """Largest number of vectors that get long edges, of 500,000 or fewer"""
    sample_of_many: float = 0.008
    """Smallest share of the vectors that get long edges: so that more vectors have no fewer per region"""


DEFAULTS = BulkParams()
LARGER_LEAVES = BulkParams(carving=Carving(leaf=1_000, largest=1_700))
"""Parameters for long vectors, of which a build takes a quarter longer by them, and recall rises by .002"""
LONG = 1_280
"""Dimensions from which a vector counts as long"""
_ROWS_PER_BATCH = 131_072
_FEW_INCOMING = 8
_SAMPLED_PER_COMPONENT = 4
"""Nodes with long edges in each connected component: no candidate leads out of it"""
_NODES_PER_PRUNE_TASK = 2_048


@dataclass(frozen=True, slots=True)
class _Build:
    """One build under way."""

    graph: Graph
    space: Space
    representatives: I32
    """Nodes int32[n] that take part: all but the duplicates of others"""
    params: VamanaParams
    bulk: BulkParams
    workers: Workers


class _LongEdges(NamedTuple):
    """Edges of the sampled nodes among themselves."""

    rows: I32
    """Row in `neighbors` of each node, int32[N]; -1 for nodes that are not sampled"""
    neighbors: I32
    """int32[n, R'], -1 after the last"""


def build(
    space: Space,
    vectors: F32,
    medoid: int,
    params: VamanaParams,
    *,
    bulk: BulkParams | None = None,
    threads: int = 1,
) -> Graph:
    """A graph over a space of `vectors` f32[N, D]; default parameters by their dimensions."""
    threads = max(1, threads)
    bulk = bulk or (LARGER_LEAVES if vectors.shape[1] >= LONG else DEFAULTS)
    copies = find_duplicates(vectors, first=medoid)
    graph = empty_graph(len(vectors), params.max_degree, medoid)
    with one_blas_thread, ThreadPoolExecutor(threads) as executor:
        partial_build = _Build(graph, space, copies.others(len(vectors)), params, bulk, Workers(executor, threads))
        _collect_candidates(partial_build)
        _prune(partial_build, _long_edges(partial_build))
        _reverse_edges_of_rare_nodes(partial_build)
    mark_copies(graph, copies)
    attach_unreachable(graph, space, params, copies)
    return graph


# ----------------------------------------------------------------------------------------------------- candidates


def _collect_candidates(build: _Build) -> None:
    """Fill each node's list with the nearest nodes that share a leaf with it.

    Distances are kept in 16 bits, and only while this runs.
    """
    graph, executor, threads = build.graph, build.workers.executor, build.workers.threads
    weights = np.full(graph.neighbors.shape, np.iinfo(np.uint16).max, np.uint16)
    reservoirs = Reservoirs(graph.neighbors, weights, graph.degrees, np.zeros(graph.count, np.int16))
    bounds = np.linspace(0, graph.count, threads + 1).astype(int)

    def offer_leaves(leaves: list[I32]) -> None:
        pairs_by_leaf = list(executor.map(lambda leaf: _leaf_pairs(build.space, leaf, build.bulk.nearest), leaves))
        neighbors, neighbor_weights = (np.concatenate(arrays) for arrays in zip(*pairs_by_leaf, strict=True))
        pairs = CandidatePairs(np.concatenate(leaves), neighbors, neighbor_weights)

        def offer(thread: int) -> None:
            offer_pairs(pairs, bounds[thread], bounds[thread + 1], reservoirs)

        list(executor.map(offer, range(threads)))

    for run in range(build.bulk.runs):
        seed = (build.params.seed, run)
        for leaves in _batches(carve(build.space, build.representatives, build.bulk.carving, seed, executor)):
            offer_leaves(leaves)
            del leaves  # parts of one large array, which would stay in memory beside the next carving's


def _batches(leaves: Iterator[I32]) -> Iterator[list[I32]]:
    """Leaves in order, as many at a time as bound the memory of their pairs."""
    batch: list[I32] = []
    rows = 0
    for leaf in leaves:
        batch.append(leaf)
        rows += len(leaf)
        if rows >= _ROWS_PER_BATCH:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch


def _leaf_pairs(space: Space, leaf: I32, k: int) -> tuple[I32, npt.NDArray[np.uint16]]:
    """(neighbours int32[n, k] as node ids, -1 where a leaf is too small; their weights u16[n, k])."""
    nearest = new_nearest(len(leaf), k)
    nearest_columns(space, leaf, leaf, nearest, same=True)
    neighbors = np.where(nearest.indices >= 0, leaf[nearest.indices], np.int32(-1))
    return neighbors, key_weights(space, nearest.keys)


# ----------------------------------------------------------------------------------------------------- long edges


def _long_edges(build: _Build) -> _LongEdges:
    """A graph over a sample of the representatives, by greedy insert."""
    graph, params = build.graph, build.params
    rng = np.random.default_rng((params.seed, build.bulk.runs))
    sample = _sample(build, rng)
    degree = max(1, params.max_degree // 2)
    medoid = int(np.searchsorted(sample, graph.medoid))
    sampled = empty_graph(len(sample), degree, medoid)
    order = np.concatenate([[medoid], np.delete(np.arange(len(sample)), medoid)]).astype(np.int32)
    order[1:] = rng.permutation(order[1:])
    insert_params = replace(params, max_degree=degree)
    insert_all(sampled, _subspace(build.space, sample), order, 1, insert_params, threads=build.workers.threads)
    rows = np.full(graph.count, -1, np.int32)
    rows[sample] = np.arange(len(sample), dtype=np.int32)
    return _LongEdges(rows, np.where(sampled.neighbors >= 0, sample[sampled.neighbors], np.int32(-1)))


def _sample(build: _Build, rng: np.random.Generator) -> I32:
    """Nodes int32[n], ascending: evenly drawn ones, some of each connected component, the medoid."""
    graph, bulk, representatives = build.graph, build.bulk, build.representatives
    components = np.arange(graph.count, dtype=np.int32)
    _join_components(graph.adjacency, components)
    requested = max(bulk.fewest_sampled, int(bulk.sample * len(representatives)))
    most = max(bulk.most_sampled, int(bulk.sample_of_many * len(representatives)))
    size = min(len(representatives), most, requested)
    shuffled = rng.permutation(representatives)
    of_components = shuffled[_first_of_each(components[shuffled], _SAMPLED_PER_COMPONENT)]
    strata = (np.arange(size) + rng.random(size)) * len(representatives) // size  # near rows have near ids
    drawn = representatives[strata.astype(np.intp)]
    return np.unique(np.concatenate([drawn, of_components, [graph.medoid]])).astype(np.int32)


@kernel
def _join_components(adjacency: Adjacency, roots: I32) -> None:
    """Give nodes that edges connect one root: roots int32[N], at first each node its own."""
    neighbors, degrees = adjacency.neighbors, adjacency.degrees
    for node in range(degrees.size):
        for slot in range(degrees[node]):
            one, other = node, neighbors[node, slot]
            while roots[one] != one:
                roots[one] = roots[roots[one]]
                one = roots[one]
            while roots[other] != other:
                roots[other] = roots[roots[other]]
                other = roots[other]
            roots[max(one, other)] = min(one, other)
    for node in range(degrees.size):
        roots[node] = roots[roots[node]]  # ascending, and a root is never after its nodes: one step is enough


def _first_of_each(labels: I32, count: int) -> npt.NDArray[np.intp]:
    """Indices of the first `count` of each label."""
    order = np.argsort(labels, kind="stable")
    ranked = labels[order]
    indices = np.arange(len(ranked))
    starts = np.concatenate([[True], ranked[1:] != ranked[:-1]])
    return order[indices - np.maximum.accumulate(np.where(starts, indices, 0)) < count]


def _subspace(space: Space, nodes: I32) -> Space:
    if isinstance(space, CodeSpace):
        codes = space.codes.reshape(len(space.norms), -1)[nodes]
        return CodeSpace(codes.reshape(-1), space.norms[nodes], space.sums[nodes])
    return FloatSpace(read_only(space.vectors[nodes]))


# ---------------------------------------------------------------------------------------------------------- prune


def _prune(build: _Build, long_edges: _LongEdges) -> None:
    graph, space = build.graph, build.space
    alpha_squared = np.float32(build.params.alpha**2)

    def prune(low: int) -> None:
        high = min(low + _NODES_PER_PRUNE_TASK, graph.count)
        _prune_nodes(space, low, high, graph.adjacency, long_edges, alpha_squared, new_code_scratch(space, 2))

    list(build.workers.executor.map(prune, range(0, graph.count, _NODES_PER_PRUNE_TASK)))


@fast_kernel
def _prune_nodes(
    space: Space,
    low: int,
    high: int,
    adjacency: Adjacency,
    long_edges: _LongEdges,
    alpha_squared: np.float32,
    scratch: I8,
) -> None:
    """Robust prune of the candidates in each node's list and of its long edges, for the nodes in [low, high)."""
    neighbors, degrees = adjacency.neighbors, adjacency.degrees
    rows, long_neighbors = long_edges.rows, long_edges.neighbors
    limit = neighbors.shape[1]
    ids = np.empty(limit + long_neighbors.shape[1], np.int32)
    distances = np.empty(ids.size, np.float32)
    own_scratch, prune_scratch = scratch[0], scratch[1]
    for node in range(low, high):
        computer = node_computer(space, np.int32(node), own_scratch)
        count = degrees[node]
        for slot in range(count):
            ids[slot] = neighbors[node, slot]
        row = rows[node]
        if row >= 0:
            for slot in range(long_neighbors.shape[1]):
                if long_neighbors[row, slot] >= 0:
                    ids[count] = long_neighbors[row, slot]
                    count += 1
        for index in range(count):
            prefetch_node(computer, ids[index])
        for index in range(count):
            distances[index] = distance(computer, ids[index])
        candidates = PruneCandidates(ids, distances)
        links = neighbors[node]
        kept = robust_prune(space, np.int32(node), candidates, np.int64(count), alpha_squared, links, prune_scratch)
        for slot in range(kept, limit):
            neighbors[node, slot] = -1
        degrees[node] = kept


def _reverse_edges_of_rare_nodes(build: _Build) -> None:
    """Add the reverses of the edges of nodes that few lists keep: in data with hubs, lists are full of nearer nodes."""
    graph = build.graph
    incoming = np.zeros(graph.count, np.int32)
    _count_incoming(graph.adjacency, incoming)
    few = min(_FEW_INCOMING, build.params.max_degree // 2)
    rare = np.flatnonzero((incoming < few) & (graph.degrees > 0)).astype(np.int32)
    edges = Adjacency(graph.neighbors[rare], graph.degrees[rare])
    for start in range(0, len(rare), _ROWS_PER_BATCH):
        part = slice(start, start + _ROWS_PER_BATCH)
        part_edges = Adjacency(edges.neighbors[part], edges.degrees[part])
        add_reverse_edges(graph, build.space, rare[part], part_edges, build.params.alpha, build.workers)


@kernel
def _count_incoming(adjacency: Adjacency, incoming: I32) -> None:
    neighbors, degrees = adjacency.neighbors, adjacency.degrees
    for node in range(degrees.size):
        for slot in range(degrees[node]):
            incoming[neighbors[node, slot]] += 1
