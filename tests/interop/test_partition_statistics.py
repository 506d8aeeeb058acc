"""Partition statistics beside Iceberg's Java library and Spark: the same rows, and each reads the other's file."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.update import RemovePartitionStatisticsUpdate, SetPartitionStatisticsUpdate

from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaReport
from tests.conftest import STORAGE
from tests.naive.partitions import partition_rows
from tests.ops.theta.conftest import ThreadlessRunner, current
from tests.ops.theta.test_partition_statistics import (
    COLUMNS,
    KINDS,
    add,
    entry_of,
    file,
    make,
    path_of,
    plain,
    rows_of,
    spec_of,
    stored,
)

pytestmark = [pytest.mark.jvm, pytest.mark.services]
EVOLUTIONS = (
    "ADD PARTITION FIELD bucket(3, id)",
    "DROP PARTITION FIELD section",
    "ADD PARTITION FIELD days(at)",
    "ADD PARTITION FIELD truncate(1, name)",
    "RENAME COLUMN section TO part",
    "DROP PARTITION FIELD days(at)",
    "DROP COLUMN at",
)


class Beside:
    """A partitioned table, changed by Spark."""

    def __init__(self, spark: Any, catalog: Catalog, version: str, chance: random.Random) -> None:
        self.spark, self.catalog, self.chance = spark, catalog, chance
        self.name = f"p{version}"
        self.mode = "merge-on-read" if version != "1" else "copy-on-write"
        catalog.create_namespace_if_not_exists("db")
        self.evolutions = list(EVOLUTIONS)
        self.sql("DROP TABLE IF EXISTS {t} PURGE")
        modes = ", ".join(f"'write.{kind}.mode'='{self.mode}'" for kind in ("delete", "update", "merge"))
        self.sql(
            "CREATE TABLE {t} (id BIGINT, name STRING, section STRING, at TIMESTAMP, flag BOOLEAN) USING iceberg "
            f"PARTITIONED BY (section) TBLPROPERTIES ('format-version'='{version}', {modes})"
        )
        self.next = 0
        self.insert()

    def sql(self, text: str) -> list[Any]:
        return self.spark.sql(text.format(t=f"changes.db.{self.name}")).collect()

    @property
    def table(self) -> Table:
        return self.catalog.load_table(f"db.{self.name}")

    def insert(self) -> None:
        start, self.next = self.next, self.next + self.chance.randrange(5, 30)
        names = [field.name for field in self.table.schema().fields]
        values = {
            "id": "id",
            "name": "IF(id % 5 = 0, NULL, concat(char(97 + id % 3), 'x'))",
            "section": "IF(id % 7 = 0, NULL, concat('s', id % 3))",
            "part": "IF(id % 7 = 0, NULL, concat('s', id % 3))",
            "at": "timestamp_seconds(id * 40000 - 90000)",
            "flag": "id % 2 = 0",
        }
        chosen = ", ".join(values[name] for name in names)
        self.sql(f"INSERT INTO {{t}} SELECT {chosen} FROM range({start}, {self.next})")

    def delete(self) -> None:
        self.sql(f"DELETE FROM {{t}} WHERE id % 11 = {self.chance.randrange(11)}")

    def delete_partition(self) -> None:
        column = "part" if "part" in self.table.schema().column_names else "section"
        self.sql(f"DELETE FROM {{t}} WHERE {column} = 's{self.chance.randrange(3)}'")

    def update(self) -> None:
        self.sql(f"UPDATE {{t}} SET name = 'u' WHERE id % 13 = {self.chance.randrange(13)}")

    def compact(self) -> None:
        self.sql("CALL changes.system.rewrite_data_files(table => '" + f"db.{self.name}" + "')")

    def rewrite_manifests(self) -> None:
        self.sql("CALL changes.system.rewrite_manifests(table => '" + f"db.{self.name}" + "')")

    def evolve(self) -> None:
        if self.evolutions:
            self.sql("ALTER TABLE {t} " + self.evolutions.pop(0))
            self.insert()

    def go_back(self) -> None:
        parent = self.table.current_snapshot()
        if parent is not None and parent.parent_snapshot_id is not None:
            self.sql(f"CALL changes.system.rollback_to_snapshot('db.{self.name}', {parent.parent_snapshot_id})")
            self.insert()

    def java(self) -> Any:
        return self.spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.spark._jsparkSession, f"changes.db.{self.name}"
        )

    def computed_by_java(self, *, register: bool = False) -> list[dict[str, Any]]:
        """What Iceberg writes for the head, with no earlier file to go by. `register`: in place of the file there."""
        table = self.table
        entries = list(table.metadata.partition_statistics)
        if entries:
            removed = tuple(RemovePartitionStatisticsUpdate(snapshot_id=entry.snapshot_id) for entry in entries)
            table.catalog.commit_table(table, (), removed)
        made = self.spark._jvm.org.apache.iceberg.PartitionStatsHandler.computeAndWriteStatsFile(self.java())
        if entries:
            again = tuple(SetPartitionStatisticsUpdate(partition_statistics=entry) for entry in entries)
            table.catalog.commit_table(table, (), again)
        if register:
            self.java().updatePartitionStatistics().setPartitionStatistics(made).commit()
        return pq.read_table(Path(made.path().removeprefix("file:"))).to_pylist()

    def computed_by_spark(self) -> list[dict[str, Any]]:
        """What Spark's procedure writes for the head, which has no file yet, by what it finds at its ancestors."""
        self.sql("CALL changes.system.compute_partition_stats('db." + self.name + "')")
        return rows_of(self.table, current(self.table)).to_pylist()

    def read_by_java(self, snapshot_id: int) -> list[tuple[str, int, int, int]]:
        """(partition, spec, rows, files) of the registered file of a snapshot."""
        found, anything = [], self.spark._jvm.java.lang.Class.forName("java.lang.Object")
        scan = self.java().newPartitionStatisticsScan().useSnapshot(snapshot_id).scan()
        rows = scan.iterator()
        while rows.hasNext():
            row = rows.next()
            partition = row.partition()
            values = ", ".join(str(partition.get(i, anything)) for i in range(partition.size()))
            found.append((values, row.specId(), row.dataRecordCount(), row.dataFileCount()))
        scan.close()
        return found


