"""The S3 store against a real server."""

import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pyarrow as pa
import pytest

from icepuffin.ops.model import ObjectRange, StorageConfig
from icepuffin.ops.storage import (
    ObjectExistsError,
    ObjectMissingError,
    RefusedError,
    Storage,
    StorageError,
    open_storage,
)
from icepuffin.ops.storage.multipart import PartLimits
from icepuffin.ops.storage.s3 import S3Storage
from icepuffin.ops.storage.s3_options import s3_options
from tests.services.faulty import faulty_line
from tests.services.forwarding import Answer, Request, forward, serving

pytestmark = pytest.mark.services
BLOCK = bytes(range(256)) * 40_960


@pytest.fixture(scope="module")
def store(s3: StorageConfig) -> Storage:
    return open_storage("s3://lake", s3)


def limited(config: StorageConfig, **limits: int) -> S3Storage:
    return S3Storage(s3_options(config.properties), limits=PartLimits(**limits))


def write_half(store: Storage, path: str) -> None:
    with store.open_output(path) as sink:
        sink.write(BLOCK)
        raise RuntimeError("cut off")


def test_ranges_are_read(store: Storage) -> None:
    store.create("s3://lake/r/x", b"hello")
    assert store.size("s3://lake/r/x") == 5
    assert store.read_range("s3a://lake/r/x", 1, 3) == b"ell"
    assert store.read_ranges("s3://lake/r/x", [(0, 2), (3, 9)]) == [b"he", b"lo"]


def test_behind_the_end_lies_nothing(store: Storage) -> None:
    store.create("s3://lake/r/end", b"hello")
    assert store.read_range("s3://lake/r/end", 5, 3) == b""
    assert store.read_ranges("s3://lake/r/end", [(9, 1), (4, 9), (2, 0)]) == [b"", b"o", b""]
    with pytest.raises(ObjectMissingError, match="r/none"):
        store.read_range("s3://lake/r/none", 5, 3)


def test_a_question_mark_is_part_of_a_name(store: Storage) -> None:
    for name in ("s3://lake/q/x?versionId=1", "s3://lake/q/x?versionId=2"):
        store.create(name, name.encode())
    for name in ("s3://lake/q/x?versionId=1", "s3://lake/q/x?versionId=2"):
        assert store.exists(name)
        assert store.read_range(name, 0, 99) == name.encode()
    assert not store.exists("s3://lake/q/x")
    assert len(list(store.list("s3://lake/q"))) == 2


@pytest.mark.parametrize("length", [1, 5 << 20])
def test_a_join_of_fewer_bytes_than_requested_publishes_nothing(store: Storage, length: int) -> None:
    store.create(f"s3://lake/short/{length}", bytes(length))
    segments = [b"head", ObjectRange(f"s3://lake/short/{length}", 0, length + 1)]
    with pytest.raises(StorageError, match="short"):
        store.concat(f"s3://lake/joined/{length}", segments)
    assert not store.exists(f"s3://lake/joined/{length}")


def test_the_time_is_that_of_the_store(store: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("s3://lake/clock/x", b"x")
    true = time.time()
    monkeypatch.setattr(time, "time", lambda: true + 86_400)
    (item,) = store.list("s3://lake/clock")
    assert item.modified_ms <= store.now_ms("s3://lake/clock") < (true + 60) * 1000


def test_one_of_many_creators_wins(store: Storage) -> None:
    def create(number: int) -> bool:
        try:
            store.create("s3://lake/race", str(number).encode())
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(create, range(16))) == 1


def test_a_missing_object_is_reported(store: Storage) -> None:
    with pytest.raises(ObjectMissingError, match="lake/none"):
        store.size("s3://lake/none")


def test_an_output_that_is_cut_off_does_not_appear(store: Storage) -> None:
    with pytest.raises(RuntimeError, match="cut off"):
        write_half(store, "s3://lake/half")
    assert not store.exists("s3://lake/half")


