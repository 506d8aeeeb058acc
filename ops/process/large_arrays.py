"""Vectors of a shard that is made: in memory, or in a temporary file that is mapped where they are many.

The system writes pages of such a file out and drops them when a task needs its memory for something else, as vectors
are read once in a while, and mostly in order. What a build reads all the time, codes of one byte and neighbours, is in
memory.
"""

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ops.errors import LimitError

LARGEST_IN_MEMORY = 2**30
"""Bytes of the vectors of one shard, up to which they are in memory: those of a shard of the automatic size are"""
_GIB = 2**30
_BYTES_PER_COPY = 16 * 2**20


class NoRoomError(LimitError):
    """Raised when the folder for temporary files has no room for the vectors of a large shard."""


def new_array(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array to be filled: in memory up to `LARGEST_IN_MEMORY`, else in a file without a name. Raises NoRoomError."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= LARGEST_IN_MEMORY:
        return np.empty(shape, dtype)
    folder = "no folder"
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, size)  # writing to a mapped file on a full disk kills the process
            mapped = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise NoRoomError(
            f"{folder}: there is no room for {size / _GIB:.1f} GiB of temporary files, which vectors of "
            f"a large shard take while it is made or checked: {error}. Set TMPDIR to a folder with more room, or "
            "create the index with more `shards`"
        ) from error
    return np.frombuffer(mapped, dtype).reshape(shape)


def as_floats(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Vectors [N, D] of any type of floats as f32: the same array where it has that type."""
    return vectors if vectors.dtype == np.float32 else converted(vectors, np.float32)


def converted(vectors: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A copy of vectors [N, D] in another type of floats."""
    out = new_array(vectors.shape, dtype)
    np.copyto(out, vectors, casting="same_kind")
    return out


def rows_at(vectors: npt.NDArray[np.float32], rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
    """A copy of some rows of f32[N, D], in their order."""
    out = new_array((len(rows), vectors.shape[1]), vectors.dtype)
    step = max(1, _BYTES_PER_COPY // max(1, vectors.itemsize * vectors.shape[1]))
    for start in range(0, len(rows), step):  # each is copied twice, as rows are compared with the bounds
        part = slice(start, start + step)
        np.take(vectors, rows[part], axis=0, out=out[part])
    return out


def concatenated(parts: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """All rows of f32[n, D], one part after the other."""
    out = new_array((sum(map(len, parts)), parts[0].shape[1]), parts[0].dtype)
    return np.concatenate(parts, out=out)
