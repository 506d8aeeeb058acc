"""Shards as they come from the store: what the whole blob holds, by other code, and within a limit on the memory."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.codes.four_bit_quantization import MIN_DIMS
from icepuffin.ann_kernels.graphs.graph_search import MIN_CODED
from icepuffin.ann_kernels.graphs.walk_codes import MIN_SIGNED_DIMS
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.cache import CacheSettings, ShardCache, fetching
from icepuffin.ops.cache.disk import DiskCache
from icepuffin.ops.cache.mapped_arrays import Draft
from icepuffin.ops.cache.ready_shard import from_arrays, to_arrays
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.puffin.blobs import shard_blob
from icepuffin.puffin.blobs.shard_blob import Shard
from icepuffin.puffin.blobs.shard_header import read_header
from icepuffin.puffin.errors import BadBlobError, ChecksumError, PuffinError
from tests.ann_kernels.data import clustered, near_duplicates
from tests.ops.cache.stored import STORAGE, coded, decoded, kept_by, lean, random_shard, ready, stored


def graph_of(vectors: npt.NDArray[np.float32]) -> Shard:
    """A shard of these vectors, whatever its graph."""
    rows = len(vectors)
    neighbors = np.sort((np.arange(rows)[:, None] + np.array([1, 7, 300])) % rows, axis=1)
    return Shard(
        metric=Metric.L2.code, dims=vectors.shape[1], max_degree=16, search_list=16, alpha=1.2, medoid=0,
        neighbors=neighbors.astype(np.int32), degrees=np.full(rows, 3, np.int32),
        file_slots=np.arange(rows, dtype=np.uint32) // 100, row_positions=np.arange(rows),
        content_hashes=np.zeros(rows, np.uint64), vectors=vectors,
    )  # fmt: skip


def without_nodes(shard: Shard) -> Shard:
    """The same shard with none of its nodes."""
    codes = shard.codes and replace(
        shard.codes, terms=shard.codes.terms[:0], high=shard.codes.high[:0], low=shard.codes.low[:0]
    )
    of_nodes = ("neighbors", "degrees", "file_slots", "row_positions", "content_hashes", "vectors", "pq_codes")
    none = {name: None if (array := getattr(shard, name)) is None else array[:0] for name in of_nodes}
    return replace(shard, medoid=0, codes=codes, **none)


@cache
def large(content: str = "vectors") -> Shard:
    """A shard of 1,300 rows: with vectors, with halves, with a codebook's codes, or with 4, 5 or 8 bits."""
    if content == "vectors":
        return random_shard(seed=3, rows=1_300)
    if content == "halves":
        return replace(large(), vectors=large().vectors.astype(np.float16))
    return lean(large()) if content == "lean" else coded(large(), int(content))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.sampled_from(["vectors", "halves", "lean", "4", "5", "8"]),
    piece=st.sampled_from([512, 1_024, 1 << 12, 1 << 15, 1 << 23]),
    at_once=st.integers(1, 4),
    compact=st.booleans(),
)
def test_a_shard_that_comes_in_pieces_is_the_one_that_comes_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    piece: int,
    at_once: int,
    compact: bool,
) -> None:
    monkeypatch.setattr(LocalStorage, "piece_bytes", piece)
    monkeypatch.setattr(fetching, "_PIECES_AT_ONCE", at_once)
    shard = large(content)
    key = replace(stored(tmp_path, shard), compact=compact)
    whole = decoded(b"".join(bytes(chunk) for chunk in shard_blob.encode(shard)), shard)
    arrays, values = to_arrays(ready(whole, compact=compact))
    for kept in (ShardCache(CacheSettings.off()).shard(key, STORAGE), kept_by(ShardCache(in_new(tmp_path)), key)):
        others, other_values = to_arrays(kept)
        assert other_values == values
        assert others.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(others[name], array)
            assert others[name].dtype == array.dtype


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (large, {"sq8"}),
        (lambda: large("lean"), set()),
        (lambda: large("5"), set()),
        (lambda: graph_of(clustered(1_200, MIN_DIMS)), {"sq4"}),
        (lambda: graph_of(clustered(1_200, MIN_SIGNED_DIMS)), {"sq4", "signs"}),
        (lambda: graph_of(near_duplicates(3_000, MIN_DIMS, 80, 0.1)), {"sq8"}),
        (lambda: graph_of(near_duplicates(8_000, 32, 400, 1e-4)), set()),
    ],
    ids=["bytes", "lean", "rotated", "four bits", "signs", "bytes after four bits", "no codes"],
)
def test_a_file_that_is_filled_in_place_is_that_of_the_finished_arrays(
    tmp_path: Path, make: Callable[[], Shard], kinds: set[str], compact: bool
) -> None:
    shard = make()
    key = replace(stored(tmp_path, shard), compact=compact)
    kept_by(ShardCache(CacheSettings(tmp_path / "cache", 1 << 30, 0)), key)
    (path,) = (tmp_path / "cache").glob("*/*.shard")
    arrays, values = to_arrays(ready(decoded((tmp_path / "shard").read_bytes(), shard), compact=compact))
    prefixes = {name.split("_")[0] for name in arrays} & {"sq4", "sq8", "signs"}
    assert prefixes == kinds - ({"signs"} if compact else set())
    other = DiskCache.opened(tmp_path / "other", 1 << 30)
    assert other is not None
    other.put(path.parent.name, path.stem, arrays, values)
    assert path.read_bytes() == (tmp_path / "other" / path.parent.name / path.name).read_bytes()


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("content", ["vectors", "lean", "4", "5", "8"])
def test_a_shard_without_a_node_can_be_read(tmp_path: Path, content: str, compact: bool) -> None:
    """An index of few distinct vectors has some."""
    key = replace(stored(tmp_path, without_nodes(large(content))), compact=compact)
    assert kept_by(ShardCache(in_new(tmp_path)), key).count == 0


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("content", ["vectors", "lean", "4"])
def test_arrays_in_memory_are_those_that_kernels_are_compiled_for(tmp_path: Path, content: str, compact: bool) -> None:
    """Read-only ones would have each kernel compiled once more, in the first search."""
    key = stored(tmp_path, large(content))
    fetched = fetching.fetch(
        key.stored, key.sha256, STORAGE, compact=compact, claim=lambda _: fetching.Memory(), scratch=untaken
    )
    arrays, _ = fetched.with_codes(1, untaken)
    assert all(array.flags.writeable and array.flags.c_contiguous for array in arrays.values())


