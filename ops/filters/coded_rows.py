"""Rows by the codes of their values, and the conditions that such rows decide: trees of parts, each on one column.

A part is the codes for which it is true. The rows with some codes are a bitmap, and bitmaps are combined.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import I64, U32, Bool
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.rows.attributes import Codes

NO_LIST = 3
"""State of the list of a row that is deleted, or whose file's values are missing"""
_MAX_RUNS = 8
"""Runs of codes whose rows are looked up run by run, which is faster than a look-up of each row's code"""
_SPARSE = 32
"""Rows of a column per row with a code, from which these rows are marked one by one: a bitmap has as many rows in the
bytes of one number. With several codes it is bytes of the column, which are read instead"""


class CodedRows:
    """Some rows, or nodes, by the code of each. Thread-safe.

    Memory, once a condition was on them: at most 8 bytes per row beside the codes.
    """

    def __init__(self, codes: Codes, count: int) -> None:
        self.codes = codes
        """u8, u16 or u32 [n]: under `count`. The last one is that of rows which are deleted, or not here"""
        self._count = count
        self._kept: dict[int, Bitmap] = {}
        """Rows of codes that are not sparse: there are fewer than `_SPARSE` such codes"""

    @cached_property
    def _order(self) -> U32:
        """u32[n]: the rows by their codes, those of a code ascending."""
        order = np.argsort(self.codes.astype(np.uint16), kind="stable")  # a radix sort, which for u32 there is not
        if self.codes.dtype.itemsize > 2:
            order = order[np.argsort((self.codes >> 16).astype(np.uint16)[order], kind="stable")]
        return order.astype(np.uint32)

    @cached_property
    def starts(self) -> I64:
        """int64[codes + 1]: rows of smaller codes than each."""
        return np.append(0, np.cumsum(np.bincount(self.codes, minlength=self._count)))

    @property
    def postings(self) -> tuple[I64, U32]:
        """The rows of each code, ascending: (int64[codes + 1], numbers of the rows before those of each; u32[n])."""
        return self.starts, self._order

    @property
    def live_count(self) -> int:
        """Number of the rows that are there: the last code is that of the others."""
        return self.number_within(0, self._count - 2)

    def of_nodes(self, rows: I64, outside: Bool, is_live: Bool) -> "CodedRows":
        """Nodes by the codes of their rows, whose numbers are int64[n]. Those `outside` have none, and those of nodes
        that are not live mean nothing.
        """
        codes = self.codes[rows]
        if outside.any():
            codes[outside] = self._count - 1
        return CodedRows(codes, self._count)

    def number_within(self, first: int, last: int) -> int:
        """Number of rows with the codes `first` to `last`."""
        return int(self.starts[last + 1] - self.starts[first])

    def within(self, first: int, last: int) -> Bitmap:
        """The rows with the codes `first` to `last`."""
        count = self.number_within(first, last)
        if first == last and count * _SPARSE <= len(self.codes):
            return Bitmap.of_few(self._order[self.starts[first] : self.starts[first + 1]], len(self.codes))
        if first < last and count * _SPARSE <= self.codes.nbytes:
            return Bitmap.of_rows(self._order[self.starts[first] : self.starts[last + 1]], len(self.codes))
        if first < last:
            return Bitmap.from_mask(_within(self.codes, first, last))
        if first not in self._kept:
            self._kept[first] = Bitmap.from_mask(_within(self.codes, first, last))
        return self._kept[first]


@dataclass(frozen=True, eq=False)
class ColumnPart:
    """A part of a condition that is on one column: the codes for which it is true."""

    field_id: int
    runs: Sequence[tuple[int, int]]
    """(first, last) of codes for which it is true, ascending; one may begin right behind another"""

    @classmethod
    def from_mask(cls, field_id: int, true: Bool) -> "ColumnPart":
        """From bool[values]: for which values it is true."""
        codes = np.flatnonzero(true)
        breaks = np.flatnonzero(np.diff(codes) > 1)
        firsts, lasts = np.append(codes[:1], codes[breaks + 1]), np.append(codes[breaks], codes[-1:])
        return cls(field_id, list(zip(firsts.tolist(), lasts.tolist(), strict=True)))

    @classmethod
    def of_run(cls, field_id: int, start: int, end: int) -> "ColumnPart":
        """True for the codes from `start` on, to the one before `end`."""
        return cls(field_id, [(start, end - 1)] if start < end else [])

    def count(self, rows: CodedRows) -> int:
        """Number of rows for which it is true."""
        return sum(rows.number_within(*run) for run in self.runs)

    def rows(self, rows: CodedRows) -> Bitmap:
        """The rows for which it is true."""
        if not self.runs:
            return Bitmap.of_rows((), len(rows.codes))
        if len(self.runs) <= _MAX_RUNS:
            return reduce(or_, (rows.within(*run) for run in self.runs))
        edges = np.zeros(len(rows.starts), np.int8)
        firsts, lasts = np.array(self.runs).T
        edges[firsts] += 1
        edges[lasts + 1] -= 1  # where the next run may begin
        return Bitmap.from_mask(np.cumsum(edges, dtype=np.int8).view(np.bool_).take(rows.codes))


