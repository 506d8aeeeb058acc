"""A table that Spark changes in every way, and its index compared with brute force over Spark's own rows."""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import DoubleType

from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.result import SearchResult
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, queries, vectors_of

DIMS = 8
K = 10


@dataclass
class Lake:
    """One table as Spark and PyIceberg see it."""

    spark: Any
    catalog: Catalog
    name: str
    definition: IndexDefinition | None = None
    vector: str = "embedding"
    next_id: int = 0
    reports: dict[str, IndexReport] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return f"changes.db.{self.name}"

    @property
    def table(self) -> Table:
        return self.catalog.load_table(f"db.{self.name}")

    def sql(self, text: str) -> list[Any]:
        return list(self.spark.sql(text.format(t=self.full_name, s=f"db.{self.name}", v=self.vector)).collect())

    def insert(self, count: int, into: str = "INSERT INTO {t}", section: str | None = None) -> None:
        """New rows, all with `section`, or with five sections in turn."""
        ids = np.arange(self.next_id, self.next_id + count)
        self.next_id += count
        rows = [
            (int(number), section or f"s{number % 5}", vector.tolist())
            for number, vector in zip(ids, vectors_of(ids, dims=DIMS), strict=True)
        ]
        frame = self.spark.createDataFrame(rows, f"id long, section string, {self.vector} array<float>").coalesce(1)
        frame.createOrReplaceTempView("incoming")
        self.sql(into + " SELECT * FROM incoming")

    def index(self) -> IndexReport:
        assert self.definition is not None
        table = self.table
        head = table.metadata.current_snapshot_id
        assert head is not None
        return materialize_index(RunContext(table, STORAGE, LocalRunner(1)), self.definition, head)

    def rows(self) -> dict[int, Any]:
        """Vectors f64[D] by id, as Spark reads them."""
        rows = self.sql("SELECT id, {v} FROM {t}")
        found = {row[0]: np.array(row[1], np.float64) for row in rows}
        assert len(found) == len(rows)
        return found

    def check(self, truth: dict[int, Any]) -> SearchResult:
        """Distances are true, rows are live, none is missing but a few of the approximate ones."""
        assert self.definition is not None
        query_vectors = queries(5, DIMS)
        result = open_index(self.table, self.definition, storage=STORAGE).search(query_vectors, K, columns=["id"])
        doubles = self.table.schema().find_type(f"{self.vector}.element") == DoubleType()
        assert all(doubles and "doubles" in warning for warning in result.warnings), result.warnings
        missed = []
        for query, vector in enumerate(query_vectors):
            own_rows = result.rows.filter(pa.array(np.asarray(result.rows["query"]) == query))
            distances = {number: float(np.linalg.norm(row - vector)) for number, row in truth.items()}
            assert len(own_rows) == len(set(own_rows["id"].to_pylist())) == min(K, len(truth))
            for number, reported in zip(own_rows["id"].to_pylist(), own_rows["distance"].to_pylist(), strict=True):
                assert reported == pytest.approx(distances[number], rel=1e-4)
            limit = sorted(distances.values())[: min(K, len(truth))][-1]
            missed.append(np.mean(np.asarray(own_rows["distance"]) > limit * (1 + 1e-4)))
        assert np.mean(missed) <= 0.04
        return result

    def check_within(self, truth: dict[int, Any]) -> None:
        """The rows nearer than the tenth neighbour is: all of them, and no other."""
        assert self.definition is not None
        reader = open_index(self.table, self.definition, storage=STORAGE)
        for query in queries(3, DIMS):
            distances = {number: float(np.linalg.norm(row - query)) for number, row in truth.items()}
            ranked = sorted(distances, key=lambda number: distances[number])
            limit = (distances[ranked[K - 1]] + distances[ranked[K]]) / 2
            found = reader.within(query, limit, columns=["id"])
            assert sorted(found.rows["id"].to_pylist()) == sorted(ranked[:K])


def insert(lake: Lake) -> None:
    lake.insert(40)


def delete(lake: Lake) -> None:
    lake.sql("DELETE FROM {t} WHERE id % 7 = 3")


