"""Opening a catalog the way this project needs it."""

from typing import Any

from pyiceberg.catalog import Catalog, load_catalog

from ops.errors import IcepuffinError

_BUSY_TIMEOUT_MS = 30_000


class CatalogUnavailableError(IcepuffinError):
    """Raised when a catalog cannot be opened or does not answer."""


def open_catalog(name: str, properties: dict[str, str]) -> Catalog:
    """PyIceberg's catalog; SQLite is set to WAL and to wait for other writers instead of failing after 5 s.

    Raises CatalogUnavailableError; the message names the catalog and not its properties, which may hold secrets.
    """
    try:
        catalog = load_catalog(name, **properties)
    except Exception as error:
        raise CatalogUnavailableError(
            f"catalog {name!r} cannot be opened ({type(error).__name__}); check its settings, and that it is up"
        ) from error
    engine = getattr(catalog, "engine", None)
    if engine is not None and engine.dialect.name == "sqlite":
        _let_sqlite_wait(engine)
    return catalog


def _let_sqlite_wait(engine: Any) -> None:
    from sqlalchemy import event  # noqa: PLC0415  only SQL catalogs have it

    @event.listens_for(engine, "connect")
    def _set_pragmas(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.close()

    engine.dispose()  # connections made before the listener do not have the pragmas
