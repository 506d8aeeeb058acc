"""PyIceberg's FileIO over our own stores: for files on GCS and ADLS, and wherever a catalog vends keys."""

import io
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream, load_file_io
from pyiceberg.table import Table
from typing_extensions import Buffer

from icepuffin.ops.catalog.store_settings import CODE_SETTING, has_own_client, store_settings
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.rows.parquet import StorageFile
from icepuffin.ops.storage import ObjectExistsError, ObjectMissingError, Storage, normalize, open_storage
from icepuffin.ops.storage.locations import OBJECT_STORES
from icepuffin.puffin.puffin_writer import ByteSink

_WHOLE = 32 << 20
"""Largest file, in bytes, that is read at once"""
_BUFFER = 1 << 20
"""Bytes that a stream of a larger file reads ahead"""


class StoredFileIO(FileIO):
    """Files through `open_storage`: the same settings, keys that are renewed, and errors that show no token.

    PyIceberg names it by the property `py-io-impl`, or is given one with the storage of a table.
    """

    def __init__(self, properties: Mapping[str, Any] = {}, storage: StorageConfig | None = None) -> None:
        super().__init__(dict(properties))
        self.storage = storage or StorageConfig(store_settings(properties))

    def new_input(self, location: str) -> "StoredFile":
        return StoredFile(location, self.storage)

    def new_output(self, location: str) -> "StoredFile":
        return StoredFile(location, self.storage)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        open_storage(path, self.storage).delete(path)


class StoredFile(InputFile, OutputFile):
    """One object. Raises FileNotFoundError and FileExistsError, as PyIceberg expects, and StorageError."""

    def __init__(self, location: str, storage: StorageConfig) -> None:
        super().__init__(location)
        self._config = storage

    @property
    def _store(self) -> Storage:
        return open_storage(self.location, self._config)

    def __len__(self) -> int:
        with _as_builtin():
            return self._store.size(self.location)

    def exists(self) -> bool:
        return self._store.exists(self.location)

    def open(self, seekable: bool = True) -> InputStream:
        size = len(self)
        if size > _WHOLE:
            return io.BufferedReader(StorageFile(self._store, self.location, size), _BUFFER)
        with _as_builtin():
            return io.BytesIO(self._store.read_range(self.location, 0, size))

    def create(self, overwrite: bool = False) -> OutputStream:
        if overwrite:
            self._store.delete(self.location)
        elif self.exists():
            raise FileExistsError(self.location)
        return _StoredObject(self._store.open_output(self.location))

    def to_input_file(self) -> "StoredFile":
        return self


class _StoredObject(io.RawIOBase):
    """An object that appears when it is closed, unless the block that wrote it ends with an error."""

    def __init__(self, output: AbstractContextManager[ByteSink]) -> None:
        super().__init__()
        self._output = output
        self._sink = output.__enter__()
        self._length = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._length

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data)
        self._sink.write(bytes(view))
        self._length += view.nbytes
        return view.nbytes

    def close(self) -> None:
        if not self.closed:
            super().close()
            with _as_builtin():
                self._output.__exit__(None, None, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not self.closed:
            super().close()
            self._output.__exit__(kind, error, trace)
        self.close()

    def __del__(self) -> None:
        """What nobody closed is not published."""


@contextmanager
def _as_builtin() -> Iterator[None]:
    try:
        yield
    except ObjectMissingError as error:
        raise FileNotFoundError(str(error)) from error
    except ObjectExistsError as error:
        raise FileExistsError(str(error)) from error


def current_io(table: Table, storage: StorageConfig) -> FileIO:
    """The FileIO of a table's files, with keys that are renewed for as long as the table is kept."""
    if storage.vended is None or isinstance(table.io, StoredFileIO):
        return table.io
    return StoredFileIO(table.io.properties, storage)


def file_io(storage: StorageConfig, location: str) -> FileIO:
    """The FileIO of the files of a table whose metadata file lies at `location`."""
    if storage.vended is not None and normalize(location).startswith(OBJECT_STORES):
        return StoredFileIO(storage=storage)
    if has_own_client(location) and CODE_SETTING not in storage.properties:
        return StoredFileIO(storage.properties)
    return load_file_io(dict(storage.properties), location)
