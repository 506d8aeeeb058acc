"""Cells: a few hundred vectors that lie near each other, coded by the range that each dimension has among them.

A reader without a shard finds the nearest cells by their centers, and reads these alone.
"""

from typing import NamedTuple

import numpy as np

from icepuffin.ann_kernels.arrays import F32, F64, I8, I64, U8
from icepuffin.ann_kernels.codes import grouped_centroids, kmeans
from icepuffin.ann_kernels.metric import Metric

ROWS = 256
"""Vectors per cell, on average; a cell has at most twice as many"""
_SAMPLED_PER_CELL = 16
_ITERATIONS = 6
_FINEST_STEP = 127
_SHORTEST = 1e-30


class CodedCell(NamedTuple):
    """Vectors of one cell, each dimension in 2^bits levels from its smallest to its largest value."""

    lows: F32
    """f32[D]"""
    steps: F32
    """f32[D]: distance of two levels; 0 where all values are equal"""
    codes: U8
    """u8[n, D], or u8[n, ceil(D / 2)] where two codes of 4 bits share a byte, the first in the lower half"""


class CodedCenters(NamedTuple):
    """Centers of cells, as differences from a common point in steps of their own."""

    origin: F32
    """f32[D]"""
    scales: F32
    """f32[c]"""
    codes: I8
    """i8[c, D]"""

    def differences(self) -> F32:
        """f32[c, D]: the centers, less the origin."""
        return self.scales[:, None] * self.codes

    def ranked(self, query: F64, metric: Metric) -> tuple[I64, F64]:
        """(cells int64[c], the nearest to a query f64[D] first, a number f64[c] for each that grows with its distance).

        The numbers of two sets of centers can be compared.
        """
        differences = self.differences().astype(np.float64)
        if metric is Metric.INNER_PRODUCT:
            scores = -(differences @ query) - self.origin.astype(np.float64) @ query
        else:
            moved = query - self.origin
            scores = np.einsum("ij,ij->i", differences, differences) - 2 * (differences @ moved) + moved @ moved
        order = np.argsort(scores, kind="stable")
        return order, scores[order]


def partition(vectors: F32, *, seed: int, threads: int) -> list[I64]:
    """Rows int64[n], ascending, of each cell of f32[N, D]: each row in one, none empty; the same for any threads.

    Clusters of k-means, the large ones cut; cells in the order of their middle rows, so that rows which are in an order
    of locality give cells in one.
    """
    count = len(vectors)
    cells = -(-count // ROWS)
    if cells < 2:
        return [np.arange(count)] if count else []
    sample = vectors[:: max(1, count // (cells * _SAMPLED_PER_CELL))]
    centroids = kmeans.train(
        sample, cells, seed=seed, iterations=_ITERATIONS, threads=threads, nearest=grouped_centroids.assign
    )
    labels, _ = grouped_centroids.assign(vectors, centroids, threads=threads)
    order = np.argsort(labels, kind="stable")
    clusters = np.split(order, np.cumsum(np.bincount(labels, minlength=cells))[:-1])
    parts = [part for rows in clusters if len(rows) for part in np.array_split(rows, _parts(len(rows)))]
    return sorted(parts, key=lambda rows: int(rows[len(rows) // 2]))


def _parts(count: int) -> int:
    """Number of cells for a cluster of so many rows."""
    return 1 if count <= 2 * ROWS else -(-count // ROWS)


def encode_centers(centers: F64) -> CodedCenters:
    """Centers f64[c, D] in steps of one byte; the largest difference of each from their mean has 127."""
    origin = (centers.mean(axis=0) if len(centers) else np.zeros(centers.shape[1])).astype(np.float32)
    differences = centers - origin
    scales = (np.abs(differences).max(axis=1, initial=0) / _FINEST_STEP).astype(np.float32)
    divisors = np.where(scales > 0, scales, 1).astype(np.float64)
    codes = np.clip(np.rint(differences / divisors[:, None]), -_FINEST_STEP, _FINEST_STEP)
    return CodedCenters(origin, scales, codes.astype(np.int8))


def encode(vectors: F32, bits: int) -> CodedCell:
    """The vectors f32[n, D] of one cell, n at least 1, in codes of 4 or 8 bits."""
    levels = (1 << bits) - 1
    lows = vectors.min(axis=0)
    steps = ((vectors.max(axis=0) - lows) / np.float32(levels)).astype(np.float32)
    divisors = np.where(steps > 0, steps, np.float32(np.inf))
    codes = np.clip(np.rint((vectors - lows) / divisors), 0, levels).astype(np.uint8)
    return CodedCell(lows, steps, codes if bits == 8 else _paired(codes))


def _paired(codes: U8) -> U8:
    even = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return np.asarray(even[:, ::2] | (even[:, 1::2] << 4), np.uint8)


def decode(cell: CodedCell, bits: int) -> F32:
    """f32[n, D]: the vectors that the codes stand for."""
    codes = cell.codes
    if bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)[:, : len(cell.lows)]
    return cell.lows + cell.steps * codes.astype(np.float32)


def distances(query: F64, vectors: F32, metric: Metric) -> F64:
    """Reported distances f64[n] of decoded vectors f32[n, D] from a query f64[D], of unit length under cosine.

    Directions of decoded vectors count under cosine: rounding has changed their lengths.
    """
    points = vectors.astype(np.float64)
    if metric is Metric.INNER_PRODUCT:
        return np.asarray(-(points @ query))
    if metric is Metric.COSINE:
        return np.asarray(1 - (points @ query) / np.maximum(np.linalg.norm(points, axis=1), _SHORTEST))
    gaps = points - query
    squares = np.einsum("ij,ij->i", gaps, gaps)
    return np.asarray(np.sqrt(squares) if metric is Metric.L2 else squares)
