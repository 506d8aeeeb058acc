"""What the client of S3 sends, and what it makes of the answers of a store on loopback. `test_s3.py` has a real one."""

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
import pytest

from icepuffin.ops.model import Grant, ObjectInfo, ObjectRange, VendedGrants
from icepuffin.ops.storage import (
    AccessError,
    ObjectExistsError,
    ObjectMissingError,
    RefusedError,
    StorageError,
    multipart,
)
from icepuffin.ops.storage.credentials import Lease
from icepuffin.ops.storage.multipart import PartLimits
from icepuffin.ops.storage.s3 import S3Storage
from icepuffin.ops.storage.s3_options import s3_options
from tests.services.forwarding import Answer, Request, serving

DATA = bytes(range(100))
KEYS = {"s3.access-key-id": "id", "s3.secret-access-key": "secret", "s3.region": "north"}
_ATTEMPT = "x-amz-meta-icepuffin-attempt"
LIMITS = PartLimits(min_part=4, max_part=40, max_parts=5, part=10, copy=30)


class Bucket:
    """Objects by key, and the parts of one upload by number. As S3 does, it completes an upload by the ETags of all its
    parts, and overwrites nothing where a condition forbids it.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: dict[int, bytes] = {}
        self.attempts: dict[str, str] = {}
        """Ids that objects are stored with, by key; that of the upload by an empty one"""
        self.refused = 0
        """Number of the part whose copy is refused"""
        self.repeated: Answer | None = None
        """Answer to the request that publishes, in place of one that was lost"""
        self.ended = 204
        """Status of the answer where an upload is given up"""

    def answer(self, request: Request) -> Answer:
        """https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_Simple_Storage_Service.html."""
        url = urlsplit(request.path)
        key, query = unquote(url.path).removeprefix("/lake/"), dict(parse_qsl(url.query, keep_blank_values=True))
        headers = {name.lower(): value for name, value in request.headers.items()}
        if request.method == "HEAD":
            return Answer(200, ((_ATTEMPT, self.attempts.get(key, "")),))
        if request.method == "GET":
            return Answer(206, (), _ranged(self.objects[key], headers["range"]))
        if request.method == "DELETE":
            self.parts.clear()
            return Answer(self.ended)
        if "partNumber" in query:
            return self._part(int(query["partNumber"]), request.body, headers)
        if "uploads" not in query:
            return self._published(key, request.body, headers, is_upload="uploadId" in query)
        self.attempts[""] = headers[_ATTEMPT]
        return _xml("<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")

    def _published(self, key: str, body: bytes, headers: dict[str, str], *, is_upload: bool) -> Answer:
        numbers = sorted(self.parts) if is_upload else []
        named = [b'<ETag>"%d"</ETag><PartNumber>%d</PartNumber>' % (number, number) for number in numbers]
        if re.findall(b"<Part>(.*?)</Part>", body) != named:
            return Answer(400)
        if headers["if-none-match"] == "*" and key in self.objects:
            return Answer(412)
        self.objects[key] = b"".join(self.parts[number] for number in numbers) if is_upload else body
        self.attempts[key] = self.attempts[""] if is_upload else headers[_ATTEMPT]
        return self.repeated or _xml("<CompleteMultipartUploadResult/>")

    def _part(self, number: int, body: bytes, headers: dict[str, str]) -> Answer:
        source = headers.get("x-amz-copy-source")
        if source is not None and number == self.refused:
            return Answer(403)
        whole = self.objects[unquote(source).removeprefix("lake/")] if source is not None else b""
        self.parts[number] = body if source is None else _ranged(whole, headers["x-amz-copy-source-range"])
        tag = f'"{number}"'
        return _xml(f"<CopyPartResult><ETag>{tag}</ETag></CopyPartResult>", ("ETag", tag))


def _ranged(whole: bytes, text: str) -> bytes:
    first, last = map(int, text.removeprefix("bytes=").split("-"))
    return whole[first : last + 1]


def _xml(text: str, *headers: tuple[str, str]) -> Answer:
    return Answer(200, (("Content-Type", "application/xml"), *headers), text.encode())


@pytest.fixture
def bucket() -> Bucket:
    bucket = Bucket()
    bucket.objects["a"] = DATA
    return bucket


@pytest.fixture
def store(bucket: Bucket) -> Iterator[S3Storage]:
    with serving(bucket.answer) as uri:
        yield S3Storage(s3_options({**KEYS, "s3.endpoint": uri}), limits=LIMITS)


def test_each_range_is_read_from_its_first_byte_to_its_last(store: S3Storage) -> None:
    assert store.read_range("s3://lake/a", 7, 3) == DATA[7:10]
    assert store.read_ranges("s3://lake/a", [(5, 1), (9, 0), (0, 4)]) == [DATA[5:6], b"", DATA[:4]]


@pytest.mark.parametrize(("size", "parts"), [(9, []), (10, [10]), (11, [10, 1]), (50, [10] * 5)])
def test_what_is_written_is_sent_in_parts(store: S3Storage, bucket: Bucket, size: int, parts: list[int]) -> None:
    with store.open_output("s3://lake/b") as sink:
        sink.write(DATA[:3])
        sink.write(DATA[3:size])
        sink.write(np.empty((0, 3)))
    assert bucket.objects["b"] == DATA[:size]
    assert [len(part) for part in bucket.parts.values()] == parts
    with pytest.raises(ObjectExistsError, match="s3://lake/b exists already"):
        store.create("s3://lake/b", DATA[:size])
    with pytest.raises(StorageError, match="more than the 5 parts"):
        store.create("s3://lake/c", DATA[:51])
    assert bucket.objects.keys() == {"a", "b"}


def test_parts_grow_with_their_number(store: S3Storage, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "_PARTS_OF_ONE_SIZE", 1)
    with store.open_output("s3://lake/b") as sink:
        sink.write(DATA[:5])
        sink.write(DATA[5:])
    assert [len(part) for part in bucket.parts.values()] == [10, 20, 40, 30]
    assert bucket.objects["b"] == DATA


def test_of_no_bytes_there_are_as_many_as_ranges(store: S3Storage) -> None:
    assert store.read_ranges("s3://lake/none", [(3, 0), (5, 0)]) == [b"", b""]


@pytest.mark.parametrize(("size", "status"), [(9, 412), (11, 404)])
def test_an_object_is_known_again_where_the_answer_to_its_request_was_lost(
    store: S3Storage, bucket: Bucket, size: int, status: int
) -> None:
    """The client sends it again: the name is taken, and there is no such upload any more."""
    bucket.repeated = Answer(status)
    store.create("s3://lake/b", DATA[:size])
    assert bucket.objects["b"] == DATA[:size]


def test_an_upload_that_cannot_be_given_up_hides_no_error(store: S3Storage, bucket: Bucket) -> None:
    bucket.ended = 403
    with pytest.raises(ObjectExistsError, match="s3://lake/a exists already"):
        store.create("s3://lake/a", DATA[:11])


def test_a_range_that_an_object_lacks_is_not_joined(store: S3Storage, bucket: Bucket) -> None:
    with pytest.raises(ObjectMissingError, match="s3://lake/a ends at 100, 2 bytes more were expected"):
        store.concat("s3://lake/b", [ObjectRange("s3://lake/a", 99, 3)])
    assert bucket.objects.keys() == {"a"}


@pytest.mark.parametrize("body", ["", "<Error><Code>InvalidRange</Code></Error>"])
def test_behind_the_end_lies_nothing_in_whichever_words(body: str) -> None:
    with serving(lambda _: Answer(416, (), body.encode())) as uri:
        assert S3Storage(s3_options({**KEYS, "s3.endpoint": uri})).read_range("s3://lake/a", 100, 3) == b""


@pytest.mark.usefixtures("no_keys")
def test_keys_that_are_missing_are_asked_for_whatever_they_are_needed_for() -> None:
    store = S3Storage(s3_options({"s3.region": "north"}))
    for call in (lambda: store.size("s3://lake/a"), lambda: store.create("s3://lake/a", b"")):
        with pytest.raises(AccessError, match=r"s3://lake/a: there are no credentials for it.*s3\.access-key-id"):
            call()


@pytest.mark.parametrize(
    ("refusal", "others"),
    [("ExpiredToken", 1), ("InvalidToken", 1), ("TokenRefreshRequired", 1), ("", 1), ("InvalidToken", 0)],
)
def test_keys_that_are_refused_are_replaced_once(bucket: Bucket, refusal: str, others: int) -> None:
    """An answer to a HEAD has no text. Keys are of S3 or, in the second grant, of all clients."""
    names = ("s3.access-key-id", "s3.secret-access-key"), ("client.access-key-id", "client.secret-access-key")
    grants = [(Grant("s3://lake", {key: f"id-{n}", secret: "secret"}),) for n, (key, secret) in enumerate(names)]
    lease = Lease(VendedGrants("lake", "ns.t", "somebody", grants[0], lambda: grants[others]))
    used: list[str] = []

    def answer(request: Request) -> Answer:
        used.append(request.headers["Authorization"].partition("Credential=")[2].partition("/")[0])
        if used[-1] != "id-0":
            return bucket.answer(request)
        return Answer(400, (), f"<Error><Code>{refusal}</Code><Message>no</Message></Error>".encode() * bool(refusal))

    with serving(answer) as uri:
        store = S3Storage(s3_options({**KEYS, "s3.endpoint": uri}), lease=lease, prefix="s3://lake")
        if others:
            assert store.read_range("s3://lake/a", 7, 3) == DATA[7:10]
            assert used == ["id-0", "id-1"]
        else:
            with pytest.raises(RefusedError, match=r"with credentials that catalog 'lake' vended for ns\.t"):
                store.read_range("s3://lake/a", 7, 3)
            assert used == ["id-0"]


def test_new_keys_that_are_refused_too_are_not_requested_again_at_each_call() -> None:
    grants = [(Grant("s3://lake", {"s3.access-key-id": f"id-{n}", "s3.secret-access-key": "x"}),) for n in range(2)]
    requested: list[object] = []
    lease = Lease(VendedGrants("lake", "ns.t", "somebody", grants[0], lambda: requested.append(1) or grants[1]))
    with serving(lambda _: Answer(403)) as uri:
        store = S3Storage(s3_options({"s3.region": "north", "s3.endpoint": uri}), lease=lease, prefix="s3://lake")
        for _ in range(3):
            with pytest.raises(RefusedError, match="with credentials that catalog 'lake' vended"):
                store.size("s3://lake/a")
    assert len(requested) == 1


def test_a_joined_object_has_the_bytes_of_its_ranges_in_their_order(store: S3Storage, bucket: Bucket) -> None:
    ranges = [ObjectRange("s3://lake/a", 50, 40), b"between", ObjectRange("s3://lake/a", 1, 20)]
    assert store.concat("s3://lake/b", ranges) == 40 + 20
    assert bucket.objects["b"] == DATA[50:90] + b"between" + DATA[1:21]


@pytest.mark.parametrize("number", [1, 2])
def test_a_joined_object_is_as_good_as_each_of_its_copies(store: S3Storage, bucket: Bucket, number: int) -> None:
    bucket.refused = number
    with pytest.raises(RefusedError, match="s3://lake/b: the store refuses access"):
        store.concat("s3://lake/b", [ObjectRange("s3://lake/a", 0, 60)])
    assert (bucket.objects.keys(), bucket.parts) == ({"a"}, {})


def test_objects_of_two_buckets_are_deleted_each_in_its_own() -> None:
    deleted: list[str] = []

    def answer(request: Request) -> Answer:
        deleted.append(f"{request.method} {request.path}")
        return Answer(204)

    with serving(answer) as uri:
        S3Storage(s3_options({**KEYS, "s3.endpoint": uri})).delete_all(["s3://lake/a", "s3://other/a"])
    assert sorted(deleted) == ["DELETE /lake/a", "DELETE /other/a"]


def test_objects_that_a_store_keeps_are_named_and_listed_with_their_times() -> None:
    faults = {"b": "AccessDenied", "c": "InternalError"}
    errors = "".join(
        f"<Error><Key>{key}</Key><Code>{code}</Code><Message>x</Message></Error>" for key, code in faults.items()
    )
    listed = "<Contents><Key>t/b</Key><Size>3</Size><LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>"
    status = [200]

    def answer(request: Request) -> Answer:
        if request.method == "POST":
            return _xml(f"<DeleteResult>{errors}</DeleteResult>") if status[0] == 200 else Answer(status[0])
        return _xml(f"<ListBucketResult>{listed}</ListBucketResult>") if request.method == "GET" else Answer(204)

    with serving(answer) as uri:
        store = S3Storage(s3_options({**KEYS, "s3.endpoint": uri}))
        paths = [f"s3://lake/{key}" for key in "abc"]
        assert [(type(error), str(error)) for error in store.deletion_errors(paths)] == [
            (RefusedError, "s3://lake/b: the store refuses access (AccessDenied: x)"),
            (StorageError, "s3://lake/c could not be deleted (InternalError: x)"),
        ]
        assert [*store.list("s3://lake/t")] == [ObjectInfo("s3://lake/t/b", 3, 1_767_323_045_000)]
        for status[0] in (403, 405, 501):
            assert [*store.deletion_errors(paths)] == [], "they are deleted one by one"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_store_that_does_not_answer_is_reported() -> None:
    options = s3_options({**KEYS, "s3.endpoint": "http://127.0.0.1:9"})
    store = S3Storage({**options, "config_kwargs": {"retries": {"max_attempts": 0}}})
    with pytest.raises(StorageError, match="s3://lake/a: the store does not answer as it should"):
        store.size("s3://lake/a")
    with pytest.raises(StorageError, match="s3://lake/a could not be written"):
        store.create("s3://lake/a", b"")


def test_the_time_of_a_store_is_the_date_of_its_answer() -> None:
    listed = _xml("<ListBucketResult/>", ("Date", "Fri, 02 Jan 2026 03:04:05 GMT"))
    with serving(lambda _: listed) as uri:
        store = S3Storage(s3_options({**KEYS, "s3.endpoint": uri}))
        assert store.now_ms("s3://lake/a") == 1_767_323_045_000


def test_a_request_that_is_wrong_is_not_taken_for_a_name_that_is_taken() -> None:
    """s3fs makes EINVAL of both."""
    fault = _xml("<Error><Code>InvalidArgument</Code><Message>no</Message></Error>")
    with serving(lambda request: Answer(400, fault.headers, fault.body)) as uri:
        store = S3Storage(s3_options({**KEYS, "s3.endpoint": uri}))
        with pytest.raises(StorageError, match="s3://lake/b could not be written"):
            store.create("s3://lake/b", DATA)


def test_requests_have_a_time_limit_at_an_endpoint_of_ones_own_too() -> None:
    options = S3Storage(s3_options({**KEYS, "s3.endpoint": "http://127.0.0.1:9"}))._fs.config_kwargs
    assert options["s3"] == {"addressing_style": "path"}
    assert (options["connect_timeout"], options["read_timeout"]) == (10, 60)
