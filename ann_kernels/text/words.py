"""Texts cut into forms of words: runs of letters, numbers and marks, and pairs of neighbours in Chinese, Japanese and
Korean. Each distinct form of bytes has a number, so that whoever folds case or stems does so once a form.
"""

from typing import Any, NamedTuple

import numpy as np

from icepuffin.ann_kernels.arrays import I32, I64, U8, AnyArray, read_only
from icepuffin.ann_kernels.compilation import inline_kernel, kernel
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.sketches.hashing import wrapping
from icepuffin.ann_kernels.text.word_characters import CJK, CODE_POINTS, NO_WORD, WORD, kinds_of_characters

MAX_FORM = 255
"""Bytes of a form: a longer run of characters counts by its first ones"""
_FORMS, _BYTES, _WORDS = range(3)
"""Indices in `_Tables.used`"""
_FEW_FORMS = 1 << 10


class _Tables(NamedTuple):
    """The forms that were met: a hash table with open addressing, and their bytes one after the other."""

    slots: I32
    """int32[power of two]: form in each slot, or -1"""
    ends: I64
    """int64[F]: bytes of `pool` before the end of each form"""
    pool: U8
    used: I64
    """int64[3]: forms, bytes of the pool, words of the texts so far"""


@inline_kernel
def _character(data: Any, at: Any, end: Any) -> Any:
    """(code point at a place, its bytes); what is no whole character is one byte of no word."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, np.int64(1)
    size = np.int64(1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0))
    if size == 1 or first >= 0xF8 or at + size > end:
        return np.int64(0), np.int64(1)
    point = first & (0x7F >> size)
    for i in range(1, size):
        if (data[at + i] & 0xC0) != 0x80:
            return np.int64(0), np.int64(1)
        point = (point << 6) | np.int64(data[at + i] & 0x3F)
    if point >= CODE_POINTS or (size > 2 and point < 1 << (5 * size - 4)) or point < 0x80:  # longer than need be
        return np.int64(0), np.int64(1)
    return point, size


@inline_kernel
def _number_of(data: Any, begin: Any, end: Any, slots: Any, ends: Any, pool: Any, used: Any) -> Any:
    """The number of the form data[begin:end]; it gets one where it is new."""
    if end - begin > MAX_FORM:
        end = begin + MAX_FORM
        while (data[end] & 0xC0) == 0x80 and end > begin + 1:  # the first bytes of a character are none
            end -= 1
    hashed = np.uint64(14695981039346656037)
    for i in range(begin, end):
        hashed = (hashed ^ np.uint64(data[i])) * np.uint64(1099511628211)
    hashed ^= hashed >> np.uint64(29)
    mask = np.uint64(slots.shape[0] - 1)
    slot = hashed & mask
    while slots[slot] >= 0:
        form = slots[slot]
        start = ends[form - 1] if form > 0 else np.int64(0)
        if ends[form] - start == end - begin:
            same = np.int64(0)
            while same < end - begin and pool[start + same] == data[begin + same]:
                same += 1
            if same == end - begin:
                return form
        slot = (slot + np.uint64(1)) & mask
    form = np.int32(used[_FORMS])
    slots[slot] = form
    for i in range(end - begin):
        pool[used[_BYTES] + i] = data[begin + i]
    used[_BYTES] += end - begin
    used[_FORMS] += 1
    ends[form] = used[_BYTES]
    return form


@inline_kernel
def _most_words(size: Any) -> Any:
    """Words of a text of so many bytes, at most."""
    return size // 2 + 1


@kernel
def _cut(data: U8, offsets: I64, row: Any, kinds: U8, tables: _Tables, words: I32, row_ends: I64) -> Any:
    """Cut texts from `row` on. Returns the row for whose forms there may be no room, or the number of rows."""
    slots, ends, pool, used = tables.slots, tables.ends, tables.pool, tables.used
    count = used[_WORDS]
    while row < row_ends.shape[0]:
        at, end = offsets[row], offsets[row + 1]
        most = _most_words(end - at)
        if 2 * (used[_FORMS] + most) > slots.shape[0] or used[_BYTES] + 2 * (end - at) > pool.shape[0]:
            break
        begin, before, kind_before, is_single = at, at, np.int64(NO_WORD), False
        while at <= end:
            kind, size = np.int64(NO_WORD), np.int64(1)
            if at < end:
                point, size = _character(data, at, end)
                kind = np.int64(kinds[point])
            if kind_before == WORD and kind != WORD:
                words[count] = _number_of(data, begin, at, slots, ends, pool, used)
                count += 1
            if kind_before == CJK and (kind == CJK or is_single):
                words[count] = _number_of(data, before, at + size if kind == CJK else at, slots, ends, pool, used)
                count += 1
                is_single = False
            if kind == WORD and kind_before != WORD:
                begin = at
            if kind == CJK:
                is_single = kind_before != CJK
                before = at
            kind_before = kind
            at += size
        row_ends[row] = count
        row += 1
    used[_WORDS] = count
    return row


@kernel
def _take_over(pool: U8, ends: I64, count: Any, tables: _Tables) -> None:
    """Number the forms of other tables in their order."""
    start = np.int64(0)
    for form in range(count):
        _number_of(pool, start, ends[form], tables.slots, tables.ends, tables.pool, tables.used)
        start = ends[form]


class WordForms:
    """The distinct forms of words in some texts, by number from 0. Not for several threads."""

    def __init__(self) -> None:
        self._tables = _tables(_FEW_FORMS, _FEW_FORMS * 8)

    def __len__(self) -> int:
        return int(self._tables.used[_FORMS])

    def cut(self, data: U8, offsets: AnyArray) -> tuple[I32, I64]:
        """(forms int32[words] of all texts in order, int64[N]: number of words before the end of each text).

        `data` u8, UTF-8; `offsets` int32 or int64[N + 1]. Bytes that are no UTF-8 part words. Raises KernelError.
        """
        offsets = np.ascontiguousarray(offsets, np.int64)
        lengths = np.diff(offsets)
        if not len(offsets) or (lengths < 0).any() or offsets[0] < 0 or offsets[-1] > len(data):
            raise KernelError(f"offsets must ascend within the {len(data)} bytes of data")
        words, row_ends = np.empty(int(_most_words(lengths).sum()), np.int32), np.empty(len(lengths), np.int64)
        row, arrays, kinds = 0, (read_only(data), read_only(offsets)), kinds_of_characters()
        self._tables.used[_WORDS] = 0
        while True:
            with wrapping():
                row = int(_cut(*arrays, np.int64(row), kinds, self._tables, words, row_ends))
            if row == len(lengths):
                return words[: self._tables.used[_WORDS]], row_ends
            size = int(lengths[row])
            self._grow(len(self) + _most_words(size), int(self._tables.used[_BYTES]) + 2 * size)

    def texts(self, first: int = 0) -> list[bytes]:
        """The forms from number `first` on."""
        ends = self._tables.ends[: len(self)].tolist()
        pool, starts = self._tables.pool, [0, *ends]
        return [pool[start:end].tobytes() for start, end in zip(starts[first:], ends[first:], strict=False)]

    def _grow(self, forms: int, size: int) -> None:
        """Make room for so many forms of so many bytes together, and for as many again."""
        old, new = self._tables, _tables(2 * forms, 2 * size)
        with wrapping():
            _take_over(read_only(old.pool), read_only(old.ends), np.int64(len(self)), new)
        new.used[_WORDS] = old.used[_WORDS]
        self._tables = new


def _tables(forms: int, size: int) -> _Tables:
    slots = 1 << (2 * forms - 1).bit_length()
    if slots > 1 << 31:
        raise KernelError(f"{forms:,} forms of words are too many at once")
    return _Tables(
        np.full(slots, -1, np.int32), np.empty(slots // 2, np.int64), np.empty(size, np.uint8), np.zeros(3, np.int64)
    )


def warm() -> None:
    """Compile every kernel of this module into numba's cache, for the array types that the product uses."""
    forms = WordForms()
    text = np.frombuffer("a 語語 ".encode() * _FEW_FORMS, np.uint8)
    forms.cut(text, np.array([0, len(text)], np.int32))
