"""The protocol of all stores. Objects are immutable once published; no object under its final name is incomplete."""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from icepuffin.ops.errors import IcepuffinError, UnreachableError
from icepuffin.ops.messages import listed
from icepuffin.ops.model import ObjectInfo, ObjectRange
from icepuffin.ops.storage.prefetch import coalesced
from icepuffin.puffin.puffin_writer import ByteSink

_log = logging.getLogger(__name__)
_LONGEST = 8 << 20
"""Largest request in bytes, except for a single longer range; several smaller ones run in parallel"""
DELETIONS = 1000
"""Objects that one request to S3 removes, at most"""


class StorageError(UnreachableError):
    """Raised when a store cannot carry out a request; the message names the object."""


class RefusedError(StorageError):
    """Raised when a store refuses access to an object, for its name, or for rights that the user lacks."""


class ObjectExistsError(StorageError):
    """Raised when an object would be created under a name that is taken."""


class ObjectMissingError(StorageError):
    """Raised when an object that is read does not exist."""


class Storage(Protocol):
    """One store: a local file system, S3, GCS or ADLS. Thread-safe; not to be sent to other processes: send
    StorageConfig.
    """

    piece_bytes: int = 8 << 20
    """Bytes of one request where much is read, piece by piece: a distant store answers each after a wait"""
    deletions_at_once: int = 16
    """Requests that remove an object each, at once: a distant store answers each after a wait"""

    def size(self, path: str) -> int:
        """Bytes of the object. Raises ObjectMissingError."""
        ...

    def exists(self, path: str) -> bool:
        try:
            self.size(path)
        except ObjectMissingError:
            return False
        return True

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes, fewer only where the object ends. Raises ObjectMissingError."""
        ...

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """`(offset, length)` ranges of one object, read concurrently where that pays."""
        ...

    def source(self, path: str) -> "ObjectSource":
        """The object as a source for `icepuffin.puffin.puffin_reader.PuffinReader`."""
        return ObjectSource(self, path)

    def create(self, path: str, data: bytes) -> None:
        """Publish `data` under a name that is free. Raises ObjectExistsError; one of several creators wins."""
        with self.open_output(path) as sink:
            sink.write(data)

    def open_output(self, path: str, *, durable: bool = True) -> AbstractContextManager[ByteSink]:
        """Stream an object. It appears when the block ends without an error, whole; otherwise nothing appears.

        `durable`: once it appears it survives a loss of power. False is for objects that can be made again.
        Raises ObjectExistsError, at the latest when the block ends.
        """
        ...

    def concat(self, path: str, segments: Iterable[bytes | ObjectRange], most_bytes: int = 0) -> int:
        """Publish the segments, joined; stored bytes are copied inside the store where it can.

        `most_bytes`: of the object, about, where it may be large: some stores choose the size of their parts by it.
        `segments` is consumed while earlier ones are copied; where it raises, nothing appears.
        Returns how many bytes the store copied by itself. Raises ObjectExistsError.
        """
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose path starts with the folder `prefix`, in no order."""
        ...

    def now_ms(self, folder: str) -> int:
        """The store's time, by the clock of `ObjectInfo.modified_ms`: milliseconds since the epoch."""
        ...

    def delete(self, path: str) -> None:
        """Remove an object; one that is gone already is no error."""
        ...

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove objects, up to a thousand at once where that pays.

        Where some of a thousand cannot be removed, the rest of that thousand is, and later objects are not. Raises an
        error that names those that stay.
        """
        for start in range(0, len(paths), DELETIONS):
            if errors := self.deletion_errors(paths[start : start + DELETIONS]):
                raise _joined(errors)

    def deletion_errors(self, paths: Sequence[str]) -> Sequence[Exception]:
        """Remove up to a thousand objects. Returns the errors of those that stay."""

        def error_of(path: str) -> Exception | None:
            try:
                self.delete(path)
            except (IcepuffinError, OSError) as error:
                return error
            return None

        if self.deletions_at_once == 1:
            return [error for error in map(error_of, paths) if error]
        with ThreadPoolExecutor(self.deletions_at_once) as pool:
            return [error for error in pool.map(error_of, paths) if error]


def _joined(errors: Sequence[Exception]) -> Exception:
    """One error for all, of their type where they have one."""
    first = errors[0]
    if len(errors) == 1:
        return first
    is_alike = isinstance(first, IcepuffinError) and all(type(error) is type(first) for error in errors)
    return (type(first) if is_alike else StorageError)("; ".join(listed([str(error) for error in errors])))


@contextmanager
def left_where_refused() -> Iterator[None]:
    """Let objects that nothing needs, and that the block may not delete for lack of rights, stay with a warning."""
    try:
        yield
    except RefusedError as error:
        _log.warning(
            "files that nothing needs stay (%s). `icepuffin gc` deletes them, run by a user with the right to delete",
            error,
        )


def short_object(part: ObjectRange, length: int) -> ObjectMissingError:
    """The error for a part of which the object has the first `length` bytes alone."""
    end, missing = part.offset + length, part.length - length
    return ObjectMissingError(f"{part.path} ends at {end}, {missing} bytes more were expected")


class ObjectSource:
    """A stored object as a range source, with ranges that `fetch` reads ahead: not to be shared between threads then.

    `size`: its bytes, where they are known; else they are requested once.
    """

    def __init__(self, storage: Storage, path: str, *, size: int | None = None) -> None:
        self._storage = storage
        self._path = path
        self._size = size
        self._pieces: list[tuple[int, bytes]] = []

    def size(self) -> int:
        if self._size is None:
            self._size = self._storage.size(self._path)
        return self._size

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch ranges (offset, length), in place of those fetched before. Raises what the store raises."""
        self._pieces = []
        planned = coalesced(ranges, longest=_LONGEST)
        data = self._storage.read_ranges(self._path, planned)
        self._pieces = [(offset, piece) for (offset, _), piece in zip(planned, data, strict=True)]

    def read_range(self, offset: int, length: int) -> bytes:
        index = bisect_right(self._pieces, offset, key=lambda piece: piece[0]) - 1
        if index >= 0:
            start, data = self._pieces[index]
            if offset + length <= start + len(data):
                return data[offset - start : offset - start + length]
        return self._storage.read_range(self._path, offset, length)


class PartSource:
    """Part of one object, such as a blob inside a Puffin file, as a source of its own."""

    def __init__(self, storage: Storage, part: ObjectRange) -> None:
        self._storage = storage
        self.part = part

    def size(self) -> int:
        return self.part.length

    def read_range(self, offset: int, length: int) -> bytes:
        """The same as `Storage.read_range`, cut at the end of the part."""
        length = max(0, min(length, self.part.length - offset))
        return self._storage.read_range(self.part.path, self.part.offset + offset, length)
