"""Blobs of which one number cannot be, and whose checksums are right: each is refused, and the message says why."""

import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from icepuffin.puffin import BytesSource, PuffinReader
from icepuffin.puffin import puffin_reader as readers
from icepuffin.puffin.blobs import (
    addresses_blob,
    attributes_blob,
    centroid_blob,
    deletion_vector_blob,
    included_columns_blob,
    routing_blob,
    shard_blob,
    sketch_directory_blob,
)
from icepuffin.puffin.blobs.cursor import Cursor
from icepuffin.puffin.blobs.deletion_vector_blob import decode_roaring64, encode_roaring64
from icepuffin.puffin.blobs.routing_blob import AddressesEntry
from icepuffin.puffin.blobs.shard_sections import FRAME_BYTES, compress_frames, decompress_frames
from icepuffin.puffin.blobs.sketch_directory_blob import DirectoryEntry, SketchDirectory
from icepuffin.puffin.codec import compress
from icepuffin.puffin.errors import (
    BadBlobError,
    BadCompressionError,
    BadFooterError,
    ChecksumError,
    LaterFormatError,
    PuffinError,
    TruncatedFileError,
)
from icepuffin.puffin.types import MAX_DIMS, MAX_METRIC
from icepuffin.puffin.varint import decode_signed, encode_signed
from tests.puffin import samples
from tests.puffin.test_ann_blobs import resealed, shard_bytes
from tests.puffin.test_files import blob_json, with_footer

Change = tuple[int, str, Any]
"""(bytes before a number, its format, its new value)"""
Case = tuple[Callable[[], object], str]
"""(what is refused, the reason in its message)"""


def changed(data: bytes, *changes: Change) -> bytearray:
    out = bytearray(data)
    for offset, layout, value in changes:
        struct.pack_into(layout, out, offset, value)
    return out


def sealed(data: bytearray, place: int, end: int | None = None) -> bytes:
    """With the CRC-32 of the first `end` bytes at `place`, counted as 0 itself."""
    struct.pack_into("<I", data, place, 0)
    struct.pack_into("<I", data, place, zlib.crc32(data[:end]))
    return bytes(data)


def decoding(decode: Callable[[bytes], object], data: bytes, reason: str) -> Case:
    return partial(decode, data), reason


def assert_refused(case: Case, error: type[PuffinError] = BadBlobError) -> None:
    with pytest.raises(error, match=re.escape(case[1])):
        case[0]()


CENTROID = centroid_blob.encode(samples.centroid())
WIDE = changed(CENTROID, (8, "<I", MAX_DIMS + 1), (12, "<I", 0), (24, "<I", 4 * MAX_DIMS + 12), (28, "<I", 32))
NAN = float("nan")


@pytest.mark.parametrize(
    "case",
    [
        decoding(centroid_blob.decode, data, reason)
        for data, reason in (
            (CENTROID[:31], "31 bytes has no header"),
            (b"X" + CENTROID[1:], "starts with b'XNNI' version 1"),
            (changed(CENTROID, (4, "<I", 0)), "starts with b'ANNI' version 0"),
            (changed(CENTROID, (8, "<I", 0)), "0 dims, entry size 28"),
            (changed(CENTROID, (8, "<I", 0), (24, "<I", 8), (28, "<I", 32 + 4 * 8)), "0 dims, entry size 8"),
            (WIDE, f"{MAX_DIMS + 1} dims, entry size {4 * MAX_DIMS + 12}"),
            (changed(CENTROID, (8, "<I", 6)), "6 dims, entry size 28, file table at 144 do not agree"),
            (changed(CENTROID, (28, "<I", 145)), "file table at 145 do not agree"),
            (changed(CENTROID, (20, "<I", MAX_METRIC + 1)), f"unknown metric {MAX_METRIC + 1}"),
            (changed(CENTROID, (12, "<I", 9), (28, "<I", 32 + 9 * 28)), "9 entries end at 284"),
            (changed(CENTROID, (32 + 20, "<I", 3)), "entry of file 3, there are 3"),
            (changed(CENTROID, (32, "<f", float("inf"))), "a centroid is not finite"),
            (changed(CENTROID, (32 + 24, "<f", -1e-30)), "a distance is negative"),
            (changed(CENTROID, (32 + 24, "<f", NAN)), "not a number"),
            (changed(CENTROID, (16, "<I", 4)), "path of file 3 needs 4 bytes at"),
            (changed(CENTROID, (16, "<I", 2)), "centroid blob: 24 bytes follow its end"),
            (changed(CENTROID, (144, "<I", 200)), "path of file 0 needs 200 bytes at 4"),
            (changed(CENTROID, (148, "B", 0xFF)), "path of file 0 is not UTF-8"),
        )
    ],
    ids=lambda case: case[1],
)
def test_centroids_that_cannot_be_are_refused(case: Case) -> None:
    assert_refused(case)


