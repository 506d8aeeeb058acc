"""What a REST catalog's answer says of the rows and columns that its user may read.

An answer to loadTable may have a row filter and column masks, which a client must enforce, or fail: `read-restrictions`
of https://github.com/apache/iceberg/blob/main/open-api/rest-catalog-open-api.yaml. PyIceberg drops them. Readers
enforce them (`ops/search/target.py`); wherever else such a table comes in, it is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from icepuffin.ops.errors import TableStateError

RESTRICTIONS = "read-restrictions"
_ROW_FILTER = "required-row-filter"
_PROJECTIONS = "required-column-projections"
_FIELD_ID, _ACTION = "field-id", "action"
_OF_PROJECTION = {_FIELD_ID, _ACTION, "expression"}


class RestrictedTableError(TableStateError):
    """Raised where the catalog restricts what its user may read of a table, and that was to be read."""

    retryable = False


@dataclass(frozen=True, slots=True)
class ReadRestrictions:
    """The restrictions of one answer, in a form that is known."""

    row_filter: object
    """Predicate, in the JSON of Iceberg's expressions, of the rows that may be read; None for all rows"""
    masked: frozenset[int]
    """Field ids of the columns that may be read through a mask alone, nested ones among them"""

    @property
    def what(self) -> str:
        """What the catalog does, in words."""
        parts = ["filters its rows"] * (self.row_filter is not None) + ["masks some of its columns"] * bool(self.masked)
        return " and ".join(parts)


def read_restrictions_of(name: str, answer: object) -> ReadRestrictions | None:
    """The restrictions in an answer; None where it restricts nothing.

    name: of the table. answer: the value of `read-restrictions`. Raises RestrictedTableError for a form that is not
    known.
    """
    if answer is None:
        return None
    masked = None
    if isinstance(answer, Mapping) and not set(answer) - {_ROW_FILTER, _PROJECTIONS}:
        masked = _masked(answer.get(_PROJECTIONS))
    if masked is None or not isinstance(answer, Mapping):
        raise unknown_form(name, "it is no row filter with masks of columns")
    row_filter = answer.get(_ROW_FILTER)
    if row_filter is True or row_filter == {"type": "true"}:
        row_filter = None
    return None if row_filter is None and not masked else ReadRestrictions(row_filter, masked)


def refuse_restricted(name: str, answer: object) -> None:
    """Raises RestrictedTableError for all answers but None and those that restrict nothing; see
    `read_restrictions_of`.
    """
    if (restrictions := read_restrictions_of(name, answer)) is not None:
        why = "Readers of open_index and open_exact enforce that; this reads all of the table, or what holds all of it"
        raise restriction_error(name, restrictions.what, why)


def restriction_error(name: str, what: str, why: str) -> RestrictedTableError:
    """The error for a restricted table. `what`: what the catalog does. `why`: reason for the refusal."""
    return RestrictedTableError(
        f"{name}: the catalog restricts what its user may read of this table ({RESTRICTIONS}: it {what}). {why}. Have "
        "the catalog's owner grant all rows and columns to this user, or name a catalog with the settings of one who "
        "has them"
    )


def unknown_form(name: str, fault: str) -> RestrictedTableError:
    """The error for restrictions that are not understood, with the reason."""
    why = f"It cannot be enforced, so nothing of the table is read: {fault}"
    return restriction_error(name, "restricts it in a form that icepuffin does not know", why)


def _masked(projections: object) -> frozenset[int] | None:
    """Field ids of some column projections; None for a form that is not known."""
    if projections is None:
        return frozenset()
    if not isinstance(projections, list):
        return None
    masked: list[int] = []
    for item in projections:
        if not isinstance(item, Mapping) or set(item) - _OF_PROJECTION or not isinstance(item.get(_ACTION), str):
            return None
        field_id = item.get(_FIELD_ID)
        if not isinstance(field_id, int) or isinstance(field_id, bool):
            return None
        masked.append(field_id)
    return frozenset(masked) if len({*masked}) == len(masked) else None  # a column has one action at most
