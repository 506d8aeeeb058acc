"""Where large arrays that are made here are put: in memory, or wherever a caller wants them."""

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import AnyArray
from icepuffin.ann_kernels.simd.prefetching import LINE


class Allocate(Protocol):
    """Function that gives arrays."""

    def __call__(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> AnyArray:
        """An array that begins with a cache line, to be filled."""
        ...


def in_memory(shape: tuple[int, ...], dtype: npt.DTypeLike) -> AnyArray:
    """An array of this process's memory that begins with a cache line: a row of whole blocks then touches no line more
    than it has. NumPy's own arrays begin anywhere.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    padded = np.empty(size + LINE, np.uint8)
    first = -padded.ctypes.data % LINE
    return padded[first : first + size].view(dtype).reshape(shape)
