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
    matches = []
    for query in queries:
        ranked = sorted((distance(query, vector, metric), row) for row, vector in enumerate(vectors))
        matches.append([row for _, row in ranked[:k]])
    return matches


def tie_order(node: int, other: int) -> int:
    """Where a node stands among those that are as far from another one."""
    mixed = (other + node * 0x9E3779B9) % 2**32
    mixed = ((mixed ^ (mixed >> 16)) * 0x45D9F3B) % 2**32
    return mixed ^ (mixed >> 13)


def robust_prune(vectors: np.ndarray, node: int, candidates: list[int], alpha: float, limit: int) -> list[int]:
    """DiskANN (2019), algorithm 2, in squared distances as the kernel has them."""

    def squared(a: int, b: int) -> np.float32:
        gap = vectors[a] - vectors[b]
        return np.float32((gap * gap).sum())

    remaining = sorted({(squared(node, other), tie_order(node, other), other) for other in candidates if other != node})
    chosen: list[int] = []
    while remaining and len(chosen) < limit:
        _, _, best = remaining.pop(0)
        chosen.append(best)
        remaining = [entry for entry in remaining if np.float32(alpha**2) * squared(best, entry[2]) > entry[0]]
    return chosen


def exact_distances(query: np.ndarray, vectors: np.ndarray, metric: str) -> np.ndarray:
    """Distances in extended precision, of vectors as they are; cosine by the gap between directions."""
    query, vectors = query.astype(np.longdouble), vectors.astype(np.longdouble)
    if metric == "ip":
        return -(vectors @ query)
    if metric == "cosine":
        query = query / np.sqrt((query**2).sum())
        vectors = vectors / np.sqrt((vectors**2).sum(axis=1, keepdims=True))
        return ((vectors - query) ** 2).sum(axis=1) / 2
    squares = ((vectors - query) ** 2).sum(axis=1)
    return squares if metric == "hamming" else np.sqrt(squares)


def assert_nearest(
    ids: list[int],
    distances: list[float],
    query: np.ndarray,
    vectors: np.ndarray,
    k: int,
    metric: str,
    live: np.ndarray | None = None,
) -> None:
    """That these are the k nearest by `exact_distances`, ties by id: up to what float64 can tell."""
    true = exact_distances(query, vectors, metric)
    scale = np.abs(vectors.astype(np.longdouble)) @ np.abs(query.astype(np.longdouble)) if metric == "ip" else true
    floor = 1e-30 if metric == "cosine" else 0.0  # squares of roundings of unit vectors
    slack = 1e-14 * scale + floor + (2e-15 * np.sqrt(2 * true) if metric == "cosine" else 0)
    candidates = np.arange(len(vectors)) if live is None else np.flatnonzero(live)
    assert len(ids) == len(set(ids)) == min(k, len(candidates))
    assert set(ids) <= set(candidates.tolist())
    if not ids:
        return
    assert (np.abs(np.array(distances) - true[ids]) <= slack[ids]).all()
    assert distances == sorted(distances)
    last = ids[-1]
    missed = np.setdiff1d(candidates, ids)
    assert (true[missed] >= true[last] - slack[missed] - slack[last]).all(), "a nearer row was missed"
    assert all(a < b for a, b, x, y in zip(ids, ids[1:], distances, distances[1:], strict=False) if x == y)
    twins = missed[(vectors[missed] == vectors[last]).all(axis=1)]
    assert (twins > last).all(), "of equal rows the one with the smaller id was missed"
