"""Opening catalogs with time limits on all calls, and with errors that show no secrets."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import finalize

from pyiceberg.catalog import Catalog, CatalogType, load_catalog
from pyiceberg.exceptions import NotInstalledError
from pyiceberg.io import FileIO
from pyiceberg.utils.config import Config, merge_config

from icepuffin.ops.catalog import time_limits
from icepuffin.ops.catalog.redaction import without_values
from icepuffin.ops.catalog.store_settings import CODE_SETTING, harmless, has_own_client, sets_own_client, without_code
from icepuffin.ops.catalog.vended_config import is_rest
from icepuffin.ops.errors import CatalogUnavailableError
from icepuffin.ops.table.blob_types import admit_foreign_blobs

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_BUSY_TIMEOUT_MS = 30_000
_TYPES_BY_URI = {"http": "rest", "thrift": "hive", "sqlite": "sql", "postgres": "sql"}
"""Type of a catalog by the start of its uri, where no type is set"""
_URI_FORMS = {
    CatalogType.SQL: "sqlite:////folder/catalog.db (three slashes before a relative path) or postgresql://host/database",
    CatalogType.REST: "https://host/path",
}
"""Form of the uri by the type of a catalog"""


def open_catalog(name: str, properties: dict[str, str]) -> Catalog:
    """PyIceberg's catalog, with time limits on connecting and on each answer.

    SQLite waits for other writers instead of failing after 5 s. A database that this call makes is set to WAL; one that
    is there keeps its mode, which is its owner's.
    Raises CatalogUnavailableError; the message names the catalog and not its properties, which may hold secrets.
    """
    admit_foreign_blobs()
    try:
        path = _sqlite_file(_merged(name, properties))
        is_new = path is not None and not path.exists()
        catalog = _load(name, properties)
    except CatalogUnavailableError:
        raise
    except NotInstalledError as error:
        raise CatalogUnavailableError(f"catalog {name!r} cannot be opened: {error}") from None
    except Exception as error:
        if type(error).__name__ == "NoRegionError":  # botocore's, which is imported for catalogs of AWS alone
            raise CatalogUnavailableError(
                f"catalog {name!r} cannot be opened: no AWS region is set; set client.region in its settings, or "
                "AWS_DEFAULT_REGION"
            ) from None
        cause = failure(name, properties, error)
        raise CatalogUnavailableError(
            f"catalog {name!r} cannot be opened: {cause}; check its settings, and that it is up"
        ) from without_values(error, properties)
    _distrust_tables(catalog)
    if is_rest(catalog):
        from pyiceberg.catalog.rest import SNAPSHOT_LOADING_MODE  # noqa: PLC0415

        # a server may prefer to send the referenced snapshots alone; then the others would be taken for expired
        catalog.properties[SNAPSHOT_LOADING_MODE] = "all"
    engine = getattr(catalog, "engine", None)
    if engine is not None and engine.dialect.name == "sqlite":
        _let_sqlite_wait(engine)
        if is_new:
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        finalize(catalog, engine.dispose)  # PyIceberg leaves open what is not closed, and Python 3.13 warns of it
    return catalog


def names_that_have(catalog: Catalog, identifier: str) -> tuple[str, ...]:
    """Names of catalogs by which the database of an SQL catalog has `namespace.table`; none for other catalogs."""
    engine = getattr(catalog, "engine", None)
    if engine is None:
        return ()
    from pyiceberg.catalog.sql import IcebergTables  # noqa: PLC0415  SQLAlchemy is an extra
    from sqlalchemy import select  # noqa: PLC0415

    namespace, _, table = identifier.rpartition(".")
    same = select(IcebergTables.catalog_name).where(
        IcebergTables.table_namespace == namespace, IcebergTables.table_name == table
    )
    with engine.connect() as connection:
        return tuple(sorted(connection.scalars(same)))


def require_database(name: str, properties: Mapping[str, str]) -> None:
    """Raises CatalogUnavailableError where a catalog is an SQLite file that is not there: to open it would create it.

    Settings name catalogs that exist. Whoever makes a new catalog, as the demo does, calls `open_catalog` alone.
    """
    settings = _merged(name, properties)
    path = _sqlite_file(settings) if _catalog_type(name, settings) is CatalogType.SQL else None
    if path is None or path.is_file():
        return
    missing = f"there is no SQLite database {path}"
    if path.is_dir():
        missing = f"{path} is a folder, not an SQLite database"
    elif not path.parent.is_dir():
        missing += f", nor a folder {path.parent}"
    raise CatalogUnavailableError(
        f"catalog {name!r} cannot be opened: {missing}; check uri in its settings: sqlite:/// begins in the current "
        "folder, sqlite://// at the root. icepuffin creates no catalog"
    )


def failure(name: str, properties: Mapping[str, str], error: Exception, *, quoting: bool = False) -> str:
    """Why a catalog failed: `cause (address)`, without what is secret.

    The cause is the message of the operating system or of the database's driver, or a status of HTTP. Messages of a
    client itself may quote the address with its password: unless `quoting`, the type of the error replaces them.
    """
    from requests.exceptions import HTTPError  # noqa: PLC0415  only where something failed
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415

    settings = _merged(name, properties)
    innermost: BaseException = error
    while (inner := innermost.__cause__ or innermost.__context__) is not None:
        innermost = inner
    if isinstance(innermost, OSError) and innermost.strerror:
        cause = innermost.strerror
    elif isinstance(error, DBAPIError):
        cause = str(without_values(Exception(str(error.orig)), _secrets(settings))).partition(": ")[2].splitlines()[0]
    elif isinstance(innermost, HTTPError) and innermost.response is not None:
        cause = f"HTTP status {innermost.response.status_code} {innermost.response.reason}"
    else:
        cause = str(without_values(error, _secrets(settings))).splitlines()[0] if quoting else type(error).__name__
    address = _address(settings)
    return f"{cause} ({address})" if address else cause


def _secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, and the parts of a database's URL that may not show."""
    url = _database_url(settings)
    return {**settings, "user": url.username or "", "password": url.password or ""} if url else dict(settings)