FIRST, SECOND = samples.routing().shards
PACKED, MOVED = samples.packed_routing().shards[1], samples.moved_routing().shards[1]
RUNS = samples.routing_of_runs().shards[1]
EMPTY_RUN = (RUNS.runs[0], replace(RUNS.runs[1], count=0, length=0), replace(RUNS.runs[2], count=6, length=120))
FILE = samples.routing().files[0]


def with_first(**change: Any) -> bytes:
    return routing_blob.encode(replace(samples.routing(), shards=(replace(FIRST, **change), SECOND)))


def with_second(entry: routing_blob.ShardEntry) -> bytes:
    return routing_blob.encode(replace(samples.routing(), shards=(FIRST, entry)))


def with_run(number: int, **change: Any) -> bytes:
    runs = [replace(run, **change) if place == number else run for place, run in enumerate(RUNS.runs)]
    return with_second(replace(RUNS, runs=tuple(runs)))


def routing_with(**change: Any) -> bytes:
    return routing_blob.encode(replace(samples.routing(), **change))


ROUTING = routing_blob.encode(samples.routing())


@pytest.mark.parametrize(
    "case",
    [
        decoding(routing_blob.decode, data, reason)
        for data, reason in (
            (ROUTING[:39], "39 bytes has no header"),
            (b"X" + ROUTING[1:], "starts with b'XNNR' version 6"),
            (changed(ROUTING, (4, "<I", 0)), "starts with b'ANNR' version 0"),
            (sealed(changed(ROUTING, (32, "<I", 0)), 36), "routing blob lacks feature bit 0"),
            (sealed(changed(ROUTING, (32, "<I", 2**31 + 3)), 36), "has feature bit 1, 31: a later release wrote it"),
            (sealed(changed(ROUTING, (44, "B", 0xFF)), 36), "build id is not UTF-8"),
            (sealed(changed(ROUTING, (40, "<I", 2**32 - 1)), 36), "build id needs 4294967295 bytes at 4"),
            (sealed(bytearray(ROUTING + b"\0"), 36), "1 bytes follow its end"),
            (sealed(bytearray(ROUTING[:-1]), 36), "file 1 needs 20 bytes"),
            (routing_with(partition_to_shard=np.array([0, 2, 0, 0], np.uint32)), "goes to shard 2, there are 2"),
            (routing_with(partition_to_shard=np.array([0, 9, 0, 0], np.uint32)), "goes to shard 9, there are 2"),
            (routing_with(codebook=np.full((4, 5), NAN, np.float32)), "the codebook is not finite"),
            (with_first(live_rows=96), "shard 0 has 100 nodes, 96 live and 3 tombstones"),
            (with_first(live_rows=98), "shard 0 has 100 nodes, 98 live and 3 tombstones"),
            (with_first(tombstones=np.array([1, 50, 100])), "shard 0 has 100 nodes, 97 live and 3 tombstones"),
            (with_second(routing_blob.ShardEntry(0, 0, 0, 1.0, 99, bytes(32), np.empty(0, np.int64))), ""),
            (with_first(medoid=100), "shard 0 has medoid 100 of 100 nodes"),
            (routing_with(shards=(replace(FIRST, offset=64), PACKED)), "shard 0 lies in no pack and has offset 64"),
            (with_second(replace(MOVED, addresses=AddressesEntry(0, bytes([1]) * 32))), "a sha256 of no addresses"),
            (with_run(2, count=3), "10 nodes, and 3 runs of 8 vectors, 0 without any"),
            (with_second(replace(RUNS, runs=EMPTY_RUN)), "10 nodes, and 3 runs of 10 vectors, 1 without any"),
            (with_run(2, length=99), "shard 1 has runs whose vectors are not equally long"),
            (with_run(2, offset=83), "shard 1 has runs that overlap"),
            (with_run(1, offset=184), ""),
            (with_run(1, pack=3), ""),
            (routing_with(files=(replace(FILE, live_rows=61),)), "file 0 has 61 live rows of 60"),
            (routing_with(files=(replace(FILE, present=2),)), "file 0 has 57 live rows of 60"),
        )
    ],
    ids=lambda case: case[1],
)
def test_routing_that_cannot_be_is_refused(case: Case) -> None:
    if case[1]:
        assert_refused(case)
    else:
        case[0]()  # a shard without nodes, runs that touch, or lie in several files


