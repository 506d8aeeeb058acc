"""Reading takes no more memory than 64 MiB and a small multiple of the bytes that are there, whatever they declare."""

import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import lz4.frame
import numpy as np
import pytest

from icepuffin.puffin import BytesSource, PuffinReader
from icepuffin.puffin.blobs import attributes_blob, deletion_vector_blob, shard_blob, sketch_directory_blob
from icepuffin.puffin.blobs import centroid_blob as centroid
from icepuffin.puffin.blobs import routing_blob as routing
from icepuffin.puffin.blobs.shard_blob import Shard
from icepuffin.puffin.blobs.sketch_directory_blob import DirectoryEntry, SketchDirectory
from icepuffin.puffin.codec import compress, decompress, encode, most_expanded
from icepuffin.puffin.errors import BadBlobError, BadCompressionError, BadFooterError, BlobTooLargeError, PuffinError
from icepuffin.puffin.footer import decode_footer
from icepuffin.puffin.types import MAGIC
from tests.puffin import samples
from tests.puffin.test_ann_blobs import resealed, shard_bytes

ALWAYS = 64 << 20
A_BYTE = 8


def taken(read: Callable[[], Any]) -> tuple[int, Any]:
    """(bytes that were in use at most, what came of it: a value or the error)."""
    tracemalloc.start()
    try:
        result = read()
    except PuffinError as error:
        result = error
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak, result


def sparse(count: int, *, longest: int = 1) -> Shard:
    """Each node leads to the next; the first to `longest` nodes. Says that lists may be as long as any."""
    neighbors = np.full((count, longest), -1, np.int32)
    neighbors[:, 0] = (np.arange(count) + 1) % count
    neighbors[0] = np.arange(1, longest + 1)
    degrees = np.ones(count, np.int32)
    degrees[0] = longest
    return Shard(
        metric=0, dims=1, max_degree=4_096, search_list=10, alpha=1.2, medoid=0, neighbors=neighbors, degrees=degrees,
        file_slots=np.zeros(count, np.uint32), row_positions=np.arange(count), vectors=np.zeros((count, 1), np.float16),
        content_hashes=np.zeros(count, np.uint64),
    )  # fmt: skip


def test_a_degree_that_no_list_has_takes_no_memory() -> None:
    value = sparse(20_000)
    data, vectors = shard_bytes(value), samples.ApartVectors(value)
    peak, read = taken(lambda: shard_blob.decode(data, vectors))
    assert read.count == 20_000
    assert peak <= 8 << 20


def test_one_long_list_does_not_make_room_for_all() -> None:
    wide = sparse(20_000, longest=4_000)
    with pytest.raises(BlobTooLargeError, match="smaller max_degree, or with more shards"):
        shard_bytes(wide)
    data, vectors = hostile(wide), samples.ApartVectors(wide)
    peak, error = taken(lambda: shard_blob.decode(data, vectors))
    assert isinstance(error, BlobTooLargeError)
    assert peak <= ALWAYS + A_BYTE * (len(data) + vectors.nbytes)


