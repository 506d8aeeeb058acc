"""Squared gaps and dot products in float64 over vectors of float32 or float64, with the same bits in every kernel.

Sums go by whole blocks (`simd.double_blocks`), then one element at a time.
"""

from typing import Any

import numpy as np

from icepuffin.ann_kernels.arrays import Floats
from icepuffin.ann_kernels.compilation import strict_inner_kernel
from icepuffin.ann_kernels.simd.double_blocks import BLOCK_VALUES, block_products, block_squared_gaps


@strict_inner_kernel
def squared_gap(vectors: Floats, node: Any, query: Floats, factor: float) -> Any:
    """f64: squared L2 distance of factor * vectors[node] from a query; arrays in C order, f32 or f64."""
    size = query.size
    blocks = size // BLOCK_VALUES
    total = block_squared_gaps(vectors, np.intp(node) * size, query, np.intp(0), np.intp(blocks), factor)
    for i in range(blocks * BLOCK_VALUES, size):
        gap = np.float64(vectors[node, i]) * factor - query[i]
        total += gap * gap
    return total


@strict_inner_kernel
def product(vectors: Floats, node: Any, query: Floats) -> Any:
    """f64: the dot product of vectors[node] and a query; arrays in C order, f32 or f64."""
    size = query.size
    blocks = size // BLOCK_VALUES
    total = block_products(vectors, np.intp(node) * size, query, np.intp(0), np.intp(blocks))
    for i in range(blocks * BLOCK_VALUES, size):
        total += np.float64(vectors[node, i]) * query[i]
    return total