def test_tombstones_are_no_more_than_an_eighth_of_the_bytes_of_their_files() -> None:
    """Of all shards together."""
    both = replace(samples.routing(), shards=(FIRST, replace(SECOND, live_rows=8, tombstones=np.array([0, 9]))))
    data = routing_blob.encode(both)
    assert routing_blob.decode(data, file_size=40).shards[1].tombstones.tolist() == [0, 9]
    assert_refused((partial(routing_blob.decode, data, file_size=39), "2 values, over the limit of 1"))


DEAD = deletion_vector_blob.encode(np.array([7]))
LAST = (2**31 - 1) * 2**32 - 1


@pytest.mark.parametrize(
    "case",
    [
        decoding(deletion_vector_blob.decode, DEAD[:11], "at least 12 bytes, this one 11"),
        decoding(deletion_vector_blob.decode, bytes(changed(DEAD, (0, ">I", 5))), f"of {len(DEAD)} bytes declares 5"),
        decoding(
            deletion_vector_blob.decode, bytes(changed(DEAD, (4, "B", 0))), "starts with 00d33964, not with d1d33964"
        ),
        decoding(deletion_vector_blob.decode, deletion_vector_blob.encode(np.array([LAST + 1])), "over the largest"),
        (partial(deletion_vector_blob.encode, np.array([3, -1])), "position -1 is negative"),
    ],
    ids=lambda case: case[1],
)
def test_deletion_vectors_that_cannot_be_are_refused(case: Case) -> None:
    assert_refused(case)


def test_a_deletion_vector_takes_the_largest_position_and_as_many_as_are_allowed() -> None:
    assert deletion_vector_blob.decode(deletion_vector_blob.encode(np.array([0, LAST]))).tolist() == [0, LAST]
    every = np.arange(65_536) << 16  # one value in each container of a bitmap
    assert np.array_equal(deletion_vector_blob.decode(deletion_vector_blob.encode(every)), every)
    two = deletion_vector_blob.encode(np.array([1, 2, 3, 2**32, 2**32 + 1]))
    assert len(deletion_vector_blob.decode(two, max_positions=5)) == 5
    assert_refused((partial(deletion_vector_blob.decode, two, max_positions=4), "2 values, over the limit of 1"))


def roaring(containers: bytes, key: int = 0) -> bytes:
    return struct.pack("<QI", 1, key) + containers


def plain(*containers: tuple[int, list[int]]) -> bytes:
    """(key, values) of arrays, as they are."""
    heads = b"".join(struct.pack("<HH", key, len(values) - 1) for key, values in containers)
    bodies = b"".join(struct.pack(f"<{len(values)}H", *values) for _, values in containers)
    return roaring(struct.pack("<II", 12346, len(containers)) + heads + bytes(4 * len(containers)) + bodies)


def of_runs(card: int, *runs: tuple[int, int]) -> bytes:
    """One container of (start, length) with `card` values."""
    pairs = b"".join(struct.pack("<HH", start, length - 1) for start, length in runs)
    return roaring(struct.pack("<IBHHH", 12347, 1, 0, card - 1, len(runs)) + pairs)


TWO_KEYS = encode_roaring64(np.array([5, 2**32 + 5], np.uint64))


