"""An answer's columns: names, types, order and values, whichever path gives them, and whatever was searched before.

The schema changes while readers stay open.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, ListType, LongType, NestedField, StringType, StructType

from icepuffin.ops.index.definitions.ddl import create_index, load_definition
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.rows.candidates import answer_names
from icepuffin.ops.rows.datafile import arrow_schema
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import row_grid
from icepuffin.ops.spark.spark_types import as_spark
from icepuffin.ops.sql.sql_session import SqlSession
from tests.conftest import STORAGE
from tests.draws import SEED, TALLY, amount
from tests.ops.search.partitioned import TYPES, append_rows, build_version, random_rows, random_table
from tests.ops.search.runners import SeveralAtOnce

QUERIES = np.array([[-1.0, 1.0], [-7.0, 1.0], [-2.0, 1.0]])
"""Ids are the first elements of vectors and not negative, so that a distance says which row it is of"""
WIDER = {"i32": LongType(), "price": DecimalType(12, 2)}
"""No floats: a default of 0.1 is that of the wider type, and not the float beside it"""
NAMES = ["rank", "query", "distance", "table_rank", "Rank", "a b", "x`y", "*"]
"""Names that columns get, some of which answers have themselves"""
_STRUCT = StructType(
    NestedField(901, "a", LongType(), required=False), NestedField(902, "b", StringType(), required=False)
)
NESTED = ListType(900, _STRUCT, element_required=False)


class History:
    """A table, and what its live rows are, as the schema of now names them."""

    def __init__(self, catalog: Catalog, number: int, rng: random.Random) -> None:
        self.rng = rng
        self.partition = rng.choice(["text", "day", "flag", "i64"])
        self.table, self.rows = random_table(
            catalog, f"db.t{number}", self.partition, IdentityTransform(), f"{SEED} {number}"
        )
        self.kind = {name: name for name in TYPES}
        """Name among TYPES of each column that rows are drawn for"""
        self.rows = self.rows.select(self.names).cast(arrow_schema(self.table.schema()))
        self.changes = 0
        self.past = [(self.table.metadata.current_snapshot_id, self.rows)]
        """Snapshots, and their rows"""

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.table.schema().fields]

    def append(self) -> None:
        first = max(self.rows["id"].to_pylist()) + 1
        drawn = random_rows(self.rng, first).slice(0, 20)
        schema = self.table.schema()
        columns = {}
        for field in schema.fields:
            kind = self.kind.get(field.name, field.name)
            if kind == "deep":
                values: Any = [[{"a": number, "b": str(number)}] for number in drawn["id"].to_pylist()]
                columns[field.name] = pa.array(values, arrow_schema(Schema(field)).field(0).type)
            else:
                columns[field.name] = drawn[kind].cast(arrow_schema(Schema(field)).field(0).type)
        rows = pa.table(columns)
        append_rows(self.table, rows, self.partition)
        self.table.refresh()
        self.rows = pa.concat_tables([self.rows, rows.cast(self.rows.schema)])
        self.past.append((self.table.metadata.current_snapshot_id, self.rows))

    def change(self) -> None:
        """Rename a column, move one, drop one and add another of its name, make one wider, add a nested one."""
        rng, self.changes = self.rng, self.changes + 1
        free = [name for name in self.names if name not in ("id", "embedding")]
        renamed, moved, dropped = rng.sample([name for name in free if name != self.partition], 3)
        new = rng.choice([name for name in NAMES if name.lower() not in {own.lower() for own in self.names}])
        with self.table.update_schema(allow_incompatible_changes=True) as update:
            update.rename_column(renamed, new)
            update.move_first(moved)
            update.delete_column(dropped)
        self.rows = self.rows.rename_columns([new if name == renamed else name for name in self.rows.column_names])
        self.kind[new] = self.kind.pop(renamed)
        self.rows = self.rows.drop_columns([dropped])
        self.kind.pop(dropped)
        with self.table.update_schema() as update:
            for name, kind in self.kind.items():
                if kind in WIDER and rng.random() < 0.5:
                    update.update_column((name,), WIDER[kind])
            update.add_column((dropped,), StringType())
            if self.changes == 1:
                update.add_column("deep", NESTED)
        self.kind[dropped] = "text"
        if self.changes == 1:
            self.kind["deep"] = "deep"
        types = arrow_schema(self.table.schema())
        for name in types.names:
            kind = types.field(name).type
            if name in self.rows.column_names:
                values = self.rows[name].cast(kind)
                self.rows = self.rows.set_column(self.rows.column_names.index(name), name, values)
            else:
                self.rows = self.rows.append_column(name, pa.nulls(len(self.rows), kind))
        self.rows = self.rows.select(types.names).cast(types)


@dataclass
class Way:
    """A way to search a snapshot, and what its rows are."""

    search: Callable[..., Any]
    rows: pa.Table
    requests: list[list[str] | None]
    """Columns to return: a few, since the second search has what the first one decoded"""
    label: str


def ways_of(table: Table, rows: pa.Table, requests: list[list[str] | None], snapshot: int | None = None) -> list[Way]:
    """Every way to search a snapshot, whose rows are given."""
    index = open_index(table, "e", snapshot=snapshot, storage=STORAGE)
    tasks = open_index(table, "e", snapshot=snapshot, storage=STORAGE, runner=SeveralAtOnce(), in_process_mb=0)
    exact = open_exact(table, "embedding", "l2", snapshot=snapshot, storage=STORAGE)

    def within(queries: Any, k: int, **options: Any) -> Any:
        return index.within(queries, 100.0, limit=k, **options)

    def certified(queries: Any, k: int, **options: Any) -> Any:
        return index.search(queries, k, certified=True, **options)

    def each(queries: Any, k: int, where: Any = None, **options: Any) -> Any:
        return index.search(queries, k, where=[where, *["id >= 0"] * (len(queries) - 1)], **options)

    ways = {
        "search": index.search, "within": within, "certified": certified, "each": each, "tasks": tasks.search,
        "exact": exact.search,
    }  # fmt: skip
    return [Way(way, rows, requests, label) for label, way in ways.items()]


def drawn_requests(rng: random.Random, names: Sequence[str]) -> list[list[str] | None]:
    """Columns of some searches, one of them with a column twice; columns in another order; none, and all."""
    drawn = rng.sample(names, 4)
    return [drawn, drawn[::-1], rng.choices(names, k=5), rng.sample(names, rng.randrange(1, 4)), rng.choice([None, []])]


def check(one: Way, rng: random.Random) -> None:
    """One search: names, types, order, and the values of each row."""
    columns, schema = rng.choice(one.requests), one.rows.schema
    queries = QUERIES[: rng.randrange(1, 4)]
    where = rng.choice([None, None, "id >= 5", "id < 0"])
    rows = one.search(queries, rng.choice([1, 5, 5, 90]), columns=columns, where=where).rows
    if columns is None:
        columns = [field.name for field in schema if not pa.types.is_nested(field.type)]
    requested = list(dict.fromkeys(columns))
    TALLY.counts["draws"] += 1
    case = f"ICEPUFFIN_SEED={SEED}: {one.label} of {columns} where {where}"
    assert rows.column_names == ["query", "rank", "distance", *answer_names(requested)], case
    kinds = [schema.field(name) for name in requested]
    assert [field.type for field in rows.schema][3:] == [field.type for field in kinds], case
    assert all(part.type == field.type for field in rows.schema for part in rows[field.name].chunks), case
    own = np.asarray(rows["query"])
    ids = np.rint(np.asarray(rows["distance"]) + QUERIES[own, 0]).astype(int).tolist()
    places = {number: place for place, number in enumerate(one.rows["id"].to_pylist())}
    expected = one.rows.select(requested).take(pa.array([places[number] for number in ids], pa.int64()))
    for name, answered in zip(requested, rows.columns[3:], strict=True):
        assert repr(answered.to_pylist()) == repr(expected[name].to_pylist()), f"{case}, column {name}"


def check_sql(session: SqlSession, history: History, rng: random.Random) -> None:
    """Names with AS and without, twice, the distance among them, or all columns."""
    letters = [name.lower() for name in history.names]
    names = [name for name in history.names if letters.count(name.lower()) == 1 and name != "embedding"]
    outputs = [(name, rng.choice([name, f"as {place}"])) for place, name in enumerate(rng.choices(names, k=4))]
    outputs.insert(rng.randrange(5), ("", "distance"))
    quoted = [("`" + name.replace("`", "``") + "`", own.replace("`", "``")) for name, own in outputs]
    shown = [f"{name if name != '``' else 'l2_distance(`embedding`, ARRAY(-1, 1))'} AS `{own}`" for name, own in quoted]
    select = ", ".join(shown)
    if rng.random() < 0.2:
        outputs, select = [(name, name) for name in history.names], "*"
    table = ".".join(history.table.name())
    text = f"SELECT {select} FROM {table} ORDER BY l2_distance(`embedding`, ARRAY(-1, 1)) LIMIT 30"
    rows = session.sql(text).rows
    assert rows.column_names == [own for _, own in outputs], text
    expected = as_spark(history.rows.sort_by("id").slice(0, 30))
    for place, (name, _) in enumerate(outputs):
        values = [number + 1.0 for number in expected["id"].to_pylist()] if not name else expected[name].to_pylist()
        assert repr(rows.column(place).to_pylist()) == repr(values), f"ICEPUFFIN_SEED={SEED}: {name} of {text}"
        assert name == "" or rows.schema.field(place).type == expected.schema.field(name).type, text


@pytest.mark.usefixtures("seed")
@pytest.mark.parametrize("number", range(amount(1)))
def test_values_are_of_the_rows_and_columns_that_they_stand_for(catalog: Catalog, number: int) -> None:
    rng = random.Random(f"{SEED} {number} answers")
    history = History(catalog, number, rng)
    drawn = rng.sample(list(TYPES), 8)
    kind: dict[str, Any] = rng.choice([{"method": "centroid"}, {"cells": "sq8"}, {"vectors": "none"}, {}, {}])
    own = {"max_degree": 16, "search_list": 80, "shards": 2, "target_recall": 0.0} if "method" not in kind else {}
    definition = IndexDefinition(
        name="e", column="embedding", metric="l2", include=tuple(drawn[:3]), filters=("id", *drawn[3:]), **own, **kind
    )
    create_index(history.table, definition)
    build_version(history.table, load_definition(history.table.refresh(), "e"))
    session = SqlSession.on(history.table.catalog, threads=1)
    requests = drawn_requests(rng, history.names)
    ways = ways_of(history.table, history.rows, requests)
    with open_index(history.table.refresh(), "e", storage=STORAGE).follow(interval=1e6) as following:
        for _ in range(3):
            followed = Way(following.search, history.rows, requests, "following")
            for _ in range(15):
                check(rng.choice(ways), rng)
                check(followed, rng)
            for _ in range(5):
                check_sql(session, history, rng)
            history.change()
            history.append()
            assert following.update()
            requests = drawn_requests(rng, history.names)
            snapshot, rows = rng.choice(history.past)
            ways = ways_of(history.table, history.rows, requests)
            ways += ways_of(history.table, rows, drawn_requests(rng, rows.column_names), snapshot)


@pytest.mark.parametrize(("queries", "columns"), [([], ["id"]), ([0, 0], ["id"]), ([0, 1], ["query", "id"])])
def test_rows_are_shown_with_the_number_of_their_query_where_there_are_several(
    queries: list[int], columns: list[str]
) -> None:
    rows = pa.table({"query": pa.array(queries, pa.int64()), "id": pa.array(range(len(queries)), pa.int64())})
    grid = row_grid(SimpleNamespace(rows=rows), "")  # type: ignore[arg-type]
    assert ([*grid.columns], len(grid.rows)) == (columns, len(queries))