def test_the_server_joins_stored_bytes_by_itself_and_overwrites_nothing(store: Storage) -> None:
    with store.open_output("s3://lake/c/big") as sink:
        sink.write(BLOCK)
        sink.write(BLOCK)
    whole = ObjectRange("s3://lake/c/big", 0, 2 * len(BLOCK))
    copied = store.concat("s3://lake/c/joined", [b"head", whole, b"tail"])
    assert copied > len(BLOCK)
    assert store.read_range("s3://lake/c/joined", 0, 2 * len(BLOCK) + 8) == b"head" + BLOCK + BLOCK + b"tail"
    with pytest.raises(ObjectExistsError):
        store.concat("s3://lake/c/joined", [b"head", whole])
    assert {info.path for info in store.list("s3://lake/c")} == {"s3://lake/c/big", "s3://lake/c/joined"}


@contextmanager
def slow_copies(s3: StorageConfig, *, together: int = 1, fails_at: int = 0) -> Iterator[tuple[Storage, list[int]]]:
    """(store, numbers of copies that were under way at each copy). Of `together` copies each waits for the others; one
    copy may be refused.
    """
    all_there = threading.Barrier(together, timeout=600)
    lock, under_way, concurrent = threading.Lock(), list[None](), list[int]()

    def answer(request: Request) -> Answer:
        if "x-amz-copy-source" not in {name.lower() for name in request.headers}:
            return forward(s3.properties["s3.endpoint"], request)
        with lock:
            under_way.append(None)
            concurrent.append(len(under_way))
            number = len(concurrent)
        all_there.wait()
        time.sleep(0.05)  # for one more
        result = Answer(403) if number == fails_at else forward(s3.properties["s3.endpoint"], request)
        with lock:
            under_way.pop()
        return result

    with serving(answer) as uri:
        yield open_storage("s3://lake", StorageConfig({**s3.properties, "s3.endpoint": uri})), concurrent


def test_the_server_copies_several_parts_at_once(s3: StorageConfig, store: Storage) -> None:
    """A file of thousands of shards was copied part by part, each of some seconds."""
    blocks = [bytes([number]) * (6 << 20) for number in range(12)]
    for number, block in enumerate(blocks):
        store.create(f"s3://lake/many/{number}", block)
    segments = [
        piece
        for number, block in enumerate(blocks)
        for piece in (b"gap", ObjectRange(f"s3://lake/many/{number}", 0, len(block)))
    ]
    ranges = [piece for piece in segments if isinstance(piece, ObjectRange)]
    with slow_copies(s3, together=4) as (slow, concurrent):
        assert slow.concat("s3://lake/many/joined", ranges) == 12 * (6 << 20)
    assert len(concurrent) == 12
    assert 4 <= max(concurrent) <= 8
    assert store.read_range("s3://lake/many/joined", 0, 1 << 30) == b"".join(blocks)
    store.concat("s3://lake/many/with-gaps", segments)
    assert store.read_range("s3://lake/many/with-gaps", 0, 1 << 30) == b"".join(b"gap" + block for block in blocks)


def test_a_copy_that_is_refused_ends_the_others(s3: StorageConfig, store: Storage) -> None:
    with store.open_output("s3://lake/refused/big") as sink:
        sink.write(BLOCK)
    every = [ObjectRange("s3://lake/refused/big", 0, 6 << 20)] * 200
    with slow_copies(s3, fails_at=3) as (slow, concurrent), pytest.raises(RefusedError, match="refused/joined"):
        slow.concat("s3://lake/refused/joined", every)
    assert len(concurrent) < 100
    assert not store.exists("s3://lake/refused/joined")
    uploads = store._fs.call_s3("list_multipart_uploads", Bucket="lake").get("Uploads", [])  # type: ignore[attr-defined]
    assert "refused/joined" not in [upload["Key"] for upload in uploads]


def test_a_join_takes_each_character_of_a_name_literally(store: Storage) -> None:
    name = "s3://lake/literal/x?versionId=1/a%2Fb+c"
    store.create(name, BLOCK)
    assert store.concat("s3://lake/literal/joined", [ObjectRange(name, 0, len(BLOCK))]) == len(BLOCK)
    assert store.read_range("s3://lake/literal/joined", 0, 2 * len(BLOCK)) == BLOCK


