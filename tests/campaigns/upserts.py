"""Histories of tables with equality deletes, which Iceberg's Java writes, beside what Iceberg and Spark read.

After each step searches return these rows: by a scan, by the version of an older snapshot, by a new one.
"""

import tempfile
from pathlib import Path

from icepuffin.ops.catalog.connection import open_catalog
from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.interop.upserts import UpsertedTable
from tests.services.jars import ICEBERG_SPARK
from tests.services.rest import rest_catalog
from tests.services.spark import spark_session

CATALOG = "upserts"
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
_STEPS = 20
"""Commits of a history; a longer one takes longer per step, since each row is compared after each"""
_SPARK_SHARE = 0.01
"""Share of the steps in which Spark takes part: a query takes as long as all other work of a step"""


def run(budget: Budget) -> None:
    """Raises BrokenPromiseError."""
    with tempfile.TemporaryDirectory() as name, rest_catalog(Path(name), {}) as uri:
        spark = spark_session(Path(name), [ICEBERG_SPARK])
        settings = {"": SPARK_CATALOG, ".type": "rest", ".uri": uri, ".cache-enabled": "false"}
        for key, value in settings.items():
            spark.conf.set(f"spark.sql.catalog.{CATALOG}{key}", value)
        catalog = open_catalog(CATALOG, {"type": "rest", "uri": uri})
        catalog.create_namespace_if_not_exists("db")
        try:
            for number, rng in budget.trials():
                table = UpsertedTable(spark, catalog, CATALOG, f"history{number}", rng, _SPARK_SHARE)
                follow(table, rng.choice("23"), budget, number)
                catalog.purge_table(f"db.{table.name}")
        finally:
            catalog.close()
            spark.stop()


def follow(table: UpsertedTable, version: str, budget: Budget, number: int) -> None:
    """One history, each step of which is a trial. Raises BrokenPromiseError, which names the trial and its steps."""
    try:
        table.create(version)
        for _ in range(_STEPS):
            table.step()
            table.check()
            budget.counts[f"steps of tables created in format v{version}"] += 1
    except Exception as error:
        history = "\n".join(table.log)
        raise BrokenPromiseError(f"trial {number}, after\n{history}\n{type(error).__name__}: {error}") from error
    budget.notes["histories"] += 1
    budget.notes["columns with a default"] += sum(line.startswith("default") for line in table.log)