def hostile(value: Shard) -> bytes:
    """Bytes of a writer that does not check whether readers accept them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_blob, "_require_readable", lambda *_: None)
        return shard_bytes(value)


def test_changed_shards_take_no_more_than_their_bytes_warrant() -> None:
    rng = random.Random(4)
    values = sparse(20_000), sparse(3_000, longest=2_900), samples.shard(400)
    plain = [(hostile(value), samples.ApartVectors(value)) for value in values]
    for _ in range(400):
        whole, vectors = rng.choice(plain)
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(464 if rng.random() < 0.8 else len(changed))
            changed[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        data = resealed(changed)
        peak, _ = taken(lambda data=data, vectors=vectors: shard_blob.decode(data, vectors))
        assert peak <= ALWAYS + A_BYTE * (len(data) + vectors.nbytes)


def routing_blob(shards: int, shard_entry: bytes, files: int, file_entry: bytes) -> bytes:
    """A routing blob with right checksums, of entries that are all alike."""
    body = bytes(8) + shards * shard_entry + files * file_entry
    head = struct.pack("<4s5IqI", b"ANNR", 6, 1, 0, shards, files, 7, 1)
    return head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head + bytes(4)))) + body


def shard_entry(nodes: int) -> bytes:
    """Of nodes that are all dead, which a bitmap of runs says in few bytes."""
    bitmap = deletion_vector_blob.encode(np.arange(nodes))
    return struct.pack("<IIIfQ32sI", nodes, 0, 0, 1.0, 9, bytes(32), len(bitmap)) + bitmap + bytes(56)


def file_entry(path: bytes) -> bytes:
    return struct.pack("<BQQ32sI", 1, 2**40, 2**40, b"1" * 32, len(path)) + path


def centroid_blob(paths: int, path: bytes) -> bytes:
    return struct.pack("<4s7I", b"ANNI", 1, 1, 0, paths, 0, 12, 32) + paths * (struct.pack("<I", len(path)) + path)


@pytest.mark.parametrize(
    ("make", "decode"),
    [
        (lambda: routing_blob(1, shard_entry(1 << 22), 0, b""), routing.decode),
        (lambda: routing_blob(1_000, shard_entry(1 << 12), 0, b""), routing.decode),
        (lambda: centroid_blob(125_000, b""), centroid.decode),
        (lambda: centroid_blob(125_000, b"ab"), centroid.decode),
    ],
    ids=["one bitmap", "bitmaps", "no paths", "short paths"],
)
def test_maps_take_no_more_than_their_bytes_warrant(
    make: Callable[[], bytes], decode: Callable[[bytes], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a sixteenth of what is always allowed, and of the blobs: each object that is traced takes microseconds."""
    for module in (routing, centroid):
        monkeypatch.setattr(module, "_ALWAYS_ALLOWED", module._ALWAYS_ALLOWED // 16)
    data = make()
    peak, _ = taken(lambda: decode(data))
    assert peak <= ALWAYS // 16 + A_BYTE * len(data)


def test_what_maps_may_always_take_is_a_part_of_what_a_reader_takes() -> None:
    with pytest.raises(BadBlobError, match="4,194,304 values, over the limit"):
        routing.decode(routing_blob(1, shard_entry(1 << 22), 0, b""))
    with pytest.raises(BadBlobError, match="2,000,000 files in"):
        centroid.decode(centroid_blob(2_000_000, b"ab"))


@pytest.mark.parametrize(
    ("data", "decode"),
    [
        (routing_blob(0, b"", 30_000, file_entry(b"")), routing.decode),
        (routing_blob(0, b"", 30_000, file_entry(b"abc")), routing.decode),
        (routing_blob(8_000, shard_entry(1), 0, b""), routing.decode),
        (centroid_blob(30_000, b"a/path/as/files/have/it.parquet"), centroid.decode),
    ],
    ids=["files", "named files", "shards", "paths"],
)
def test_no_entry_of_many_takes_more_memory_than_its_bytes_warrant(data: bytes, decode: Callable[[bytes], Any]) -> None:
    peak, _ = taken(lambda: decode(data))
    assert peak <= (1 << 16) + A_BYTE * len(data)


def test_a_routing_blob_has_no_more_tombstones_than_its_file_has_room_for_nodes() -> None:
    data = routing_blob(1, shard_entry(1 << 20), 0, b"")
    assert len(routing.decode(data, file_size=16 << 20).shards[0].tombstones) == 1 << 20
    _, error = taken(lambda: routing.decode(data, file_size=1 << 20))
    assert isinstance(error, PuffinError)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"blobs":[' + b"[]," * 3_000_000 + b"[]]}",
        b'{"blobs":[' + b"{}," * 3_000_000 + b"{}]}",
        b'{"blobs":[' + b'"\\\\ab",' * 400_000 + b'""]}',
        b'{"blobs":[' + b"1000," * 3_000_000 + b"1]}",
        b'{"blobs":[],"x":"' + b"a" * 10_000_000 + '\U0001f600"}'.encode(),
        b'{"blobs":[],"x":"' + b"[{" * 5_000_000 + b'"}',
        b'{"blobs":[],"x":"' + b'\\"' * 5_000_000,
        b'{"blobs":[],"x":["' + b"a" * 5_000_000 + b'\\ud83d\\ude00"]}',
    ],
    ids=["lists", "objects", "texts", "numbers", "wide text", "one text", "no end", "escaped wide text"],
)
def test_footers_take_no_more_than_their_bytes_warrant(payload: bytes) -> None:
    peak, _ = taken(lambda: decode_footer(payload, blob_area_end=4))
    assert peak <= ALWAYS + A_BYTE * len(payload)
    packed = lz4.frame.compress(payload, store_size=True)
    file = MAGIC + MAGIC + packed + struct.pack("<i", len(packed)) + b"\1\0\0\0" + MAGIC
    peak, _ = taken(lambda: PuffinReader(BytesSource(file)).footer)
    assert peak <= ALWAYS + A_BYTE * len(file)


