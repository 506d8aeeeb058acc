import itertools
import random
import struct
import tracemalloc
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.puffin.blobs import included_columns_blob
from icepuffin.puffin.blobs.included_columns_blob import (
    BlockEncoder,
    IncludedEntry,
    ValueBlock,
    block_index,
    decode_block,
    raw_block,
)
from icepuffin.puffin.codec import compress
from icepuffin.puffin.errors import BadBlobError, BadCompressionError, ChecksumError, PuffinError
from tests.puffin import samples

TEXTS = st.lists(st.none() | st.text(max_size=40) | st.text(min_size=1, max_size=1).map(lambda one: one * 999))


def block_at(entry: IncludedEntry, values: bytes, number: int) -> ValueBlock:
    index = block_index(entry, values[len(values) - entry.index_length :])
    start = int(index.starts[number])
    return decode_block(entry, index, number, values[start : start + int(index.lengths[number])])


def all_blocks(entry: IncludedEntry, values: bytes) -> list[ValueBlock]:
    return [block_at(entry, values, number) for number in range(entry.blocks)]


def texts_of(block: ValueBlock) -> list[str | None]:
    assert block.offsets is not None
    ends = block.offsets.tolist()
    parts = [block.values[start:end].decode() for start, end in itertools.pairwise(ends)]
    return [text if there else None for text, there in zip(parts, block.present.tolist(), strict=True)]


def test_places_are_read_as_written() -> None:
    value = samples.included()
    read = included_columns_blob.decode(included_columns_blob.encode(value))
    assert (read.field_id, read.entries) == (value.field_id, value.entries)


@settings(max_examples=60, deadline=None)
@given(texts=TEXTS, block_rows=st.sampled_from([1, 2, 7, 64]))
def test_each_block_of_texts_is_read_alone(texts: list[str | None], block_rows: int) -> None:
    entry, values = samples.included_values(texts, block_rows)
    assert entry.blocks == -(-len(texts) // block_rows)
    for number in random.Random(0).sample(range(entry.blocks), entry.blocks):
        start = number * block_rows
        assert texts_of(block_at(entry, values, number)) == texts[start : start + block_rows]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)), st.sampled_from([1, 3, 256]))
def test_each_block_of_numbers_is_read_alone(numbers: list[int | None], block_rows: int) -> None:
    encoder, parts = BlockEncoder(), []
    for start in range(0, len(numbers), block_rows):
        rows = numbers[start : start + block_rows]
        present = np.array([number is not None for number in rows])
        parts.append(
            encoder.add(raw_block(ValueBlock(present, struct.pack(f"<{len(rows)}q", *(n or 0 for n in rows)), None)))
        )
    index = encoder.index()
    values = b"".join([*parts, index])
    entry = IncludedEntry(
        0, len(numbers), "long", "{}", block_rows=block_rows, width=8, length=len(values), checksum=zlib.crc32(index)
    )
    for number in range(entry.blocks):
        block = block_at(entry, values, number)
        read = np.frombuffer(block.values, "<i8").tolist()
        start = number * block_rows
        own = [value if there else None for value, there in zip(read, block.present.tolist(), strict=True)]
        assert own == numbers[start : start + block_rows]


def test_a_changed_byte_anywhere_in_the_values_is_noticed() -> None:
    entry, values = samples.included_values([str(number) * 9 for number in range(40)], 8)
    for place in range(len(values)):
        changed = bytearray(values)
        changed[place] ^= 1 << place % 8
        with pytest.raises(PuffinError):
            all_blocks(entry, bytes(changed))


@pytest.mark.parametrize(
    "change",
    [
        {"block_rows": 0},
        {"block_rows": included_columns_blob.MAX_BLOCK_ROWS + 1},
        {"length": 1},
        {"rows": 2**63},
        {"left_out": "but it is here"},
    ],
)
def test_an_entry_that_is_not_possible_is_refused(change: dict[str, object]) -> None:
    entry = replace(samples.included().entries[0], **change)
    with pytest.raises(BadBlobError, match="entry 0 is not possible"):
        included_columns_blob.decode(included_columns_blob.encode(included_columns_blob.IncludedBlob(5, (entry,))))


@pytest.mark.parametrize("name", ["block_rows", "width", "pack", "offset", "length", "checksum"])
def test_an_entry_of_values_that_are_left_out_has_no_place(name: str) -> None:
    entry = replace(samples.included().entries[1], **{name: 1})
    with pytest.raises(BadBlobError, match="entry 0 is not possible"):
        included_columns_blob.decode(included_columns_blob.encode(included_columns_blob.IncludedBlob(5, (entry,))))


