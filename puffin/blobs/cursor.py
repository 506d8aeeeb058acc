"""A checked cursor over a blob's bytes, and its counterpart for writing: little-endian, nothing read past the end."""

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.puffin.errors import BadBlobError


class Cursor:
    """Reads a blob front to back; every read that does not fit raises BadBlobError naming the part."""

    def __init__(self, data: bytes | memoryview, what: str) -> None:
        self._data = memoryview(data)
        self._what = what
        self.position = 0

    def take(self, length: int, part: str) -> memoryview:
        end = self.position + length
        if length < 0 or end > len(self._data):
            raise BadBlobError(
                f"{self._what}: {part} needs {length} bytes at {self.position}, the blob has {len(self._data)}"
            )
        out = self._data[self.position : end]
        self.position = end
        return out

    def unpack(self, layout: str, part: str) -> tuple[Any, ...]:
        form = struct.Struct("<" + layout)
        return form.unpack(self.take(form.size, part))

    def array(self, dtype: str, count: int, part: str) -> npt.NDArray[Any]:
        data_type = np.dtype(dtype)
        return np.frombuffer(self.take(data_type.itemsize * count, part), data_type).astype(data_type.newbyteorder("="))

    def text(self, part: str) -> str:
        (length,) = self.unpack("I", part)
        try:
            return bytes(self.take(length, part)).decode()
        except UnicodeDecodeError as error:
            raise BadBlobError(f"{self._what}: {part} is not UTF-8") from error

    def finish(self) -> None:
        if left := len(self._data) - self.position:
            raise BadBlobError(f"{self._what}: {left} bytes follow its end")


def packed_text(text: str) -> bytes:
    """u32 length, UTF-8."""
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw
