import io
import json
import random
import struct
from collections import Counter

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.puffin import (
    BlobMetadata,
    BytesSource,
    DistinctCount,
    PuffinReader,
    PuffinWriter,
    plan_puffin,
)
from icepuffin.puffin.codec import compress, decompress
from icepuffin.puffin.errors import (
    BadBlobLocationError,
    BadCompressionError,
    BadFooterError,
    BadMagicError,
    BlobTooLargeError,
    PuffinError,
    TruncatedFileError,
    UnknownFlagsError,
)
from icepuffin.puffin.puffin_reader import TAIL_READ
from icepuffin.puffin.types import BlobType
from tests.conformance import reader as conformance

CODECS = [None, "lz4", "zstd"]


def written(*blobs: bytes, codecs: tuple[str | None, ...] = (None, "lz4", "zstd"), align: int = 1) -> bytes:
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    for number, data in enumerate(blobs):
        writer.add_blob(
            f"type-{number}",
            fields=[1, 2],
            snapshot_id=2**63 - 1,
            sequence_number=-1,
            data=data,
            codec=codecs[number % len(codecs)],
            properties={"ключ": str(number)},
            align=align,
        )
    info = writer.finish({"created-by": "test"})
    assert info.file_size == len(sink.getvalue())
    return sink.getvalue()


def with_footer(
    payload: bytes, *, flags: int = 0, size: int | None = None, body: bytes = b"PFA1" + bytes(100)
) -> bytes:
    length = len(payload) if size is None else size
    return body + b"PFA1" + payload + struct.pack("<iI", length, flags) + b"PFA1"


def blob_json(**changes: object) -> bytes:
    blob = {"type": "x", "fields": [1], "snapshot-id": 1, "sequence-number": 1, "offset": 4, "length": 10}
    return json.dumps({"blobs": [blob | changes]}).encode()


def read_all(data: bytes) -> list[bytes]:
    reader = PuffinReader(BytesSource(data), max_blob_bytes=1 << 20)
    return [reader.read_blob(blob) for blob in reader.footer.blobs]


@settings(max_examples=60, deadline=None)
@given(
    blobs=st.lists(st.binary(max_size=2000), max_size=5),
    codecs=st.lists(st.sampled_from(CODECS), min_size=1, max_size=5),
    align=st.sampled_from([1, 8, 64]),
)
def test_what_is_written_is_read(blobs: list[bytes], codecs: list[str | None], align: int) -> None:
    data = written(*blobs, codecs=tuple(codecs), align=align)
    footer = PuffinReader(BytesSource(data)).footer
    assert read_all(data) == blobs
    assert footer.properties == {"created-by": "test"}
    assert all(blob.offset % align == 0 and blob.snapshot_id == 2**63 - 1 for blob in footer.blobs)


