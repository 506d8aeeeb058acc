"""Vectors out of the pages of a Parquet column of lists of floats, where every row has as many floats.

Such pages are the bytes of the vectors, and levels that say the same of each row. Arrow makes lists of the levels,
which takes longer than all else. Here they are compared with what they must be, and the floats stay as they lie. A page
that is unlike these, or damaged, is left to Arrow, which also says what is wrong with it.

Executors import this: no dagster, no pyspark.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from icepuffin.ann_kernels.arrays import F32, U8
from icepuffin.ops.page_headers import DATA_V2, DICTIONARY, PageHeader, read_page_header

Read = Callable[[int, int], bytes]
"""Function that gives bytes of the file: (offset, length)"""

LEAST_BYTES = 1 << 20
"""Bytes of the vectors of a row group from which their pages are read here: loading a kernel takes as long as a few"""
_PIECE = 4 << 20
"""Bytes that are read at once"""
_LONGEST_HEADER = 1 << 12
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_CODECS = {"UNCOMPRESSED": None, "SNAPPY": "snappy", "ZSTD": "zstd"}


class UnusualPageError(Exception):
    """Raised where pages do not hold vectors as they are read here. Arrow reads them."""


@dataclass(frozen=True, slots=True)
class VectorChunk:
    """The column chunk of a row group that holds vectors."""

    offset: int
    """Bytes of the file before it"""
    length: int
    rows: int
    dims: int
    codec: str | None
    """Arrow's name of the compression; None: none"""
    most_defined: int
    """Definition level of a value that is there"""

    @classmethod
    def of(cls, metadata: pq.FileMetaData, group: int, field: pa.Field) -> "VectorChunk | None":
        """None where the column, or this part of it, cannot hold such vectors."""
        is_of_lists = pa.types.is_list(field.type) or pa.types.is_large_list(field.type)
        if not is_of_lists or field.type.value_type != pa.float32():
            return None
        row_group = metadata.row_group(group)
        names = [row_group.column(number).path_in_schema.split(".")[0] for number in range(row_group.num_columns)]
        number = names.index(field.name)
        chunk, leaf = row_group.column(number), metadata.schema.column(number)
        rows, values = row_group.num_rows, chunk.num_values
        unlike = names.count(field.name) > 1 or leaf.max_repetition_level != 1 or chunk.physical_type != "FLOAT"
        if unlike or chunk.compression not in _CODECS or not rows or values % rows or 4 * values < LEAST_BYTES:
            return None
        start = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
        codec = _CODECS[chunk.compression]
        return cls(start, chunk.total_compressed_size, rows, values // rows, codec, leaf.max_definition_level)


def read_vectors(chunk: VectorChunk, read: Read, batch_rows: int) -> Iterator[F32]:
    """All vectors in order, f32[n, D]: so many in each batch but the last.

    Raises UnusualPageError where Arrow is to read what follows the batches so far.
    """
    size, remaining = batch_rows * chunk.dims, chunk.rows * chunk.dims
    out, filled = _floats_of(min(size, remaining)), 0
    for values in _pages(chunk, read):
        start = 0
        while start < len(values):
            part = values[start : start + len(out) - filled]
            out[filled : filled + len(part)] = part
            start, filled = start + len(part), filled + len(part)
            if filled == len(out):
                yield out.reshape(-1, chunk.dims)
                remaining -= filled
                out, filled = _floats_of(min(size, remaining)), 0


def as_lists(vectors: F32, kind: pa.DataType) -> pa.Array:
    """Vectors f32[n, D] as Arrow's lists of a type that a `VectorChunk` may have. They are not copied."""
    is_large = pa.types.is_large_list(kind)
    starts = np.arange(0, vectors.size + 1, vectors.shape[1], dtype=np.int64 if is_large else np.int32)
    lists = pa.LargeListArray if is_large else pa.ListArray
    return lists.from_arrays(starts, pa.array(vectors.reshape(-1)), type=kind)


def _floats_of(count: int) -> F32:
    """Memory of Arrow's, which is given back to it and taken again: batches of NumPy's are new pages each time."""
    return np.frombuffer(pa.allocate_buffer(4 * count), np.float32)


def _pages(chunk: VectorChunk, read: Read) -> Iterator[F32]:
    """The values of each page."""
    source = _Pieces(read, chunk.offset, chunk.length)
    codec = pa.Codec(chunk.codec) if chunk.codec else None
    dictionary: F32 | None = None
    done, total = 0, chunk.rows * chunk.dims
    while done < total:
        parsed = read_page_header(source.peek(_LONGEST_HEADER))
        if parsed is None:
            raise UnusualPageError
        header, length = parsed
        source.take(length)
        page = _Page(header, source.take(header.stored_length), codec)
        if header.kind == DICTIONARY:
            dictionary = page.dictionary()
            continue
        if not 0 < header.values <= total - done:
            raise UnusualPageError
        yield page.vectors(chunk, done, dictionary)
        done += header.values


@dataclass(frozen=True, slots=True)
class _Page:
    """A page as it is stored."""

    header: PageHeader
    stored: memoryview
    codec: Any

    def _unpacked(self, stored: memoryview, length: int) -> memoryview:
        """So many bytes, of which these are the stored form."""
        if self.codec is None or not self.header.is_compressed:
            raw = stored
        else:
            try:
                raw = memoryview(self.codec.decompress(stored, length))
            except (OSError, ValueError, pa.ArrowException) as error:
                raise UnusualPageError from error
        if len(raw) != length:
            raise UnusualPageError
        return raw

    def vectors(self, chunk: VectorChunk, first: int, dictionary: F32 | None) -> F32:
        """The values of a data page, before which there are `first` others. Their levels are compared."""
        repetition, definition, values = self._parts()
        from icepuffin.ann_kernels.level_runs import are_periodic  # noqa: PLC0415  numba, which few processes need

        count, defined = self.header.values, chunk.most_defined
        if not are_periodic(np.frombuffer(repetition, np.uint8), 1, first, count, chunk.dims, 0, 1) or not are_periodic(
            np.frombuffer(definition, np.uint8), defined.bit_length(), first, count, 1, defined, defined
        ):
            raise UnusualPageError
        if self.header.encoding == _PLAIN:
            return self._floats(values)
        if self.header.encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY) and dictionary is not None:
            return _looked_up(np.frombuffer(values, np.uint8), dictionary, count)
        raise UnusualPageError

    def _parts(self) -> tuple[memoryview, memoryview, memoryview]:
        """(repetition levels, definition levels, values)."""
        header = self.header
        if header.kind == DATA_V2:  # whose levels are not compressed
            first, second = header.repetition_length, header.repetition_length + header.definition_length
            if second > min(len(self.stored), header.raw_length):
                raise UnusualPageError
            values = self._unpacked(self.stored[second:], header.raw_length - second)
            return self.stored[:first], self.stored[first:second], values
        if (header.repetition_encoding, header.definition_encoding) != (_RLE, _RLE):
            raise UnusualPageError
        raw = self._unpacked(self.stored, header.raw_length)
        repetition, raw = _with_length(raw)
        definition, raw = _with_length(raw)
        return repetition, definition, raw

    def dictionary(self) -> F32:
        """The values of a dictionary page."""
        if self.header.encoding not in (_PLAIN, _PLAIN_DICTIONARY):
            raise UnusualPageError
        return self._floats(self._unpacked(self.stored, self.header.raw_length))

    def _floats(self, raw: memoryview) -> F32:
        if len(raw) != 4 * self.header.values:
            raise UnusualPageError
        return np.frombuffer(raw, "<f4")


