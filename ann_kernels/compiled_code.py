"""Where numba keeps compiled kernels: in a folder for each state of this package's sources, a file for each form.

Numba checks whether the file of a kernel has changed. It does not check other files, whose functions it may have
compiled into the kernel, and it fails when it loads a kernel whose types have moved to another module. Of two versions
of numba, each starts a kernel's list of forms anew, so that they have folders of their own, too.

Numba compiles a form of a kernel for each set of argument types, and numbers the files of a kernel's forms. Two
processes that compile different forms at once both take the next number, and then the list of forms may name one
form's file for the other. Numba does not check the types of what it loads, and runs it: a wrong answer, or a crash.
Or the list lacks one of them. So here names are not taken twice, and processes write one after the other.

Numba fails at each start where a file is cut off, as after a power failure, and it runs machine code that has changed.
Each file ends with its digest here, and what does not match is compiled anew. A kernel also runs where what is compiled
cannot be kept, as on a full disk.

A process that makes a new folder deletes those of other sources that no process has begun with for a month.
"""

import fcntl
import hashlib
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import llvmlite
import numba
from numba.core import caching, config, event

_numba: Any = caching  # its cache has no types
_log = logging.getLogger(__name__)
_DIGEST_BYTES = 32
_SOURCES_DIGEST = re.compile(r"[0-9a-f]{16}")
_UNUSED_SECONDS = 30 * 86_400


@cache
def sources_digest() -> str:
    """A hash of numba's version, and of the names and contents of all modules of the package."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}\n".encode())
    for name, content in _modules(resources.files(__package__)):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _modules(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """(path, content) of the modules in a folder, or in one within an archive."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _modules(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield prefix + entry.name, entry.read_bytes()


def _package_locator(locator: Any) -> Any:
    """One of numba's cache locators, in the folder of these sources."""

    class PackageLocator(locator):  # type: ignore[misc]
        def get_cache_path(self) -> str:
            return str(Path(super().get_cache_path()) / sources_digest())

        def ensure_cache_path(self) -> None:
            folder = Path(self.get_cache_path())
            is_new = not folder.exists()
            super().ensure_cache_path()
            _mark_as_used(folder)
            if is_new:
                _delete_unused(folder.parent)

    return PackageLocator


def _filled_locator(locator: Any) -> Any:
    """The same, also of a folder that is not writable and has compiled kernels, such as that of a read-only image."""

    class FilledLocator(_package_locator(locator)):  # type: ignore[misc]
        def ensure_cache_path(self) -> None:
            folder = Path(self.get_cache_path())
            if any(folder.glob("*.nbi")):
                _mark_as_used(folder)
            else:
                super().ensure_cache_path()

    return FilledLocator


@cache
def _mark_as_used(folder: Path) -> None:
    """Once per process. Reading changes no time of a folder, so that its age would not show when it was read last."""
    with suppress(OSError):  # of a read-only image, where nobody deletes it
        os.utime(folder)


def _delete_unused(folder: Path) -> None:
    """Delete the folders of other sources in here that no process has begun with for a month.

    One that is still running compiles what it has not loaded yet, and keeps none of it.
    """
    for old in folder.iterdir():
        with suppress(OSError):  # another process deletes it as well, or it is another user's: it takes room, no more
            if _SOURCES_DIGEST.fullmatch(old.name) and old.stat().st_mtime < time.time() - _UNUSED_SECONDS:
                shutil.rmtree(old)


