"""KLL sketches: the quantiles of a column's values, from a sample whose items stand for 1, 2, 4 ... values each.

Level i holds items of weight 2^i. A level that is over its capacity is sorted, and of each two items one goes up a
level, the first or the second by a pseudo-random bit: no rank is biased, and what the steps err by is independent.
The top level has room for k items, each level below for two thirds of the next, at least 8.

Source: Karnin, Lang, Liberty 2016, "Optimal Quantile Approximation in Streams"; capacities as Apache DataSketches has
them. Two differences make it fast, and its error no larger: 2^14 values are sorted at once, and one of each 2^j of them
goes straight to level j; and levels may hold 2^14 items more than their capacities before they are halved.

The bits follow from the values: the same values in the same order, in any batches, give the same sketch on any machine.
NumPy's sort does the work, so nothing is compiled here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.errors import KernelError

DEFAULT_K = 512
"""Room of the top level: images of 13 KiB at most, and 0.7 % for `KllSketch.rank_error`. Readers take any k."""
MIN_CAPACITY = 8
"""Items of the lowest levels, which DataSketches calls m"""
MAX_K = 65_535
MAX_LEVELS = 61

_ROOM = 1 << 14
"""Values that are sorted at once, and items that levels may hold before they are halved"""
_MASK = (1 << 64) - 1
Values: TypeAlias = npt.NDArray[Any]
"""i64[N] or f64[N]"""
_Parts: TypeAlias = list[list[Values]]
"""Arrays by level: those whose items it holds"""


@cache
def capacity(k: int, levels: int) -> int:
    """Number of items that a sketch of so many levels holds at most."""
    return sum(_level_capacity(k, depth) for depth in range(levels))


@cache
def _level_capacity(k: int, depth: int) -> int:
    """Capacity of a level that has `depth` levels above it: k * (2/3)^depth, rounded as DataSketches rounds."""
    rounded: int = ((2 * k << depth) // 3**depth + 1) // 2
    return max(MIN_CAPACITY, rounded)


@dataclass(frozen=True, slots=True, eq=False)
class KllSketch:
    """What a KLL sketch keeps of a column."""

    k: int
    count: int
    """Number of values, nulls and NaNs left out"""
    minimum: int | float | None
    """Smallest value; None where there are no values"""
    maximum: int | float | None
    """Largest value; None where there are no values"""
    levels: tuple[Values, ...]
    """Items of weight 2^i at position i, ascending, all i64 or all f64; weights add up to `count`"""

    @property
    def rank_error(self) -> float:
        """What the share of values in a range may be off by: 99 of 100 are off by less. 0 where all values are kept.

        The figure that DataSketches states for its own sketches (its "PMF" error); those made here err by less.
        """
        return 0.0 if len(self.levels) == 1 else 2.446 / self.k**0.9433

    def quantiles(self, ranks: npt.ArrayLike) -> Values:
        """The smallest item at or below which each share of the values lies; the extremes at 0 and 1.

        `ranks` f64[N] in 0 .. 1. Raises KernelError for others, and where there are no values.
        """
        shares = np.asarray(ranks, np.float64)
        if self.count == 0 or not bool(np.all((shares >= 0) & (shares <= 1))):
            raise KernelError(f"quantiles are of one value or more, at ranks in 0 .. 1: {self.count} values, {ranks!r}")
        items, below = self._cumulative()
        found = items[np.minimum(np.searchsorted(below, shares * self.count), len(items) - 1)]
        found = np.where(shares == 0, np.asarray(self.minimum, items.dtype), found)
        return np.where(shares == 1, np.asarray(self.maximum, items.dtype), found)

    def ranks(self, values: npt.ArrayLike, *, below: bool = False) -> npt.NDArray[np.float64]:
        """The share of the values that are at most each of `values`, or that are less."""
        items, up_to = self._cumulative()
        places = np.searchsorted(items, np.asarray(values), side="left" if below else "right")
        return np.concatenate([[0], up_to])[places] / max(1, self.count)

    def _cumulative(self) -> tuple[Values, npt.NDArray[np.int64]]:
        """All items in order, and the number of values up to and with each."""
        items = np.concatenate(self.levels)
        weights = np.repeat(np.int64(1) << np.arange(len(self.levels)), [len(level) for level in self.levels])
        order = np.argsort(items, kind="stable")
        return items[order], np.cumsum(weights[order])


class KllAccumulator:
    """A sketch that grows with each update and merge; `result` at any time.

    It is exact while there are at most k values. -0.0 counts as 0.0. Memory: 256 KiB. One accumulator belongs to one
    thread at a time. All methods raise KernelError for other types.
    """

    __slots__ = ("_buffer", "_count", "_extremes", "_filled", "_held", "_k", "_levels", "_seed")

    def __init__(self, dtype: npt.DTypeLike, k: int = DEFAULT_K) -> None:
        if np.dtype(dtype) not in (np.dtype(np.int64), np.dtype(np.float64)):
            raise KernelError(f"a KLL sketch is of i64 or f64, not {np.dtype(dtype)}")
        if not MIN_CAPACITY <= k <= MAX_K:
            raise KernelError(f"the k of a KLL sketch is {MIN_CAPACITY} to {MAX_K}, got {k}")
        self._k = k
        self._buffer = np.empty(_ROOM, dtype)
        self._filled = self._count = self._held = self._seed = 0
        self._extremes: list[int | float] = []
        self._levels: _Parts = [[]]

    def update(self, values: Values) -> None:
        """Add values i64[N] or f64[N], of the sketch's own type, without NaN."""
        if values.ndim != 1 or values.dtype != self._buffer.dtype:
            raise KernelError(f"this sketch takes {self._buffer.dtype}[N], got {values.dtype}{list(values.shape)}")
        self._fill(values)
        self._count += len(values)

    def merge(self, sketch: KllSketch) -> None:
        """Add all that a sketch of the same k and type has seen."""
        if sketch.k != self._k or sketch.levels[0].dtype != self._buffer.dtype:
            raise KernelError(f"k = {sketch.k}, {sketch.levels[0].dtype} into k = {self._k}, {self._buffer.dtype}")
        if sketch.minimum is None or sketch.maximum is None:
            return
        self._extremes = _extremes([*self._extremes, sketch.minimum, sketch.maximum])
        self._fill(sketch.levels[0])
        for level, items in enumerate(sketch.levels[1:], 1):
            self._put(level, items)
        self._count += sketch.count

    def result(self) -> KllSketch:
        """What has been added so far."""
        last = np.sort(self._buffer[: self._filled])
        extremes = self._extremes_with(last)
        levels, _ = _compressed([[last, *self._levels[0]], *self._levels[1:]], self._k, self._seed)
        items = tuple(_sorted(parts, self._buffer) for parts in levels)
        lowest, highest = extremes or (None, None)
        return KllSketch(self._k, self._count, lowest, highest, items)

    def _fill(self, values: Values) -> None:
        """Collect values until there are enough to be sorted."""
        start = 0
        while start < len(values):
            part = values[start : start + _ROOM - self._filled]
            np.add(part, 0, out=self._buffer[self._filled : self._filled + len(part)])  # makes 0.0 of -0.0
            start += len(part)
            self._filled += len(part)
            if self._filled == _ROOM:
                self._sample()

    def _sample(self) -> None:
        """Put one of each 2^j values of the full buffer, in their order, into level j: at most k."""
        self._buffer.sort()
        self._extremes = self._extremes_with(self._buffer)
        self._filled = 0
        level = ((_ROOM - 1) // self._k).bit_length()
        self._seed = _mixed(self._seed, self._buffer)
        self._put(level, self._buffer[self._seed >> (64 - level) :: 1 << level].copy())

    def _extremes_with(self, ascending: Values) -> list[int | float]:
        if len(ascending) == 0:
            return self._extremes
        if ascending[-1] != ascending[-1]:  # NumPy sorts NaN to the end
            raise KernelError("a KLL sketch takes no NaN; leave them out")
        return _extremes([*self._extremes, ascending[0].item(), ascending[-1].item()])

    def _put(self, level: int, items: Values) -> None:
        while len(self._levels) <= level:
            self._levels.append([])
        self._levels[level].append(items)
        self._held += len(items)
        if self._held > _ROOM:
            self._levels, self._seed = _compressed(self._levels, self._k, self._seed)
            self._held = _held(self._levels)


def _extremes(values: list[int | float]) -> list[int | float]:
    return [min(values), max(values)]


def _held(levels: _Parts) -> int:
    return sum(len(part) for parts in levels for part in parts)


def _sorted(parts: Sequence[Values], like: Values) -> Values:
    return np.sort(np.concatenate([like[:0], *parts]))


def _compressed(levels: _Parts, k: int, seed: int) -> tuple[_Parts, int]:
    """Halve the lowest levels that are over their capacities until the sketch is within its own.

    One way up is enough: each level that was passed is within its capacity, and a new top level adds room below.
    """
    halved, held, level = [list(parts) for parts in levels], _held(levels), 0
    while held > capacity(k, len(halved)):
        if sum(map(len, halved[level])) >= _level_capacity(k, len(halved) - 1 - level):
            items = _sorted(halved[level], halved[level][0])
            odd = len(items) % 2
            seed = _mixed(seed, items)
            if level + 1 == len(halved):
                halved.append([])
            halved[level] = [items[:odd].copy()]
            halved[level + 1].append(items[odd + (seed >> 63) :: 2].copy())
            held -= len(items) // 2
        level += 1
    return halved, seed


def _mixed(seed: int, items: Values) -> int:
    """64 pseudo-random bits of the seed and the items: files of other values get other bits, and their errors even out.

    Sebastiano Vigna's splitmix64 over the sum of all bits.
    """
    x = (seed + int(np.add.reduce(items.view(np.uint64))) + 0x9E3779B97F4A7C15) & _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)
