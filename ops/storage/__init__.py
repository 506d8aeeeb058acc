"""Stores: one protocol over local files and S3."""

import hashlib
import json
import os
from functools import cache
from typing import Any

from ops.model import StorageConfig
from ops.storage.base import ObjectExistsError, ObjectMissingError, PartSource, Storage, StorageError
from ops.storage.local import LocalStorage
from ops.storage.locations import normalize, relative_to, resolve

__all__ = [
    "ObjectExistsError",
    "ObjectMissingError",
    "PartSource",
    "Storage",
    "StorageConfig",
    "StorageError",
    "normalize",
    "open_storage",
    "principal",
    "relative_to",
    "resolve",
]


def open_storage(location: str, config: StorageConfig) -> Storage:
    """The store that holds `location`. Raises StorageError for a scheme that is not supported."""
    scheme = normalize(location).partition(":")[0]
    if scheme == "file":
        return LocalStorage()
    if scheme == "s3":
        return _s3_store(os.getpid(), frozenset(config.properties.items()))
    raise StorageError(f"{location}: scheme {scheme!r} is not supported; use file:// or s3://")


@cache
def _s3_store(_: int, properties: frozenset[tuple[str, str]]) -> Storage:
    """One store a process and configuration: making a client takes longer than most requests. Not across a fork."""
    from ops.storage.s3 import S3Storage  # noqa: PLC0415  slow to import, of no use for local tables

    return S3Storage(_s3_options(StorageConfig(dict(properties))))


def principal(location: str, config: StorageConfig) -> str:
    """A fingerprint of who reads `location` with this configuration: equal only where credentials and endpoint are.

    It names what was fetched for somebody, so that nobody else is served it. Nothing can be learnt from it.
    """
    if normalize(location).startswith("file:"):
        return _digest(["file", os.geteuid()])
    return _s3_principal(os.getpid(), frozenset(config.properties.items()))


@cache
def _s3_principal(_: int, properties: frozenset[tuple[str, str]]) -> str:
    options = _s3_options(StorageConfig(dict(properties)))
    return _digest(["s3", options, [] if "key" in options or "anon" in options else _ambient_credentials()])


def _digest(who: list[Any]) -> str:
    return hashlib.sha256(json.dumps(who, sort_keys=True).encode()).hexdigest()[:32]


def _ambient_credentials() -> list[str | None]:
    """What S3 clients find by themselves where the configuration names no key: environment, files, instance role."""
    from botocore.session import Session  # noqa: PLC0415  slow to import, of no use for local tables

    found = Session().get_credentials()
    if found is None:
        return []
    frozen = found.get_frozen_credentials()
    return [frozen.access_key, frozen.secret_key, frozen.token]


def _s3_options(config: StorageConfig) -> dict[str, Any]:
    """s3fs options out of PyIceberg's names. Only these are read: a table's properties cannot add others."""
    given = config.properties
    client: dict[str, Any] = {}
    if endpoint := given.get("s3.endpoint"):
        client["endpoint_url"] = endpoint
    if region := given.get("s3.region") or given.get("client.region"):
        client["region_name"] = region
    options: dict[str, Any] = {"client_kwargs": client}
    if key := given.get("s3.access-key-id") or given.get("client.access-key-id"):
        options["key"] = key
    if secret := given.get("s3.secret-access-key") or given.get("client.secret-access-key"):
        options["secret"] = secret
    if token := given.get("s3.session-token") or given.get("client.session-token"):
        options["token"] = token
    if given.get("s3.anonymous") == "true":
        options["anon"] = True
    if given.get("s3.force-virtual-addressing") != "true" and endpoint:
        options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    return options
