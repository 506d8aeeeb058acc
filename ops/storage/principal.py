"""Fingerprint of the user who reads a store, which stays the same while keys rotate."""

import hashlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage.credentials import kind_of_key, lease_of
from icepuffin.ops.storage.locations import normalize
from icepuffin.ops.storage.s3_options import s3_options

_ROLE_VARIABLES = (
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def principal(location: str, config: StorageConfig) -> str:
    """A fingerprint of the user who reads `location` with this configuration: equal for equal users and endpoints only.

    Cached data is keyed by it, so that it is served to the user who fetched it and to nobody else. It reveals nothing
    about the keys. Where a catalog vends credentials it identifies the catalog's user, and the credentials must be
    valid now: AccessError is raised where they have expired and there are no others.
    """
    if normalize(location).startswith("file:"):
        return digest(["file", os.geteuid()])
    settings = frozenset(config.properties.items())
    if config.vended is not None and lease_of(config.vended).grant(location) is not None:
        return config.vended.who
    if normalize(location).startswith("s3:"):
        return _s3_principal(os.getpid(), settings)
    return _bucket_principal(normalize(location).partition(":")[0], settings)


def _bucket_principal(scheme: str, settings: frozenset[tuple[str, str]]) -> str:
    """The fingerprint for GCS and ADLS: of the settings, and without a key among them of the machine's own account."""
    start = "gcs." if scheme == "gs" else "adls."
    of_store = sorted((key, value) for key, value in settings if key.startswith(start))
    configured = any(kind_of_key(key) for key, _ in of_store)
    names = ("GOOGLE_", "CLOUDSDK_") if scheme == "gs" else ("AZURE_", "IDENTITY_", "MSI_")
    return digest([scheme, of_store, os.geteuid(), [] if configured else _environment(names)])


def _environment(starts: tuple[str, ...]) -> list[Any]:
    """Variables that choose credentials, and the files that they name: the user may log in as another."""
    variables = sorted(item for item in os.environ.items() if item[0].startswith(starts))
    files = [Path(value) for _, value in variables if value.startswith("/")]
    files.append(Path.home() / ".config/gcloud/application_default_credentials.json")
    contents = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    return [variables, contents]


@cache
def _s3_principal(_: int, settings: frozenset[tuple[str, str]]) -> str:
    options = s3_options(dict(settings))
    return digest(["s3", options, [] if "key" in options or "anon" in options else ambient_identity()])


def digest(identity: list[Any]) -> str:
    """32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:32]


def ambient_identity() -> list[Any]:
    """The identity behind the credentials that AWS clients find by themselves: environment, files, roles.

    Lasting keys identify themselves; keys that rotate are identified by their source.
    """
    from botocore.credentials import RefreshableCredentials  # noqa: PLC0415  slow to import, no use for local tables
    from botocore.session import Session  # noqa: PLC0415

    session = Session()
    credentials = session.get_credentials()
    if credentials is None:
        return []
    if isinstance(credentials, RefreshableCredentials):
        environment = [os.environ.get(name, "") for name in _ROLE_VARIABLES]
        return [credentials.method, session.profile, session.get_scoped_config(), environment]
    frozen = credentials.get_frozen_credentials()
    return [frozen.access_key, frozen.secret_key, frozen.token]