def test_roaring_bitmaps_of_arrays_and_runs_are_read() -> None:
    assert decode_roaring64(plain((0, [1, 2]), (2, [0]))).tolist() == [1, 2, 2 << 16]
    assert decode_roaring64(of_runs(5, (0, 2), (2, 2), (65_535, 1))).tolist() == [0, 1, 2, 3, 65_535]
    for containers in (3, 4, 5):  # from four on, offsets come before containers of runs, too
        values = (np.arange(containers)[:, None] * 2**16 + np.arange(100)).astype(np.uint64).ravel()
        assert decode_roaring64(encode_roaring64(values)).tolist() == values.tolist()


@pytest.mark.parametrize(
    "case",
    [
        decoding(decode_roaring64, data, reason)
        for data, reason in (
            (bytes(changed(TWO_KEYS, (8, "<I", 1))), "Roaring bitmap 1: key 1 after 1"),
            (bytes(changed(TWO_KEYS, (8, "<I", 2))), "Roaring bitmap 1: key 1 after 2"),
            (TWO_KEYS + b"\0", "Roaring bitmaps: 1 bytes follow its end"),
            (TWO_KEYS[:-1], f"values needs 2 bytes at {len(TWO_KEYS) - 2}, the blob has {len(TWO_KEYS) - 1}"),
            (roaring(struct.pack("<I", 12345)), "cookie 0x3039 is unknown"),
            (roaring(struct.pack("<II", 12346, 65_537)), "65537 containers, there are at most 65536"),
            (plain((1, [0]), (1, [1])), "container keys do not ascend"),
            (plain((0, [2, 2])), "array values do not ascend"),
            (of_runs(4, (0, 2), (1, 2)), "runs overlap"),
            (of_runs(3, (65_534, 3)), "leave their container"),
            (of_runs(3, (0, 2)), "container 0 declares 3 values and holds 2"),
        )
    ],
    ids=lambda case: case[1],
)
def test_roaring_bitmaps_that_cannot_be_are_refused(case: Case) -> None:
    assert_refused(case)


def located(slots: list[int], rows: list[int]) -> bytes:
    return addresses_blob.encode(np.array(slots, np.int64), np.array(rows, np.int64))


ADDRESSES = located([1, 2, 3], [4, 5, 6])


@pytest.mark.parametrize(
    "case",
    [
        decoding(partial(addresses_blob.decode, count=3), data, reason)
        for data, reason in (
            (ADDRESSES[:23], "23 bytes has no header"),
            (b"X" + ADDRESSES[1:], "starts with b'XNNL' version 1"),
            (changed(ADDRESSES, (4, "<I", 0)), "starts with b'ANNL' version 0"),
            (sealed(changed(ADDRESSES, (16, "<Q", 8 + 15 * 3 + 1)), 12), "declares 54 bytes for 3 nodes"),
            (located([0, 2**32, 1], [0, 0, 0]), "a file slot or a row position is out of range"),
            (located([0, -1, 1], [0, 0, 0]), "a file slot or a row position is out of range"),
            (located([0, 0, 0], [0, 0, -1]), "a file slot or a row position is out of range"),
            (located([1, 2], [4, 5]), "2 nodes, its shard 3"),
        )
    ],
    ids=lambda case: case[1],
)
def test_addresses_that_cannot_be_are_refused(case: Case) -> None:
    assert_refused(case)


def test_the_largest_slot_and_position_are_read_and_a_map_that_is_cut_off_is_refused() -> None:
    slots, rows = addresses_blob.decode(located([2**32 - 1, 0], [2**63 - 1, 0]), 2)
    assert (slots.tolist(), rows.tolist()) == ([2**32 - 1, 0], [2**63 - 1, 0])
    raw = addresses_blob.encode_locations(np.array([1], np.uint32), np.array([2]))
    for wrong in (raw[:7], np.concatenate([np.array([3, 0, 0, 0, 0, 0, 0, 0], np.uint8), raw[8:]])):
        assert_refused((partial(addresses_blob.decode_locations, wrong, 1), "the location map is cut off"))


ATTRIBUTES = attributes_blob.encode(samples.attributes())
TEXTS, _, NUMBERS = samples.attributes().entries


