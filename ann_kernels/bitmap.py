"""Sets of rows as bitmaps: one bit per row, so that conditions are combined 64 rows at a time."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from icepuffin.ann_kernels.arrays import I64, U64, Bool, read_only
from icepuffin.ann_kernels.compilation import inline_kernel, kernel

_WORD = 64
_SHIFT, _LAST_BITS, _ONE = np.uint64(6), np.uint64(63), np.uint64(1)
_POWERS = np.uint64(67)
"""Smallest number that leaves another remainder of each power of two up to 2^63"""
_EXPONENTS = np.zeros(67, np.int64)
_EXPONENTS[[pow(2, exponent, 67) for exponent in range(_WORD)]] = np.arange(_WORD)


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
        _mark(read_only(np.ascontiguousarray(places, np.int64)), bitmap.words)
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
        places = np.empty(self.count(), np.int64)
        _fill_places(read_only(self.words), places)
        return places

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
def _mark(places: I64, words: U64) -> None:
    for place in places:
        row = np.uint64(place)
        words[row >> _SHIFT] |= _ONE << (row & _LAST_BITS)


@kernel
def _fill_places(words: U64, places: I64) -> None:
    count = 0
    for number in range(words.size):
        word = words[number]
        while word != 0:
            rest = word & (word - _ONE)
            places[count] = number * _WORD + _EXPONENTS[(word ^ rest) % _POWERS]
            count += 1
            word = rest
