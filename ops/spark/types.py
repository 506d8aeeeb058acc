"""Iceberg's types as Spark has them: a uuid is its text there."""

import pyarrow as pa


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """The types that `as_spark` gives."""
    return pa.schema([field.with_type(pa.string()) if _is_uuid(field.type) else field for field in schema])


def as_spark(rows: pa.Table) -> pa.Table:
    """The same rows, each uuid as its text."""
    for number, field in enumerate(rows.schema):
        if _is_uuid(field.type):
            texts = [None if value is None else str(value) for value in rows.column(number).to_pylist()]
            rows = rows.set_column(number, field.with_type(pa.string()), pa.array(texts, pa.string()))
    return rows


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.UuidType)
