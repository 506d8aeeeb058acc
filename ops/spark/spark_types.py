"""Iceberg's types as Spark has them: uuids, and times of day, which not every session knows, are texts there."""

from typing import TYPE_CHECKING

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
            chunks = [_of_type(chunk, spark_type) for chunk in rows.column(number).chunks]
            rows = rows.set_column(number, field.with_type(spark_type), pa.chunked_array(chunks, spark_type))
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


def _of_type(values: pa.Array, spark_type: pa.DataType) -> pa.Array:
    """The values in their type of Spark. Those that it has as they are never become values of Python, which has no
    dates before the year 1 or after 9999.
    """
    if spark_type == values.type:
        return values
    if pa.types.is_binary(spark_type):
        return values.cast(spark_type)
    if pa.types.is_string(spark_type):
        texts = [value if value is None else str(value) for value in values.to_pylist()]
        return pa.array(texts, spark_type)
    mask = values.is_null()
    if pa.types.is_struct(spark_type):
        parts = [_of_type(part, field.type) for part, field in zip(values.flatten(), spark_type, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=list(spark_type), mask=mask)
    starts = values.offsets.to_numpy()
    inner, offsets = slice(starts[0], starts[-1]), pa.array(starts - starts[0])
    if pa.types.is_list(spark_type):
        items = _of_type(values.values[inner], spark_type.value_type)
        return pa.ListArray.from_arrays(offsets, items, spark_type, mask=mask)
    sides = _of_type(values.keys[inner], spark_type.key_type), _of_type(values.items[inner], spark_type.item_type)
    return pa.MapArray.from_arrays(offsets, *sides, spark_type, mask=mask)


def spread_by(frame: "DataFrame", column: str, parts: int) -> "DataFrame":
    """The rows in `parts` partitions, those of one number, 0 to parts - 1, in one.

    Spark 4.0 spreads them by ranges of a sample: all that made the rows is done once more for it, and two numbers may
    share a partition.
    """
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(parts, column)
    return frame.repartitionByRange(parts, column)
