"""The repair that lets every node of a graph be reached from its medoid, but copies."""

from typing import Any

import numpy as np

from icepuffin.ann_kernels.arrays import I8, I32
from icepuffin.ann_kernels.compilation import fast_kernel, inner_kernel, kernel
from icepuffin.ann_kernels.distances.candidate_list import split_keys
from icepuffin.ann_kernels.distances.distance_computers import Space, new_code_scratch, node_computer
from icepuffin.ann_kernels.graphs.beam_search import beam_search, new_beam_scratch, new_visited
from icepuffin.ann_kernels.graphs.duplicates import Copies
from icepuffin.ann_kernels.graphs.graph import Adjacency, Graph, VamanaParams
from icepuffin.ann_kernels.graphs.robust_prune import new_prune_candidates


def attach_unreachable(graph: Graph, space: Space, params: VamanaParams, copies: Copies) -> None:
    """Add edges to nodes that no walk from the medoid reaches, and that are no copies.

    Each edge comes from a near node: into a free slot, or in place of an edge by which nothing was reached.
    """
    parents = np.full(graph.count, -1, np.int32)
    parents[graph.medoid] = graph.medoid
    _mark_reachable(graph.adjacency, np.int32(graph.medoid), parents)
    parents[copies.nodes] = copies.originals
    unreachable = np.flatnonzero(parents < 0).astype(np.int32)
    if len(unreachable):
        width = min(max(params.search_list, 2), graph.count)
        others = copies.others(graph.count)
        _attach(space, graph.adjacency, graph.medoid, unreachable, others, width, parents, new_code_scratch(space))


@kernel
def _mark_reachable(adjacency: Adjacency, start: Any, parents: I32) -> None:
    """Mark the nodes that `start` reaches: parents int32[N] gets, for each, the node it was first reached from."""
    neighbors, degrees = adjacency.neighbors, adjacency.degrees
    stack = np.empty(parents.size, np.int32)
    stack[0] = start
    height = 1
    while height:
        height -= 1
        node = stack[height]
        for slot in range(degrees[node]):
            other = neighbors[node, slot]
            if parents[other] < 0:
                parents[other] = node
                stack[height] = other
                height += 1


@fast_kernel
def _attach(
    space: Space,
    adjacency: Adjacency,
    medoid: int,
    nodes: I32,
    others: I32,
    width: int,
    parents: I32,
    scratch: I8,
) -> None:
    """Give each unreachable node an edge from the nearest host that a beam search meets, or from one of `others`."""
    neighbors, degrees = adjacency.neighbors, adjacency.degrees
    beam = new_beam_scratch(width, new_visited(degrees.size), 0, neighbors.shape[1])
    hosts = new_prune_candidates(width)
    entry = np.int32(medoid)
    for i in range(nodes.size):
        node = nodes[i]
        if parents[node] >= 0:  # reached by way of a node that was attached before
            continue
        size, _, _ = beam_search(node_computer(space, node, scratch[0]), adjacency, entry, entry, beam)
        split_keys(beam.candidates, size, hosts.ids, hosts.distances)
        host, slot = _find_free_slot(adjacency, hosts.ids[:size], parents)
        if host < 0:
            host, slot = _find_free_slot(adjacency, others, parents)
        neighbors[host, slot] = node
        degrees[host] = max(degrees[host], slot + 1)
        parents[node] = host
        _mark_reachable(adjacency, node, parents)


@inner_kernel
def _find_free_slot(adjacency: Adjacency, hosts: I32, parents: I32) -> tuple[Any, Any]:
    """(host, slot): the first reached host with a slot that is free, or that holds an edge nothing was reached by.

    (-1, 0) where no host has one.
    """
    neighbors, degrees = adjacency.neighbors, adjacency.degrees
    limit = neighbors.shape[1]
    for host in hosts:
        if parents[host] < 0:
            continue
        if degrees[host] < limit:
            return host, degrees[host]
        for slot in range(limit - 1, -1, -1):
            if parents[neighbors[host, slot]] != host:
                return host, slot
    return np.int32(-1), np.int32(0)
