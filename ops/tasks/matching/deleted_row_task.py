"""Finding the deleted rows of data files, in their delete files and in the columns that equality deletes compare."""

from dataclasses import dataclass

from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.row_deletes import deleted_by_file
from icepuffin.puffin.blobs import deletion_vector_blob


@dataclass(frozen=True, slots=True, eq=False)
class DeletedRowsTask:
    """Data files whose deleted rows are to be found."""

    files: tuple[LiveFile, ...]
    storage: StorageConfig


def find_deleted_rows(task: DeletedRowsTask) -> tuple[bytes, ...]:
    """The deleted rows of each file, as a deletion vector. Memory: the keys of the delete files twice over.

    Raises EqualityDeletesError, DataFileError, StorageError, PuffinError.
    """
    deleted = deleted_by_file(lambda path: open_storage(path, task.storage), task.files)
    return tuple(deletion_vector_blob.encode(deleted[file.path]) for file in task.files)
