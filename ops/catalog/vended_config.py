"""Settings and short-lived keys that REST catalogs vend with a table, for its files.

PyIceberg asks for them with each table that it loads and hands them to the FileIO. It does not renew them, and drops
the keys for prefixes other than that of the metadata file. Here they are renewed, and kept for all prefixes.
"""

import base64
import binascii
import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pyiceberg.catalog.rest import Capability, RestCatalog, TableResponse
from pyiceberg.catalog.rest.scan_planning import StorageCredential
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from icepuffin.ops.catalog.file_io import VendedFileIO
from icepuffin.ops.catalog.redaction import without_values
from icepuffin.ops.model import Grant, StorageConfig, VendedGrants
from icepuffin.ops.storage import AccessError, normalize
from icepuffin.ops.storage.credentials import EXPIRES, KEYS
from icepuffin.ops.storage.principal import ambient_identity, digest

STORE_SETTINGS = ("s3.", "client.", "gcs.", "adls.", "oss.", "hdfs.", "hf.")
"""Prefixes of the settings of stores"""
CODE_SETTING = "py-io-impl"
"""Setting that names the code which reads files"""
_IDENTITY = ("uri", "warehouse", "prefix", "credential", "scope", "audience", "resource", "auth", "header.", "rest.")
_CLIENTS = 16


def storage_of(table: Table) -> StorageConfig:
    """The storage of the table's files: its catalog's settings, and what the catalog vends for it.

    Keys that a REST catalog vends are renewed before they expire, in this process and in tasks. Properties of the table
    itself are ignored.
    """
    if isinstance(table.io, VendedFileIO):
        return table.io.storage
    catalog = table.catalog
    if isinstance(catalog, RestCatalog):
        keys = {key: value for key, value in table.io.properties.items() if key in (*KEYS, EXPIRES)}
        vended_keys = {key: value for key, value in keys.items() if catalog.properties.get(key) != value}
        return _storage(catalog, table.name(), str(table.metadata.table_uuid), {**table.config, **vended_keys}, ())
    return StorageConfig(_store_settings(catalog.properties or table.io.properties))


class VendingCatalog(RestCatalog):
    """PyIceberg's REST catalog, with tables whose files stay readable for as long as somebody reads them."""

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        metadata, config = table_response.metadata, table_response.config
        location = table_response.metadata_location or metadata.location
        credentials = table_response.storage_credentials
        storage = _storage(self, identifier_tuple, str(metadata.table_uuid), config, credentials)
        io: FileIO
        if normalize(location).startswith("s3:") and CODE_SETTING not in self.properties:
            io = VendedFileIO({**_harmless(metadata.properties), **self.properties, **config}, storage, location)
        else:
            vended = {**config, **self._resolve_storage_credentials(credentials, location)}
            vended.pop(CODE_SETTING, None)  # a catalog says where files lie and by which keys, not what code reads
            io = self._load_file_io({**_harmless(metadata.properties), **vended}, location)
        return Table(identifier_tuple, metadata, location, io, self, config)

    def grants(self, identifier: tuple[str, ...]) -> tuple[Grant, ...]:
        """Ask for credentials alone where the catalog can answer that, else for the table with them."""
        if Capability.V1_LOAD_CREDENTIALS in self._supported_endpoints:
            grants = _grants({}, self._load_credentials(identifier).storage_credentials)
            if grants:
                return grants
        return _granted(self.load_table(identifier))


@dataclass(frozen=True)
class Renewal:
    """Asks a catalog for a table's credentials again, here or in a task. Its properties never show."""

    kind: type[RestCatalog]
    catalog: str
    properties: Mapping[str, Any] = field(repr=False)
    identifier: tuple[str, ...]

    def __call__(self) -> tuple[Grant, ...]:
        try:
            client, lock = _client(os.getpid(), self.kind, self.catalog, json.dumps(dict(self.properties)))
            with lock:
                if isinstance(client, VendingCatalog):
                    return client.grants(self.identifier)
                return _granted(client.load_table(self.identifier))
        except Exception as error:
            # the client's own error may quote what is secret; what it says otherwise is kept
            said = str(without_values(error, self.properties)).splitlines()[0]
            raise AccessError(f"a second request gave: {said}") from None


@lru_cache(maxsize=_CLIENTS)
def _client(_: int, kind: type[RestCatalog], name: str, properties: str) -> tuple[RestCatalog, threading.Lock]:
    """A client per process and catalog, and a lock for it: its session takes one thread at a time."""
    return kind(name, **json.loads(properties)), threading.Lock()


def _storage(
    catalog: RestCatalog,
    identifier: tuple[str, ...],
    table_uuid: str,
    config: Mapping[str, str],
    credentials: Iterable[StorageCredential],
) -> StorageConfig:
    grants = _grants(config, credentials)
    settings = {key: value for key, value in _store_settings(config).items() if key not in (*KEYS, EXPIRES)}
    own = {**_store_settings(catalog.properties), **settings}
    if not grants:
        return StorageConfig(own)
    who = digest(["vended", _identity(catalog.properties), table_uuid])
    renewal = Renewal(type(catalog), catalog.name, dict(catalog.properties), identifier)
    return StorageConfig(own, VendedGrants(catalog.name, ".".join(identifier), who, grants, renewal))


def _granted(table: Table) -> tuple[Grant, ...]:
    vended = storage_of(table).vended
    return vended.grants if vended else ()


def _grants(config: Mapping[str, str], credentials: Iterable[StorageCredential]) -> tuple[Grant, ...]:
    """The grants with keys for S3: those vended for prefixes, and the one in the table's configuration for all."""
    grants = [Grant(item.prefix, _store_settings(item.config)) for item in credentials]
    grants.append(Grant("", {key: value for key, value in config.items() if key in (*KEYS, EXPIRES)}))
    return tuple(grant for grant in grants if any(key in grant.properties for key in KEYS))


def _store_settings(properties: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in properties.items() if key.startswith((*STORE_SETTINGS, CODE_SETTING))}


def _harmless(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of a table without those that choose code, or the server that gets keys: any writer can set them."""
    return {key: value for key, value in properties.items() if not key.startswith((*STORE_SETTINGS, CODE_SETTING))}


def _identity(properties: Mapping[str, Any]) -> list[Any]:
    """The user that a REST catalog takes us for: the same while the settings are the same and tokens rotate."""
    named = {key: value for key, value in properties.items() if key.startswith(_IDENTITY)}
    signed = str(properties.get("rest.sigv4-enabled", "")).lower() == "true"
    keys = {key: value for key, value in properties.items() if key in KEYS and key.startswith("client.")}
    return [named, _subject(str(properties.get("token", ""))), (keys or ambient_identity()) if signed else []]


def _subject(token: str) -> list[str]:
    """Issuer and subject of a JWT, which the next token has too; of other tokens the token itself."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return [str(claims["iss"]), str(claims["sub"])]
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return [token]
