"""Random SQL beside Spark itself: the same answer, or SqlError; wherever a condition stands, and never another error.

ICEPUFFIN_SQL_TEXTS says how many conditions are drawn.
"""

import datetime as dt
import math
import random
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.sql.errors import SqlError
from icepuffin.ops.sql.spark_statements import for_spark
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.sql.statements import SparkStatement
from tests.conftest import STORAGE
from tests.draws import SEED, TALLY, amount
from tests.ops.sql.drawn import Drawn, rows_of
from tests.services.jars import SPARK

TEXTS = amount(300, "ICEPUFFIN_SQL_TEXTS")
STATEMENTS = max(30, TEXTS // 15)
BATCH = 60
NEAR = "l2_distance(v, array(-1.0, 0.0))"
FOUND = f"(SELECT * FROM db.t ORDER BY {NEAR} LIMIT 99)"
PLACES = {
    "pushed": f"SELECT id FROM db.t WHERE {{}} ORDER BY {NEAR} LIMIT 99",
    "within": f"SELECT id FROM db.t WHERE {NEAR} < 1e9 AND ({{}})",
    "found": f"SELECT id FROM {FOUND} WHERE {{}}",
}
ZONES = ("UTC", "Asia/Kolkata", "America/Phoenix")
"""Without daylight saving: a time that a clock skips is another one to Spark's session"""
pytestmark = [pytest.mark.jvm, pytest.mark.skipif(SPARK == "4.0", reason="statements mean what Spark 4.1 means")]


@pytest.fixture
def rng(seed: str) -> random.Random:
    return random.Random(seed)


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return rows_of(random.Random(SEED))


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, rows: pa.Table) -> SqlSession:
    folder: Path = tmp_path_factory.mktemp("differential")
    new_catalog: Catalog = open_catalog(
        "test", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"}
    )
    new_catalog.create_namespace("db")
    table = new_catalog.create_table("db.t", rows.schema, properties={"format-version": "2"})
    for start in (0, 13, 27):
        table.append(rows.slice(start, (13 if start == 0 else 14 if start == 13 else 99)))
    return SqlSession.on(new_catalog, storage=STORAGE)


