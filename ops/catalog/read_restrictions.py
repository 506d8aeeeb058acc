"""Tables that may be read whole, or are refused wherever one comes in."""

from pyiceberg.table import Table

from icepuffin.ops.catalog.restricted_tables import refuse_restricted
from icepuffin.ops.catalog.vended_config import is_rest
from icepuffin.ops.errors import require_type
from icepuffin.ops.table.snapshots import table_name


def require_table(table: object, function: str) -> None:
    """Raises TypeError where `function` was given something else than a PyIceberg table, such as a table's name, and
    the errors of `require_unrestricted`.
    """
    remedy = 'load it first, as in catalog.load_table("ns.t")'
    require_type(table, Table, f"{function} takes a PyIceberg table", remedy)
    assert isinstance(table, Table)  # noqa: S101  for the type checker
    require_unrestricted(table)


def require_unrestricted(table: Table) -> None:
    """Ask the REST catalog that PyIceberg loaded a table from whether it restricts what its user may read.

    The catalogs that icepuffin opens look at each answer themselves; others than REST catalogs cannot restrict.
    Raises RestrictedTableError, TableUnavailableError, and CatalogUnavailableError where it is not known.
    """
    if is_rest(table.catalog):
        from icepuffin.ops.catalog.rest_catalog import request_restrictions  # noqa: PLC0415  others do not need it

        refuse_restricted(table_name(table), request_restrictions(table.catalog, table.name()))