def test_deleting_twice_is_harmless(store: Storage) -> None:
    store.create("s3://lake/d", b"x")
    store.delete("s3://lake/d")
    store.delete("s3://lake/d")
    assert not store.exists("s3://lake/d")


def names(count: int) -> list[str]:
    folder = f"s3://lake/{uuid.uuid4().hex}"
    return [f"{folder}/{number}?a&<b>'+ %20\u00e9" for number in range(count)]


def create_all(store: Storage, paths: list[str]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: store.create(path, b"x"), paths))


def deletions(s3: StorageConfig, answer: Callable[[Request], Answer | None]) -> AbstractContextManager[Storage]:
    """A store whose server lets `answer` answer to deletions of several objects; None: it answers itself."""

    @contextmanager
    def line() -> Iterator[Storage]:
        def answered(request: Request) -> Answer:
            is_batch = request.method == "POST" and request.path.rpartition("?")[2].startswith("delete")
            return (answer(request) if is_batch else None) or forward(s3.properties["s3.endpoint"], request)

        with serving(answered) as uri:
            yield open_storage("s3://lake", StorageConfig({**s3.properties, "s3.endpoint": uri}))

    return line()


def test_a_thousand_objects_are_deleted_by_one_request(s3: StorageConfig, store: Storage) -> None:
    paths, requests = names(1030), list[Request]()
    create_all(store, paths)
    with deletions(s3, requests.append) as line:  # type: ignore[func-returns-value,arg-type]
        line.delete_all([*paths[:1020], f"{paths[0]}-never-there"])
    assert len(requests) == 2
    assert {info.path for info in store.list(paths[0].rpartition("/")[0])} == set(paths[1020:])


def faults_of(*codes: tuple[str, str]) -> Answer:
    errors = "".join(
        f"<Error><Key>{path.removeprefix('s3://lake/')}</Key><Code>{code}</Code><Message>no</Message></Error>"
        for path, code in codes
    )
    return Answer(200, (("Content-Type", "application/xml"),), f"<DeleteResult>{errors}</DeleteResult>".encode())


@pytest.mark.parametrize(
    ("codes", "error", "message"),
    [
        (["AccessDenied"], RefusedError, r"^s3://lake/stay/0: the store refuses access \(AccessDenied: no\)$"),
        (
            ["AccessDenied", "InternalError"],
            StorageError,
            r"^s3://lake/stay/0: .*; .*/stay/1 could not be deleted",
        ),
        (["AccessDenied"] * 30, RefusedError, r"stay/19: [^;]*; and 10 more$"),
    ],
)
def test_objects_that_stay_are_named(
    s3: StorageConfig, codes: list[str], error: type[StorageError], message: str
) -> None:
    paths = [f"s3://lake/stay/{number}" for number in range(30)]
    answer = faults_of(*zip(paths, codes, strict=False))
    with deletions(s3, lambda _: answer) as line, pytest.raises(error, match=message) as caught:
        line.delete_all(paths)
    assert caught.type is error


@pytest.mark.parametrize(
    ("status", "code"), [(501, "NotImplemented"), (400, "MissingContentMD5"), (403, "AccessDenied")]
)
def test_a_store_that_takes_no_deletion_of_several_deletes_each(
    s3: StorageConfig, store: Storage, caplog: pytest.LogCaptureFixture, status: int, code: str
) -> None:
    paths = names(5)
    create_all(store, paths)
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    with deletions(s3, lambda _: Answer(status, (("Content-Type", "application/xml"),), body)) as line:
        line.delete_all(paths)
    assert not list(store.list(paths[0].rpartition("/")[0]))
    assert "deleted one by one, as the store does not take several" in caplog.text


def test_one_large_write_is_cut_into_parts_that_the_store_takes(s3: StorageConfig) -> None:
    store = limited(s3, part=5 * 2**20, max_parts=3)  # the server refuses smaller parts
    data = BLOCK + BLOCK[:7]
    with store.open_output("s3://lake/parts/large") as sink:
        sink.write(b"0123")
        sink.write(data)
    assert store.read_range("s3://lake/parts/large", 0, 2**24) == b"0123" + data
    head = store._fs.call_s3("head_object", Bucket="lake", Key="parts/large")
    assert head["ETag"].strip('"').endswith("-3")


