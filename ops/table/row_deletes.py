"""Deleted rows of data files: row positions from position delete files, deletion vectors and equality deletes."""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icepuffin.ops.model import DeleteFile, DeleteKind, LiveFile
from icepuffin.ops.storage import Storage, StorageError, normalize
from icepuffin.ops.table.equality_deletes import deleted_by_equality
from icepuffin.ops.table.live_files import unlike_deletes
from icepuffin.ops.table.shared_deletes import DeleteFilter, Deletes, compares_keys, distinct_deletes, values_of
from icepuffin.puffin.blobs import deletion_vector_blob
from icepuffin.puffin.blobs.roaring import MAX_POSITIONS
from icepuffin.puffin.blobs.routing_blob import NO_DELETES

_PATH = "file_path"
_COLUMNS = [_PATH, "pos"]
_FIRST_FILES = 16
"""Files whose deleted rows are found first, where all may not be needed"""
_ROWS_TOGETHER = 1 << 25
"""Rows of data files whose deleted rows are found together, of 8 bytes each"""
_ROWS_AT_ONCE = 1 << 14
"""Rows of a position delete file whose names are in memory as texts, where Arrow cannot read them as a dictionary"""


def deleted_positions(storage: Storage, file: LiveFile) -> npt.NDArray[np.int64]:
    """Row positions of `file` that are deleted, int64, ascending, distinct.

    Raises EqualityDeletesError for deletes that cannot be resolved, and StorageError, DataFileError or PuffinError for
    a file that is missing or broken.
    """
    return deleted_by_file(lambda _: storage, [file])[file.path]


def deleted_by_file(
    open_store: Callable[[str], Storage], files: Iterable[LiveFile]
) -> dict[str, npt.NDArray[np.int64]]:
    """Deleted row positions of each file, by path. A delete file that covers many of the files is read once; so are the
    columns that equality deletes compare.

    `open_store` gives the store of a path. Raises as `deleted_positions`, and TableFaultError for a file that is
    given twice, with other deletes.
    """
    parts: dict[str, list[npt.NDArray[np.int64]]] = {}
    deletes: dict[str, Collection[DeleteFile]] = {}
    covering: dict[str, tuple[DeleteFile, list[set[str]]]] = {}
    by_key: dict[str, LiveFile] = {}
    without_keys = DeleteFilter(lambda delete: not compares_keys(delete))
    alike: dict[int, set[str]] = {}  # paths of files that share one tuple of deletes, by the id of the tuple
    for file in files:
        if deletes.setdefault(file.path, file.deletes) != file.deletes:
            raise unlike_deletes(file.path)
        if file.path in parts:
            continue
        parts[file.path] = []
        group = alike.setdefault(id(file.deletes), set())
        group.add(file.path)
        others = without_keys.select(file.deletes)
        if len(others) < len(file.deletes):
            by_key[file.path] = file
        for delete in others:
            if delete.kind is DeleteKind.DELETION_VECTOR:
                parts[file.path].append(_deletion_vector(open_store(delete.path), delete, file))
            elif len(group) == 1:
                covering.setdefault(delete.path, (delete, []))[1].append(group)
    _add_position_deletes(parts, covering.values(), open_store)
    for path, positions in (deleted_by_equality(open_store, by_key.values()) if by_key else {}).items():
        parts[path].append(positions)
    return {
        path: np.unique(np.concatenate(chunks)) if chunks else np.empty(0, np.int64) for path, chunks in parts.items()
    }


def deleted_in_turn(
    open_store: Callable[[str], Storage], files: Sequence[LiveFile]
) -> Iterator[tuple[LiveFile, npt.NDArray[np.int64]]]:
    """(file, deleted row positions) in order, for who may need the first files alone. Raises as `deleted_by_file`.

    A delete file that is about all is read once per group (`growing_groups`).
    """
    for group in growing_groups(len(files)):
        deleted = deleted_by_file(open_store, files[group])
        yield from ((file, deleted[file.path]) for file in files[group])


def growing_groups(count: int, first: int | None = None) -> Iterator[slice]:
    """Parts of `count` files in order, each twice as long as the one before, for who may need the first files alone."""
    start, size = 0, first or _FIRST_FILES
    while start < count:
        yield slice(start, start + size)
        start, size = start + size, 2 * size


def deleted_of_scanned(
    open_store: Callable[[str], Storage], files: Sequence[LiveFile]
) -> Iterator[tuple[LiveFile, npt.NDArray[np.int64] | None]]:
    """(file, what `deleted_in_group` finds of it or None) in order, for who reads all of them. Raises likewise.

    Files are taken together up to as many rows as they have delete rows, and at least up to `_ROWS_TOGETHER`: so
    reading deletes anew takes less than reading the files, and memory does not grow with the number of files.
    """
    limit = max(_ROWS_TOGETHER, sum(delete.record_count for delete in distinct_deletes(files)))
    group_of = np.cumsum([0, *(file.record_count for file in files)])[:-1] // limit
    for _, numbers in groupby(range(len(files)), key=group_of.__getitem__):
        group = [files[number] for number in numbers]
        deleted = deleted_in_group(open_store, group)
        yield from ((file, deleted.get(file.path)) for file in group)


