"""A table with columns to group rows by, and indexes that keep them: deletes, and rows that the indexes lack."""

import datetime as dt
import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.table.live_files import live_files
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.search.runners import LabelRecorder

INDEXED, ROWS = 330, 450
GROUPS = {
    "even": pa.int32(),
    "skewed": pa.string(),
    "own": pa.int64(),
    "half_null": pa.string(),
    "flag": pa.bool_(),
    "price": pa.float64(),
    "cents": pa.decimal128(9, 2),
    "day": pa.date32(),
    "hash": pa.binary(),
}
OTHER_NAN = float(np.uint64(0xFFF8000000000001).view(np.float64))
DEFINITIONS = {
    "graph": replace(DEFINITION, name="graph", filters=tuple(GROUPS), target_recall=0.3),
    "coded": replace(DEFINITION, name="coded", filters=tuple(GROUPS), vectors="none", target_recall=0.3),
    "balls": replace(DEFINITION, name="balls", filters=tuple(GROUPS), method="centroid"),
    "cosine": replace(DEFINITION, name="cosine", filters=tuple(GROUPS), metric="cosine", target_recall=0.3),
}


def group(name: str, row: int) -> Any:
    """The value of a column, by the row's id. Later rows bring values of their own."""
    late = row >= INDEXED
    return {
        "even": row % 7 + late,
        "skewed": "all" if row % 100 else f"rare {row}",
        "own": row,
        "half_null": None if row % 2 else "late" if late and row % 3 else f"n{row % 5}",
        "flag": [True, False, None][row % 3],
        "price": [math.nan if row % 8 else OTHER_NAN, 0.0 if row % 8 == 1 else -0.0, None, 2.5 + late][row % 4],
        "cents": Decimal(row % 6) / 4,
        "day": dt.date(2026, 1, 1 + row % 9),
        "hash": bytes([row % 4, 7]),
    }[name]


def key(name: str, row: int) -> Hashable:
    """The group of a row: NaN is one value."""
    value = group(name, row)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def rows_of(first: int, last: int) -> pa.Table:
    rows = make_rows(first, last)
    for name, kind in GROUPS.items():
        rows = rows.append_column(name, pa.array([group(name, row) for row in range(first, last)], kind))
    return rows.append_column("tags", pa.array([["a", "b"]] * (last - first), pa.list_(pa.string())))


@dataclass
class Lake:
    """The table, what is live in it, and readers of it."""

    table: Table
    live: list[int]
    vectors: np.ndarray = field(default_factory=lambda: np.array(make_rows(0, ROWS)["embedding"].to_pylist()))
    """Vectors of all rows, in the order of their ids"""

    def reader(self, name: str) -> IndexReader:
        """`exact` or an index of DEFINITIONS; with ` by tasks` or ` alone` behind its name in other ways."""
        index, _, way = name.partition(" ")
        if index == "exact":
            return open_exact(self.table, "embedding", "l2", storage=STORAGE)
        ways = {"by tasks": {"runner": LabelRecorder(), "in_process_mb": 0}, "alone": {"stale": "nearest-only"}}
        return open_index(self.table, DEFINITIONS[index], storage=STORAGE, **ways.get(way, {}))

    def ranked(self, query: np.ndarray, metric: str = "l2") -> list[int]:
        """Ids of the live rows, the nearest first."""
        vectors, query = self.vectors[self.live], query.astype(np.float64)
        if metric == "cosine":
            vectors, query = vectors / np.linalg.norm(vectors, axis=1)[:, None], query / np.linalg.norm(query)
        return [self.live[row] for row in np.argsort(np.linalg.norm(vectors - query, axis=1), kind="stable")]


def lake_in(folder: Path) -> Lake:
    catalog = open_catalog("c", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"})
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", rows_of(0, 1).schema, properties={"format-version": "2"})
    for first in range(0, INDEXED, 110):
        table.append(rows_of(first, first + 110))
    for definition in DEFINITIONS.values():
        index_head(table, definition)
    table.append(rows_of(INDEXED, 400))
    table.append(rows_of(400, ROWS))
    files = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files
    spared = next(file for file in files if file.record_count == INDEXED // 3)  # balls answer for it
    append_position_deletes(table, {file.path: np.array([0, 3, 17, 29]) for file in files if file is not spared})
    live = table.refresh().scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
    return Lake(table, sorted(live))
