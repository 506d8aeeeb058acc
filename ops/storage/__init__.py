"""Stores: one protocol over local files, S3, GCS and ADLS."""

import os
from functools import cache

from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage.base import (
    ObjectExistsError,
    ObjectMissingError,
    PartSource,
    RefusedError,
    Storage,
    StorageError,
    left_where_refused,
)
from icepuffin.ops.storage.credentials import AccessError, Lease, combined, lease_of
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.storage.locations import OBJECT_STORES, normalize, path_mover, relative_to, split_location
from icepuffin.ops.storage.memory_storage import SCHEME as MEMORY
from icepuffin.ops.storage.memory_storage import MemoryStorage
from icepuffin.ops.storage.principal import principal
from icepuffin.ops.storage.s3_options import s3_options

__all__ = [
    "AccessError",
    "ObjectExistsError",
    "ObjectMissingError",
    "PartSource",
    "RefusedError",
    "Storage",
    "StorageConfig",
    "StorageError",
    "left_where_refused",
    "normalize",
    "open_storage",
    "path_mover",
    "principal",
    "relative_to",
    "split_location",
]


def open_storage(location: str, config: StorageConfig) -> Storage:
    """The store that holds `location`. Raises StorageError for a scheme that is not supported, and AccessError."""
    scheme = normalize(location).partition(":")[0]
    if scheme == "file":
        return LocalStorage()
    if scheme == MEMORY:
        return MemoryStorage()
    if f"{scheme}:" not in OBJECT_STORES:
        raise StorageError(f"{location}: scheme {scheme!r} is not supported; use file://, s3://, gs:// or abfss://")
    settings = frozenset(config.properties.items())
    if config.vended is not None:
        lease = lease_of(config.vended)
        if (grant := lease.grant(location)) is not None:
            return _vending_store(os.getpid(), scheme, lease, grant.prefix or scheme, settings)
    return _plain_store(os.getpid(), scheme, settings)


@cache
def _plain_store(_: int, scheme: str, settings: frozenset[tuple[str, str]]) -> Storage:
    """One store per process and configuration: making a client takes longer than most requests. Not for a fork."""
    if scheme != "s3":
        from icepuffin.ops.storage.buckets import BucketStorage  # noqa: PLC0415  obstore is of no use for other tables

        return BucketStorage(dict(settings))
    from icepuffin.ops.storage.s3 import S3Storage  # noqa: PLC0415  slow to import, of no use for local tables

    return S3Storage(s3_options(dict(settings)))


@cache
def _vending_store(_: int, scheme: str, lease: Lease, prefix: str, settings: frozenset[tuple[str, str]]) -> Storage:
    """The same for the vended keys of a prefix, which the lease gives at each request."""
    if scheme != "s3":
        from icepuffin.ops.storage.buckets import BucketStorage  # noqa: PLC0415

        return BucketStorage(dict(settings), lease=lease, prefix=prefix)
    from icepuffin.ops.storage.s3 import S3Storage  # noqa: PLC0415

    grant = lease.grant(prefix)
    return S3Storage(
        s3_options(combined(dict(settings), grant.properties if grant else {})), lease=lease, prefix=prefix
    )
