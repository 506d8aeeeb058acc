"""Theta sketches beside Spark with Iceberg: the same bytes, the same NDVs, and what each leaves of the other's."""

import datetime as dt
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.table.format_versions import UnsupportedFormatError
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaOutcome, ThetaReport
from icepuffin.puffin import BytesSource, PuffinReader
from icepuffin.puffin.blobs.theta_blob import ThetaSketch, decode, encode
from icepuffin.puffin.types import BlobType
from tests.ops.theta.conftest import ThreadlessRunner
from tests.ops.theta.foreign import add_unlisted

pytestmark = pytest.mark.jvm


@dataclass
class Both:
    """One table, as PyIceberg and as Spark see it."""

    spark: Any
    catalog: SqlCatalog
    name: str
    """Name of the catalog in Spark and in PyIceberg."""

    def create(self, schema: Schema) -> Table:
        return self.catalog.create_table("db.t", schema, properties={"format-version": "2"})

    @property
    def sql_name(self) -> str:
        return f"{self.name}.db.t"

    def analyze(self, table: Table, *columns: str) -> int:
        """Spark's compute_table_stats of the current snapshot; the snapshot's id."""
        names = ", ".join(f"'{c}'" for c in columns)
        wanted = f", columns => array({names})" if columns else ""
        found = self.spark.sql(f"CALL {self.name}.system.compute_table_stats(table => 'db.t'{wanted})").collect()
        assert found
        return current(table)

    def planner_ndv(self) -> dict[str, int]:
        """Column statistics that Spark's cost-based optimiser uses."""
        plan = self.spark.table(self.sql_name)._jdf.queryExecution().optimizedPlan()
        result, entries = {}, plan.stats().attributeStats().iterator()
        while entries.hasNext():
            entry = entries.next()
            if entry._2().distinctCount().isDefined():
                result[entry._1().name()] = int(str(entry._2().distinctCount().get()))
        return result


@pytest.fixture
def both(spark: Any, tmp_path: Path) -> Iterator[Both]:
    name = f"theta_{abs(hash(tmp_path)) % 10**9}"
    warehouse = f"file://{tmp_path}/warehouse"
    settings = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{tmp_path}/catalog.db?synchronous=OFF",
        ".warehouse": warehouse,
        ".jdbc.schema-version": "V1",
        ".cache-enabled": "false",
    }
    catalog = SqlCatalog(name, uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=warehouse)
    catalog.create_namespace("db")
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    spark.conf.set("spark.sql.cbo.enabled", "true")
    spark.conf.set("spark.sql.iceberg.report-column-stats", "true")
    yield Both(spark, catalog, name)
    spark.conf.unset("spark.sql.cbo.enabled")
    spark.conf.unset("spark.sql.iceberg.report-column-stats")
    catalog.engine.dispose()


def current(table: Table) -> int:
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def materialize(table: Table, snapshot_id: int, **options: Any) -> ThetaReport:
    return count_theta_sketches(
        RunContext(table, StorageConfig({}), ThreadlessRunner()), snapshot_id, **options
    ).publish()


def images(table: Table, snapshot_id: int) -> Mapping[str, tuple[bytes, Mapping[str, str]]]:
    entry = find_statistics(table.refresh(), snapshot_id)
    assert entry is not None
    reader = PuffinReader(BytesSource(Path("/" + entry.statistics_path.removeprefix("file:").lstrip("/")).read_bytes()))
    return {
        table.schema().find_column_name(b.fields[0]) or "": (reader.read_blob(b), b.properties)
        for b in reader.footer.of_type(BlobType.THETA)
    }


def same_values(a: ThetaSketch, b: ThetaSketch) -> bool:
    theta = min(a.theta, b.theta)
    return [h for h in a.hashes.tolist() if h < theta] == [h for h in b.hashes.tolist() if h < theta]


EVERY_TYPE = Schema(
    NestedField(1, "flag", BooleanType(), required=False),
    NestedField(2, "small", IntegerType(), required=False),
    NestedField(3, "big", LongType(), required=False),
    NestedField(4, "single", FloatType(), required=False),
    NestedField(5, "twice", DoubleType(), required=False),
    NestedField(6, "day", DateType(), required=False),
    NestedField(7, "local", TimestampType(), required=False),
    NestedField(8, "moment", TimestamptzType(), required=False),
    NestedField(9, "text", StringType(), required=False),
    NestedField(10, "octets", BinaryType(), required=False),
    NestedField(11, "tag", FixedType(3), required=False),
    NestedField(12, "price", DecimalType(9, 2), required=False),
    NestedField(13, "wide", DecimalType(38, 4), required=False),
    NestedField(14, "none", LongType(), required=False),
    NestedField(15, "one", LongType(), required=False),
)
SPECIAL = [0.0, -0.0, 1.5, float("inf"), float("nan"), struct.unpack("<d", b"\1\0\0\0\0\0\xf8\x7f")[0], None]


