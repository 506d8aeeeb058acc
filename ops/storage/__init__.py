"""Stores: one protocol over local files and S3."""

import os
from functools import cache

from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage.base import ObjectExistsError, ObjectMissingError, PartSource, Storage, StorageError
from icepuffin.ops.storage.credentials import AccessError, Lease, combined, lease_of
from icepuffin.ops.storage.local import LocalStorage
from icepuffin.ops.storage.locations import normalize, relative_to
from icepuffin.ops.storage.principal import principal
from icepuffin.ops.storage.s3_options import s3_options

__all__ = [
    "AccessError",
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
]


def open_storage(location: str, config: StorageConfig) -> Storage:
    """The store that holds `location`. Raises StorageError for a scheme that is not supported, and AccessError."""
    scheme = normalize(location).partition(":")[0]
    if scheme == "file":
        return LocalStorage()
    if scheme != "s3":
        raise StorageError(f"{location}: scheme {scheme!r} is not supported; use file:// or s3://")
    settings = frozenset(config.properties.items())
    if config.vended is not None:
        lease = lease_of(config.vended)
        if (grant := lease.grant(location)) is not None:
            return _vending_store(os.getpid(), lease, grant.prefix or "s3", settings)
    return _s3_store(os.getpid(), settings)


@cache
def _s3_store(_: int, settings: frozenset[tuple[str, str]]) -> Storage:
    """One store per process and configuration: making a client takes longer than most requests. Not for a fork."""
    from icepuffin.ops.storage.s3 import S3Storage  # noqa: PLC0415  slow to import, of no use for local tables

    return S3Storage(s3_options(dict(settings)))


@cache
def _vending_store(_: int, lease: Lease, prefix: str, settings: frozenset[tuple[str, str]]) -> Storage:
    """The same for the vended keys of a prefix, which the lease gives at each request."""
    from icepuffin.ops.storage.s3 import S3Storage  # noqa: PLC0415

    grant = lease.grant(prefix)
    return S3Storage(
        s3_options(combined(dict(settings), grant.properties if grant else {})), lease=lease, prefix=prefix
    )
