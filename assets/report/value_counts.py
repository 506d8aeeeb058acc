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
from icepuffin.ops.filters.coded_rows import Lists
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.presentation import VALUE_WIDTH, plain_values, printable
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
    nulls: int
    """Rows without a value: null, or a list without any"""
    distinct: int
    """Number of values that a row has, without null"""
    counts: tuple[tuple[str, int], ...]
    """(value or range of values, rows): the most frequent values first, or ranges of equal width, ascending"""
    not_finite: int
    """Rows of NaN and of infinities, which are in no range"""
    ends: tuple[str, str] | None
    """Smallest and greatest value of ranges; None where values are counted"""
    unread_files: int
    """Data files whose values the version lacks"""


def value_counts(table: Table, index: str, storage: StorageConfig, ref: str) -> Iterator[ValueCounts]:
    """The filter columns of the version at an index's tag, for the head of the ref that it follows; none without both.

    Raises NotAnIndexError, ManifestError, DataFileError, EqualityDeletesError.
    """
    version, head = tagged_version(table, index), head_of(table, ref)
    if version is None or head is None:
        return
    opened = open_version(version, storage)
    live, schema = live_files(table, head), schema_at(table, ref)
    attributes = Attributes(VersionValues(opened, live, schema, storage), live, schema, storage)
    for field_id in filter(schema.find_column_name, opened.attributes):  # others are gone from the table
        column = attributes.column(field_id)
        starts = column.rows.starts[: len(column.values) + 1]  # behind them is null
        with_value = len(np.unique(column.rows.positions)) if isinstance(column.rows, Lists) else int(starts[-1])
        rows = np.diff(starts)
        values, rows = column.values.values.take(pa.array(np.flatnonzero(rows))), rows[rows > 0]
        counts, ends = (
            _by_range(values, rows) if len(values) > BARS and _is_scale(values.type) else _by_value(values, rows)
        )
        yield ValueCounts(
            column=attributes.name(field_id),
            rows=column.live_rows,
            nulls=column.live_rows - with_value,
            distinct=len(values),
            counts=counts,
            not_finite=int(rows.sum()) - sum(number for _, number in counts) if ends else 0,
            ends=ends,
            unread_files=len(column.missing),
        )


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
    if pa.types.is_floating(values.type):
        finite = np.flatnonzero(np.isfinite(values.to_numpy()))
        values, rows = values.take(pa.array(finite)), rows[finite]
    numbers = _numbers(values)
    starts = np.searchsorted(numbers, np.linspace(numbers[0], numbers[-1], BARS + 1)[:-1])
    ends = np.append(starts[1:], len(numbers))
    counts = tuple(
        (f"{_text(values, start)} to {_text(values, end - 1)}" if end > start else "", int(rows[start:end].sum()))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    )
    return counts, (_text(values, 0), _text(values, len(values) - 1))


def _text(values: pa.Array, index: int) -> str:
    text = printable(plain_values(values.slice(index, 1))[0], VALUE_WIDTH)
    return text if text.strip() else f'"{text}"'


def _numbers(values: pa.Array) -> F64:
    """Distances of ascending values on their scale, exact also where the values themselves are none as floats."""
    if pa.types.is_integer(values.type) or pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64()).cast(pa.int64())
        whole = np.asarray(values).view(np.uint64)
        return np.asarray(whole - whole[0], np.float64)  # modulo 2^64: a difference may have 64 bits
    numbers = np.asarray(values.cast(pa.float64(), safe=False))
    return numbers / 4  # else the difference of two may be more than any float
