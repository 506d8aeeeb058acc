"""Sketches on Spark: files that come back one by one, and unions of the others."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icepuffin.ops.model import StorageConfig
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.tasks.sketches.statistic import Kind
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.file_sketches import BUDGET_BYTES
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.ops.theta.brute_force import all_kinds, require_exact
from tests.ops.theta.conftest import SCHEMA, current, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.jvm


def test_spark_counts_the_same_over_the_budget_and_within_it(session: "SparkSession", tmp_path: Path) -> None:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", pa.schema([("id", pa.int64()), ("name", pa.string())]))
    with table.transaction() as change:
        for number in range(20):
            ids = list(range(300 * number, 300 * number + 400))
            change.append(pa.table({"id": ids, "name": [f"name-{i % 50}" for i in ids]}))
    counts = []
    for budget, note in ((9_000, "are over the budget of 9,000 bytes"), (1 << 20, "")):
        snapshot = table.refresh().current_snapshot()
        assert snapshot is not None
        report = count_theta_sketches(
            RunContext(table, StorageConfig({}), SparkRunner(session)), snapshot.snapshot_id, budget_bytes=budget
        ).publish()
        assert report.note.partition(" files ")[2] == note
        counts.append((report.ndv["id"] / 6_100, report.ndv["name"]))
        table.delete("id = 3")
    assert counts[0] == (pytest.approx(1, rel=0.05), 50)
    assert counts[1] == (pytest.approx(counts[0][0], rel=0.001), 50)


def test_spark_makes_statistics_of_all_kinds_as_this_process_does(
    session: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By brute force. The parts of a file are in several tasks, whose unions come back where they are over the
    budget.
    """
    monkeypatch.setattr("icepuffin.ops.theta.snapshot_sketches.PART_ROWS", 1_000)
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("n")
    properties = {"format-version": "2", "write.parquet.row-group-limit": "700"}
    table = catalog.create_table("n.t", SCHEMA, properties=properties)
    for start, stop in ((0, 5_000), (4_000, 4_100), (4_100, 9_000)):
        table.append(rows(start, stop))
    requested, kinds = all_kinds(("id", "name"), ("name", "size")), []
    for budget in (20_000, BUDGET_BYTES):
        run = RunContext(table.refresh(), StorageConfig({}), SparkRunner(session))
        report = count_theta_sketches(run, current(table), requested=requested, budget_bytes=budget).publish()
        assert ("are over the budget" in report.note) == (budget == 20_000)
        kinds.append(require_exact(table, current(table)).keys())
        table.delete("id = 3")
    assert kinds[0] == kinds[1]
    assert {kind for kind, _ in kinds[0]} == {*Kind}
