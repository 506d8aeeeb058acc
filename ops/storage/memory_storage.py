"""Objects in the memory of this process, for what one run stages and reads again itself. See `open_storage`."""

import contextlib
import io
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from icepuffin.ops.model import ObjectInfo, ObjectRange
from icepuffin.ops.storage.base import ObjectExistsError, ObjectMissingError, Storage

SCHEME = "icepuffin-memory"
"""Scheme of their paths, which no other process can read"""
_BYTES_AT_ONCE = 8 << 20
_objects: dict[str, bytes] = {}
"""Objects of all threads by path. A list of its keys is made at once: others may add to it meanwhile"""


@contextlib.contextmanager
def memory_folder(name: str) -> Iterator[str]:
    """A folder of its own in the memory of this process. What is in it is forgotten when the block ends.

    `name`: what messages that quote its path are to say.
    """
    folder = f"{SCHEME}://{uuid.uuid4().hex}/{name}"
    try:
        yield folder
    finally:
        for path in [path for path in list(_objects) if path.startswith(f"{folder}/")]:
            del _objects[path]


def with_bytes(segments: Iterable[bytes | ObjectRange]) -> Iterator[bytes | ObjectRange]:
    """The segments of an object, with the bytes in place of objects in memory: other stores cannot copy these.

    Raises ObjectMissingError.
    """
    for segment in segments:
        if isinstance(segment, bytes) or not segment.path.startswith(f"{SCHEME}:"):
            yield segment
            continue
        for start in range(0, segment.length, _BYTES_AT_ONCE):
            length = min(_BYTES_AT_ONCE, segment.length - start)
            yield MemoryStorage().read_range(segment.path, segment.offset + start, length)


class MemoryStorage(Storage):
    """The `Storage` of this process's memory. Tasks that run elsewhere do not reach it."""

    deletions_at_once = 1

    def size(self, path: str) -> int:
        return len(_content(path))

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return _content(path)[offset : offset + length]

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read_range(path, offset, length) for offset, length in ranges]

    @contextlib.contextmanager
    def open_output(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        sink = io.BytesIO()
        yield sink
        if _objects.setdefault(path, data := sink.getvalue()) is not data:
            raise ObjectExistsError(f"{path} exists already")

    def concat(self, path: str, segments: Iterable[bytes | ObjectRange], most_bytes: int = 0) -> int:
        """Joins bytes and other objects in memory."""
        with self.open_output(path) as sink:
            for segment in with_bytes(segments):
                if isinstance(segment, ObjectRange):
                    raise ObjectMissingError(f"{segment.path} is not in memory")
                sink.write(segment)
        return 0

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = prefix.rstrip("/") + "/"
        for path in [path for path in list(_objects) if path.startswith(folder)]:
            if (data := _objects.get(path)) is not None:  # somebody else may delete meanwhile
                yield ObjectInfo(path, len(data), self.now_ms(prefix))

    def now_ms(self, folder: str) -> int:
        return time.time_ns() // 1_000_000

    def delete(self, path: str) -> None:
        _objects.pop(path, None)


def _content(path: str) -> bytes:
    try:
        return _objects[path]
    except KeyError:
        raise ObjectMissingError(f"{path} is not in the memory of this process") from None