def _address(settings: Mapping[str, Any]) -> str:
    """Where a catalog is: the file of an SQLite database; scheme, host and port of a server; empty where unknown."""
    if (path := _sqlite_file(settings)) is not None:
        return str(path)
    try:
        parts = urlsplit(str(settings.get("uri", "")))
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.hostname}{port}" if parts.hostname else ""


def _sqlite_file(settings: Mapping[str, Any]) -> Path | None:
    """The database file of an SQLite catalog; None for other catalogs, and for databases in memory."""
    url = _database_url(settings)
    if url is None or url.get_backend_name() != "sqlite" or not url.database or url.database.startswith((":", "file:")):
        return None
    return Path(url.database).absolute()


def _database_url(settings: Mapping[str, Any]) -> "URL | None":
    uri = str(settings.get("uri", ""))
    if not uri.startswith(("sqlite", "postgres")):
        return None
    from sqlalchemy.engine import make_url  # noqa: PLC0415  a REST catalog does not need it
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        return make_url(uri)
    except (ArgumentError, ValueError):
        return None


def _merged(name: str, properties: Mapping[str, str]) -> dict[str, Any]:
    """The properties over those that PyIceberg's own configuration has for the catalog."""
    return dict(merge_config(Config().get_catalog_config(name) or {}, dict(properties)))


def _distrust_tables(catalog: Catalog) -> None:
    """Keep a table's own properties from choosing the code that reads its files, and the server that gets credentials.

    PyIceberg lets them override the catalog's settings. `VendingCatalog` tells them apart from what a catalog vends; to
    other REST catalogs both come the same way, and there only the choice of code is kept back.
    """
    rest = is_rest(catalog)
    if rest:
        from icepuffin.ops.catalog.rest_catalog import VendingCatalog  # noqa: PLC0415

        if isinstance(catalog, VendingCatalog):
            return
    load = catalog._load_file_io  # noqa: SLF001  PyIceberg has no other place for it
    admitted = without_code if rest else harmless

    def load_file_io(properties: Mapping[str, str] = MappingProxyType({}), location: str | None = None) -> FileIO:
        return load(admitted(properties), location)

    catalog._load_file_io = load_file_io  # type: ignore[method-assign]  # noqa: SLF001


