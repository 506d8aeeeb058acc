"""The kinds of statistics, and one statistic of a table: a kind, and the columns that it is of. Pure, without numba."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from icepuffin.ann_kernels.sketches.theta_estimates import DEFAULT_K
from icepuffin.ops.tasks.sketches.sketch_types import HISTOGRAM_TYPES, SIZE_TYPES, SKETCHED_TYPES

StatisticKey = tuple[int, str]
"""(field id of the first column, `Statistic.counted_as`): what a sketch is of, in files and in memory"""


class Kind(StrEnum):
    """A kind of statistics, by its key in the settings."""

    NDV = "ndv"
    """Theta sketch of one column"""
    HISTOGRAM = "histogram"
    """KLL sketch of one column"""
    SIZE = "size"
    """Bytes of the values of a column of variable width"""
    FREQUENT = "frequent"
    """Most frequent values of one column"""
    JOINT = "joint"
    """Theta sketch of the tuples of several columns"""


FORMATS = {Kind.HISTOGRAM: "histogram/1", Kind.SIZE: "size/1", Kind.FREQUENT: "frequent/1", Kind.JOINT: "joint/1"}
"""First word of the keys of each kind but NDVs, whose keys begin with the type; to be raised when the same rows give
another sketch
"""
COUNTS_OF_DISTINCT = (Kind.NDV, Kind.JOINT)
"""Kinds whose union counts rows once that are in both sketches; of the others each row may be in one alone"""
TYPES = {
    Kind.NDV: SKETCHED_TYPES,
    Kind.HISTOGRAM: frozenset(HISTOGRAM_TYPES),
    Kind.SIZE: SIZE_TYPES,
    Kind.FREQUENT: SKETCHED_TYPES,
    Kind.JOINT: SKETCHED_TYPES,
}
"""Names of the types of columns that each kind takes"""
_KINDS = {text: kind for kind, text in FORMATS.items()}

_IMAGES = {
    **dict.fromkeys(COUNTS_OF_DISTINCT, (24, 8, 24 + 8 * DEFAULT_K)),
    Kind.HISTOGRAM: (96, 8, 14 << 10),
    Kind.SIZE: (8, 0, 8),
    Kind.FREQUENT: (40, 76, 30 << 10),
}
"""Bytes of an image of each kind beside its values, of each of these, and of the longest, about"""


def kind_of(key: StatisticKey) -> Kind:
    """The kind of a statistic."""
    return _KINDS.get(key[1].partition(" ")[0], Kind.NDV)


def image_bound(key: StatisticKey, rows: int) -> int:
    """Bytes of the image of a statistic of so many rows, at most."""
    beside, per_row, longest = _IMAGES[kind_of(key)]
    return min(longest, beside + per_row * rows)


@dataclass(frozen=True, slots=True)
class SketchedColumn:
    """A top-level column that has statistics."""

    field_id: int
    name: str
    """Name of the column in the current schema"""
    type: str
    """Type of the column in the snapshot's schema, in Iceberg's text form, by which its values are hashed"""
    names: tuple[str, ...] | None = None
    """Names of the column in the table's name mapping, by which its values are found in files without field ids; None
    where the table has no mapping"""

    @property
    def counted_as(self) -> str:
        """Text that statistics of the column depend on: the type, and mapped names."""
        return self.type if self.names is None else f"{self.type} {json.dumps(sorted(self.names))}"


@dataclass(frozen=True, slots=True)
class Statistic:
    """A kind of statistics of one column, or of several where the kind is `joint`."""

    kind: Kind
    columns: tuple[SketchedColumn, ...]

    @property
    def field_ids(self) -> tuple[int, ...]:
        return tuple(column.field_id for column in self.columns)

    @property
    def name(self) -> str:
        """Names of its columns."""
        return ", ".join(column.name for column in self.columns)

    @property
    def key(self) -> StatisticKey:
        return self.columns[0].field_id, self.counted_as

    @property
    def counted_as(self) -> str:
        """Text that the sketch depends on, together with a data file and its deletes."""
        if self.kind is Kind.NDV:
            return self.columns[0].counted_as
        of = {str(column.field_id): column.counted_as for column in self.columns}
        return f"{FORMATS[self.kind]} {json.dumps(of)}"


def field_ids_of(statistics: Iterable[Statistic]) -> frozenset[int]:
    """Field ids of all columns of some statistics."""
    return frozenset(field_id for statistic in statistics for field_id in statistic.field_ids)


def fields_of(key: StatisticKey) -> Mapping[int, str]:
    """The columns of a statistic, each with the text that it is counted by, by field id. Raises ValueError for no key
    of ours.
    """
    field_id, text = key
    if kind_of(key) is Kind.NDV:
        return {field_id: text}
    of = json.loads(text.partition(" ")[2])
    if not isinstance(of, dict) or not of:
        raise ValueError(f"no columns: {text}")
    return {int(field): str(counted_as) for field, counted_as in of.items()}
