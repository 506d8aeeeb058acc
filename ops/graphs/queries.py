"""Where the vectors of a search come from, and searches under a condition on other columns."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType

from ann_kernels.distance import prepare
from ann_kernels.metric import Metric
from ann_kernels.topk import exact_top_k
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


def filtered_search(
    table: Table,
    column: str,
    metric: Metric,
    queries: FloatArray,
    k: int,
    *,
    where: str,
    snapshot_id: int,
    columns: tuple[str, ...] | None,
) -> pa.Table:
    """Exact nearest rows among those that match `where` (an Iceberg row filter): query, rank, distance and `columns`;
    default all but nested ones.

    Only files whose statistics can match are read. Costs the matching rows, in memory.
    """
    scan = table.scan(row_filter=where, snapshot_id=snapshot_id)
    if columns is None:
        columns = tuple(field.name for field in scan.projection().fields if field.field_type.is_primitive)
    rows = scan.select(*dict.fromkeys((*columns, column))).to_arrow()
    vectors = vectors_from_arrow(rows[column].combine_chunks(), queries.shape[1])
    ids, distances = exact_top_k(prepare(queries, metric), prepare(vectors, metric), k, metric)
    query, rank = np.nonzero(ids >= 0)
    answer = rows.select(list(columns)).take(pa.array(ids[query, rank]))
    lead = {"query": pa.array(query), "rank": pa.array(rank + 1), "distance": pa.array(distances[query, rank])}
    return pa.table({**lead, **{name: answer[name] for name in columns}})


def held_texts(rows: pa.Table) -> list[dict[str, object]]:
    """Rows as plain dictionaries, floats rounded as float32 prints."""
    at = rows.schema.get_field_index("distance")
    if at >= 0:
        rows = rows.set_column(at, "distance", pc.cast(rows["distance"], pa.float64()))
    plain: list[dict[str, object]] = rows.to_pylist()
    return plain
