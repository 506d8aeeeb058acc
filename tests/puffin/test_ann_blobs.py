import gc
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from icepuffin.puffin import BytesSource
from icepuffin.puffin.blobs import (
    addresses_blob,
    attributes_blob,
    centroid_blob,
    deletion_vector_blob,
    included_columns_blob,
    routing_blob,
    shard_blob,
)
from icepuffin.puffin.blobs.centroid_blob import CentroidIndex
from icepuffin.puffin.blobs.shard_blob import Shard, ShardReader
from icepuffin.puffin.blobs.shard_header import MAX_SECTIONS, Section
from icepuffin.puffin.errors import BadBlobError, ChecksumError, EarlierFormatError, LaterFormatError, PuffinError
from icepuffin.puffin.types import MAX_DIMS, MAX_METRIC
from icepuffin.puffin.varint import (
    check_adjacency,
    decode_adjacency,
    decode_signed,
    encode_adjacency,
    encode_signed,
    load_decoders,
)
from tests.puffin import samples


def shard_bytes(value: Shard) -> bytes:
    return b"".join(shard_blob.encode(value))


def decoded(data: bytes, value: Shard) -> Shard:
    """The shard in the bytes, with the vectors of `value`."""
    return shard_blob.decode(data, samples.ApartVectors(value))


def reader_of(data: bytes, value: Shard, **options: Any) -> ShardReader:
    return ShardReader(BytesSource(data), vectors=samples.ApartVectors(value), **options)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return bool(one == other)


ENCODED: list[tuple[str, bytes, Callable[[bytes], Any]]] = [
    ("centroid", centroid_blob.encode(samples.centroid()), centroid_blob.decode),
    ("attributes", attributes_blob.encode(samples.attributes()), attributes_blob.decode),
    ("lists", attributes_blob.encode(samples.lists()), attributes_blob.decode),
    ("included", included_columns_blob.encode(samples.included()), included_columns_blob.decode),
    ("routing", routing_blob.encode(samples.routing()), routing_blob.decode),
    ("routing with packs", routing_blob.encode(samples.packed_routing()), routing_blob.decode),
    ("routing with addresses", routing_blob.encode(samples.moved_routing()), routing_blob.decode),
    ("routing of runs", routing_blob.encode(samples.routing_of_runs()), routing_blob.decode),
    ("shard of codes", shard_bytes(samples.coded_shard(5, 3)), shard_blob.decode),
    (
        "addresses",
        addresses_blob.encode(np.arange(9, dtype=np.uint32) // 4, np.arange(9)[::-1] * 7),
        partial(addresses_blob.decode, count=9),
    ),
    ("shard", shard_bytes(samples.shard(12, pq_bits=0)), partial(decoded, value=samples.shard(12, pq_bits=0))),
    ("deletion vector", deletion_vector_blob.encode(np.array([0, 5, 70_000, 2**40])), deletion_vector_blob.decode),
]
BLOBS = pytest.mark.parametrize(("data", "decode"), [row[1:] for row in ENCODED], ids=[row[0] for row in ENCODED])


@pytest.mark.parametrize("count", [0, 1, 2, 50, 3000])
@pytest.mark.parametrize("vectors", [None, "f4", "f2"])
@pytest.mark.parametrize("pq_bits", [0, 4, 8])
def test_a_shard_is_read_as_written(count: int, vectors: str | None, pq_bits: int) -> None:
    value = samples.shard(count, vectors=vectors, pq_bits=pq_bits)
    data = shard_bytes(value)
    assert same(decoded(data, value), value)
    assert data == shard_bytes(value)
    assert all(entry.offset % 64 == 0 for entry in reader_of(data, value).header.sections)


@pytest.mark.parametrize("bits", [4, 5, 8])
def test_a_shard_of_codes_is_read_as_written(bits: int) -> None:
    value = samples.coded_shard(bits)
    assert same(shard_blob.decode(shard_bytes(value)), value)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_shard_of_another_layout_is_reported_as_earlier(version: int) -> None:
    data = bytearray(shard_bytes(samples.shard()))
    data[4] = version
    with pytest.raises(EarlierFormatError, match=f"shard blob of version {version}"):
        shard_blob.decode(bytes(data))


def _without_its_last_section(data: bytearray) -> None:
    (sections,) = struct.unpack_from("<I", data, 48)
    (end,) = struct.unpack_from("<Q", data, 128 + 48 * (sections - 1) + 8)
    struct.pack_into("<I", data, 48, sections - 1)
    (offset, stored) = struct.unpack_from("<QQ", data, 128 + 48 * (sections - 2) + 8)
    assert offset + stored <= end
    del data[offset + stored :]


def _first_term(data: bytearray, value: float) -> None:
    (offset,) = struct.unpack_from("<Q", data, 128 + 48 * 5 + 8)
    struct.pack_into("<f", data, offset, value)


def _center(data: bytearray, value: float) -> None:
    (offset,) = struct.unpack_from("<Q", data, 128 + 48 * 4 + 8)
    struct.pack_into("<8f", data, offset + 8, *[value] * 8)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: struct.pack_into("<I", data, 4, 1),
        lambda data: struct.pack_into("<I", data, 44, 4),
        lambda data: struct.pack_into("<I", data, 44, 6),
        lambda data: struct.pack_into("<I", data, 44, 1),
        lambda data: struct.pack_into("<I", data, 8, 200),
        _without_its_last_section,
        lambda data: _first_term(data, -1.0),
        lambda data: _first_term(data, float("nan")),
        lambda data: _center(data, 3.3e18),
        lambda data: _center(data, float("inf")),
    ],
    ids=[
        "version",
        "fewer bits",
        "other bits",
        "numbers",
        "dimensions",
        "no low bits",
        "negative",
        "NaN",
        "far",
        "inf",
    ],
)
def test_codes_that_do_not_fit_their_header_are_refused(change: Callable[[bytearray], None]) -> None:
    data = bytearray(shard_bytes(samples.coded_shard(5)))
    assert shard_blob.decode(resealed(data)).codes is not None
    _center(data, 3.1e18)  # 8.8e18 long
    assert shard_blob.decode(resealed(data)).codes is not None
    change(data)
    with pytest.raises(BadBlobError):
        shard_blob.decode(resealed(data))


