"""Rows of a data file as a schema sees them, fields inside of fields included: PyIceberg's projection, but for lists
and maps of structs, lists or maps, and for types that do not fit.

Of the former PyIceberg 0.12 takes null for empty. Two levels down it finds fields by their names: one that was renamed
is null, and one that was dropped and added again has its old values. Of the latter it makes nulls: a list that is a
text in the file is null, and a struct has fields that are.

Executors import this: no dagster, no pyspark.
"""

import builtins
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import ArrowAccessor, ArrowProjectionVisitor, schema_to_pyarrow
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, TimestampType


def projected(requested: Schema, stored: Schema, rows: pa.RecordBatch, filled: Mapping[int, Any]) -> pa.RecordBatch:
    """Rows with the fields of `stored`, as `requested` has them. `filled`: values by field id of those that they lack.

    Raises ValueError, ResolveError, ArrowInvalid, ArrowNotImplementedError for fields that do not fit.
    """
    visitor = _Projection(
        stored,
        downcast_ns_timestamp_to_us=True,  # INT96, as Spark wrote timestamps before there were tables
        projected_missing_fields=dict(filled),
        allow_timestamp_tz_mismatch=True,
    )
    return pa.RecordBatch.from_struct_array(visit_with_partner(requested, rows, visitor, ArrowAccessor(stored)))


class _Projection(ArrowProjectionVisitor):
    """A list or a map of nested values is made anew of these, which are projected already, and of its own nulls.

    A column without a type, which some writers make of nulls alone, is one of nulls. Raises ValueError for a list, a
    map, a struct or a timestamp that is something else in the file.
    """

    def struct(
        self, struct: StructType, struct_array: pa.Array | None, field_results: builtins.list[pa.Array | None]
    ) -> pa.Array | None:
        if isinstance(struct_array, pa.NullArray):
            return _nulls(struct, struct_array)
        if not isinstance(struct_array, pa.StructArray | pa.RecordBatch | None):
            raise _misfit(struct, struct_array)
        return super().struct(struct, struct_array, field_results)

    def primitive(self, primitive: PrimitiveType, array: pa.Array | None) -> pa.Array | None:
        return _nulls(primitive, array) if isinstance(array, pa.NullArray) else array

    def _cast_if_needed(self, field: NestedField, values: pa.Array) -> pa.Array:
        if isinstance(field.field_type, TimestampType) and not pa.types.is_timestamp(values.type):
            raise _misfit(field.field_type, values)
        return super()._cast_if_needed(field, values)

    def list(self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None) -> pa.Array | None:
        if isinstance(list_array, pa.NullArray):
            return _nulls(list_type, list_array)
        if list_array is None:
            return None
        if value_array is None:
            raise _misfit(list_type, list_array)
        if list_type.element_type.is_primitive:
            return super().list(list_type, list_array, value_array)
        element = self._construct_field(list_type.element_field, value_array.type)
        if pa.types.is_large_list(list_array.type):
            return pa.LargeListArray.from_arrays(
                _offsets(list_array), value_array, pa.large_list(element), mask=list_array.is_null()
            )
        return pa.ListArray.from_arrays(_offsets(list_array), value_array, pa.list_(element), mask=list_array.is_null())

    def map(
        self,
        map_type: MapType,
        map_array: pa.Array | None,
        key_result: pa.Array | None,
        value_result: pa.Array | None,
    ) -> pa.Array | None:
        if isinstance(map_array, pa.NullArray):
            return _nulls(map_type, map_array)
        if map_array is None:
            return None
        if key_result is None or value_result is None:
            raise _misfit(map_type, map_array)
        if map_type.key_type.is_primitive and map_type.value_type.is_primitive:
            return super().map(map_type, map_array, key_result, value_result)
        keys = self._cast_if_needed(map_type.key_field, key_result)
        values = self._cast_if_needed(map_type.value_field, value_result)
        kind = pa.map_(
            self._construct_field(map_type.key_field, keys.type),
            self._construct_field(map_type.value_field, values.type),
        )
        return pa.MapArray.from_arrays(_offsets(map_array), keys, values, kind, mask=map_array.is_null())


def _nulls(kind: IcebergType, values: pa.Array) -> pa.Array:
    return pa.nulls(len(values), schema_to_pyarrow(kind, include_field_ids=False))


def _misfit(kind: IcebergType, values: pa.Array) -> ValueError:
    return ValueError(f"the file has {values.type} where the schema has {kind}")


def _offsets(lists: pa.Array) -> pa.Array:
    """The index of each list's first value among all values, and the end. A copy: Arrow takes no slice with nulls."""
    if pa.types.is_fixed_size_list(lists.type):
        starts = np.arange(lists.offset, lists.offset + len(lists) + 1) * lists.type.list_size
        return pa.array(starts.astype(np.int32))
    return pa.array(lists.offsets.to_numpy())
