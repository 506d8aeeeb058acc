"""S3 through s3fs: range reads, conditional creation, multipart uploads, copies inside the store."""

import contextlib
import errno
import io
import logging
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import s3fs
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
from typing_extensions import Buffer

from icepuffin.ops.model import ObjectInfo, ObjectRange
from icepuffin.ops.storage.base import (
    ObjectExistsError,
    ObjectMissingError,
    RefusedError,
    Storage,
    StorageError,
    short_object,
)
from icepuffin.ops.storage.credentials import AccessError, Lease
from icepuffin.ops.storage.locations import normalize
from icepuffin.ops.storage.multipart import S3_LIMITS, CopyPart, PartLimits, UploadPart, plan_parts
from icepuffin.ops.storage.s3_file_systems import LiteralFileSystem, RenewedFileSystem

_log = logging.getLogger(__name__)
_ATTEMPT = "icepuffin-attempt"
_PAST_THE_END = ("InvalidRange", "416")
_COPIES_AT_ONCE = 8
"""Copies of parts that the store makes at once: each takes seconds, and a large index has thousands"""
_DENIED = ("AccessDenied", "AllAccessDisabled")
_NOT_TAKEN = (400, 405, 411, 501)
"""Statuses by which stores answer to a request that they do not have, or whose checksum they do not know"""
_TIMEOUTS = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3, "mode": "standard"}}


def _key(location: str) -> str:
    return normalize(location).removeprefix("s3://")


class S3Storage(Storage):
    """The `Storage` of one S3 endpoint. `options` are s3fs.S3FileSystem's; they hold secrets and are never shown.

    With `lease` each request is signed with the keys that it has for `prefix` at the time.
    """

    def __init__(
        self, options: dict[str, Any], *, limits: PartLimits = S3_LIMITS, lease: Lease | None = None, prefix: str = ""
    ) -> None:
        self._limits = limits
        options = {**options, "config_kwargs": {**_TIMEOUTS, **options.get("config_kwargs", {})}}
        # s3fs is not fork-safe: skip its instance cache, so that a forked worker never meets the parent's event loop
        options |= {"skip_instance_cache": True, "use_listings_cache": False}
        if lease is None:
            self._fs = LiteralFileSystem(**options)
        else:
            kept = {name: value for name, value in options.items() if name not in ("key", "secret", "token")}
            self._fs = RenewedFileSystem(lease, prefix, **kept)

    def __repr__(self) -> str:
        return "S3Storage()"

    def size(self, path: str) -> int:
        with _reading(path):
            return int(self._fs.info(_key(path))["size"])

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        if not length:
            return b""
        with _reading(path):
            try:
                return bytes(self._fs.cat_file(_key(path), start=offset, end=offset + length))
            except OSError as error:
                return _bytes(error)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        spans = [(offset, offset + length) for offset, length in ranges if length]
        if not spans:
            return [b""] * len(ranges)
        with _reading(path):
            starts, ends = zip(*spans, strict=True)
            parts = iter(self._fs.cat_ranges([_key(path)] * len(spans), starts, ends, on_error="return"))
            return [_bytes(next(parts)) if length else b"" for _, length in ranges]

    @contextlib.contextmanager
    def open_output(self, path: str, *, durable: bool = True) -> Iterator["_MultipartSink"]:
        sink = _MultipartSink(self._fs, path, self._limits)
        try:
            yield sink
            sink.publish()
        except BaseException:
            # the first error matters more than the parts that are left: stores expire incomplete uploads
            with contextlib.suppress(StorageError):
                sink.abort()
            raise

    def concat(self, path: str, segments: Iterable[bytes | ObjectRange], most_bytes: int = 0) -> int:
        copied, copies = 0, deque[Future[None]]()
        with self.open_output(path) as sink, ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
            try:
                for part in plan_parts(segments, self._limits):
                    if isinstance(part, CopyPart):
                        copies.append(pool.submit(sink.copy, sink.reserve(), part))
                        copied += part.length
                    else:
                        sink.upload(self._collect(part))
                    if len(copies) > 2 * _COPIES_AT_ONCE:
                        copies.popleft().result()
                for copy in copies:
                    copy.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return copied

    def _collect(self, part: UploadPart) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else self._whole(piece) for piece in part.pieces)

    def _whole(self, part: ObjectRange) -> bytes:
        data = self.read_range(part.path, part.offset, part.length)
        if len(data) < part.length:
            raise short_object(part, len(data))
        return data

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with _reading(prefix):
            objects = self._fs.find(_key(prefix), detail=True)
        for info in objects.values():
            modified = info.get("LastModified") or datetime.now(UTC)
            yield ObjectInfo(f"s3://{info['name']}", int(info["size"]), int(modified.timestamp() * 1000))

    def now_ms(self, folder: str) -> int:
        """The date in the store's answer to a request."""
        bucket, _, prefix = _key(folder).partition("/")
        with _reading(folder):
            answer = self._fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None:
            raise StorageError(f"{folder}: the store does not say what time it is, so nothing there is known to be old")
        return round(parsedate_to_datetime(date).timestamp() * 1000)

    def delete(self, path: str) -> None:
        bucket, key = _key(path).split("/", 1)
        with _reading(path):
            self._fs.call_s3("delete_object", Bucket=bucket, Key=key)

    def deletion_errors(self, paths: Sequence[str]) -> Sequence[Exception]:
        """The same as `Storage.deletion_errors`, by one request where the store takes such."""
        buckets, keys = zip(*(_key(path).split("/", 1) for path in paths), strict=True)
        if len({*buckets}) > 1:
            return super().deletion_errors(paths)
        doomed = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        try:
            with _reading(paths[0]):
                answer = self._fs.call_s3("delete_objects", Bucket=buckets[0], Delete=doomed)
        except StorageError as error:
            # who may delete what a path names may be refused a request about the bucket
            if not isinstance(error, RefusedError) and not _is_not_taken(error):
                raise
            _log.warning("objects are deleted one by one, as the store does not take several: %s", error)
            return super().deletion_errors(paths)
        return [_deletion_error(f"s3://{buckets[0]}/{fault['Key']}", fault) for fault in answer.get("Errors", ())]


