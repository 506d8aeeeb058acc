"""Sketches of each kind of statistics: made of columns, united, and as bytes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from icepuffin.ann_kernels.sketches.kll import KllAccumulator, KllSketch
from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ops.tasks.sketches.data_sizes import data_size
from icepuffin.ops.tasks.sketches.frequent_values import FrequentAccumulator
from icepuffin.ops.tasks.sketches.histogram_columns import update_histogram
from icepuffin.ops.tasks.sketches.images import Sketch, has_floats
from icepuffin.ops.tasks.sketches.joint_columns import update_joint
from icepuffin.ops.tasks.sketches.statistic import Kind, StatisticKey, kind_of
from icepuffin.ops.tasks.sketches.theta_columns import update_from_arrow
from icepuffin.puffin.blobs.theta_blob import ThetaSketch

_SketchT = TypeVar("_SketchT", bound=Sketch)


class Accumulator(ABC, Generic[_SketchT]):
    """A sketch that grows. One accumulator belongs to one thread at a time."""

    @abstractmethod
    def update(self, arrays: Sequence[pa.Array], types: Sequence[str]) -> None:
        """Add the rows of the statistic's columns, in their order. Raises SketchTypeError."""

    @abstractmethod
    def add(self, sketch: _SketchT) -> None:
        """Add all that a sketch of the same statistic has seen."""

    @abstractmethod
    def result(self) -> _SketchT:
        """What has been added so far."""


class _Distinct(Accumulator[ThetaSketch]):
    def __init__(self, *, is_joint: bool) -> None:
        self._values, self._is_joint = ThetaAccumulator(), is_joint

    def update(self, arrays: Sequence[pa.Array], types: Sequence[str]) -> None:
        if self._is_joint:
            update_joint(self._values, arrays, types)
        else:
            update_from_arrow(self._values, arrays[0], types[0])

    def add(self, sketch: ThetaSketch) -> None:
        self._values.update_sketch(sketch.theta, sketch.hashes)

    def result(self) -> ThetaSketch:
        return ThetaSketch(*self._values.result())


class _Histogram(Accumulator[KllSketch]):
    def __init__(self, *, floats: bool) -> None:
        self._values = KllAccumulator(np.float64 if floats else np.int64)

    def update(self, arrays: Sequence[pa.Array], types: Sequence[str]) -> None:
        update_histogram(self._values, arrays[0], types[0])

    def add(self, sketch: KllSketch) -> None:
        self._values.merge(sketch)

    def result(self) -> KllSketch:
        return self._values.result()


class _Size(Accumulator[int]):
    def __init__(self) -> None:
        self._bytes = 0

    def update(self, arrays: Sequence[pa.Array], types: Sequence[str]) -> None:
        self._bytes += data_size(arrays[0], types[0])

    def add(self, sketch: int) -> None:
        self._bytes += sketch

    def result(self) -> int:
        return self._bytes


class _Frequent(Accumulator[bytes]):
    def __init__(self) -> None:
        self._values = FrequentAccumulator()

    def update(self, arrays: Sequence[pa.Array], types: Sequence[str]) -> None:
        self._values.update(arrays[0], types[0])

    def add(self, sketch: bytes) -> None:
        self._values.merge(sketch)

    def result(self) -> bytes:
        return self._values.result()


def accumulator_of(key: StatisticKey) -> Accumulator[Any]:
    """An empty sketch of a statistic. Memory: 128 KiB of NDVs and joint counts, 256 KiB of a histogram."""
    kind = kind_of(key)
    if kind is Kind.HISTOGRAM:
        return _Histogram(floats=has_floats(key))
    if kind is Kind.SIZE:
        return _Size()
    return _Frequent() if kind is Kind.FREQUENT else _Distinct(is_joint=kind is Kind.JOINT)


def union_of(key: StatisticKey, sketches: Sequence[Sketch]) -> Sketch:
    """The union of sketches of one statistic."""
    if len(sketches) == 1:
        return sketches[0]
    union = accumulator_of(key)
    for sketch in sketches:
        union.add(sketch)
    result: Sketch = union.result()
    return result


class UnitedSketches:
    """One union per statistic, however many sketches are added, in any order. Memory: that of an accumulator each."""

    def __init__(self) -> None:
        self._unions: dict[StatisticKey, Accumulator[Any]] = {}

    def add(self, key: StatisticKey, sketch: Sketch) -> None:
        """Add all that a sketch of a statistic has seen."""
        if key not in self._unions:
            self._unions[key] = accumulator_of(key)
        self._unions[key].add(sketch)

    def union(self, key: StatisticKey) -> Sketch:
        """The union of a statistic; empty where nothing was added."""
        sketch: Sketch = (self._unions.get(key) or accumulator_of(key)).result()
        return sketch

    def unions(self) -> dict[StatisticKey, Sketch]:
        """The unions of the statistics of which a sketch was added."""
        return {key: self.union(key) for key in self._unions}
