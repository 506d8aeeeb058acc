"""The nearest of thousands of centroids: those of the groups near a vector are compared with it, not all.

k centroids are in sqrt(k) groups, and a vector is compared with some 9 sqrt(k) centroids. Most vectors get the nearest
centroid, and the others one that is hardly farther: enough to route rows to shards, since no answer depends on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import numpy as np

from icepuffin.ann_kernels.arrays import F32, I32, I64, read_only
from icepuffin.ann_kernels.blas_threads import one_blas_thread
from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ann_kernels.parallel import for_each

NEAR_GROUPS = 8
"""Groups whose centroids are compared with a vector"""
_ROWS_AT_ONCE = 8_192
_GROUPING_STEPS = 10


def assign(vectors: F32, centroids: F32, *, threads: int = 1) -> tuple[I32, F32]:
    """`CentroidGroups.assign` of vectors f32[N, D] to centroids f32[k, D] that are used once."""
    return CentroidGroups.from_centroids(centroids, threads=threads).assign(vectors, threads=threads)


class _Group(NamedTuple):
    """Centroids that lie near each other, prepared for scores as `kmeans.CenteredCentroids` has them."""

    members: I64
    """Numbers of the centroids, ascending"""
    doubled: F32
    """f32[D, n]"""
    norms: F32
    """f32[n]"""


@dataclass(frozen=True, slots=True, eq=False)
class CentroidGroups:
    """Centroids that many vectors are assigned to, in groups. Memory: the centroids twice."""

    centroids: F32
    """f32[k, D]"""
    center: F32
    """Offset f32[D] subtracted from vectors; f32[0] where none is needed"""
    means: tuple[F32, F32]
    """Means of the groups, times -2, f32[D, g], and their squared norms f32[g]"""
    groups: tuple[_Group, ...]
    """All groups; none where all centroids are compared"""

    @classmethod
    def from_centroids(cls, centroids: F32, *, threads: int = 1) -> "CentroidGroups":
        """Groups of centroids f32[k, D]: the same for the same centroids."""
        if len(centroids) <= kmeans.MANY:
            none = np.empty(0, np.float32)
            return cls(centroids, none, (none, none), ())
        means = kmeans.train(centroids, isqrt(len(centroids)), seed=0, iterations=_GROUPING_STEPS, threads=threads)
        labels, _ = kmeans.assign(centroids, means, threads=threads)
        order = np.argsort(labels, kind="stable")
        ends = np.searchsorted(labels[order], np.arange(len(means) + 1))
        members = [order[start:end] for start, end in pairwise(ends.tolist())]
        center, doubled, norms = kmeans.centered(centroids)
        groups = tuple(_Group(ids, np.ascontiguousarray(doubled[ids].T), norms[ids]) for ids in members if len(ids))
        means = means[[group for group, ids in enumerate(members) if len(ids)]]
        means = means - center if len(center) else means
        return cls(centroids, center, (np.ascontiguousarray(-2 * means.T), np.einsum("ij,ij->i", means, means)), groups)

    def assign(self, vectors: F32, *, threads: int = 1) -> tuple[I32, F32]:
        """(label int32[N] of a near centroid, squared distance f32[N] to it) of vectors f32[N, D].

        The nearest, where there are at most `kmeans.MANY` centroids: then as `kmeans.assign`.
        """
        if not self.groups:
            return kmeans.assign(vectors, self.centroids, threads=threads)
        labels, squared = np.empty(len(vectors), np.int32), np.empty(len(vectors), np.float32)
        doubled_means, norms_of_means = self.means
        compared_groups = min(NEAR_GROUPS, len(self.groups))

        def assign_block(start: int) -> None:
            part = slice(start, start + _ROWS_AT_ONCE)
            points = vectors[part] - self.center if len(self.center) else vectors[part]
            scores = points @ doubled_means + norms_of_means
            groups = np.argpartition(scores, compared_groups - 1, axis=1)[:, :compared_groups]
            labels[part] = _nearest_in(points, groups, self.groups)
            kmeans.squared_to_own(read_only(vectors[part]), read_only(self.centroids), labels[part], squared[part])

        with one_blas_thread:
            for_each(assign_block, range(0, len(vectors), _ROWS_AT_ONCE), threads=threads)
        return labels, squared


def _nearest_in(points: F32, groups: I64, by_group: Sequence[_Group]) -> I32:
    """Labels int32[n] of the nearest centroids in the groups int64[n, m] of each point, 0 if none is a number."""
    labels = np.zeros(len(points), np.int32)
    nearest = np.full(len(points), np.inf, np.float32)
    order = np.argsort(groups, axis=None, kind="stable")
    ends = np.searchsorted(groups.reshape(-1)[order], np.arange(len(by_group) + 1))
    for (members, doubled, norms), (start, end) in zip(by_group, pairwise(ends.tolist()), strict=True):
        rows = order[start:end] // groups.shape[1]
        scores = points[rows] @ doubled + norms
        best = scores.argmin(axis=1)
        nearest_here = scores[np.arange(len(rows)), best]
        nearer = nearest_here < nearest[rows]
        nearest[rows[nearer]], labels[rows[nearer]] = nearest_here[nearer], members[best[nearer]]
    return labels
