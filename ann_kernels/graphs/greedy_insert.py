"""Greedy insert, in batches, so that the result does not depend on the number of threads.

A batch searches the graph as it was before the batch; then reverse edges are added, grouped by the node that gets
them. Both halves touch each node once: threads share nothing. Source: DiskANN (2019), algorithm 3, in the batches of
ParlayANN (2024).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from icepuffin.ann_kernels.arrays import I8, I32, I64
from icepuffin.ann_kernels.compilation import fast_kernel, inline_kernel
from icepuffin.ann_kernels.distances.candidate_list import split_keys
from icepuffin.ann_kernels.distances.distance_computers import (
    DistanceComputer,
    Space,
    distance,
    new_code_scratch,
    node_computer,
    prefetch_node,
)
from icepuffin.ann_kernels.graphs.beam_search import beam_search, new_beam_scratch, new_visited
from icepuffin.ann_kernels.graphs.graph import Adjacency, Graph, VamanaParams, spread_indices
from icepuffin.ann_kernels.graphs.robust_prune import PruneCandidates, new_prune_candidates, robust_prune

_LARGEST_BATCH = 0.02
_SMALLEST_BATCH = 64


@dataclass(frozen=True, slots=True)
class Workers:
    """Threads that share the nodes of a step."""

    executor: ThreadPoolExecutor
    threads: int

    def each(self, count: int, work: Callable[[int, int], None]) -> None:
        """Run `work(low, high)` over pieces of range(count)."""
        pieces = max(1, min(count, 4 * self.threads if self.threads > 1 else 1))
        bounds = np.linspace(0, count, pieces + 1).astype(int)
        list(self.executor.map(work, bounds[:-1], bounds[1:]))


class _InsertParams(NamedTuple):
    """Parameters of an insert, as the kernel takes them."""

    entries: I32
    """Nodes of the graph that walks start from, the medoid first, int32[e]"""
    width: int
    """L: length of the candidate list"""
    alpha_squared: np.float32


class _ReverseEdges(NamedTuple):
    """Edges to add, grouped by the node that they leave."""

    targets: I32
    """Nodes that the edges leave, int32[e], ascending"""
    sources: I32
    """Nodes that the edges lead to, int32[e], ascending for each target"""


def insert_all(graph: Graph, space: Space, order: I32, first: int, params: VamanaParams, *, threads: int) -> None:
    """Insert the nodes order[first:] into the graph, which holds order[:first] already (at least the medoid)."""
    with ThreadPoolExecutor(max(1, threads)) as executor:
        for start, end in _batches(first, len(order)):
            spread = order[spread_indices(start)]
            entries = np.concatenate([[graph.medoid], spread]).astype(np.int32)
            _insert_batch(graph, space, order[start:end], entries, params, Workers(executor, threads))


def _batches(start: int, count: int) -> Iterator[tuple[int, int]]:
    """Doubling prefixes, then steps of at most 2 %."""
    largest = max(_SMALLEST_BATCH, int(count * _LARGEST_BATCH))
    while start < count:
        end = min(count, start + min(start, largest))
        yield start, end
        start = end


def _insert_batch(graph: Graph, space: Space, batch: I32, entries: I32, params: VamanaParams, workers: Workers) -> None:
    edges = Adjacency(np.full((len(batch), params.max_degree), -1, np.int32), np.zeros(len(batch), np.int32))
    kernel_params = _InsertParams(entries, params.search_list, np.float32(params.alpha**2))

    def choose(low: int, high: int) -> None:
        out = Adjacency(edges.neighbors[low:high], edges.degrees[low:high])
        _choose_edges(space, graph.adjacency, batch[low:high], kernel_params, out, new_code_scratch(space, 2))

    workers.each(len(batch), choose)
    graph.neighbors[batch] = edges.neighbors
    graph.degrees[batch] = edges.degrees
    add_reverse_edges(graph, space, batch, edges, params.alpha, workers)


def add_reverse_edges(graph: Graph, space: Space, nodes: I32, edges: Adjacency, alpha: float, workers: Workers) -> None:
    """Add the reverses of the edges of some nodes int32[n], and prune the lists in which they do not fit."""
    alpha_squared = np.float32(alpha**2)
    reversed_edges, starts = _reversed(nodes, edges)

    def add(low: int, high: int) -> None:
        scratch = new_code_scratch(space)
        _add_reverse_edges(space, graph.adjacency, reversed_edges, starts[low : high + 1], alpha_squared, scratch)

    workers.each(len(starts) - 1, add)


def _reversed(nodes: I32, edges: Adjacency) -> tuple[_ReverseEdges, I64]:
    """The reverse edges, and where each target starts, int64[t + 1]."""
    is_edge = np.arange(edges.neighbors.shape[1])[None, :] < edges.degrees[:, None]
    targets = edges.neighbors[is_edge]
    sources = np.repeat(nodes, edges.degrees)
    order = np.lexsort((sources, targets))
    targets, sources = targets[order], sources[order]
    starts = np.flatnonzero(np.concatenate([[True], targets[1:] != targets[:-1]])) if len(targets) else np.empty(0, int)
    return _ReverseEdges(targets, sources), np.concatenate([starts, [len(targets)]]).astype(np.int64)


@fast_kernel
def _choose_edges(
    space: Space, adjacency: Adjacency, nodes: I32, params: _InsertParams, out: Adjacency, scratch: I8
) -> None:
    """Out-edges of each node: the nodes that its search expanded, pruned. scratch int8[2, P] is for codes."""
    limit = out.neighbors.shape[1]
    beam = new_beam_scratch(params.width, new_visited(adjacency.degrees.size), params.width * 4, limit)
    candidates = new_prune_candidates(beam.path.size)
    entries = params.entries
    for i in range(nodes.size):
        computer = node_computer(space, nodes[i], scratch[0])
        second = entries[0]
        if entries.size > 1:  # a beam that is full of one cluster's nodes would not leave it
            second = _nearest(computer, entries)
        _, expanded, _ = beam_search(computer, adjacency, entries[0], second, beam)
        count = min(expanded, beam.path.size)
        split_keys(beam.path, count, candidates.ids, candidates.distances)
        edges = out.neighbors[i]
        out.degrees[i] = robust_prune(space, nodes[i], candidates, count, params.alpha_squared, edges, scratch[1])


@inline_kernel
def _nearest(computer: DistanceComputer, nodes: I32) -> Any:
    """The nearest of some nodes int32[n]; of equals the first."""
    nearest, smallest = nodes[0], np.float32(np.inf)
    for node in nodes:
        to_node = distance(computer, node)
        if to_node < smallest:
            nearest, smallest = node, to_node
    return nearest


@fast_kernel
def _add_reverse_edges(
    space: Space, adjacency: Adjacency, edges: _ReverseEdges, starts: I64, alpha_squared: np.float32, scratch: I8
) -> None:
    """Give each target its new edges; prune where they do not fit."""
    neighbors, degrees = adjacency.neighbors, adjacency.degrees
    targets, sources = edges.targets, edges.sources
    limit = neighbors.shape[1]
    kept = np.empty(limit, np.int32)
    for index in range(starts.size - 1):
        start, end = starts[index], starts[index + 1]
        target = targets[start]
        degree = degrees[target]
        count = degree + end - start
        if count <= limit:
            for i in range(start, end):
                present = False
                for slot in range(degree):
                    present |= neighbors[target, slot] == sources[i]
                if not present:
                    neighbors[target, degrees[target]] = sources[i]
                    degrees[target] += 1
            continue
        ids = np.empty(count, np.int32)
        for slot in range(degree):
            ids[slot] = neighbors[target, slot]
        for i in range(start, end):
            ids[degree + i - start] = sources[i]
        distances = np.empty(count, np.float32)
        computer = node_computer(space, target, scratch[0])
        for i in range(count):
            prefetch_node(computer, ids[i])
        for i in range(count):
            distances[i] = distance(computer, ids[i])
        # The computer has done its work: its codes may be overwritten.
        candidates = PruneCandidates(ids, distances)
        size = robust_prune(space, target, candidates, np.int64(count), alpha_squared, kept, scratch[0])
        for slot in range(limit):
            neighbors[target, slot] = kept[slot] if slot < size else -1
        degrees[target] = size
