"""Sets of rows as bitmaps: one bit per row, so that conditions are combined 64 rows at a time."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from icepuffin.ann_kernels.arrays import I64, U64, AnyArray, Bool, read_only
from icepuffin.ann_kernels.compilation import inline_kernel, kernel
from icepuffin.ann_kernels.simd.bits import count_bits, trailing_zeros, without_lowest_bit

_WORD = 64
_USUAL = 4
"""Rows per word up to which a loop over them does not depend on their number"""
_SHIFT, _LAST_BITS, _ONE = np.uint64(6), np.uint64(63), np.uint64(1)


@dataclass(frozen=True, slots=True, eq=False)
class Bitmap:
    """Some of `size` rows. It never changes, and may be shared."""

    words: U64
    """u64[ceil(size / 64)]: bit i % 64 of word i // 64 is row i; bits past `size` are 0"""
    size: int

    @classmethod
    def of(cls, marked: Bool) -> "Bitmap":
        """The rows that `marked` bool[size] has."""
        bitmap = cls._none(len(marked))
        packed = np.packbits(marked, bitorder="little")
        bitmap.words.view(np.uint8)[: len(packed)] = packed
        return bitmap

    @classmethod
    def of_rows(cls, places: Any, size: int) -> "Bitmap":
        """The rows whose numbers are `places`, integers [n] under `size`, in any order."""
        bitmap = cls._none(size)
        rows = np.ascontiguousarray(places)
        if rows.dtype != np.uint32:  # which is marked as it is: a copy takes as long
            rows = rows.astype(np.int64, copy=False)
        _mark(read_only(rows), bitmap.words)
        return bitmap

    @classmethod
    def _none(cls, size: int) -> "Bitmap":
        return cls(np.zeros(-(-size // _WORD), np.uint64), size)

    def __and__(self, other: "Bitmap") -> "Bitmap":
        return Bitmap(self.words & other.words, self.size)

    def __or__(self, other: "Bitmap") -> "Bitmap":
        return Bitmap(self.words | other.words, self.size)

    def without(self, other: "Bitmap") -> "Bitmap":
        """The rows that `other` lacks."""
        return Bitmap(self.words & ~other.words, self.size)

    def count(self) -> int:
        """Number of rows that it has."""
        return int(np.bitwise_count(self.words).sum(dtype=np.int64))

    def places(self) -> I64:
        """int64[n]: numbers of the rows that it has, ascending."""
        count = self.count()
        places = np.empty(count + _WORD, np.int64)
        next_places(read_only(self.words), 0, places, self.size)
        return places[:count]

    def marked(self, start: int = 0, stop: int | None = None) -> Bool:
        """bool[stop - start]: which rows of a span it has; default all rows."""
        stop = self.size if stop is None else stop
        first = start // 8
        packed = self.words.view(np.uint8)[first : -(-stop // 8)]
        return np.unpackbits(packed, bitorder="little")[start - 8 * first : stop - 8 * first].view(np.bool_)


@inline_kernel
def has_row(words: U64, row: Any) -> Any:
    """1 where a bitmap has a row, else 0, u64."""
    place = np.uint64(row)
    return (words[place >> _SHIFT] >> (place & _LAST_BITS)) & _ONE


@kernel
def _mark(places: AnyArray, words: U64) -> None:
    for place in places:
        row = np.uint64(place)
        words[row >> _SHIFT] |= _ONE << (row & _LAST_BITS)


@kernel
def next_places(words: U64, first: int, places: AnyArray, enough: int) -> tuple[int, int]:
    """The numbers, ascending, of the rows in some words from the `first` on, into integers [enough + 64].

    Returns (the word after these, number of the rows). It stops at the word that makes them `enough`.
    """
    count, number = 0, first
    while number < words.size and count < enough:
        word = words[number]
        size, first = count_bits(word), number * _WORD
        for place in range(_USUAL):  # written first and counted after: the end of a loop would be unpredictable
            places[count + place] = first + trailing_zeros(word)
            word = without_lowest_bit(word)
        for place in range(_USUAL, size):
            places[count + place] = first + trailing_zeros(word)
            word = without_lowest_bit(word)
        count += size
        number += 1
    return number, count
