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
    lease = lease_of(config.vended) if config.vended else None
    grant = lease.grant(location) if lease else None
    prefix = (grant.prefix or scheme) if grant else ""
    return _store(os.getpid(), scheme, lease if grant else None, prefix, frozenset(config.properties.items()))


@cache
def _store(_: int, scheme: str, lease: Lease | None, prefix: str, settings: frozenset[tuple[str, str]]) -> Storage:
    """One store per process and configuration: making a client takes longer than most requests. Not for a fork.

    `lease` gives the vended keys of `prefix` at each request; None where none are vended.
    """
    if scheme != "s3":
        from icepuffin.ops.storage.buckets import BucketStorage  # noqa: PLC0415  obstore is of no use for other tables

        return BucketStorage(dict(settings), lease=lease, prefix=prefix)
    from icepuffin.ops.storage.s3 import S3Storage  # noqa: PLC0415  slow to import, of no use for local tables

    grant = lease.grant(prefix) if lease else None
    return S3Storage(
        s3_options(combined(dict(settings), grant.properties if grant else {})), lease=lease, prefix=prefix
    )
