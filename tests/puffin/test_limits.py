"""What footers, compressed frames and parts of blobs may hold: one byte less is read, one more is refused."""

import contextlib
import json
from dataclasses import replace
from typing import Any

import lz4.frame
import numpy as np
import pytest
import zstandard

from icepuffin.puffin import BytesSource
from icepuffin.puffin import codec as codecs
from icepuffin.puffin import footer as footers
from icepuffin.puffin.blobs import centroid_blob, shard_blob, shard_header
from icepuffin.puffin.blobs.attributes_blob import AttributeEntry, FileValues, entry_of, values_of
from icepuffin.puffin.blobs.shard_blob import ShardReader
from icepuffin.puffin.blobs.shard_header import Section, read_header
from icepuffin.puffin.codec import compress, decompress, encode, most_expanded
from icepuffin.puffin.errors import (
    BadBlobError,
    BadBlobLocationError,
    BadCompressionError,
    BadFooterError,
    BlobTooLargeError,
)
from icepuffin.puffin.footer import BlobMetadata, Footer, decode_footer, encode_footer
from icepuffin.puffin.varint import decode_adjacency, encode_adjacency, padded_width
from tests.puffin import samples
from tests.puffin.test_ann_blobs import shard_bytes

MIB = 1 << 20


def footer_of(*changes: dict[str, Any]) -> bytes:
    blob = {"type": "x", "fields": [1], "snapshot-id": 1, "sequence-number": 1, "offset": 4, "length": 10}
    return json.dumps({"blobs": [blob | change for change in changes]}).encode()


@pytest.mark.parametrize(
    ("key", "least", "most"),
    [("fields", -(2**31), 2**31 - 1), ("snapshot-id", -(2**63), 2**63 - 1), ("sequence-number", -(2**63), 2**63 - 1)],
)
def test_an_integer_of_a_footer_has_the_width_of_its_type(key: str, least: int, most: int) -> None:
    def decoded(value: int) -> BlobMetadata:
        return decode_footer(footer_of({key: [value] if key == "fields" else value}), blob_area_end=14).blobs[0]

    for value in (least, most):
        blob = decoded(value)
        assert {"fields": blob.fields[0], "snapshot-id": blob.snapshot_id, "sequence-number": blob.sequence_number}[
            key
        ] == value
    for value in (least - 1, most + 1):
        with pytest.raises(BadFooterError, match=f"blob 0: '{key}'"):
            decoded(value)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([{}], ""),
        ([{"offset": 3}], "blob 0 .x.: bytes 3 to 13 are not between 4 and the footer at 14"),
        ([{"length": 11}], "bytes 4 to 15 are not between"),
        ([{"offset": 14, "length": 0}], ""),
        ([{"offset": 15, "length": 0}], "bytes 15 to 15 are not between"),
        ([{"length": 6}, {"offset": 10, "length": 4}], ""),
        ([{"offset": 10, "length": 4}, {"length": 6}], ""),
        ([{"offset": 9, "length": 5}, {"length": 6}], "blob 0 at 9 overlaps blob 1, which ends at 10"),
        ([{"length": 6}, {"offset": 7, "length": 0}, {"offset": 9, "length": 1}], "blob 2 at 9 overlaps blob 0"),
        ([{"length": 6}, {"offset": 7, "length": 0}], ""),
        ([{"length": 1}, {"length": 1}], "blob 1 at 4 overlaps blob 0"),
    ],
)
def test_blobs_lie_side_by_side_between_the_magic_and_the_footer(changes: list[dict[str, Any]], error: str) -> None:
    payload = footer_of(*changes)
    if error:
        with pytest.raises(BadBlobLocationError, match=error):
            decode_footer(payload, blob_area_end=14)
    else:
        assert len(decode_footer(payload, blob_area_end=14).blobs) == len(changes)