def test_attributes_are_read_as_written() -> None:
    value = samples.attributes()
    read = attributes_blob.decode(attributes_blob.encode(value))
    assert same(read, value)
    wide = replace(value.entries[1], kind="\U0001f600" * 7, reading="\U0001f600" * 5, left_out="\U0001f600" * 2)
    for one in (value, replace(value, entries=(wide,))):
        assert len(attributes_blob.encode(one)) <= attributes_blob.encoded_bytes(one.entries)
    texts, _, numbers = read.entries
    assert attributes_blob.values_of(texts).codes.tolist() == [0, 3, 2, 2, 1]
    assert attributes_blob.values_of(texts).values == "aßbbb".encode()
    assert attributes_blob.values_of(numbers).codes.dtype == np.uint16


@pytest.mark.parametrize("change", [{"rows": 4}, {"rows": 6}, {"raw_length": 20}, {"packed": False}])
def test_attributes_that_do_not_fit_their_entry_are_refused(change: dict[str, Any]) -> None:
    entry = samples.attributes().entries[0]
    with pytest.raises(PuffinError):
        attributes_blob.values_of(replace(entry, **change))


@pytest.mark.parametrize("codes", [[0, 4, 0, 0, 0], [3, 3, 3, 3]])
def test_codes_without_a_value_are_refused(codes: list[int]) -> None:
    values = replace(attributes_blob.values_of(samples.attributes().entries[0]), codes=np.array(codes, np.uint8))
    with pytest.raises(BadBlobError):
        attributes_blob.values_of(attributes_blob.entry_of(0, 5, "string", "", values))


