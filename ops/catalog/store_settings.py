"""Which properties of a catalog or a table say how its files are reached."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from icepuffin.ops.storage.locations import normalize

STORE_SETTINGS = ("s3.", "client.", "gcs.", "adls.", "oss.", "hdfs.", "hf.")
"""Prefixes of the settings of stores"""
CODE_SETTING = "py-io-impl"
"""Setting that names the code which reads files"""


def has_own_client(location: str) -> bool:
    """Whether PyIceberg, too, is to read there through our client: on GCS and ADLS."""
    return normalize(location).startswith(("gs:", "abfss:"))


def sets_own_client(settings: Mapping[str, Any]) -> bool:
    """Whether settings of a catalog are for stores that have our client."""
    return any(key.startswith(("gcs.", "adls.")) for key in settings)


def store_settings(properties: Mapping[str, Any]) -> dict[str, str]:
    """The properties that a store is opened with."""
    return {key: str(value) for key, value in properties.items() if key.startswith((*STORE_SETTINGS, CODE_SETTING))}


def without_code(sent: Mapping[str, Any], configured: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """What a catalog sends, of itself or of a table, but for code: it says where files lie and by which keys, not what
    a client imports. Of `configured`, the user's settings, those that choose code are kept.
    """
    sent = {key: value for key, value in sent.items() if not _chooses_code(key)}
    return {**sent, **{key: value for key, value in configured.items() if _chooses_code(key)}}


def _chooses_code(key: str) -> bool:
    """Whether a setting names code to import: those of Iceberg end alike, and `auth` has one of them inside."""
    return key.endswith("impl") or key == "auth"


def harmless(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of a table without those that choose code, or the server that gets keys: any writer can set them."""
    return {key: value for key, value in properties.items() if not key.startswith((*STORE_SETTINGS, CODE_SETTING))}
