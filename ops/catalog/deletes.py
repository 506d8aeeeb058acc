"""Which rows of a data file are deleted: position delete files and deletion vectors, read into row positions."""

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ops.catalog.live import EqualityDeletesError
from ops.model import DeleteFile, DeleteKind, LiveFile
from ops.storage import Storage, StorageError, normalize
from puffin.blobs import deletion_vector

NO_DELETES = bytes(32)


def deleted_positions(storage: Storage, file: LiveFile) -> npt.NDArray[np.int64]:
    """Row positions of `file` that are deleted, int64, ascending, distinct.

    Raises EqualityDeletesError, and StorageError or PuffinError for a delete file that is missing or broken.
    """
    if file.has_equality_deletes:
        raise EqualityDeletesError(f"{file.path}: equality deletes apply; rewrite the file first (rewrite_data_files)")
    parts = [_positions(storage, delete, file.path) for delete in file.deletes]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def fingerprint(file: LiveFile) -> bytes:
    """32 bytes, equal for equal sets of deletes; `NO_DELETES` for none. Delete files never change, so names do."""
    if not file.deletes:
        return NO_DELETES
    digest = hashlib.sha256()
    for delete in file.deletes:
        digest.update(f"{normalize(delete.path)}\0{delete.content_offset}\0{delete.content_length}\n".encode())
    return digest.digest()


def _positions(storage: Storage, delete: DeleteFile, data_path: str) -> npt.NDArray[np.int64]:
    if delete.kind is DeleteKind.DELETION_VECTOR:
        if delete.content_offset is None or delete.content_length is None:
            raise StorageError(
                f"{delete.path}: the manifest does not say where the deletion vector of {data_path} lies"
            )
        return deletion_vector.decode(storage.read_range(delete.path, delete.content_offset, delete.content_length))
    raw = storage.read_range(delete.path, 0, storage.size(delete.path))
    try:
        table = pq.read_table(pa.BufferReader(raw), columns=["file_path", "pos"])
    except (pa.ArrowInvalid, KeyError) as error:
        raise StorageError(f"{delete.path} is not a Parquet position delete file: {error}") from error
    mine = pc.is_in(table["file_path"], pa.array({data_path, normalize(data_path)}, pa.string()))
    return np.asarray(table["pos"].filter(mine).to_numpy(), dtype=np.int64)
