"""BallSet around the vectors of a data file: what the centroid index says of it. A ball must never be too small."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_BALLS = 8
"""BallSet a file in the centroid index; what would need more gets one ball around all of them."""
_ROWS_AT_ONCE = 256
"""Vectors whose differences to a centre stay in the cache"""
_EACH = 8
"""A centre is the mean of every eighth vector"""

Ball = tuple[npt.NDArray[np.float32], float]
"""(centre f32[D], radius), Euclidean, over prepared vectors"""


@dataclass(frozen=True, slots=True, eq=False)
class BallSet:
    """Of some files."""

    slots: npt.NDArray[np.uint32]
    """u32[n], the file of each ball"""
    centers: npt.NDArray[np.float32]
    """f32[n, D]"""
    radii: npt.NDArray[np.float32]
    """f32[n]"""

    @classmethod
    def of(cls, balls: Iterable[tuple[int, Ball]], dims: int) -> "BallSet":
        """From (slot, ball)."""
        given = list(balls)
        return cls(
            np.array([slot for slot, _ in given], np.uint32),
            np.array([center for _, (center, _) in given], np.float32).reshape(-1, dims),
            np.array([radius for _, (_, radius) in given], np.float32),
        )


def ball_around(vectors: npt.NDArray[np.float32]) -> Ball:
    """One ball around the mean of prepared vectors f32[n, D], of a part of them: any centre will do."""
    center = np.asarray(vectors[::_EACH].mean(axis=0, dtype=np.float64), np.float32)
    farthest = 0.0
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        gap = vectors[start : start + _ROWS_AT_ONCE] - center
        farthest = max(farthest, float(np.einsum("ij,ij->i", gap, gap).max()))
    return center, _widened(np.sqrt(farthest))


def partition_balls(reach: npt.NDArray[np.float32], codebook: npt.NDArray[np.float32]) -> list[Ball]:
    """One a partition that a file touches; `reach` f32[k] is its largest distance to each centroid, -1 where none."""
    touched = np.flatnonzero(reach >= 0)
    return merge_balls([(codebook[part], _widened(reach[part])) for part in touched])


def merge_balls(balls: list[Ball], most: int = MAX_BALLS) -> list[Ball]:
    """At most so many that hold what these hold: all of them, or one."""
    if len(balls) <= most:
        return balls
    centers = np.stack([center for center, _ in balls])
    center = np.asarray(centers.mean(axis=0, dtype=np.float64), np.float32)
    far = np.linalg.norm(centers - center, axis=1) + [radius for _, radius in balls]  # triangle inequality
    return [(center, _widened(far.max()))]


def _widened(radius: float) -> float:
    """Distances are f32 sums: never smaller than the true one."""
    return float(np.float32(radius) * np.float32(1 + 1e-5) + np.float32(1e-6))
