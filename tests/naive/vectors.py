"""Slow and obvious: distances, nearest neighbours, robust prune."""

import numpy as np


def distance(a: np.ndarray, b: np.ndarray, metric: str) -> float:
    a, b = a.astype(float), b.astype(float)
    if metric == "l2":
        return float(np.sqrt(((a - b) ** 2).sum()))
    if metric == "cosine":
        return float(1 - (a @ b) / (np.linalg.norm(a) * np.linalg.norm(b)))
    return float(-(a @ b))


def nearest(queries: np.ndarray, vectors: np.ndarray, k: int, metric: str) -> list[list[int]]:
    found = []
    for query in queries:
        ranked = sorted((distance(query, vector, metric), row) for row, vector in enumerate(vectors))
        found.append([row for _, row in ranked[:k]])
    return found


def robust_prune(vectors: np.ndarray, node: int, candidates: list[int], alpha: float, limit: int) -> list[int]:
    """DiskANN (2019), algorithm 2, in squared distances as the kernel has them."""

    def squared(a: int, b: int) -> np.float32:
        gap = vectors[a] - vectors[b]
        return np.float32((gap * gap).sum())

    left = sorted({(squared(node, other), other) for other in candidates if other != node})
    chosen: list[int] = []
    while left and len(chosen) < limit:
        _, best = left.pop(0)
        chosen.append(best)
        left = [(d, other) for d, other in left if np.float32(alpha**2) * squared(best, other) > d]
    return chosen
