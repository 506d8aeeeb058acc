"""The S3 store against a real server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ops.model import ObjectRange
from ops.storage import ObjectExistsError, ObjectMissingError, Storage, open_storage
from tests.services.s3proxy import s3proxy

pytestmark = pytest.mark.jvm
BLOCK = bytes(range(256)) * 40_960


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    with s3proxy(tmp_path_factory.mktemp("s3proxy")) as config:
        yield open_storage("s3://lake", config)


def write_half(store: Storage, path: str) -> None:
    with store.open_output(path) as sink:
        sink.write(BLOCK)
        raise RuntimeError("cut off")


def test_ranges_are_read(store: Storage) -> None:
    store.create("s3://lake/r/x", b"hello")
    assert store.size("s3://lake/r/x") == 5
    assert store.read_range("s3a://lake/r/x", 1, 3) == b"ell"
    assert store.read_ranges("s3://lake/r/x", [(0, 2), (3, 9)]) == [b"he", b"lo"]


def test_one_of_many_creators_wins(store: Storage) -> None:
    def create(number: int) -> bool:
        try:
            store.create("s3://lake/race", str(number).encode())
        except ObjectExistsError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(create, range(16))) == 1


def test_a_missing_object_is_said_so(store: Storage) -> None:
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


def test_deleting_twice_is_harmless(store: Storage) -> None:
    store.create("s3://lake/d", b"x")
    store.delete("s3://lake/d")
    store.delete("s3://lake/d")
    assert not store.exists("s3://lake/d")
