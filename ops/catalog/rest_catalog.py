"""PyIceberg's REST catalog with time limits, and with keys for files that are renewed.

A REST catalog vends settings and short-lived keys with a table, for its files. PyIceberg requests them with each table
that it loads and hands them to the FileIO. It does not renew them, and drops the keys for prefixes other than that of
the metadata file. Here they are renewed, and kept for all prefixes.

Imported where a catalog is a REST catalog: its client takes a tenth of a second.
"""

import base64
import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog.rest import Capability, Endpoints, RestCatalog, TableResponse
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.catalog.rest.scan_planning import StorageCredential
from pyiceberg.exceptions import AuthorizationExpiredError, NoSuchTableError, RESTError, UnauthorizedError
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import HTTPError, RequestException

from icepuffin.ops.catalog.redaction import without_values
from icepuffin.ops.catalog.restricted_tables import RESTRICTIONS, refuse_restricted
from icepuffin.ops.catalog.store_settings import CODE_SETTING, harmless, store_settings, without_code
from icepuffin.ops.catalog.stored_file_io import StoredFileIO
from icepuffin.ops.catalog.time_limits import request_limits
from icepuffin.ops.errors import CatalogUnavailableError
from icepuffin.ops.model import Grant, StorageConfig, VendedGrants
from icepuffin.ops.storage import AccessError, normalize
from icepuffin.ops.storage.credentials import KEYS, is_vended, kind_of_key
from icepuffin.ops.storage.locations import OBJECT_STORES
from icepuffin.ops.storage.principal import ambient_identity, digest
from icepuffin.ops.table.snapshots import TableUnavailableError

_IDENTITY = ("uri", "warehouse", "prefix", "credential", "scope", "audience", "resource", "auth", "header.", "rest.")
_CLIENTS = 16


def vended_storage(table: Table, catalog: RestCatalog) -> StorageConfig:
    """The storage of the files of a table of a REST catalog."""
    if isinstance(table.io, StoredFileIO):
        return table.io.storage
    keys = {key: value for key, value in table.io.properties.items() if is_vended(key)}
    vended_keys = {key: value for key, value in keys.items() if catalog.properties.get(key) != value}
    config = without_code({**table.config, **vended_keys})
    return _storage(catalog, table.name(), str(table.metadata.table_uuid), config, ())


def _request_table(catalog: RestCatalog, identifier: tuple[str, ...]) -> Response:
    """An answer to loadTable: as short as the catalog has it, since only its restrictions are read."""
    url = catalog.url(Endpoints.load_table, prefixed=True, **catalog._split_identifier_for_path(identifier))  # noqa: SLF001
    answer = catalog._session.get(url, params={"snapshots": "refs"}, timeout=request_limits())  # noqa: SLF001
    try:
        answer.raise_for_status()
    except HTTPError as error:
        _handle_non_200_response(error, {404: NoSuchTableError})
    return answer


def request_restrictions(catalog: RestCatalog, identifier: tuple[str, ...], table_uuid: str) -> object:
    """`read-restrictions` of an answer to loadTable; None for catalogs that look at each answer by themselves.

    Raises TableUnavailableError, CatalogUnavailableError.
    """
    if isinstance(catalog, VendingCatalog):
        return None
    name = ".".join(identifier)
    try:
        try:
            answer = _request_table(catalog, identifier)
        except (AuthorizationExpiredError, UnauthorizedError):  # as PyIceberg does
            catalog._refresh_token()  # noqa: SLF001
            answer = _request_table(catalog, identifier)
        if (other := _uuid_in(answer)) is not None and other != table_uuid:
            raise TableUnavailableError(
                f"{name} is another table in catalog {catalog.name} than the one that was loaded; load it again"
            )
        return _restrictions_in(answer)
    except NoSuchTableError as error:
        raise TableUnavailableError(f"{name} was dropped from catalog {catalog.name}; load the table again") from error
    except (RequestException, RESTError, ValueError, RecursionError) as error:
        cause = str(without_values(error, catalog.properties)).partition("\n")[0]
        raise CatalogUnavailableError(
            f"{name}: whether catalog {catalog.name!r} restricts what may be read of it is not known ({cause}), so it "
            "is not read; try again when the catalog is up"
        ) from without_values(error, catalog.properties)


def _restrictions_in(answer: Response) -> object:
    """`read-restrictions` of an answer in JSON; the answer itself where it is no object. Raises ValueError."""
    document = answer.json()
    return document.get(RESTRICTIONS) if isinstance(document, dict) else document


def _uuid_in(answer: Response) -> str | None:
    """The uuid of the table that an answer in JSON is about; None where it has none. Raises ValueError."""
    document = answer.json()
    metadata = document.get("metadata") if isinstance(document, dict) else None
    table_uuid = metadata.get("table-uuid") if isinstance(metadata, dict) else None
    return table_uuid if isinstance(table_uuid, str) else None


def _refuse_restricted(answer: Response, *_: object, **__: object) -> None:
    """Hook of a session: raises RestrictedTableError for an answer about a table with read restrictions."""
    if answer.ok and any(part in answer.content for part in (RESTRICTIONS.encode(), b"\\u")):  # or an escape in a key
        parts = urlsplit(answer.url).path.rpartition("/namespaces/")[2].replace("/tables/", ".")
        refuse_restricted(unquote(parts).replace("\x1f", "."), _restrictions_in(answer))


