"""Opening a catalog the way this project needs it: no call waits for ever, and no secret shows."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from pyiceberg.catalog import Catalog, CatalogType, load_catalog
from pyiceberg.catalog.rest import SNAPSHOT_LOADING_MODE, RestCatalog
from pyiceberg.exceptions import NotInstalledError
from pyiceberg.io import FileIO
from pyiceberg.utils.config import Config, merge_config
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy.engine import make_url

from icepuffin.ops.catalog.redaction import without_values
from icepuffin.ops.catalog.vended_config import CODE_SETTING, STORE_SETTINGS, VendingCatalog
from icepuffin.ops.errors import IcepuffinError

CONNECT_SECONDS = 5
ANSWER_SECONDS = 60
_LIMIT: ContextVar[float] = ContextVar("limit", default=math.inf)
_BUSY_TIMEOUT_MS = 30_000
_KINDS = {"http": "rest", "thrift": "hive", "sqlite": "sql", "postgres": "sql"}
"""What a uri starts with, where no type is set"""


class CatalogUnavailableError(IcepuffinError):
    """Raised when a catalog cannot be opened or does not answer."""


def open_catalog(name: str, properties: dict[str, str]) -> Catalog:
    """PyIceberg's catalog, with limits on how long a connection and an answer are waited for.

    SQLite is set to WAL and to wait for other writers instead of failing after 5 s. Raises CatalogUnavailableError;
    the message names the catalog and not its properties, which may hold secrets.
    """
    try:
        catalog = _load(name, properties)
    except CatalogUnavailableError:
        raise
    except NotInstalledError as error:
        raise CatalogUnavailableError(f"catalog {name!r} cannot be opened: {error}") from None
    except Exception as error:
        # the client's own message may quote the address with its password; what it says otherwise is in the type
        raise CatalogUnavailableError(
            f"catalog {name!r} cannot be opened ({type(error).__name__}); check its settings, and that it is up"
        ) from without_values(error, properties)
    _distrust_tables(catalog)
    if isinstance(catalog, RestCatalog):
        # who sees the referenced snapshots alone takes the others for expired; a server may ask its clients for that
        catalog.properties[SNAPSHOT_LOADING_MODE] = "all"
    engine = getattr(catalog, "engine", None)
    if engine is not None and engine.dialect.name == "sqlite":
        _let_sqlite_wait(engine)
    return catalog


def _distrust_tables(catalog: Catalog) -> None:
    """Keep a table's own properties from saying which code reads its files, and whose server gets the credentials.

    PyIceberg lets them override the catalog's settings. `VendingCatalog` tells them apart from what a catalog vends; to
    other REST catalogs both come the same way, and there only the choice of code is kept back.
    """
    if isinstance(catalog, VendingCatalog):
        return
    through = catalog._load_file_io  # noqa: SLF001  PyIceberg has no other place for it
    refused = CODE_SETTING if isinstance(catalog, RestCatalog) else (CODE_SETTING, *STORE_SETTINGS)

    def load_file_io(properties: Mapping[str, str] = MappingProxyType({}), location: str | None = None) -> FileIO:
        kept = {key: value for key, value in properties.items() if not key.startswith(refused)}
        return through(kept, location)

    catalog._load_file_io = load_file_io  # type: ignore[method-assign]  # noqa: SLF001


def _load(name: str, properties: dict[str, str]) -> Catalog:
    settings: dict[str, Any] = dict(merge_config(Config().get_catalog_config(name) or {}, dict(properties)))
    if _kind(name, settings) is CatalogType.REST:
        return _BoundedRestCatalog(name, **_nested(settings))
    uri = str(settings.get("uri", ""))
    if uri.startswith(("postgresql", "postgres")):
        properties = {**properties, "uri": _bounded_postgres(uri)}
    return load_catalog(name, **properties)


def _kind(name: str, settings: Mapping[str, Any]) -> CatalogType | None:
    """As PyIceberg takes it; None for code of somebody's own. Raises CatalogUnavailableError where it is not clear."""
    if "py-catalog-impl" in settings:
        return None
    uri, given = str(settings.get("uri", "")), str(settings.get("type", "")).lower()
    told = given or next((kind for start, kind in _KINDS.items() if uri.startswith(start)), "")
    if told not in {kind.value for kind in CatalogType}:
        wrong = f"type = {given!r} is no kind of catalog" if given else "its uri does not tell what kind it is"
        known = ", ".join(kind.value for kind in CatalogType)
        raise CatalogUnavailableError(f"catalog {name!r}: {wrong}; set type to one of {known}")
    if not uri and told in _KINDS.values():
        raise CatalogUnavailableError(f"catalog {name!r}: type {told} needs a uri; set it")
    return CatalogType(told)


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """PyIceberg wants `auth` and `ssl` as tables in tables; settings and the environment have dotted keys."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *outer, last = key.split(".") if key.startswith(("auth.", "ssl.")) else [key]
        place = nested
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


@contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """Within the block a REST catalog is given no longer to connect, and to answer each request, than this."""
    token = _LIMIT.set(seconds)
    try:
        yield
    finally:
        _LIMIT.reset(token)


class _BoundedAdapter(HTTPAdapter):
    def send(self, request: PreparedRequest, **options: Any) -> Response:  # type: ignore[override]  # called by name
        limits = min(CONNECT_SECONDS, _LIMIT.get()), min(ANSWER_SECONDS, _LIMIT.get())
        return super().send(request, **{**options, "timeout": options.get("timeout") or limits})


class _BoundedRestCatalog(VendingCatalog):
    """PyIceberg's requests have no timeout."""

    def _config_headers(self, session: Session) -> None:  # the first thing that is done to a new session
        super()._config_headers(session)
        for scheme in ("http://", "https://"):
            session.mount(scheme, _BoundedAdapter())


def _bounded_postgres(uri: str) -> str:
    """With time limits, and with the driver that is installed where none is named: SQLAlchemy's default is another."""
    url = make_url(uri)
    if "+" not in url.drivername:
        url = url.set(drivername="postgresql+psycopg2")
    if url.get_driver_name() not in ("psycopg2", "psycopg") or "connect_timeout" in url.query:
        return url.render_as_string(hide_password=False)
    limits = {"connect_timeout": str(CONNECT_SECONDS), "tcp_user_timeout": str(ANSWER_SECONDS * 1000)}
    return url.update_query_dict({**limits, **url.query}).render_as_string(hide_password=False)


def _let_sqlite_wait(engine: Any) -> None:
    from sqlalchemy import event  # noqa: PLC0415  only SQL catalogs have it

    @event.listens_for(engine, "connect")
    def _set_pragmas(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.close()

    engine.dispose()  # connections made before the listener do not have the pragmas
