"""Sketches of each kind of statistics: made of columns, and united."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icepuffin.ann_kernels.sketches.kll import KllAccumulator
from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.ops.tasks.sketches.canonical_columns import canonical_chunks
from icepuffin.ops.tasks.sketches.column_updates import update_histogram, update_joint, update_ndv
from icepuffin.ops.tasks.sketches.frequent_values import FrequentAccumulator
from icepuffin.ops.tasks.sketches.images import Sketch, has_floats
from icepuffin.ops.tasks.sketches.statistic import Kind, StatisticKey, kind_of
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


_OF_KIND: Mapping[Kind, tuple[Callable[..., Any], Callable[..., None]]] = {
    Kind.NDV: (ThetaAccumulator, update_ndv),
    Kind.HISTOGRAM: (KllAccumulator, update_histogram),
    Kind.SIZE: (SizeAccumulator, SizeAccumulator.update),
    Kind.FREQUENT: (FrequentAccumulator, FrequentAccumulator.update),
    Kind.JOINT: (ThetaAccumulator, update_joint),
}
"""What holds the values of each kind, and what adds columns to it"""


class Accumulator:
    """A sketch of a statistic that grows. One accumulator belongs to one thread at a time.

    Memory: 128 KiB of NDVs and joint counts, 256 KiB of a histogram.
    """

    def __init__(self, key: StatisticKey) -> None:
        kind = kind_of(key)
        make, self._update = _OF_KIND[kind]
        self._is_joint = kind is Kind.JOINT
        self._values = make(np.float64 if has_floats(key) else np.int64) if kind is Kind.HISTOGRAM else make()

    def update(self, arrays: Sequence[pa.Array], types: Sequence[str]) -> None:
        """Add the rows of the statistic's columns, in their order. Raises SketchTypeError."""
        self._update(self._values, *((arrays, types) if self._is_joint else (arrays[0], types[0])))

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
