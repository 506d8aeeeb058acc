"""Where the vectors of a search come from, and answers as plain values."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.expressions import EqualTo
from pyiceberg.table import DataScan, Table

from icepuffin.ops.catalog.snapshots import is_head_of_main, resolve_snapshot, schema_at, table_name
from icepuffin.ops.datafile import exact_vectors
from icepuffin.ops.errors import IcepuffinError

FloatArray = npt.NDArray[np.float32]


class NoSuchRowError(IcepuffinError):
    """No row of the snapshot has the id that was asked for."""


class NoSuchColumnError(IcepuffinError):
    """The snapshot has no column of that name, or rows cannot be told apart by it."""


def vector_of_row(table: Table, column: str, row: str, *, id_column: str, snapshot: str | None = None) -> FloatArray:
    """f32[1, dims]: the vector of the row whose `id_column` is `row`, as of the snapshot and by its names.

    Raises NoSuchColumnError, NoSuchRowError, UnknownSnapshotError.
    """
    name = table_name(table)
    schema = schema_at(table, snapshot)
    snapshot_id = resolve_snapshot(table, snapshot).snapshot_id
    fields = {field.name: field for field in schema.fields}
    if id_column not in fields:
        raise NoSuchColumnError(f"{name} has no column '{id_column}'; name one with --id-column: {', '.join(fields)}")
    # a condition means the current names, and these may have changed since the snapshot
    metadata = table.metadata.model_copy(update={"current_schema_id": schema.schema_id})
    wanted = EqualTo(term=id_column, value=row)
    try:
        at = None if is_head_of_main(snapshot) else snapshot_id  # a scan of a snapshot knows its names alone
        scan = DataScan(metadata, table.io, wanted, selected_fields=(id_column, column), snapshot_id=at)
        found = scan.to_arrow()
    except (ValueError, TypeError, ArithmeticError, pa.ArrowNotImplementedError) as error:  # decimals raise the third
        raise NoSuchColumnError(
            f"{name}: {id_column} = {row} cannot be looked up, {id_column} is {fields[id_column].field_type}; "
            "name another column with --id-column"
        ) from error
    if not len(found):
        raise NoSuchRowError(
            f"{name}, snapshot {snapshot_id}: no row has {id_column} = {row}; "
            "take an id of that snapshot, or name the column with --id-column"
        )
    vector = found[column].slice(0, 1).combine_chunks()
    if vector.null_count:
        raise NoSuchRowError(f"{name}, snapshot {snapshot_id}: the row with {id_column} = {row} has no vector")
    return exact_vectors(vector, None)
