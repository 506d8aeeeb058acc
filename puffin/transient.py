"""Memory of what is large and soon dropped."""

import mmap

import numpy as np
import numpy.typing as npt

_MIN_BYTES = 1 << 20
"""Bytes from which the system is worth asking"""


def transient(size: int) -> npt.NDArray[np.uint8]:
    """u8[size], to be filled. When it is dropped, the system has its memory again: of blocks up to 32 MiB, malloc may
    keep one per thread and size for later use.
    """
    if size < _MIN_BYTES:
        return np.empty(size, np.uint8)
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
