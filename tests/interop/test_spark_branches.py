"""A branch is read by the columns that the table has now, a tag by those of its snapshot: as Spark reads them."""

from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.index.definitions.ddl import create_index, load_definition
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.sql.sql_session import SqlSession
from tests.conftest import STORAGE
from tests.interop.changes import Lake

pytestmark = [pytest.mark.jvm, pytest.mark.services]
ROWS = 60


@pytest.fixture
def swapped(spark: Any, changes_catalog: Catalog) -> Lake:
    """A table with a branch and a tag on its one snapshot, whose two texts have changed their names since."""
    lake = Lake(spark, changes_catalog, "swapped")
    lake.sql("CREATE TABLE {t} (id long, one string, two string, embedding array<float>) USING iceberg")
    vector = "array(CAST(id AS float), 1F, 2F, 3F)"
    lake.sql(f"INSERT INTO {{t}} SELECT id, concat('v', id % 3), concat('v', id % 2), {vector} FROM range({ROWS})")
    create_index(lake.table, IndexDefinition(name="e", column="embedding", metric="l2", target_recall=0.5))
    lake.definition = load_definition(lake.table, "e")
    lake.index()
    lake.sql("ALTER TABLE {t} CREATE BRANCH side")
    lake.sql("ALTER TABLE {t} CREATE TAG kept")
    for old, new in (("one", "between"), ("two", "one"), ("between", "two")):
        lake.sql(f"ALTER TABLE {{t}} RENAME COLUMN {old} TO {new}")
    lake.sql("ALTER TABLE {t} ADD COLUMN three int")
    return lake


def test_conditions_name_the_columns_that_spark_reads(swapped: Lake) -> None:
    session = SqlSession.on(swapped.catalog, storage=STORAGE)
    nearest = f"ORDER BY l2_distance(embedding, ARRAY(0, 1, 2, 3)) LIMIT {ROWS}"
    answers = {}
    for ref in ("side", "kept", "main"):
        for where in ("one = 'v1'", "two = 'v1'", "three IS NULL")[: 2 if ref == "kept" else 3]:
            text = f"SELECT id FROM {{table}} VERSION AS OF '{ref}' WHERE {where}"
            by_spark = sorted(row[0] for row in swapped.sql(text.format(table="{t}")))
            answer = session.sql(f"{text.format(table='db.swapped')} {nearest}")
            assert sorted(answer.rows["id"].to_pylist()) == by_spark, (ref, where)
            assert answer.how.startswith("index e")
            answers[ref, where] = len(by_spark)
    assert answers["side", "one = 'v1'"] == ROWS // 2
    assert answers["kept", "one = 'v1'"] == ROWS // 3
