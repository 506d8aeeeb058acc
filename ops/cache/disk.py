"""Ready shards as files in a folder, shared by all processes of one user on one machine.

Files are published by rename and removed by unlink: an open file stays readable, and none is visible unfinished.
`.lock` serialises the processes that make room, and holds a count of the bytes of all files, or more: where there is
room by that count, no file is listed. locks/NNNN let one process fetch a shard while others wait for it.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import stat
import struct
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from icepuffin.ops.cache import mapped_arrays
from icepuffin.ops.cache.ready_shard import Arrays

_log = logging.getLogger(__name__)
_STRIPES = 4_096
"""Number of locks: of 64, two of six shards had the same in one answer of five, and the later one waited for the codes
of the other"""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ENTRY, _DRAFT = ".shard", ".draft"
_COUNT = struct.Struct("<qq")
"""Bytes of all files, and the complement of that"""
T = TypeVar("T")


class DiskCache:
    """At most `budget` bytes of files under `folder`, least recently used first out. Thread-safe, process-safe."""

    def __init__(self, folder: Path, budget: int) -> None:
        self._folder = folder
        self._budget = budget
        self._has_counted = False

    @classmethod
    def opened(cls, folder: Path, budget: int) -> "DiskCache | None":
        """The cache in a folder that nobody else can write to; None, with a warning, where there is none."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                _log.warning("%s is not a folder of this user: shards are not kept on disk", folder)
                return None
            if status.st_mode & _OTHERS_WRITE or not any(folder.iterdir()):  # else it may serve others, too
                folder.chmod(0o700)  # before the check that it is empty, so that nobody writes to it in between
            if status.st_mode & _OTHERS_WRITE and any(folder.iterdir()):
                folder.chmod(stat.S_IMODE(status.st_mode))
                _log.warning(
                    "%s could be written by other users, so they may own what lies in it: shards are not kept on "
                    "disk; empty it, or name another folder",
                    folder,
                )
                return None
            locks = folder / "locks"
            locks.mkdir(mode=0o700, exist_ok=True)
            if not _is_own(locks.lstat()):
                _log.warning("%s is not this user's alone: shards are not kept on disk; remove it", locks)
                return None
        except OSError as error:
            _log.warning("shards are not kept on disk: %s", error)
            return None
        return cls(folder, budget)

    def get(self, owner: str, name: str, make: Callable[[Arrays, dict[str, Any]], T]) -> T | None:
        """`make(arrays, values)` of what `owner` put under `name`; None where there is nothing.

        A damaged file is removed.
        """
        path = self._path(owner, name)
        try:
            if not _is_own(path.parent.lstat()):
                _log.warning("%s is not this user's alone: what lies in it is not used; remove it", path.parent)
                return None
            with _opened(path) as stream:
                return make(*mapped_arrays.read(stream, f"{owner}/{name}"))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:  # DamagedError is a ValueError
            _log.warning("%s is damaged and is fetched again: %s", path, error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        except OSError as error:
            _log.warning("%s cannot be read: %s", path, error)
            return None

    def has(self, owner: str, name: str) -> bool:
        """Whether there is a file of `owner` under `name`, whatever it holds."""
        return self._path(owner, name).exists()

    def put(self, owner: str, name: str, arrays: Arrays, values: Mapping[str, Any]) -> None:
        """Keep arrays, if they fit the budget: older files make room. A full disk is a warning, not an error."""
        draft = self.draft(owner, name, mapped_arrays.room_for(array.nbytes for array in arrays.values()))
        if draft is not None:
            for key, array in arrays.items():
                draft.arrays.keep(key, array)
            draft.publish(values)

    def draft(self, owner: str, name: str, size: int) -> "DraftFile | None":
        """A file of at most `size` bytes for a shard, counted against the budget from now on.

        None where it does not fit the budget, or the disk: the latter with a warning.
        """
        path = self._path(owner, name)
        draft_path = path.with_name(f".{uuid.uuid4().hex}{_DRAFT}")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if not _is_own(path.parent.lstat()):
                return None  # `get` has logged why
            stream = self._claim(draft_path, size)
            if stream is None:
                return None
            try:
                # the file is mapped: writing to it on a full disk would kill the process (SIGBUS), so claim its blocks
                os.posix_fallocate(stream.fileno(), 0, size)
                return DraftFile(stream, mapped_arrays.Draft(stream, f"{owner}/{name}"), draft_path, path, self._folder)
            except BaseException:
                stream.close()
                draft_path.unlink(missing_ok=True)
                raise
        except OSError as error:
            _warn_not_kept(self._folder, error)
            return None

    def unnamed_file(self) -> BinaryIO:
        """A new file that no other process finds, and that the budget does not count. Raises OSError."""
        return tempfile.TemporaryFile(dir=self._folder)

    @contextlib.contextmanager
    def fetching(self, owner: str, name: str) -> Iterator[None]:
        """Let one process at a time fetch a shard: the next one that enters finds it."""
        number = int(hashlib.sha256(f"{owner}/{name}".encode()).hexdigest(), 16) % _STRIPES
        with contextlib.ExitStack() as locks:
            try:
                locks.enter_context(_locked(self._folder / "locks" / f"{number:04d}"))
            except OSError as error:  # then several fetch
                _log.warning("%s cannot be used: %s", self._folder, error)
            yield

    def stored_bytes(self) -> int:
        """Bytes of all files, unfinished ones included."""
        with _locked(self._folder / ".lock"):
            return sum(status.st_size for _, status in self._files())

    def _path(self, owner: str, name: str) -> Path:
        return self._folder / owner / f"{name}{_ENTRY}"

    def _claim(self, draft_path: Path, size: int) -> BinaryIO | None:
        """A new file of `size` bytes, counted against the budget from now on; None where it does not fit."""
        with _locked(self._folder / ".lock") as lock:
            # a process lists all files once, to remove what killed ones have left
            total = _read_count(lock) if self._has_counted else None
            if total is None or total + size > self._budget:
                total, self._has_counted = self._make_room(size), True
                _write_count(lock, total)
            if total + size > self._budget:
                return None
            _write_count(lock, total + size)
            stream = os.fdopen(os.open(draft_path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "r+b")
            fcntl.flock(stream, fcntl.LOCK_EX)  # held while the file is written
            stream.truncate(size)
            return stream

    def _make_room(self, size: int) -> int:
        """Remove files until `size` bytes fit the budget, if they ever do. Returns the bytes of those that stay."""
        files = sorted(self._files(), key=lambda item: item[1].st_atime_ns)
        total = sum(status.st_size for _, status in files)
        for path, status in files:
            over_budget = total + size > self._budget >= size
            if (path.suffix == _ENTRY and over_budget) or (path.suffix == _DRAFT and _is_abandoned(path)):
                path.unlink(missing_ok=True)
                total -= status.st_size
        return total

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """(path, status) of each file, once even if it is renamed meanwhile."""
        inodes = set()
        for path in self._folder.glob("*/*"):
            if path.suffix in (_ENTRY, _DRAFT):
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    if status.st_ino not in inodes:
                        inodes.add(status.st_ino)
                        yield path, status


@dataclass(frozen=True, slots=True)
class DraftFile:
    """A file that is being filled, invisible to readers until it is published. It ends with `publish` or `discard`,
    or both."""

    stream: BinaryIO
    arrays: mapped_arrays.Draft
    draft_path: Path
    """Path while it is being filled"""
    path: Path
    """Path once it is published"""
    folder: Path
    """Folder of the cache"""

    def publish(self, values: Mapping[str, Any]) -> None:
        """Let it be found under its name, with these plain values. A full disk is a warning, not an error."""
        try:
            with self.stream:
                self.arrays.finish(values)
                with _locked(self.folder / ".lock"):  # whoever counts the files meanwhile would miss this one
                    self.draft_path.rename(self.path)
        except OSError as error:
            _warn_not_kept(self.folder, error)
        finally:
            self._delete()

    def discard(self) -> None:
        """Delete the file, unless it is published."""
        self.stream.close()
        self._delete()

    def _delete(self) -> None:
        """An error would hide the one that the file is discarded for. What stays is deleted by the next listing."""
        try:
            self.draft_path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s cannot be deleted: %s", self.draft_path, error)


def _warn_not_kept(folder: Path, error: OSError) -> None:
    _log.warning("a shard could not be kept in %s: %s", folder, error)


def _opened(path: Path) -> BinaryIO:
    """Raises DamagedError for a file that is not this user's alone."""
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")
    if _is_own(os.fstat(stream.fileno())):
        return stream
    stream.close()
    raise mapped_arrays.DamagedError("other users could have written it")


def _is_own(status: os.stat_result) -> bool:
    """Whether a file or folder, not a link, belongs to this user and nobody else can write to it."""
    plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return plain and status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def _read_count(lock: int) -> int | None:
    """Bytes of all files, or more, as files may have gone since; None where no count was written, or a part of one."""
    stored = os.pread(lock, _COUNT.size, 0)
    if len(stored) < _COUNT.size:
        return None
    count, complement = _COUNT.unpack(stored)
    return int(count) if count == ~complement else None


def _write_count(lock: int, count: int) -> None:
    os.pwrite(lock, _COUNT.pack(count, ~count), 0)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing would leave it to a child that was forked meanwhile
        os.close(handle)


def _is_abandoned(path: Path) -> bool:
    """Whether an unfinished file has lost its writer: nobody holds its lock."""
    try:
        with path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False
    return True
