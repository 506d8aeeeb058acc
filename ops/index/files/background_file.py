"""A Puffin file that a thread writes while its last parts are still being made."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

from icepuffin.ops.model import ObjectRange
from icepuffin.ops.storage import Storage, StorageError
from icepuffin.ops.storage.memory_storage import with_bytes

Segments = tuple[bytes | ObjectRange, ...]
"""One blob, preceded by its padding"""


class BackgroundFile:
    """The writer of one file, which appears under its name when it is whole."""

    def __init__(self, store: Storage, path: str) -> None:
        self.path = path
        self._store = store
        self._first: Sequence[Segments] = ()
        self._rest: Future[Sequence[Segments]] = Future()
        self._thread = ThreadPoolExecutor(1)
        self._most_bytes = 0
        self._written: Future[int] | None = None
        self._is_begun = False
        self._is_left = False

    def begin(self, first: Sequence[Segments], most_bytes: int) -> None:
        """Start writing with the file's first blobs, which are final; without any the file is written by `finish`.

        `most_bytes`: of the whole file, about.
        """
        self._first = first
        if first:
            self._start(most_bytes)

    def finish(self, segments: Sequence[Segments]) -> None:
        """Write the rest, and wait until the file is there. `segments`: all blobs, those of `begin` included, and the
        footer. Raises StorageError.
        """
        self._rest.set_result(segments[len(self._first) :])
        written = self._written or self._start(sum(map(_length, itertools.chain.from_iterable(segments))))
        written.result()

    def leave(self, *, failed: bool) -> None:
        """Stop writing; where the work `failed`, the file does not stay."""
        self._is_left = True
        self._rest.cancel()
        self._thread.shutdown()
        # where Ctrl-C comes while the thread starts, it is not known whether the thread has written
        if failed and self._is_begun and (self._written is None or self._written.exception() is None):
            self._remove()

    def _start(self, most_bytes: int) -> Future[int]:
        self._is_begun = True
        self._most_bytes = most_bytes
        self._written = self._thread.submit(self._write)
        return self._written

    def _write(self) -> int:
        size = self._store.concat(self.path, self._segments(), self._most_bytes)
        if self._is_left:  # nobody waits for a thread that Ctrl-C came upon while it started
            self._remove()
            raise CancelledError
        return size

    def _remove(self) -> None:
        with contextlib.suppress(StorageError, OSError):  # the first error matters more; gc removes the file
            self._store.delete(self.path)

    def _segments(self) -> Iterator[bytes | ObjectRange]:
        for segments in itertools.chain(self._first, self._later()):
            if self._is_left:
                raise CancelledError
            yield from with_bytes(segments)

    def _later(self) -> Iterator[Segments]:
        yield from self._rest.result()


def _length(segment: bytes | ObjectRange) -> int:
    return len(segment) if isinstance(segment, bytes) else segment.length
