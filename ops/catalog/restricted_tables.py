"""What a REST catalog's answer says of the rows and columns that its user may read: nothing, or a refusal here.

An answer to loadTable may have a row filter and column masks, which a client must enforce, or fail: `read-restrictions`
of https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml. PyIceberg drops them. icepuffin
enforces none, so it refuses such a table wherever one comes in.
"""

from collections.abc import Mapping

from icepuffin.ops.errors import TableStateError

RESTRICTIONS = "read-restrictions"
_ROW_FILTER = "required-row-filter"
_PROJECTIONS = "required-column-projections"
_ALWAYS_TRUE = (None, True, "true", {"type": "true"})


class RestrictedTableError(TableStateError):
    """Raised where the catalog restricts what its user may read of a table."""

    retryable = False


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