def _with_length(raw: memoryview) -> tuple[memoryview, memoryview]:
    """(bytes whose number stands before them, those after them)."""
    end = 4 + struct.unpack_from("<I", raw)[0] if len(raw) >= 4 else -1
    if not 4 <= end <= len(raw):
        raise UnusualPageError
    return raw[4:end], raw[end:]


def _looked_up(data: U8, dictionary: F32, count: int) -> F32:
    """Values of a dictionary, by a byte that says how many bits a place has, and the places."""
    from icepuffin.ann_kernels.level_runs import look_up  # noqa: PLC0415  numba, which few processes need

    out = np.empty(count, np.float32)
    if not len(data) or not look_up(data[1:], int(data[0]), dictionary, out):
        raise UnusualPageError
    return out


class _Pieces:
    """A part of a file, read from its start to its end. Raises UnusualPageError where it ends early."""

    def __init__(self, read: Read, offset: int, length: int) -> None:
        self._read = read
        self._next = offset
        self._end = offset + length
        self._data = memoryview(b"")

    def peek(self, most: int) -> memoryview:
        """The next bytes, and so many at most; fewer at the end."""
        missing = most - len(self._data)
        if missing > 0 and self._next < self._end:
            length = min(max(missing, _PIECE), self._end - self._next)
            piece = self._read(self._next, length)
            self._next = self._next + length if len(piece) == length else self._end
            self._data = memoryview(bytes(self._data) + piece)
        return self._data[:most]

    def take(self, length: int) -> memoryview:
        """The next bytes, which are passed then."""
        first = self.peek(length)
        if len(first) != length:
            raise UnusualPageError
        self._data = self._data[length:]
        return first
