"""What planners do with the statistics of icepuffin: `make planners`.

    python -m benchmarks.planners [--sales 3000000] [--times 3] [--out planners.json]

A shop (`benchmarks.star_schema`) in a REST catalog, which Trino and Spark read: its rows are written, Trino analyzes
each table, and then rows are deleted. Each engine plans ten queries with what ANALYZE left, without any statistics,
with those of `icepuffin.refresh`, and with those again after Spark compacted the tables. It runs them without
statistics and with ours. All answers must be the same.

Estimates are beside what there is, and a dash where a planner has none. `joined rows`: those that come out of all joins
of the plan. Needs what tests/interop/trino_server.py names; Presto takes part where PRESTO_HOME is set. Trino takes at
most 3 GB, Presto 2, Spark and the catalog 1.5.
"""

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog

import icepuffin
from benchmarks.engine_plans import TABLES, Engine, Presto, Spark, Trino
from benchmarks.star_schema import DELETES, NAMESPACE, QUERIES, make_shop
from icepuffin.ops.catalog.connection import open_catalog
from tests.interop.presto_server import PrestoServer
from tests.interop.trino_server import TrinoServer
from tests.services.jars import ICEBERG_SPARK
from tests.services.rest import rest_catalog
from tests.services.spark import spark_session

ANALYZED, WITHOUT, OURS, COMPACTED = "analyzed, then deleted from", "none", "icepuffin", "icepuffin, compacted"
STATES = (ANALYZED, WITHOUT, OURS, COMPACTED)
PARTS = ("plans", "runs")
FILES = 10
"""Data files of the largest table"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planners", description=__doc__)
    parser.add_argument("--sales", type=int, default=3_000_000, help="rows of the largest table")
    parser.add_argument("--times", type=int, default=3, help="runs of each query, of which the median counts")
    parser.add_argument("--out", type=Path, help="file for all that was seen, as JSON")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="planners-")))
        uri = stack.enter_context(rest_catalog(folder, {}))
        catalog = open_catalog("lake", {"type": "rest", "uri": uri})
        stack.callback(catalog.close)
        make_shop(catalog, arguments.sales, FILES)
        (folder / "trino").mkdir()
        server = TrinoServer(folder / "trino", uri, 3_000, "-XX:+TieredCompilation")
        stack.callback(server.close)
        session = spark_session(folder, [ICEBERG_SPARK])
        stack.callback(session.stop)
        conf = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": uri, ".cache-enabled": "false"}
        for key, value in conf.items():
            session.conf.set(f"spark.sql.catalog.lake{key}", value)
        engines: list[Engine] = [Trino(server), Spark(session)]
        if "PRESTO_HOME" in os.environ:
            (folder / "presto").mkdir()
            presto = PrestoServer(folder / "presto", heap_mb=2_000, compiler="-XX:+TieredCompilation")
            stack.callback(presto.close)
            engines.append(Presto(presto))
        report(compare(catalog, engines, arguments.times), arguments.out)


def compare(catalog: Catalog, engines: Sequence[Engine], times: int) -> dict[str, Any]:
    """Plans, runs and answers in each state, and the NDVs of each."""
    trino, spark, *_ = engines
    tables = [name for _, name in catalog.list_tables(NAMESPACE)]
    for name in tables:
        trino.rows(f"ANALYZE {TABLES}.{name}")
    for name, condition in DELETES.items():
        spark.rows(f"DELETE FROM {TABLES}.{name} WHERE {condition.replace('{t}', TABLES)}")  # noqa: S608  our own
    seen: dict[str, Any] = {"ndv": {}, "refresh_seconds": {}, "groups": {}}
    seen |= {part: {engine.name: {query.name: {} for query in QUERIES} for engine in engines} for part in PARTS}
    answers: dict[str, Any] = {}
    for state in STATES:
        seen["refresh_seconds"][state] = bring_to(state, catalog, tables, spark)
        seen["ndv"][state] = {name: ndvs(trino, name) for name in tables}
        for engine in engines:
            engine.see([catalog.load_table(f"{NAMESPACE}.{name}") for name in tables])
        for engine, query in product(engines, QUERIES):
            text = query.sql(TABLES)
            seen["plans"][engine.name][query.name][state] = engine.plan(text)
            if state in (WITHOUT, OURS):
                run, rows = engine.run(text, times)
                seen["runs"][engine.name][query.name][state] = run
                answer = sorted(map(str, rows))
                assert answers.setdefault(query.name, answer) == answer, (engine.name, query.name)
    seen["groups"] = {name: len(answer) for name, answer in answers.items()}
    seen["rows"] = {query.name: trino.rows(query.count(TABLES))[0][0] for query in QUERIES}
    seen["distinct"] = {name: distinct(trino, name, seen["ndv"][OURS][name]) for name in tables}
    return seen


def bring_to(state: str, catalog: Catalog, tables: Sequence[str], spark: Engine) -> float:
    """Give the tables the statistics of a state, which follows the one before it; seconds of `icepuffin.refresh`."""
    if state == WITHOUT:
        remove_statistics(catalog, tables)
    if state == COMPACTED:
        for name in DELETES:
            spark.rows(
                f"CALL lake.system.rewrite_data_files(table => '{NAMESPACE}.{name}', "
                "options => map('rewrite-all', 'true'))"
            )
    started = time.perf_counter()
    if state in (OURS, COMPACTED):
        for name in tables:
            icepuffin.refresh(catalog.load_table(f"{NAMESPACE}.{name}"))
    return time.perf_counter() - started


def remove_statistics(catalog: Catalog, tables: Sequence[str]) -> None:
    """Take all statistics entries from the tables."""
    for name in tables:
        table = catalog.load_table(f"{NAMESPACE}.{name}")
        with table.update_statistics() as update:
            for entry in table.metadata.statistics:
                update.remove_statistics(entry.snapshot_id)


def ndvs(trino: Engine, name: str) -> dict[str, float | None]:
    """Distinct values that Trino knows of, by column."""
    return {row[0]: row[2] for row in trino.rows(f"SHOW STATS FOR {TABLES}.{name}") if row[0]}


def distinct(trino: Engine, name: str, columns: Mapping[str, object]) -> dict[str, int]:
    """Distinct values that there are, by column."""
    counts = ", ".join(f"count(DISTINCT {column})" for column in columns)
    (row,) = trino.rows(f"SELECT {counts} FROM {TABLES}.{name}")  # noqa: S608  names of our own
    return dict(zip(columns, row, strict=True))


def report(seen: Mapping[str, Any], out: Path | None) -> None:
    """Print Markdown tables, and write all to `out`."""
    for engine, plans in seen["plans"].items():
        print(f"\n## {engine}")
        table("query", "joins without statistics", "joins with those of icepuffin")
        for query, states in plans.items():
            orders = [f"{plan.order} {plan.joins}".strip() for plan in (states[WITHOUT], states[OURS])]
            line(query, orders[0], "the same" if orders[0] == orders[1] else orders[1])
        for part in ("rows", "groups"):
            if all(math.isnan(getattr(plan, part)) for states in plans.values() for plan in states.values()):
                continue
            table("query", part, *STATES)
            for query, states in plans.items():
                line(query, seen[part][query], *(number(getattr(states[state], part)) for state in STATES))
        table("query", "joined rows, none", "icepuffin", "CPU s, none", "icepuffin", "seconds, none", "icepuffin")
        for query, runs in seen["runs"][engine].items():
            both = (runs[WITHOUT], runs[OURS])
            times = [number(value, 2) for pair in zip(*(map(tuple, both)), strict=True) for value in pair]
            line(query, *times)
    print("\n## NDVs after the deletes")
    table("column", "distinct", ANALYZED, OURS)
    for name, columns in seen["distinct"].items():
        for column, count in columns.items():
            found = [seen["ndv"][state][name].get(column) for state in (ANALYZED, OURS)]
            line(f"{name}.{column}", count, *(number(math.nan if ndv is None else ndv) for ndv in found))
    print(f"\n`icepuffin.refresh` of all tables: {seen['refresh_seconds'][OURS]:.1f} s", end=", ")
    print(f"after they were compacted {seen['refresh_seconds'][COMPACTED]:.1f} s")
    if out:
        out.write_text(json.dumps(seen), encoding="utf-8")


def table(*titles: str) -> None:
    """Print the head of a Markdown table."""
    print()
    line(*titles)
    print("|" + "---|" * len(titles))


def line(*cells: object) -> None:
    """Print a line of a Markdown table."""
    print("|", " | ".join(map(str, cells)), "|")


def number(value: float, digits: int = 0) -> str:
    """A number in few digits; a dash for none."""
    if math.isnan(value):
        return "-"
    return f"{value:.{0 if float(value).is_integer() else digits}f}" if value < 1e9 else f"{value:.0e}"


if __name__ == "__main__":
    main()
