"""Lists of rows, such as the rows that have a tag, and the rows that some of the lists have in common.

The shortest list is gone through, and its rows are looked for in the others: in a bitmap, where a list has many of all
rows, or by galloping through it. So the work depends on the shortest list.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from icepuffin.ann_kernels.arrays import I32, I64, U32, U64, read_only
from icepuffin.ann_kernels.compilation import inner_kernel, kernel
from icepuffin.ann_kernels.rows.bitmap import keep_marked

NO_NODE = np.uint32(0xFFFFFFFF)
"""Node of a row that has none"""
_ROWS_PER_LISTED = 32
"""Rows per row of a list from which the list is searched as it is: a shorter one has fewer bytes than a bitmap"""
_LISTED_AT_ONCE = 4_096
_BLOCK = 16
"""Rows of a list that are compared with a row at once"""
_SHIFT, _LAST_BITS, _ONE = np.uint64(6), np.uint64(63), np.uint64(1)


class _PostingArrays(NamedTuple):
    """Postings as kernels take them."""

    starts: I64
    rows: U32
    bitmaps: I32
    words: U64


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """L lists of rows. Memory beside these: at most 4 bytes per row of a list."""

    starts: I64
    """int64[L + 1]: numbers of `rows` before those of each list"""
    rows: U32
    """u32[P]: rows, ascending within a list"""
    bitmaps: I32
    """int32[L]: index in `words` of each list that has many rows; -1 of the others"""
    words: U64
    """u64[B, ceil(N / 64)]: words of the `Bitmap` of such a list"""

    @classmethod
    def from_parts(cls, parts: Sequence[tuple[I64, U32]], size: int) -> "Postings":
        """All lists of some parts (starts int64[L + 1], rows u32[P]), of rows under `size`."""
        before = np.cumsum([0, *(len(rows) for _, rows in parts)])
        starts = np.concatenate([
            np.zeros(1, np.int64), *(offsets[1:] + first for (offsets, _), first in zip(parts, before, strict=False)),
        ])  # fmt: skip
        rows = parts[0][1] if len(parts) == 1 else np.concatenate([rows for _, rows in parts])
        dense = np.flatnonzero(np.diff(starts) * _ROWS_PER_LISTED > size)
        bitmaps = np.full(len(starts) - 1, -1, np.int32)
        bitmaps[dense] = np.arange(len(dense))
        words = np.zeros((len(dense), -(-size // 64)), np.uint64)
        _mark(read_only(starts), read_only(rows), read_only(dense), words)
        return cls(starts, rows, bitmaps, words)

    def __len__(self) -> int:
        return len(self.bitmaps)


@dataclass(frozen=True, slots=True, eq=False)
class CommonRows:
    """The rows that the lists of each of Q queries have in common."""

    counts: I64
    """int64[Q]: number of these rows; -1 where the number of their nodes is over the limit"""
    starts: I64
    """int64[Q + 1]: numbers of `nodes` before those of each query"""
    nodes: U32
    """u32[n]: nodes of the rows"""


def common_rows(postings: Postings, lists: I32, starts: I64, node_of_row: U32, limit: int) -> CommonRows:
    """The rows that all lists of a query have, for Q queries.

    Parameters
    ----------
    postings : Postings
    lists : int32[n]
        Numbers of lists, those of a query one after another.
    starts : int64[Q + 1]
        Numbers of `lists` before those of each query, which has at least one.
    node_of_row : u32[N]
        Node of each row; `NO_NODE` where it has none.
    limit : int
        Number of nodes from which those of a query are not of interest.
    """
    lengths = np.diff(postings.starts)[lists]
    shortest = np.minimum.reduceat(lengths, starts[:-1]) if len(lists) else np.empty(0, np.int64)
    nodes = np.empty(int(np.minimum(shortest, limit).sum()), np.uint32)
    counts, ends = np.empty(len(starts) - 1, np.int64), np.zeros(len(starts), np.int64)
    arrays = (
        read_only(postings.starts),
        read_only(postings.rows),
        read_only(postings.bitmaps),
        read_only(postings.words),
    )
    _fill(arrays, read_only(lists), read_only(starts), read_only(node_of_row), limit, counts, ends, nodes)
    return CommonRows(counts, ends, nodes[: ends[-1]])


@kernel
def _mark(starts: I64, rows: U32, dense: I64, words: U64) -> None:
    """The bitmaps of some lists."""
    for index in range(dense.size):
        for number in range(starts[dense[index]], starts[dense[index] + 1]):
            row = np.uint64(rows[number])
            words[index, row >> _SHIFT] |= _ONE << (row & _LAST_BITS)


@kernel
def _fill(
    postings: tuple[I64, U32, I32, U64],
    lists: I32,
    starts: I64,
    node_of_row: U32,
    limit: int,
    counts: I64,
    ends: I64,
    nodes: U32,
) -> None:
    """`common_rows`, one query after another."""
    own_lists = _PostingArrays(*postings)
    most = 1
    for query in range(counts.size):
        most = max(most, starts[query + 1] - starts[query])
    shortest, cursors = np.empty(most, np.int64), np.empty(most, np.int64)
    end = 0
    for query in range(counts.size):
        count = _by_length(own_lists.starts, lists[starts[query] : starts[query + 1]], shortest)
        counts[query], size = 0, 0
        if count:
            room = nodes[end:]
            counts[query], size = _common(own_lists, shortest[:count], cursors, node_of_row, limit, room)
        end += size
        ends[query + 1] = end


@inner_kernel
def _by_length(starts: I64, lists: I32, shortest: I64) -> int:
    """The lists of a query, the shortest first, into int64[n]. Returns their number; 0 where one is empty."""
    count = 0
    for number in lists:
        length = starts[number + 1] - starts[number]
        if length == 0:
            return 0
        index = count
        while index > 0 and starts[shortest[index - 1] + 1] - starts[shortest[index - 1]] > length:
            shortest[index] = shortest[index - 1]
            index -= 1
        shortest[index] = number
        count += 1
    return count


@inner_kernel
def _common(
    postings: _PostingArrays, shortest: I64, cursors: I64, node_of_row: U32, limit: int, nodes: U32
) -> tuple[int, int]:
    """The rows that all of some lists have: (their number, number of those with a node, which it writes); (-1, 0) where
    these are more than the limit.

    Rows of the first list are taken some at a time, so that one list after another is gone through for all of them.
    """
    starts, rows, bitmaps, words = postings
    for index in range(shortest.size):
        cursors[index] = starts[shortest[index]]
    chosen = np.empty(_LISTED_AT_ONCE, np.uint32)
    count, size = 0, 0
    last = starts[shortest[0] + 1]
    for first in range(starts[shortest[0]], last, _LISTED_AT_ONCE):
        number = min(_LISTED_AT_ONCE, last - first)
        for index in range(number):
            chosen[index] = rows[first + index]
        for index in range(1, shortest.size):
            bitmap = bitmaps[shortest[index]]
            if bitmap >= 0:
                number = keep_marked(chosen[:number], words[bitmap], chosen)
            else:
                end = starts[shortest[index] + 1]
                number, cursors[index] = _keep_listed(rows, cursors[index], end, chosen[:number])
        count += number
        for index in range(number):
            node = node_of_row[chosen[index]]
            if node != NO_NODE:
                if size == limit:
                    return -1, 0
                nodes[size] = node
                size += 1
    return count, size


@inner_kernel
def _keep_listed(others: U32, first: int, last: int, rows: U32) -> tuple[int, int]:
    """Keep the rows, ascending, that others[first:last] has, in front.

    Returns their number, and an index from which on larger rows are to be looked for.
    """
    kept = 0
    for row in rows:
        first = _gallop(others, first, last, row)
        rows[kept] = row
        if first + _BLOCK <= last:
            is_there = False
            for index in range(_BLOCK):
                is_there |= others[first + index] == row
            kept += int(is_there)
        else:
            for index in range(first, last):
                kept += int(others[index] == row)
    return kept, first


@inner_kernel
def _gallop(rows: U32, first: int, last: int, row: np.uint32) -> int:
    """The start of the first block from `first` on, of rows before `last`, whose last row is not under a row."""
    if first + _BLOCK >= last or rows[first + _BLOCK - 1] >= row:
        return first
    step = 1
    while first + (step + 1) * _BLOCK <= last and rows[first + (step + 1) * _BLOCK - 1] < row:
        first += step * _BLOCK
        step *= 2
    low, high = 1, min(step, (last - first - 1) // _BLOCK)
    while low < high:
        middle = (low + high) // 2
        if rows[first + (middle + 1) * _BLOCK - 1] < row:
            low = middle + 1
        else:
            high = middle
    return first + low * _BLOCK
