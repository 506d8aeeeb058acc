"""Policies of how many versions of an index stay. Settings are read without a catalog's libraries."""

from dataclasses import dataclass
from enum import StrEnum


class RetentionScope(StrEnum):
    """Snapshots whose versions stay, beside the newest version."""

    ALL = "all"
    """All snapshots that the table still has."""
    TAGGED = "tagged"
    """Snapshots that a branch or tag of the table's owner points at."""
    NEWEST = "newest"
    """No snapshots: only the newest version stays."""
    NONE = "none"
    """No snapshots, and no newest version either: the index was dropped."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Policy of how many versions of an index stay, and for how long. The version at the index tag always stays."""

    versions: RetentionScope = RetentionScope.ALL
    last: int | None = None
    """Number of versions that stay, by the newest snapshots; tagged snapshots are not counted. None: no limit."""
    days: float | None = None
    """Age up to which versions stay; those of tagged snapshots stay as long as the tag. None: as long as Iceberg keeps
    them.
    """
