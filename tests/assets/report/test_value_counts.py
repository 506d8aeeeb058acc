"""Rows by the values of filter columns, beside a count of the rows that PyIceberg reads."""

import math
from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

import icepuffin
from examples.demo.row_deletes import append_position_deletes
from icepuffin.assets.report.value_counts import BARS, ValueCounts, value_counts
from icepuffin.ops.catalog.connection import open_catalog
from tests.conftest import STORAGE, vectors_of
from tests.ops.index.comparison import DEFINITION

KINDS = {
    "whole": pa.int64(),
    "real": pa.float64(),
    "day": pa.date32(),
    "price": pa.decimal128(9, 2),
    "at": pa.timestamp("us"),
    "word": pa.string(),
    "flag": pa.bool_(),
    "tags": pa.list_(pa.string()),
    "gone": pa.int64(),
}


def drawn(seed: int, count: int) -> pa.Table:
    random = np.random.default_rng(seed)
    number = random.geometric(0.02, count)
    real = np.where(number % 9 == 0, np.nan, np.where(number % 10 == 0, np.inf, number / 3))
    columns = {
        "whole": number,
        "real": real,
        "day": [date(2026, 1, 1) + timedelta(int(it)) for it in number],
        "price": [Decimal(int(it)) / 4 for it in number],
        "at": pa.array(number * 3_600_000_000).cast(KINDS["at"]),
        "word": [None if it % 7 == 0 else f"word {it % 40}" for it in number],
        "flag": [bool(it % 3) for it in number],
        "gone": number,
        "tags": [[f"tag {it % 5}", f"tag {it % 3}"] for it in number],
    }
    ids = np.arange(count) + 1_000 * seed
    arrays = {name: pa.array(columns[name], kind) for name, kind in KINDS.items()}
    return pa.table({"id": ids, "embedding": pa.array(vectors_of(ids).tolist(), pa.list_(pa.float32())), **arrays})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table with an index on all columns, one of which is gone; rows went before and after the version was made."""
    folder = tmp_path_factory.mktemp("lake")
    location = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = open_catalog("test", {"type": "sql", **location})
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", drawn(0, 1).schema)
    icepuffin.create_index(table, replace(DEFINITION, filters=tuple(KINDS)))
    for seed in range(3):
        table.append(drawn(seed, 700))
    table.delete("whole > 90 and whole < 140")
    icepuffin.refresh(table, threads=1)
    table.refresh()
    append_position_deletes(table, {file: np.arange(20) for file in table.inspect.files()["file_path"].to_pylist()})
    table.refresh()
    with table.update_schema() as update:
        update.delete_column("gone")
    return table.refresh()


@pytest.fixture(scope="module")
def counts(made: Table) -> dict[str, ValueCounts]:
    return {it.column: it for it in value_counts(made, "e", STORAGE, "main")}


@pytest.fixture(scope="module")
def rows(made: Table) -> pa.Table:
    return made.scan().to_arrow()


@pytest.mark.parametrize("column", ["word", "flag", "tags"])
def test_values_have_the_rows_that_a_scan_finds(counts: dict[str, ValueCounts], rows: pa.Table, column: str) -> None:
    of_rows = [set(it) if isinstance(it, list) else {it} for it in rows[column].to_pylist()]
    expected = Counter(str(value) for values in of_rows for value in values if value is not None)
    shown = counts[column]
    assert (shown.rows, shown.distinct, shown.ends, shown.unread_files) == (len(rows), len(expected), None, 0)
    assert shown.nulls == rows[column].null_count
    assert [number for _, number in shown.counts] == sorted(expected.values(), reverse=True)[:BARS]
    assert all(expected[value] == number for value, number in shown.counts)


@pytest.mark.parametrize("column", ["whole", "real", "day", "price", "at"])
def test_ranges_have_the_rows_that_a_scan_finds(counts: dict[str, ValueCounts], rows: pa.Table, column: str) -> None:
    values = sorted(it for it in rows[column].to_pylist() if not isinstance(it, float) or math.isfinite(it))
    shown = counts[column]
    assert (shown.ends, len(shown.counts)) == ((str(values[0]), str(values[-1])), BARS)
    assert (shown.nulls, shown.not_finite) == (0, len(rows) - len(values))
    width, expected = (values[-1] - values[0]) / BARS, [list[object]() for _ in range(BARS)]
    for value in values:
        expected[min(int((value - values[0]) / width), BARS - 1)].append(value)
    assert [(text, number) for text, number in shown.counts] == [
        (f"{part[0]} to {part[-1]}" if part else "", len(part)) for part in expected
    ]


ODD = {
    "few": ([number % BARS for number in range(60)], pa.int64()),
    "large": ([2**63 - 1 - number for number in range(60)], pa.int64()),
    "both ends": ([-(2**63), 2**63 - 1, *range(58)], pa.int64()),
    "wide": ([sign * 1.7e308 / (1 + number) for number in range(30) for sign in (1, -1)], pa.float64()),
    "eternal": (range(2**60, 2**60 + 60), pa.timestamp("us")),
    "bytes": ([bytes([number % 3, 60]) for number in range(60)], pa.binary()),
    "long": ([("x" * 10_000, "", " ", "\x1b[31m\u202e")[number % 4] for number in range(60)], pa.string()),
    "lists": ([None, [], [None], [7, 7, None]] * 15, pa.list_(pa.int64())),
    "nothing": ([None] * 60, pa.string()),
}


def test_odd_values_are_counted_as_any(sql_catalog: Catalog) -> None:
    arrays = {name: pa.array(values, pa.int64()).cast(kind) if name == "eternal" else pa.array(values, kind)
              for name, (values, kind) in ODD.items()}  # fmt: skip
    rows = pa.table({"embedding": pa.array(vectors_of(np.arange(60)).tolist(), pa.list_(pa.float32())), **arrays})
    unmeasured = {"write.metadata.metrics.column.eternal": "none"}  # PyIceberg has no such time
    table = sql_catalog.create_table("db.t", rows.schema, properties=unmeasured)
    table.append(rows)
    icepuffin.create_index(table, replace(DEFINITION, shards=1, filters=tuple(ODD)))
    icepuffin.refresh(table, threads=1)
    counts = {it.column: it for it in value_counts(table.refresh(), "e", STORAGE, "main")}
    assert [text for text, _ in counts["bytes"].counts] == ["003c", "013c", "023c"]
    assert (counts["few"].ends, len(counts["few"].counts)) == (None, BARS), "no more values than bars"
    assert {number for _, number in counts["large"].counts} == {2, 3}, "ranges of 2.5 values each"
    assert [number for _, number in counts["both ends"].counts] == [1, *[0] * 11, 58, *[0] * 10, 1]
    assert counts["wide"].ends == ("-1.7e+308", "1.7e+308")
    assert [sum(number for _, number in counts[name].counts) for name in ("large", "wide", "eternal")] == [60] * 3
    assert {text for text, _ in counts["long"].counts} == {"x" * 79 + "…", '""', '" "', " [31m "}
    assert (counts["lists"].nulls, counts["lists"].counts) == (45, (("7", 15),))
    assert (counts["nothing"].rows, counts["nothing"].nulls, counts["nothing"].counts) == (60, 60, ())
    table.append(rows)
    (behind,) = (it for it in value_counts(table.refresh(), "e", STORAGE, "main") if it.column == "few")
    assert (behind.rows, behind.counts, behind.unread_files) == (60, counts["few"].counts, 1)