def test_lists_are_read_as_written() -> None:
    value = samples.lists()
    read = attributes_blob.decode(attributes_blob.encode(value))
    assert same(read, value)
    texts = attributes_blob.lists_of(read.entries[0])
    assert (texts.tokens.values, texts.states.tolist()) == (b"ab", [0, 2, 1, 0, 0])
    assert (texts.starts.tolist(), texts.rows.tolist()) == ([0, 2, 4], [0, 4, 0, 2])
    assert attributes_blob.lists_of(read.entries[2]).rows.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"states": [0, 2, 1, 0]},
        {"states": [0, 2, 1, 0, 3]},
        {"states": [2, 2, 1, 0, 0]},
        {"starts": [0, 2, 3]},
        {"starts": [0, 4, 4]},
        {"starts": [1, 2, 4]},
        {"rows": [0, 5, 0, 2]},
        {"rows": [4, 4, 0, 2]},
        {"rows": [0, 4, 0]},
    ],
    ids=str,
)
def test_lists_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    lists = attributes_blob.lists_of(samples.lists().entries[0])
    kinds = {"states": np.uint8, "starts": np.uint32, "rows": np.uint32}
    broken = replace(lists, **{name: np.array(values, kinds[name]) for name, values in change.items()})
    with pytest.raises(BadBlobError):
        attributes_blob.lists_of(attributes_blob.list_entry_of(0, 5, "list<string>", "", broken))


def test_centroids_and_routing_are_read_as_written() -> None:
    assert same(centroid_blob.decode(centroid_blob.encode(samples.centroid())), samples.centroid())
    assert same(routing_blob.decode(routing_blob.encode(samples.routing())), samples.routing())
    assert same(routing_blob.decode(routing_blob.encode(samples.packed_routing())), samples.packed_routing())
    assert samples.packed_routing().packs == 2
    assert same(routing_blob.decode(routing_blob.encode(samples.moved_routing())), samples.moved_routing())


def test_centroids_of_no_file_and_of_most_dimensions_are_read_as_written() -> None:
    for count, dims in ((0, 3), (1, MAX_DIMS)):
        balls = np.ones((count, dims), np.float32), np.zeros(count, np.uint32), np.ones(count, np.float32)
        value = CentroidIndex(MAX_METRIC, dims, *balls, ("a",) * count)
        assert same(centroid_blob.decode(centroid_blob.encode(value)), value)


def test_a_shard_is_rounded_where_it_does_not_hold_the_vectors_it_was_built_over() -> None:
    values = [*(samples.shard(9, vectors=vectors) for vectors in ("f4", "f2", None)), samples.coded_shard(5, 9)]
    assert [value.rounded for value in values] == [False, True, True, True]


def test_vectors_apart_are_read_as_written() -> None:
    value = samples.routing_of_runs()
    assert same(routing_blob.decode(routing_blob.encode(value)), value)
    assert [entry.bytes_by_pack for entry in value.shards] == [{0: 12_345}, {2: 99 + 80, 0: 120}]
    assert (value.packs, value.shards[1].all_bytes) == (2, 299)


@pytest.mark.parametrize(
    ("value", "vectors"),
    [
        (samples.shard(50), None),
        (samples.shard(50), samples.shard(49)),
        (samples.shard(50), samples.shard(50, vectors="f2")),
        (samples.shard(50, vectors=None), samples.shard(50)),
    ],
)
def test_a_shard_has_as_many_vectors_as_nodes(value: Shard, vectors: Shard | None) -> None:
    with pytest.raises(BadBlobError, match="shard blob: vectors have"):
        shard_blob.decode(shard_bytes(value), None if vectors is None else samples.ApartVectors(vectors))


def test_the_message_on_runs_is_short_however_many_there_are() -> None:
    first, second = samples.routing_of_runs().shards
    runs = tuple(replace(second.runs[0], offset=20 * number, length=20, count=1) for number in range(1_000))
    value = replace(samples.routing_of_runs(), shards=(first, replace(second, runs=runs)))
    with pytest.raises(BadBlobError, match="1 has 10 nodes, and 1000 runs of 1000 vectors, 0 without any") as error:
        routing_blob.decode(routing_blob.encode(value))
    assert len(str(error.value)) < 100


def test_two_shards_may_name_one_run() -> None:
    value = samples.routing_of_runs()
    twice = replace(value, shards=(value.shards[1], value.shards[1]))
    assert same(routing_blob.decode(routing_blob.encode(twice)), twice)


@pytest.mark.parametrize("value", [samples.routing(), samples.moved_routing(), samples.routing_of_runs()])
def test_a_routing_blob_has_one_layout_and_its_feature_bit(value: routing_blob.Routing) -> None:
    assert struct.unpack_from("<4sI24xI", routing_blob.encode(value)) == (b"ANNR", 6, 1)


