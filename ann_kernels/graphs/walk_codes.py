"""The codes by which a search walks: of four bits, or else of one byte, where they tell which vectors are nearest.

Codes of many dimensions get signs, too.
"""

from typing import TypeAlias

from icepuffin.ann_kernels.allocation import Allocate, in_memory
from icepuffin.ann_kernels.arrays import F32
from icepuffin.ann_kernels.codes import four_bit_quantization, scalar_quantization
from icepuffin.ann_kernels.codes.four_bit_quantization import FourBitCodes
from icepuffin.ann_kernels.codes.scalar_quantization import ScalarCodes
from icepuffin.ann_kernels.graphs.neighbor_check import NeighborCheck, preserves_neighbors
from icepuffin.ann_kernels.metric import Metric

WalkCodes: TypeAlias = FourBitCodes | ScalarCodes
MIN_COMPACT_DIMS = 65
"""Dimensions below which codes of four bits take as many cache lines as those of one byte"""
MIN_SIGNED_DIMS = 1_280
"""Dimensions below which codes of four bits get no signs: reading these takes as long as what they save"""


def walk_codes(
    vectors: F32, metric: Metric, *, compact: bool = False, threads: int = 1, allocate: Allocate = in_memory
) -> WalkCodes | None:
    """Codes of prepared vectors f32[N, D] that preserve the nearest neighbours; None where none do.

    Of four bits where these are faster, or with `compact` where they take less memory, else of one byte. Codes of four
    bits have signs from MIN_SIGNED_DIMS dimensions on, where these preserve them too, but for compact ones.
    Inner products get one byte per dimension: they grow with the query, and so does the error of four bits.

    `allocate` gives the arrays of each kind that is tried: those of a kind that does not serve are dropped before the
    next one is made.
    """
    if metric is not Metric.INNER_PRODUCT and len(vectors) > 1:
        four_bits = _four_bit_codes(vectors, metric, compact=compact, threads=threads, allocate=allocate)
        if four_bits is not None:
            return four_bits
    codes = scalar_quantization.encode(vectors, threads=threads, allocate=allocate)
    return codes if codes is not None and preserves_neighbors(codes, vectors, metric, threads=threads) else None


def _four_bit_codes(
    vectors: F32, metric: Metric, *, compact: bool, threads: int, allocate: Allocate
) -> FourBitCodes | None:
    fewest_dims = MIN_COMPACT_DIMS if compact else four_bit_quantization.MIN_DIMS
    codes = four_bit_quantization.encode(vectors, fewest_dims=fewest_dims, threads=threads, allocate=allocate)
    if codes is None:
        return None
    check = NeighborCheck.from_codes(codes, vectors, metric, threads=threads)
    if not check.are_preserved:
        return None
    if compact or vectors.shape[1] < MIN_SIGNED_DIMS:
        return codes
    signed = codes.with_signs(threads=threads, allocate=allocate)
    return signed if check.are_kept(signed) else codes
