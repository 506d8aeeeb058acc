"""Balls around the vectors of a data file: what the centroid index says of it. A ball must never be too small."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_BALLS = 8
"""Most balls per file in the centroid index; a file that would need more gets one ball around all its vectors"""
_ROWS_AT_ONCE = 256
"""Vectors per step, so that their differences to the centre stay in the processor's cache"""
_EACH = 8
"""Stride of the vectors whose mean is the centre"""

Ball = tuple[npt.NDArray[np.float32], float]
"""(centre f32[D], radius), Euclidean, over prepared vectors"""


@dataclass(frozen=True, slots=True, eq=False)
class BallSet:
    """Balls of several files."""

    slots: npt.NDArray[np.uint32]
    """u32[n], the file of each ball"""
    centers: npt.NDArray[np.float32]
    """f32[n, D]"""
    radii: npt.NDArray[np.float32]
    """f32[n]"""

    @classmethod
    def from_balls(cls, balls: Iterable[tuple[int, Ball]], dims: int) -> "BallSet":
        """Gather (file slot, ball) pairs into arrays."""
        pairs = list(balls)
        return cls(
            np.array([slot for slot, _ in pairs], np.uint32),
            np.array([center for _, (center, _) in pairs], np.float32).reshape(-1, dims),
            np.array([radius for _, (_, radius) in pairs], np.float32),
        )


def ball_around(vectors: npt.NDArray[np.float32]) -> Ball:
    """A ball around prepared vectors f32[n, D]. The centre is the mean of some of them: any centre will do."""
    center = np.asarray(vectors[::_EACH].mean(axis=0, dtype=np.float64), np.float32)
    farthest = 0.0
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        gap = vectors[start : start + _ROWS_AT_ONCE] - center
        farthest = max(farthest, float(np.einsum("ij,ij->i", gap, gap).max()))
    return center, _widened(np.sqrt(farthest))


def partition_balls(reach: npt.NDArray[np.float32], codebook: npt.NDArray[np.float32]) -> list[Ball]:
    """One ball per partition that a file has vectors in, merged where there are more than MAX_BALLS.

    reach: f32[k], the file's largest distance to each centroid; -1 where it has no vector in the partition.
    """
    touched = np.flatnonzero(reach >= 0)
    return merge_balls([(codebook[part], _widened(reach[part])) for part in touched])


def merge_balls(balls: list[Ball], most: int = MAX_BALLS) -> list[Ball]:
    """At most `most` balls that hold what these hold: all of them, or one."""
    if len(balls) <= most:
        return balls
    centers = np.stack([center for center, _ in balls])
    center = np.asarray(centers.mean(axis=0, dtype=np.float64), np.float32)
    reaches = np.linalg.norm(centers - center, axis=1) + [radius for _, radius in balls]  # triangle inequality
    return [(center, _widened(reaches.max()))]


def rows_outside(vectors: npt.NDArray[np.float32], balls: list[Ball]) -> int:
    """Number of prepared vectors f32[n, D] that lie in none of the balls, rounding included."""
    outside = 0
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        rows = vectors[start : start + _ROWS_AT_ONCE].astype(np.float64)
        for center, radius in balls:
            gaps = rows - center
            is_inside = np.sqrt(np.einsum("ij,ij->i", gaps, gaps)) <= radius * (1 + vectors.shape[1] * 2.0**-22)
            rows = rows[~is_inside]
        outside += len(rows)
    return outside


def _widened(radius: float) -> float:
    """A radius that is not below the true one: distances are sums in f32."""
    return float(np.float32(radius) * np.float32(1 + 1e-5) + np.float32(1e-6))
