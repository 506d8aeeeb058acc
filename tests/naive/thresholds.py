"""Slow and obvious: every row under a distance."""

import numpy as np

from tests.naive.vectors import distance


def within(query: np.ndarray, vectors: np.ndarray, threshold: float, metric: str) -> tuple[set[int], set[int]]:
    """(rows that are surely under the threshold, rows so close to it that float32 may say either)."""
    distances = np.array([distance(query, vector, metric) for vector in vectors])
    doubt = 1e-5 * (abs(threshold) + 1e-3)
    inside = set(np.flatnonzero(distances < threshold - doubt).tolist())
    return inside, set(np.flatnonzero(np.abs(distances - threshold) <= doubt).tolist())