def attributes_with(*entries: attributes_blob.AttributeEntry) -> bytes:
    return attributes_blob.encode(attributes_blob.AttributeBlob(5, entries))


@pytest.mark.parametrize(
    "case",
    [
        decoding(attributes_blob.decode, ATTRIBUTES[:23], "23 bytes has no header"),
        decoding(attributes_blob.decode, b"X" + ATTRIBUTES[1:], "starts with b'XNNA' version 1"),
        decoding(attributes_blob.decode, bytes(changed(ATTRIBUTES, (4, "<I", 0))), "starts with b'ANNA' version 0"),
        decoding(attributes_blob.decode, ATTRIBUTES + b"\0", "1 bytes follow its end"),
        decoding(attributes_blob.decode, attributes_with(TEXTS, replace(NUMBERS, packed=2)), "entry 1 is not possible"),
        decoding(attributes_blob.decode, attributes_with(TEXTS, replace(NUMBERS, slot=0)), "entry 1 is not possible"),
        decoding(attributes_blob.decode, attributes_with(replace(TEXTS, left_out="so")), "entry 0 is not possible"),
        decoding(attributes_blob.decode, attributes_with(replace(TEXTS, stored=b"")), "entry 0 is not possible"),
        *(
            decoding(
                attributes_blob.decode,
                attributes_with(replace(TEXTS, raw_length=length, packed=False)),
                "entry 0 is not",
            )
            for length in (len(TEXTS.stored) - 1, len(TEXTS.stored) + 1)
        ),
    ],
    ids=lambda case: case[1],
)
def test_attributes_that_cannot_be_are_refused(case: Case) -> None:
    assert_refused(case)


def body(
    *head: int, offsets: tuple[int, ...] = (), after: bytes = b"", rows: int = 2
) -> attributes_blob.AttributeEntry:
    """An entry with this body as it is. The head: values, bytes of each, bytes of a code or pairs, 0."""
    stored = struct.pack(f"<{4 + len(offsets)}I", *head, *offsets) + after
    return attributes_blob.AttributeEntry(0, rows, "", "", "", stored, len(stored))


@pytest.mark.parametrize(
    "case",
    [
        decoding(attributes_blob.values_of, body(1, 1, 1, 1, after=bytes(3)), "1 values with codes of 1 bytes"),
        decoding(attributes_blob.values_of, body(1, 1, 3, 0, after=bytes(7)), "1 values with codes of 3 bytes"),
        decoding(attributes_blob.values_of, body(256, 1, 1, 0, after=bytes(258)), "256 values with codes of 1 bytes"),
        decoding(attributes_blob.values_of, body(1, 0, 1, 0, offsets=(1, 1), after=bytes(3)), "offsets of its values"),
        decoding(
            attributes_blob.values_of, body(2, 0, 1, 0, offsets=(0, 2, 1), after=bytes(3)), "offsets of its values"
        ),
        decoding(attributes_blob.values_of, replace(TEXTS, raw_length=TEXTS.raw_length + 1), "were declared"),
        decoding(attributes_blob.lists_of, body(0, 1, 0, 1, after=bytes(2 + 4)), "the rows of its elements"),
    ],
    ids=lambda case: case[1],
)
def test_values_of_attributes_that_cannot_be_are_refused(case: Case) -> None:
    assert_refused(case)


def test_as_many_values_as_codes_can_tell_apart_and_files_without_rows_are_read() -> None:
    assert attributes_blob.values_of(body(255, 1, 1, 0, after=bytes(257))).count == 255
    assert not len(attributes_blob.values_of(body(1, 1, 1, 0, after=bytes(1), rows=0)).codes)
    assert not len(attributes_blob.lists_of(body(0, 1, 0, 0, after=bytes(2 + 4))).rows)


SAMPLE = samples.shard(pq_bits=0)
SHARD = shard_bytes(SAMPLE)
CODED_SAMPLE = samples.coded_shard(5)
CODED = shard_bytes(CODED_SAMPLE)
INFINITE, NO_CODEBOOK = samples.shard(1_100, vectors="f2", pq_bits=0), samples.shard()
INFINITE.vectors[-1, 2] = np.inf
NO_CODEBOOK.pq_codebook[1, 2, 0] = np.nan
OFFSETS, LISTS, LOCATIONS, HASHES = (128 + 48 * number for number in range(4))
"""Bytes before the entry of each section"""


