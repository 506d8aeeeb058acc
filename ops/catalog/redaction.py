"""Error messages of catalog clients without secrets."""

from collections.abc import Iterator, Mapping
from typing import Any


def without_values(error: Exception, properties: Mapping[str, Any]) -> Exception:
    """An error to chain, with the values of `properties` replaced by their keys, except short values, types and
    warehouses.
    """
    text = str(error)
    for key, value in _flat(properties):
        if key not in {"type", "warehouse"} and len(value) > 3:
            text = text.replace(value, f"<{key}>")
    return RuntimeError(f"{type(error).__name__}: {text}")


def _flat(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in properties.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
