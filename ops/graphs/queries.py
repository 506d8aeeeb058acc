"""Where the vectors of a search come from, and answers as plain values."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType

from ops.catalog.snapshots import table_name
from ops.datafile import vectors_from_arrow
from ops.errors import IcepuffinError

FloatArray = npt.NDArray[np.float32]


class NoSuchRowError(IcepuffinError):
    """No row of the snapshot has the id that was asked for."""


class NoSuchColumnError(IcepuffinError):
    """The table has no column of that name."""


def vector_of_row(table: Table, column: str, row: str, *, id_column: str, snapshot_id: int) -> FloatArray:
    """f32[1, dims]: the vector of the row whose `id_column` is `row`, as of the snapshot.

    Raises NoSuchColumnError, NoSuchRowError.
    """
    fields = {field.name: field for field in table.schema().fields}
    for name in (id_column, column):
        if name not in fields:
            raise NoSuchColumnError(f"{table_name(table)} has no column '{name}'; it has: {', '.join(fields)}")
    value = int(row) if isinstance(fields[id_column].field_type, IntegerType | LongType) else row
    scan = table.scan(
        row_filter=EqualTo(term=id_column, value=value), selected_fields=(id_column, column), snapshot_id=snapshot_id
    )
    found = scan.to_arrow()
    if not len(found):
        raise NoSuchRowError(
            f"{table_name(table)}, snapshot {snapshot_id}: no row has {id_column} = {row}; "
            "take an id of that snapshot, or name the column with --id-column"
        )
    return vectors_from_arrow(found[column].slice(0, 1).combine_chunks(), None)


def held_texts(rows: pa.Table) -> list[dict[str, object]]:
    """Rows as plain dictionaries, floats rounded as float32 prints."""
    at = rows.schema.get_field_index("distance")
    if at >= 0:
        rows = rows.set_column(at, "distance", pc.cast(rows["distance"], pa.float64()))
    plain: list[dict[str, object]] = rows.to_pylist()
    return plain
