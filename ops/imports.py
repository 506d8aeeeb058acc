"""Imports on demand: names that a package offers, and the extra that brings a package which is missing.

Commands that read metadata alone import a package's definitions and not its kernels: numba takes a third of a second.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_EXTRAS = {
    "dagster": "dagster",
    "dagster_postgres": "ui",
    "dagster_webserver": "ui",
    "sqlglot": "sql",
    "pyspark": "spark",
    "dagster_pyspark": "spark",
    "s3fs": "s3",
    "obstore": "gcs,adls",
}


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


def remedy(error: ModuleNotFoundError) -> str:
    """The command that installs what is missing; empty where no extra brings it."""
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    return f"pip install 'icepuffin[{extra}]'" if extra else ""
