"""A reader that follows a table which changes in every way, rows of it being a tail in memory: answers are those of
brute force over a copy of the rows.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.following_reader import FollowingReader
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.table.live_files import live_files
from tests.conftest import STORAGE
from tests.ops.catalog.equality import delete_where_id_is
from tests.ops.index.comparison import index_head

pytestmark = pytest.mark.usefixtures("no_disk_cache")

DIMS, K = 6, 5
Row = dict[str, Any]
Condition = tuple[str | None, Callable[[Row], bool]]


class CopiedTable:
    """A table, and a copy of its live rows by id. The columns of conditions are `x`, `section`, and later `y`."""

    def __init__(self, catalog: Catalog, metric: str) -> None:
        self._metric = metric
        self._rng = np.random.default_rng([*metric.encode()])
        self._types = {"id": pa.int64(), "x": pa.int32(), "section": pa.string()}
        self.x = "x"
        """Name of the column `x` now"""
        self.rows: dict[int, Row] = {}
        self._count = 0
        vectors = pa.field("embedding", pa.list_(pa.float32()))
        schema = pa.schema([*(pa.field(*column) for column in self._types.items()), vectors])
        self.table: Table = catalog.create_table(f"db.{metric}", schema, properties={"format-version": "2"})
        self.append(250)
        definition = IndexDefinition(
            name="e", column="embedding", metric=metric, shards=2, max_degree=12, target_recall=0.0,
            filters=("x", "section"),
        )  # fmt: skip
        index_head(self.table, create_index(self.table.refresh(), definition))

    def append(self, count: int, *, branch: str = "main") -> None:
        """Append random rows, some with null in place of a value."""
        rng, first = self._rng, self._count
        self._count += count
        rows: list[Row] = [
            {
                "id": number,
                "x": None if rng.random() < 0.1 else int(rng.integers(8)),
                "section": None if rng.random() < 0.1 else "abcd"[rng.integers(4)],
                "y": int(rng.integers(3)) if "y" in self._types else None,
                "embedding": rng.standard_normal(DIMS).astype(np.float32),
            }
            for number in range(first, self._count)
        ]
        self.rows |= {row["id"]: row for row in rows}
        columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in self._types.items()}
        vectors = pa.array([row["embedding"].tolist() for row in rows], pa.list_(pa.float32()))
        table = pa.table({**columns, "embedding": vectors})
        names = [self.x if name == "x" else name for name in table.schema.names]
        self.table.refresh().append(table.rename_columns(names), branch=branch)

    def delete_positions(self) -> None:
        """Delete the first and every ninth row of all data files."""
        table = self.table.refresh()
        live, positions = live_files(table, table.metadata.current_snapshot_id or 0), {}
        for file in live.files:
            with table.io.new_input(file.path).open() as source:
                ids = pq.read_table(source, columns=["id"])["id"].to_pylist()
            positions[file.path] = np.arange(0, file.record_count, 9)
            for number in ids[::9]:
                self.rows.pop(number, None)
        append_position_deletes(table, positions)

    def delete_keys(self) -> None:
        """Delete every seventh live row by its id, of the index and of the tail."""
        ids = sorted(self.rows)[::7]
        delete_where_id_is(self.table, *ids)
        for number in ids:
            del self.rows[number]

    def rename(self) -> None:
        with self.table.refresh().update_schema() as change:
            change.rename_column(self.x, f"{self.x}_later")
        self.x += "_later"

    def promote(self) -> None:
        with self.table.refresh().update_schema() as change:
            change.update_column(self.x, field_type=LongType())
        self._types["x"] = pa.int64()

    def add_column(self) -> None:
        with self.table.refresh().update_schema() as change:
            change.add_column("y", IntegerType())
        self._types["y"] = pa.int32()

    def partition(self) -> None:
        with self.table.refresh().update_spec() as change:
            change.add_field("section", IdentityTransform(), "part")

    def conditions(self) -> list[Condition]:
        """Conditions by name and by meaning: on kept columns, and on one that the index lacks."""
        x = self.x
        conditions: list[Condition] = [
            (None, lambda _: True),
            (f"{x} = 3", lambda row: row["x"] == 3),
            (f"{x} in (1, 5, 99)", lambda row: row["x"] in (1, 5)),
            (f"{x} >= 5", lambda row: row["x"] is not None and row["x"] >= 5),
            (
                f"{x} in (0, 2, 4) and section in ('a', 'c')",
                lambda row: row["x"] in (0, 2, 4) and row["section"] in ("a", "c"),
            ),
            (f"section != 'b' or {x} is null", lambda row: row["section"] not in ("b", None) or row["x"] is None),
        ]
        if "y" in self._types:
            conditions += [("y is null", lambda row: row["y"] is None), (f"y = 1 and {x} < 6", lambda row:
                row["y"] == 1 and row["x"] is not None and row["x"] < 6)]  # fmt: skip
        return conditions

    def nearest(self, query: npt.NDArray[np.float64], keep: Callable[[Row], bool]) -> tuple[list[int], list[float]]:
        """(ids, distances) of all rows that are kept, in order."""
        rows = [row for row in self.rows.values() if keep(row)]
        vectors = np.array([row["embedding"] for row in rows], np.float64).reshape(-1, DIMS)
        distances = np.linalg.norm(vectors - query, axis=1)
        if self._metric == "cosine":
            distances = 1 - vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
        order = np.argsort(distances)
        return [rows[place]["id"] for place in order], distances[order].tolist()


def assert_as_brute_force(copied: CopiedTable, reader: IndexReader | FollowingReader[IndexReader]) -> None:
    """All conditions of a batch, each alone, and as a range."""
    conditions = copied.conditions()
    vectors = np.random.default_rng(len(copied.rows)).standard_normal((len(conditions), DIMS)).astype(np.float32)
    expected = [
        copied.nearest(query.astype(np.float64), keep) for query, (_, keep) in zip(vectors, conditions, strict=True)
    ]
    texts = [text for text, _ in conditions]
    batch = reader.search(vectors, K, where=texts, columns=["id"], search_list=400)
    for place, (query, text, (ids, distances)) in enumerate(zip(vectors, texts, expected, strict=True)):
        own = batch.rows.filter(pa.array(np.asarray(batch.rows["query"]) == place))
        alone = reader.search(query, K, where=text, columns=["id"], search_list=400)
        assert own["id"].to_pylist() == alone.rows["id"].to_pylist() == ids[:K], text
        assert np.allclose(own["distance"], distances[:K], atol=1e-6)
        assert alone.profile.matching_rows == (None if text is None else len(ids))
        half = len(ids) // 2
        limit = (distances[half - 1] + distances[half]) / 2 if half else 1.0
        within = reader.within(query, limit, where=text, columns=["id"])
        assert within.rows["id"].to_pylist() == ids[: np.searchsorted(distances, limit)], text


STEPS = (
    "append", "delete_positions", "rename", "append", "delete_positions", "promote", "append", "delete_keys",
    "add_column", "append", "delete_keys", "partition", "append",
)  # fmt: skip
"""Deletes by key come last: the writer of the others refuses a table that has them"""


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_answers_over_a_tail_are_those_of_brute_force_whatever_the_table_goes_through(
    sql_catalog: Catalog, metric: str
) -> None:
    copied = CopiedTable(sql_catalog, metric)
    with open_index(copied.table.refresh(), "e", storage=STORAGE).follow(interval=3_600) as following:
        for step in STEPS:
            getattr(copied, step)(*([60] if step == "append" else []))
            assert following.update() is (step != "partition")
            for _ in range(2):  # the second time by what is in memory
                assert_as_brute_force(copied, following)
        assert following.reader.kept_tail.rows > 200
        assert_as_brute_force(copied, open_index(copied.table.refresh(), "e", storage=STORAGE))


def test_rows_of_a_branch_are_of_its_tail_alone(sql_catalog: Catalog) -> None:
    copied = CopiedTable(sql_catalog, "l2")
    table = copied.table.refresh()
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id or 0, "side").commit()
    on_main = dict(copied.rows)
    copied.append(40, branch="side")
    readers = {name: open_index(table.refresh(), "e", snapshot=name, storage=STORAGE) for name in ("side", "main")}
    for _ in range(3):
        assert_as_brute_force(copied, readers["side"])
    copied.rows = on_main
    for _ in range(3):
        assert_as_brute_force(copied, readers["main"])