@pytest.fixture(scope="module")
def in_spark(spark: Any, rows: pa.Table) -> Iterator[Any]:
    """Runs a text with parameters; the table is `db_t` there."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", random.Random(SEED).choice(ZONES))
    # else what BETWEEN compares is computed for every row, those that AND and OR leave out as well
    spark.conf.set("spark.sql.alwaysInlineCommonExpr", "true")
    # else the columns of a DataFrame of few rows are computed before the optimizer changes expressions, as it does
    # those of tables; and an INT that is cast to FLOAT, then to DOUBLE, is cast to DOUBLE alone: another number
    rules = ("ConvertToLocalRelation", "SimplifyCasts")
    names = ",".join(f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in rules)
    spark.conf.set("spark.sql.optimizer.excludedRules", names)
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    spark.createDataFrame(rows).createOrReplaceTempView("db_t")
    spark.conf.unset("spark.sql.timestampType")

    def run(text: str, parameters: dict[str, Any]) -> pa.Table:
        statement = SparkStatement(text.replace("db.t", "db_t"), "", parameters, frozenset(parameters))
        return spark.sql(for_spark(statement)).toArrow()

    yield run
    spark.conf.unset("spark.sql.optimizer.excludedRules")
    spark.conf.unset("spark.sql.alwaysInlineCommonExpr")
    spark.conf.set("spark.sql.session.timeZone", zone)


def answered(session: SqlSession, text: str, parameters: dict[str, Any]) -> pa.Table | None:
    """None where it is refused."""
    try:
        return session.sql(text, parameters).rows
    except SqlError:
        return None


Answers = dict[str, pa.Table]
"""Answers by the clause that a text stood in; none for a clause that refuses it"""


class Beside:
    """Compares in batches: where one expression of a batch fails in Spark, each is evaluated alone."""

    def __init__(self, in_spark: Any) -> None:
        self._in_spark = in_spark
        self.wrong: list[str] = []

    def compare(self, drawn: Sequence[tuple[str, Answers]], parameters: dict[str, Any]) -> None:
        if not drawn:
            return
        listed = ", ".join(f"({text}) AS e{number}" for number, (text, _) in enumerate(drawn))
        try:
            in_spark = self._in_spark(f"SELECT id, {listed} FROM db.t ORDER BY id", parameters)
        except Exception as error:  # Spark's errors have many types
            if len(drawn) == 1:
                text, answers = drawn[0]
                if answers.keys() != {"within"}:  # there a part that is pushed leaves rows out, which others fail for
                    self._report(text, parameters, f"answered {[*answers]}, and Spark says {str(error)[:300]}")
                return
            half = len(drawn) // 2
            self.compare(drawn[:half], parameters)
            self.compare(drawn[half:], parameters)
            return
        for number, (text, answers) in enumerate(drawn):
            for place, rows in answers.items():
                if problem := difference(rows, in_spark.column(number + 1), in_spark["id"]):
                    self._report(text, parameters, f"{place}: {problem}")

    def _report(self, text: str, parameters: dict[str, Any], problem: str) -> None:
        given = {name: value for name, value in parameters.items() if f":{name}" in text}
        self.wrong.append(f"{text} {given or ''}\n    {problem}")


def difference(rows: pa.Table, in_spark: pa.ChunkedArray, ids: pa.ChunkedArray) -> str | None:
    """What differs in the ids of the rows for which a condition is true."""
    expected = [number for number, flag in zip(ids.to_pylist(), in_spark.to_pylist(), strict=True) if flag]
    found = sorted(rows["id"].to_pylist())
    return None if found == expected else f"ids {found}, Spark {expected}"


def named(kind: pa.DataType) -> str:
    if pa.types.is_timestamp(kind):
        return "zoned" if kind.tz else "local"
    return str(kind).removeprefix("large_")


def same(value: Any, in_spark: Any, *, loose: bool) -> bool:
    if isinstance(value, dt.datetime) and isinstance(in_spark, dt.datetime):
        return value == in_spark
    if type(value) is not type(in_spark):
        return False
    if isinstance(value, float):
        if math.isnan(value) or math.isnan(in_spark):
            return math.isnan(value) and math.isnan(in_spark)
        return math.isclose(value, in_spark, rel_tol=1e-13) if loose else value == in_spark
    if isinstance(value, Decimal):
        return value == in_spark and value.as_tuple().exponent == in_spark.as_tuple().exponent
    return bool(value == in_spark)


def test_conditions_find_what_spark_finds_wherever_they_stand(
    session: SqlSession, in_spark: Any, rng: random.Random
) -> None:
    beside, drawn_texts, counts = Beside(in_spark), 0, dict.fromkeys(PLACES, 0)
    while drawn_texts < TEXTS // 2:
        drawn = Drawn(rng)
        texts = [drawn.condition(rng.randrange(0, 4)) for _ in range(BATCH)]
        drawn_texts += len(texts)
        TALLY.counts["draws"] += len(texts)
        pairs = []
        for text in texts:
            found = {place: answered(session, form.format(text), drawn.parameters) for place, form in PLACES.items()}
            answers = {place: one for place, one in found.items() if one is not None}
            for place in answers:
                counts[place] += 1
            if answers:
                pairs.append((text, answers))
        beside.compare(pairs, drawn.parameters)
    sys.stderr.write(f"{drawn_texts} drawn, answered {counts}, wrong {len(beside.wrong)}\n")
    assert not beside.wrong, f"ICEPUFFIN_SEED={SEED}\n" + "\n".join(beside.wrong)
    assert min(counts.values()) > drawn_texts / 3


def test_statements_give_the_rows_that_spark_gives(session: SqlSession, in_spark: Any, rng: random.Random) -> None:
    wrong, count = [], 0
    for _ in range(STATEMENTS):
        TALLY.counts["draws"] += 1
        drawn = Drawn(rng)
        text = drawn.statement().replace("{distance}", NEAR).replace("{table}", "db.t")
        rows = answered(session, text, drawn.parameters)
        if rows is None:
            continue
        count += 1
        try:
            spark_rows = in_spark(text, drawn.parameters)
        except Exception as error:  # Spark's errors have many types
            wrong.append(f"{text} {drawn.parameters or ''}\n    answered, and Spark says {str(error)[:300]}")
            continue
        if problem := other_rows(rows, spark_rows):
            wrong.append(f"{text} {drawn.parameters or ''}\n    {problem}")
    sys.stderr.write(f"{STATEMENTS} statements, answered {count}, wrong {len(wrong)}\n")
    assert not wrong, f"ICEPUFFIN_SEED={SEED}\n" + "\n".join(wrong)
    assert count > STATEMENTS / 3


def other_rows(rows: pa.Table, in_spark: pa.Table) -> str | None:
    """What differs, rows in order; distances are float here, double in Spark's formula."""
    if rows.column_names != in_spark.column_names:
        return f"columns {rows.column_names}, Spark {in_spark.column_names}"
    for number, name in enumerate(rows.column_names):
        kinds = rows.schema.types[number], in_spark.schema.types[number]
        if pa.types.is_list(kinds[0]) and pa.types.is_list(kinds[1]):
            continue
        if named(kinds[0]) != named(kinds[1]) and not all(map(pa.types.is_floating, kinds)):
            return f"{name} is {kinds[0]}, in Spark {kinds[1]}"
        ours, spark = rows.column(number).to_pylist(), in_spark.column(number).to_pylist()
        if len(ours) != len(spark) or not all(
            same(*pair, loose=name == "far") for pair in zip(ours, spark, strict=True)
        ):
            return f"{name}: {ours}, Spark {spark}"
    return None
