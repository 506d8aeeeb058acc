"""Sizes of the codes of product quantization, from counts alone: these modules start without numba."""

from icepuffin.ann_kernels.errors import KernelError

BITS = 4, 8
"""Bits that a code may have"""


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
