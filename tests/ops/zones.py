"""Names one snapshot by its time in every way there is, in a process whose zone the environment sets; prints a JSON.

Each answer is the number of rows of the snapshot that was read: 50 is right, 100 is a snapshot of later.
"""

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from click.testing import CliRunner
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.search.opening import open_exact
from icepuffin.ops.spark.table_function import register_vector_search
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.table.snapshots import resolve_snapshot
from icepuffin.orchestration.cli import group
from tests.conftest import ROWS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION
from tests.services.spark import spark_session
from tests.services.spark_connect import spark_connect

ZERO = f"array({', '.join(['0D'] * 16)})"
TOKYO = ZoneInfo("Asia/Tokyo")


def lake(folder: Path) -> tuple[Catalog, Table, datetime]:
    """A table of 50 rows, then 100; and a time between the two."""
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    (folder / "icepuffin.toml").write_text(
        "[catalogs.test]\n"
        + "".join(f'{name} = "{value}"\n' for name, value in properties.items())
        + '[tables.t]\ncatalog = "test"\nname = "db.t"\n'
    )
    catalog = open_catalog("test", properties)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS, properties={"format-version": "2"})
    table.append(make_rows(0, 50))
    create_index(table, DEFINITION)
    time.sleep(0.05)
    between = datetime.now(UTC)
    time.sleep(0.05)
    table.append(make_rows(50, 100))
    return catalog, table.refresh(), between


def by_ourselves(folder: Path, catalog: Catalog, table: Table, between: datetime) -> Iterator[tuple[str, int]]:
    naive = between.replace(tzinfo=None)
    east = between.astimezone(timezone(timedelta(hours=9)))
    for name, moment in {
        "naive": naive, "aware": between, "east": east, "text": naive.isoformat(sep=" "), "zoned": east.isoformat(),
    }.items():  # fmt: skip
        snapshot = resolve_snapshot(table, moment)
        yield f"python {name}", table.scan(snapshot_id=snapshot.snapshot_id).count()
        yield (
            f"reader {name}",
            open_exact(table, "embedding", "l2", snapshot=moment, storage=STORAGE)
            .search([0.0] * 16, 1000, columns=["id"])
            .rows.num_rows,
        )
    statement = "SELECT id FROM db.t TIMESTAMP AS OF {} ORDER BY l2_distance(embedding, :q) LIMIT 1000"
    sql = SqlSession.on(catalog, storage=STORAGE)
    for name, moment in {
        "text": f"'{naive}'",
        "typed": f"TIMESTAMP '{naive}'",
        "zoned": f"'{east}'",
        "value": ":at",
    }.items():
        found = sql.sql(statement.format(moment), {"q": [0.0] * 16, "at": naive})
        yield f"sql {name}", found.rows.num_rows
    output = CliRunner().invoke(
        group,
        ["stats", "db.t", "--dir", str(folder), "--snapshot", naive.isoformat(), "--json"],
        catch_exceptions=False,
    )
    yield "command line", json.loads(output.output)["records"]


def by_spark(spark: Any, catalog: Catalog, between: datetime) -> Iterator[tuple[str, int]]:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    register_vector_search(spark, catalog)
    wall = between.astimezone(TOKYO).replace(tzinfo=None)
    for name, moment in {
        "timestamp": f"TIMESTAMP '{wall}'",
        "zoned": f"TIMESTAMP '{between.isoformat()}'",
        "ntz": f"TIMESTAMP_NTZ '{between.replace(tzinfo=None)}'",
        "text": f"'{between.replace(tzinfo=None)}'",
        "zoned text": f"'{wall}+09:00'",
    }.items():
        text = f"SELECT id FROM vector_search('db.t', 'e', {ZERO}, 1000, columns => array('id'), snapshot => {moment})"
        yield name, spark.sql(text).toArrow().num_rows


def run(folder: Path) -> dict[str, int]:
    catalog, table, between = lake(folder)
    answers = dict(by_ourselves(folder, catalog, table, between))
    session = spark_session(folder, [])
    with spark_connect(session) as client:
        for kind, spark in {"classic": session, "connect": client}.items():
            answers |= {f"{kind} {name}": count for name, count in by_spark(spark, catalog, between)}
    session.stop()
    return answers


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]))) + "\n")
