"""Sets of rows as bitmaps: one bit per row, so that conditions are combined 64 rows at a time.

A set of few rows may be their numbers instead, until somebody needs its bits.
"""

from typing import Any

import numpy as np

from icepuffin.ann_kernels.arrays import I64, U32, U64, AnyArray, Bool, read_only
from icepuffin.ann_kernels.compilation import inline_kernel, kernel
from icepuffin.ann_kernels.simd.bits import count_bits, trailing_zeros, without_lowest_bit

_WORD = 64
_USUAL = 4
"""Rows per word up to which a loop over them does not depend on their number"""
_SHIFT, _LAST_BITS, _ONE = np.uint64(6), np.uint64(63), np.uint64(1)


class Bitmap:
    """Some of `size` rows. It never changes, and may be shared."""

    __slots__ = ("_count", "_rows", "_words", "size")

    def __init__(self, words: U64 | None, size: int, rows: U32 | None = None) -> None:
        """From `words`, or from `rows`, ascending, or from both."""
        self.size = size
        self._words = words
        self._rows = rows
        self._count = None if rows is None else len(rows)

    @classmethod
    def from_mask(cls, marked: Bool) -> "Bitmap":
        """The rows that `marked` bool[size] has."""
        words = _no_words(len(marked))
        packed = np.packbits(marked, bitorder="little")
        words.view(np.uint8)[: len(packed)] = packed
        return cls(words, len(marked))

    @classmethod
    def of_rows(cls, indices: Any, size: int) -> "Bitmap":
        """The rows whose numbers are `indices`, integers [n] under `size`, in any order."""
        rows = np.ascontiguousarray(indices)
        if rows.dtype != np.uint32:  # which is marked as it is: a copy takes as long
            rows = rows.astype(np.int64, copy=False)
        return cls(_marked(rows, size), size)

    @classmethod
    def of_few(cls, rows: U32, size: int) -> "Bitmap":
        """The rows whose numbers are u32[n] under `size`, ascending. They are kept as they are: bits cost all rows."""
        return cls(None, size, rows)

    @property
    def words(self) -> U64:
        """u64[ceil(size / 64)]: bit i % 64 of word i // 64 is row i; bits past `size` are 0."""
        if self._words is None:
            self._words = _marked(self.rows(), self.size)
        return self._words

    @property
    def is_few(self) -> bool:
        """Whether it is made of the rows' numbers."""
        return self._rows is not None

    def __and__(self, other: "Bitmap") -> "Bitmap":
        fewer, more = (other, self) if other.is_few else (self, other)
        if not fewer.is_few:
            return Bitmap(self.words & other.words, self.size)
        kept = np.empty(fewer.count(), np.uint32)
        count = keep_marked(read_only(fewer.rows()), read_only(more.words), kept)
        return Bitmap(None, self.size, kept[:count])

    def __or__(self, other: "Bitmap") -> "Bitmap":
        return Bitmap(self.words | other.words, self.size)

    def without(self, other: "Bitmap") -> "Bitmap":
        """The rows that `other` lacks."""
        return Bitmap(self.words & ~other.words, self.size)

    def coded(self, codes: AnyArray, first: int, last: int) -> "Bitmap":
        """The rows whose codes, of u8, u16 or u32 [size], are `first` to `last`. For few rows."""
        kept = np.empty(self.count(), np.uint32)
        kind = codes.dtype.type
        count = _keep_coded(read_only(self.rows()), read_only(codes), kind(first), kind(last), kept)
        return Bitmap(None, self.size, kept[:count])

    def count(self) -> int:
        """Number of rows that it has."""
        if self._count is None:
            self._count = int(_count(read_only(self.words)))
        return self._count

    def rows(self) -> U32:
        """u32[n]: numbers of the rows that it has, ascending. Of few rows these are not made anew."""
        if self._rows is not None:
            return self._rows
        rows = np.empty(self.count() + _WORD, np.uint32)
        next_rows(read_only(self.words), 0, rows, self.size)
        return rows[: self.count()]

    def indices(self) -> I64:
        """int64[n]: numbers of the rows that it has, ascending."""
        return self.rows().astype(np.int64)

    def marked(self, start: int = 0, stop: int | None = None) -> Bool:
        """bool[stop - start]: which rows of a span it has; default all rows."""
        stop = self.size if stop is None else stop
        first = start // 8
        packed = self.words.view(np.uint8)[first : -(-stop // 8)]
        return np.unpackbits(packed, bitorder="little")[start - 8 * first : stop - 8 * first].view(np.bool_)


def _no_words(size: int) -> U64:
    return np.zeros(-(-size // _WORD), np.uint64)


def _marked(rows: AnyArray, size: int) -> U64:
    words = _no_words(size)
    _mark(read_only(rows), words)
    return words


@inline_kernel
def has_row(words: U64, row: Any) -> Any:
    """1 where a bitmap has a row, else 0, u64."""
    index = np.uint64(row)
    return (words[index >> _SHIFT] >> (index & _LAST_BITS)) & _ONE


@kernel
def _mark(indices: AnyArray, words: U64) -> None:
    for index in indices:
        row = np.uint64(index)
        words[row >> _SHIFT] |= _ONE << (row & _LAST_BITS)


@kernel
def _count(words: U64) -> int:
    total = 0
    for word in words:
        total += count_bits(word)
    return total


@kernel
def keep_marked(rows: U32, words: U64, kept: U32) -> int:
    """Keep the rows that a bitmap has, into u32[n], which may be `rows` itself. Returns their number."""
    count = 0
    for row in rows:  # branch-free: written first and counted after
        kept[np.uint32(count)] = row
        count += int(has_row(words, row))
    return count


@kernel
def _keep_coded(rows: U32, codes: AnyArray, first: Any, last: Any, kept: U32) -> int:
    """Keep the rows whose codes are `first` to `last`, into u32[n]. Returns their number."""
    count = 0
    for row in rows:
        kept[np.uint32(count)] = row
        code = codes[row]
        count += int((first <= code) & (code <= last))
    return count


@kernel
def next_rows(words: U64, first: int, indices: AnyArray, enough: int) -> tuple[int, int]:
    """The numbers, ascending, of the rows in some words from the `first` on, into integers [enough + 64].

    Returns (the word after these, number of the rows). It stops at the word that makes them `enough`.
    """
    count, number = 0, first
    while number < words.size and count < enough:
        word = words[number]
        size, first = count_bits(word), number * _WORD
        for index in range(_USUAL):  # written first and counted after: the end of a loop would be unpredictable
            indices[count + index] = first + trailing_zeros(word)
            word = without_lowest_bit(word)
        for index in range(_USUAL, size):
            indices[count + index] = first + trailing_zeros(word)
            word = without_lowest_bit(word)
        count += size
        number += 1
    return number, count
