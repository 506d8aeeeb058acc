"""GCS and ADLS through obstore: range reads, conditional creation, large objects written aside and copied."""

import contextlib
import io
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from typing_extensions import Buffer

from icepuffin.ops.model import Grant, ObjectInfo, ObjectRange
from icepuffin.ops.storage.base import (
    ObjectExistsError,
    ObjectMissingError,
    RefusedError,
    Storage,
    StorageError,
    short_object,
)
from icepuffin.ops.storage.bucket_clients import bucket_client
from icepuffin.ops.storage.credentials import Lease, combined
from icepuffin.ops.storage.locations import split_location

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")
_log = logging.getLogger(__name__)
_ATTEMPT = "icepuffin_attempt"
"""Key of the id that an object is stored with; Azure takes no hyphen in it"""
_PART = 16 * 1024**2
"""Bytes of one part of a large object, at least. A smaller object is one request"""
_PARTS = 8000
"""Parts of an object whose size is known before. GCS takes 10,000, all but the last of one size, and ADLS 50,000"""
_CONCURRENT_PARTS = 2
_CONCURRENT_READS = 8
_ATTEMPTS = 3
_REFUSED = (PermissionDeniedError, UnauthenticatedError)


class BucketStorage(Storage):
    """The `Storage` of all buckets, or containers, that some settings of PyIceberg reach; they are never shown.

    With `lease` each request has the keys that the lease has for `prefix` at the time.

    An object of up to 16 MiB is created by one conditional request. A larger one is uploaded in parts under another
    name beside it, `.<name>.<id>`, and copied inside the store under its own name, unless that is taken.
    """

    def __init__(self, properties: Mapping[str, str], *, lease: Lease | None = None, prefix: str = "") -> None:
        self._properties = properties
        self._lease = lease
        self._prefix = prefix
        self._clients: dict[str, tuple[Grant | None, ObjectStore]] = {}

    def __repr__(self) -> str:
        return "BucketStorage()"

    def size(self, path: str) -> int:
        with _reading(path):
            return int(self.request(path, obstore.head)["size"])

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        if not length:
            return b""

        def read(store: "ObjectStore", key: str) -> bytes:
            return bytes(obstore.get_range(store, key, start=offset, length=length))

        with _reading(path):
            try:
                return self.request(path, read)
            except GenericError:
                if offset >= self.size(path):  # of which stores make an error
                    return b""
                raise

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The same as `Storage.read_ranges`. `obstore.get_ranges` panics where a range lies behind the end."""
        if len(ranges) < 2:
            return [self.read_range(path, *span) for span in ranges]
        with ThreadPoolExecutor(min(len(ranges), _CONCURRENT_READS)) as pool:
            return list(pool.map(lambda span: self.read_range(path, *span), ranges))

    @contextlib.contextmanager
    def open_output(self, path: str, *, durable: bool = True, most_bytes: int = 0) -> Iterator["_Upload"]:
        upload = _Upload(self, path, max(_PART, -(-most_bytes // _PARTS)))
        try:
            yield upload
            upload.publish()
        finally:
            # the error that is under way matters more than an object that `gc` removes, too
            with contextlib.suppress(StorageError):
                upload.remove_aside()

    def concat(self, path: str, segments: Iterable[bytes | ObjectRange], most_bytes: int = 0) -> int:
        """The same as `Storage.concat`; the bytes pass through this machine: obstore copies no part of an object."""
        with self.open_output(path, most_bytes=most_bytes) as sink:
            for segment in segments:
                if isinstance(segment, bytes):
                    sink.write(segment)
                else:
                    for piece in self._pieces(segment):
                        sink.write(piece)
        return 0

    def _pieces(self, part: ObjectRange) -> Iterator[bytes]:
        end = part.offset + part.length
        for offset in range(part.offset, end, _PART):
            length = min(_PART, end - offset)
            piece = self.read_range(part.path, offset, length)
            if len(piece) < length:
                raise short_object(part, offset + len(piece) - part.offset)
            yield piece

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        root, folder = split_location(prefix)

        def listed(store: "ObjectStore", key: str) -> Sequence[ObjectInfo]:
            return [
                ObjectInfo(f"{root}/{item['path']}", item["size"], int(item["last_modified"].timestamp() * 1000))
                for chunk in obstore.list(store, folder.rstrip("/"), chunk_size=1000)
                for item in chunk
            ]

        with _reading(prefix):
            yield from self.request(prefix, listed)

    def now_ms(self, folder: str) -> int:
        """The time at which a small object is made in the folder, and removed: the clock of `list`."""
        probe = f"{folder.rstrip('/')}/_icepuffin/clock-{uuid.uuid4().hex}"
        self.create(f"{probe}/now", b"")
        try:
            return next(item.modified_ms for item in self.list(probe))
        finally:
            self.delete(f"{probe}/now")

    def delete(self, path: str) -> None:
        with _reading(path), contextlib.suppress(FileNotFoundError):
            self.request(path, obstore.delete)

    def request(self, path: str, send: Callable[["ObjectStore", str], T]) -> T:
        """The result of `send`, called with the client and the key; repeated with new keys where these are refused."""
        store, key, grant = self._client(path)
        try:
            return send(store, key)
        except _REFUSED as error:
            if self._lease is None:
                raise
            if not self._lease.has_other_than(grant, self._prefix):
                raise self._refusal(path, error) from None
        store, key, _ = self._client(path)
        try:
            return send(store, key)
        except _REFUSED as error:
            self._lease.record_refusal()
            raise self._refusal(path, error) from None

    def _refusal(self, path: str, error: Exception) -> RefusedError:
        return RefusedError(f"{path}: the store refuses access with {self._lease} ({_first_line(error)})")

    def _client(self, path: str) -> tuple["ObjectStore", str, Grant | None]:
        root, key = split_location(path)
        grant = self._lease.grant(self._prefix) if self._lease else None
        cached = self._clients.get(root)
        if cached is None or cached[0] != grant:
            cached = self._clients[root] = grant, bucket_client(root, self._settings, renewed=self._lease is not None)
        return cached[1], key, grant

    def _settings(self) -> dict[str, str]:
        grant = self._lease.grant(self._prefix) if self._lease else None
        return combined(self._properties, grant.properties if grant else {})


class _Upload(io.RawIOBase):
    """Collects one object. It is a file because Arrow writes to files only. Closing it publishes nothing."""

    def __init__(self, storage: BucketStorage, path: str, part: int) -> None:
        super().__init__()
        self._storage = storage
        self._path = path
        self._part = part
        self._pending = bytearray()
        self._attempt = uuid.uuid4().hex
        """Id that is stored with the object, to recognise an object of this upload by"""
        folder, _, name = path.rpartition("/")
        self._aside = f"{folder}/.{name}.{self._attempt}"
        self._writer: obstore.WritableFile | None = None
        self._length = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data)
        self._length += view.nbytes
        if self._writer is None and self._length <= _PART:
            self._pending += view.cast("B") if view.nbytes else b""
            return view.nbytes
        with _publishing(self._path):
            self._write_aside(view)
        return view.nbytes

    def _write_aside(self, view: memoryview) -> None:
        if self._writer is None:
            self._writer = self._storage.request(
                self._aside,
                lambda store, key: obstore.open_writer(
                    store,
                    key,
                    attributes={_ATTEMPT: self._attempt},
                    buffer_size=self._part,
                    max_concurrency=_CONCURRENT_PARTS,
                ),
            )
            self._writer.write(bytes(self._pending))
            self._pending.clear()
        rest = view.cast("B") if view.nbytes else view[:0]
        for start in range(0, len(rest), _PART):
            self._writer.write(rest[start : start + _PART])

    def publish(self) -> None:
        """Make the object appear. Raises ObjectExistsError where another one has the name."""
        if self._writer is None:
            data, tag = bytes(self._pending), {_ATTEMPT: self._attempt}
            self._settle(lambda store, key: obstore.put(store, key, data, attributes=tag, mode="create"))
            return
        with _publishing(self._path):
            self._writer.close()
        _, source = split_location(self._aside)
        self._settle(lambda store, key: obstore.copy(store, source, key, overwrite=False))
        if (size := self._storage.size(self._path)) != self._length:
            raise StorageError(f"{self._path} has {size} bytes after it was copied, {self._length} were written")

    def _settle(self, send: Callable[["ObjectStore", str], object]) -> None:
        """Send a conditional request until it is known how it ended: an answer may be lost, and the object there."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with _publishing(self._path):
                    self._storage.request(self._path, send)
            except ObjectExistsError:
                if self._is_there():
                    return
                raise
            except StorageError as error:
                if not isinstance(error.__cause__, GenericError):
                    raise
                if self._is_there():
                    return
                if attempt == _ATTEMPTS:
                    raise
                _log.warning("%s; it is sent again", error)
            else:
                return

    def _is_there(self) -> bool:
        def attributes(store: "ObjectStore", key: str) -> Mapping[str, str]:
            return obstore.get(store, key, options={"head": True}).attributes

        try:
            with _reading(self._path):
                return self._storage.request(self._path, attributes).get(_ATTEMPT) == self._attempt
        except ObjectMissingError:
            return False

    def remove_aside(self) -> None:
        """Remove what was uploaded under the other name; parts that were never joined are left to the store."""
        if self._writer is not None:
            self._storage.delete(self._aside)


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissingError(f"{path} does not exist") from error
    except _REFUSED as error:
        raise RefusedError(f"{path}: the store refuses access ({_first_line(error)})") from error
    except (BaseError, OSError, ValueError) as error:
        raise StorageError(f"{path}: the store does not answer as it should ({_first_line(error)})") from error


@contextlib.contextmanager
def _publishing(path: str) -> Iterator[None]:
    try:
        yield
    except (AlreadyExistsError, PreconditionError) as error:
        raise ObjectExistsError(f"{path} exists already") from error
    except FileNotFoundError as error:
        raise ObjectMissingError(
            f"{path} could not be written: its bucket, or what it is made of, is missing"
        ) from error
    except _REFUSED as error:
        raise RefusedError(f"{path}: the store refuses access ({_first_line(error)})") from error
    except (BaseError, OSError, ValueError) as error:
        raise StorageError(f"{path} could not be written: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """obstore's own words, without the lines for those who debug it."""
    return str(error).partition("\n")[0]
