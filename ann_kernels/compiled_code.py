"""Where numba keeps compiled kernels: in a folder for each state of this package's sources.

Numba asks whether the file of a kernel has changed. It does not see that another file has, whose functions it has
compiled into the kernel, and it fails over kernels whose types have moved to other modules.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from numba.core import caching

_FOLDER = Path(__file__).resolve().parent


@cache
def sources_digest() -> str:
    """A hash of all modules of the package, by their names."""
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _in_own_folder(locator: Any) -> Any:
    """A locator of numba's, which puts this package's kernels into such a folder, and knows no others."""

    class OfThisPackage(locator):  # type: ignore[misc]
        @classmethod
        def from_function(cls, py_func: Any, py_file: str) -> Any:
            inside = Path(py_file).resolve().parent == _FOLDER
            return super().from_function(py_func, py_file) if inside else None

        def get_cache_path(self) -> str:
            return str(Path(super().get_cache_path()) / sources_digest())

    return OfThisPackage


def install() -> None:
    """Make numba look there first. To be called before the first kernel of the package is defined."""
    known: list[Any] = caching.CacheImpl._locator_classes  # noqa: SLF001  numba has no public way for some functions alone
    own = (caching.UserProvidedCacheLocator, caching.InTreeCacheLocator, caching.UserWideCacheLocator)
    known[:0] = [_in_own_folder(locator) for locator in own]
