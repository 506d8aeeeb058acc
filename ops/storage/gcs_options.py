"""PyIceberg's GCS settings as configuration of obstore."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from obstore.store import GCSConfig

TOKEN = "gcs.oauth2.token"  # noqa: S105  the setting's name
_HOST = "gcs.service.host"


def gcs_config(properties: Mapping[str, str]) -> "GCSConfig":
    """obstore's configuration. Only these settings are read: a table's properties cannot add others.

    Without a token the client looks for credentials where Google's clients do: GOOGLE_APPLICATION_CREDENTIALS, the file
    of `gcloud auth application-default login`, the metadata server.
    """
    token = properties.get(TOKEN)
    return {**gcs_address(properties), "bearer_token": token} if token else gcs_address(properties)


def gcs_address(properties: Mapping[str, str]) -> "GCSConfig":
    """The same without keys."""
    host = properties.get(_HOST)
    return {"base_url": host.rstrip("/")} if host else {}
