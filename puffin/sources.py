"""Where a reader's bytes come from: anything that knows its size and can read a range."""

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
