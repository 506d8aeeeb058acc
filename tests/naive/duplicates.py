"""Slow and obvious: equal vectors, and the nodes of a graph that stand for others."""

import numpy as np

from tests.naive.walks import Edges


def copies(vectors: np.ndarray, first: int = -1) -> dict[int, int]:
    """Row -> the row that stands for it: `first`, or the first of its equals."""
    originals: dict[bytes, int] = {} if first < 0 else {vectors[first].tobytes(): first}
    found = {}
    for row, vector in enumerate(vectors):
        original = originals.setdefault(vector.tobytes(), row)
        if original != row:
            found[row] = original
    return found


def copies_in(edges: Edges, medoid: int) -> dict[int, int]:
    """Node -> the node that stands for it: its one neighbour, where no edge leads to it."""
    targets = {medoid, *(other for row in edges for other in row)}
    return {node: row[0] for node, row in enumerate(edges) if len(row) == 1 and node not in targets}


def with_copies(
    found: list[int], distances: list[float], groups: dict[int, list[int]], k: int
) -> list[tuple[float, int]]:
    """The nearest k of some nodes in order and of those that they stand for: (distance, node)."""
    nodes = [
        (distance, member)
        for node, distance in zip(found, distances, strict=True)
        if node >= 0
        for member in sorted(groups.get(node, [node]))
    ]
    return sorted(nodes[:k])
