"""Keys of equality deletes: the columns that they compare, and the files whose rows can have none of them."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

_COMPARED_TYPES = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
_WIDTHS: dict[type[IcebergType], tuple[int, ...]] = {
    IntegerType: (4,),
    LongType: (4, 8),  # 4 where the file was written before the column was widened
    DateType: (4,),
    TimeType: (8,),
    TimestampType: (8,),
    TimestamptzType: (8,),
}
"""Bytes that a bound of a type has where it is a little-endian integer"""


class KeySchemas:
    """Schemas of the columns that delete files compare, one object for equal columns: there may be many such files."""

    def __init__(self, schemas: Mapping[int, Schema], schema_id: int) -> None:
        """`schemas`: all of the table's, by id. Deletes may compare columns that were dropped since. `schema_id`: that
        of the snapshot.
        """
        own_first = sorted(schemas, key=lambda other: (other == schema_id, other), reverse=True)
        self._in_turn = [schemas[other] for other in own_first]
        self._by_ids: dict[tuple[int, ...], tuple[Schema | None, str]] = {}

    def schema_of(self, field_ids: tuple[int, ...]) -> tuple[Schema | None, str]:
        """(the snapshot's schema, or else the newest with all fields, reduced to them; why the deletes cannot be
        resolved): one is empty.

        A field inside a struct comes inside its struct. Types are those of the snapshot: a column's type only ever
        widens, but a table that replaces this one may have another type under the same id.
        """
        if field_ids not in self._by_ids:
            self._by_ids[field_ids] = self._find(field_ids)
        return self._by_ids[field_ids]

    def _find(self, field_ids: tuple[int, ...]) -> tuple[Schema | None, str]:
        if not field_ids:
            return None, "names no columns to compare"
        schema = next((candidate for candidate in self._in_turn if candidate.field_ids >= set(field_ids)), None)
        if schema is None:
            return None, f"compares columns of ids {list(field_ids)}, which no schema of the table has"
        for field_id in field_ids:
            if not isinstance(schema.find_type(field_id), _COMPARED_TYPES):
                name, kind = schema.find_column_name(field_id), schema.find_type(field_id)
                return None, f"compares column {name}, whose type is {kind}"
        keys = prune_columns(schema, set(field_ids), select_full_types=False)
        for field in keys.fields:
            if not _is_struct_of_values(field.field_type):
                return None, f"compares a value inside of column {field.name}, whose type is {field.field_type}"
        return keys, ""


def _is_struct_of_values(field_type: IcebergType) -> bool:
    """Whether a type has no lists and maps inside; a value is one."""
    if isinstance(field_type, StructType):
        return all(_is_struct_of_values(field.field_type) for field in field_type.fields)
    return isinstance(field_type, PrimitiveType)


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """What a manifest says of a column's values in one file."""

    lower: Any
    """Lower bound; None where the manifest has none that can be used"""
    upper: Any
    has_null: bool
    """Whether a value may be null"""
    is_null: bool
    """Whether all values are"""


def key_bounds(file: DataFile, key: NestedField) -> KeyBounds:
    """The bounds of a column in a data file or delete file."""
    nulls, values = ((counts or {}).get(key.field_id) for counts in (file.null_value_counts, file.value_counts))
    lower, upper = ((bounds or {}).get(key.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    lower, upper = _decoded(lower, key.field_type, b""), _decoded(upper, key.field_type, b"\xff")
    bounded = lower is not None and upper is not None
    return KeyBounds(
        lower=lower if bounded else None,
        upper=upper if bounded else None,
        has_null=nulls is None or nulls > 0,
        is_null=nulls is not None and nulls == values,
    )


def _decoded(bound: bytes | None, field_type: IcebergType, end: bytes) -> Any:
    """A value that orders as the column's do; None without a bound, and for types whose bounds exclude no value.

    Floats are such a type: no bound covers NaN. A string's bound may be truncated: with `end`, the result is greater
    than every string that begins with it.
    """
    if bound is None:
        return None
    if isinstance(field_type, StringType):
        return bound + end
    if isinstance(field_type, DecimalType):
        return int.from_bytes(bound, "big", signed=True)
    if len(bound) in _WIDTHS.get(type(field_type), ()):
        return int.from_bytes(bound, "little", signed=True)
    return None


class KeyRanges:
    """The bounds of one key column in many delete files."""

    def __init__(self, key: NestedField, bounds: Sequence[KeyBounds | None]) -> None:
        """`bounds`: None for a file that does not compare the column."""
        self._key = key
        self._sorted = sorted({end for of in bounds if of for end in (of.lower, of.upper) if end is not None})
        ranks = {end: rank for rank, end in enumerate(self._sorted)}
        last = len(self._sorted)
        self._lower = np.array([ranks.get(of.lower, -1) if of else -1 for of in bounds], np.int64)
        self._upper = np.array([ranks.get(of.upper, last) if of else last for of in bounds], np.int64)
        self._compares = np.array([of is not None for of in bounds], np.bool_)
        self._has_null = np.array([of is not None and of.has_null for of in bounds], np.bool_)
        self._has_value = np.array([of is not None and not of.is_null for of in bounds], np.bool_)

    def may_meet(self, data: DataFile) -> npt.NDArray[np.bool_]:
        """bool[delete files]: whether a row of the data file may have a value of the column that is deleted there."""
        of = key_bounds(data, self._key)
        meets = self._has_value & (not of.is_null)
        if of.lower is not None:
            meets &= self._upper >= bisect_left(self._sorted, of.lower)
            meets &= self._lower < bisect_right(self._sorted, of.upper)
        return np.asarray(meets | (self._has_null & of.has_null) | ~self._compares)
