"""Error messages of catalog clients without secrets."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_NO_TABLE = re.compile(r"NoSuchTable|Table does not exist", re.IGNORECASE)
"""How an answer begins that says no more than that there is no such table"""
_LONGEST_QUOTE = 200


def without_values(error: Exception, properties: Mapping[str, Any]) -> Exception:
    """An error to chain, with the values of `properties` replaced by their keys, except short values, types and
    warehouses.
    """
    text = str(error)
    longest_first = sorted(_flat(properties), key=lambda item: -len(item[1]))  # a short one may be part of a long one
    for key, value in longest_first:
        if key not in {"type", "warehouse"} and len(value) > 3:
            text = text.replace(value, f"<{key}>")
    return RuntimeError(f"{type(error).__name__}: {text}")


def other_reason(error: Exception, properties: Mapping[str, Any]) -> str:
    """What a catalog says besides that a table does not exist, as the end of a message; empty where it says no more.

    PyIceberg has one error for each 404 of a REST catalog: a wrong warehouse or path is one, too.
    """
    _, _, text = str(without_values(error, properties)).partition(": ")
    quote = text.partition("\n")[0].strip()
    if not quote or _NO_TABLE.match(quote):
        return ""
    return f" (the catalog's answer: {quote if len(quote) <= _LONGEST_QUOTE else quote[:_LONGEST_QUOTE] + '...'})"


def _flat(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in properties.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
