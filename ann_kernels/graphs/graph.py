"""A graph of vectors and the parameters that it is built with."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from icepuffin.ann_kernels.arrays import F32, I32, I64, U8, U32
from icepuffin.ann_kernels.errors import KernelError

_MAX_ENTRY_POINTS = 128
_NODES_PER_ENTRY_POINT = 64
"""Nodes per entry point: to compare them takes some percent of a walk at most"""
_ROWS_PER_BLOCK = 1_024
"""Rows that are summed at a time: few enough to stay in the cache"""


def spread_indices(count: int) -> I64:
    """int64[e]: indices spread over `count` nodes, whose nodes are entry points beside the medoid.

    A walk from the nearest one, which costs little to find, is shorter. Of clusters that are larger than a beam is
    wide it does not have to leave one for another. For a few nodes the medoid will do.
    """
    entries = min(_MAX_ENTRY_POINTS, count // _NODES_PER_ENTRY_POINT)
    return np.arange(entries, dtype=np.int64) * count // max(1, entries)


@dataclass(frozen=True, slots=True)
class VamanaParams:
    """Parameters of a graph: what a build costs and how good it is."""

    max_degree: int = 64
    """R: edges per node; memory and build time grow with it."""
    search_list: int = 100
    """L: width of the beam of an insert, whose time and recall grow with it. Builds do not search."""
    alpha: float = 1.2
    """Factor of robust prune; over 1 it keeps longer edges, and walks are shorter."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.max_degree <= 4_096 or self.search_list < 1 or not 1.0 <= self.alpha <= 4.0:
            raise KernelError(f"{self}: max_degree is 1 to 4096, search_list at least 1, alpha 1 to 4")


class Adjacency(NamedTuple):
    """The edges of a graph, or of some of its nodes, as kernels take them."""

    neighbors: I32
    """int32[N, R], padded with -1"""
    degrees: I32
    """int32[N]"""


class PackedAdjacency(NamedTuple):
    """The edges of a graph in a fifth of the bytes, for walks that change none: a list of varints (LEB128) per node.

    A list is its length, then the neighbours ascending: the first as it is, the others as their distance to the one
    before. Kernels trust the bytes: who makes the arrays has checked them.
    """

    lists: U8
    """u8[..]"""
    starts: U32
    """u32[N + 1]: bytes before the list of each node"""
    longest: int
    """Length of the longest list"""


@dataclass(frozen=True, slots=True, eq=False)
class PackedGraph:
    """A `Graph` whose edges are packed."""

    adjacency: PackedAdjacency
    medoid: int

    @property
    def count(self) -> int:
        return len(self.adjacency.starts) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A directed graph over N nodes; every node can be reached from the medoid, but copies of others (`duplicates`)."""

    neighbors: I32
    """int32[N, R], padded with -1"""
    degrees: I32
    """int32[N]"""
    medoid: int

    @property
    def count(self) -> int:
        return len(self.degrees)

    @property
    def adjacency(self) -> Adjacency:
        return Adjacency(self.neighbors, self.degrees)


def empty_graph(count: int, max_degree: int, medoid: int) -> Graph:
    """A graph without edges over `count` nodes."""
    return Graph(np.full((count, max_degree), -1, np.int32), np.zeros(count, np.int32), medoid)


def medoid_of(vectors: F32) -> int:
    """The row of f32[N, D] nearest to the mean."""
    total = np.zeros(vectors.shape[1])
    for start in range(0, len(vectors), _ROWS_PER_BLOCK):
        total += vectors[start : start + _ROWS_PER_BLOCK].sum(axis=0)
    mean = (total / len(vectors)).astype(np.float32)
    squared = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), _ROWS_PER_BLOCK):
        gaps = vectors[start : start + _ROWS_PER_BLOCK] - mean
        squared[start : start + len(gaps)] = np.einsum("ij,ij->i", gaps, gaps)
    return int(squared.argmin())
