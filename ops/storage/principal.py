"""Who reads a store: a fingerprint that stays the same while keys rotate."""

import hashlib
import json
import os
from functools import cache
from typing import Any

from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage.credentials import lease_of
from icepuffin.ops.storage.locations import normalize
from icepuffin.ops.storage.s3_options import s3_options

_ROLE_VARIABLES = (
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def principal(location: str, config: StorageConfig) -> str:
    """A fingerprint of who reads `location` with this configuration: equal only where identity and endpoint are.

    It names what was fetched for somebody, so that nobody else is served it. Nothing can be learnt from it. Where a
    catalog vends credentials it is who the catalog takes us for, and the credentials must be good now: AccessError is
    raised where they have expired and there are no others.
    """
    if normalize(location).startswith("file:"):
        return digest(["file", os.geteuid()])
    settings = frozenset(config.properties.items())
    if config.vended is not None and lease_of(config.vended).grant(location) is not None:
        return config.vended.who
    return _s3_principal(os.getpid(), settings)


@cache
def _s3_principal(_: int, settings: frozenset[tuple[str, str]]) -> str:
    options = s3_options(dict(settings))
    return digest(["s3", options, [] if "key" in options or "anon" in options else ambient_identity()])


def digest(who: list[Any]) -> str:
    """32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(who, sort_keys=True, default=str).encode()).hexdigest()[:32]


def ambient_identity() -> list[Any]:
    """Whose the credentials are that AWS clients find by themselves: environment, files, roles.

    Keys that stay are told by themselves; keys that rotate, by where they come from.
    """
    from botocore.credentials import RefreshableCredentials  # noqa: PLC0415  slow to import, no use for local tables
    from botocore.session import Session  # noqa: PLC0415

    session = Session()
    found = session.get_credentials()
    if found is None:
        return []
    if isinstance(found, RefreshableCredentials):
        named = [os.environ.get(name, "") for name in _ROLE_VARIABLES]
        return [found.method, session.profile, session.get_scoped_config(), named]
    frozen = found.get_frozen_credentials()
    return [frozen.access_key, frozen.secret_key, frozen.token]
