"""Slow and obvious: scalar codes, their distances, the nearest in a leaf, reservoirs."""

import numpy as np

from tests.naive.vectors import tie_order


def encode(vectors: np.ndarray, offset: np.ndarray, scale: float) -> np.ndarray:
    """Signed codes int[N, D]: -127 to 127."""
    scaled = (vectors.astype(np.float32) - offset) * np.float32(1 / scale)
    return np.clip(np.floor(np.clip(scaled, -127, 127) + np.float32(0.5)), -127, 127).astype(int)


def squared(a: np.ndarray, b: np.ndarray) -> int:
    gap = a.astype(int) - b.astype(int)
    return int((gap * gap).sum())


def nearest(signed: np.ndarray, rows: list[int], columns: list[int], k: int, *, same: bool) -> list[list[tuple]]:
    """(squared distance, place among the columns) of each row's k nearest columns; ties from its own place on."""
    matches = []
    for node, row in enumerate(rows):
        first = tie_order(row, 0) % len(columns)
        ranked = sorted(
            (squared(signed[row], signed[column]), (place - first) % len(columns), place)
            for place, column in enumerate(columns)
            if not (same and place == node)
        )
        matches.append([(distance, place) for distance, _, place in ranked[:k]])
    return matches


def reservoirs(pairs: list[tuple[int, int, int]], count: int, limit: int) -> list[set[int]]:
    """The `limit` others of smallest weight of each node, out of pairs (node, other, weight) taken both ways.

    Ties go in the node's own order.
    """
    best: list[dict[int, int]] = [{} for _ in range(count)]
    for node, other, weight in pairs:
        for a, b in ((node, other), (other, node)):
            best[a][b] = min(weight, best[a].get(b, weight))
    return [
        set(sorted(weights, key=lambda other: (weights[other], tie_order(node, other)))[:limit])
        for node, weights in enumerate(best)
    ]


def halves(signed: np.ndarray) -> np.ndarray:
    """int[N, D]: the upper halves of the bytes of signed codes."""
    return np.array([[(128 + int(code)) // 16 for code in row] for row in signed])
