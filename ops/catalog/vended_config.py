"""The storage of a table's files, by the settings of its catalog and what the catalog vends with the table."""

import sys
from typing import TYPE_CHECKING, TypeGuard

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icepuffin.ops.catalog.store_settings import store_settings
from icepuffin.ops.model import StorageConfig

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog


def storage_of(table: Table) -> StorageConfig:
    """The storage of the table's files: its catalog's settings, and what the catalog vends for it.

    Keys that a REST catalog vends are renewed before they expire, in this process and in tasks. Properties of the table
    itself are ignored.
    """
    catalog = table.catalog
    if is_rest(catalog):
        from icepuffin.ops.catalog.rest_catalog import vended_storage  # noqa: PLC0415  a client that others do not need

        return vended_storage(table, catalog)
    return StorageConfig(store_settings(catalog.properties or table.io.properties))


def is_rest(catalog: Catalog) -> "TypeGuard[RestCatalog]":
    """Whether it is a REST catalog. Where nobody has imported PyIceberg's REST client, no catalog is one."""
    client = sys.modules.get("pyiceberg.catalog.rest")
    return client is not None and isinstance(catalog, client.RestCatalog)
