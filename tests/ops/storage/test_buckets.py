"""The stores for GCS and ADLS against servers: `make stores`."""

import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

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
from tests.interop.buckets import STORES, BucketServer, bucket_server
from tests.services.faulty import Fault, faulty_line
from tests.services.gcs import Gcs

pytestmark = pytest.mark.services
LARGE = bytes(range(256)) * 69_000
"""Larger than one request"""


@pytest.fixture(scope="module", params=STORES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with bucket_server(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def folder(server: BucketServer) -> str:
    return f"{server.root}/{uuid4().hex}"


@pytest.fixture
def store(server: BucketServer) -> Storage:
    return open_storage(server.root, server.storage)


def write_half(store: Storage, path: str, data: bytes) -> None:
    with store.open_output(path) as sink:
        sink.write(data)
        raise RuntimeError("cut off")


def names(store: Storage, folder: str) -> set[str]:
    return {info.path.removeprefix(f"{folder}/") for info in store.list(folder)}


def test_ranges_are_read_and_behind_the_end_lies_nothing(store: Storage, folder: str) -> None:
    store.create(f"{folder}/x", b"hello")
    assert store.size(f"{folder}/x") == 5
    assert store.read_range(f"{folder}/x", 1, 3) == b"ell"
    assert store.read_ranges(f"{folder}/x", [(0, 2), (3, 9)]) == [b"he", b"lo"]
    assert store.read_range(f"{folder}/x", 5, 3) == b""
    assert store.read_ranges(f"{folder}/x", [(9, 1), (4, 9), (2, 0)]) == [b"", b"o", b""]
    with pytest.raises(ObjectMissingError, match="none"):
        store.read_range(f"{folder}/none", 5, 3)
    with pytest.raises(ObjectMissingError, match="none"):
        store.size(f"{folder}/none")


@pytest.mark.parametrize("name", ["day=a%2Fb/x", "a b/+&y", "x?versionId=1", "ü#1", "a%20b"])
def test_every_character_of_a_name_is_literal(store: Storage, folder: str, name: str) -> None:
    store.create(f"{folder}/{name}", name.encode())
    assert store.read_range(f"{folder}/{name}", 0, 99) == name.encode()
    assert names(store, folder) == {name}
    store.delete(f"{folder}/{name}")
    assert not store.exists(f"{folder}/{name}")


@pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "large"])
def test_one_of_many_creators_wins_and_leaves_nothing_else(store: Storage, folder: str, data: bytes) -> None:
    def create(number: int) -> bool:
        try:
            store.create(f"{folder}/race", data + str(number).encode())
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number, won in enumerate(pool.map(create, range(8))) if won]
    assert len(winners) == 1
    assert store.read_range(f"{folder}/race", len(data), 9) == str(winners[0]).encode()
    assert names(store, folder) == {"race"}


@pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "large"])
def test_an_output_that_is_cut_off_does_not_appear(store: Storage, folder: str, data: bytes) -> None:
    with pytest.raises(RuntimeError, match="cut off"):
        write_half(store, f"{folder}/half", data)
    assert names(store, folder) == set()


def test_a_large_object_arrives_whole_whatever_the_sizes_of_its_writes(store: Storage, folder: str) -> None:
    with store.open_output(f"{folder}/large") as sink:
        for start in range(0, len(LARGE), 5_000_001):
            sink.write(LARGE[start : start + 5_000_001])
        assert not store.exists(f"{folder}/large")
    assert store.read_range(f"{folder}/large", 0, 2 * len(LARGE)) == LARGE
    assert names(store, folder) == {"large"}


def test_a_join_holds_bytes_and_stored_ranges_and_overwrites_nothing(store: Storage, folder: str) -> None:
    store.create(f"{folder}/big", LARGE)
    segments = [b"head", ObjectRange(f"{folder}/big", 1, len(LARGE) - 1), b"tail"]
    assert store.concat(f"{folder}/joined", segments) == 0
    assert store.read_range(f"{folder}/joined", 0, 2 * len(LARGE)) == b"head" + LARGE[1:] + b"tail"
    with pytest.raises(ObjectExistsError):
        store.concat(f"{folder}/joined", [b"head"])
    with pytest.raises(ObjectMissingError, match="bytes more were expected"):
        store.concat(f"{folder}/short", [ObjectRange(f"{folder}/big", 9, len(LARGE))])
    with pytest.raises(ObjectMissingError):
        store.concat(f"{folder}/short", [ObjectRange(f"{folder}/none", 0, 1)])
    assert names(store, folder) == {"big", "joined"}


