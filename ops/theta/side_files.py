"""Files that are committed beside a snapshot's statistics, which do without: what fails of them is a note."""

import logging
from dataclasses import dataclass

from pyiceberg.table import Table

from icepuffin.ops.binding.errors import BindingError, LostRaceError
from icepuffin.ops.binding.joint_commit import CommitPart
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage import left_where_refused, open_storage
from icepuffin.ops.table.snapshots import table_name

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SideFiles:
    """Files that are written and not registered yet; without a part there are none."""

    table: Table
    storage: StorageConfig
    what: str = ""
    """Contents, in words"""
    part: CommitPart[object] | None = None
    """The part of a commit that registers them"""
    paths: tuple[str, ...] = ()
    bytes: int = 0
    told: str = ""
    """What a report tells of them once they are registered"""
    note: str = ""

    def parts(self) -> tuple[CommitPart[object], ...]:
        """The part, if any. Where garbage collection took a file while it waited, it has that for its outcome."""
        if self.part is None:
            return ()
        for path in self.paths:
            if not self.part.is_settled and not open_storage(path, self.storage).exists(path):
                self.part.fail(BindingError(f"{path} was deleted before it was registered; a later run writes it anew"))
        return (self.part,)

    def result(self) -> tuple[str, int, str]:
        """(what is told of them, bytes written, note), once the commit was tried."""
        if self.part is None:
            return "", 0, self.note
        note = ""
        try:
            if self.part.outcome():
                return self.told, self.bytes, self.note
        except Exception as error:  # of a catalog, too, that does not know the update
            note = unpublished(self.table, self.what, error)
            if not isinstance(error, LostRaceError):  # the commit may have landed: a snapshot may refer to the files
                return "", 0, note
        for path in self.paths:  # another writer was first
            with left_where_refused():
                open_storage(path, self.storage).delete(path)
        return "", 0, note


def unpublished(table: Table, what: str, error: Exception) -> str:
    """The note on files that could not be written or registered, which is logged."""
    _log.warning("%s: the %s were not published: %s", table_name(table), what, error)
    return f"the {what} were not published: {error}"