def test_more_parts_than_the_store_takes_are_refused_and_nothing_appears(s3: StorageConfig) -> None:
    store = limited(s3, min_part=2**10, max_part=2**12, part=2**10, copy=2**12, max_parts=3)

    def write(path: str) -> None:
        with store.open_output(path) as sink:
            sink.write(BLOCK[: 5 * 2**10])

    with pytest.raises(StorageError, match="more than the 3 parts"):
        write("s3://lake/parts/many")
    with pytest.raises(StorageError, match="more than the 3 parts"):
        store.concat("s3://lake/parts/many", [BLOCK[: 5 * 2**10]])
    assert not store.exists("s3://lake/parts/many")


def test_a_range_past_the_end_is_short(store: Storage) -> None:
    store.create("s3://lake/r/short", b"hello")
    assert store.read_range("s3://lake/r/short", 3, 10) == b"lo"


def test_a_store_that_does_not_answer_is_reported_soon_and_without_secrets() -> None:
    secret = "hunter2hunter2"
    config = StorageConfig(
        {"s3.endpoint": "http://127.0.0.1:9", "s3.access-key-id": "key", "s3.secret-access-key": secret}
    )
    store = open_storage("s3://lake", config)
    begun = time.monotonic()
    for call in (lambda: store.size("s3://lake/x"), lambda: store.create("s3://lake/x", b"")):
        with pytest.raises(StorageError, match="lake/x") as caught:
            call()
        assert secret not in "".join(traceback.format_exception(caught.value))
    assert time.monotonic() - begun < 60
    assert secret not in repr(store) + repr(config)


def test_a_wrong_key_is_refused_without_showing_it(s3: StorageConfig) -> None:
    secret = "hunter2hunter2"
    store = open_storage("s3://lake", StorageConfig({**s3.properties, "s3.secret-access-key": secret}))
    with pytest.raises(RefusedError, match="lake/x") as caught:
        store.create("s3://lake/x", b"")
    assert secret not in "".join(traceback.format_exception(caught.value))


def test_arrow_writes_to_an_output_and_does_not_publish_it(store: Storage) -> None:
    table = pa.table({"a": np.arange(10)})
    with store.open_output("s3://lake/arrow") as sink:
        with pa.PythonFile(sink, mode="w") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        assert not store.exists("s3://lake/arrow")
    assert pa.ipc.open_stream(store.read_range("s3://lake/arrow", 0, 10_000)).read_all().equals(table)


def test_any_buffer_is_written(store: Storage) -> None:
    with store.open_output("s3://lake/buffers") as sink:
        for buffer in (b"ab", bytearray(b"cd"), memoryview(b"ef"), np.empty((0, 3)), np.array([[1, 2]], np.uint16)):
            sink.write(buffer)
    assert store.read_range("s3://lake/buffers", 0, 100) == b"abcdef\1\0\2\0"


def test_a_join_of_what_is_gone_publishes_nothing(store: Storage) -> None:
    with pytest.raises(ObjectMissingError):
        store.concat("s3://lake/gone/joined", [ObjectRange("s3://lake/gone/none", 0, 6 * 2**20)])
    assert not store.exists("s3://lake/gone/joined")


@pytest.mark.parametrize(("method", "data"), [("PUT", b"small"), ("POST", BLOCK + BLOCK)])
def test_an_object_whose_answer_was_lost_is_recognised(s3: StorageConfig, method: str, data: bytes) -> None:
    with faulty_line(s3.properties["s3.endpoint"]) as line:
        line.method, line.name = method, f"answer-{method}"
        store = S3Storage(s3_options({**s3.properties, "s3.endpoint": line.uri}))
        with store.open_output(f"s3://lake/lost/answer-{method}") as sink:
            sink.write(data)
            line.faults.append("lose answer")
        assert not line.faults
        assert store.read_range(f"s3://lake/lost/answer-{method}", 0, 2**26) == data
        with pytest.raises(ObjectExistsError):
            store.create(f"s3://lake/lost/answer-{method}", data)
