"""Slow and obvious: a beam search, and graphs as lists of edges."""

from collections.abc import Iterable

import numpy as np

Edges = list[list[int]]
"""Neighbours of each node"""


def edges_of(neighbors: np.ndarray, degrees: np.ndarray) -> Edges:
    return [row[:degree].tolist() for row, degree in zip(neighbors, degrees, strict=True)]


class Walk:
    """A beam search from one query."""

    def __init__(self, distances: np.ndarray, edges: Edges, entries: Iterable[int]) -> None:
        """`distances` from the query, by node."""
        self._distances = distances
        self._edges = edges
        self.visited = set(entries)
        self.expanded: list[int] = []
        """Nodes in the order in which they were expanded"""
        self.nodes = self._nearest_first(self.visited)
        """The candidate list"""

    def go_on(self, first: int, longest: int) -> None:
        """Expand the nearest node that is not yet, until the `first` of the list are; `longest` nodes stay in it."""
        while todo := [node for node in self.nodes[:first] if node not in self.expanded]:
            self.expanded.append(todo[0])
            fresh = set(self._edges[todo[0]]) - self.visited
            self.visited |= fresh
            self.nodes = self._nearest_first({*self.nodes, *fresh})[:longest]

    def _nearest_first(self, nodes: Iterable[int]) -> list[int]:
        return sorted(nodes, key=lambda node: (self._distances[node], node))


def nearest_entry(distances: np.ndarray, entries: list[int]) -> int:
    return min(entries, key=lambda node: (distances[node], entries.index(node)))
