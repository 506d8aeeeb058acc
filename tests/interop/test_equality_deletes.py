"""Tables with equality deletes, as Flink's upserts and CDC tools write them, answer as Iceberg and Spark read them."""

import random
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from tests.draws import TALLY, amount
from tests.interop.upserts import UpsertedTable
from tests.selection import some
from tests.services.jars import SPARK

pytestmark = [pytest.mark.jvm, pytest.mark.services]

STEPS = amount(9, "ICEPUFFIN_UPSERTS")


@pytest.mark.parametrize("version", some(["2", "3"], 1))
def test_a_random_history_answers_as_iceberg_and_spark_read_it(
    spark: Any, changes_catalog: Catalog, version: str, seed: str
) -> None:
    share = 0 if SPARK == "4.0" else 0.5  # Iceberg 1.11 for Spark 4.0 cannot read deletes by a dropped column
    table = UpsertedTable(spark, changes_catalog, "changes", f"upserts{version}", random.Random(seed), share)
    table.create(version)
    for _ in range(STEPS):
        table.step()
        TALLY.counts["steps"] += 1
        try:
            table.check()
        except Exception as error:
            raise AssertionError("after\n" + "\n".join(table.log)) from error
