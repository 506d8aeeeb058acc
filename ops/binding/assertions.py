"""Requirements of commits that Iceberg's protocol has no word for."""

from collections.abc import Callable, Hashable

from pydantic import Field
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertTableUUID


class AssertUnchanged(AssertTableUUID):
    """The requirement that a look at the metadata finds what it found when the commit was prepared.

    PyIceberg evaluates it where it writes the metadata, and swaps what it evaluated. To a server it is the table's
    UUID.
    """

    what: str = Field(exclude=True)
    look: Callable[[TableMetadata], Hashable] = Field(exclude=True)
    seen: Hashable = Field(exclude=True)

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # PyIceberg names it
        super().validate(base_metadata)
        if base_metadata is not None and (now := self.look(base_metadata)) != self.seen:
            raise CommitFailedException(f"Requirement failed: {self.what} is {now}, not {self.seen}")


def unchanged(table: Table, what: str, look: Callable[[TableMetadata], Hashable]) -> AssertUnchanged:
    """The requirement that `look` finds what it finds in the state that `table` shows. `what`: in words."""
    metadata = table.metadata
    return AssertUnchanged(uuid=metadata.table_uuid, what=what, look=look, seen=look(metadata))