@pytest.mark.parametrize(
    ("text", "width", "widest"),
    [("b", 1, 1), ("\u00e9", 1, 1), ("\u0100", 2, 2), ("\U0001f600", 4, 4), ("\\u0100", 1, 4)],
)
def test_the_values_of_a_footer_take_as_much_memory_as_its_length_allows(
    monkeypatch: pytest.MonkeyPatch, text: str, width: int, widest: int
) -> None:
    """2 objects, 1 list, 5 texts, 3 commas; an object and a comma that stand in a text count as well."""
    payload = f'{{"a":["{text}{{",{{}}],"d":",","blobs":1}}'.encode()
    size = 3 * 240 + 96 + 5 * 60 + 4 * 44 + widest * len(payload)
    monkeypatch.setattr(footers, "_ALWAYS_ALLOWED", 1000)
    least = -(-(size - 1000 + (1 + width) * len(payload)) // 8)
    with pytest.raises(BadFooterError, match="not an object with a list of blobs"):
        decode_footer(payload, blob_area_end=4, stored=least)
    room = 1000 + 8 * (least - 1) - (1 + width) * len(payload)
    with pytest.raises(BadFooterError, match=f"take about {size:,} in memory, over {room:,}"):
        decode_footer(payload, blob_area_end=4, stored=least - 1)


def test_forty_mebibytes_of_values_are_allowed_to_any_footer() -> None:
    assert footers._ALWAYS_ALLOWED == 40 * MIB
    assert decode_footer(b'{"blobs":[],"x":[' + b"0," * 800_000 + b"0]}", blob_area_end=4, stored=0).blobs == ()
    with pytest.raises(BadFooterError, match="in memory"):
        decode_footer(b'{"blobs":[],"x":[' + b"0," * 900_000 + b"0]}", blob_area_end=4, stored=0)


def test_slots_without_a_file_count_for_nothing_among_the_paths_of_balls(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a compaction of 600,000 files there are as many, and a few files behind them."""
    monkeypatch.setattr(centroid_blob, "_ALWAYS_ALLOWED", 0)

    def read(paths: tuple[str, ...]) -> tuple[str, ...]:
        nothing = np.empty((0, 1), np.float32)
        index = centroid_blob.CentroidIndex(0, 1, nothing, np.empty(0, np.uint32), np.empty(0, np.float32), paths)
        return centroid_blob.decode(centroid_blob.encode(index)).files

    path = "data/0a1b2c3d.parquet"
    assert read(("",) * 1_000 + (path,)) == ("",) * 1_000 + (path,)
    assert read((path,) * 1_000) == (path,) * 1_000
    with pytest.raises(BadBlobError, match="1,000 files in 5,032 bytes"):
        read(("a",) * 1_000)


def test_equal_footers_are_equal_to_the_byte_and_say_no_more_than_they_must() -> None:
    plain = BlobMetadata("x", (2, 1), 5, 6, 4, 10)
    full = BlobMetadata("y", (), -1, 0, 14, 0, "zstd", {"b": "\u00e9", "a": "1"})
    assert encode_footer(Footer((plain, full), {"z": "1", "c": "2"})).decode() == (
        '{"blobs":[{"type":"x","fields":[2,1],"snapshot-id":5,"sequence-number":6,"offset":4,"length":10},'
        '{"type":"y","fields":[],"snapshot-id":-1,"sequence-number":0,"offset":14,"length":0,'
        '"compression-codec":"zstd","properties":{"a":"1","b":"\u00e9"}}],"properties":{"c":"2","z":"1"}}'
    )
    assert encode_footer(Footer(())) == b'{"blobs":[]}'
    assert Footer((plain, full)).of_type("y") == (full,)
    kinds = footer_of({"type": "kind 1", "length": 0}, {"type": "kind 2", "length": 0})
    assert [blob.type for blob in decode_footer(kinds, blob_area_end=14).of_type("kind 2")] == ["kind 2"]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_frame_holds_as_much_as_the_caller_allows_and_no_byte_more(codec: str) -> None:
    frame = compress(b"abc" * 100, codec)
    assert decompress(frame, codec, where="w", max_bytes=300) == b"abc" * 100
    with pytest.raises(BadCompressionError, match="w: declares 300 bytes, over the limit of 299"):
        decompress(frame, codec, where="w", max_bytes=299)
    assert decompress(compress(b"", codec), codec, where="w", max_bytes=0) == b""


def test_data_that_a_reader_would_refuse_are_not_compressed() -> None:
    assert most_expanded(0) == 8 * MIB
    assert most_expanded(1000) == 8 * MIB + 8000
    for codec in ("lz4", "zstd"):
        compressed, stored_as = encode(bytes(8 * MIB), codec)
        assert stored_as == codec
        assert decompress(compressed, codec, where="w") == bytes(8 * MIB)
        large = bytes(most_expanded(100_000))
        assert encode(large, codec) == (large, None)
        with pytest.raises(BadCompressionError, match="over the limit of"):
            decompress(compress(large, codec), codec, where="w")
    assert encode(b"abc", None) == (b"abc", None)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_data_are_compressed_as_long_as_a_reader_expands_them(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    compressed = compress(bytes(1000), codec)
    monkeypatch.setattr(codecs, "_ALWAYS_EXPANDED", 1000 - 8 * len(compressed))
    assert encode(bytes(1000), codec) == (compressed, codec)
    assert decompress(compressed, codec, where="w") == bytes(1000)
    monkeypatch.setattr(codecs, "_ALWAYS_EXPANDED", 999 - 8 * len(compressed))
    assert encode(bytes(1000), codec) == (bytes(1000), None)


def test_an_empty_lz4_frame_that_declares_its_size_is_read() -> None:
    """23 bytes, as others write it; lz4.frame leaves the size of nothing out. One byte is the header's checksum."""
    head, tail = bytes.fromhex("04224d18 6c40 0000000000000000"), bytes.fromhex("00000000 055dcc02")
    frames = [head + bytes([checksum]) + tail for checksum in range(256)]
    contents = []
    for frame in frames:
        with contextlib.suppress(BadCompressionError):
            contents.append(decompress(frame, "lz4", where="w"))
    assert contents == [b""]


def test_a_blob_is_no_larger_than_an_array_of_java() -> None:
    assert codecs.DEFAULT_MAX_BYTES == 2**31 - 1


def test_frames_have_a_checksum_of_what_they_hold() -> None:
    """Blobs have none of their own: a frame of one block that was changed would expand to other bytes."""
    data = bytes(range(256)) * 8
    assert lz4.frame.get_frame_info(compress(data, "lz4"))["content_checksum"]
    assert zstandard.get_frame_parameters(compress(data, "zstd")).has_checksum


@pytest.mark.parametrize(("codec", "ratio"), [("lz4", 255), ("zstd", 32_768)])
def test_a_frame_declares_at_most_what_its_bytes_can_hold(codec: str, ratio: int) -> None:
    assert codecs._MAX_RATIO[codec] == ratio
    codecs._check_declared(10 * ratio, 10 * ratio, 10 * ratio, "w")
    with pytest.raises(BadCompressionError, match=f"declares {10 * ratio + 1:,} bytes, but can hold {10 * ratio:,}"):
        codecs._check_declared(10 * ratio + 1, 10 * ratio, 10 * ratio + 1, "w")


@pytest.mark.parametrize("declared", [2, 4])
def test_content_of_another_length_than_a_frame_declares_is_refused(declared: int) -> None:
    with pytest.raises(BadCompressionError, match=f"w: decompressed to 3 bytes, {declared} were declared"):
        codecs._checked(b"abc", declared, "w")


def test_values_of_a_row_take_64_kib_beside_a_share_of_their_stored_bytes() -> None:
    def entry(width: int) -> AttributeEntry:
        return entry_of(0, 1, "string", "", FileValues(1, width, bytes(width), None, np.zeros(1, np.uint8)))

    most = (64 << 10) + 128 - 1 + 8 * len(entry(66_000).stored)
    assert values_of(entry(most)).width == most
    with pytest.raises(BadCompressionError, match="over the limit of"):
        values_of(entry(most + 1))


class RecordedSource(BytesSource):
    """Bytes in memory, with the lengths that were read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.lengths: list[int] = []

    def read_range(self, offset: int, length: int) -> bytes:
        self.lengths.append(length)
        return super().read_range(offset, length)


def test_a_shard_is_checked_in_parts_of_8_mib() -> None:
    source = RecordedSource(shard_bytes(samples.coded_shard(8, 300, dims=1 << 16)))
    ShardReader(source).check()
    assert max(source.lengths) == 8 * MIB


def test_vectors_make_room_for_the_lists_of_their_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the blob does: seven bytes each for lists, offsets, degrees and locations in memory."""
    sample = samples.shard(50, dims=96, pq_bits=0)
    data, vectors = b"".join(shard_blob.encode(sample)), samples.ApartVectors(sample)
    lists, _ = encode_adjacency(sample.neighbors, sample.degrees)
    needed = sample.count * (4 * padded_width(sample.degrees, sample.max_degree) + 24) + len(lists)
    room = needed - 7 * (len(data) + vectors.nbytes)
    monkeypatch.setattr(shard_header, "_ALWAYS_ALLOWED", room)
    assert shard_blob.decode(data, vectors=vectors).count == sample.count
    monkeypatch.setattr(shard_header, "_ALWAYS_ALLOWED", room - 1)
    with pytest.raises(BlobTooLargeError):
        shard_blob.decode(data, vectors=vectors)
    stored = sum(entry.stored_length for entry in read_header(BytesSource(data)).sections)
    room = needed - 7 * (stored + vectors.nbytes)
    monkeypatch.setattr(shard_header, "_ALWAYS_ALLOWED", room)
    assert b"".join(shard_blob.encode(sample)) == data
    monkeypatch.setattr(shard_header, "_ALWAYS_ALLOWED", room - 1)
    with pytest.raises(BlobTooLargeError, match="takes more memory than readers give it"):
        next(shard_blob.encode(sample))


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (Section.ADJACENCY_OFFSETS, 10 * (50 + 1)),
        (Section.ADJACENCY, 5 * 50 * (6 + 1)),
        (Section.LOCATIONS, 8 + 15 * 50),
    ],
)
def test_a_section_declares_no_more_than_its_nodes_need_at_most(kind: Section, most: int) -> None:
    data = shard_bytes(samples.shard(50, degree=6))
    head = read_header(BytesSource(data))

    def declaring(length: int) -> BytesSource:
        sections = (replace(entry, raw_length=length) if entry.kind == kind else entry for entry in head.sections)
        changed = replace(head, sections=tuple(sections)).to_bytes()
        return BytesSource(changed + data[len(changed) :])

    assert read_header(declaring(most)).find(kind) != head.find(kind)
    with pytest.raises(BadBlobError, match=f"section {kind.value} declares"):
        read_header(declaring(most + 1))


def test_lists_of_neighbours_take_as_much_memory_as_they_may() -> None:
    neighbors = np.array([[1, 2, 3], [0, -1, -1], [0, 1, -1], [0, -1, -1]], np.int32)
    data, offsets = encode_adjacency(neighbors, np.array([3, 1, 2, 1], np.int32))
    width = padded_width(np.array([3], np.int32), 5)
    size = 4 * 4 * width
    assert decode_adjacency(data, offsets, 5, max_bytes=size)[0].nbytes == size
    with pytest.raises(
        BlobTooLargeError, match=rf"4 lists of up to {width} neighbours take {size} bytes, .* {size - 1} "
    ):
        decode_adjacency(data, offsets, 5, max_bytes=size - 1)
