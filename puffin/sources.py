"""Where a reader's bytes come from: anything that knows its size and can read a range."""

import os
from pathlib import Path
from typing import Protocol


class RangeSource(Protocol):
    """Random access to one immutable object."""

    def size(self) -> int:
        """Length of the object in bytes."""
        ...

    def read_range(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset`; fewer only where the object ends."""
        ...


class BytesSource:
    """An object held in memory."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)

    def size(self) -> int:
        return len(self._data)

    def read_range(self, offset: int, length: int) -> bytes:
        return bytes(self.view(offset, length))

    def view(self, offset: int, length: int) -> memoryview:
        """The same, not copied."""
        return self._data[offset : offset + length]


class FileSource:
    """A local file. Opened per call, so that it can be shared by threads and sent to other processes."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def size(self) -> int:
        return self._path.stat().st_size

    def read_range(self, offset: int, length: int) -> bytes:
        with self._path.open("rb") as stream:
            parts = []
            while length > 0 and (part := os.pread(stream.fileno(), length, offset)):
                parts.append(part)
                offset += len(part)
                length -= len(part)
        return b"".join(parts)