class _MultipartSink(io.RawIOBase):
    """Collects writes into parts of the store's size; completes only if nobody has published the name meanwhile.

    It is a file because Arrow writes to files only. Closing it publishes nothing: any user of a file may close it.
    """

    def __init__(self, fs: s3fs.S3FileSystem, path: str, limits: PartLimits) -> None:
        super().__init__()
        self._fs = fs
        self._path = path
        self._limits = limits
        self._bucket, self._key = _key(path).split("/", 1)
        self._pending = bytearray()
        self._upload_id: str | None = None
        self._etags: list[str] = []
        self._attempt = uuid.uuid4().hex
        """Id that is stored with the object, to recognise an object of this upload by"""

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data)
        if not view.nbytes:
            return 0
        rest = view.cast("B")
        while len(rest):
            room = self._limits.size_of(len(self._etags)) - len(self._pending)
            self._pending += rest[:room]
            rest = rest[room:]
            if len(self._pending) >= self._limits.size_of(len(self._etags)):
                self._send()
        return view.nbytes

    def _send(self) -> None:
        data, self._pending = bytes(self._pending), bytearray()
        self.upload(data)

    def reserve(self) -> int:
        """Number of the next part, which begins behind those that have one."""
        number = len(self._etags) + 1
        if number > self._limits.max_parts:
            raise StorageError(
                f"{self._path} needs more than the {self._limits.max_parts:,} parts that the store takes"
            )
        self._begin()
        self._etags.append("")
        return number

    def upload(self, data: bytes) -> None:
        """Send the next part."""
        number = self.reserve()
        out = self._call("upload_part", PartNumber=number, Body=data)
        self._etags[number - 1] = out["ETag"]

    def copy(self, number: int, part: CopyPart) -> None:
        """Let the store copy the part of a number that `reserve` gave. Threads may copy several at once."""
        source = part.range
        bucket, key = _key(source.path).split("/", 1)
        out = self._call(
            "upload_part_copy",
            PartNumber=number,
            CopySource={"Bucket": bucket, "Key": key},  # of text botocore would cut off `?versionId=`
            CopySourceRange=f"bytes={source.offset}-{source.offset + source.length - 1}",
        )
        self._etags[number - 1] = out["CopyPartResult"]["ETag"]

    def _begin(self) -> None:
        if self._upload_id is None:
            with _publishing(self._path):
                begun = self._fs.call_s3(
                    "create_multipart_upload", Bucket=self._bucket, Key=self._key, Metadata={_ATTEMPT: self._attempt}
                )
            self._upload_id = begun["UploadId"]

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        with _publishing(self._path):
            out: dict[str, Any] = self._fs.call_s3(
                method, Bucket=self._bucket, Key=self._key, UploadId=self._upload_id, **arguments
            )
        return out

    def publish(self) -> None:
        """Make the object appear. Raises ObjectExistsError where another one has the name."""
        try:
            self._publish()
        except (ObjectExistsError, ObjectMissingError):
            # clients repeat a request whose answer was lost: the object may be the first request's
            if not self._is_there():
                raise
        self._upload_id = None

    def _publish(self) -> None:
        if self._upload_id is None:
            body = bytes(self._pending)
            tag = {_ATTEMPT: self._attempt}
            with _publishing(self._path):
                self._fs.call_s3(
                    "put_object", Bucket=self._bucket, Key=self._key, Body=body, Metadata=tag, IfNoneMatch="*"
                )
            return
        if self._pending:
            self._send()
        parts = [{"ETag": etag, "PartNumber": number} for number, etag in enumerate(self._etags, start=1)]
        self._call("complete_multipart_upload", MultipartUpload={"Parts": parts}, IfNoneMatch="*")

    def _is_there(self) -> bool:
        try:
            with _reading(self._path):
                head = self._fs.call_s3("head_object", Bucket=self._bucket, Key=self._key)
        except ObjectMissingError:
            return False
        return bool(head.get("Metadata", {}).get(_ATTEMPT) == self._attempt)

    def abort(self) -> None:
        if self._upload_id is not None:
            self._call("abort_multipart_upload")
            self._upload_id = None


