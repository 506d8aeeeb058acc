"""One file of arrays that can be mapped: written whole, checked whole once, then opened by `mmap` alone.

Layout: 16 bytes (magic, u32 length and CRC-32 of the head), the head as JSON (name, values, each array's dtype, shape
and offset, size of the file, CRC-32 of all that follows), arrays at multiples of 64 bytes.

A file's modification time says whether it has been checked: `_mark` of its head and of this boot. Whatever writes to
the file changes the time, and after a crash of the machine the mark is of another boot: then all is checked again.
"""

import hashlib
import json
import mmap
import os
import struct
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

_MAGIC = b"IPSHARD1"
_LEAD = struct.Struct("<8sII")
_ALIGNMENT = 64
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FIRST_MARK = 10**18
"""First modification time, in ns, that is a mark: in 2001, long before any file of this cache was written"""


class DamagedError(ValueError):
    """Raised for a file that is not what was written."""


def size_of(name: str, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> int:
    """Bytes of the file that `write` makes."""
    return int(_plan(name, arrays, values, 0)[1])


def write(stream: BinaryIO, name: str, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any]) -> None:
    """Write the file and mark it as checked. `values`: what JSON can hold."""
    checksum = 0
    for array in arrays.values():
        checksum = zlib.crc32(_bytes(array), checksum)
    head, size, offsets = _plan(name, arrays, values, checksum)
    stream.write(head)
    for array, offset in zip(arrays.values(), offsets, strict=True):
        stream.seek(offset)
        stream.write(_bytes(array))
    stream.truncate(size)
    stream.flush()
    touch(stream.fileno(), head)


def touch(handle: int, head: bytes) -> None:
    """Mark the file as checked, and used now."""
    os.utime(handle, ns=(time.time_ns(), _mark(head) or 0))


def read(stream: BinaryIO, name: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Map the file of `name`; -> (arrays over it, values). Raises DamagedError.

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
    mapped = mmap.mmap(stream.fileno(), status.st_size, access=mmap.ACCESS_COPY)
    arrays: dict[str, npt.NDArray[Any]] = {
        key: np.ndarray(tuple(shape), np.dtype(dtype), buffer=mapped, offset=offset)
        for key, (dtype, shape, offset) in head["arrays"].items()
    }
    if status.st_mtime_ns != _mark(lead + body):
        actual = 0
        for array in arrays.values():
            actual = zlib.crc32(_bytes(array), actual)
        if actual != head["checksum"]:
            raise DamagedError("the arrays do not have their checksum")
    touch(stream.fileno(), lead + body)
    return arrays, head["values"]


def _bytes(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _plan(
    name: str, arrays: Mapping[str, npt.NDArray[Any]], values: Mapping[str, Any], checksum: int
) -> tuple[bytes, int, list[int]]:
    """(lead and head, size of the file, offset of each array). The head has room for numbers of any length."""
    room = _LEAD.size + len(json.dumps([name, dict(values)])) + 256 + sum(len(key) + 128 for key in arrays)
    offset = room + -room % _ALIGNMENT
    places, offsets = {}, []
    for key, array in arrays.items():
        places[key] = (array.dtype.str, array.shape, offset)
        offsets.append(offset)
        offset += array.nbytes + -array.nbytes % _ALIGNMENT
    text = {"name": name, "values": dict(values), "arrays": places, "size": offset, "checksum": checksum}
    body = json.dumps(text).encode()
    return _LEAD.pack(_MAGIC, len(body), zlib.crc32(body)) + body, offset, offsets


def _mark(head: bytes) -> int | None:
    """The modification time, in ns, of a file with this head that was checked since the machine started."""
    try:
        boot = _BOOT_ID.read_bytes()
    except OSError:  # not Linux: always check
        return None
    return _FIRST_MARK + int.from_bytes(hashlib.blake2b(boot + head, digest_size=7).digest())