def deleted_in_group(
    open_store: Callable[[str], Storage], files: Iterable[LiveFile]
) -> dict[str, npt.NDArray[np.int64]]:
    """`deleted_by_file` of those files whose deletes are about other files of `files`, or compare keys: who reads files
    one by one would else read such a delete file for each. Memory: 8 bytes per deleted row of these files.

    A file that is given twice is left out: each time other deletes may apply to it.
    """
    files = tuple(files)
    times = Counter(file.path for file in files)
    groups = _by_deletes(file for file in files if times[file.path] == 1)
    keyed = DeleteFilter(compares_keys)
    positions = DeleteFilter(lambda delete: delete.kind is DeleteKind.POSITION)
    covered: Counter[str] = Counter()  # data files by position delete file
    for group in groups.values():
        for delete in positions.select(group[0].deletes):
            covered[delete.path] += len(group)
    together = (
        group
        for group in groups.values()
        if keyed.select(group[0].deletes)
        or any(covered[delete.path] > 1 for delete in positions.select(group[0].deletes))
    )
    return deleted_by_file(open_store, chain.from_iterable(together))


def _by_deletes(files: Iterable[LiveFile]) -> dict[int, list[LiveFile]]:
    """Files that share one tuple of deletes, by the id of the tuple."""
    groups: dict[int, list[LiveFile]] = {}
    for file in files:
        groups.setdefault(id(file.deletes), []).append(file)
    return groups


def _add_position_deletes(
    parts: dict[str, list[npt.NDArray[np.int64]]],
    covering: Collection[tuple[DeleteFile, list[set[str]]]],
    open_store: Callable[[str], Storage],
) -> None:
    """Add to `parts`, by data file, what each delete file says of the data files that it covers, which are in groups.

    It may name them by their normal paths.
    """
    paths_by_name: dict[str, set[str]] = {}
    for path in parts if covering else ():
        for name in (path, normalize(path)):
            paths_by_name.setdefault(name, set()).add(path)
    for delete, groups in covering:
        covered = groups[0].union(*groups[1:])
        for name, positions in _position_deletes(open_store(delete.path), delete):
            for path in paths_by_name.get(name, set()) & covered:
                parts[path].append(positions)


def fingerprint(file: LiveFile) -> bytes:
    """32 bytes, equal for equal sets of deletes; `NO_DELETES` for none. Made from names: delete files never change."""
    deletes = file.deletes
    if not deletes:
        return NO_DELETES
    if isinstance(deletes, Deletes) and deletes.fingerprint is not None:
        return deletes.fingerprint
    result = hashlib.sha256(b"".join(values_of(deletes, _name))).digest()
    if isinstance(deletes, Deletes):
        deletes.fingerprint = result
    return result


def _name(delete: DeleteFile) -> bytes:
    """A delete file as it goes into fingerprints."""
    return f"{normalize(delete.path)}\0{delete.content_offset}\0{delete.content_length}\n".encode()


def _deletion_vector(storage: Storage, delete: DeleteFile, file: LiveFile) -> npt.NDArray[np.int64]:
    if delete.content_offset is None or delete.content_length is None:
        raise StorageError(f"{delete.path}: the manifest does not say where the deletion vector of {file.path} lies")
    data = storage.read_range(delete.path, delete.content_offset, delete.content_length)
    return deletion_vector_blob.decode(data, max_positions=min(MAX_POSITIONS, file.record_count))


def _position_deletes(storage: Storage, delete: DeleteFile) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """(data file as it is named there, positions) for each data file that the delete file is about, maybe in parts."""
    raw = storage.read_range(delete.path, 0, storage.size(delete.path))
    try:
        for rows in _rows_by_name(raw):
            if rows[_PATH].null_count or rows["pos"].null_count:
                raise StorageError(f"{delete.path}: a row of the position delete file has no path or no position")
            indices, names = rows[_PATH].indices.to_numpy(), rows[_PATH].dictionary.cast(pa.string())
            names.validate(full=True)
            order = np.argsort(indices, kind="stable")
            positions = rows["pos"].cast(pa.int64()).to_numpy()[order]
            bounds = np.searchsorted(indices[order], np.arange(len(names) + 1))
            for code, name in enumerate(names.to_pylist()):
                yield name, positions[bounds[code] : bounds[code + 1]]
    except (pa.ArrowException, OSError, KeyError) as error:  # Arrow raises OSError for some damage
        raise StorageError(f"{delete.path} is not a Parquet position delete file: {error}") from error


def _rows_by_name(raw: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of a position delete file, with the data files' names as a dictionary: each row has one, so of millions
    of rows the names would take gigabytes. Raises pa.ArrowException, OSError, KeyError.
    """
    # pq.read_table would make a data set of it, which takes longer than reading the few rows that most files have
    file = pq.ParquetFile(pa.BufferReader(raw), read_dictionary=[_PATH])
    if not _has_deltas(file.metadata):
        yield from file.read(_COLUMNS, use_threads=False).select(_COLUMNS).combine_chunks().to_batches()
        return
    for rows in pq.ParquetFile(pa.BufferReader(raw)).iter_batches(_ROWS_AT_ONCE, columns=_COLUMNS, use_threads=False):
        names, positions = rows[_PATH], rows["pos"]
        yield pa.record_batch([pc.dictionary_encode(names), positions], _COLUMNS)


def _has_deltas(metadata: pq.FileMetaData) -> bool:
    """Whether names are stored as deltas of texts, as Java's writer of Parquet's version 2 does where a dictionary does
    not pay: Arrow does not read these as a dictionary.
    """
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    return any(
        chunk.path_in_schema == _PATH and any(encoding.startswith("DELTA") for encoding in chunk.encodings)
        for chunk in chunks
    )