class WatchedDraft(Draft):
    """A file that knows which arrays it got as a copy."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream, "name")
        self.copied = set[str]()

    def keep(self, key: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        kept = super().keep(key, array)
        if not np.may_share_memory(kept, array):
            self.copied.add(key)
        return kept


@pytest.mark.parametrize("dims", [16, MIN_DIMS, MIN_SIGNED_DIMS])
def test_vectors_neighbours_and_codes_are_made_in_the_file(tmp_path: Path, dims: int) -> None:
    key = stored(tmp_path, graph_of(clustered(1_200, dims)))
    with (tmp_path / "file").open("w+b") as stream:

        def claim(size: int) -> WatchedDraft:
            stream.truncate(size)
            drafts.append(WatchedDraft(stream))
            return drafts[0]

        drafts = list[WatchedDraft]()
        fetched = fetching.fetch(key.stored, key.sha256, STORAGE, compact=False, claim=claim, scratch=untaken)
        arrays, _ = fetched.with_codes(2, untaken)
        assert drafts[0].copied == {"file_slots", "row_positions", "degrees"}
        assert len(arrays) >= 8


def in_new(folder: Path) -> CacheSettings:
    return CacheSettings(folder / f"cache-{len(list(folder.iterdir()))}", 1 << 30, 0)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.99999])
def test_a_blob_that_is_cut_off_does_not_enter(tmp_path: Path, share: float) -> None:
    key = stored(tmp_path, large())
    data = (tmp_path / "shard").read_bytes()
    (tmp_path / "shard").write_bytes(data[: int(share * len(data))])
    with pytest.raises(PuffinError):
        kept_by(ShardCache(CacheSettings(tmp_path / "cache", 1 << 30, 0)), key)
    assert not [file for file in (tmp_path / "cache").glob("*/*") if file.parent.name != "locks"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 1 << 30), bit=st.integers(0, 7))
@example(place=367, bit=0)  # the last byte of the section table
@example(place=368, bit=0)  # the first byte after it
def test_a_flipped_bit_is_noticed(tmp_path: Path, place: int, bit: int) -> None:
    key = stored(tmp_path, large())
    data = bytearray((tmp_path / "shard").read_bytes())
    data[place % len(data)] ^= 1 << bit
    (tmp_path / "shard").write_bytes(data)
    with pytest.raises(PuffinError):
        ShardCache(CacheSettings.off()).shard(key, STORAGE)


def header_of(data: bytearray) -> Any:
    return read_header(shard_blob.BytesSource(bytes(data)))


@pytest.mark.parametrize("half", [False, True])
def test_vectors_that_lie_apart_come_in_their_order(
    tmp_path: Path, half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "piece_bytes", 1024)
    shard = random_shard()
    if half:
        shard = replace(shard, vectors=np.asarray(shard.vectors).astype(np.float16))
    key = stored(tmp_path, shard, runs=(1, 30, 27, 2))
    ready_shard = ShardCache(CacheSettings.off()).shard(key, STORAGE)
    assert np.array_equal(ready_shard.vectors, np.asarray(shard.vectors).astype(np.float32))
    assert np.array_equal(ready_shard.row_positions, shard.row_positions)
    assert ready_shard.rounded is half


@pytest.mark.parametrize("run", [0, 1])
@pytest.mark.parametrize("fault", ["flipped", "cut off", "fewer"])
def test_vectors_that_lie_apart_and_are_not_whole_do_not_enter(tmp_path: Path, run: int, fault: str) -> None:
    key = stored(tmp_path, random_shard(), runs=(20, 40))
    path, runs = tmp_path / f"shard-{run}", list(key.stored.runs)
    data = bytearray(path.read_bytes())
    inside = runs[run].location.offset + 44
    data[inside] ^= fault == "flipped"
    path.write_bytes(data[: inside if fault == "cut off" else len(data)])
    if fault == "fewer":
        place = runs[run].location
        runs[run] = replace(runs[run], location=replace(place, length=place.length - 64))
    key = replace(key, stored=replace(key.stored, runs=tuple(runs)))
    expected = {"flipped": ChecksumError, "cut off": BadBlobError, "fewer": BadBlobError}[fault]
    with pytest.raises(expected, match=f"the shard is cut off at {inside}$" if fault == "cut off" else None):
        ShardCache(CacheSettings.off()).shard(key, STORAGE)


def test_shards_with_one_blob_and_other_vectors_are_told_apart(tmp_path: Path) -> None:
    shard = random_shard()
    other = replace(shard, vectors=np.asarray(shard.vectors) + 1)
    first, second = (stored(tmp_path, own, name, runs=(60,)) for own, name in ((shard, "a"), (other, "b")))
    assert first.sha256 == second.sha256
    cache = ShardCache(CacheSettings(tmp_path / "cache", 1 << 30, 1 << 30))
    for key, own in ((first, shard), (second, other), (first, shard)):
        assert np.array_equal(kept_by(cache, key).vectors, own.vectors)


def test_an_infinite_half_does_not_enter(tmp_path: Path) -> None:
    vectors = random_shard().vectors.astype(np.float16)
    vectors[7, 3] = np.inf
    key = stored(tmp_path, replace(random_shard(), vectors=vectors))
    with pytest.raises(BadBlobError, match="not finite"):
        ShardCache(CacheSettings.off()).shard(key, STORAGE)


def test_the_room_that_is_claimed_suffices_and_is_little_more(tmp_path: Path) -> None:
    shards = [random_shard(), *map(large, ("vectors", "lean", "4", "5", "8"))]
    shards += [random_shard(rows=MIN_CODED), coded(random_shard(rows=40, dims=100), 5)]
    for number, (shard, compact) in enumerate(product(shards, (False, True))):
        blob = b"".join(bytes(chunk) for chunk in shard_blob.encode(shard))
        header = header_of(bytearray(blob))
        size = sum(array.nbytes for array in to_arrays(ready(decoded(blob, shard), compact=compact))[0].values())
        most = fetching.most_bytes(header, len(blob), compact=compact)
        assert size <= most <= 1.05 * size + 6_000
        disk = DiskCache.opened(tmp_path / str(number), 1 << 30)
        assert disk is not None
        draft = disk.draft("owner", "name", most)
        assert draft is not None
        key = stored(tmp_path, shard)
        fetched = fetching.fetch(
            key.stored,
            key.sha256,
            STORAGE,
            compact=compact,
            claim=lambda _, draft=draft: draft.arrays,
            scratch=untaken,
        )
        arrays, values = fetched.with_codes(1, untaken)
        draft.publish(values)
        assert from_arrays(arrays, values).count == shard.count


def untaken(_: int) -> Any:
    return ShardCache(CacheSettings.off())._scratch.reserve(0)


LIMITED = """
import resource, sys
from pathlib import Path
from icepuffin.ops.cache import CacheSettings, ShardCache
from tests.ops.cache.stored import STORAGE, coded, kept_by, random_shard, stored

