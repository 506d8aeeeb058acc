"""Error messages of catalog clients without secrets."""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

_NO_TABLE = re.compile(r"NoSuchTable|Table does not exist", re.IGNORECASE)
"""How an answer begins that says no more than that there is no such table"""
_ISSUED = re.compile(
    r"""\b(Bearer\s+|Basic\s+|(?:access_|refresh_|id_)?token["']?\s*[:=]\s*["']?)[\w.~+/=-]{4,}""", re.IGNORECASE
)
"""A token that no setting has, as a catalog that repeats a request quotes it"""
_LONGEST_QUOTE = 200


def without_values(error: Exception, properties: Mapping[str, Any]) -> Exception:
    """An error to chain, with the values of `properties` and their secret parts replaced by their keys, except short
    values, types and warehouses; and without tokens.
    """
    text = _ISSUED.sub(r"\1<token>", str(error))
    secrets = [(key, part) for key, value in _flat(properties) for part in (value, *_parts(key, value))]
    longest_first = sorted(secrets, key=lambda item: -len(item[1]))  # a short one may be part of a long one
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


def _parts(key: str, value: str) -> Iterator[str]:
    """The secrets in a value: the secret behind a client's id, the password in a URI, also as a header has it."""
    if key.endswith("credential"):
        yield value.partition(":")[2]
    if key.casefold().endswith("authorization"):
        yield value.rpartition(" ")[2]
    user, _, password = value.partition("://")[2].rpartition("@")[0].partition(":")
    for name, secret in ((user, password), (unquote(user), unquote(password))):
        if secret:
            yield secret
            yield from re.split("[@:/?#]", secret)  # where one that is not encoded is cut
            yield b64encode(secret.encode()).decode()
            yield b64encode(f"{name}:{secret}".encode()).decode()


def _flat(properties: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in properties.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