def every_type_rows() -> pa.Table:
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

    count = 400
    start = dt.datetime(1960, 1, 1)  # noqa: DTZ001
    columns: dict[str, list[Any]] = {
        "flag": [[True, False, None][i % 3] for i in range(count)],
        "small": [(i - 200) * 1_000_003 for i in range(count)],
        "big": [(i - 200) * 10**15 for i in range(count)],
        "single": [SPECIAL[i] if i < 7 else i / 8 for i in range(count)],
        "twice": [SPECIAL[i] if i < 7 else i / 8 for i in range(count)],
        "day": [dt.date(1960, 1, 1) + dt.timedelta(days=100 * i) for i in range(count)],
        "local": [start + dt.timedelta(days=100 * i, microseconds=i) for i in range(count)],
        "moment": [(start + dt.timedelta(days=90 * i)).replace(tzinfo=dt.UTC) for i in range(count)],
        "text": [["", "é", None][i % 3] if i < 9 else f"text-{i % 90}" * (i % 5) for i in range(count)],
        "octets": [bytes([i % 256]) * (i % 40) for i in range(count)],
        "tag": [bytes([i % 256, 0, 1]) for i in range(count)],
        "price": [Decimal(i - 200) * Decimal("1.37") for i in range(count)],
        "wide": [Decimal((-1) ** i * i**12).scaleb(-4) for i in range(count)],
        "none": [None] * count,
        "one": [7] * count,
    }
    arrow = schema_to_pyarrow(EVERY_TYPE, include_field_ids=False)
    return pa.table({f.name: pa.array(columns[f.name], f.type) for f in arrow}, schema=arrow)


def test_in_exact_mode_every_image_is_byte_for_byte_what_iceberg_writes(both: Both) -> None:
    table = both.create(EVERY_TYPE)
    table.append(every_type_rows())
    columns = [field.name for field in EVERY_TYPE.fields]
    other_images = images(table, both.analyze(table, *columns))
    report = materialize(table, current(table), requested=RequestedStatistics(ndv=tuple(columns)))
    ours = images(table, current(table))
    assert report.outcome is ThetaOutcome.WRITTEN
    assert set(other_images) == set(ours) == set(columns)
    assert {c: i.hex() for c, (i, _) in ours.items()} == {c: i.hex() for c, (i, _) in other_images.items()}
    assert {c: p["ndv"] for c, (_, p) in ours.items()} == {c: p["ndv"] for c, (_, p) in other_images.items()}


def test_in_estimation_mode_the_hashes_are_the_same_values(both: Both) -> None:
    table = both.create(Schema(NestedField(1, "id", LongType(), required=False)))
    table.append(pa.table({"id": pa.array(range(60_000), pa.int64())}))
    other_images, their_properties = images(table, both.analyze(table))["id"]
    materialize(table, current(table))
    ours, our_properties = images(table, current(table))["id"]
    assert not decode(other_images).exact
    assert same_values(decode(ours), decode(other_images))
    assert encode(decode(other_images)) == other_images
    assert abs(int(our_properties["ndv"]) / 60_000 - 1) < 0.05
    assert abs(int(their_properties["ndv"]) / 60_000 - 1) < 0.05


THREE = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "weight", DoubleType(), required=False),
)