def data_bytes():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0])

folder, extra = Path(sys.argv[1]), int(sys.argv[2])
small = stored(folder, random_shard(rows=1_100), "small")
kept_by(ShardCache(CacheSettings(folder / "cache", 1 << 30, 0)), small)  # kernels are loaded
from tests.ops.cache.test_fetching import large_key
key, mapped = large_key(folder)
limit = data_bytes() + mapped + extra
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
result = kept_by(ShardCache(CacheSettings(folder / "cache", 1 << 30, 1 << 30)), key)
print(result.count, float(result.vectors[-1, -1]))
"""


def large_key(folder: Path) -> tuple[Any, int]:
    """(key of the large shard in a folder, bytes of its file in the cache)."""
    import pickle  # noqa: PLC0415

    key, size = pickle.loads((folder / "key").read_bytes())  # noqa: S301
    return key, size


@pytest.mark.parametrize(("extra", "enough"), [(32 << 20, True), (6 << 20, False)])
def test_a_large_shard_takes_little_memory_beside_its_file(tmp_path: Path, extra: int, enough: bool) -> None:
    """Under a limit that the kernel enforces: private views of files count, too. The blob alone has 210 MB."""
    import pickle  # noqa: PLC0415

    rows, dims = 100_000, 512
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((rows, dims), np.float32)
    neighbors = (np.arange(rows)[:, None] + np.array([1, 7, 300, 9_001])) % rows
    shard = Shard(
        metric=0, dims=dims, max_degree=16, search_list=16, alpha=1.2, medoid=0,
        neighbors=np.sort(neighbors, axis=1).astype(np.int32), degrees=np.full(rows, 4, np.int32),
        file_slots=np.zeros(rows, np.uint32), row_positions=np.arange(rows),
        content_hashes=np.zeros(rows, np.uint64), vectors=vectors,
    )  # fmt: skip
    key = stored(tmp_path, shard, "large")
    header = header_of(bytearray((tmp_path / "large").read_bytes()))
    (tmp_path / "key").write_bytes(pickle.dumps((key, fetching.most_bytes(header, key.where.length))))
    command = [sys.executable, "-c", LIMITED, str(tmp_path), str(extra)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is enough, done.stderr
    if enough:
        assert done.stdout.split() == [str(rows), str(float(vectors[-1, -1]))]
