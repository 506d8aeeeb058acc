"""Equality deletes, as Flink writes them; neither PyIceberg nor Spark does."""

import io
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from examples.demo.row_deletes import commit_delete_files


def write_delete_file(table: Table, *ids: int) -> tuple[str, int]:
    """(location, bytes) of a file that deletes rows by their `id` (field 1), not yet committed."""
    buffer = io.BytesIO()
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table([ids], schema=pa.schema([field])), buffer)
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-equality.parquet")
    with table.io.new_output(path).create() as sink:
        sink.write(buffer.getvalue())
    return path, buffer.tell()


def write_avro_delete_file(table: Table, *ids: int) -> tuple[str, int]:
    """The same as an Avro file, which is not read here."""
    schema = Schema(NestedField(1, "id", LongType(), required=True))
    target = table.io.new_output(table.location_provider().new_data_location(f"{uuid.uuid4()}-equality.avro"))
    with AvroOutputFile[Record](target, schema, "deletes") as sink:
        sink.write_block([Record(number) for number in ids])
    return target.location, len(target.to_input_file())


def delete_where_id_is(
    table: Table, *ids: int, avro: bool = False, bounded: bool = False, partition: tuple[object, ...] = ()
) -> int:
    """Commit a snapshot on main that deletes rows by their `id`. Returns its id. `bounded`: its manifest has bounds.
    `partition`: values of the one whose rows it deletes; each is null where there are none.

    For PyIceberg's eyes only: it writes the field ids of equality deletes as longs, which Java cannot read.
    """
    table.refresh()
    path, size = write_avro_delete_file(table, *ids) if avro else write_delete_file(table, *ids)
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=path,
        file_format=FileFormat.AVRO if avro else FileFormat.PARQUET,
        partition=Record(*(partition or [None] * len(table.spec().fields))),
        record_count=len(ids),
        file_size_in_bytes=size,
        equality_ids=[1],
        **({"lower_bounds": {1: to_bytes(LongType(), min(ids))}} if bounded else {}),
        **({"upper_bounds": {1: to_bytes(LongType(), max(ids))}} if bounded else {}),
    )
    file.spec_id = table.spec().spec_id
    return commit_delete_files(table, [file])
