"""Names that a package offers, each imported from its module when it is first used.

Commands that read metadata alone import a package's definitions and not its kernels: numba takes a third of a second.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for the module `package`. `names`: by the module that defines them, separated by spaces."""
    homes = {name: f"{package}.{module}" for module, defined in names.items() for name in defined.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # found without this function from now on
        return value

    return get
