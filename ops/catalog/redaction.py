"""What clients of catalogs say when they fail, without what is secret."""

from collections.abc import Iterator, Mapping
from typing import Any


def without_values(error: Exception, properties: Mapping[str, Any]) -> Exception:
    """An error to chain: of no value of `properties` but short ones and kinds does anything show."""
    said = str(error)
    for key, value in _flat(properties):
        if key not in {"type", "warehouse"} and len(value) > 3:
            said = said.replace(value, f"<{key}>")
    return RuntimeError(f"{type(error).__name__}: {said}")


def _flat(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in properties.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
