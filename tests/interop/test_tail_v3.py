"""A tail of format v3 in a reader's memory: deletion vectors of Spark take rows out of its files and the index's."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.index.definitions.ddl import create_index, load_definition
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import DeleteKind
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.result import Coverage, SearchResult
from icepuffin.ops.table.live_files import live_files
from tests.conftest import STORAGE, queries
from tests.interop.changes import DIMS, K, Lake

pytestmark = [pytest.mark.jvm, pytest.mark.services]
INDEXED = 120


def as_brute_force(answer: SearchResult, query_vectors: Any, rows: list[Any], name: str) -> None:
    """That the answer to each query is the nearest of some rows of Spark's."""
    by_id = {row["id"]: row for row in rows}
    for number, query in enumerate(query_vectors.astype(np.float64)):
        distances = {key: float(np.linalg.norm(np.array(row["embedding"]) - query)) for key, row in by_id.items()}
        own = answer.rows.filter(pa.array(np.asarray(answer.rows["query"]) == number)).to_pylist()
        assert [row["id"] for row in own] == sorted(distances, key=lambda key: distances[key])[:K], name
        assert [row["distance"] for row in own] == pytest.approx([distances[row["id"]] for row in own]), name
        assert [row["section"] for row in own] == [by_id[row["id"]]["section"] for row in own], name


def test_rows_that_deletion_vectors_remove_from_tail_and_index_are_in_no_answer(
    spark: Any, changes_catalog: Catalog
) -> None:
    lake = Lake(spark, changes_catalog, "tail")
    lake.sql(
        "CREATE TABLE {t} (id long, section string, {v} array<float>) USING iceberg TBLPROPERTIES ("
        "'format-version'='3', 'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read')"
    )
    lake.insert(INDEXED)
    definition = IndexDefinition(
        name="e", column="embedding", metric="l2", shards=1, max_degree=16, target_recall=0.5, filters=("section", "id")
    )
    create_index(lake.table, definition)
    lake.definition = load_definition(lake.table, "e")
    lake.index()
    lake.insert(90)
    lake.sql("DELETE FROM {t} WHERE id % 7 = 3")
    lake.sql("UPDATE {t} SET section = 'moved' WHERE id % 11 = 1")
    lake.sql("DELETE FROM {t} WHERE id % 13 = 2")
    files = live_files(lake.table, lake.table.metadata.current_snapshot_id or 0).files
    with_vectors = [file for file in files if {delete.kind for delete in file.deletes} == {DeleteKind.DELETION_VECTOR}]
    assert {INDEXED, 90} <= {file.record_count for file in with_vectors}, "of the index, and of the tail"

    rows = lake.sql("SELECT id, section, {v} FROM {t}")
    vectors = queries(4, DIMS)
    reader = open_index(lake.table, lake.definition, storage=STORAGE)
    columns = ["id", "section"]
    for first in range(3):  # another condition each time: matches are kept
        where = f"id >= {first} and (section = 'moved' or section = 's3')"
        matching = [row for row in rows if row["id"] >= first and row["section"] in ("moved", "s3")]
        whole = reader.search(vectors, K, columns=columns, search_list=200)
        as_brute_force(whole, vectors, rows, "all rows")
        filtered = reader.search(vectors, K, columns=columns, where=where)
        as_brute_force(filtered, vectors, matching, "under a condition")
        certified = reader.search(vectors, K, columns=columns, where=where, certified=True)
        as_brute_force(certified, vectors, matching, "certified")
        as_brute_force(reader.within(vectors, 1e9, limit=K, columns=columns), vectors, rows, "within")
    assert whole.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    in_index = sum(row["id"] < INDEXED and row["section"] != "moved" for row in rows)
    assert whole.profile.tail == f"{len(rows) - in_index} rows in memory, compared each"
    assert whole.profile.bytes_read["scan"] == 0
    assert filtered.profile.condition.endswith(f"in memory of {len(files) - 1} data files that it lacks")
    assert filtered.profile.matching_rows == len(matching)
