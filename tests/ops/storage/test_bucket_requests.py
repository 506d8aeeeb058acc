"""What the client for GCS and ADLS does when stores refuse, lose or repeat, over obstore's store in memory."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PreconditionError, UnauthenticatedError
from obstore.store import MemoryStore

from icepuffin.ops.model import MIB, Grant, ObjectRange, VendedGrants
from icepuffin.ops.storage import ObjectExistsError, ObjectMissingError, RefusedError, StorageError, buckets
from icepuffin.ops.storage.buckets import BucketStorage
from icepuffin.ops.storage.credentials import Lease

DATA = bytes(range(256)) * 16


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    memory = MemoryStore()
    monkeypatch.setattr(buckets, "bucket_client", lambda *_, **__: memory)
    return memory


@pytest.fixture
def store(memory: MemoryStore) -> BucketStorage:
    return BucketStorage({})


@pytest.fixture(params=["one request", "parts"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the function that publishes."""
    if request.param == "one request":
        return "put"
    monkeypatch.setattr(buckets, "_PART", 1000)
    return "copy"


def names(store: BucketStorage) -> set[str]:
    return {info.path for info in store.list("gs://lake/a")}


_LOST = GenericError("connection closed")


def failing(
    function: str, monkeypatch: pytest.MonkeyPatch, *, after: bool, times: int = 1, error: Exception = _LOST
) -> list[str]:
    """Let a function of obstore fail, before or after it has done its work. By default the answer is lost."""
    through: Callable[..., Any] = getattr(obstore, function)
    failures: list[str] = []

    def call(*arguments: Any, **options: Any) -> Any:
        if len(failures) == times:
            return through(*arguments, **options)
        failures.append(function)
        if after:
            through(*arguments, **options)
        raise error

    monkeypatch.setattr(obstore, function, call)
    return failures