@pytest.mark.parametrize(
    ("version", "error"),
    [(1, EarlierFormatError), (5, EarlierFormatError), (7, LaterFormatError), (99, LaterFormatError)],
)
def test_a_routing_blob_of_another_layout_is_reported_as_earlier_or_later(
    version: int, error: type[BadBlobError]
) -> None:
    data = bytearray(routing_blob.encode(samples.moved_routing()))
    data[4] = version
    with pytest.raises(error, match=f"routing blob of version {version}"):
        routing_blob.decode(bytes(data))


def test_one_section_is_read_alone() -> None:
    value = samples.shard()
    raw = reader_of(shard_bytes(value), value).read_section(Section.CONTENT_HASHES)
    assert np.array_equal(raw.view("<u8"), value.content_hashes)


@BLOBS
def test_a_blob_cut_anywhere_gives_a_typed_error(data: bytes, decode: Callable[[bytes], Any]) -> None:
    for end in range(len(data)):
        with pytest.raises(BadBlobError):
            decode(data[:end])
    with pytest.raises(BadBlobError):
        decode(data + b"\x00")


@BLOBS
def test_a_flipped_bit_never_breaks_the_reader(data: bytes, decode: Callable[[bytes], Any]) -> None:
    """Centroids carry no checksum of their own; everything else detects the flip, but in the padding of sections."""
    plain = decode(data)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        try:
            read = decode(bytes(changed))
        except PuffinError:
            continue
        assert isinstance(read, centroid_blob.CentroidIndex) or same(read, plain)


