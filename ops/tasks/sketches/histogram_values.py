"""A histogram as people ask for it: by values of the column's own type. Needs no compiled kernels."""

import decimal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icepuffin.ann_kernels.sketches.kll import KllSketch
from icepuffin.ops.errors import ArgumentError
from icepuffin.ops.presentation import plain_values
from icepuffin.ops.tasks.sketches.sketch_types import type_name_of

_EPOCH = date(1970, 1, 1)
_DRAWN = (0.005, 0.995)
"""Ranks between which a histogram is drawn: a few values far away would leave the others one bar"""
_DIGITS = decimal.Context(prec=400)
"""Digits enough for any double to be rounded to the scale of a decimal"""


class HistogramBar(NamedTuple):
    """A range of values, and the share of all values that lie in it."""

    low: Any
    high: Any
    share: float


@dataclass(frozen=True, eq=False)
class ValueHistogram:
    """The values of one column but nulls and NaNs, by a KLL sketch.

    Values are those of the column's type: int, float, date, or Decimal, of which 16 digits count. Dates that Python
    lacks are texts.
    """

    column: str
    type: str
    """Type of the column, in Iceberg's text form"""
    sketch: KllSketch = field(repr=False)

    @property
    def count(self) -> int:
        """Number of values, nulls and NaNs left out."""
        return self.sketch.count

    @property
    def minimum(self) -> Any:
        """Smallest value; None where there are no values."""
        return self.quantiles([0])[0] if self.count else None

    @property
    def maximum(self) -> Any:
        """Largest value; None where there are no values."""
        return self.quantiles([1])[0] if self.count else None

    @property
    def rank_error(self) -> float:
        """What a share may be off by: 99 of 100 are off by less. 0 where all values are kept."""
        return self.sketch.rank_error

    def quantiles(self, ranks: Iterable[float]) -> list[Any]:
        """The values at or below which each share of the values lies, 0 to 1. Raises ArgumentError for other shares,
        and where there are no values.
        """
        shares = list(ranks)
        if not self.count or not all(0 <= share <= 1 for share in shares):
            raise ArgumentError(f"{self.column}: quantiles are of one value or more, at 0 to 1, not {shares}")
        return self._values(self.sketch.quantiles(shares))

    def ranks(self, values: Iterable[Any]) -> list[float]:
        """The share of the values that are at most each of `values`. Raises ArgumentError for those of another type."""
        found: list[float] = self.sketch.ranks(self._numbers(values)).tolist()
        return found

    def fraction_between(self, low: Any = None, high: Any = None) -> float:
        """The share of the values from `low` to `high`, both included; None: no bound. Raises as `ranks`."""
        below = 0.0 if low is None else self.sketch.ranks(self._numbers([low]), below=True).item()
        return max(0.0, (float(self.count > 0) if high is None else self.ranks([high])[0]) - below)

    def distance(self, other: "ValueHistogram") -> float:
        """The largest difference of the ranks of any value (Kolmogorov and Smirnov's), by both sketches' items."""
        items = np.concatenate([*self.sketch.levels, *other.sketch.levels])
        return float(np.max(np.abs(self.sketch.ranks(items) - other.sketch.ranks(items)), initial=0.0))

    def bars(self, most: int) -> list[HistogramBar]:
        """At most so many ranges of one width, ascending, over the middle 99 % of the values."""
        if not self.count:
            return []
        low, high = self.sketch.quantiles(_DRAWN).tolist()
        if isinstance(low, int):
            width = -(-(high - low + 1) // most)
            starts = range(low, high + 1, width)
            ends = [min(start + width - 1, high) for start in starts]
            starts_and_ends = np.array([starts, ends], np.int64)
        else:
            low, high = np.nan_to_num([low, high])  # infinities have no place on a scale
            shares = np.linspace(0, 1, (most if high > low else 1) + 1)
            edges = low * (1 - shares) + high * shares
            starts_and_ends = np.array([edges[:-1], edges[1:]])
        below = self.sketch.ranks(starts_and_ends[0][:1], below=True)
        in_each = np.diff(np.concatenate([below, self.sketch.ranks(starts_and_ends[1])])).tolist()
        return [HistogramBar(*bar) for bar in zip(*map(self._values, starts_and_ends), in_each, strict=True)]

    def _values(self, numbers: npt.NDArray[Any]) -> list[Any]:
        """Numbers of the sketch as values of the column."""
        type_name = type_name_of(self.type)
        if type_name == "date":
            return plain_values(pa.array(numbers, pa.int32()).cast(pa.date32()))
        if type_name != "decimal":
            return list(numbers.tolist())
        unit = Decimal(1).scaleb(-int(self.type.rpartition(",")[2].strip(" )")))
        return [Decimal(repr(number)).quantize(unit, context=_DIGITS) for number in numbers.tolist()]

    def _numbers(self, values: Iterable[Any]) -> npt.NDArray[Any]:
        """Values of the column as numbers that the sketch's are compared with."""
        given, is_date = list(values), type_name_of(self.type) == "date"
        try:
            numbers = [(value - _EPOCH) // timedelta(days=1) if is_date else value for value in given]
            floats = np.array([float(number) for number in numbers], np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"{self.column} is of type {self.type}, got {given}: {error}") from error
        if np.isnan(floats).any():
            raise ArgumentError(f"{self.column}: NaN has no rank, give numbers")
        return np.array(numbers, np.int64) if _are_long(numbers) else floats


def _are_long(numbers: Sequence[Any]) -> bool:
    return all(isinstance(number, int | np.integer) and -(2**63) <= int(number) < 2**63 for number in numbers)


def text_of(value: Any) -> str:
    """A value of a histogram as people read it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