@pytest.mark.parametrize("after", [True, False])
def test_a_write_without_an_answer_ends_with_one_object(
    store: BucketStorage, way: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = failing(way, monkeypatch, after=after)
    store.create("gs://lake/a/x", DATA)
    assert failures == [way]
    assert store.read_range("gs://lake/a/x", 0, 2 * len(DATA)) == DATA
    assert names(store) == {"gs://lake/a/x"}


@pytest.mark.parametrize("kind", [AlreadyExistsError, PreconditionError])
def test_a_request_that_the_client_repeats_by_itself_meets_its_own_object(
    store: BucketStorage, way: str, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    failing(way, monkeypatch, after=True, error=kind("the first request made it"))
    store.create("gs://lake/a/x", DATA)
    assert store.read_range("gs://lake/a/x", 0, 2 * len(DATA)) == DATA
    assert names(store) == {"gs://lake/a/x"}


def test_a_request_that_is_sent_again_is_warned_of(
    store: BucketStorage, way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(way, monkeypatch, after=False)
    store.create("gs://lake/a/x", DATA)
    assert "gs://lake/a/x could not be written: connection closed; it is sent again" in caplog.text


def test_what_is_left_aside_for_lack_of_rights_is_no_error(
    store: BucketStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user may write and not delete; `gc` deletes it."""
    monkeypatch.setattr(buckets, "_PART", 1000)
    failing("delete", monkeypatch, after=False, error=UnauthenticatedError("no rights\n\nDebug source: a client"))
    store.create("gs://lake/a/x", DATA)
    assert store.size("gs://lake/a/x") == len(DATA)


def test_only_the_first_line_of_what_a_client_says_is_repeated(
    store: BucketStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing("head", monkeypatch, after=False, error=UnauthenticatedError("no rights\n\nDebug source: a client"))
    with pytest.raises(RefusedError, match=r"refuses access \(no rights\)$"):
        store.size("gs://lake/a/x")


def test_an_object_of_one_part_is_one_request(store: BucketStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_PART", 1000)
    copies: list[int] = []
    through: Callable[..., Any] = obstore.copy
    monkeypatch.setattr(obstore, "copy", lambda *of, **how: copies.append(size) or through(*of, **how))
    for size in (999, 1000, 1001):
        store.create(f"gs://lake/a/{size}", DATA[:size])
        assert store.size(f"gs://lake/a/{size}") == size
    assert copies == [1001]


def test_any_buffer_is_written(store: BucketStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_PART", 8)
    buffers = (np.empty((0, 3)), bytearray(b"ab"), np.array([[1, 2]] * 2, np.uint16), np.empty((0, 3)), b"c" * 9)
    with store.open_output("gs://lake/a/x") as sink:
        for buffer in buffers:
            sink.write(buffer)
    assert store.read_range("gs://lake/a/x", 0, 99) == b"ab" + b"\1\0\2\0" * 2 + b"c" * 9


def test_deleting_what_is_gone_is_harmless(store: BucketStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("gs://lake/a/x", DATA)
    failing("delete", monkeypatch, after=True, error=FileNotFoundError("no such object"))
    store.delete("gs://lake/a/x")
    assert names(store) == set()


def test_what_lacks_its_bucket_or_its_source_is_missing(
    store: BucketStorage, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(way, monkeypatch, after=False, error=FileNotFoundError("no such bucket"))
    with pytest.raises(ObjectMissingError, match="its bucket, or what it is made of, is missing"):
        store.create("gs://lake/a/x", DATA)


def test_a_range_that_begins_where_the_object_ends_is_empty(store: BucketStorage) -> None:
    store.create("gs://lake/a/x", DATA)
    ranges = [(len(DATA) - 1, 5), (len(DATA), 5), (len(DATA) + 1, 5)]
    assert [len(part) for part in store.read_ranges("gs://lake/a/x", ranges)] == [1, 0, 0]
    assert store.read_ranges("gs://lake/a/x", ranges[:1]) == [DATA[-1:]]
    assert store.read_ranges("gs://lake/a/x", []) == []


def test_the_clock_of_a_store_is_in_milliseconds_and_leaves_no_object(store: BucketStorage) -> None:
    store.create("gs://lake/a/A", DATA)
    (older,) = store.list("gs://lake/a/")
    time.sleep(0.002)
    now = [store.now_ms("gs://lake/a"), store.now_ms("gs://lake/a/")]
    assert all(older.modified_ms < each and abs(each - 1_000 * time.time()) < 60_000 for each in now)
    assert names(store) == {"gs://lake/a/A"}


def test_a_store_that_never_answers_is_reported(
    store: BucketStorage, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = failing(way, monkeypatch, after=False, times=99)
    with pytest.raises(StorageError, match="gs://lake/a/x could not be written: connection closed"):
        store.create("gs://lake/a/x", DATA)
    assert len(failures) == 3
    assert names(store) == set()


def test_another_objects_name_is_not_taken(store: BucketStorage, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("gs://lake/a/x", b"other")
    failing(way, monkeypatch, after=False)
    with pytest.raises(ObjectExistsError):
        store.create("gs://lake/a/x", DATA)
    assert store.read_range("gs://lake/a/x", 0, 99) == b"other"
    assert names(store) == {"gs://lake/a/x"}


def test_a_copy_that_the_store_has_not_finished_is_no_object_yet(
    store: BucketStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_PART", 1000)
    monkeypatch.setattr(obstore, "copy", lambda memory, _, target, **__: obstore.put(memory, target, b""))
    with pytest.raises(StorageError, match="has 0 bytes after it was copied, 4096 were written"):
        store.create("gs://lake/a/x", DATA)


def test_a_joined_object_has_its_ranges_whole_however_many_are_read_at_once(
    store: BucketStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_PART", 1000)
    store.create("gs://lake/a/x", DATA)
    store.concat("gs://lake/a/y", [b"head", ObjectRange("gs://lake/a/x", 7, 2500)])
    assert store.read_range("gs://lake/a/y", 0, 2 * len(DATA)) == b"head" + DATA[7:2507]
    with pytest.raises(ObjectMissingError, match="gs://lake/a/x ends at 4096, 4 bytes more were expected"):
        store.concat("gs://lake/a/z", [ObjectRange("gs://lake/a/x", 1100, 3000)])


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("others", [1, 0])
def test_keys_that_are_refused_are_replaced_once(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    grants = [(Grant("gs://lake", {"gcs.oauth2.token": f"token-{number}"}),) for number in range(2)]
    lease = Lease(VendedGrants("lake", "ns.t", "somebody", grants[0], lambda: grants[others]))
    store = BucketStorage({}, lease=lease, prefix="gs://lake")
    store.create("gs://lake/a/x", b"x")
    through, calls = obstore.head, []

    def head(memory: MemoryStore, key: str) -> Any:
        calls.append(store._settings()["gcs.oauth2.token"])
        if calls[-1] == "token-0":
            raise UnauthenticatedError("expired")
        return through(memory, key)

    monkeypatch.setattr(obstore, "head", head)
    if others:
        assert store.size("gs://lake/a/x") == 1
        assert calls == ["token-0", "token-1"]
    else:
        with pytest.raises(RefusedError, match=r"refuses access with credentials that catalog 'lake' vended for ns\.t"):
            store.size("gs://lake/a/x")
        assert calls == ["token-0"]


@pytest.mark.usefixtures("memory")
def test_new_keys_that_are_refused_too_are_not_requested_again_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    grants = [(Grant("gs://lake", {"gcs.oauth2.token": f"token-{number}"}),) for number in range(2)]
    requested: list[object] = []
    lease = Lease(VendedGrants("lake", "ns.t", "somebody", grants[0], lambda: requested.append(1) or grants[1]))
    store = BucketStorage({}, lease=lease, prefix="gs://lake")

    def head(*_: object) -> None:
        raise UnauthenticatedError("expired")

    monkeypatch.setattr(obstore, "head", head)
    for _ in range(3):
        with pytest.raises(RefusedError, match="refuses access with credentials that catalog 'lake' vended"):
            store.size("gs://lake/a/x")
    assert len(requested) == 1


@pytest.mark.parametrize(
    ("most_bytes", "part"), [(0, 1000), (8_000_000, 1000), (16_000_000, 2000), (2**40, 137_438_954)]
)
def test_parts_are_as_large_as_the_object_takes(
    store: BucketStorage, monkeypatch: pytest.MonkeyPatch, most_bytes: int, part: int
) -> None:
    """GCS takes 10,000 parts of an object: of 16 MiB each they are 156 GiB."""
    assert buckets._PART == 16 * MIB
    monkeypatch.setattr(buckets, "_PART", 1000)
    sizes: list[int] = []
    open_writer: Callable[..., Any] = obstore.open_writer

    def recorded(*arguments: Any, **options: Any) -> Any:
        sizes.append(options["buffer_size"])
        return open_writer(*arguments, **options)

    monkeypatch.setattr(obstore, "open_writer", recorded)
    store.concat("gs://lake/a/x", [DATA[:7], DATA], most_bytes)
    assert store.read_range("gs://lake/a/x", 0, 2 * len(DATA)) == DATA[:7] + DATA
    assert sizes == [part]
    assert part * 10_000 >= most_bytes
