"""Rows of a table by the values of an index's filter columns. Reads these columns as the index version keeps them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.filters.attribute_conditions import Attributes
from icepuffin.ops.filters.attribute_values import VersionValues
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import head_of, schema_at

BARS = 24
"""Ranges of numbers and times, or most frequent values of other types, at most"""


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """Live rows by value of one column; by element, where the column has lists."""

    column: str
    rows: int
    """Rows whose values are known"""
    distinct: int
    """Number of values that a row has, without null"""
    counts: tuple[tuple[str, int], ...]
    """(value or range of values, rows): the most frequent values first, or ranges of equal width, ascending"""
    ends: tuple[str, str] | None
    """Smallest and greatest value of ranges; None where values are counted"""
    unread_files: int
    """Data files whose values the version lacks"""


def value_counts(table: Table, index: str, storage: StorageConfig, ref: str) -> Iterator[ValueCounts]:
    """The filter columns of the version at an index's tag, for the head of the ref that it follows; none without both.

    Raises NotAnIndexError, ManifestError.
    """
    version, head = tagged_version(table, index), head_of(table, ref)
    if version is None or head is None:
        return
    opened = open_version(version, storage)
    live, schema = live_files(table, head), schema_at(table, ref)
    attributes = Attributes(VersionValues(opened, live, schema, storage), live, schema, storage)
    for field_id in filter(schema.find_column_name, opened.attributes):  # others are gone from the table
        column = attributes.column(field_id)
        rows = np.diff(column.rows.starts)[: len(column.values)]  # behind them is null
        values, rows = column.values.values.take(pa.array(np.flatnonzero(rows))), rows[rows > 0]
        counts, ends = (
            _by_range(values, rows) if len(values) > BARS and _is_scale(values.type) else _by_value(values, rows)
        )
        yield ValueCounts(attributes.name(field_id), column.live_rows, len(values), counts, ends, len(column.missing))


_Counts = tuple[tuple[tuple[str, int], ...], tuple[str, str] | None]
"""Fields `counts` and `ends` of a column"""


def _is_scale(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal)
    return any(test(kind) for test in tests)


def _by_value(values: pa.Array, rows: I64) -> _Counts:
    order = np.argsort(-rows, kind="stable")[:BARS]
    return tuple((_text(values, index), int(rows[index])) for index in order.tolist()), None


def _by_range(values: pa.Array, rows: I64) -> _Counts:
    """Ranges of equal width; each is named by the first and the last of its values. NaN and infinities are left out."""
    numbers = _numbers(values)
    finite = np.flatnonzero(np.isfinite(numbers))
    values, rows, numbers = values.take(pa.array(finite)), rows[finite], numbers[finite]
    starts = np.searchsorted(numbers, np.linspace(numbers[0], numbers[-1], BARS + 1)[:-1])
    ends = np.append(starts[1:], len(numbers))
    counts = tuple(
        (f"{_text(values, start)} to {_text(values, end - 1)}" if end > start else "", int(rows[start:end].sum()))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    )
    return counts, (_text(values, 0), _text(values, -1))


def _text(values: pa.Array, index: int) -> str:
    return str(values[index].as_py())


def _numbers(values: pa.Array) -> F64:
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return np.asarray(values.cast(pa.float64(), safe=False))