def number_of(place: int, layout: str = "<Q") -> int:
    return int(struct.unpack_from(layout, SHARD, place)[0])


@pytest.mark.parametrize(
    "case",
    [
        decoding(
            partial(shard_blob.decode, vectors=samples.ApartVectors(value)),
            data if isinstance(data, bytes) else resealed(changed(SHARD, *data)),
            reason,
        )
        for value, data, reason in (
            (SAMPLE, SHARD[:127], "127 bytes has no header"),
            (SAMPLE, SHARD[: 128 + 100], "the section table is cut off"),
            (SAMPLE, b"X" + SHARD[1:], "starts with b'XANN' version 5"),
            (SAMPLE, [(4, "<I", 0)], "starts with b'DANN' version 0"),
            (SAMPLE, [(48, "<I", 33)], "declares 33 sections, 32 are the most"),
            (SAMPLE, [(8, "<I", 0)], "dims 0, degree 6"),
            (SAMPLE, [(8, "<I", MAX_DIMS + 1)], f"dims {MAX_DIMS + 1}, degree 6"),
            (SAMPLE, [(16, "<I", 0)], "degree 0, count 50"),
            (SAMPLE, [(16, "<I", 4_097)], "degree 4097, count 50"),
            (SAMPLE, [(12, "<I", 2**31)], "count 2147483648"),
            (SAMPLE, [(44, "<I", 3)], "vector format 3 is out of range"),
            (SAMPLE, [(52, "<I", 0)], "shard blob lacks feature bit 0"),
            (SAMPLE, [(52, "<I", 3)], "feature bits 0b11, its sections are those of 0b1"),
            (SAMPLE, [(52, "<I", 5)], "shard blob has feature bit 2: a later release wrote it"),
            (SAMPLE, [(24, "<I", MAX_METRIC + 1)], f"unknown metric {MAX_METRIC + 1}"),
            (SAMPLE, [(28, "<I", 50)], "medoid 50 of 50 nodes"),
            (SAMPLE, [(36, "<I", 3), (40, "<I", 8)], "PQ 3 x 8 bits of 8 dims"),
            (SAMPLE, [(LISTS, "<I", 3)], "section kind 3 after 3"),
            (SAMPLE, [(HASHES, "<I", 14)], "section kind 14 after 6"),
            (SAMPLE, samples.with_section(SHARD, 32_767, b"later"), "section kind 32767 after 7"),
            (SAMPLE, samples.with_section(SHARD, 32_768, b"later", framed=True), "section 32768 is framed"),
            (SAMPLE, [(HASHES, "<I", 8)], "no content hashes, or not of 50 nodes"),
            (SAMPLE, [(12, "<I", 49)], "no content hashes, or not of 49 nodes"),
            (SAMPLE, [(LISTS + 8, "<Q", number_of(LISTS + 8) - 64)], "is misplaced"),
            (SAMPLE, [(LISTS + 8, "<Q", number_of(LISTS + 8) + 1)], "is misplaced"),
            (SAMPLE, [(HASHES + 16, "<Q", 8 * 50 + 64), (HASHES + 24, "<Q", 8 * 50 + 64)], "is misplaced"),
            (SAMPLE, resealed(bytearray(SHARD + bytes(64))), "64 bytes follow the last section"),
            (SAMPLE, [(HASHES + 4, "<I", 2)], "section 7 has unknown codec 2"),
            (SAMPLE, [(HASHES + 24, "<Q", 8)], "section 7 is stored raw in 400 bytes but declares 8"),
            (SAMPLE, [(LOCATIONS, "<I", 5)], "section kind 5 after 4"),
            (SAMPLE, [(HASHES + 4, "<I", 1)], "section 7 is framed, it must be stored as it is"),
            (CODED_SAMPLE, resealed(changed(CODED, (36, "<I", 4), (40, "<I", 8))), "do not fit vector format"),
            (INFINITE, shard_bytes(INFINITE), "an f16 vector is not finite"),
            (NO_CODEBOOK, shard_bytes(NO_CODEBOOK), "the PQ codebook is not finite"),
        )
    ],
    ids=lambda case: case[1],
)
def test_shards_that_cannot_be_are_refused(case: Case) -> None:
    assert_refused(case)


