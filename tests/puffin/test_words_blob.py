"""Blobs of words: what is written comes back, and what is damaged is refused."""

import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.puffin import codec
from icepuffin.puffin.blobs import included_columns_blob
from icepuffin.puffin.blobs.included_columns_blob import IncludedBlob, IncludedEntry, WordsBlob, WordsEntry
from icepuffin.puffin.blobs.words_blob import (
    PAGE,
    RangeLocation,
    WordsEncoder,
    WordsHead,
    decode_head,
    list_of,
    pages_of,
    range_locations,
)
from icepuffin.puffin.errors import BadBlobError, BadCompressionError, PuffinError

Range = tuple[list[int], dict[bytes, bytes]]
"""(lengths of rows, list by term)"""
ranges = st.lists(
    st.tuples(
        st.lists(st.integers(0, 70_000), min_size=1, max_size=9),
        st.dictionaries(st.binary(min_size=1, max_size=9), st.binary(max_size=40), max_size=9),
    ),
    max_size=4,
)


def written(parts: list[Range]) -> tuple[WordsEntry, bytes]:
    encoder, body = WordsEncoder(), b""
    for lengths, lists in parts:
        terms = sorted(lists)
        data = b"".join(lists[term] for term in terms)
        ends = np.cumsum([len(lists[term]) for term in terms], dtype=np.int64)
        ties = np.arange(len(lengths), dtype=np.uint32)
        counts = np.full(len(terms), len(lengths))
        body += b"".join(encoder.add(np.array(lengths), ties, terms, counts, np.frombuffer(data, np.uint8), ends))
    index = encoder.index()
    rows, length = sum(len(lengths) for lengths, _ in parts), len(body) + len(index)
    entry = WordsEntry(3, rows, "string", "{}", block_rows=len(parts), length=length, checksum=zlib.crc32(index))
    return entry, body + index


def opened(entry: WordsEntry, body: bytes) -> list[tuple[RangeLocation, WordsHead]]:
    locations = range_locations(entry, body[entry.length - entry.index_length :])
    return [
        (each, decode_head(body[each.offset : each.offset + each.head_length], each, "words")) for each in locations
    ]


def stored_list(location: RangeLocation, head: WordsHead, term: bytes, body: bytes) -> bytes | None:
    number = head.find(term)
    if number is None:
        return None
    begin, end = pages_of(head, number)
    first = location.offset + location.head_length
    return list_of(head, number, body[first + begin : first + end], "words").tobytes()


@given(parts=ranges)
def test_lengths_terms_and_lists_come_back(parts: list[Range]) -> None:
    entry, body = written(parts)
    read = opened(entry, body)
    assert [head.lengths.tolist() for _, head in read] == [lengths for lengths, _ in parts]
    assert [location.first_row for location, _ in read] == np.cumsum([0, *(len(own) for own, _ in parts)])[:-1].tolist()
    for (location, head), (_, lists) in zip(read, parts, strict=True):
        assert {term: stored_list(location, head, term, body) for term in lists} == lists
        assert head.find(b"\xff" * 10) is None


def test_a_list_is_read_by_the_pages_that_it_lies_in() -> None:
    lists = {b"a": bytes(PAGE - 1), b"b": b"bb", b"c": bytes(3 * PAGE), b"d": b"d"}
    entry, body = written([([1], lists)])
    ((location, head),) = opened(entry, body)
    assert [pages_of(head, number) for number in range(4)] == [
        (0, PAGE), (0, 2 * PAGE), (PAGE, 4 * PAGE + 2), (4 * PAGE, 4 * PAGE + 2),
    ]  # fmt: skip
    assert {term: stored_list(location, head, term, body) for term in lists} == lists


@given(parts=ranges.filter(bool), bit=st.integers(0, 2**20))
def test_a_flipped_bit_is_found(parts: list[Range], bit: int) -> None:
    entry, body = written(parts)
    broken = bytearray(body)
    broken[bit // 8 % len(broken)] ^= 1 << bit % 8
    found = 0
    for number, (_, lists) in enumerate(parts):
        for term in (*lists, b"\xff"):
            try:
                location, head = opened(entry, bytes(broken))[number]
                assert head.lengths.tolist() == parts[number][0]
                assert stored_list(location, head, term, bytes(broken)) == lists.get(term)
            except PuffinError:
                found += 1
    assert found, "each byte has a checksum"


def test_an_index_that_does_not_fit_its_entry_is_refused() -> None:
    entry, body = written([([1, 2], {b"a": b"xy"})])
    index = body[entry.length - entry.index_length :]
    for other in (
        WordsEntry(3, 3, "string", "{}", block_rows=1, length=entry.length, checksum=entry.checksum),
        WordsEntry(3, 2, "string", "{}", block_rows=1, length=entry.length + 1, checksum=entry.checksum),
        WordsEntry(3, 2, "string", "{}", block_rows=2, length=entry.length, checksum=entry.checksum),
    ):
        with pytest.raises(BadBlobError, match=r"not possible|for 2 ranges"):
            range_locations(other, index)


def test_a_range_without_rows_is_refused() -> None:
    """A file without rows has no range: else a small file might have any number of heads."""
    entry, body = written([([1, 2], {b"a": b"xy"}), ([], {})])
    with pytest.raises(BadBlobError, match="not possible"):
        range_locations(entry, body[entry.length - entry.index_length :])


@pytest.mark.parametrize("terms", [10, 100, 1_000, 10_000, 30_000])
def test_a_head_expands_no_further_than_a_reader_takes(terms: int) -> None:
    """Long terms that differ in their last bytes shrink a hundredfold: such a head is stored as it is."""
    lists = {b"%0200d" % number: b"" for number in range(terms)}
    entry, body = written([([1], lists)])
    ((location, head),) = opened(entry, body)
    assert len(head.row_counts) == terms
    assert location.raw_length <= 8 * location.head_length + 64
    packed = codec.compress(body[: location.head_length], "zstd")
    bomb = replace(location, head_length=len(packed), checksum=zlib.crc32(packed))
    with pytest.raises(BadCompressionError, match="over the limit"):
        decode_head(packed, bomb, "words")


def test_locations_of_words_and_of_values_are_told_apart() -> None:
    entry, _ = written([([1, 2], {b"a": b"xy"})])
    blob = WordsBlob(7, (entry,))
    read = included_columns_blob.decode(included_columns_blob.encode(blob))
    assert (type(read), read.field_id, read.entries) == (WordsBlob, 7, (entry,))
    value = IncludedEntry(0, 5, "long", "{}", block_rows=5, width=8, length=60, checksum=1)
    read = included_columns_blob.decode(included_columns_blob.encode(IncludedBlob(7, (value,))))
    assert (type(read), read.entries) == (IncludedBlob, (value,))
    for wrong in (WordsBlob(7, (value,)),):
        with pytest.raises(BadBlobError, match="not possible"):
            included_columns_blob.decode(included_columns_blob.encode(wrong))
