"""Iceberg's types as Spark has them: uuids, and times of day, which not every session knows, are texts there."""

import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """The types of `as_spark`."""
    return pa.schema([field.with_type(_spark_type(field.type)) for field in schema])


def as_spark(rows: pa.Table) -> pa.Table:
    """The same rows in types that Spark has."""
    for number, field in enumerate(rows.schema):
        spark_type = _spark_type(field.type)
        if spark_type != field.type:
            values = [_python_value(value) for value in rows.column(number).to_pylist()]
            rows = rows.set_column(number, field.with_type(spark_type), pa.array(values, spark_type))
    return rows


def _spark_type(arrow_type: pa.DataType) -> pa.DataType:
    if isinstance(arrow_type, pa.UuidType) or pa.types.is_time(arrow_type):
        return pa.string()
    if pa.types.is_fixed_size_binary(arrow_type):
        return pa.binary()
    if pa.types.is_struct(arrow_type):
        return pa.struct([field.with_type(_spark_type(field.type)) for field in arrow_type])
    if pa.types.is_list(arrow_type):
        return pa.list_(arrow_type.value_field.with_type(_spark_type(arrow_type.value_type)))
    if pa.types.is_map(arrow_type):
        key, item = arrow_type.key_field, arrow_type.item_field
        return pa.map_(key.with_type(_spark_type(key.type)), item.with_type(_spark_type(item.type)))
    return arrow_type


def _python_value(value: Any) -> Any:
    """A value of Python, however nested."""
    match value:
        case uuid.UUID():
            return str(value)
        case dt.time():
            return value.isoformat()
        case dict():
            return {name: _python_value(item) for name, item in value.items()}
        case list() | tuple():
            return type(value)(_python_value(item) for item in value)
    return value


def spread_by(frame: "DataFrame", column: str, parts: int) -> "DataFrame":
    """The rows in `parts` partitions, those of one number, 0 to parts - 1, in one.

    Spark 4.0 spreads them by ranges of a sample: all that made the rows is done once more for it, and two numbers may
    share a partition.
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(parts, column)
    return frame.repartitionByRange(parts, column)