def test_a_block_has_a_byte_at_least() -> None:
    entry = samples.included().entries[0]
    for length in (entry.index_length + entry.blocks, entry.index_length + entry.blocks - 1):
        data = included_columns_blob.encode(included_columns_blob.IncludedBlob(5, (replace(entry, length=length),)))
        if length == entry.index_length + entry.blocks:
            assert included_columns_blob.decode(data).entries[0].length == length
        else:
            with pytest.raises(BadBlobError, match="entry 0 is not possible"):
                included_columns_blob.decode(data)


def test_bytes_of_values_are_counted_by_the_pack_that_they_lie_in() -> None:
    own, left_out, packed = samples.included().entries
    blob = included_columns_blob.IncludedBlob(5, (packed, own, left_out, replace(packed, slot=4)))
    assert blob.bytes_by_pack == {0: own.length, 2: 2 * packed.length}
    assert included_columns_blob.IncludedBlob(5, (left_out,)).bytes_by_pack == {}


def test_memory_of_blocks_and_of_their_index_is_that_of_all_arrays() -> None:
    """By it readers keep to their budget."""
    entry, values = samples.included_values(["a", None, "bbb"], 2)
    assert block_at(entry, values, 0).nbytes == 2 + len("a") + 4 * 3
    assert ValueBlock(np.ones(3, np.bool_), bytes(24), None).nbytes == 3 + 24
    assert block_index(entry, values[len(values) - entry.index_length :]).nbytes == 2 * (8 + 4 + 4 + 4)


def test_a_slot_that_comes_twice_is_refused() -> None:
    entry = samples.included().entries[0]
    with pytest.raises(BadBlobError, match="entry 1 is not possible"):
        included_columns_blob.decode(
            included_columns_blob.encode(included_columns_blob.IncludedBlob(5, (entry, entry)))
        )


@pytest.mark.parametrize(
    ("raw", "refusal"),
    [
        (b"\x0f" + struct.pack("<4I", 0, 1, 2, 3) + b"abc", "more rows are present"),
        (b"\x07" + struct.pack("<4I", 1, 1, 2, 3) + b"abc", "offsets"),
        (b"\x07" + struct.pack("<4I", 0, 2, 1, 3) + b"abc", "offsets"),
        (b"\x05" + struct.pack("<4I", 0, 1, 2, 3) + b"abc", "offsets"),
        (b"\x07" + struct.pack("<4I", 0, 1, 2, 4) + b"abc", "values needs 4 bytes"),
        (b"\x07" + struct.pack("<4I", 0, 1, 2, 2) + b"abc", "1 bytes follow its end"),
        (b"", "presence needs 1 bytes"),
    ],
)
def test_a_block_that_is_not_possible_is_refused(raw: bytes, refusal: str) -> None:
    encoder = BlockEncoder()
    stored = encoder.add(raw)
    index = encoder.index()
    entry = IncludedEntry(
        0, 3, "string", "{}", block_rows=4, length=len(stored) + len(index), checksum=zlib.crc32(index)
    )
    with pytest.raises(BadBlobError, match=refusal):
        block_at(entry, stored + index, 0)


def test_an_index_whose_lengths_do_not_add_up_is_refused() -> None:
    entry, values = samples.included_values(["a", "b"], 1)
    with pytest.raises(BadBlobError, match="lengths of its blocks"):
        block_at(replace(entry, length=entry.length + 1), values, 0)
    with pytest.raises(BadBlobError, match="a block index of 12 bytes for 2 blocks"):
        block_index(entry, values[-12:])
    with pytest.raises(ChecksumError):
        block_index(replace(entry, checksum=1), values[-24:])
    longer = struct.pack("<3I", 9, 8, 0)  # stored bytes, bytes, checksum
    with pytest.raises(BadBlobError, match="lengths of its blocks"):
        block_index(replace(entry, rows=1, length=9 + 12, checksum=zlib.crc32(longer)), longer)


def test_a_block_of_fewer_bytes_than_it_declares_is_refused() -> None:
    stored = compress(bytes(50), "zstd")
    index = struct.pack("<3I", len(stored), 51, zlib.crc32(stored))
    entry = IncludedEntry(0, 3, "string", "{}", block_rows=4, length=len(stored) + 12, checksum=zlib.crc32(index))
    with pytest.raises(BadBlobError, match="block 0: 50 bytes, 51 were declared"):
        block_at(entry, stored + index, 0)


def test_a_block_that_declares_less_than_it_expands_to_takes_no_memory() -> None:
    stored = compress(bytes(64 << 20), "zstd")
    index = struct.pack("<3I", len(stored), 5000, zlib.crc32(stored))
    entry = IncludedEntry(0, 3, "string", "{}", block_rows=4, length=len(stored) + 12, checksum=zlib.crc32(index))
    tracemalloc.start()
    with pytest.raises(BadCompressionError):
        block_at(entry, stored + index, 0)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