@pytest.mark.parametrize(
    ("part", "place", "value"),
    [("center", 1, np.inf), ("terms", (2, 1), np.nan), ("terms", (2, 0), -1.0), ("terms", (2, 3), -1.0)],
)
def test_rotated_codes_of_numbers_that_cannot_be_are_refused(part: str, place: Any, value: float) -> None:
    sample = samples.coded_shard(5)
    getattr(sample.codes, part)[place] = value
    assert_refused((partial(shard_blob.decode, shard_bytes(sample)), "rotated codes are not finite, or negative"))


INCLUDED = included_columns_blob.encode(samples.included())
DIRECTORY = sketch_directory_blob.encode(
    SketchDirectory(
        ((1, "long"), (3, "string")),
        (DirectoryEntry("a.parquet", "", 0, 9, 12, sketch_directory_blob.layout_of([(0, 8), (1, 4)])),),
    )
)


@pytest.mark.parametrize(
    "case",
    [
        decoding(sketch_directory_blob.decode, data, reason)
        for data, reason in (
            (DIRECTORY[:19], "the header needs 20 bytes"),
            (changed(DIRECTORY, (20, "<I", 2)), "does not have its checksum"),
            (sealed(changed(DIRECTORY, (12, "<I", 2)), 16), "a path needs"),
            (sealed(changed(DIRECTORY, (12, "<I", 2**31)), 16), "would take too much memory"),
            (sealed(changed(DIRECTORY, (len(DIRECTORY) - 8, "<I", 2)), 16), "has other columns, or images of another"),
            (sealed(changed(DIRECTORY, (len(DIRECTORY) - 4, "<I", 5)), 16), "has other columns, or images of another"),
            (sealed(bytearray(DIRECTORY + b"x"), 16), "1 bytes follow its end"),
        )
    ],
    ids=lambda case: case[1],
)
def test_directories_of_sketches_that_cannot_be_are_refused(case: Case) -> None:
    assert_refused(case)


