"""A plugin of pytest: a module is imported with one edit of ALL_EDITS, whose number is in the environment.

Nothing on the disk changes, so that a test that starts another process does not see the edit there.
"""

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from tests.clauses.edits import broken_sources
from tests.clauses.guards import ALL_EDITS

NUMBER = "ICEPUFFIN_EDIT"


class BrokenLoader(SourceFileLoader):
    """Loads another source than the file has."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.get_filename(fullname), "exec", dont_inherit=True)


class BrokenFinder(MetaPathFinder):
    """Finds the module that lies at a path, and leaves all others to the finders after it."""

    def __init__(self, path: Path, source: str) -> None:
        self._path = path
        self._source = source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None or fullname.rpartition(".")[2] != self._path.stem:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or Path(spec.origin).resolve() != self._path:
            return None
        return importlib.machinery.ModuleSpec(
            fullname, BrokenLoader(fullname, spec.origin, self._source), origin=spec.origin
        )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before any module of ours is imported."""
    ((path, source),) = broken_sources(ALL_EDITS[int(os.environ[NUMBER])])
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    loaded = [name for name, file in files.items() if file and Path(file).resolve() == path]
    assert not loaded, f"{loaded} was imported before it could be broken"
    sys.meta_path.insert(0, BrokenFinder(path, source))
