"""Files mapped as a private copy, which need no open file.

Those of `mmap` keep one each: a process may have 1,024, sockets included, and readers keep a map per shard.
"""

import ctypes
import mmap
import os
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
_libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_FAILED = ctypes.c_void_p(-1).value


class PrivateMap:
    """The first bytes of a file. Writing to them changes this process's copy only. They stay good when the file is
    removed, and are unmapped when no array refers to them any more.
    """

    def __init__(self, handle: int, size: int) -> None:
        """Map the open file of a handle, which may be closed afterwards. Raises OSError."""
        address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, handle, 0)
        if address == _FAILED:
            raise _error()
        self.address, self.size = int(address), size
        weakref.finalize(self, _libc.munmap, address, size).atexit = False

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """What NumPy needs for an array over the bytes; see its documentation."""
        return {"version": 3, "shape": (self.size,), "typestr": "|u1", "data": (self.address, False)}

    def bytes(self) -> npt.NDArray[np.uint8]:
        """u8[size]: an array over all of them, which refers to the map."""
        return np.asarray(self)


def advise_random(address: int, size: int) -> None:
    """Let the system read only the pages that are needed of mapped bytes, and none around them. The address is the
    first of a page. Raises OSError.
    """
    if _libc.madvise(address, size, mmap.MADV_RANDOM):
        raise _error()


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
