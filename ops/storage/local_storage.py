"""Local files: written under a temporary name, synced, linked under the final name."""

import contextlib
import ctypes
import errno
import io
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from icepuffin.ops.model import ObjectInfo, ObjectRange
from icepuffin.ops.storage.base import ObjectExistsError, ObjectMissingError, Storage, StorageError, short_object
from icepuffin.ops.storage.locations import normalize

_log = logging.getLogger(__name__)


def to_path(location: str) -> Path:
    """The file that a `file:` location or a plain absolute path names."""
    return Path(normalize(location).removeprefix("file://"))


_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
_HERE, _RENAME_NOREPLACE = -100, 1
"""AT_FDCWD and the flag of renameat2(2)"""


class LocalStorage(Storage):
    """The `Storage` of this machine's file system."""

    piece_bytes = 1 << 20
    deletions_at_once = 1

    def size(self, path: str) -> int:
        try:
            return to_path(path).stat().st_size
        except FileNotFoundError as error:
            raise ObjectMissingError(f"{path} does not exist") from error

    def exists(self, path: str) -> bool:
        return to_path(path).exists()

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        return self.read_ranges(path, [(offset, length)])[0]

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with _open(path) as stream:
            return [_read_fully(stream.fileno(), offset, length) for offset, length in ranges]

    @contextlib.contextmanager
    def open_output(self, path: str, *, durable: bool = True) -> Iterator[BinaryIO]:
        final = to_path(path)
        final.parent.mkdir(parents=True, exist_ok=True)
        aside = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
        try:
            with aside.open("xb") as stream:
                yield stream
                stream.flush()
                if durable:
                    os.fsync(stream.fileno())
            try:
                _publish(aside, final)
            except FileExistsError as error:
                raise ObjectExistsError(f"{path} exists already") from error
            except FileNotFoundError as error:
                raise ObjectMissingError(f"{path} was removed while it was written") from error
        except OSError as error:
            error.filename = error.filename or str(final)  # a full disk does not say which file it was
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                aside.unlink()
        if durable:
            _sync_directory(final.parent)

    def concat(self, path: str, segments: Iterable[bytes | ObjectRange], most_bytes: int = 0) -> int:
        copied = 0
        with self.open_output(path) as output:
            for segment in segments:
                if isinstance(segment, bytes):
                    output.write(segment)
                else:
                    output.flush()
                    _append_range(output.fileno(), segment)
                    copied += segment.length
        with _open(path) as written:
            # an index is copied whole, and the copy is seldom read: what is read stays in the page cache
            os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return copied

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for folder, _, names in os.walk(to_path(prefix)):
            for name in names:
                file = Path(folder) / name
                with contextlib.suppress(FileNotFoundError):  # somebody else may delete meanwhile
                    status = file.stat()
                    yield ObjectInfo(f"file://{file}", status.st_size, status.st_mtime_ns // 1_000_000)

    def now_ms(self, folder: str) -> int:
        """The time of the folder's file system, which may be another machine's: that at which a nameless file is made,
        in the folder that is above where this one is not made yet.

        Where no such file can be made (a read-only folder, a full disk), it is the time of this machine.
        """
        path = to_path(folder)
        try:
            existing = next(above for above in (path, *path.parents) if above.exists())
            with tempfile.TemporaryFile(dir=existing) as probe:
                return os.fstat(probe.fileno()).st_mtime_ns // 1_000_000
        except OSError as error:
            _log.warning("%s: its clock cannot be read (%s); this machine's is taken", folder, error)
            return time.time_ns() // 1_000_000

    def delete(self, path: str) -> None:
        to_path(path).unlink(missing_ok=True)


def _publish(aside: Path, final: Path) -> None:
    """Give a file its name, unless something has it: a link fails where a rename would overwrite. File systems without
    links (some of FUSE and SMB) may have a rename that does not overwrite.
    """
    try:
        os.link(aside, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_to_new(aside, final)


def _rename_to_new(aside: Path, final: Path) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        if not rename(_HERE, os.fsencode(aside), _HERE, os.fsencode(final), _RENAME_NOREPLACE):
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS, *_NO_LINKS):
            raise OSError(number, os.strerror(number), str(final))
    raise StorageError(
        f"{final.parent} lies on a file system with neither hard links nor a rename that does not overwrite: of two "
        "writers both could win there. Put the table on another one"
    )


def _open(path: str) -> io.FileIO:
    try:
        return to_path(path).open("rb", buffering=0)
    except FileNotFoundError as error:
        raise ObjectMissingError(f"{path} does not exist") from error


def _read_fully(handle: int, offset: int, length: int) -> bytes:
    parts = []
    while length > 0 and (part := os.pread(handle, length, offset)):
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _append_range(output: int, segment: ObjectRange) -> None:
    with _open(segment.path) as source:
        done = 0
        while done < segment.length:
            sent = os.sendfile(output, source.fileno(), segment.offset + done, segment.length - done)
            if not sent:
                raise short_object(segment, done)
            done += sent


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
