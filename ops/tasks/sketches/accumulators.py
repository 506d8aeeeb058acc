"""Sketches of each kind of statistics: made of columns, and united."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icepuffin.ann_kernels.sketches.kll import KllAccumulator
from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ops.tasks.sketches.canonical_columns import canonical_chunks
from icepuffin.ops.tasks.sketches.frequent_values import FrequentAccumulator
from icepuffin.ops.tasks.sketches.histogram_columns import update_histogram
from icepuffin.ops.tasks.sketches.images import Sketch, has_floats
from icepuffin.ops.tasks.sketches.joint_columns import update_joint
from icepuffin.ops.tasks.sketches.statistic import Kind, StatisticKey, kind_of
from icepuffin.ops.tasks.sketches.theta_columns import update_from_arrow
from icepuffin.puffin.blobs.theta_blob import ThetaSketch


class SizeAccumulator:
    """Bytes of the values of a column of variable width, as Presto's `sum_data_size_for_stats` counts them: of texts in
    UTF-8; nulls have none.
    """

    def __init__(self) -> None:
        self._bytes = 0

    def update(self, array: pa.Array | pa.ChunkedArray, iceberg_type: str) -> None:
        """Add a column as in `canonical_chunks`. Raises SketchTypeError for types of fixed width, and other data."""
        chunks = canonical_chunks(array, iceberg_type, Kind.SIZE)
        self._bytes += sum(pc.sum(pc.binary_length(chunk)).as_py() or 0 for chunk in chunks)

    def merge(self, size: int) -> None:
        self._bytes += size

    def result(self) -> int:
        return self._bytes


_OF_KIND: Mapping[Kind, Callable[[], Any]] = {
    Kind.NDV: ThetaAccumulator,
    Kind.JOINT: ThetaAccumulator,
    Kind.SIZE: SizeAccumulator,
    Kind.FREQUENT: FrequentAccumulator,
}
_UPDATES: Mapping[Kind, Callable[[Any, pa.Array, str], None]] = {
    Kind.NDV: update_from_arrow,
    Kind.HISTOGRAM: update_histogram,
    Kind.SIZE: SizeAccumulator.update,
    Kind.FREQUENT: FrequentAccumulator.update,
}


class Accumulator:
    """A sketch of a statistic that grows. One accumulator belongs to one thread at a time.

    Memory: 128 KiB of NDVs and joint counts, 256 KiB of a histogram.
    """

    def __init__(self, key: StatisticKey) -> None:
        self._kind = kind_of(key)
        if self._kind is Kind.HISTOGRAM:
            self._values: Any = KllAccumulator(np.float64 if has_floats(key) else np.int64)
        else:
            self._values = _OF_KIND[self._kind]()

    def update(self, arrays: Sequence[pa.Array], types: Sequence[str]) -> None:
        """Add the rows of the statistic's columns, in their order. Raises SketchTypeError."""
        if self._kind is Kind.JOINT:
            update_joint(self._values, arrays, types)
        else:
            _UPDATES[self._kind](self._values, arrays[0], types[0])

    def add(self, sketch: Sketch) -> None:
        """Add all that a sketch of the same statistic has seen."""
        if isinstance(sketch, ThetaSketch):
            self._values.update_sketch(sketch.theta, sketch.hashes)
        else:
            self._values.merge(sketch)

    def result(self) -> Sketch:
        """What has been added so far."""
        result = self._values.result()
        sketch: Sketch = ThetaSketch(*result) if isinstance(self._values, ThetaAccumulator) else result
        return sketch


def union_of(key: StatisticKey, sketches: Sequence[Sketch]) -> Sketch:
    """The union of sketches of one statistic."""
    if len(sketches) == 1:
        return sketches[0]
    union = Accumulator(key)
    for sketch in sketches:
        union.add(sketch)
    return union.result()


class UnitedSketches:
    """One union per statistic, however many sketches are added, in any order. Memory: that of an accumulator each."""

    def __init__(self) -> None:
        self._unions: dict[StatisticKey, Accumulator] = {}

    def add(self, key: StatisticKey, sketch: Sketch) -> None:
        """Add all that a sketch of a statistic has seen."""
        if key not in self._unions:
            self._unions[key] = Accumulator(key)
        self._unions[key].add(sketch)

    def union(self, key: StatisticKey) -> Sketch:
        """The union of a statistic; empty where nothing was added."""
        return (self._unions.get(key) or Accumulator(key)).result()

    def unions(self) -> dict[StatisticKey, Sketch]:
        """The unions of the statistics of which a sketch was added."""
        return {key: self.union(key) for key in self._unions}