def three(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table({"id": list(numbers), "name": [f"n{i % 9}" for i in numbers], "weight": [i / 2 for i in numbers]})


def test_sparks_optimiser_uses_the_ndvs(both: Both) -> None:
    table = both.create(THREE)
    table.append(three(0, 500))
    assert both.planner_ndv() == {}
    materialize(table, current(table))
    assert both.planner_ndv() == {"id": 500, "name": 9}


def test_spark_still_plans_after_a_sketched_column_was_dropped(both: Both) -> None:
    table = both.create(THREE)
    table.append(three(0, 500))
    materialize(table, current(table))
    both.spark.sql(f"ALTER TABLE {both.sql_name} DROP COLUMN name")
    materialize(table.refresh(), current(table))
    assert both.planner_ndv() == {"id": 500}
    assert both.spark.table(both.sql_name).count() == 500


def test_what_spark_put_into_the_slot_is_merged_and_ours_asserted_again(both: Both) -> None:
    table = both.create(THREE)
    table.append(three(0, 500))
    snapshot = current(table)
    first = materialize(table, snapshot)
    both.analyze(table, "weight")
    assert set(images(table, snapshot)) == {"weight"}
    other_images = images(table, snapshot)["weight"]
    again = materialize(table.refresh(), snapshot)
    assert (again.outcome, again.files_sketched) == (ThetaOutcome.WRITTEN, 0)
    assert again.ndv == {**first.ndv, "weight": 500}
    assert again.merged_columns == ("weight",)
    assert images(table, snapshot)["weight"] == other_images
    assert both.planner_ndv() == {"id": 500, "name": 9, "weight": 500}
    assert materialize(table.refresh(), snapshot).outcome is ThetaOutcome.CURRENT


def test_what_spark_counted_for_an_ancestor_is_not_built_on(both: Both) -> None:
    table = both.create(THREE)
    table.append(three(0, 500))
    both.analyze(table, "id", "weight")
    table.append(three(400, 800))
    runner = ThreadlessRunner()
    snapshot = current(table)
    report = count_theta_sketches(RunContext(table, StorageConfig({}), runner), snapshot).publish()
    assert (len(runner.files), report.files_sketched, report.files_reused) == (2, 2, 0)
    assert report.extended_columns == ()
    assert report.ndv == {"id": 800, "weight": 800}
    spark_images = images(table, both.analyze(table, "id", "weight"))
    assert {c: int(p["ndv"]) for c, (_, p) in spark_images.items()} == report.ndv


def test_sparks_statistics_of_partitions_stand_beside_ours(both: Both) -> None:
    table = both.create(THREE)
    with table.update_spec() as update:
        update.add_identity("name")
    table.append(three(0, 500))
    snapshot = current(table)
    report = materialize(table, snapshot)
    both.spark.sql(f"CALL {both.name}.system.compute_partition_stats(table => 'db.t')").collect()
    assert read_ndv(table.refresh(), snapshot).fresh
    (partitions,) = table.metadata.partition_statistics
    both.analyze(table, "id")
    again = materialize(table.refresh(), snapshot)
    assert (again.outcome, again.ndv) == (ThetaOutcome.WRITTEN, report.ndv)
    assert table.refresh().metadata.partition_statistics == [partitions]


def test_spark_drops_from_the_slot_what_only_the_file_had(both: Both) -> None:
    table = both.create(THREE)
    table.append(three(0, 500))
    materialize(table, current(table))
    add_unlisted(table, [("presto-sum-data-size-bytes-v1", 2, b"", {"data_size": "1200"})])
    both.analyze(table, "id")
    entry = find_statistics(table.refresh(), current(table))
    assert entry is not None
    footer = PuffinReader(LocalStorage().source(entry.statistics_path)).footer
    assert [(blob.type, blob.fields) for blob in footer.blobs] == [(BlobType.THETA.value, (1,))]


def test_executors_count_what_the_driver_counts(both: Both) -> None:
    table = both.create(THREE)
    for start in (0, 400, 800):
        table.append(three(start, start + 500))
    snapshot = current(table)
    report = count_theta_sketches(RunContext(table, StorageConfig({}), SparkRunner(both.spark)), snapshot).publish()
    assert (report.files_sketched, report.ndv) == (3, {"id": 1300, "name": 9})
    spark_images = images(table, both.analyze(table, "id", "name"))
    assert {c: int(p["ndv"]) for c, (_, p) in spark_images.items()} == report.ndv


def test_a_v3_table_in_a_sql_catalog_is_refused_before_anything_is_counted(both: Both) -> None:
    both.spark.sql(f"CREATE TABLE {both.sql_name} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    both.spark.sql(f"INSERT INTO {both.sql_name} SELECT id FROM range(500)")
    table = both.catalog.load_table("db.t")
    with pytest.raises(UnsupportedFormatError, match=r"db\.t has format version 3: .* Use a REST catalog"):
        materialize(table, current(table))


def test_what_spark_counted_is_read_and_called_spark_s(both: Both) -> None:
    table = both.create(THREE)
    table.append(three(0, 500))
    snapshot = both.analyze(table, "id")
    assert read_ndv(table, snapshot).entries["id"].ndv == 500
    assert not read_ndv(table, snapshot).fresh
    assert "by another engine, for snapshot" in read_ndv(table, snapshot).entries["id"].why
