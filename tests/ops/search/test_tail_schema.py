"""Columns whose default, name or type came between the files of an index and those of a tail in a reader's memory:
answers are those of brute force over a copy of the rows.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, IntegerType, LongType, StringType

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage, SearchResult
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from tests.conftest import STORAGE, vectors_of
from tests.ops.index.comparison import index_head

pytestmark = pytest.mark.usefixtures("no_disk_cache")

DIMS, K, INDEXED = 6, 5, 120
IN_MEMORY = "those in memory of"
Row = dict[str, Any]
Condition = tuple[str, Callable[[Row], bool]]


class CopiedTable:
    """A table, and a copy of its live rows by id, with their vectors."""

    def __init__(self, catalog: Catalog, **types: pa.DataType) -> None:
        self.rows: dict[int, Row] = {}
        self._count = 0
        fields = [("id", pa.int64()), *types.items(), ("embedding", pa.list_(pa.float32()))]
        self.table: Table = catalog.create_table("db.t", pa.schema(fields), properties={"format-version": "2"})

    def append(self, count: int, **values: Sequence[Any]) -> str:
        """Append rows, which have the values of each column in turn. Returns the path of their data file."""
        before = set(self.paths())
        ids = np.arange(self._count, self._count + count)
        self._count += count
        rows: list[Row] = [
            {"id": number, **{name: own[number % len(own)] for name, own in values.items()}, "embedding": vector}
            for number, vector in zip(ids.tolist(), vectors_of(ids, dims=DIMS).tolist(), strict=True)
        ]
        self.rows |= {row["id"]: row for row in rows}
        self.table.append(pa.Table.from_pylist(rows, self.table.refresh().schema().as_arrow()))
        (path,) = before.symmetric_difference(self.paths())
        return path

    def paths(self) -> list[str]:
        """The data files of the head."""
        head = self.table.refresh().metadata.current_snapshot_id
        return [file.path for file in live_files(self.table, head).files] if head else []

    def delete_every_ninth(self) -> None:
        """Delete rows of all data files by their positions."""
        positions = {}
        for path in self.paths():
            ids = pq.read_table(to_path(path), columns=["id"])["id"].to_pylist()
            positions[path] = np.arange(0, len(ids), 9)
            for number in ids[::9]:
                self.rows.pop(number, None)
        append_position_deletes(self.table, positions)

    def index(self, columns: tuple[str, ...]) -> None:
        """Make an index that keeps some columns, and has their values for answers."""
        definition = IndexDefinition(
            name="e", column="embedding", metric="l2", shards=2, max_degree=12, target_recall=0.0, filters=columns,
            include=columns,
        )  # fmt: skip
        index_head(self.table, create_index(self.table.refresh(), definition))

    def open(self) -> IndexReader:
        return open_index(self.table.refresh(), "e", storage=STORAGE)

    def check(self, reader: IndexReader, conditions: Sequence[Condition]) -> SearchResult:
        """Searches under each condition, all at once and one by one, in every way. Returns the last answer of one."""
        vectors = np.random.default_rng(5).standard_normal((len(conditions), DIMS)).astype(np.float32)
        names = [field.name for field in self.table.refresh().schema().fields if field.name != "embedding"]
        texts = [text for text, _ in conditions]
        batch = reader.search(vectors, K, where=texts, columns=names, search_list=300)
        whole = reader.search(vectors, K, columns=names, search_list=300)
        for place, (query, (text, keep)) in enumerate(zip(vectors.astype(np.float64), conditions, strict=True)):
            rows = self.nearest(query, keep)
            assert len(rows) > K, text
            limit = (rows[K]["distance"] + rows[K - 1]["distance"]) / 2
            answer = reader.search(query, K, where=text, columns=names, search_list=300)
            assert answer.profile.matching_rows == len(rows)
            for own, expected in (
                (of_query(batch, place), rows),
                (of_query(whole, place), self.nearest(query, lambda _: True)),
                (answer.rows, rows),
                (reader.search(query, K, where=text, columns=names, certified=True).rows, rows),
                (reader.within(query, limit, where=text, columns=names).rows, rows),
            ):
                assert own.select(names).to_pylist() == [{name: row[name] for name in names} for row in expected[:K]]
                assert own["distance"].to_pylist() == pytest.approx([row["distance"] for row in expected[:K]])
        assert answer.coverage is Coverage.NEAREST_VERSION_AND_TAIL
        return answer

    def nearest(self, query: Any, keep: Callable[[Row], bool]) -> list[Row]:
        """The rows that are kept, with their distances, nearest first."""
        rows = [
            row | {"distance": float(np.linalg.norm(np.asarray(row["embedding"]) - query))}
            for row in self.rows.values()
            if keep(row)
        ]
        return sorted(rows, key=lambda row: row["distance"])


def of_query(answer: SearchResult, number: int) -> pa.Table:
    return answer.rows.filter(pa.array(np.asarray(answer.rows["query"]) == number))


def test_rows_without_a_later_column_have_its_default_whether_the_index_has_them_or_not(sql_catalog: Catalog) -> None:
    copied = CopiedTable(sql_catalog)
    copied.append(INDEXED)
    with copied.table.update_schema() as change:
        change.add_column("kind", StringType(), default_value="web")
        change.add_column("price", IntegerType(), default_value=7)
    for row in copied.rows.values():
        row |= {"kind": "web", "price": 7}
    copied.index(("kind", "price"))
    path = Path(to_path(copied.append(40, kind=["web"], price=[7])))
    # as of a writer that did not know the columns yet
    pq.write_table(pq.read_table(path).drop_columns(["kind", "price"]), path)
    copied.append(70, kind=["web", None, "app"], price=[7, 8, None, 9])
    copied.delete_every_ninth()
    conditions: list[Condition] = [
        ("kind = 'web'", lambda row: row["kind"] == "web"),
        ("price = 7 and kind = 'web'", lambda row: (row["price"], row["kind"]) == (7, "web")),
        ("price in (8, 9)", lambda row: row["price"] in (8, 9)),
        ("kind != 'web' or price is null", lambda row: row["kind"] not in ("web", None) or row["price"] is None),
        ("price >= 7", lambda row: row["price"] is not None and row["price"] >= 7),
    ]
    reader = copied.open()
    for _ in range(3):
        answer = copied.check(reader, conditions)
    assert answer.profile.condition == f"by the index's values of price, and {IN_MEMORY} 2 data files that it lacks"
    assert answer.profile.tail == f"{sum(number >= INDEXED for number in copied.rows)} rows in memory, compared each"
    assert set(answer.profile.included_rows) == {"kind", "price"}


def test_columns_mean_the_same_under_another_name_and_a_wider_type(sql_catalog: Catalog) -> None:
    """Values of the tail in memory serve while the types are those of the index; then the data files decide."""
    copied = CopiedTable(sql_catalog, x=pa.int32(), score=pa.float32())
    tenth = float(np.float32(0.1))
    before = {"x": [1, None, 3, 2**31 - 1], "score": [0.5, tenth, None, float("inf"), -2.0]}
    copied.append(INDEXED, **before)
    copied.index(("x", "score"))
    copied.append(50, **before)
    copied.delete_every_ninth()

    def rename(**names: str) -> None:
        with copied.table.refresh().update_schema() as change:
            for name, later in names.items():
                change.rename_column(name, later)
        copied.rows = {
            number: {names.get(name, name): item for name, item in row.items()} for number, row in copied.rows.items()
        }

    rename(x="score", score="x")  # each has the name of the other
    conditions: list[Condition] = [
        ("score = 3", lambda row: row["score"] == 3),
        ("score >= 2147483647", lambda row: row["score"] is not None and row["score"] >= 2**31 - 1),
        ("x < 0.1", lambda row: row["x"] is not None and row["x"] < 0.1),
        ("x > 0.1 and score is not null", lambda row: (row["x"] or 0) > 0.1 and row["score"] is not None),
    ]
    reader = copied.open()
    for _ in range(3):
        answer = copied.check(reader, conditions)
    assert answer.profile.condition == f"by the index's values of score, x, and {IN_MEMORY} 1 data file that it lacks"
    with copied.table.refresh().update_schema() as change:
        change.update_column("score", field_type=LongType())
        change.update_column("x", field_type=DoubleType())
    rename(score="number", x="value")
    copied.append(60, number=[3, 2**40, None, -(2**33)], value=[0.1, tenth, 1e300, None, 0.5])
    copied.delete_every_ninth()
    conditions = [
        ("number = 3", lambda row: row["number"] == 3),
        ("number > 2147483647", lambda row: (row["number"] or 0) > 2**31 - 1),
        ("value = 0.1", lambda row: row["value"] == 0.1),
        ("value > 0.1 and value < 0.2", lambda row: 0.1 < (row["value"] or 0) < 0.2),
        ("value > 0.1 and number in (3, 1099511627776)", lambda row: (row["value"] or 0) > 0.1 and row["number"] in
            (3, 2**40)),
    ]  # fmt: skip
    reader = copied.open()
    for _ in range(3):
        answer = copied.check(reader, conditions)
    assert "3 data files read, of 3 without values of value" in answer.profile.condition
    assert answer.profile.tail == f"{sum(number >= INDEXED for number in copied.rows)} rows in memory, compared each"
