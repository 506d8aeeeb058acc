"""Slow and obvious: vectors coded by the range of each dimension within their cell, and distances."""

import math

import numpy as np

from icepuffin.ann_kernels.metric import Metric


def decoded(vectors: np.ndarray, bits: int) -> list[list[float]]:
    """The vectors of one cell, each number moved to the nearest of 2^bits levels between smallest and largest."""
    out = np.empty(vectors.shape)
    for d in range(vectors.shape[1]):
        column = [float(value) for value in vectors[:, d]]
        low, step = min(column), (max(column) - min(column)) / (2**bits - 1)
        for row, value in enumerate(column):
            level = round((value - low) / step) if step else 0
            out[row, d] = low + step * level
    return out.tolist()


def distance(query: list[float], vector: list[float], metric: Metric) -> float:
    product = sum(a * b for a, b in zip(query, vector, strict=True))
    if metric is Metric.INNER_PRODUCT:
        return -product
    if metric is Metric.COSINE:
        return 1 - product / math.sqrt(sum(value * value for value in vector))
    square = sum((a - b) ** 2 for a, b in zip(query, vector, strict=True))
    return math.sqrt(square) if metric is Metric.L2 else square
