"""The distinct values of a column, with which a condition is compared: each once, however many rows have it.

The code of a value is its index. So the meaning of a condition is that of comparing the rows of the data files: the
same code compares (`predicate`), but for equal texts and whole numbers, which are looked up.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNaN,
    BoundLessThan,
    BoundLessThanOrEqual,
    Or,
)

from icepuffin.ann_kernels.arrays import I64
from icepuffin.ann_kernels.cached_property import cached_property
from icepuffin.ops.filters.coded_rows import ColumnPart
from icepuffin.ops.filters.condition_parser import LookUp
from icepuffin.ops.filters.list_predicate import BoundArrayContains
from icepuffin.ops.filters.predicate import RowPredicate, element_truth
from icepuffin.ops.rows.attributes import merged

ColumnTest = LookUp | BooleanExpression
"""A part of a condition that is on one column: a look-up, or a part of the bound expression of a `RowPredicate`"""
_FALLING = BoundLessThan | BoundLessThanOrEqual
_RISING = BoundGreaterThan | BoundGreaterThanOrEqual
_MAX_COMPARED = 1_000
"""Values that are all compared: that takes microseconds"""
_MAX_LISTED = 1 << 16
"""Values that a dictionary lists, of some 100 bytes each. More are searched by halves: that takes microseconds, and no
memory"""


class DistinctValues:
    """The distinct values of a column of plain values, or the distinct elements of its lists. Thread-safe."""

    def __init__(self, values: pa.Array, *, in_order: bool) -> None:
        self.values = values
        """Distinct values, ascending where they have an order, and null behind them"""
        self._count = len(values) - 1
        self._in_order = in_order
        self._are_texts = pa.types.is_string(values.type)
        self._are_looked_up = self._are_texts or pa.types.is_integer(values.type)

    @classmethod
    def from_arrays(cls, parts: Sequence[pa.Array], kind: pa.DataType) -> "tuple[DistinctValues, list[I64]]":
        """(distinct values of all parts, in order, so that ranges are runs; the codes of each part's values).

        They stay as they are where Arrow has no order.
        """
        distinct, indices = merged([pa.array([], kind), *parts])
        ranks, in_order = np.arange(len(distinct)), True
        try:
            order = pc.array_sort_indices(distinct)
        except pa.ArrowNotImplementedError:
            in_order = False
        else:
            ranks[order.to_numpy()] = np.arange(len(distinct))
            distinct = distinct.take(order)
        values = cls(pa.concat_arrays([distinct, pa.nulls(1, kind)]), in_order=in_order)
        return values, np.split(ranks[indices], np.cumsum([len(part) for part in parts], dtype=np.int64))[:-1]

    def __len__(self) -> int:
        """Number of the values, which is the code of null."""
        return self._count

    def part(self, field_id: int, test: ColumnTest, predicate: RowPredicate | None) -> ColumnPart:
        """A test of a column of plain values, by codes. Raises FilterError.

        `predicate`: what the test is a part of; None for a look-up.
        """
        named = self._named_values(test)
        if named is not None:
            return ColumnPart(field_id, [(code, code) for code in self.codes(named)])
        if predicate is None or isinstance(test, LookUp):
            raise TypeError(f"{test} is no look-up among values of type {self.values.type}")
        if self._in_order and len(self) >= _MAX_COMPARED:
            if isinstance(test, _FALLING):
                return ColumnPart.of_run(field_id, 0, self._first_codes(test, predicate, are_true=True))
            if self._is_rising(test):
                return ColumnPart.of_run(field_id, self._first_codes(test, predicate, are_true=False), len(self))
        return ColumnPart.from_mask(field_id, predicate.truth(test, self.values))

    def elements(self, test: LookUp | BoundArrayContains) -> list[int]:
        """Codes, ascending, of the elements that a list has to have one of."""
        named = self._named_values(test)
        if named is not None:
            return self.codes(named)
        if isinstance(test, LookUp):
            raise TypeError(f"{test} is no look-up among values of type {self.values.type}")
        found = element_truth(test, self.values).fill_null(False).to_numpy(zero_copy_only=False)
        codes: list[int] = np.flatnonzero(found).tolist()
        return codes

    def codes(self, values: Iterable[Any]) -> list[int]:
        """Codes, ascending, of those of some texts or whole numbers that there are: Python compares them as Arrow."""
        codes = map(self._listed.get if self._count <= _MAX_LISTED else self._searched, values)
        return sorted({code for code in codes if code is not None})

    def _named_values(self, test: ColumnTest) -> Collection[Any] | None:
        """The values one of which a test finds; None where it does not name them, or they are not looked up."""
        if not self._are_looked_up:
            return None
        match test:
            case LookUp():
                return test.values
            case BoundEqualTo():
                return (test.literal.value,)
            case BoundIn():
                return test.value_set
            case BoundArrayContains():
                return () if test.value is None else (test.value.value,)
        return None

    @cached_property
    def _listed(self) -> dict[Any, int]:
        return {value: code for code, value in enumerate(self.values[:-1].to_pylist())}

    @cached_property
    def _numbers(self) -> Any:
        return self.values[:-1].to_numpy()

    @cached_property
    def _text_buffers(self) -> tuple[memoryview, memoryview]:
        """(offsets of the texts, their bytes)."""
        _, offsets, texts = self.values.buffers()
        return memoryview(offsets).cast("i")[self.values.offset :], memoryview(texts)

    def _searched(self, value: Any) -> int | None:
        """The code of a value by bisection; None where there is none."""
        if self._are_texts:
            text = value.encode()
            code = bisect_left(range(len(self)), text, key=self._text)
            return code if code < len(self) and self._text(code) == text else None
        if not self._numbers[0] <= value <= self._numbers[-1]:  # of another size, perhaps, than the column's type
            return None
        code = int(np.searchsorted(self._numbers, self._numbers.dtype.type(value)))
        return code if self._numbers[code] == value else None

    def _text(self, code: int) -> bytes:
        """The text of a code, as UTF-8, whose order is that of the characters."""
        offsets, texts = self._text_buffers
        return bytes(texts[offsets[code] : offsets[code + 1]])

    def _is_rising(self, test: BooleanExpression) -> bool:
        """Whether a test is true for the last values alone; NaN, which is over all others, is among them."""
        if pa.types.is_floating(self.values.type):
            return isinstance(test, Or) and isinstance(test.left, _RISING) and isinstance(test.right, BoundIsNaN)
        return isinstance(test, _RISING)

    def _first_codes(self, test: BooleanExpression, predicate: RowPredicate, *, are_true: bool) -> int:
        """Number of the first values for which a comparison by order is true, or is not.

        Few values are compared: one per block, and those of the block where the comparison may change.
        Raises FilterError.
        """
        count = len(self)
        step = math.isqrt(count)
        of_blocks = predicate.truth(test, self.values.take(np.arange(0, count, step)))
        start = max(0, (int(np.count_nonzero(of_blocks == are_true)) - 1) * step)
        of_values = predicate.truth(test, self.values[start : min(start + step, count)])
        return start + int(np.count_nonzero(of_values == are_true))
