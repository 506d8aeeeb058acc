"""Read restrictions: the rows and columns of a table that a REST catalog lets its user read.

An answer to loadTable may have a row filter and column masks, which a client must enforce, or fail: `read-restrictions`
of https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml. PyIceberg drops them. icepuffin
enforces none, so it refuses such a table wherever one comes in.
"""

from collections.abc import Mapping

from pyiceberg.table import Table

from icepuffin.ops.catalog.snapshots import table_name
from icepuffin.ops.catalog.vended_config import is_rest
from icepuffin.ops.errors import IcepuffinError, require_type

RESTRICTIONS = "read-restrictions"
_ROW_FILTER = "required-row-filter"
_PROJECTIONS = "required-column-projections"
_ALWAYS_TRUE = (None, True, "true", {"type": "true"})


class RestrictedTableError(IcepuffinError):
    """Raised where the catalog restricts what its user may read of a table."""

    retryable = False


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


def refuse_restricted(name: str, restrictions: object) -> None:
    """Raises RestrictedTableError for all restrictions but None and those that restrict nothing.

    restrictions: the value of `read-restrictions` in an answer.
    """
    if restrictions is None:
        return
    what = "restricts it in a form that icepuffin does not know"
    if isinstance(restrictions, Mapping) and not set(restrictions) - {_ROW_FILTER, _PROJECTIONS}:
        filters = restrictions.get(_ROW_FILTER) not in _ALWAYS_TRUE
        masks = restrictions.get(_PROJECTIONS) not in (None, [])
        if not filters and not masks:
            return
        what = " and ".join(["filters its rows"] * filters + ["masks some of its columns"] * masks)
    raise RestrictedTableError(
        f"{name}: the catalog restricts what its user may read of this table ({RESTRICTIONS}: it {what}). icepuffin "
        "does not enforce that, so it neither reads the table nor what was derived from it. Have the catalog's owner "
        "grant all rows and columns to this user, or name a catalog with the settings of one who has them"
    )
