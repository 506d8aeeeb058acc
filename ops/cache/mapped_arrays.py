"""One file of arrays that can be mapped: filled in place, checked whole once, then opened by `mmap` alone.

Layout: 16 bytes (magic, u32 length and CRC-32 of the head), the head as JSON (name, values, each array's dtype, shape
and offset, size of the file, CRC-32 of all arrays), from 4,096 on arrays at multiples of 64 bytes.

A file's modification time says whether it has been checked: `_mark` of its head and of this boot. Whatever writes to
the file changes the time, and after a crash of the machine the mark is of another boot: then all is checked again.
"""

import hashlib
import json
import mmap
import os
import struct
import time
import weakref
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from icepuffin.ops.process.private_map import PrivateMap, advise_random
from icepuffin.puffin.blobs.shard_header import ALIGNMENT

_MAGIC = b"IPSHARD1"
_LEAD = struct.Struct("<8sII")
_HEAD_BYTES = 4_096
"""Room of the head, so that arrays have their offsets before it is written"""
SPARSE = "sparse"
"""Key of the plain value that names the arrays of which few rows are read, here and there"""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FIRST_MARK = 10**18
"""First modification time, in ns, that is a mark: in 2001, long before any file of this cache was written"""


class DamagedError(ValueError):
    """Raised for a file that is not what was written."""


def room_for(lengths: Iterable[int]) -> int:
    """Bytes that a file of arrays of so many bytes takes at most."""
    return _HEAD_BYTES + sum(length + -length % ALIGNMENT for length in lengths)


class Draft:
    """A file whose arrays are filled in place: they take the memory of the page cache, and none of the process's own.

    `stream`: open for reading and writing, and as long as `room_for` says.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self._unnamed: list[tuple[weakref.ref[npt.NDArray[Any]], int]] = []
        self._stream = stream
        self._name = name
        self._offsets: dict[str, tuple[str, tuple[int, ...], int]] = {}
        self._end = _HEAD_BYTES
        self._room = os.fstat(stream.fileno()).st_size
        self._mapped = mmap.mmap(stream.fileno(), self._room)
        self._whole = np.frombuffer(self._mapped, np.uint8)

    def allocate(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array to be filled, behind all others. It is one of the file's once `keep` has named it; until then its
        memory is free again when nobody refers to it any more. Raises TypeError where the file has no room for it.
        """
        self._unnamed = [(array, end) for array, end in self._unnamed if array() is not None]
        start = max([self._end, *(end for _, end in self._unnamed)])
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, buffer=self._mapped, offset=start)
        end = start + array.nbytes
        gap = min(-end % ALIGNMENT, self._room - end)
        self._mapped[end : end + gap] = bytes(gap)  # an earlier array may have lain there
        self._unnamed.append((weakref.ref(array), end + gap))  # all its views refer to it
        return array

    def keep(self, key: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Name an array: it stays where it is, if that is in the file; else its copy in the file is returned."""
        if not np.may_share_memory(array, self._whole):
            array, source = self.allocate(array.shape, array.dtype), array
            array[...] = source
        self.arrays[key] = array
        start = array.ctypes.data - self._whole.ctypes.data
        self._offsets[key] = (array.dtype.str, array.shape, start)
        self._end = max(self._end, start + array.nbytes + -array.nbytes % ALIGNMENT)
        return array

    def private(self, values: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """The arrays, to be read: writing to them changes this process's copy only. `values` as for `finish`."""
        return _mapped_arrays(self._stream, self._room, self._offsets, values)

    def finish(self, values: Mapping[str, Any]) -> None:
        """Write the head, and mark the file as checked. `values`: what JSON can hold. Nothing is filled any more."""
        checksum = 0
        for array in self.arrays.values():
            checksum = zlib.crc32(_bytes(array), checksum)
        size = min(self._end, self._room)
        text = {"name": self._name, "values": dict(values), "arrays": self._offsets, "size": size, "checksum": checksum}
        body = json.dumps(text).encode()
        head = _LEAD.pack(_MAGIC, len(body), zlib.crc32(body)) + body
        if len(head) > _HEAD_BYTES:
            raise ValueError(f"a head of {len(head)} bytes is too long")
        self._mapped[: len(head)] = head
        self._stream.truncate(size)
        touch(self._stream.fileno(), head)


def touch(handle: int, head: bytes) -> None:
    """Mark the file as checked, and used now."""
    os.utime(handle, ns=(time.time_ns(), _mark(head) or 0))


def read(stream: BinaryIO, name: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Map the file of `name`. Returns (arrays over it, values). Raises DamagedError.

    Arrays may be written to, which changes this process's copy only. They stay good when the file is removed.
    """
    status = os.fstat(stream.fileno())
    lead = stream.read(_LEAD.size)
    if len(lead) < _LEAD.size:
        raise DamagedError("the file is cut off")
    magic, length, checksum = _LEAD.unpack(lead)
    body = stream.read(length) if length < status.st_size else b""
    if magic != _MAGIC or len(body) != length or zlib.crc32(body) != checksum:
        raise DamagedError("the head does not have its checksum")
    head = json.loads(body)
    if head["name"] != name or head["size"] != status.st_size:
        raise DamagedError("the file is another one's, or has another length")
    arrays = _mapped_arrays(stream, status.st_size, head["arrays"], head["values"])
    if status.st_mtime_ns != _mark(lead + body):
        actual = 0
        for array in arrays.values():
            actual = zlib.crc32(_bytes(array), actual)
        if actual != head["checksum"]:
            raise DamagedError("the arrays do not have their checksum")
    touch(stream.fileno(), lead + body)
    return arrays, head["values"]


def _mapped_arrays(
    stream: BinaryIO, size: int, offsets: Mapping[str, Any], values: Mapping[str, Any]
) -> dict[str, npt.NDArray[Any]]:
    """The arrays at (dtype, shape, offset) in a file, mapped as a private copy.

    Of those that `values` names as sparse the system reads the pages that are needed, and none around them.
    """
    mapped = PrivateMap(stream.fileno(), size).bytes()
    sparse: Collection[str] = values.get(SPARSE, ())
    arrays: dict[str, npt.NDArray[Any]] = {}
    for key, (dtype, shape, offset) in offsets.items():
        arrays[key] = array = np.ndarray(tuple(shape), np.dtype(dtype), buffer=mapped, offset=offset)
        if key in sparse and array.nbytes:
            before = offset % mmap.PAGESIZE
            advise_random(array.ctypes.data - before, array.nbytes + before)
    return arrays


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _mark(head: bytes) -> int | None:
    """The modification time, in ns, of a file with this head that was checked since the machine started."""
    try:
        boot = _BOOT_ID.read_bytes()
    except OSError:  # not Linux: always check
        return None
    return _FIRST_MARK + int.from_bytes(hashlib.blake2b(boot + head, digest_size=7).digest())
