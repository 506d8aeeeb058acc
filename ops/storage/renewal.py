"""An s3fs file system whose keys are a lease's: asked for at each request, and once more where a store refuses them."""

import asyncio
from typing import Any

from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import ClientError
from fsspec.asyn import sync_wrapper

from icepuffin.ops.model import Grant
from icepuffin.ops.storage.credentials import Lease
from icepuffin.ops.storage.literal_keys import LiteralFileSystem

_REFUSED = frozenset({"400", "InvalidToken", "TokenRefreshRequired"})
"""Beside what s3fs makes a PermissionError: codes for keys that are not good any more. A HEAD has no text, only 400"""


class _Keys(AioCredentials):  # type: ignore[misc]  # no types
    def __init__(self, held: Lease, prefix: str) -> None:
        super().__init__("", "", method="vended")
        self._held = held
        self._prefix = prefix

    async def get_frozen_credentials(self) -> ReadOnlyCredentials:
        grant = await current(self._held, self._prefix)
        given = grant.properties if grant else {}
        return ReadOnlyCredentials(
            *(
                given.get(f"s3.{name}") or given.get(f"client.{name}")
                for name in ("access-key-id", "secret-access-key", "session-token")
            )
        )


async def current(held: Lease, prefix: str) -> Grant | None:
    """What is vended now. All stores share one event loop: it does not wait for a catalog."""
    return held.grant(prefix) if held.fresh else await asyncio.to_thread(held.grant, prefix)


class _Session(AioSession):  # type: ignore[misc]
    def __init__(self, keys: _Keys) -> None:
        super().__init__()
        self._keys = keys

    async def get_credentials(self) -> AioCredentials:
        return self._keys


class RenewedFileSystem(LiteralFileSystem):
    """Signs each request with the keys of the moment."""

    def __init__(self, held: Lease, prefix: str, **options: Any) -> None:
        super().__init__(session=_Session(_Keys(held, prefix)), **options)
        self._held = held
        self._prefix = prefix

    async def _call_s3(self, method: str, *arguments: Any, **named: Any) -> Any:
        used = await current(self._held, self._prefix)
        try:
            return await super()._call_s3(method, *arguments, **named)
        except OSError as error:
            if not _refuses_keys(error):
                raise
            if not await asyncio.to_thread(self._held.has_other_than, used, self._prefix):
                raise PermissionError(f"{error}; with {self._held}") from error
        try:
            return await super()._call_s3(method, *arguments, **named)
        except OSError as error:
            if not _refuses_keys(error):
                raise
            self._held.in_vain()
            raise PermissionError(f"{error}; with {self._held}") from error

    call_s3 = sync_wrapper(_call_s3)


def _refuses_keys(error: OSError) -> bool:
    cause = error.__cause__
    code = cause.response.get("Error", {}).get("Code") if isinstance(cause, ClientError) else None
    return isinstance(error, PermissionError) or code in _REFUSED
