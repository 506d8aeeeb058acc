"""Unions of theta sketches, one per column, that grow sketch by sketch."""

from collections import defaultdict

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator
from icepuffin.puffin.blobs.theta_blob import ThetaSketch


class UnitedSketches:
    """One union per column. Memory: 128 KiB per column, however many sketches are added, in any order."""

    def __init__(self) -> None:
        self._unions: defaultdict[int, ThetaAccumulator] = defaultdict(ThetaAccumulator)

    def add(self, field_id: int, sketch: ThetaSketch) -> None:
        """Add all that a sketch of a column has seen."""
        self._unions[field_id].update_sketch(sketch.theta, sketch.hashes)

    def union(self, field_id: int) -> ThetaSketch:
        """The union of a column; empty where nothing was added."""
        return ThetaSketch(*self._unions[field_id].result())

    def unions(self) -> dict[int, ThetaSketch]:
        """The unions of the columns of which a sketch was added, by field id."""
        return {field_id: self.union(field_id) for field_id in self._unions}
