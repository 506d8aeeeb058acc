"""A graph of vectors, its parameters, and the repair that lets every node be reached."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels.beam_search import beam_search, next_stamp, split_keys
from icepuffin.ann_kernels.candidate_list import new_pool
from icepuffin.ann_kernels.distance_computers import FAST, CodeSpace, FloatSpace, focus
from icepuffin.ann_kernels.errors import KernelError

Space = FloatSpace | CodeSpace
_ROWS_A_BLOCK = 1_024
"""Few enough to stay in the cache"""


@dataclass(frozen=True, slots=True)
class VamanaParams:
    """What a build costs and how good it is."""

    max_degree: int = 64
    """R: edges a node; memory and build time grow with it."""
    search_list: int = 100
    """L: how wide an insert searches; its time grows with it, recall too. Builds do not search."""
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


def scratch_of(space: Space) -> npt.NDArray[np.int8]:
    """int8[P]: room for one node's codes, as `spaces.focus` wants it."""
    return np.empty(len(space.codes) // len(space.norms) if isinstance(space, CodeSpace) else 0, np.int8)


def medoid_of(vectors: npt.NDArray[np.float32]) -> int:
    """The row nearest to the mean."""
    total = np.zeros(vectors.shape[1])
    for start in range(0, len(vectors), _ROWS_A_BLOCK):
        total += vectors[start : start + _ROWS_A_BLOCK].sum(axis=0)
    mean = (total / len(vectors)).astype(np.float32)
    gap = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), _ROWS_A_BLOCK):
        part = vectors[start : start + _ROWS_A_BLOCK] - mean
        gap[start : start + len(part)] = np.einsum("ij,ij->i", part, part)
    return int(gap.argmin())


def reach_all(graph: Graph, space: Space, params: VamanaParams) -> None:
    """Hang nodes that no walk from the medoid reaches onto near ones that have room (or in place of an edge that is
    not needed to reach anything).
    """
    reached_from = np.full(graph.count, -1, np.int32)
    reached_from[graph.medoid] = graph.medoid
    _flood(graph.neighbors, graph.degrees, graph.medoid, reached_from)
    lost = np.flatnonzero(reached_from < 0).astype(np.int32)
    if len(lost):
        width = min(max(params.search_list, 2), graph.count)
        _hang(space, graph.neighbors, graph.degrees, graph.medoid, lost, width, reached_from, scratch_of(space))


@njit(nogil=True, cache=True)
def _flood(neighbors, degrees, start, reached_from):  # type: ignore[no-untyped-def]
    """Mark what `start` reaches: each node with the one it was first reached from."""
    stack = np.empty(reached_from.size, np.int32)
    stack[0] = start
    height = 1
    while height:
        height -= 1
        node = stack[height]
        for slot in range(degrees[node]):
            other = neighbors[node, slot]
            if reached_from[other] < 0:
                reached_from[other] = node
                stack[height] = other
                height += 1


@njit(nogil=True, cache=True, fastmath=FAST)
def _hang(space, neighbors, degrees, medoid, lost, width, reached_from, scratch):  # type: ignore[no-untyped-def]
    limit = neighbors.shape[1]
    seen = np.zeros(neighbors.shape[0], np.uint8)
    stamp = np.uint8(0)
    pool = new_pool(width)
    path = np.empty(0, np.int64)
    hosts, distances = np.empty(width, np.int32), np.empty(width, np.float32)
    fresh = np.empty(limit, np.int32)
    keys = np.empty(limit, np.int64)
    entries = np.array([medoid], np.int32)
    for i in range(lost.size):
        node = lost[i]
        if reached_from[node] >= 0:  # by way of one that was hung before
            continue
        stamp = next_stamp(seen, stamp)
        point = focus(space, node, scratch)
        size, _, _ = beam_search(point, neighbors, degrees, entries, seen, stamp, pool, width, path, fresh, keys)
        split_keys(pool, size, hosts, distances)
        host, slot = _room(neighbors, degrees, hosts[:size], reached_from)
        if host < 0:
            host, slot = _room(neighbors, degrees, np.arange(neighbors.shape[0], dtype=np.int32), reached_from)
        neighbors[host, slot] = node
        degrees[host] = max(degrees[host], slot + 1)
        reached_from[node] = host
        _flood(neighbors, degrees, node, reached_from)


@njit(nogil=True, cache=True)
def _room(neighbors, degrees, hosts, reached_from):  # type: ignore[no-untyped-def]
    """(first host that is reached and has room, slot): free, or holding an edge that nothing was reached by."""
    limit = neighbors.shape[1]
    for host in hosts:
        if reached_from[host] < 0:
            continue
        if degrees[host] < limit:
            return host, degrees[host]
        for slot in range(limit - 1, -1, -1):
            if reached_from[neighbors[host, slot]] != host:
                return host, slot
    return np.int32(-1), np.int32(0)
