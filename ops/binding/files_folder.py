"""The folder of icepuffin's files of a table: metadata/, as in the paper, or one of their own.

A store may take no names but Iceberg's own under metadata/, as table buckets of SeaweedFS do. Its maintenance may also
delete there what no snapshot names, statistics files among it.
"""

from enum import StrEnum

from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate

from icepuffin.ops.binding.commit import attempt_commit, commit_attempts, reload_table
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.table.snapshots import table_name

FOLDER_PROPERTY = "icepuffin.folder"
"""Table property that names the folder; without it, it is metadata/."""


class FilesFolder(StrEnum):
    """Folder of version files, packs, sketches and staged objects, relative to the table's location."""

    METADATA = "metadata"
    """Beside Iceberg's own files"""
    OWN = "_icepuffin"
    """At the table's root: nothing else lies in it, and cleaners that skip hidden names do not enter it"""

    @property
    def staging(self) -> str:
        """Folder of staged objects, relative to the table's location."""
        return "metadata/_icepuffin" if self is FilesFolder.METADATA else self.value


def folder_of(table: Table) -> FilesFolder:
    """The folder by the table's properties. Raises BindingError where they name another one."""
    name = table.properties.get(FOLDER_PROPERTY, FilesFolder.METADATA.value)
    try:
        return FilesFolder(name)
    except ValueError:
        names = " or ".join(FilesFolder)
        raise BindingError(
            f"{table_name(table)}: table property {FOLDER_PROPERTY} is {name!r}; set it to {names}, whichever the "
            "files of its indexes lie in"
        ) from None


def remember_folder(table: Table, folder: FilesFolder) -> None:
    """Write the folder into the table's properties, unless it is the one that they give.

    Raises BindingError where no commit succeeds, and what the catalog raises.
    """
    if folder is folder_of(table):
        return
    for attempt in commit_attempts(table):
        reload_table(table, patient=attempt.number > 0)
        if folder is folder_of(table):
            return
        if attempt.may_commit:
            update = SetPropertiesUpdate(updates={FOLDER_PROPERTY: folder.value})
            attempt_commit(table, (update,), (), attempt.number)
    raise BindingError(
        f"{table_name(table)}: table property {FOLDER_PROPERTY} could not be set to {folder} in {attempt.number} "
        "attempts; try again"
    )
