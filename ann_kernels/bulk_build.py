"""Bulk builder: a graph of many vectors without searching it. Source: PiPNN (arXiv 2602.21247), with changes.

1. Rows that are equal are put aside; one of each group stands for all.
2. Random balls are carved into leaves that overlap (`carve`), several times over.
3. In each leaf, a vector's k nearest become candidates, both ways (`leaves`); each keeps its R nearest (`reservoir`).
4. A random sample gets a graph of its own by greedy insert: its long edges lead between regions that share no leaf.
   Some of each cluster that no candidate leads out of are in it.
5. One robust prune of each node's candidates; where few edges lead to a node, its own are turned round as well.
6. Equal rows hang on theirs as a tree; what cannot be reached is hung up.

Every step gives the same for any number of threads.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels import duplicates
from icepuffin.ann_kernels.blas_threads import one_blas_thread
from icepuffin.ann_kernels.carving import Carving, carve
from icepuffin.ann_kernels.distance_computers import FAST, CodeSpace, FloatSpace, distance, fetch, focus, frozen
from icepuffin.ann_kernels.graph import Graph, Space, VamanaParams, reach_all, scratch_of
from icepuffin.ann_kernels.greedy_insert import insert_all, reverse
from icepuffin.ann_kernels.leaf_neighbors import key_weights, nearest
from icepuffin.ann_kernels.reservoir import offer_pairs
from icepuffin.ann_kernels.robust_prune import robust_prune

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BulkParams:
    """What a bulk build costs and how good it is."""

    runs: int = 2
    """Carvings: time grows with it, recall too"""
    carving: Carving = field(default_factory=Carving)
    nearest: int = 6
    """k: neighbours that a vector takes from each leaf"""
    sample: float = 0.02
    """Share of the vectors that get long edges, between fewest_sampled and most_sampled of them"""
    fewest_sampled: int = 1_000
    most_sampled: int = 4_000


DEFAULTS = BulkParams()
_ROWS_A_BATCH = 131_072
_FEW_INCOMING = 8
_LANDINGS = 4
"""Nodes with long edges that a cluster gets which no candidate leads out of"""
_PRUNED_A_PIECE = 2_048


def build(
    space: Space,
    vectors: npt.NDArray[np.float32],
    medoid: int,
    params: VamanaParams,
    *,
    bulk: BulkParams = DEFAULTS,
    threads: int = 1,
) -> Graph:
    """A graph over a space of `vectors` f32[N, D]."""
    threads = max(1, threads)
    groups = duplicates.find(vectors, first=medoid)
    alone = groups.representatives
    graph = Graph(np.full((len(vectors), params.max_degree), -1, np.int32), np.zeros(len(vectors), np.int32), medoid)
    with one_blas_thread, ThreadPoolExecutor(threads) as pool:
        _collect(graph, space, alone, bulk, params.seed, threads, pool)
        sample, long_edges = _long_edges(graph, space, alone, medoid, bulk, params, threads)
        _prune(graph, space, sample, long_edges, params, pool)
        _reverse_few(graph, space, params, pool, threads)
    duplicates.hang(graph, groups)
    reach_all(graph, space, params)
    return graph


# ----------------------------------------------------------------------------------------------------- candidates


def _collect(
    graph: Graph,
    space: Space,
    ids: Ints,
    bulk: BulkParams,
    seed: int,
    threads: int,
    pool: ThreadPoolExecutor,
) -> None:
    """Fill each node's list with the nearest that it met in a leaf. Distances are kept in 16 bits, and no longer than
    this takes.
    """
    weights = np.full(graph.neighbors.shape, np.iinfo(np.uint16).max, np.uint16)
    worst = np.zeros(graph.count, np.int16)
    bounds = np.linspace(0, graph.count, threads + 1).astype(int)

    def offer_leaves(leaves: list[Ints]) -> None:
        found = list(pool.map(lambda leaf: _leaf_pairs(space, leaf, bulk.nearest), leaves))
        nodes = np.concatenate(leaves)
        near, near_weights = (np.concatenate([pairs[part] for pairs in found]) for part in (0, 1))

        def offer(owner: int) -> None:
            low, high = bounds[owner], bounds[owner + 1]
            offer_pairs(nodes, near, near_weights, low, high, graph.neighbors, weights, graph.degrees, worst)

        list(pool.map(offer, range(threads)))

    for run in range(bulk.runs):
        for leaves in _batches(carve(space, ids, bulk.carving, (seed, run), pool)):
            offer_leaves(leaves)
            del leaves  # parts of one large array, which the next carving would have beside its own


def _batches(leaves: Iterator[Ints]) -> Iterator[list[Ints]]:
    """Leaves in order, so many at a time as bounds the memory of their pairs."""
    batch: list[Ints] = []
    rows = 0
    for leaf in leaves:
        batch.append(leaf)
        rows += len(leaf)
        if rows >= _ROWS_A_BATCH:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch


def _leaf_pairs(space: Space, leaf: Ints, k: int) -> tuple[Ints, npt.NDArray[np.uint16]]:
    """(near int32[n, k]: node ids, -1 where a leaf is too small; weights u16[n, k])."""
    near = np.empty((len(leaf), k), np.int32)
    keys = np.empty((len(leaf), k), np.int32)
    nearest(space, leaf, leaf, near, keys, same=True)
    return np.where(near >= 0, leaf[near], np.int32(-1)), key_weights(space, keys)


# ----------------------------------------------------------------------------------------------------- long edges


def _long_edges(
    graph: Graph, space: Space, alone: Ints, medoid: int, bulk: BulkParams, params: VamanaParams, threads: int
) -> tuple[Ints, Ints]:
    """(sample int32[n] ascending, its edges among itself int32[n, R'], -1 where there are fewer)."""
    islands = np.arange(graph.count, dtype=np.int32)
    _unite(graph.neighbors, graph.degrees, islands)
    size = min(len(alone), bulk.most_sampled, max(bulk.fewest_sampled, int(bulk.sample * len(alone))))
    rng = np.random.default_rng((params.seed, bulk.runs))
    shuffled = rng.permutation(alone)
    landings = shuffled[_first_of_each(islands[shuffled], _LANDINGS)]
    strata = ((np.arange(size) + rng.random(size)) * len(alone) // size).astype(np.intp)  # near rows have near ids
    sample = np.unique(np.concatenate([alone[strata], landings, [medoid]])).astype(np.int32)
    part = _subspace(space, sample)
    few = replace(params, max_degree=max(1, params.max_degree // 2))
    own = Graph(np.full((len(sample), few.max_degree), -1, np.int32), np.zeros(len(sample), np.int32), 0)
    own = replace(own, medoid=int(np.searchsorted(sample, medoid)))
    order = np.concatenate([[own.medoid], np.delete(np.arange(len(sample)), own.medoid)]).astype(np.int32)
    order[1:] = rng.permutation(order[1:])
    insert_all(own, part, order, 1, few, threads=threads)
    return sample, np.where(own.neighbors >= 0, sample[own.neighbors], np.int32(-1))


@njit(nogil=True, cache=True)
def _unite(neighbors, degrees, roots):  # type: ignore[no-untyped-def]
    """Give nodes that candidates lead between, one root: roots int32[N], each its own before."""
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


def _first_of_each(labels: Ints, count: int) -> npt.NDArray[np.intp]:
    """Where the first `count` of each label are."""
    order = np.argsort(labels, kind="stable")
    ranked = labels[order]
    places = np.arange(len(ranked))
    starts = np.concatenate([[True], ranked[1:] != ranked[:-1]])
    return order[places - np.maximum.accumulate(np.where(starts, places, 0)) < count]


def _subspace(space: Space, nodes: Ints) -> Space:
    if isinstance(space, CodeSpace):
        codes = space.codes.reshape(len(space.norms), -1)[nodes]
        return CodeSpace(codes.reshape(-1), space.norms[nodes], space.sums[nodes])
    return FloatSpace(frozen(space.vectors[nodes]))


def _reverse_few(graph: Graph, space: Space, params: VamanaParams, pool: ThreadPoolExecutor, threads: int) -> None:
    """Turn round the edges of nodes that few others keep: in data with hubs, whose lists are full of nearer ones."""
    incoming = np.zeros(graph.count, np.int32)
    _count_incoming(graph.neighbors, graph.degrees, incoming)
    few = np.flatnonzero((incoming < min(_FEW_INCOMING, params.max_degree // 2)) & (graph.degrees > 0)).astype(np.int32)
    edges, counts = graph.neighbors[few], graph.degrees[few]
    for start in range(0, len(few), _ROWS_A_BATCH):
        part = slice(start, start + _ROWS_A_BATCH)
        reverse(graph, space, few[part], edges[part], counts[part], params.alpha, pool, threads)


@njit(nogil=True, cache=True)
def _count_incoming(neighbors, degrees, incoming):  # type: ignore[no-untyped-def]
    for node in range(degrees.size):
        for slot in range(degrees[node]):
            incoming[neighbors[node, slot]] += 1


# ---------------------------------------------------------------------------------------------------------- prune


def _prune(
    graph: Graph, space: Space, sample: Ints, long_edges: Ints, params: VamanaParams, pool: ThreadPoolExecutor
) -> None:
    alpha_squared = np.float32(params.alpha**2)
    extra = np.full(graph.count, -1, np.int32)
    extra[sample] = np.arange(len(sample), dtype=np.int32)

    def piece(low: int) -> None:
        high = min(low + _PRUNED_A_PIECE, graph.count)
        own_scratch, scratch = scratch_of(space), scratch_of(space)
        _prune_nodes(
            space, low, high, graph.neighbors, graph.degrees, extra, long_edges, alpha_squared, own_scratch, scratch
        )

    list(pool.map(piece, range(0, graph.count, _PRUNED_A_PIECE)))


@njit(nogil=True, cache=True, fastmath=FAST)
def _prune_nodes(  # type: ignore[no-untyped-def]
    space, low, high, neighbors, degrees, extra, long_edges, alpha_squared, own_scratch, scratch
):
    """Robust prune of the candidates in each node's list, and of its long edges."""
    limit = neighbors.shape[1]
    ids = np.empty(limit + long_edges.shape[1], np.int32)
    distances = np.empty(ids.size, np.float32)
    for node in range(low, high):
        point = focus(space, node, own_scratch)
        count = degrees[node]
        for slot in range(count):
            ids[slot] = neighbors[node, slot]
        if extra[node] >= 0:
            for slot in range(long_edges.shape[1]):
                if long_edges[extra[node], slot] >= 0:
                    ids[count] = long_edges[extra[node], slot]
                    count += 1
        for place in range(count):
            fetch(point, ids[place])
        for place in range(count):
            distances[place] = distance(point, ids[place])
        kept = robust_prune(space, node, ids, distances, count, alpha_squared, limit, neighbors[node], scratch)
        for slot in range(kept, limit):
            neighbors[node, slot] = -1
        degrees[node] = kept
