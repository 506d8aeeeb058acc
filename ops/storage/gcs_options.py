"""PyIceberg's GCS settings as configuration of obstore."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from icepuffin.ops.storage.base import StorageError

if TYPE_CHECKING:
    from obstore.store import GCSConfig, GCSCredential

_TOKEN = "gcs.oauth2.token"  # noqa: S105  the setting's name
_HOST = "gcs.service.host"


def gcs_config(properties: Mapping[str, str]) -> "GCSConfig":
    """obstore's configuration. Only these settings are read: a table's properties cannot add others.

    Without a token the client looks for credentials where Google's clients do: GOOGLE_APPLICATION_CREDENTIALS, the file
    of `gcloud auth application-default login`, the metadata server.
    """
    token = properties.get(_TOKEN)
    return {**gcs_address(properties), "bearer_token": token} if token else gcs_address(properties)


def gcs_address(properties: Mapping[str, str]) -> "GCSConfig":
    """The same without keys."""
    host = properties.get(_HOST)
    return {"base_url": host.rstrip("/")} if host else {}


def gcs_credential(properties: Mapping[str, str], expires: datetime) -> "GCSCredential":
    """What a catalog vended, as obstore takes a credential that is renewed. Raises StorageError without any."""
    token = properties.get(_TOKEN)
    if not token:
        raise StorageError(f"the catalog vends no {_TOKEN}")
    return {"token": token, "expires_at": expires}
