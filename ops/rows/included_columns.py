"""Included columns: the values of a column of a data file, as versions store them for the rows of answers. See
docs/concepts.md.

A data file never changes, so what was read of it holds for as long as it would be read in the same way.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icepuffin.ops.rows.attributes import OFFSET, plain_bytes, value_width
from icepuffin.puffin.blobs.included_columns_blob import ValueBlock
from icepuffin.puffin.errors import BadBlobError

BLOCK_BYTES = 4096
"""Bytes of an average block, about: few enough to be decoded for one row, enough to be compressed"""
MAX_BLOCK_BYTES = 1 << 24
"""Bytes of the texts of one block, at most: a row of an answer costs the decoding of its block"""
MAX_ROWS = 256
"""Rows of a block, at most"""


def rows_per_block(values: pa.Array) -> int:
    """Rows of a block of a column, by some of its values: a power of two."""
    width = value_width(values.type) or 4 + _text_bytes(values) / max(1, len(values))
    return max(1, min(MAX_ROWS, 1 << int(np.log2(max(1.0, BLOCK_BYTES / width)))))


def _text_bytes(values: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(values)).as_py() or 0)


class LargeBlockError(Exception):
    """Raised where the values of a block take more than `MAX_BLOCK_BYTES`: they began short, and became long."""


def value_blocks(batches: Iterable[pa.Array], rows: int) -> Iterator[ValueBlock]:
    """The values of a column in blocks of `rows`, the last one with the rest. `batches`: in the column's `stored_type`.

    Memory: a batch, and a block. Raises LargeBlockError.
    """
    rest: pa.Array | None = None
    for batch in batches:
        first = 0 if rest is None else min(-len(rest) % rows, len(batch))
        if rest is not None and first:
            head = _checked(batch.slice(0, first))
            rest = _checked(pa.concat_arrays([rest, head]))
        if rest is not None and len(rest) == rows:
            yield block_of(rest)
            rest = None
        whole = first + (len(batch) - first) // rows * rows
        for start in range(first, whole, rows):
            yield block_of(_checked(batch.slice(start, rows)))
        if whole < len(batch):
            rest = _checked(batch.slice(whole))
    if rest is not None:
        yield block_of(rest)


def _checked(values: pa.Array) -> pa.Array:
    """The same. Raises LargeBlockError where several texts take more bytes."""
    if len(values) > 1 and value_width(values.type) == 0 and _text_bytes(values) > MAX_BLOCK_BYTES:
        raise LargeBlockError
    return values


def with_block_rows(batches: Iterable[pa.Array]) -> tuple[int, Iterator[pa.Array]]:
    """(rows of a block, by the first batch; all batches)."""
    remaining = iter(batches)
    first = next(remaining, None)
    return (MAX_ROWS, iter(())) if first is None else (rows_per_block(first), chain([first], remaining))


def block_of(values: pa.Array) -> ValueBlock:
    """Values by the layout of the blob. Equal values have equal bytes."""
    present = np.asarray(values.is_valid())
    if not present.all() and value_width(values.type) == 0:
        values = pc.fill_null(values, "" if pa.types.is_string(values.type) else b"")
    width, stored, offsets = plain_bytes(values)
    if width and not present.all():
        fixed = np.frombuffer(stored, np.uint8).reshape(-1, width)
        stored = np.where(present[:, None], fixed, np.uint8(0)).tobytes()
    return ValueBlock(present, stored, offsets)


def values_at(parts: Sequence[tuple[ValueBlock, Sequence[int]]], kind: pa.DataType) -> pa.Array:
    """Values of some rows of some blocks, one after the other, in the `stored_type` of the column.

    Raises BadBlobError where they are none of it.
    """
    present = np.concatenate([block.present[rows] for block, rows in parts])
    width = value_width(kind)
    if any(len(block.values) != len(block.present) * width if width else block.offsets is None for block, _ in parts):
        raise BadBlobError(f"included values are laid out otherwise than those of {kind}")
    validity = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    if width:
        fixed = [np.frombuffer(block.values, np.uint8).reshape(-1, width)[rows] for block, rows in parts]
        data = np.concatenate(fixed)
        if pa.types.is_boolean(kind):
            return pa.array(data[:, 0].astype(bool), mask=~present)
        buffers = [validity, pa.py_buffer(data.tobytes())]
    else:
        texts = [text for block, rows in parts for text in _texts(block, rows)]
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        if offsets[-1] > np.iinfo(OFFSET).max:
            raise BadBlobError("included values of one answer are over 2 GiB")
        buffers = [validity, pa.py_buffer(offsets.astype(OFFSET).tobytes()), pa.py_buffer(b"".join(texts))]
    try:
        values = pa.Array.from_buffers(kind, len(present), buffers)
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadBlobError(f"included values are none of {kind}: {error}") from error
    return values


def _texts(block: ValueBlock, rows: Sequence[int]) -> Iterator[bytes]:
    if block.offsets is not None:
        for row in rows:
            yield block.values[block.offsets[row] : block.offsets[row + 1]]
