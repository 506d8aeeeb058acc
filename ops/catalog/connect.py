"""Opening a catalog the way this project needs it: no call waits for ever, and no secret shows."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from pyiceberg.utils.config import Config, merge_config
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from sqlalchemy.engine import make_url

from ops.errors import IcepuffinError

CONNECT_SECONDS = 5
ANSWER_SECONDS = 60
_LIMIT: ContextVar[float] = ContextVar("limit", default=math.inf)
_BUSY_TIMEOUT_MS = 30_000
_STORE_SETTINGS = ("s3.", "client.", "gcs.", "adls.", "oss.", "hdfs.", "hf.")


class CatalogUnavailableError(IcepuffinError):
    """Raised when a catalog cannot be opened or does not answer."""


def open_catalog(name: str, properties: dict[str, str]) -> Catalog:
    """PyIceberg's catalog, with limits on how long a connection and an answer are waited for.

    SQLite is set to WAL and to wait for other writers instead of failing after 5 s. Raises CatalogUnavailableError;
    the message names the catalog and not its properties, which may hold secrets.
    """
    try:
        catalog = _load(name, properties)
    except Exception as error:
        # the client's own message may quote the address with its password; what it says otherwise is in the type
        raise CatalogUnavailableError(
            f"catalog {name!r} cannot be opened ({type(error).__name__}); check its settings, and that it is up"
        ) from without_values(error, properties)
    _distrust_tables(catalog)
    engine = getattr(catalog, "engine", None)
    if engine is not None and engine.dialect.name == "sqlite":
        _let_sqlite_wait(engine)
    return catalog


def _distrust_tables(catalog: Catalog) -> None:
    """Keep a table's own properties from saying which code reads its files, and whose server gets the credentials.

    PyIceberg lets them override the catalog's settings. What a REST catalog vends comes the same way as properties do:
    there only the choice of code is kept back.
    """
    through = catalog._load_file_io  # noqa: SLF001  PyIceberg has no other place for it
    refused = "py-io-impl" if isinstance(catalog, RestCatalog) else ("py-io-impl", *_STORE_SETTINGS)

    def load_file_io(properties: Mapping[str, str] = MappingProxyType({}), location: str | None = None) -> FileIO:
        kept = {key: value for key, value in properties.items() if not key.startswith(refused)}
        return through(kept, location)

    catalog._load_file_io = load_file_io  # type: ignore[method-assign]  # noqa: SLF001


def _load(name: str, properties: dict[str, str]) -> Catalog:
    settings: dict[str, Any] = dict(merge_config(Config().get_catalog_config(name) or {}, dict(properties)))
    uri = str(settings.get("uri", ""))
    kind = settings.get("type") or ("rest" if uri.startswith("http") else None)
    if kind == "rest" and "py-catalog-impl" not in settings:
        return _BoundedRestCatalog(name, **settings)
    if uri.startswith(("postgresql", "postgres")):
        properties = {**properties, "uri": _bounded_postgres(uri)}
    return load_catalog(name, **properties)


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


class _BoundedRestCatalog(RestCatalog):
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


def without_values(error: Exception, properties: dict[str, str]) -> Exception:
    """An error to chain: of no value of `properties` but short ones and kinds does anything show."""
    said = str(error)
    for key, value in properties.items():
        if key not in {"type", "warehouse"} and len(value) > 3:
            said = said.replace(value, f"<{key}>")
    return RuntimeError(f"{type(error).__name__}: {said}")


def _let_sqlite_wait(engine: Any) -> None:
    from sqlalchemy import event  # noqa: PLC0415  only SQL catalogs have it

    @event.listens_for(engine, "connect")
    def _set_pragmas(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.close()

    engine.dispose()  # connections made before the listener do not have the pragmas