def resealed(data: bytearray) -> bytes:
    """A shard blob with its header checksum and those of its sections put right after a change."""
    (sections,) = struct.unpack_from("<I", data, 48)
    sections = min(sections, MAX_SECTIONS, (len(data) - 128) // 48)
    for number in range(sections):
        entry = 128 + 48 * number
        offset, stored = struct.unpack_from("<QQ", data, entry + 8)
        if offset + stored <= len(data):
            struct.pack_into("<I", data, entry + 32, zlib.crc32(data[offset : offset + stored]))
    struct.pack_into("<I", data, 56, 0)
    struct.pack_into("<I", data, 56, zlib.crc32(data[: 128 + 48 * sections]))
    return bytes(data)


def test_an_optional_section_that_is_unknown_is_passed_over_and_checked() -> None:
    value = samples.shard_of_cells()
    data = shard_bytes(value)
    later = samples.with_section(samples.with_section(data, 32_768, b"of a later release"), 2**32 - 1, bytes(70))
    assert same(decoded(later, value), decoded(data, value))
    assert reader_of(later, value).read_cells() is not None
    reader_of(later, value).check()
    damaged = later.replace(b"later release", b"later_release")
    assert same(decoded(damaged, value), decoded(data, value))
    with pytest.raises(ChecksumError, match="section 32768 does not have its checksum"):
        reader_of(damaged, value).check()


@pytest.mark.parametrize(("m", "bits"), [(8, 0), (8, 5), (8, 16), (3, 8), (1, 4), (0xFFFFFFF8, 4)])
def test_codes_that_do_not_fill_bytes_are_refused(m: int, bits: int) -> None:
    changed = bytearray(shard_bytes(samples.shard(10, pq_bits=4)))
    struct.pack_into("<II", changed, 36, m, bits)
    with pytest.raises(BadBlobError, match=f"PQ {m} x {bits} bits of 8 dims"):
        shard_blob.decode(resealed(changed))


def test_a_hostile_shard_with_right_checksums_gives_typed_errors_and_sound_arrays() -> None:
    rng = random.Random(9)
    data = shard_bytes(samples.shard(40))
    for _ in range(4000):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            near_front = rng.random() < 0.6
            changed[rng.randrange(512 if near_front else len(data))] = rng.choice(
                (0, 1, 127, 128, 255, rng.randrange(256))
            )
        try:
            read = decoded(resealed(changed), samples.shard(40))
        except PuffinError:
            continue
        used = np.arange(read.neighbors.shape[1]) < read.degrees[:, None]
        assert ((read.neighbors >= 0) == used).all()
        assert (read.neighbors < read.count).all()
        assert read.medoid < max(read.count, 1)


def test_a_shard_cannot_declare_more_nodes_than_it_has_bytes_for() -> None:
    changed = bytearray(shard_bytes(samples.shard(10)))
    struct.pack_into("<I", changed, 12, 2**31 - 1)
    with pytest.raises(BadBlobError, match="hashes"):
        shard_blob.decode(resealed(changed))


@pytest.mark.parametrize(
    ("lists", "offsets"),
    [
        ([1, 3], [0, 2, 2, 2]),  # no node 3, and nodes without a degree
        ([1, 0, 0, 0], [0, 2, 3, 4]),  # its own neighbour
        ([2, 1, 0, 0, 0], [0, 3, 4, 5]),  # twice the same
        ([9, 0, 0], [0, 1, 2, 3]),  # more than the largest degree
        ([0, 0, 0], [0, 2, 1, 3]),  # offsets go back
        ([0, 0, 0, 0], [1, 2, 3, 4]),  # bytes before the first list
        ([0, 0, 0], [0, 1, 2, 9]),  # offsets leave the lists
        ([0, 0, 0x80], [0, 1, 2, 3]),  # a varint without end
        ([1, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0], [0, 7, 8, 9]),  # a varint too long
        ([0, 0, 0, 5], [0, 1, 2, 4]),  # a byte left over
    ],
)
def test_malformed_adjacency_is_refused(lists: list[int], offsets: list[int]) -> None:
    for read in (decode_adjacency, check_adjacency):
        with pytest.raises(BadBlobError, match="adjacency"):
            read(np.array(lists, np.uint8), np.array(offsets, np.uint64), 4)


@pytest.mark.parametrize("collecting", [True, False])
def test_the_garbage_collector_is_as_it_was_once_decoders_are_loaded(*, collecting: bool) -> None:
    (gc.enable if collecting else gc.disable)()
    load_decoders.cache_clear()
    try:
        load_decoders()
        assert gc.isenabled() == collecting
    finally:
        gc.enable()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=3),
)
def test_lists_are_checked_as_they_are_decoded(seed: int, changes: list[tuple[int, int]]) -> None:
    """What is accepted as it is, is what would be decoded; bytes that were changed are in one as in the other."""
    rng = np.random.default_rng(seed)
    nodes, longest = 301, 12
    degrees = rng.integers(0, longest + 1, nodes).astype(np.int32)
    neighbors = np.full((nodes, longest), -1, np.int32)
    for node, degree in enumerate(degrees.tolist()):
        others = rng.choice(nodes - 1, degree, replace=False)
        neighbors[node, :degree] = np.sort(others + (others >= node))
    data, offsets = encode_adjacency(neighbors, degrees)
    for place, byte in changes:
        data[place % len(data)] = byte
    try:
        _, decoded = decode_adjacency(data, offsets, longest)
    except BadBlobError:
        with pytest.raises(BadBlobError):
            check_adjacency(data, offsets, longest)
    else:
        assert check_adjacency(data, offsets, longest) == decoded.max()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_signed_varints_are_read_as_written(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert decode_signed(encode_signed(array), len(array), "x").tolist() == values


POSITIONS = st.one_of(st.integers(0, 200_000), st.integers(0, 2**40), st.integers(0, ((2**31 - 1) << 32) - 1))


@settings(max_examples=100, deadline=None)
@given(st.lists(POSITIONS, max_size=300), st.lists(st.tuples(POSITIONS, st.integers(1, 9000)), max_size=3))
def test_deletion_vectors_are_read_as_written(singles: list[int], runs: list[tuple[int, int]]) -> None:
    top = (2**31 - 1) << 32
    values = set(singles) | {v for start, length in runs for v in range(start, min(start + length, top))}
    encoded = deletion_vector_blob.encode(np.array(sorted(values), np.int64))
    assert deletion_vector_blob.decode(encoded).tolist() == sorted(values)


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.integers(0, 2**32 - 1), max_size=200), st.integers(0, 2**32 - 1), st.integers(0, 100_000), st.booleans()
)
def test_what_croaring_writes_is_read(values: set[int], start: int, length: int, with_runs: bool) -> None:
    bitmap = BitMap(values | set(range(start, min(start + length, 2**32), 1 + start % 3)))
    if with_runs:
        bitmap.run_optimize()
    framed = struct.pack("<QI", 1, 7) + bitmap.serialize()
    expected = np.array(bitmap.to_array(), np.uint64) | np.uint64(7 << 32)
    assert np.array_equal(deletion_vector_blob.decode_roaring64(framed), expected)