class _BoundedAdapter(HTTPAdapter):
    def send(self, request: PreparedRequest, **options: Any) -> Response:  # type: ignore[override]  # called by name
        return super().send(request, **{**options, "timeout": options.get("timeout") or request_limits()})


class VendingCatalog(RestCatalog):
    """PyIceberg's REST catalog, with tables whose files stay readable for as long as somebody reads them."""

    def _fetch_config(self) -> None:
        configured = self.properties
        super()._fetch_config()  # joins what the server sends with them, for all that is made after it
        self.properties = without_code(self.properties, configured)

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        metadata, config = table_response.metadata, without_code(table_response.config)
        location = table_response.metadata_location or metadata.location
        credentials = table_response.storage_credentials
        storage = _storage(self, identifier_tuple, str(metadata.table_uuid), config, credentials)
        io: FileIO
        if normalize(location).startswith(OBJECT_STORES) and CODE_SETTING not in self.properties:
            io = StoredFileIO({**harmless(metadata.properties), **self.properties, **config}, storage)
        else:
            vended = {**config, **without_code(self._resolve_storage_credentials(credentials, location))}
            io = self._load_file_io({**harmless(metadata.properties), **vended}, location)
        return Table(identifier_tuple, metadata, location, io, self, config)

    def grants(self, identifier: tuple[str, ...]) -> tuple[Grant, ...]:
        """Request credentials alone where the catalog has an endpoint for that, else the table with its credentials."""
        if Capability.V1_LOAD_CREDENTIALS in self._supported_endpoints:
            grants = _grants({}, self._load_credentials(identifier).storage_credentials)
            if grants:
                return grants
        return _grants_of(self.load_table(identifier), self)

    def _config_headers(self, session: Session) -> None:  # the first thing that is done to a new session
        super()._config_headers(session)
        for scheme in ("http://", "https://"):
            session.mount(scheme, _BoundedAdapter())  # PyIceberg's requests have no timeout
        session.hooks["response"].append(_refuse_restricted)


@dataclass(frozen=True)
class Renewal:
    """A request for new credentials of a table, sent from here or from a task. Its properties never show."""

    client_class: type[RestCatalog]
    catalog: str
    properties: Mapping[str, Any] = field(repr=False)
    identifier: tuple[str, ...]

    def __call__(self) -> tuple[Grant, ...]:
        try:
            client, lock = _client(os.getpid(), self.client_class, self.catalog, json.dumps(dict(self.properties)))
            with lock:
                if isinstance(client, VendingCatalog):
                    return client.grants(self.identifier)
                return _grants_of(client.load_table(self.identifier), client)
        except Exception as error:
            # the client's own error may quote a secret: that is cut out, the rest is kept
            message = str(without_values(error, self.properties)).splitlines()[0]
            raise AccessError(f"the request for new ones failed: {message}") from None


@lru_cache(maxsize=_CLIENTS)
def _client(_: int, client_class: type[RestCatalog], name: str, properties: str) -> tuple[RestCatalog, threading.Lock]:
    """A client per process and catalog, and a lock for it: its session takes one thread at a time."""
    return client_class(name, **json.loads(properties)), threading.Lock()


def _storage(
    catalog: RestCatalog,
    identifier: tuple[str, ...],
    table_uuid: str,
    config: Mapping[str, str],
    credentials: Iterable[StorageCredential],
) -> StorageConfig:
    """`config`: what the catalog sent with the table, but for code."""
    grants = _grants(config, credentials)
    settings = {key: value for key, value in store_settings(config).items() if not is_vended(key)}
    merged = {**store_settings(catalog.properties), **settings}
    if not grants:
        return StorageConfig(merged)
    who = digest(["vended", _identity(catalog.properties), table_uuid])
    renewal = Renewal(type(catalog), catalog.name, dict(catalog.properties), identifier)
    return StorageConfig(merged, VendedGrants(catalog.name, ".".join(identifier), who, grants, renewal))


def _grants_of(table: Table, catalog: RestCatalog) -> tuple[Grant, ...]:
    vended = vended_storage(table, catalog).vended
    return vended.grants if vended else ()


def _grants(config: Mapping[str, str], credentials: Iterable[StorageCredential]) -> tuple[Grant, ...]:
    """The grants with keys for stores: those vended for prefixes, and the one in the table's configuration for all."""
    grants = [Grant(item.prefix, store_settings(without_code(item.config))) for item in credentials]
    grants.append(Grant("", {key: value for key, value in config.items() if is_vended(key)}))
    return tuple(grant for grant in grants if any(kind_of_key(key) for key in grant.properties))


def _identity(properties: Mapping[str, Any]) -> list[Any]:
    """The user that a REST catalog takes us for: the same while the settings are the same and tokens rotate."""
    named = {key: value for key, value in properties.items() if key.startswith(_IDENTITY)}
    signed = str(properties.get("rest.sigv4-enabled", "")).lower() == "true"
    keys = {key: value for key, value in properties.items() if key in KEYS["s3"] and key.startswith("client.")}
    return [named, _subject(str(properties.get("token", ""))), (keys or ambient_identity()) if signed else []]


def _subject(token: str) -> list[str]:
    """Issuer and subject of a JWT, which the next token has too; of other tokens the token itself."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return [str(claims["iss"]), str(claims["sub"])]
    except (IndexError, KeyError, TypeError, ValueError):
        return [token]
