"""Questions to a catalog about a table that comes in: whether it restricts what its user may read."""

from pyiceberg.table import Table

from icepuffin.ops.catalog.restricted_tables import ReadRestrictions, read_restrictions_of, refuse_restricted
from icepuffin.ops.catalog.vended_config import is_rest
from icepuffin.ops.errors import require_type
from icepuffin.ops.table.snapshots import table_name


def require_table(table: object, function: str) -> Table:
    """The table. Raises TypeError where `function` was given something else than a PyIceberg table, such as a table's
    name, and the errors of `require_unrestricted`.
    """
    plain = pyiceberg_table(table, function)
    require_unrestricted(plain)
    return plain


def pyiceberg_table(table: object, function: str) -> Table:
    """The table. Raises TypeError where `function` was given something else."""
    remedy = 'load it first, as in catalog.load_table("ns.t")'
    require_type(table, Table, f"{function} takes a PyIceberg table", remedy)
    assert isinstance(table, Table)  # noqa: S101  for the type checker
    return table


def require_unrestricted(table: Table) -> None:
    """Raises RestrictedTableError where the catalog restricts what its user may read, and the errors of
    `requested_restrictions`.
    """
    refuse_restricted(table_name(table), _answer(table))


def requested_restrictions(table: Table) -> ReadRestrictions | None:
    """What the REST catalog that PyIceberg loaded a table from lets its user read of it; None where it is all.

    The catalogs that icepuffin opens refuse a restricted table themselves; others than REST catalogs cannot restrict.
    Raises RestrictedTableError for a form that is not known; TableUnavailableError, and CatalogUnavailableError where
    the catalog does not say.
    """
    return read_restrictions_of(table_name(table), _answer(table))


def _answer(table: Table) -> object:
    """`read-restrictions` of a fresh answer of the table's catalog."""
    if not is_rest(table.catalog):
        return None
    from icepuffin.ops.catalog.rest_catalog import request_restrictions  # noqa: PLC0415  others do not need it

    return request_restrictions(table.catalog, table.name(), str(table.metadata.table_uuid))
