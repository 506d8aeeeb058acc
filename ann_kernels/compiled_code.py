"""Where numba keeps compiled kernels: in a folder for each state of this package's sources, a file for each form.

Numba checks whether the file of a kernel has changed. It does not check other files, whose functions it may have
compiled into the kernel, and it fails when it loads a kernel whose types have moved to another module.

Numba compiles a form of a kernel for each set of argument types, and numbers the files of a kernel's forms. Two
processes that compile different forms at once both take the next number, and then the list of forms may name one
form's file for the other. Numba does not check the types of what it loads, and runs it: a wrong answer, or a crash.
"""

import hashlib
import logging
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from numba.core import caching, event

_numba: Any = caching  # its cache has no types
_log = logging.getLogger(__name__)


@cache
def sources_digest() -> str:
    """A hash of the names and contents of all modules of the package."""
    digest = hashlib.sha256()
    for name, content in _modules(resources.files(__package__)):
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _modules(folder: Traversable, place: str = "") -> Iterator[tuple[str, bytes]]:
    """(path, content) of the modules in a folder, or in one within an archive."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _modules(entry, f"{place}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield place + entry.name, entry.read_bytes()


def _package_locator(locator: Any) -> Any:
    """One of numba's cache locators, in the folder of these sources."""

    class PackageLocator(locator):  # type: ignore[misc]
        def get_cache_path(self) -> str:
            return str(Path(super().get_cache_path()) / sources_digest())

    return PackageLocator


class _Kernel(_numba.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: ClassVar[list[Any]] = [
        _package_locator(locator)
        for locator in (
            _numba.UserProvidedCacheLocator,
            _numba.InTreeCacheLocator,
            _numba.UserWideCacheLocator,
            _numba.ZipCacheLocator,  # of a package that Spark ships as an archive
        )
    ]


class _Forms(_numba.IndexDataCacheFile):  # type: ignore[misc]
    """A kernel's forms. No name of a file is taken twice, so the list names each form's own file or none."""

    def _data_name(self, number: int) -> str:
        del number  # the next one by the list, which another process may take too
        return str(super()._data_name(uuid4().int))


class KernelCache(_numba.FunctionCache):  # type: ignore[misc]
    """What numba compiles of one function of this package, on disk. Raises RuntimeError where no folder is writable."""

    _impl_class = _Kernel

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        stamp = self._impl.locator.get_source_stamp()
        self._cache_file = _Forms(self.cache_path, self._impl.filename_base, stamp)


class _Compilations(event.Listener):
    """Says that kernels are compiled where none of these sources is kept yet: a process seems to hang meanwhile."""

    is_first = True

    def on_start(self, compilation: Any) -> None:
        dispatcher = compilation.data["dispatcher"]
        place = dispatcher.stats.cache_path  # None of what is compiled as a part of others
        if not self.is_first or not dispatcher.py_func.__module__.startswith(__package__) or place is None:
            return
        self.is_first = False
        folder = Path(place)
        if not any(folder.glob("*.nbi")):
            _log.warning(
                "kernels are compiled into %s, once: up to two minutes (`python -m icepuffin.ops.kernel_cache` does so "
                "beforehand)",
                folder,
            )

    def on_end(self, compilation: Any) -> None:
        del compilation


def announce_compilations() -> None:
    """Have a line logged when numba begins to compile kernels of this package into an empty cache."""
    register: Any = event.register  # it has no types
    register("numba:compile", _Compilations())
