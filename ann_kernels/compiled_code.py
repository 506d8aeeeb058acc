"""Where numba keeps compiled kernels: in a folder for each state of this package's sources.

Numba checks whether the file of a kernel has changed. It does not check other files, whose functions it may have
compiled into the kernel, and it fails when it loads a kernel whose types have moved to another module.
"""

import hashlib
import logging
from functools import cache
from pathlib import Path
from typing import Any

from numba.core import caching, event

_log = logging.getLogger(__name__)
_FOLDER = Path(__file__).resolve().parent


@cache
def sources_digest() -> str:
    """A hash of the names and contents of all modules of the package."""
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_FOLDER).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _package_locator(locator: Any) -> Any:
    """One of numba's cache locators, for this package's kernels alone, in the folder of these sources."""

    class PackageLocator(locator):  # type: ignore[misc]
        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            inside = Path(py_file).resolve().is_relative_to(_FOLDER)
            return super().from_function(py_func, py_file) if inside else None

        def get_cache_path(self) -> str:
            return str(Path(super().get_cache_path()) / sources_digest())

    return PackageLocator


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


def install() -> None:
    """Make numba use these locators first. Call it before the first kernel of the package is defined."""
    register: Any = event.register  # it has no types
    register("numba:compile", _Compilations())
    locators: list[Any] = caching.CacheImpl._locator_classes  # noqa: SLF001  numba offers no public way per function
    package = (caching.UserProvidedCacheLocator, caching.InTreeCacheLocator, caching.UserWideCacheLocator)
    locators[:0] = [_package_locator(locator) for locator in package]