def test_the_directory_of_the_sketches_of_eighty_thousand_data_files_is_read() -> None:
    """As `icepuffin.ops.theta.file_sketches` writes it: the next refresh reads it, or else all the files."""
    folder, layout = "data/\u57ce\u5e02=\u5317\u4eac", sketch_directory_blob.layout_of([(0, 9)])
    names = (f"{folder}/{n:05d}-{n}-0a1b2c3d-1111-2222-3333-444455556666-00001.parquet" for n in range(80_000))
    files = tuple(DirectoryEntry(name, "", 0, 9, 9, layout) for name in names)
    data = sketch_directory_blob.encode(SketchDirectory(((1, "long"),), files))
    peak, directory = taken(lambda: sketch_directory_blob.decode(data))
    assert directory.files == files
    assert peak <= ALWAYS + A_BYTE * len(data)


def test_a_directory_takes_no_more_than_its_bytes_warrant() -> None:
    files = (DirectoryEntry("", "", 0, 0, 0, b""),) * 400_000
    data = sketch_directory_blob.encode(SketchDirectory((), files))
    with pytest.raises(BadBlobError, match="declares 400,000 files, which would take too much memory"):
        sketch_directory_blob.decode(data)


NUMBERS = b'{"blobs":[],"x":[' + b"1000," * 1_500_000 + b'"%s"]}'


def test_values_have_less_room_beside_a_wide_letter() -> None:
    """It makes each letter of the footer's text take four bytes."""
    assert decode_footer(NUMBERS % b"a", blob_area_end=4).blobs == ()
    with pytest.raises(BadFooterError, match="in memory"):
        decode_footer(NUMBERS % "\U0001f600".encode(), blob_area_end=4)


def test_values_of_a_compressed_footer_have_the_room_of_its_stored_bytes() -> None:
    plain = NUMBERS % b"a"
    packed = lz4.frame.compress(plain, store_size=True)
    files = [
        MAGIC + MAGIC + payload + struct.pack("<iI", len(payload), flags) + MAGIC
        for flags, payload in enumerate((plain, packed))
    ]
    assert PuffinReader(BytesSource(files[0])).footer.blobs == ()
    with pytest.raises(BadFooterError, match="in memory"):
        _ = PuffinReader(BytesSource(files[1])).footer


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_shrinks_too_much_is_not_expanded_and_not_written_so(codec: str) -> None:
    plain = bytes(64 << 20)
    bomb = compress(plain, codec)
    peak, error = taken(lambda: decompress(bomb, codec, where="a blob"))
    assert isinstance(error, BadCompressionError)
    assert peak < 1 << 20
    assert encode(plain, codec) == (plain, None)
    few = bytes(most_expanded(0))
    data, kept = encode(few, codec)
    assert kept == codec
    assert decompress(data, kept, where="a blob") == few


def test_changed_maps_take_no_more_than_their_bytes_warrant() -> None:
    rng = random.Random(5)
    for plain, decode in (
        (routing.encode(samples.routing()), routing.decode),
        (centroid.encode(samples.centroid()), centroid.decode),
    ):
        for _ in range(500):
            changed = bytearray(plain)
            for _ in range(rng.randint(1, 4)):
                changed[rng.randrange(len(changed))] = rng.choice((0, 1, 127, 255, rng.randrange(256)))
            if decode is routing.decode:
                struct.pack_into("<I", changed, 36, 0)
                struct.pack_into("<I", changed, 36, zlib.crc32(changed))
            data = bytes(changed)
            peak, _ = taken(lambda data=data, decode=decode: decode(data))
            assert peak <= ALWAYS + A_BYTE * len(data)


@pytest.mark.parametrize("of_lists", [False, True])
def test_attributes_of_all_files_together_take_no_more_than_their_bytes_and_rows_warrant(of_lists: bool) -> None:
    """A body that expands to megabytes, of ten rows, in the entry of each file: a reader holds them all at once."""
    files, width = 40, (8 << 20) - 256
    body = struct.pack("<4I", 1, width, 0 if of_lists else 1, 0) + bytes(width) + bytes(10 + 8 * of_lists)
    stored = compress(body, "zstd")
    entries = tuple(
        attributes_blob.AttributeEntry(slot, 10, "string", "", "", stored, len(body), packed=True)
        for slot in range(files)
    )
    data = attributes_blob.encode(attributes_blob.AttributeBlob(3, entries, of_lists=of_lists))
    read = attributes_blob.lists_of if of_lists else attributes_blob.values_of
    peak, error = taken(lambda: [read(entry) for entry in attributes_blob.decode(data).entries])
    assert isinstance(error, BadCompressionError)
    assert peak <= (8 << 20) + A_BYTE * len(data)
