"""The codes by which a search walks: of four bits, or else of one byte, where they tell which vectors are nearest.

Codes of many dimensions get signs, too.
"""

from typing import TypeAlias

from icepuffin.ann_kernels import four_bit_quantization, scalar_quantization
from icepuffin.ann_kernels.arrays import F32
from icepuffin.ann_kernels.four_bit_quantization import FourBitCodes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.scalar_quantization import ScalarCodes, preserves_neighbors

WalkCodes: TypeAlias = FourBitCodes | ScalarCodes
FEWEST_SIGNED_DIMS = 1_280
"""Dimensions below which codes of four bits get no signs: reading these takes as long as what they save"""


def walk_codes(vectors: F32, metric: Metric, *, threads: int = 1) -> WalkCodes | None:
    """The smallest codes of prepared vectors f32[N, D] that preserve the nearest neighbours; None where none do.
    Those of four bits have signs from FEWEST_SIGNED_DIMS dimensions on.

    Inner products get one byte per dimension: they grow with the query, and so does the error of four bits.
    """
    four_bits = () if metric is Metric.INNER_PRODUCT else (four_bit_quantization,)
    for kind in (*four_bits, scalar_quantization):
        codes: WalkCodes | None = kind.encode(vectors, threads=threads)
        if codes and preserves_neighbors(codes, vectors, metric):
            if isinstance(codes, FourBitCodes) and vectors.shape[1] >= FEWEST_SIGNED_DIMS:
                return codes.with_signs(threads=threads)
            return codes
    return None
