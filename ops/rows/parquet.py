"""Opening Parquet objects of a store.

Remote objects reach Arrow as Python files. Arrow must never call those from threads of its own: such a thread may
release the file while the interpreter shuts down, and that aborts the process. So remote objects are read on the
caller's thread, and column chunks are fetched ahead, in one request for chunks that lie close together.

Executors import this: no dagster, no pyspark.
"""

import io
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import Buffer

from icepuffin.ops.storage import Storage, normalize
from icepuffin.ops.storage.base import ObjectSource
from icepuffin.ops.storage.local_storage import to_path

_READ = 1 << 20
"""Bytes of a column chunk that Arrow reads at once; without a limit it reads the whole chunk for its first rows"""


class ParquetObject:
    """One Parquet object: metadata, and columns of row groups. Raises ObjectMissingError, pa.ArrowInvalid."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self._remote = None if normalize(path).startswith("file:") else StorageFile(storage, path, size)
        try:
            source = pa.OSFile(str(to_path(path))) if self._remote is None else pa.PythonFile(self._remote, mode="r")
        except FileNotFoundError:
            storage.size(path)  # raises the store's own error
            raise
        self._file = pq.ParquetFile(source, buffer_size=_READ, pre_buffer=False)
        self.metadata: pq.FileMetaData = self._file.metadata
        self.schema: pa.Schema = self._file.schema_arrow

    def batches(
        self, columns: Sequence[str], *, batch_rows: int, groups: Iterable[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows in order, of all or some row groups; one row group's chunks are held at a time."""
        for group in range(self.metadata.num_row_groups) if groups is None else groups:
            self._fetch([group], columns)
            yield from self._file.iter_batches(batch_rows, [group], list(columns), use_threads=self._threads(columns))

    def first(self, columns: Sequence[str], *, rows: int, group: int) -> pa.RecordBatch | None:
        """The first rows of a row group, without a read of the rest; None where it is empty."""
        return next(self._file.iter_batches(rows, [group], list(columns), use_threads=False), None)

    def read(self, columns: Sequence[str], groups: Sequence[int]) -> pa.Table:
        """Some row groups, whole."""
        self._fetch(groups, columns)
        return self._file.read_row_groups(list(groups), list(columns), use_threads=self._threads(columns))

    def _threads(self, columns: Sequence[str]) -> bool:
        """Whether Arrow may read with threads of its own, one per column: useless for a single column."""
        return self._remote is None and len(columns) > 1

    def _fetch(self, groups: Iterable[int], columns: Sequence[str]) -> None:
        if self._remote is not None:
            self._remote.source.fetch(self._chunk_ranges(groups, frozenset(columns)))

    def chunks(self, group: int) -> Iterator[tuple[str, pq.ColumnChunkMetaData]]:
        """(top-level column, chunk) of each column chunk of a row group. A column's name may have dots."""
        row_group = self.metadata.row_group(group)
        columns = (field.name for field in self.schema for _ in range(_leaves(field.type)))
        for number, column in enumerate(columns):
            yield column, row_group.column(number)

    def _chunk_ranges(self, groups: Iterable[int], columns: frozenset[str]) -> list[tuple[int, int]]:
        """(offset, length) of the columns' chunks."""
        spans = []
        for group in groups:
            for column, chunk in self.chunks(group):
                if column in columns:
                    start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
                    spans.append((start, chunk.total_compressed_size))
        return spans


def _leaves(arrow_type: pa.DataType) -> int:
    """Column chunks per row group of a column of this type."""
    stored = arrow_type.storage_type if isinstance(arrow_type, pa.BaseExtensionType) else arrow_type
    return sum(_leaves(stored.field(number).type) for number in range(stored.num_fields)) or 1


class StorageFile(io.RawIOBase):
    """A stored object as a seekable file, read from the fetched ranges, or else from the store."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        super().__init__()
        self.source = ObjectSource(storage, path, size=size)
        self._size = size
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        data = self.source.read_range(self._position, length) if length else b""
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Buffer, /) -> int:
        """Read as `io.BufferedReader` does."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)