def run(table: Table) -> ThetaReport:
    return count_theta_sketches(RunContext(table, STORAGE, ThreadlessRunner()), current(table)).publish()


def texts(expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the oracle, with values as texts."""
    return [{**row, "values": {name: stored(value) for name, value in row["values"].items()}} for row in expected]


def without_times(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr({name: value for name, value in row.items() if "last" not in name}) for row in rows)


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_a_history_by_spark_is_counted_as_iceberg_counts_it(
    spark: Any, changes_catalog: Catalog, version: str, seed: str
) -> None:
    beside = Beside(spark, changes_catalog, version, random.Random(f"{seed} {version}"))
    changes: list[Callable[[], None]] = [
        beside.insert, beside.delete, beside.delete_partition, beside.update, beside.compact,
        beside.rewrite_manifests, beside.evolve, beside.evolve, beside.go_back,
    ]  # fmt: skip
    for _ in range(14):
        beside.chance.choice(changes)()
        table = beside.table
        snapshot_id = current(table)
        if entry_of(table, snapshot_id) is None:
            assert run(table).note == ""
        rows = rows_of(table, snapshot_id).to_pylist()
        assert without_times(rows) == without_times(beside.computed_by_java())
        assert sorted(map(repr, map(plain, rows))) == sorted(map(repr, texts(partition_rows(table, snapshot_id))))


@pytest.fixture
def beside(spark: Any, changes_catalog: Catalog, seed: str) -> Beside:
    return Beside(spark, changes_catalog, "2", random.Random(seed))


def test_spark_builds_on_our_file_and_we_on_none_of_its(beside: Beside) -> None:
    """Its incremental counts begin with ours. It keeps rows of partitions that lost all files before: ours have those
    that its counts from the ground up have.
    """
    run(beside.table)
    beside.insert()
    beside.sql("DELETE FROM {t} WHERE section = 's1'")
    theirs = beside.computed_by_spark()
    assert run(beside.table).partitions == "", "theirs is kept"
    assert without_times(theirs) == without_times(beside.computed_by_java())
    beside.insert()
    table = beside.table
    run(table)
    ours = rows_of(table, current(table)).to_pylist()
    assert without_times(ours) == without_times(beside.computed_by_java())
    assert sorted(map(repr, map(plain, ours))) == sorted(map(repr, texts(partition_rows(table, current(table)))))


def test_counts_of_an_evolved_table_do_not_follow_what_spark_adds_up_wrongly(beside: Beside) -> None:
    """Iceberg 1.11 and 1.12 look for rows of an evolved spec at the wrong place of an ancestor's file, and write what
    the last snapshot added in place of the sum.
    """
    beside.sql("ALTER TABLE {t} ADD PARTITION FIELD flag")
    beside.sql("ALTER TABLE {t} DROP PARTITION FIELD section")
    beside.sql("INSERT INTO {t} VALUES (1000, 'n', 's', TIMESTAMP '2020-01-01', true)")
    beside.computed_by_spark()
    beside.sql("INSERT INTO {t} VALUES (1001, 'n', 's', TIMESTAMP '2020-01-01', true)")
    theirs = beside.computed_by_spark()
    truth = beside.computed_by_java()
    assert without_times(theirs) != without_times(truth), "if they are equal, Iceberg has mended it"
    beside.sql("INSERT INTO {t} VALUES (1002, 'n', 's', TIMESTAMP '2020-01-01', true)")
    table = beside.table
    run(table)
    ours = rows_of(table, current(table)).to_pylist()
    assert without_times(ours) == without_times(beside.computed_by_java())
    assert [row["data_record_count"] for row in ours if row["partition"]["flag"]] == [3]


def test_java_reads_our_file_and_the_metadata_table_is_the_same(beside: Beside) -> None:
    beside.evolve()
    table = beside.table
    run(table)
    ours = rows_of(table, current(table)).to_pylist()
    expected = [
        (", ".join("None" if v is None else str(v) for v in row["partition"].values()), row["spec_id"],
         row["data_record_count"], row["data_file_count"])
        for row in ours
    ]  # fmt: skip
    assert beside.read_by_java(current(table)) == expected
    listed = beside.spark.sql(f"SELECT record_count, file_count, spec_id FROM changes.db.{beside.name}.partitions")
    assert sorted(map(tuple, listed.collect())) == sorted((rows, files, spec) for _, spec, rows, files in expected)


def test_java_reads_partition_values_of_every_type(beside: Beside) -> None:
    """The file that Iceberg writes has the same values, and Java reads the same from both."""
    names = [name for name in KINDS if name != "fixed"]  # of which PyIceberg writes manifests that Java cannot read
    beside.name = "kinds"
    table = beside.catalog.create_table("db.kinds", COLUMNS, partition_spec=spec_of(*names))
    choices = [(*KINDS[name][2], None) for name in names]
    partitions = {tuple(values[row % len(values)] for values in choices) for row in range(6)}
    snapshot_id = add(table, *(file(table, values) for values in sorted(partitions, key=repr)))
    make(table, snapshot_id)
    read = beside.read_by_java(snapshot_id)
    ours, theirs = rows_of(table, snapshot_id).to_pylist(), beside.computed_by_java(register=True)
    assert len(ours) == len(partitions)
    assert without_times(ours) == without_times(theirs)
    assert read == beside.read_by_java(snapshot_id)


def test_spark_expires_and_cleans_around_our_file(beside: Beside) -> None:
    table = beside.table
    run(table)
    first, old = current(table), path_of(table, current(table))
    beside.insert()
    run(beside.table)
    kept = path_of(beside.table, current(beside.table))
    now = beside.spark._jvm.java.lang.System.currentTimeMillis() + 60_000
    actions = beside.spark._jvm.org.apache.iceberg.spark.actions.SparkActions.get()
    actions.deleteOrphanFiles(beside.java()).olderThan(now).execute()
    assert old.exists()
    assert kept.exists()
    actions.expireSnapshots(beside.java()).expireSnapshotId(first).execute()
    assert entry_of(beside.table, first) is None
    assert not old.exists()
    assert kept.exists()
    assert run(beside.table).note == ""
