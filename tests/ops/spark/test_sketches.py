"""Sketches on Spark: files that come back one by one, and unions of the others."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icepuffin.ops.model import StorageConfig
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches

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