def test_a_roaring_container_that_lies_about_its_values_is_refused() -> None:
    lying = struct.pack("<QIIIHHI", 1, 0, 12346, 1, 0, 4096, 16) + b"\xff" * 8192
    with pytest.raises(BadBlobError, match="declares 4097 values and holds 65536"):
        deletion_vector_blob.decode_roaring64(lying)


def test_a_small_bitmap_that_expands_without_end_is_refused() -> None:
    count = 4096
    heads = b"".join(struct.pack("<HH", key, 0xFFFF) for key in range(count))
    bomb = struct.pack("<QII", 1, 0, 12347 | (count - 1) << 16) + b"\xff" * (count // 8) + heads + bytes(4 * count)
    bomb += struct.pack("<HHH", 1, 0, 0xFFFF) * count
    with pytest.raises(BadBlobError, match="over the limit"):
        deletion_vector_blob.decode_roaring64(bomb)


def test_a_wrong_checksum_is_an_error() -> None:
    for _, data, decode in ENCODED[1:]:
        changed = bytearray(data)
        changed[-6] ^= 1
        with pytest.raises(ChecksumError):
            decode(bytes(changed))


def test_a_shard_is_checked_without_decoding_it() -> None:
    value = samples.shard()
    data = shard_bytes(value)
    reader = reader_of(data, value)
    reader.check()
    for entry in reader.header.sections:
        changed = bytearray(data)
        changed[entry.offset + entry.stored_length // 2] ^= 1
        with pytest.raises(ChecksumError, match=Section(entry.kind).name):
            reader_of(bytes(changed), value).check()


@pytest.mark.parametrize("count", [0, 1, 50, 3000])
@pytest.mark.parametrize("vectors", [None, "f2"])
def test_a_shard_with_an_addresses_blob_is_the_shard_with_other_locations(count: int, vectors: str | None) -> None:
    value = samples.shard(count, vectors=vectors)
    slots, rows = moved(count)
    data = addresses_blob.encode(slots, rows)
    reader = reader_of(shard_bytes(value), value, read_addresses=lambda: data)
    assert same(reader.read(), replace(value, file_slots=slots, row_positions=rows))
    assert same(reader.read_locations(), (slots, rows))
    assert len(data) < 1100 + 9 * count, "graph, vectors and hashes are not in it"


def moved(count: int) -> tuple[Any, Any]:
    """(file slots, row positions) at random."""
    rng = np.random.default_rng(5)
    return rng.integers(0, 2**20, count).astype(np.uint32), rng.integers(0, 2**30, count)


def test_addresses_of_another_shard_are_refused() -> None:
    value = samples.shard(50)
    reader = reader_of(shard_bytes(value), value, read_addresses=lambda: addresses_blob.encode(*moved(49)))
    with pytest.raises(BadBlobError, match="49 nodes, its shard 50"):
        reader.read()


def test_addresses_of_a_later_release_are_reported_as_later() -> None:
    data = bytearray(addresses_blob.encode(*moved(3)))
    data[4] = 2
    with pytest.raises(LaterFormatError):
        addresses_blob.decode(bytes(data), 3)


def test_hostile_addresses_with_a_right_checksum_give_typed_errors_and_sound_arrays() -> None:
    rng = random.Random(4)
    data = addresses_blob.encode(*moved(40))
    for _ in range(4000):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        changed[12:16] = bytes(4)
        struct.pack_into("<I", changed, 12, zlib.crc32(changed))
        try:
            slots, rows = addresses_blob.decode(bytes(changed), 40)
        except PuffinError:
            continue
        assert len(slots) == len(rows) == 40
        assert rows.min() >= 0