class CountingSource(BytesSource):
    """Keeps the ranges that were read."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.ranges: list[tuple[int, int]] = []

    def read_range(self, offset: int, length: int) -> bytes:
        self.ranges.append((offset, length))
        return super().read_range(offset, length)


def test_a_long_footer_is_read_in_two_ranges_and_a_short_one_in_one() -> None:
    short, long = CountingSource(written(b"x")), CountingSource(written(*[b"x"] * 2000))
    assert len(PuffinReader(short).footer.blobs) == 1
    assert len(PuffinReader(long).footer.blobs) == 2000
    assert (len(short.ranges), len(long.ranges)) == (1, 3)  # the third is the magic at the start


def test_blobs_in_the_tail_are_not_read_again() -> None:
    source = CountingSource(written(b"far" * 100_000, b"near", codecs=(None, None)))
    reader = PuffinReader(source)
    distant, adjacent = reader.footer.blobs
    source.ranges.clear()
    assert reader.read_blob(adjacent) == b"near"
    assert source.ranges == []
    assert reader.read_blob(distant) == b"far" * 100_000
    assert source.ranges == [(distant.offset, distant.length)]


def test_a_compressed_footer_is_read() -> None:
    payload = lz4.frame.compress(blob_json(), store_size=True)
    assert read_all(with_footer(payload, flags=1)) == [bytes(10)]


def test_an_unknown_blob_type_passes_through() -> None:
    data = written(b"whatever")
    assert PuffinReader(BytesSource(data)).footer.blobs[0].type == "type-0"
    assert read_all(data) == [b"whatever"]


def test_keys_that_later_versions_add_are_ignored() -> None:
    later = {"type": "x", "fields": [1], "snapshot-id": 1, "sequence-number": 1, "offset": 4, "length": 10, "level": 3}
    document = {"blobs": [later], "properties": {"a": "b"}, "encryption": {"key": [1]}}
    footer = PuffinReader(BytesSource(with_footer(json.dumps(document).encode()))).footer
    assert [(blob.type, blob.length) for blob in footer.blobs] == [("x", 10)]
    assert footer.properties == {"a": "b"}


def test_fields_keep_the_order_that_a_writer_gives_them() -> None:
    """A reader knows by it which number of the blob is of which column."""
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    writer.add_blob("x", fields=[7, 2, 5], snapshot_id=1, sequence_number=1, data=b"")
    writer.finish()
    assert b'"fields":[7,2,5]' in sink.getvalue().replace(b" ", b"")
    reader = PuffinReader(BytesSource(with_footer(blob_json(fields=[7, 2, 5]))))
    assert reader.footer.blobs[0].fields == (7, 2, 5)


def test_a_file_cut_anywhere_gives_a_typed_error() -> None:
    data = written(b"plain", b"l" * 100, b"z" * 100)
    for end in range(len(data)):
        with pytest.raises(PuffinError):
            read_all(data[:end])


def test_a_flipped_bit_is_detected_or_confined_to_what_nothing_checks() -> None:
    data = written(b"plain", b"lz4 " * 30, b"zstd" * 30)
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            try:
                blobs = read_all(bytes(changed))
            except PuffinError:
                continue
            assert all(len(blob) <= 1 << 20 for blob in blobs)


def test_random_bytes_between_the_magics_give_typed_errors_only() -> None:
    """What is read is what another parser of JSON finds in them."""
    rng = random.Random(5)
    body = b"PFA1" + rng.randbytes(100)
    outcomes = Counter[str]()
    for _ in range(3000):
        payload = bytearray(blob_json())
        for _ in range(rng.randint(1, 6)):
            payload[rng.randrange(len(payload))] = rng.choice(b'{}[]":,0123456789-eE.\\u\x00\xff ')
        try:
            blobs = read_all(with_footer(bytes(payload), body=body))
        except PuffinError as error:
            outcomes[type(error).__name__] += 1
            continue
        entries = json.loads(payload)["blobs"]
        assert blobs == [body[entry["offset"] : entry["offset"] + entry["length"]] for entry in entries]
        outcomes["read"] += 1
    assert outcomes["read"] > 20
    assert outcomes.keys() == {"read", "BadFooterError", "BadBlobLocationError"}


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", TruncatedFileError, "at least 20"),
        (b"XXXX" + written(b"x")[4:], BadMagicError, "starts with"),
        (written(b"x")[:-4] + b"XXXX", BadMagicError, "ends with"),
        (with_footer(blob_json(), body=bytes(104)), BadMagicError, "starts with"),
        (with_footer(blob_json(), size=len(blob_json()) - 1), BadMagicError, "footer at"),
        (with_footer(blob_json(), size=-1), TruncatedFileError, "payload of -1"),
        (with_footer(blob_json(), size=2**31 - 1), TruncatedFileError, "does not fit"),
        (with_footer(b'{"blobs":[]}', body=b""), TruncatedFileError, "does not fit"),  # one magic for start and footer
        (with_footer(blob_json(), flags=2), UnknownFlagsError, "0x00000002"),
        (with_footer(blob_json(), flags=1 << 31), UnknownFlagsError, "flags"),
        (with_footer(blob_json(), flags=1), BadCompressionError, "footer payload"),
        (with_footer(b"\xff{}"), BadFooterError, "UTF-8"),
        (with_footer(b"{"), BadFooterError, "not JSON"),
        (with_footer(b"[" * 100_000), BadFooterError, "not JSON"),
        (with_footer(b"[]"), BadFooterError, "list of blobs"),
        (with_footer(b'{"blobs":{}}'), BadFooterError, "list of blobs"),
        (with_footer(b'{"blobs":[],"blobs":[]}'), BadFooterError, "repeats"),
        (with_footer(b'{"blobs":[],"properties":{"a":1}}'), BadFooterError, "footer: 'properties' is not .* strings"),
        (with_footer(b'{"blobs":[NaN]}'), BadFooterError, "NaN"),
        (with_footer(b'{"blobs":[' + b"9" * 5000 + b"]}"), BadFooterError, "JSON"),
        (with_footer(b'{"blobs":[1]}'), BadFooterError, "blob 0"),
        (with_footer(blob_json(type=3)), BadFooterError, "'type'"),
        (with_footer(blob_json(type="")), BadFooterError, "'type'"),
        (with_footer(blob_json(type="\ud800")), BadFooterError, "surrogate"),
        (with_footer(blob_json(properties={"\ud800": ""})), BadFooterError, "surrogate"),
        (with_footer(blob_json(properties={"k": "\ud800"})), BadFooterError, "surrogate"),
        (with_footer(blob_json(fields="1")), BadFooterError, "'fields'"),
        (with_footer(blob_json(fields=[2**31])), BadFooterError, "'fields'"),
        (with_footer(blob_json(offset=True)), BadFooterError, "'offset'"),
        (with_footer(blob_json(length=1.0)), BadFooterError, "'length'"),
        (with_footer(blob_json(**{"snapshot-id": 2**63})), BadFooterError, "'snapshot-id'"),
        (with_footer(blob_json(**{"sequence-number": None})), BadFooterError, "'sequence-number'"),
        (with_footer(blob_json(**{"compression-codec": "gzip"})), BadFooterError, "'gzip'"),
        (with_footer(blob_json(**{"compression-codec": []})), BadFooterError, "codec"),
        (with_footer(blob_json(properties=[])), BadFooterError, "'properties'"),
        (with_footer(blob_json(offset=-1)), BadBlobLocationError, "blob 0"),
        (with_footer(blob_json(offset=0)), BadBlobLocationError, "blob 0"),
        (with_footer(blob_json(length=-1)), BadBlobLocationError, "blob 0"),
        (with_footer(blob_json(length=101)), BadBlobLocationError, "blob 0"),
        (with_footer(blob_json(offset=2**62, length=2**62)), BadBlobLocationError, "blob 0"),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(data: bytes, error: type[PuffinError], message: str) -> None:
    with pytest.raises(error, match=message):
        read_all(data)


def test_overlapping_blobs_are_refused() -> None:
    one, two = json.loads(blob_json())["blobs"][0], json.loads(blob_json(offset=13))["blobs"][0]
    with pytest.raises(BadBlobLocationError, match="blob 1 at 13 overlaps blob 0, which ends at 14"):
        read_all(with_footer(json.dumps({"blobs": [one, two]}).encode()))


def test_declared_sizes_are_trusted_only_up_to_the_limit() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 24))
    for codec, data in (("zstd", bomb), ("lz4", lz4.frame.compress(bytes(1 << 24), store_size=True))):
        body = b"PFA1" + data
        file = with_footer(blob_json(length=len(data), **{"compression-codec": codec}), body=body)
        with pytest.raises(BadCompressionError, match=r"blob x at 4: declares 16,777,216 bytes, over .* 1,048,576"):
            read_all(file)


def test_frames_that_cannot_hold_what_they_declare_take_no_memory() -> None:
    for codec, data in (
        ("zstd", b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**30) + b"\x01\x00\x00"),
        ("lz4", lz4.frame.LZ4FrameCompressor().begin(source_size=2**30) + bytes(4)),
    ):
        file = with_footer(blob_json(length=len(data), **{"compression-codec": codec}), body=b"PFA1" + data)
        reader = PuffinReader(BytesSource(file))
        with pytest.raises(BadCompressionError, match="declares 1,073,741,824 bytes, but can hold"):
            reader.read_blob(reader.footer.blobs[0])


def test_frames_without_a_content_size_are_refused() -> None:
    for codec, data in (
        ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(b"abc" * 50)),
        ("lz4", lz4.frame.compress(b"abc" * 50, store_size=False)),
    ):
        file = with_footer(blob_json(length=len(data), **{"compression-codec": codec}), body=b"PFA1" + data)
        with pytest.raises(BadCompressionError, match="does not declare"):
            read_all(file)


def test_an_unknown_codec_is_neither_written_nor_read() -> None:
    with pytest.raises(PuffinError, match="'snappy' is not one of none, lz4, zstd"):
        compress(b"", "snappy")
    with pytest.raises(BadCompressionError, match="a blob: compression codec 'snappy' is not one of none, lz4, zstd"):
        decompress(compress(b"abc", "lz4"), "snappy", where="a blob")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("more", [b"\0", b"more", compress(b"a frame", "lz4"), compress(b"a frame", "zstd")])
def test_a_frame_ends_where_its_bytes_end(codec: str, more: bytes) -> None:
    frame = compress(b"abc" * 50, codec)
    assert decompress(frame, codec, where="a blob") == b"abc" * 50
    with pytest.raises(BadCompressionError):
        decompress(frame + more, codec, where="a blob")
    for missing in range(1, 9):
        with pytest.raises(BadCompressionError):
            decompress(frame[:-missing], codec, where="a blob")


def test_a_blob_over_the_limit_is_refused_before_it_is_read() -> None:
    largest = PuffinReader(BytesSource(written(bytes(100))), max_blob_bytes=100)
    assert largest.read_blob(largest.footer.blobs[0]) == bytes(100)
    reader = PuffinReader(BytesSource(written(bytes(100))), max_blob_bytes=99)
    with pytest.raises(BlobTooLargeError, match="100 bytes"):
        reader.read_blob(reader.footer.blobs[0])


@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (2, -1), (2, 4), (6, 0)])
def test_a_range_that_leaves_its_blob_is_refused(offset: int, length: int) -> None:
    reader = PuffinReader(BytesSource(written(b"abcde")))
    (blob,) = reader.footer.blobs
    assert reader.read_blob_range(blob, 2, 3) == b"cde"
    with pytest.raises(TruncatedFileError, match=f"bytes {offset} to {offset + length} of 5 requested"):
        reader.read_blob_range(blob, offset, length)


def test_a_planned_file_is_the_written_one() -> None:
    blobs = [b"one", b"three"]
    planned = [
        BlobMetadata(f"type-{n}", (1, 2), 2**63 - 1, -1, 0, len(b), None, {"ключ": str(n)}) for n, b in enumerate(blobs)
    ]
    layout = plan_puffin(planned, {"created-by": "test"}, align=64)
    joined = b"".join(part for gap, blob in zip(layout.gaps, blobs, strict=True) for part in (gap, blob)) + layout.tail
    assert joined == written(*blobs, codecs=(None,), align=64)
    assert len(joined) == layout.file_size
    assert plan_puffin([]).tail == written_empty()


def written_empty() -> bytes:
    sink = io.BytesIO()
    PuffinWriter(sink).finish()
    return sink.getvalue()


def test_a_public_footer_hides_the_blobs_from_others_and_from_nobody_here() -> None:
    count = DistinctCount(field_id=3, snapshot_id=8, sequence_number=9, ndv=17)
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    blob = writer.add_blob("x", fields=[1, 2], snapshot_id=1, sequence_number=2, data=bytes(100_000))
    info = writer.finish({"created-by": "test"}, [count])
    data = sink.getvalue()
    assert info.file_size == len(data)
    public = json.loads(data[-info.footer_size + 4 : -12])
    (shown,) = public["blobs"]
    assert (shown["type"], shown["fields"], shown["properties"]) == (BlobType.THETA, [3], {"ndv": "17"})
    assert (shown["snapshot-id"], shown["sequence-number"], shown["length"]) == (8, 9, 0)
    own = int(public["properties"].pop("icepuffin.own-bytes"))
    assert public["properties"] == {"created-by": "test"}
    assert own == len(data) - info.footer_size
    for part in (data, data[:own]):
        reader = PuffinReader(BytesSource(part))
        assert reader.footer == info.footer
        assert reader.read_blob(blob) == bytes(100_000)
        assert conformance.puffin(part) == conformance.puffin(data[:own])
    planned = BlobMetadata("x", (1, 2), 1, 2, 0, 100_000)
    layout = plan_puffin([planned], {"created-by": "test"}, [count])
    assert layout.gaps[0] + bytes(100_000) + layout.tail == data
    assert (layout.file_size, layout.footer_size) == (info.file_size, info.footer_size)
    for text in (str(own + 1), "-1", "", "x", "9" * 30, "9" * 5_000, "\u0664\u0664"):
        payload = json.dumps({"blobs": [], "properties": {"icepuffin.own-bytes": text}}).encode()
        footer = b"PFA1" + payload + len(payload).to_bytes(4, "little") + bytes(4) + b"PFA1"
        with pytest.raises(BadFooterError, match=rf"the public footer at {own} names a file of '{text[:20]}"):
            _ = PuffinReader(BytesSource(data[:own] + footer)).footer
        with pytest.raises(conformance.RefusedError):
            conformance.puffin(data[:own] + footer)


def test_the_own_footer_is_read_before_a_public_one_that_is_longer_than_the_tail() -> None:
    counts = [DistinctCount(field_id=number, snapshot_id=8, sequence_number=9, ndv=17) for number in range(800)]
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    blob = writer.add_blob("x", fields=[1], snapshot_id=1, sequence_number=2, data=b"abc")
    assert writer.finish(counts=counts).footer_size > TAIL_READ
    reader = PuffinReader(BytesSource(sink.getvalue()))
    assert reader.footer.blobs == (blob,)
    assert reader.read_blob(blob) == b"abc"


def test_a_finished_file_takes_nothing_more() -> None:
    writer = PuffinWriter(io.BytesIO())
    writer.finish()
    with pytest.raises(PuffinError, match="nothing more"):
        writer.add_blob("x", fields=[1], snapshot_id=1, sequence_number=1, data=b"")
    with pytest.raises(PuffinError, match="nothing more"):
        writer.finish()


def test_a_blob_begins_at_a_multiple_of_a_positive_number() -> None:
    writer = PuffinWriter(io.BytesIO())
    with pytest.raises(PuffinError, match=r"blob 0 \(x\): alignment 0 is not positive"):
        writer.add_blob("x", fields=[1], snapshot_id=1, sequence_number=1, data=b"", align=0)


def test_a_blob_that_another_file_has_compressed_is_written_as_it_is() -> None:
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    stored = compress(b"abc" * 50, "zstd")
    blob = writer.add_blob("x", fields=[1], snapshot_id=1, sequence_number=1, data=stored, codec="zstd", is_stored=True)
    writer.finish()
    assert (blob.length, blob.compression_codec) == (len(stored), "zstd")
    assert read_all(sink.getvalue()) == [b"abc" * 50]
