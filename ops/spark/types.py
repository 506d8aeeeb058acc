"""Iceberg's types as Spark has them: uuids, and times of day, which not every session knows, are texts there."""

import datetime as dt
import uuid
from typing import Any

import pyarrow as pa


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """The types of `as_spark`."""
    return pa.schema([field.with_type(_spark_type(field.type)) for field in schema])


def as_spark(rows: pa.Table) -> pa.Table:
    """The same rows in types that Spark has."""
    for number, field in enumerate(rows.schema):
        kind = _spark_type(field.type)
        if kind != field.type:
            values = [_plain(value) for value in rows.column(number).to_pylist()]
            rows = rows.set_column(number, field.with_type(kind), pa.array(values, kind))
    return rows


def _spark_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.UuidType) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_spark_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_spark_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_spark_type(kind.key_type)), kind.item_field.with_type(_spark_type(kind.item_type))
        )
    return kind


def _plain(value: Any) -> Any:
    """A value of Python, however nested."""
    match value:
        case uuid.UUID():
            return str(value)
        case dt.time():
            return value.isoformat()
        case dict():
            return {name: _plain(item) for name, item in value.items()}
        case list() | tuple():
            return type(value)(_plain(item) for item in value)
    return value
