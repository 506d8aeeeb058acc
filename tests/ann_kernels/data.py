"""Vectors for the kernels' tests."""

import numpy as np

from icepuffin.ann_kernels.graphs.graph import Graph, PackedAdjacency, PackedGraph
from icepuffin.puffin.varint import encode_adjacency
from tests.naive import duplicates as naive
from tests.naive.walks import edges_of


def clustered(count: int, dims: int, seed: int = 0) -> np.ndarray:
    """Ten clusters that overlap; queries of another seed come from where the vectors do."""
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).standard_normal((10, dims))
    return (centers[rng.integers(0, 10, count)] + rng.standard_normal((count, dims))).astype(np.float32)


def apart(count: int, dims: int, clusters: int, seed: int = 0) -> np.ndarray:
    """Clusters far from one another, one after the other in order of insertion."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((clusters, dims)) * 50
    return np.asarray(centers[np.arange(count) * clusters // count] + rng.standard_normal((count, dims)), np.float32)


def widely_spread(count: int, dims: int, seed: int = 0) -> np.ndarray:
    """Norms from 1e-3 to 1e3: one byte per dimension cannot tell the short ones apart."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.standard_normal((count, dims)) * 10.0 ** rng.uniform(-3, 3, (count, 1)), np.float32)


def recall(found: np.ndarray, true: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, true, strict=True)]))


def reached(graph: Graph) -> set[int]:
    """What walks from the medoid can reach, and the copies of that."""
    visited, todo = {graph.medoid}, [graph.medoid]
    while todo:
        node = todo.pop()
        fresh = set(graph.neighbors[node, : graph.degrees[node]].tolist()) - visited
        visited |= fresh
        todo += fresh
    copies = naive.copies_in(edges_of(graph.neighbors, graph.degrees), graph.medoid)
    return visited | {node for node, original in copies.items() if original in visited}


def well_formed(graph: Graph) -> bool:
    """Lists padded with -1 behind their degree, ids in range, no node its own neighbour, none twice."""
    for node, (edges, degree) in enumerate(zip(graph.neighbors, graph.degrees, strict=True)):
        row = edges[:degree].tolist()
        if (edges[degree:] != -1).any() or node in row or len(set(row)) < degree:
            return False
        if not all(0 <= other < graph.count for other in row):
            return False
    return True


def near_duplicates(count: int, dims: int, group: int, noise: float = 1e-3, seed: int = 0) -> np.ndarray:
    """Groups of rows that are nearly equal, one group after the other: frames of a video, boilerplate texts."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((-(-count // group), dims))
    return np.asarray(centers[np.arange(count) // group] + noise * rng.standard_normal((count, dims)), np.float32)


def packed(graph: Graph) -> PackedGraph:
    """The graph with packed edges."""
    lists, offsets = encode_adjacency(graph.neighbors, graph.degrees)
    longest = int(graph.degrees.max(initial=0))
    return PackedGraph(PackedAdjacency(lists.copy(), offsets.astype(np.uint32), longest), graph.medoid)