@dataclass(frozen=True, slots=True, eq=False)
class Combination:
    """A conjunction of parts of a condition (`every`), or a disjunction."""

    every: bool
    parts: "tuple[ConditionTree, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """The lists of some rows, or of the rows of some nodes."""

    states: npt.NDArray[np.uint8]
    """u8[n], of each list: `WHOLE`, `WITH_NULL`, `NULL`, or `NO_LIST` where the row is deleted or not here"""
    starts: I64
    """int64[elements + 1], numbers of `positions` before those of each element"""
    positions: npt.NDArray[np.unsignedinteger]
    """u32 or u64: numbers of the lists that have an element; of rows ascending per element"""
    _kept: dict[int, Bitmap] = field(default_factory=dict, init=False, repr=False)
    """Lists that have an element which is not sparse: there are fewer than `_SPARSE` per element of an average list"""

    @property
    def postings(self) -> tuple[I64, npt.NDArray[np.unsignedinteger]]:
        """The lists that have each element, as numbers before those of each, and these; of rows ascending."""
        return self.starts, self.positions

    @property
    def live_count(self) -> int:
        """Number of the rows that are there."""
        return int(np.count_nonzero(self.states != NO_LIST))

    def of_nodes(self, rows: I64, outside: Bool, is_live: Bool) -> "Lists":
        """Nodes by the lists of their rows, whose numbers are int64[n]. Those `outside`, or not live, have none."""
        live = np.flatnonzero(~outside & is_live)
        states = np.full(len(rows), NO_LIST, np.uint8)
        states[live] = self.states[rows[live]]
        none = len(rows)
        node_of_row = np.full(len(self.states), none, np.uint32)
        node_of_row[rows[live]] = live
        nodes = node_of_row[self.positions]
        here = nodes != none
        return Lists(states, np.append(0, np.cumsum(here))[self.starts], nodes[here])

    def in_state(self, states: Sequence[int]) -> Bitmap:
        """The lists in one of some states."""
        return Bitmap.from_mask(np.isin(self.states, states))

    def having(self, codes: Sequence[int]) -> Bitmap:
        """The lists that have one of some elements."""
        return reduce(or_, map(self._having, codes)) if codes else Bitmap.of_rows((), len(self.states))

    def _having(self, code: int) -> Bitmap:
        positions = self.positions[self.starts[code] : self.starts[code + 1]]
        if len(positions) * _SPARSE <= len(self.states):
            return Bitmap.of_rows(positions, len(self.states))
        if code not in self._kept:
            self._kept[code] = Bitmap.of_rows(positions, len(self.states))
        return self._kept[code]


@dataclass(frozen=True, eq=False)
class ListPart:
    """A part of a condition that is on one column of lists: `array_contains`, or whether the list is null."""

    field_id: int
    elements: tuple[int, ...] | None
    """Codes of the elements that the list must have one of, or none of; None where the state alone decides"""
    states: tuple[int, ...]
    """States of a list that has none of the elements, for which the part is true"""

    def rows(self, lists: Lists) -> Bitmap:
        """The lists for which it is true."""
        if self.elements is None:
            return lists.in_state(self.states)
        having = lists.having(self.elements)
        return lists.in_state(self.states).without(having) if self.states else having


ConditionTree = ColumnPart | ListPart | Combination


def _within(codes: Codes, first: int, last: int) -> Bool:
    """bool[n]: which codes are `first` to `last`."""
    kind = codes.dtype.type
    if first == last:
        return np.equal(codes, kind(first))
    return codes <= kind(last) if not first else codes - kind(first) <= kind(last - first)  # unsigned: wraps around


def evaluate(tree: ConditionTree, columns: Mapping[int, Any]) -> Bitmap:
    """The rows for which a tree is true, by the `CodedRows` or `Lists` of each column."""
    if not isinstance(tree, Combination):
        return tree.rows(columns[tree.field_id])
    if tree.every:
        return _intersection(tree, columns)
    return reduce(or_, (evaluate(part, columns) for part in tree.parts))


def _intersection(tree: Combination, columns: Mapping[int, Any]) -> Bitmap:
    """The rows for which all parts are true. Those of the rarest part are looked at one by one, where they are few."""

    def most(part: ConditionTree) -> float:
        return part.count(columns[part.field_id]) if isinstance(part, ColumnPart) else math.inf

    rarest, *others = sorted(tree.parts, key=most)
    rows = evaluate(rarest, columns)
    for part in others:
        if rows.is_few and isinstance(part, ColumnPart) and len(part.runs) == 1:
            rows = rows.coded(columns[part.field_id].codes, *part.runs[0])
        else:
            rows &= evaluate(part, columns)
    return rows