def test_a_listing_has_all_pages_of_a_folder_and_no_neighbour(
    server: BucketServer, store: Storage, folder: str
) -> None:
    numbers = {f"{number}" for number in range(25)}
    if isinstance(server, Gcs):
        server.behave(page=10)
    for name in (*(f"in/{name}" for name in numbers), "in-other/x", "inner"):
        store.create(f"{folder}/{name}", b"abc")
    assert names(store, f"{folder}/in") == numbers
    assert {info.size for info in store.list(folder)} == {3}
    assert list(store.list(f"{folder}/none")) == []


def test_the_time_is_that_of_the_store(store: Storage, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create(f"{folder}/x", b"x")
    true = time.time()
    monkeypatch.setattr(time, "time", lambda: true + 86_400)
    (item,) = store.list(folder)
    assert item.modified_ms <= store.now_ms(folder) < (true + 60) * 1000
    assert names(store, folder) == {"x"}


def test_deleting_twice_is_harmless(store: Storage, folder: str) -> None:
    store.create(f"{folder}/d", b"x")
    store.delete(f"{folder}/d")
    store.delete(f"{folder}/d")
    assert not store.exists(f"{folder}/d")


def test_a_missing_bucket_is_reported(server: BucketServer) -> None:
    path = server.root.replace("lake", "elsewhere")
    store = open_storage(path, server.storage)
    with pytest.raises(StorageError, match="bucket"):
        store.create(f"{path}/x", b"")
    with pytest.raises(StorageError, match="elsewhere"):
        list(store.list(f"{path}/x"))


def test_arrow_writes_to_an_output_and_does_not_publish_it(store: Storage, folder: str) -> None:
    table = pa.table({"a": np.arange(10)})
    with store.open_output(f"{folder}/arrow") as sink:
        with pa.PythonFile(sink, mode="w") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        assert not store.exists(f"{folder}/arrow")
    assert pa.ipc.open_stream(store.read_range(f"{folder}/arrow", 0, 10_000)).read_all().equals(table)


def test_a_path_that_the_client_cannot_take_is_refused(store: Storage, folder: str) -> None:
    with pytest.raises(StorageError, match="empty path segment"):
        store.create(f"{folder}//x", b"")


@pytest.mark.parametrize("fault", ["lose answer", "lose request", "gateway timeout after"])
@pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "large"])
def test_an_object_whose_answer_was_lost_is_recognised(
    server: BucketServer, store: Storage, folder: str, data: bytes, fault: Fault
) -> None:
    with faulty_line(server.uri) as line:
        line.method, line.name = "PUT", "answer"
        with open_storage(folder, replace(server, uri=line.uri).storage).open_output(f"{folder}/answer") as sink:
            sink.write(data)
            line.faults.append(fault)
        assert not line.faults
    assert store.read_range(f"{folder}/answer", 0, 2**26) == data
    assert names(store, folder) == {"answer"}
    with pytest.raises(ObjectExistsError):
        store.create(f"{folder}/answer", data)


def test_a_store_that_does_not_answer_is_reported_soon_and_without_secrets(server: BucketServer) -> None:
    secret = "hunter2hunter2"
    properties = replace(server, uri="http://127.0.0.1:9").storage.properties
    config = StorageConfig({**properties, "gcs.oauth2.token": secret, "adls.sas-token": f"sig={secret}"})
    path, begun = f"{server.root}/x", time.monotonic()
    store = open_storage(path, config)
    for call in (lambda: store.size(path), lambda: store.create(path, b"")):
        with pytest.raises(StorageError, match="lake") as caught:
            call()
        assert secret not in "".join(traceback.format_exception(caught.value))
    assert time.monotonic() - begun < 60
    assert secret not in repr(store) + repr(config)


def test_a_token_that_is_refused_does_not_show(server: BucketServer, folder: str) -> None:
    secret = "hunter2hunter2"
    server.behave(tokens={})
    try:
        keys = {"gcs.oauth2.token": secret, "adls.sas-token": f"sig={secret}"}
        store = open_storage(folder, StorageConfig({**server.storage.properties, **keys}))
        with pytest.raises(RefusedError, match="refuses access") as caught:
            store.create(f"{folder}/x", b"")
        assert secret not in "".join(traceback.format_exception(caught.value))
        with pytest.raises(RefusedError, match="refuses access") as caught:
            store.read_range(f"{folder}/x", 0, 1)
        assert secret not in "".join(traceback.format_exception(caught.value))
    finally:
        server.behave()
