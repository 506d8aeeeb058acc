"""Sizes of codes, from counts alone: these modules start without numba."""

from collections.abc import Mapping

from icepuffin.ann_kernels.errors import KernelError

BITS = 4, 8
"""Bits that a code of product quantization may have"""
ROTATED_BITS: Mapping[str, int] = {"rq4": 4, "rq5": 5, "rq8": 8}
"""Bits per dimension of rotated codes, by their name"""
MIN_ROTATED_DIMS, MAX_ROTATED_DIMS = 8, 16_384
"""Dimensions that rotated codes may have: errors of fewer are not distributed as they are said to be"""
HADAMARD = 128
"""Dimensions that are rotated together; those of rotated codes are padded to it"""
_TERMS_BYTES = 16


def rotated_dims(dims: int) -> int:
    """Dimensions of rotated vectors: whole blocks."""
    return dims + -dims % HADAMARD


def rotated_bytes(dims: int, bits: int) -> int:
    """Bytes of the rotated code of one vector, with its terms."""
    return rotated_dims(dims) * bits // 8 + _TERMS_BYTES


def choose_m(dims: int, most_bytes: int = 48, bits: int = 8) -> int:
    """The largest number of sub-quantizers that divides `dims`, and whose codes fill whole bytes, at most so many.

    Raises KernelError where there is none: codes of 4 bits need an even number of dimensions.
    """
    step = 8 // bits
    if dims < 1 or most_bytes < 1 or dims % step:
        raise KernelError(
            f"{dims} dimensions cannot be cut into codes of {bits} bits that fill up to {most_bytes} bytes"
        )
    return max(m for m in range(step, min(dims, most_bytes * step) + 1, step) if dims % m == 0)


def code_bytes(m: int, bits: int) -> int:
    """B: bytes of the codes of one vector."""
    return m * bits // 8
