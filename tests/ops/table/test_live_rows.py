"""Live rows of a data file, whatever the number of its deleted rows."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import FloatType, ListType, NestedField

from icepuffin.ops.model import LiveFile
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.table.live_rows import read_live

ROWS = 500


@pytest.mark.parametrize("deleted", [0, 1, 5, 100, 499, 500])
@pytest.mark.parametrize("where", ["scattered", "first", "last"])
def test_rows_that_are_not_deleted_are_live(tmp_path: Path, deleted: int, where: str) -> None:
    rows = np.random.default_rng(0).choice(ROWS, deleted, replace=False)
    rows = {"scattered": np.sort(rows), "first": np.arange(deleted), "last": np.arange(ROWS - deleted, ROWS)}[where]
    vectors = [[float(row)] * (row % 3) for row in range(ROWS)]
    field = pa.field("v", pa.list_(pa.float32()), metadata={"PARQUET:field_id": "1"})
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([vectors], schema=pa.schema([field])), path)
    file = LiveFile(f"file://{path}", path.stat().st_size, ROWS, 1, "PARQUET")
    schema = Schema(NestedField(1, "v", ListType(2, FloatType(), element_required=False), required=False))
    batches = list(read_live(LocalStorage(), file, schema, [1], batch_rows=128, deleted=rows))
    live = [row for row in range(ROWS) if row not in rows]
    assert [int(row) for batch in batches for row in batch.positions] == live
    assert [vector for batch in batches for vector in batch.columns.column(0).to_pylist()] == [vectors[i] for i in live]
    assert all(len(batch.positions) == batch.columns.num_rows > 0 for batch in batches)