READERS = {
    "addresses": (partial(addresses_blob.decode, count=3), ADDRESSES),
    "attributes": (attributes_blob.decode, ATTRIBUTES),
    "centroid": (centroid_blob.decode, CENTROID),
    "included": (included_columns_blob.decode, INCLUDED),
    "routing": (routing_blob.decode, ROUTING),
    "shard": (shard_blob.decode, SHARD),
    "sketch directory": (sketch_directory_blob.decode, DIRECTORY),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_blob_of_a_later_version_is_that_and_bytes_of_another_kind_are_none(kind: str) -> None:
    decode, data = READERS[kind]
    with pytest.raises(LaterFormatError, match="version 99: a later release wrote it"):
        decode(changed(data, (4, "<I", 99)))
    for wrong, reason in ((b"X" + data[1:], ""), (changed(data, (0, "B", 0x58), (4, "<I", 99)), "99")):
        with pytest.raises(BadBlobError, match=f"starts with b'X[A-Z]+' version {reason}") as error:
            decode(wrong)
        assert error.type is BadBlobError
    with pytest.raises(BadBlobError, match=re.escape(f"starts with {data[:4]!r} version 0")):
        decode(changed(data, (4, "<I", 0)))


def test_a_shard_without_a_section_says_which() -> None:
    reader = shard_blob.ShardReader(BytesSource(SHARD), vectors=samples.ApartVectors(SAMPLE))
    assert_refused((partial(reader.read_section, shard_blob.Section.CELLS), "shard blob has no section CELLS"))


class CutSource(BytesSource):
    """Gives nothing of the last ten bytes that it has."""

    def read_range(self, offset: int, length: int) -> bytes:
        return super().read_range(offset, min(length, max(0, self.size() - 10 - offset)))


def test_a_shard_whose_bytes_end_too_soon_is_refused() -> None:
    with pytest.raises(BadBlobError, match=f"section CONTENT_HASHES is cut off at {len(SHARD) - 10}"):
        shard_blob.ShardReader(CutSource(SHARD), vectors=samples.ApartVectors(SAMPLE)).check()


def test_the_bytes_of_a_shards_head_that_nothing_uses_are_zero() -> None:
    with pytest.raises(ChecksumError, match="header and section table"):
        shard_blob.decode(bytes(changed(SHARD, (127, "B", 1))))


FRAMES = compress_frames(np.arange(200, dtype=np.uint8))


@pytest.mark.parametrize(
    ("stored", "length", "reason"),
    [
        (FRAMES[:7], 200, "7 bytes hold no frame table"),
        (FRAMES, FRAME_BYTES + 1, f"1 frames of {FRAME_BYTES} bytes do not make {FRAME_BYTES + 1}"),
        (FRAMES, 0, f"1 frames of {FRAME_BYTES} bytes do not make 0"),
        (changed(FRAMES, (4, "<I", 0)), 200, "1 frames of 0 bytes"),
        (FRAMES[:11], 200, f"1 frames of {FRAME_BYTES} bytes do not make 200"),
        (FRAMES + b"\0", 200, f"frames end at {len(FRAMES)} of {len(FRAMES) + 1} bytes"),
        (FRAMES, 201, "frame 0 holds 200 bytes, not 201"),
    ],
)
def test_frames_that_cannot_be_are_refused(stored: bytes, length: int, reason: str) -> None:
    assert decompress_frames(FRAMES, 200, "it").tolist() == list(range(200))
    assert_refused((partial(decompress_frames, bytes(stored), length, "it"), f"it: {reason}"))


def test_a_frame_of_more_than_its_part_is_refused_before_it_is_expanded() -> None:
    with pytest.raises(BadCompressionError, match="it, frame 0: declares 200 bytes, over the limit of 199"):
        decompress_frames(FRAMES, 199, "it")


def test_varints_fill_their_bytes() -> None:
    data = encode_signed(np.array([1, 300, -5]))
    assert decode_signed(data, 3, "it").tolist() == [1, 300, -5]
    for count, length, reason in ((6, 5, "5 bytes cannot be 6"), (0, 5, "5 bytes cannot be 0"), (3, 4, "it: ")):
        assert_refused((partial(decode_signed, data[:length], count, "it"), reason))
    assert_refused((partial(decode_signed, np.append(data, np.uint8(0)), 3, "it"), "3 varints end at byte 5 of 6"))


def test_a_cursor_reads_to_the_end_and_no_farther() -> None:
    cursor = Cursor(b"\1\2\3\4", "it")
    assert bytes(cursor.take(4, "all")) == b"\1\2\3\4"
    cursor.finish()
    assert_refused((partial(cursor.take, 1, "more"), "it: more needs 1 bytes at 4, the blob has 4"))
    assert_refused((partial(cursor.take, -1, "less"), "it: less needs -1 bytes at 4"))


class ShortSource(BytesSource):
    """Gives a byte less than is requested, of all but the tail."""

    def read_range(self, offset: int, length: int) -> bytes:
        return super().read_range(offset, length)[: length - (offset == 4)]


def test_a_source_that_gives_less_than_it_has_is_refused() -> None:
    body = b"PFA1" + bytes(2 * readers.TAIL_READ)
    reader = PuffinReader(ShortSource(with_footer(blob_json(), body=body)))
    with pytest.raises(TruncatedFileError, match="10 bytes were expected at 4, the source gave 9"):
        reader.read_blob(reader.footer.blobs[0])


def test_a_footer_is_read_up_to_its_limit_plain_and_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = blob_json()
    files = with_footer(payload), with_footer(compress(payload + b" " * 500, "lz4"), flags=1)
    for file, size, error in ((files[0], len(payload), BadFooterError), (files[1], len(payload) + 500, PuffinError)):
        monkeypatch.setattr(readers, "MAX_FOOTER", size)
        assert len(PuffinReader(BytesSource(file)).footer.blobs) == 1
        monkeypatch.setattr(readers, "MAX_FOOTER", size - 1)
        with pytest.raises(error, match=f"over the limit of {size - 1}"):
            assert PuffinReader(BytesSource(file)).footer