class _Kernel(_numba.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: ClassVar[list[Any]] = [
        _filled_locator(_numba.UserProvidedCacheLocator),
        _package_locator(_numba.InTreeCacheLocator),
        _package_locator(_numba.UserWideCacheLocator),
        _filled_locator(_numba.InTreeCacheLocator),
        _filled_locator(_numba.UserWideCacheLocator),
        _package_locator(_numba.ZipCacheLocator),  # of a package that Spark ships as an archive
    ]


class _Forms(_numba.IndexDataCacheFile):  # type: ignore[misc]
    """A kernel's forms. No name of a file is taken twice, so the list names each form's own file or none."""

    def _data_name(self, number: int) -> str:
        del number  # the next one by the list, which another process may take too
        return str(super()._data_name(uuid4().int))

    @contextmanager
    def _open_for_write(self, path: str) -> Iterator[BytesIO]:
        with super()._open_for_write(path) as file:
            content = BytesIO()
            yield content
            file.write(content.getvalue() + hashlib.sha256(content.getvalue()).digest())

    def _load_index(self) -> dict[Any, str]:
        return super()._load_index() if _is_whole(Path(self._index_path)) else {}

    def _load_data(self, name: str) -> Any:
        path = Path(self._data_path(name))
        if not _is_whole(path):
            raise FileNotFoundError(path)  # numba then compiles the form anew, and overwrites the file
        return super()._load_data(name)


def _is_whole(path: Path) -> bool:
    """Whether a file of compiled code can be read and is as it was written; numba skips the digest at its end."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    except OSError as error:
        _log.warning("a kernel is compiled anew: %s", error)
        return False
    if hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]:
        return True
    _log.warning("%s is damaged: its kernel is compiled anew", path)
    return False


class _KernelCache(_numba.FunctionCache):  # type: ignore[misc]
    _impl_class = _Kernel

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _Forms(self.cache_path, self._impl.filename_base, stamp)

    def save_overload(self, form: Any, code: Any) -> None:
        try:
            self._impl.locator.ensure_cache_path()
            with _locked(Path(self.cache_path)):
                super().save_overload(form, code)
        except OSError as error:
            _warn_of_compilations(f"{error.strerror}: {self.cache_path}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time: a list of forms is read, added to and written again."""
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def kernel_cache(function: Any) -> Any:
    """What numba compiles of one function, on disk; only in memory, with a warning, where there is no folder for it."""
    try:
        return _KernelCache(function)
    except RuntimeError:
        if getattr(config, "CACHE_LOCATOR_CLASSES", ""):
            raise  # they name no class, or none that suits
        _warn_of_compilations("neither the package's folder nor that of the user's caches is writable")
        return _numba.NullCache()


@cache
def _warn_of_compilations(why: str) -> None:
    """Once for each reason."""
    _log.warning(
        "compiled kernels are not kept, and each process compiles them anew, for up to a minute: %s. Set "
        "NUMBA_CACHE_DIR to a folder that is writable",
        why,
    )


class _ThreadCompilations(threading.local):
    """Compilations of one thread. One that calls others begins them within itself."""

    depth = 0
    begun = 0.0
    seconds = 0.0


_of_thread = _ThreadCompilations()


class _CompilationClock(event.Listener):
    """Adds up the processor time of compilations, by thread."""

    def on_start(self, compilation: Any) -> None:
        if not _of_thread.depth:
            _of_thread.begun = time.thread_time()
            _wait.begin(compilation.data["dispatcher"])
        _of_thread.depth += 1

    def on_end(self, compilation: Any) -> None:
        del compilation
        _of_thread.depth -= 1
        if not _of_thread.depth:
            _of_thread.seconds += time.thread_time() - _of_thread.begun
            _wait.end()


class _Wait:
    """Compilations of this package's kernels, one after another: the process seems to hang.

    A line is logged when they have taken two seconds, and again for others that begin ten seconds later.
    """

    notice_seconds = 2.0
    pause_seconds = 10.0

    def __init__(self) -> None:
        self._seconds = 0.0
        self._begun = self._ended = time.monotonic()
        self._is_announced = False
        self._notice: threading.Timer | None = None

    def begin(self, dispatcher: Any) -> None:
        """Numba compiles in one thread at a time."""
        self._begun = time.monotonic()
        if self._begun - self._ended >= self.pause_seconds:
            self._seconds, self._is_announced = 0.0, False
        folder = dispatcher.stats.cache_path  # None where nothing can be kept, for which there is a warning
        package = str(__package__).partition(".")[0]
        if self._is_announced or folder is None or not dispatcher.py_func.__module__.startswith(f"{package}."):
            return
        self._notice = threading.Timer(self.notice_seconds - self._seconds, self._announce, (folder,))
        self._notice.daemon = True
        self._notice.start()

    def end(self) -> None:
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None
        self._ended = time.monotonic()
        self._seconds += self._ended - self._begun

    def _announce(self, folder: str) -> None:
        self._is_announced = True
        _log.warning(
            "kernels are compiled into %s, once on this machine: up to half a minute for a search, a minute for "
            "a first refresh (`python -m icepuffin.ops.process.kernel_cache` does so beforehand)",
            folder,
        )


_wait = _Wait()


def compilation_seconds() -> float:
    """Processor time that this thread has compiled kernels for, until now."""
    return _of_thread.seconds


def observe_compilations() -> None:
    """Have compilations timed, and a line logged while numba compiles this package's kernels for long."""
    register: Any = event.register  # it has no types
    register("numba:compile", _CompilationClock())
