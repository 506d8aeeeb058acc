"""File systems of s3fs: every character of a key is literal; keys to the store come from a lease at each request, and
new ones where a store refuses them.
"""

import asyncio
from typing import Any

import s3fs
from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import ClientError
from fsspec.asyn import sync_wrapper

from icepuffin.ops.model import Grant
from icepuffin.ops.storage.credentials import Lease

_REFUSED = frozenset({"400", "InvalidToken", "TokenRefreshRequired"})
"""Error codes for keys that are not valid any more, beside those of which s3fs makes a PermissionError. The answer to a
HEAD request has no text, only 400"""


class LiteralFileSystem(s3fs.S3FileSystem):  # type: ignore[misc]  # no types
    """s3fs cuts `?versionId=` and what follows off a key; here it is part of the name, as in the store."""

    def split_path(self, path: str) -> tuple[str, str, Any]:
        """(bucket, key, no version)."""
        stripped = self._strip_protocol(path).lstrip("/")
        if "/" not in stripped:
            return stripped, "", None
        bucket, key = self._find_bucket_key(stripped)
        return bucket, key + path[len(path.rstrip("/")) :], None


class _Keys(AioCredentials):  # type: ignore[misc]  # no types
    def __init__(self, lease: Lease, prefix: str) -> None:
        super().__init__("", "", method="vended")
        self._lease = lease
        self._prefix = prefix

    async def get_frozen_credentials(self) -> ReadOnlyCredentials:
        grant = await current(self._lease, self._prefix)
        properties = grant.properties if grant else {}
        return ReadOnlyCredentials(
            *(
                properties.get(f"s3.{name}") or properties.get(f"client.{name}")
                for name in ("access-key-id", "secret-access-key", "session-token")
            )
        )


async def current(lease: Lease, prefix: str) -> Grant | None:
    """The current grant. A renewal runs in a thread: all stores share one event loop, which must not wait for it."""
    return lease.grant(prefix) if lease.fresh else await asyncio.to_thread(lease.grant, prefix)


class _S3Session(AioSession):  # type: ignore[misc]
    def __init__(self, keys: _Keys) -> None:
        super().__init__()
        self._keys = keys

    async def get_credentials(self) -> AioCredentials:
        return self._keys


class RenewedFileSystem(LiteralFileSystem):
    """Signs each request with the current keys of the lease."""

    def __init__(self, lease: Lease, prefix: str, **options: Any) -> None:
        super().__init__(session=_S3Session(_Keys(lease, prefix)), **options)
        self._lease = lease
        self._prefix = prefix

    async def _call_s3(self, method: str, *arguments: Any, **named: Any) -> Any:
        keys = await current(self._lease, self._prefix)
        try:
            return await super()._call_s3(method, *arguments, **named)
        except OSError as error:
            if not _refuses_keys(error):
                raise
            if not await asyncio.to_thread(self._lease.has_other_than, keys, self._prefix):
                raise PermissionError(f"{error}; with {self._lease}") from error
        try:
            return await super()._call_s3(method, *arguments, **named)
        except OSError as error:
            if not _refuses_keys(error):
                raise
            self._lease.record_refusal()
            raise PermissionError(f"{error}; with {self._lease}") from error

    call_s3 = sync_wrapper(_call_s3)


def _refuses_keys(error: OSError) -> bool:
    cause = error.__cause__
    code = cause.response.get("Error", {}).get("Code") if isinstance(cause, ClientError) else None
    return isinstance(error, PermissionError) or code in _REFUSED
