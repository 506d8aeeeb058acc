"""Writing a large file past the page cache.

An index is copied whole into its next version, and the copy is seldom read. Through the page cache it would displace
files that are read, wait for memory, and wait for the sync of all its bytes at the end.
"""

import errno
import fcntl
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

_BUFFER = 8 << 20
_BLOCK = 4_096
"""Alignment of memory, of offsets in the file and of lengths, in bytes"""


class DirectSink:
    """Appends to an open file in whole blocks, past the cache where the file system allows it. The last, incomplete
    block goes through the cache.

    A context manager: buffered bytes are written when the block ends without an error. One buffer is filled while the
    other is written; an error of writing is raised by a later call, at the latest by the end of the block.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._view, self._other = (memoryview(mmap.mmap(-1, _BUFFER)) for _ in range(2))
        self._filled = 0
        self._direct = _switch(handle, on=True)
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def __enter__(self) -> "DirectSink":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._writer:  # in any case nothing is written any more when this returns
            if error_type is None:
                self._wait()
                whole = self._filled - self._filled % _BLOCK
                self._write(self._view[:whole])
                self._through_cache()
                self._write(self._view[whole : self._filled])

    def append(self, data: bytes) -> None:
        """Append bytes."""
        done = 0
        while done < len(data):
            step = min(len(data) - done, _BUFFER - self._filled)
            self._view[self._filled : self._filled + step] = data[done : done + step]
            self._take(step)
            done += step

    def append_range(self, source: int, offset: int, length: int) -> int:
        """Append bytes of another open file. Returns their number, less than `length` where the file ends."""
        done = 0
        while done < length:
            room = self._view[self._filled : self._filled + length - done]
            step = os.preadv(source, [room], offset + done)
            if not step:
                break
            self._take(step)
            done += step
        return done

    def _take(self, count: int) -> None:
        self._filled += count
        if self._filled == _BUFFER:
            self._wait()
            self._writing = self._writer.submit(self._write, self._view)
            self._view, self._other, self._filled = self._other, self._view, 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            try:
                done += os.write(self._handle, view[done:])
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._through_cache()  # this one wants larger blocks

    def _through_cache(self) -> None:
        if self._direct:
            self._direct = _switch(self._handle, on=False)


def _switch(handle: int, *, on: bool) -> bool:
    """Let writes bypass the page cache (O_DIRECT), or use it. Returns whether they bypass it now."""
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return on