def _is_not_taken(error: StorageError) -> bool:
    """Whether a store answered that it does not take a request of this kind, or not as it was sent."""
    cause = error.__cause__.__cause__ if error.__cause__ else None
    status = cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(cause, ClientError) else 0
    return status in _NOT_TAKEN


def _deletion_error(path: str, fault: Mapping[str, str]) -> StorageError:
    why = f"{fault.get('Code', '')}: {fault.get('Message', '')}"
    if fault.get("Code") in _DENIED:
        return RefusedError(f"{path}: the store refuses access ({why})")
    return StorageError(f"{path} could not be deleted ({why})")


def _bytes(part: bytes | Exception) -> bytes:
    """The bytes of one range, none for a range behind the end. Raises `part` where it is another error."""
    if not isinstance(part, Exception):
        return bytes(part)
    cause = part.__cause__
    if isinstance(cause, ClientError) and cause.response.get("Error", {}).get("Code") in _PAST_THE_END:
        return b""
    raise part


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissingError(f"{path} does not exist") from error
    except PermissionError as error:
        raise RefusedError(f"{path}: the store refuses access ({error})") from error
    except NoCredentialsError as error:
        raise _no_credentials(path) from error
    except (BotoCoreError, OSError) as error:
        raise StorageError(f"{path}: the store does not answer as it should ({error})") from error


@contextlib.contextmanager
def _publishing(path: str) -> Iterator[None]:
    """A failed If-None-Match comes through s3fs in two ways: FileExistsError, or EINVAL naming the condition."""
    try:
        yield
    except FileExistsError as error:
        raise ObjectExistsError(f"{path} exists already") from error
    except FileNotFoundError as error:
        raise ObjectMissingError(
            f"{path} could not be written: its bucket, or what it is made of, is missing"
        ) from error
    except PermissionError as error:
        raise RefusedError(f"{path}: the store refuses access ({error})") from error
    except NoCredentialsError as error:
        raise _no_credentials(path) from error
    except (BotoCoreError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EINVAL and "condition" in str(error).lower():
            raise ObjectExistsError(f"{path} exists already") from error
        raise StorageError(f"{path} could not be written: {error}") from error


def _no_credentials(path: str) -> AccessError:
    return AccessError(
        f"{path}: there are no credentials for it: the catalog vends none, and there are none in its settings "
        "(s3.access-key-id, s3.secret-access-key) nor where AWS clients look for them (environment, profile, role)"
    )