def _with_own_client(settings: Mapping[str, Any], properties: dict[str, str]) -> dict[str, str]:
    """The properties, with the FileIO that reads the settings of stores as `open_storage` does, where that is ours."""
    is_ours = sets_own_client(settings) or has_own_client(str(settings.get("warehouse", "")))
    if CODE_SETTING in settings or not is_ours:
        return properties
    return {**properties, CODE_SETTING: "icepuffin.ops.catalog.stored_file_io.StoredFileIO"}


def _load(name: str, properties: dict[str, str]) -> Catalog:
    settings = _merged(name, properties)
    kind, uri = _catalog_type(name, settings), str(settings.get("uri", ""))
    if kind in _URI_FORMS and not re.match(r"https?://" if kind is CatalogType.REST else r"[\w+]+://", uri):
        raise CatalogUnavailableError(f"catalog {name!r} cannot be opened: its uri must be like {_URI_FORMS[kind]}")
    if kind is CatalogType.REST:
        from icepuffin.ops.catalog.rest_catalog import VendingCatalog  # noqa: PLC0415  a client that others do not need

        return VendingCatalog(name, **_nested(settings))
    if uri.startswith(("postgresql", "postgres")):
        properties = {**properties, "uri": _bounded_postgres(uri)}
    properties = _with_own_client(settings, properties)
    catalog = load_catalog(name, **properties)
    if is_rest(catalog):  # of a class of the user's own, which has taken what the server sends
        catalog.properties = without_code(catalog.properties, {**settings, **properties})
    if kind is CatalogType.HIVE:
        from icepuffin.ops.catalog.hive_client import make_newer_calls  # noqa: PLC0415  thrift, which others do not need

        make_newer_calls()
    return catalog


def _catalog_type(name: str, settings: Mapping[str, Any]) -> CatalogType | None:
    """The catalog's type by PyIceberg's rules; None for a catalog with `py-catalog-impl`.

    Raises CatalogUnavailableError where the settings do not name it.
    """
    if "py-catalog-impl" in settings:
        return None
    uri, configured = str(settings.get("uri", "")), str(settings.get("type", "")).lower()
    type_name = configured or next((text for start, text in _TYPES_BY_URI.items() if uri.startswith(start)), "")
    if type_name not in {member.value for member in CatalogType}:
        fault = (
            f"type = {configured!r} is no kind of catalog" if configured else "its uri does not tell what kind it is"
        )
        types = ", ".join(member.value for member in CatalogType)
        raise CatalogUnavailableError(f"catalog {name!r}: {fault}; set type to one of {types}")
    if not uri and type_name in _TYPES_BY_URI.values():
        raise CatalogUnavailableError(f"catalog {name!r}: type {type_name} needs a uri; set it")
    return CatalogType(type_name)


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """PyIceberg wants `auth` and `ssl` as tables in tables; settings and the environment have dotted keys."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *outer, last = key.split(".") if key.startswith(("auth.", "ssl.")) else [key]
        level = nested
        for part in outer:
            level = level.setdefault(part, {})
        level[last] = value
    return nested


def _bounded_postgres(uri: str) -> str:
    """The uri with time limits, and with the installed driver where it names none: SQLAlchemy's default is another."""
    from sqlalchemy.engine import make_url  # noqa: PLC0415

    url = make_url(uri)
    if "+" not in url.drivername:
        url = url.set(drivername="postgresql+psycopg2")
    if url.get_driver_name() not in ("psycopg2", "psycopg") or "connect_timeout" in url.query:
        return url.render_as_string(hide_password=False)
    seconds, answer_ms = time_limits.CONNECT_SECONDS, time_limits.ANSWER_SECONDS * 1000
    limits = {"connect_timeout": str(seconds), "tcp_user_timeout": str(answer_ms)}
    return url.update_query_dict({**limits, **url.query}).render_as_string(hide_password=False)


def _let_sqlite_wait(engine: Any) -> None:
    from sqlalchemy import event  # noqa: PLC0415  only SQL catalogs have it

    @event.listens_for(engine, "connect")
    def _set_timeout(connection: Any, _: Any) -> None:
        connection.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}").close()

    engine.dispose()  # connections made before the listener do not have the timeout
