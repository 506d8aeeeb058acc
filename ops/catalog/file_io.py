"""PyIceberg's FileIO with keys that are renewed."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystem
from pyiceberg.io import FileIO, InputStream, load_file_io
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table import Table

from icepuffin.ops.catalog.store_settings import CODE_SETTING, has_own_client
from icepuffin.ops.catalog.stored_file_io import StoredFileIO
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage import AccessError, normalize
from icepuffin.ops.storage.credentials import combined, lease_of, nearest, settings_for
from icepuffin.ops.storage.locations import OBJECT_STORES
from icepuffin.ops.storage.s3_options import require_keys

T = TypeVar("T")
_REFUSED = ("HTTP status 400", "HTTP status 403", "ACCESS_DENIED")
"""Texts in the errors of Arrow's client for keys that a store does not accept (any more)"""


class VendedFileIO(PyArrowFileIO):
    """PyIceberg's FileIO through Arrow, with a new S3 client whenever the vended keys change: a client keeps its keys.

    `location`, that of the table's metadata file, decides which of the vended keys are used.
    """

    def __init__(self, properties: Mapping[str, str], storage: StorageConfig, location: str) -> None:
        self.storage = storage
        self._location = location
        self._unvended = {key: value for key, value in properties.items() if not key.startswith(("s3.", "client."))}
        self._file_systems: dict[tuple[str, str | None], tuple[dict[str, str], FileSystem]] = {}
        first = nearest(storage.vended.grants, location) if storage.vended else None
        super().__init__({**self._unvended, **combined(storage.properties, first.properties if first else {})})
        self.fs_by_scheme = self._file_system

    def new_input(self, location: str) -> PyArrowFile:
        return _File(self, super().new_input(location))

    def new_output(self, location: str) -> PyArrowFile:
        return _File(self, super().new_output(location))

    def with_keys(self, scheme: str, netloc: str, request: Callable[[FileSystem], T]) -> T:
        """The result of `request`, repeated with new keys where the store refuses the old. Raises AccessError."""
        system = self._file_system(scheme, netloc)
        lease = lease_of(self.storage.vended) if self.storage.vended else None
        grant = lease.grant(self._location) if lease else None
        try:
            return request(system)
        except OSError as error:
            if lease is None or not any(text in str(error) for text in _REFUSED):
                raise
            if not lease.has_other_than(grant, self._location):
                raise AccessError(f"{self._location}: the store refuses {lease} ({error})") from error
        return request(self._file_system(scheme, netloc))

    def _file_system(self, scheme: str, netloc: str | None = None) -> FileSystem:
        settings = settings_for(self._location, self.storage)
        require_keys(settings)
        cached = self._file_systems.get((scheme, netloc))
        if cached is None or cached[0] != settings:
            self.properties = {**self._unvended, **settings}
            cached = self._file_systems[scheme, netloc] = settings, self._initialize_fs(scheme, netloc)
        return cached[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_file_systems": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.fs_by_scheme = self._file_system


class _File(PyArrowFile):
    """A file that is read or looked up once more, with new keys, where the store refuses the keys."""

    def __init__(self, io: VendedFileIO, file: PyArrowFile) -> None:
        super().__init__(file.location, file._path, file._filesystem, file._buffer_size)  # noqa: SLF001
        self._io = io

    def open(self, seekable: bool = True) -> InputStream:
        """The whole file, as all that is read this way is metadata: keys may be revoked after a file was opened."""
        return self._with_keys(lambda: self._content(seekable))

    def _content(self, seekable: bool) -> InputStream:
        with super().open(seekable) as stream:
            return pa.BufferReader(stream.read())  # type: ignore[no-any-return]

    def _file_info(self) -> FileInfo:
        return self._with_keys(super()._file_info)

    def _with_keys(self, request: Callable[[], T]) -> T:
        def with_system(system: FileSystem) -> T:
            self._filesystem = system
            return request()

        scheme, netloc, _ = self._io.parse_location(self.location)
        return self._io.with_keys(scheme, netloc, with_system)


def vended_io(properties: Mapping[str, str], storage: StorageConfig, location: str) -> VendedFileIO | StoredFileIO:
    """The FileIO of the files of a table whose metadata file lies at `location`, with keys that are renewed."""
    if has_own_client(location):
        return StoredFileIO(properties, storage)
    return VendedFileIO(properties, storage, location)


def current_io(table: Table, storage: StorageConfig) -> FileIO:
    """The FileIO of a table's files, with keys that are renewed for as long as the table is kept."""
    if storage.vended is None or isinstance(table.io, VendedFileIO | StoredFileIO):
        return table.io
    return vended_io(table.io.properties, storage, table.metadata_location)


def file_io(storage: StorageConfig, location: str) -> FileIO:
    """The FileIO of the files of a table whose metadata file lies at `location`."""
    if storage.vended is not None and normalize(location).startswith(OBJECT_STORES):
        return vended_io({}, storage, location)
    if has_own_client(location) and CODE_SETTING not in storage.properties:
        return StoredFileIO(storage.properties)
    return load_file_io(dict(storage.properties), location)