def update(lake: Lake) -> None:
    lake.sql("UPDATE {t} SET section = 'moved' WHERE id % 11 = 1")


def update_vectors(lake: Lake) -> None:
    lake.sql("UPDATE {t} SET {v} = transform({v}, x -> cast(x + 0.5 AS float)) WHERE id % 13 = 2")


def merge(lake: Lake) -> None:
    lake.insert(20)
    lake.sql(
        "MERGE INTO {t} t USING (SELECT id, section, {v} FROM {t} WHERE id % 17 = 4) s ON t.id = s.id "
        "WHEN MATCHED AND s.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET t.section = 'merged'"
    )


def compact(lake: Lake) -> None:
    lake.sql(
        "CALL changes.system.rewrite_data_files(table => '{s}', options => map('min-input-files', '1', "
        "'rewrite-all', 'true'))"
    )


def compact_sorted(lake: Lake) -> None:
    lake.sql(
        "CALL changes.system.rewrite_data_files(table => '{s}', strategy => 'sort', sort_order => 'id DESC', "
        "options => map('rewrite-all', 'true'))"
    )


def rewrite_manifests(lake: Lake) -> None:
    lake.sql("CALL changes.system.rewrite_manifests('{s}')")


def rewrite_position_deletes(lake: Lake) -> None:
    lake.sql("CALL changes.system.rewrite_position_delete_files(table => '{s}', options => map('rewrite-all', 'true'))")


def roll_back(lake: Lake) -> None:
    lake.sql(f"CALL changes.system.rollback_to_snapshot('{{s}}', {_before_head(lake)})")


def _before_head(lake: Lake) -> int:
    table = lake.table
    head = table.current_snapshot()
    assert head is not None
    assert head.parent_snapshot_id is not None
    return head.parent_snapshot_id


def write_audit_publish(lake: Lake) -> None:
    """Staged by a WAP id, then cherry-picked."""
    lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.wap.enabled'='true')")
    lake.spark.conf.set("spark.wap.id", f"audit-{lake.name}")
    lake.insert(15)
    lake.spark.conf.unset("spark.wap.id")
    lake.check(lake.rows())
    lake.sql(f"CALL changes.system.publish_changes('{{s}}', 'audit-{lake.name}')")
    lake.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('write.wap.enabled')")


def branch_and_fast_forward(lake: Lake) -> None:
    lake.sql("ALTER TABLE {t} CREATE BRANCH audit")
    lake.insert(15, into="INSERT INTO {t}.branch_audit")
    lake.sql("CALL changes.system.fast_forward('{s}', 'main', 'audit')")
    lake.sql("ALTER TABLE {t} DROP BRANCH audit")


def rename_column(lake: Lake) -> None:
    lake.sql("ALTER TABLE {t} RENAME COLUMN {v} TO vector")
    lake.vector = "vector"
    lake.insert(5)


def change_columns(lake: Lake) -> None:
    lake.sql("ALTER TABLE {t} ADD COLUMN note string FIRST")
    lake.sql("DELETE FROM {t} WHERE id % 29 = 5")
    lake.sql("ALTER TABLE {t} DROP COLUMN note")


def widen(lake: Lake) -> None:
    lake.sql("ALTER TABLE {t} ALTER COLUMN {v}.element TYPE double")
    lake.insert(5)


def partition(lake: Lake) -> None:
    lake.sql("ALTER TABLE {t} ADD PARTITION FIELD section")
    lake.insert(30)
    lake.sql("ALTER TABLE {t} WRITE ORDERED BY id")
    lake.insert(10)


def overwrite_partitions(lake: Lake) -> None:
    lake.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    lake.insert(12, into="INSERT OVERWRITE {t}", section="s3")
    lake.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")


def expire(lake: Lake) -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() + 60))
    lake.sql(
        f"CALL changes.system.expire_snapshots(table => '{{s}}', older_than => TIMESTAMP '{now}', retain_last => 1)"
    )


def upgrade(lake: Lake) -> None:
    lake.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')")


def delete_everything(lake: Lake) -> None:
    lake.sql("DELETE FROM {t}")
    lake.insert(25)
