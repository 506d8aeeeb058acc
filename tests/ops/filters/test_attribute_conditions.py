"""Conditions by the values that a version keeps: the rows that the data files give, and no data file is read."""

import datetime as dt
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    GreaterThan,
    GreaterThanOrEqual,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    Or,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.filters import attribute_conditions, attribute_matches, distinct_values
from icepuffin.ops.filters.attribute_conditions import Attributes, Condition, Entries
from icepuffin.ops.filters.attribute_matches import AttributeMatches, find_matches_by_attributes
from icepuffin.ops.filters.attribute_values import VersionValues
from icepuffin.ops.filters.condition_parser import LookUp
from icepuffin.ops.filters.distinct_values import DistinctValues
from icepuffin.ops.filters.list_predicate import ArrayContains
from icepuffin.ops.filters.matches import Matches, find_matches
from icepuffin.ops.filters.predicate import RowPredicate
from icepuffin.ops.index.definitions.ddl import create_index, load_definition
from icepuffin.ops.index.definitions.definition_columns import resolve_columns
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.files import attribute_blobs as attributes
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.version_plan import plan_version
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions.version_reader import OpenVersion, open_version, read_attribute_blob, without_files
from icepuffin.ops.model import Action, FileNumber, FileSlot, LiveFile, LiveFiles, SnapshotId
from icepuffin.ops.rows import attributes as kept_values
from icepuffin.ops.runs.index_runs import ensure_defined
from icepuffin.ops.search.errors import FilterError
from icepuffin.ops.search.indexed.loaded_version import load_version
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.storage import StorageError, relative_to
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks import attribute_task as reading
from icepuffin.ops.tasks.attribute_task import ColumnsOfFile
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin.blobs.attributes_blob import (
    AttributeEntry,
    FileValues,
    entry_of,
    list_entry_of,
    lists_of,
    values_of,
)
from icepuffin.puffin.blobs.routing_blob import CoveredFile
from icepuffin.puffin.errors import BadBlobError
from tests.conftest import ROWS, STORAGE, make_rows, queries
from tests.draws import draws
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.search.partitioned import TYPES, build_version, random_table
from tests.ops.search.test_random_conditions import Conditions

RANDOM = IndexDefinition(name="r", column="embedding", metric="l2", target_recall=0.0, filters=tuple(TYPES))
SECTIONS = IndexDefinition(
    name="s", column="embedding", metric="l2", shards=2, target_recall=0.0, filters=("section", "id")
)


def opened_values(table: Table, definition: IndexDefinition) -> tuple[OpenVersion, LiveFiles, Attributes]:
    """(newest version, live files of the head, values that the version has of the files)."""
    live = live_files(table.refresh(), table.metadata.current_snapshot_id or 0)
    version = open_version(index_versions(table, definition.name)[-1], STORAGE)
    return (
        version,
        live,
        Attributes(VersionValues(version, live, table.schema(), STORAGE), live, table.schema(), STORAGE),
    )


def both_ways(table: Table, definition: IndexDefinition, where: str | BooleanExpression) -> tuple[Any, Any, str]:
    """(rows by the version's values, rows by the data files, how the first were found)."""
    version, live, values = opened_values(table, definition)
    kept = find_matches_by_attributes(table, live, table.schema(), where, STORAGE, values)
    scanned = find_matches(table, live, table.schema(), where, STORAGE)
    assert kept.count == scanned.count
    assert len(kept.positions) == len(scanned.positions)
    loaded = load_version(version, live, STORAGE, complete=True, threads=1)
    for shard_id, shard in zip(loaded.shard_ids, loaded.shards, strict=True):
        nodes = (matches.nodes(shard_id, shard).marked()[shard.is_live] for matches in (kept, scanned))
        assert np.array_equal(*nodes), "of a search through the graph"
    return *({number: rows.tolist() for number, rows in one.positions.items()} for one in (kept, scanned)), kept.how


ORDERED: dict[str, tuple[IcebergType, Callable[[int], Any]]] = {
    "long": (LongType(), lambda number: 3 * number - 20),
    "double": (DoubleType(), lambda number: (math.inf, -math.inf, 0.0, -0.0)[number] if number < 4 else number / 7 - 2),
    "float": (FloatType(), lambda number: (math.inf, -math.inf, 0.0, -0.0)[number] if number < 4 else number / 7 - 2),
    "text": (StringType(), lambda number: "aé"[number % 2] * number),
    "decimal": (DecimalType(9, 2), lambda number: Decimal(number).scaleb(-1)),
    "date": (DateType(), lambda number: (dt.date(1970, 1, 1) + dt.timedelta(7 * number - 90)).isoformat()),
}


@pytest.mark.parametrize("with_nan", [False, True])
@pytest.mark.parametrize("kind", ORDERED)
def test_a_comparison_by_order_is_true_for_the_values_for_which_each_says_it(
    kind: str, monkeypatch: pytest.MonkeyPatch, *, with_nan: bool
) -> None:
    """Few of the values are compared; which these are depends on how many there are."""
    field_type, value = ORDERED[kind]
    schema = Schema(NestedField(1, "a", field_type))
    compared = partial(monkeypatch.setattr, distinct_values, "_MAX_COMPARED")
    for count in (0, 1, 2, 3, 4, 5, 9, 16, 23, 24, 25):
        made = [dt.date.fromisoformat(value(n)) if kind == "date" else value(n) for n in range(count)]
        made += [math.nan] if with_nan and kind in ("double", "float") else []
        arrow_type = schema_to_pyarrow(field_type)
        values, _ = DistinctValues.from_arrays([pa.array(made, arrow_type)], arrow_type)
        for operator in (LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual):
            for number in range(count + 2):
                predicate = RowPredicate(operator("a", value(number)), schema)
                parts = [compared(most) or values.part(1, predicate.bound, predicate) for most in (1, 1_000)]
                assert parts[0].runs == parts[1].runs, (operator, count, number)


def test_elements_that_are_not_looked_up_are_compared() -> None:
    days = [dt.date(2026, 11, day) for day in (3, 1, 2)]
    schema = Schema(NestedField(1, "days", ListType(2, DateType())))
    values, _ = DistinctValues.from_arrays([pa.array(days)], pa.date32())
    found = [values.elements(RowPredicate(ArrayContains("days", day), schema).bound) for day in (*days, dt.date.max)]
    assert found == [[2], [0], [1], []]
    look_up = LookUp("days", ("2026-11-03",), of_lists=True)
    with pytest.raises(TypeError, match="is no look-up among values of type date32"):
        values.elements(look_up)
    with pytest.raises(TypeError, match="is no look-up among values of type date32"):
        values.part(1, look_up, None)


@pytest.mark.parametrize("kept", [("i64", "text"), ("f64", "price", "flag"), ("utc",)], ids=str)
def test_conditions_on_other_columns_go_to_the_data_files(catalog: Catalog, kept: tuple[str, ...], seed: str) -> None:
    table, _ = random_table(catalog, f"db.{'_'.join(kept)}", "text", IdentityTransform(), seed)
    definition = replace(RANDOM, filters=kept)
    build_version(table, definition)
    drawn = Conditions(seed)
    for _ in draws(20):
        where, text, _ = drawn.draw()
        own, scanned, _ = both_ways(table, definition, where)
        assert own == scanned, text
    hows = [both_ways(table, definition, f"{column} IS NOT NULL")[2] for column in (kept[0], "i32")]
    assert ["data files" in how for how in hows] == [False, True]


@pytest.fixture
def table(table_factory: Any) -> Table:
    new_table = table_factory(**{"format-version": "2"})
    for start in range(0, 900, 300):
        new_table.append(make_rows(start, start + 300))
    return new_table


def reader(table: Table, definition: IndexDefinition = SECTIONS) -> IndexReader:
    return open_index(table.refresh(), definition, storage=STORAGE, threads=1)


def hide_data_files(table: Table) -> None:
    for file in live_files(table, table.metadata.current_snapshot_id or 0).files:
        path = to_path(file.path)
        path.rename(path.with_suffix(".away"))


@pytest.mark.parametrize("where", ["section = 'section 3'", "id >= 880 and section != 'section 1'", "id < 3 or id > 7"])
def test_no_data_file_is_read(table: Table, where: str) -> None:
    build_version(table, SECTIONS)
    opened = reader(table)
    expected = table.scan(row_filter=where).to_arrow()
    hide_data_files(table)
    result = opened.search(queries(2), 5, where=where, columns=[])
    assert result.coverage is Coverage.EXACT_VERSION
    assert result.profile.matching_rows == len(expected)
    assert "by the index's values of" in result.explain()
    vectors = np.array(expected["embedding"].to_pylist(), np.float64)
    distances = np.sort(np.linalg.norm(vectors[None] - queries(2)[:, None], axis=2), axis=1)[:, :5]
    np.testing.assert_allclose(np.asarray(result.rows["distance"]).reshape(2, 5), distances, rtol=1e-6)


@pytest.mark.usefixtures("uncached")
def test_no_data_file_is_read_where_tasks_search(table: Table) -> None:
    build_version(table, SECTIONS)
    opened = open_index(table.refresh(), SECTIONS, storage=STORAGE, runner=LocalRunner(1), in_process_mb=0)
    assert opened.tier == "distributed"
    where = "section = 'section 3' and id >= 100"
    true = reader(table).search(queries(3), 8, where=where, columns=["id"])
    hide_data_files(table)
    result = opened.search(queries(3), 8, where=where, columns=[])
    assert result.rows["distance"].equals(true.rows["distance"])
    assert result.profile.matching_rows == true.profile.matching_rows == 160


@pytest.mark.parametrize("ids", [range(100, 109), [*range(100, 140), 300, 899], range(1, 900, 2)], ids=len)
def test_a_list_of_neighbouring_values_has_these_alone(table: Table, ids: Sequence[int]) -> None:
    """More values than are looked up one by one, some with no other value of the column between them."""
    build_version(table, SECTIONS)
    where = f"id in ({', '.join(map(str, ids))})"
    own, scanned, how = both_ways(table, SECTIONS, where)
    assert own == scanned
    assert "read" not in how, how
    answered = reader(table).within(queries(1), 1e9, where=where, columns=["id"]).rows["id"]
    assert sorted(answered.to_pylist()) == list(ids)


@pytest.mark.parametrize(
    "where",
    ["section = 'section 3'", "section in ('section 1', 'none') and id in (3, 5, 99)", "id = 123456789"],
)
def test_values_that_a_condition_names_are_looked_up(table: Table, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PyIceberg, whose expressions take longer than most searches."""
    build_version(table, SECTIONS)
    slowly = reader(table).search(queries(1), 5, where=f"not not ({where})", columns=["id"])
    monkeypatch.setattr(attribute_matches, "RowPredicate", lambda *_: pytest.fail("PyIceberg evaluates it"))
    result = reader(table).search(queries(1), 5, where=where, columns=["id"])
    assert result.rows.equals(slowly.rows)
    assert result.profile.matching_rows == slowly.profile.matching_rows
    assert result.profile.condition == slowly.profile.condition


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("id >= 250 and id < 640", 390),
        ("id >= 250 and section = 'section 1' and id < 640 and id > 300", 68),
        ("id < 250 and id >= 640", 0),
        ("id > 250 and section >= 'section 1' and id in (250, 251, 640) and section < 'section 2'", 1),
        ("id >= 898", 2),
        ("id < 0", 0),
        ("id < 3 or id > 897", 5),
    ],
)
def test_ranges_of_a_column_are_one_run_of_its_values(
    table: Table, where: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_version(table, SECTIONS)
    for most in (1, 1_000):
        monkeypatch.setattr(distinct_values, "_MAX_COMPARED", most)
        own, scanned, how = both_ways(table, SECTIONS, where)
        assert own == scanned
        assert sum(map(len, own.values())) == expected
        assert "read" not in how


def test_rows_without_a_vector_are_counted_among_those_that_match(table: Table) -> None:
    """They have no node, so that nodes cannot be counted in their place."""
    rows = make_rows(900, 1_000)
    column = rows["embedding"].combine_chunks()
    vectors = pa.concat_arrays([pa.nulls(40, column.type), column[40:]])
    table.append(rows.set_column(rows.schema.get_field_index("embedding"), ROWS.field("embedding"), vectors))
    build_version(table, SECTIONS)
    for where, expected in (("section = 'section 3'", 200), ("section = 'section 3' and id in (3, 903, 998)", 3)):
        assert reader(table).search(queries(1), 5, where=where).profile.matching_rows == expected


def test_within_takes_them_too(table: Table) -> None:
    build_version(table, SECTIONS)
    result = reader(table).within(queries(2), 3.0, where="section = 'section 3'", columns=["id"])
    assert "by the index's values of section" in result.profile.condition
    ids = table.scan("section = 'section 3'", selected_fields=("id",)).to_arrow()["id"].to_pylist()
    every = reader(table).within(queries(2), 3.0, columns=["id"]).rows
    assert result.rows["id"].to_pylist() == [row for row in every["id"].to_pylist() if row in set(ids)]


def test_rows_that_are_not_indexed_yet_are_read(table: Table) -> None:
    build_version(table, SECTIONS)
    table.refresh().append(make_rows(900, 950))
    own, scanned, how = both_ways(table, SECTIONS, "section = 'section 2' and id > 500")
    assert own == scanned
    assert how.endswith("1 data file read, of 1 without values of section: the version lacks them")
    _, live, values = opened_values(table, SECTIONS)
    where = "section = 'section 2' and embedding is not null"
    assert find_matches_by_attributes(table, live, table.schema(), where, STORAGE, values).files_read == 3 + 1
    result = reader(table).search(queries(1), 300, where="section = 'section 2'", columns=["id"])
    assert result.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert sorted(result.rows["id"].to_pylist()) == list(range(2, 950, 5))


def test_deleted_rows_do_not_match(table: Table) -> None:
    build_version(table, SECTIONS)
    files = live_files(table, table.metadata.current_snapshot_id or 0).files
    append_position_deletes(table, {files[0].path: np.arange(0, 100)})
    for action in (None, Action.REFRESHED):
        assert action is None or build_version(table, SECTIONS) is action
        own, scanned, how = both_ways(table, SECTIONS, "section = 'section 2'")
        assert own == scanned
        assert "read" not in how


@pytest.mark.parametrize("number", [0, 2])
def test_deletes_past_the_end_of_a_file_delete_nothing(table: Table, number: int) -> None:
    """Neither rows of the next file, nor is there an error at the last one."""
    build_version(table, SECTIONS)
    files = live_files(table, table.metadata.current_snapshot_id or 0).files
    append_position_deletes(table, {files[number].path: np.arange(290, 310)})
    own, scanned, how = both_ways(table, SECTIONS, "section = 'section 2'")
    assert own == scanned
    assert "read" not in how


def test_values_are_copied_where_the_file_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    build_version(table, SECTIONS)
    table.refresh().append(make_rows(900, 950))
    read = []
    original = reading.read_attributes
    monkeypatch.setattr(attributes, "read_attributes", lambda task: read.extend(task.files) or original(task))
    build_version(table, SECTIONS)
    assert [(columns.file.record_count, columns.field_ids) for columns in read] == [(50, (3, 1))]
    first, second = (open_version(version, STORAGE) for version in index_versions(table.refresh(), "s"))
    for field_id in (1, 3):
        old, new = (read_attribute_blob(version, field_id, STORAGE).entries for version in (first, second))
        assert [bytes(entry.stored) for entry in new[:3]] == [bytes(entry.stored) for entry in old]
    own, scanned, how = both_ways(table, SECTIONS, "section = 'section 2' and id > 3")
    assert own == scanned
    assert "read" not in how


def test_files_that_a_reader_leaves_out_do_not_hide_the_others(table: Table) -> None:
    """As those whose name mapping has changed since the version was made."""
    build_version(table, SECTIONS)
    live = live_files(table, table.metadata.current_snapshot_id or 0)
    version = open_version(index_versions(table, "s")[-1], STORAGE)
    left_out = without_files(version, [version.routing.files[0].path])
    _, missing = VersionValues(left_out, live, table.schema(), STORAGE).entries(3)
    assert list(missing.values()) == ["the version lacks them"]


def test_a_changed_definition_needs_no_new_graph(table: Table) -> None:
    plain = replace(SECTIONS, filters=())
    assert build_version(table, plain) is Action.BUILT
    create_index(table, plain)
    assert reader(table, plain).search(queries(1), where="id < 5").profile.condition == "by the data files"
    create_index(table, SECTIONS, replace=True)
    definition = load_definition(table, "s")
    assert (definition.filters, definition.filter_ids) == (("section", "id"), (3, 1))
    assert build_version(table, definition) is Action.REFRESHED
    assert build_version(table, definition) is Action.REUSED
    assert reader(table).search(queries(1), where="id < 5").profile.condition == "by the index's values of id"
    create_index(table, plain, replace=True)
    assert load_definition(table, "s").filters == ()


def test_a_renamed_column_is_the_same_column(table: Table) -> None:
    create_index(table, SECTIONS)
    build_version(table, load_definition(table, "s"))
    with table.update_schema() as update:
        update.rename_column("section", "part")
    own, scanned, how = both_ways(table, SECTIONS, "part = 'section 2'")
    assert own == scanned
    assert how == "by the index's values of part"
    table.append(make_rows(900, 950).rename_columns(["id", "name", "part", "embedding"]))
    assert build_version(table, load_definition(table, "s")) is Action.REFRESHED
    assert both_ways(table, SECTIONS, "part = 'section 2'")[2] == "by the index's values of part"


def test_columns_of_the_settings_are_those_of_the_first_run(table: Table) -> None:
    """Settings name columns as they were; the table's properties have their ids."""
    ensure_defined(table, SECTIONS)
    with table.update_schema() as update:
        update.rename_column("section", "part").rename_column("name", "section")
    assert ensure_defined(table, SECTIONS).filter_ids == (3, 1)
    with table.update_schema() as update:
        update.rename_column("section", "name")
    assert ensure_defined(table, SECTIONS).filter_ids == (3, 1)
    assert ensure_defined(table, replace(SECTIONS, filters=("name", "section"))).filter_ids == (2, 3)
    with table.update_schema() as update:
        update.delete_column("part")
    assert ensure_defined(table, SECTIONS).filter_ids == (3, 1)
    assert build_version(table, ensure_defined(table, SECTIONS)) is Action.BUILT
    with table.update_schema() as update:
        update.add_column("section", StringType())
    assert ensure_defined(table, SECTIONS).filter_ids == (6, 1)
    with pytest.raises(DefinitionError, match="filters names 'color', which is no column"):
        ensure_defined(table, replace(SECTIONS, filters=("id", "color")))


@pytest.mark.parametrize("method", ["diskann", "centroid"])
def test_a_refresh_for_other_columns_says_which_ones_the_version_lacks(table: Table, method: str) -> None:
    kept = replace(SECTIONS, method=method, shards=None, filters=("id",))
    assert index_head(table, kept).action is Action.BUILT
    other = replace(kept, filters=("id", "section"), include=("name",))
    report = index_head(table, other)
    assert report.action is Action.REFRESHED
    assert report.reason.endswith(", which lacks values of name, section")
    assert index_head(table, other).reason == "a version of this snapshot and definition exists"


def test_files_whose_columns_have_other_names_by_now_are_read_anew(table_factory: Any, tmp_path: Path) -> None:
    """An imported file has no field ids: the table's name mapping says which of its columns is which."""
    table = table_factory()
    pq.write_table(make_rows(0, 100), tmp_path / "imported.parquet")
    table.add_files([str(tmp_path / "imported.parquet")])
    build_version(table, SECTIONS)
    where, key = "section != 'section 2'", TableProperties.DEFAULT_NAME_MAPPING
    own, scanned, how = both_ways(table, SECTIONS, where)
    assert (own, len(own[0]), how) == (scanned, 80, "by the index's values of section")
    swapped = {'"name"': '"section"', '"section"': '"name"'}
    with table.transaction() as change:
        change.set_properties({key: re.sub('"name"|"section"', lambda found: swapped[found[0]], table.properties[key])})
    own, scanned, how = both_ways(table, SECTIONS, where)
    assert own == scanned
    assert len(own[0]) == 100
    assert "the schema has changed since they were read" in how
    table.append(make_rows(100, 110))
    build_version(table, SECTIONS)
    own, scanned, how = both_ways(table, SECTIONS, where)
    assert own == scanned
    assert sum(map(len, own.values())) == 108
    assert how == "by the index's values of section"


def test_a_promoted_column_is_read_until_the_next_refresh(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("size", IntegerType())
    rows = make_rows(900, 950).append_column("size", pa.array(range(50), pa.int32()))
    table.append(rows)
    definition = replace(SECTIONS, filters=("size",))
    build_version(table, definition)
    assert both_ways(table, definition, "size > 40")[2] == "by the index's values of size"
    with table.update_schema() as update:
        update.update_column("size", LongType())
    own, scanned, how = both_ways(table, definition, "size > 40")
    assert own == scanned
    assert how.endswith("without values of size: the schema has changed since they were read")
    table.append(rows.set_column(4, "size", pa.array([2**40] * 50)))
    build_version(table, definition)
    own, scanned, how = both_ways(table, definition, "size > 40")
    assert own == scanned
    assert how == "by the index's values of size"


def test_a_column_that_comes_again_is_another_column(table: Table) -> None:
    build_version(table, SECTIONS)
    with table.update_schema() as update:
        update.delete_column("section")
    with table.update_schema() as update:
        update.add_column("section", StringType())
    own, scanned, how = both_ways(table, SECTIONS, "section is null")
    assert own == scanned
    assert how == "by the data files"


def test_a_column_of_unique_texts_is_left_out_with_a_reason(
    table_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_values, "ALWAYS_KEPT", 100)
    table = table_factory()
    names = pa.array([f"a name that no other row has, as {number}" for number in range(500)])
    table.append(make_rows(0, 500).set_column(1, "name", names))
    rows = make_rows(500, 900)
    table.append(rows.set_column(1, "name", pa.array(["same"] * 400)))
    definition = replace(SECTIONS, filters=("name", "id"))
    build_version(table, definition)
    own, scanned, how = both_ways(table, definition, "name = 'same' and id >= 600")
    assert own == scanned
    assert how.endswith("1 without values of name: its distinct values take more than 16 bytes per row")
    own, scanned, _ = both_ways(table, definition, "name = 'same' or id >= 100")
    assert own == scanned
    assert both_ways(table, definition, "id >= 600")[2] == "by the index's values of id"
    version = open_version(index_versions(table.refresh(), "s")[-1], STORAGE)
    assert version.attributes[2].properties["files_left_out"] == "1"


def test_a_blob_over_the_limit_loses_the_values_of_its_last_files(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attributes, "MAX_BLOB_BYTES", 1_500)
    build_version(table, SECTIONS)
    own, scanned, how = both_ways(table, SECTIONS, "id >= 600")
    assert own == scanned
    assert "2 GiB" in how


def test_values_are_read_again_after_an_error_of_the_store(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service keeps its reader: without them each condition would read data files."""
    monkeypatch.setattr(attribute_conditions, "_PAUSE_SECONDS", 0.0)
    build_version(table, SECTIONS)
    _, live, values = opened_values(table, SECTIONS)

    def fail(*_: object) -> object:
        raise StorageError("the store is busy")

    with monkeypatch.context() as patch:
        patch.setattr(VersionValues, "entries", fail)
        scanned = find_matches_by_attributes(table, live, table.schema(), "id >= 600", STORAGE, values)
    assert "they cannot be read: the store is busy" in scanned.how
    own = find_matches_by_attributes(table, live, table.schema(), "id >= 600", STORAGE, values)
    assert own.how == "by the index's values of id"
    assert own.count == scanned.count > 0


def test_all_of_a_condition_is_by_one_reading_of_a_column(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The codes of a reading that failed are not those of the next: a part by them would match no row, or others."""
    monkeypatch.setattr(attribute_conditions, "_PAUSE_SECONDS", 0.0)
    build_version(table, SECTIONS)
    _, live, values = opened_values(table, SECTIONS)
    read, failures = VersionValues.entries, [StorageError("the store is busy")]

    def fail_once(source: VersionValues, field_id: int) -> object:
        if failures:
            raise failures.pop()
        return read(source, field_id)

    monkeypatch.setattr(VersionValues, "entries", fail_once)
    where = "id in (600, 601) and id = 600"
    matches = find_matches_by_attributes(table, live, table.schema(), where, STORAGE, values)
    assert not failures
    assert matches.count == find_matches(table, live, table.schema(), where, STORAGE).count == 1


def test_damaged_values_are_not_used(table: Table) -> None:
    build_version(table, SECTIONS)
    version = open_version(index_versions(table.refresh(), "s")[-1], STORAGE)
    blob = version.attributes[1]
    path = to_path(version.bound.puffin_path)
    data = bytearray(path.read_bytes())
    data[blob.offset + blob.length - 3] ^= 1
    path.write_bytes(data)
    own, scanned, how = both_ways(table, SECTIONS, "id >= 600")
    assert own == scanned
    assert "they cannot be read" in how
    assert "CRC-32" in check_integrity(RunContext(table, STORAGE), version.bound).faults[0]
    table.append(make_rows(900, 950))
    build_version(table, SECTIONS)
    assert both_ways(table, SECTIONS, "id >= 600")[2] == "by the index's values of id"


def test_values_of_other_rows_are_a_fault_that_a_verified_refresh_mends(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a fault of a release would leave them, with checksums that fit."""
    read = reading.read_attributes

    def turned(task: reading.AttributesTask) -> list[tuple[int, AttributeEntry]]:
        return [
            (field_id, replace(entry, stored=reversed_codes(entry).stored) if field_id == 3 else entry)
            for field_id, entry in read(task)
        ]

    monkeypatch.setattr(attributes, "read_attributes", turned)
    build_version(table, SECTIONS)
    monkeypatch.undo()
    with pytest.raises(AssertionError, match="of a search through the graph"):
        both_ways(table, SECTIONS, "section = 'section 3'")
    version = index_versions(table.refresh(), "s")[-1]
    faults = check_integrity(RunContext(table, STORAGE), version).faults
    assert len(faults) == len(live_files(table, version.base_snapshot_id).files)
    assert all("the values of column 3 for conditions are others" in fault for fault in faults)
    materialize_index(RunContext(table, STORAGE, LocalRunner(1)), SECTIONS, version.base_snapshot_id, verify=True)
    own, scanned, how = both_ways(table, SECTIONS, "section = 'section 3'")
    assert own == scanned
    assert how == "by the index's values of section"
    assert check_integrity(RunContext(table, STORAGE), index_versions(table, "s")[-1]).faults == ()


def reversed_codes(entry: AttributeEntry) -> AttributeEntry:
    """The entry, with the values of its rows in the opposite order."""
    values = values_of(entry)
    other = replace(values, codes=values.codes[::-1].copy())
    return entry_of(entry.slot, entry.rows, entry.kind, entry.reading, other)


def test_values_in_another_order_of_the_distinct_ones_are_no_fault(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another release of Arrow may number them."""

    def backwards(distinct: pa.Array, codes: Any) -> FileValues:
        count = len(distinct)
        last_first = np.where(codes < 0, codes, count - 1 - codes)
        return encoded(distinct.take(pa.array(range(count - 1, -1, -1))), last_first)

    encoded = kept_values.encoded_values
    monkeypatch.setattr(kept_values, "encoded_values", backwards)
    build_version(table, SECTIONS)
    monkeypatch.undo()
    version = index_versions(table.refresh(), "s")[-1]
    assert check_integrity(RunContext(table, STORAGE), version).faults == ()


def test_a_column_of_no_type_yet_is_not_kept(table: Table) -> None:
    """As Spark's `void` columns of format v3, and as older snapshots have a column that got its type since."""
    schema = Schema(*table.schema().fields, NestedField(6, "later", UnknownType()))
    definition = replace(SECTIONS, filters=("section", "later"), filter_ids=(3, 6))
    with pytest.raises(DefinitionError, match="filters names 'later', which is unknown; only columns of plain values"):
        resolve_columns(replace(definition, filter_ids=None), "filters", schema, "t")
    plan = plan_version(RunContext(table, STORAGE), definition, SnapshotId(table.metadata.current_snapshot_id or 0))
    plan = replace(plan, column_schema=schema)
    assert plan.filter_ids == (3,)
    slots = [
        CoveredFile(relative_to(file.path, plan.live.location), file.record_count, 0, bytes(32), present=True)
        for file in plan.live.files
    ]
    (blob,) = attributes.attribute_blobs(RunContext(table, STORAGE, LocalRunner(1)), plan, slots)
    assert blob.field_id == 3


def test_a_reading_differs_wherever_values_may() -> None:
    """Type, default, partition value, and names where the file has no field ids; each alone."""
    file = LiveFile("f.parquet", 100, 10, 1, "PARQUET")
    columns = [
        NestedField(1, "a", IntegerType()),
        NestedField(1, "a", LongType()),
        NestedField(1, "a", IntegerType(), initial_default=7),
        NestedField(1, "a", IntegerType(), initial_default=8),
    ]
    by_id = [kept_values.reading_of(Schema(column), file, 1, by_name=False) for column in columns]
    values = [replace(file, constants=((1, value),)) for value in (None, 1, 2)]
    by_id += [kept_values.reading_of(Schema(columns[0]), one, 1, by_name=False) for one in values]
    renamed = NestedField(1, "b", IntegerType())
    mapped = replace(file, name_mapping='[{"field-id": 1, "names": ["a", "c"]}, {"field-id": 2, "names": ["b"]}]')
    by_name = [
        kept_values.reading_of(Schema(column), one, 1, by_name=True)
        for one, column in ((file, columns[0]), (file, renamed), (mapped, columns[0]))
    ]
    assert len({*by_id, *by_name}) == len(columns) + len(values) + len(by_name)
    other = replace(file, constants=((2, 5),))
    assert kept_values.reading_of(Schema(columns[0]), other, 1, by_name=False) == by_id[0], "of another column"
    assert kept_values.reading_of(Schema(renamed), file, 1, by_name=False) == by_id[0], "found by its id"
    assert kept_values.reading_of(Schema(renamed), mapped, 1, by_name=True) == by_name[-1], "found by the mapping"
    assert [kept_values.is_by_name(reading) for reading in (by_id[0], *by_name)] == [False, True, True, True]


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("more", [-2, -1, 0, 1])
def test_codes_have_room_for_all_values_and_null(bits: int, more: int) -> None:
    count = 2**bits + more
    assert np.iinfo(kept_values.code_type(count)).max >= count
    assert np.iinfo(kept_values.code_type(2**bits - 1)).bits == bits, "and no more than they need"
    column = pa.array([*range(count), None, 0], pa.int32())
    values = kept_values.file_values([column.slice(0, 5), column.slice(5)], pa.int32(), len(column))
    assert values is not None
    stored = values_of(entry_of(0, len(column), "int", "reading", values))
    decoded = pa.concat_arrays([kept_values.decoded_values(stored, pa.int32()), pa.nulls(1, pa.int32())])
    assert decoded.take(pa.array(stored.codes)).equals(column)


@pytest.mark.parametrize("kind", [pa.int64(), pa.int16(), pa.bool_(), pa.string(), pa.decimal128(9)])
def test_values_of_another_width_than_their_columns_are_refused(kind: pa.DataType) -> None:
    values = kept_values.file_values([pa.array([7, 8], pa.int32())], pa.int32(), 2)
    assert values is not None
    with pytest.raises(BadBlobError, match="attributes are values of 4 bytes"):
        kept_values.decoded_values(values, kind)


def test_bytes_that_are_no_texts_are_refused() -> None:
    values = kept_values.file_values([pa.array(["ab", "c"])], pa.string(), 2)
    assert values is not None
    with pytest.raises(BadBlobError, match="attributes are no values of string"):
        kept_values.decoded_values(replace(values, values=b"a\xffc"), pa.string())


@pytest.mark.parametrize("rows", [1, 150])
def test_the_largest_values_that_are_kept_are_read_however_well_they_compress(rows: int) -> None:
    assert kept_values.ALWAYS_KEPT == 65_536
    text = "a" * (kept_values.ALWAYS_KEPT + kept_values.BYTES_PER_ROW * rows - rows - 8)
    values = kept_values.file_values([pa.array([text] * rows)], pa.string(), rows)
    assert values is not None
    assert len(values_of(entry_of(0, rows, "string", "reading", values)).values) == len(text)
    assert kept_values.file_values([pa.array([text + "a"] * rows)], pa.string(), rows) is None
    text = "a" * (kept_values.ALWAYS_KEPT + kept_values.LIST_BYTES_PER_ROW * rows - 5 * rows - 16)
    lists = kept_values.file_lists([pa.array([[text]] * rows)], pa.string(), rows)
    assert lists is not None
    assert len(lists_of(list_entry_of(0, rows, "list<string>", "reading", lists)).tokens.values) == len(text)
    assert kept_values.file_lists([pa.array([[text + "a"]] * rows)], pa.string(), rows) is None


def test_values_over_the_limit_are_noticed_before_all_batches_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_values, "_MERGED_BYTES", 8)
    monkeypatch.setattr(kept_values, "ALWAYS_KEPT", 0)
    texts = [pa.array([f"text {number:06}"]) for number in range(50)]
    batches = iter(texts)
    assert kept_values.file_values(batches, pa.string(), 1) is None
    assert len(list(batches)) > 40
    lists = (pa.array([[text[0].as_py()]]) for text in texts)
    assert kept_values.file_lists(lists, pa.string(), 1) is None
    assert len(list(lists)) > 30


@pytest.mark.parametrize("reading", ["", "{", "5", "[]", "null", '"names', pytest.param("[" * 100_000, id="deep")])
def test_what_is_no_reading_of_ours_is_neither_by_name_nor_of_an_analyzer(reading: str) -> None:
    assert not kept_values.is_by_name(reading)
    assert not kept_values.analyzer_of(reading)


@pytest.mark.parametrize("merged_bytes", [0, 40, 1 << 20])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.bool_(), pa.float32()], ids=str)
def test_values_of_many_batches_are_those_of_the_rows(
    kind: pa.DataType, merged_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many batches come before their distinct values are merged, and whatever each of them has."""
    monkeypatch.setattr(kept_values, "_MERGED_BYTES", merged_bytes)
    rng = random.Random(str(kind))
    for _ in range(20):
        rows = [rng.choice([None, *range(12)]) for _ in range(rng.randrange(60))]
        column = pa.array(rows, pa.int64()).cast(kind)
        cuts = sorted(rng.choices(range(len(rows) + 1), k=rng.randrange(6)))
        batches = [column.slice(start, end - start) for start, end in pairwise([0, *cuts, len(rows)])]
        values = kept_values.file_values(batches, kind, len(rows))
        assert values is not None
        stored = values_of(entry_of(0, len(rows), "kind", "reading", values))
        decoded = pa.concat_arrays([kept_values.decoded_values(stored, kind), pa.nulls(1, kind)])
        assert decoded.take(pa.array(stored.codes)).equals(column)
        lists = pa.array([None if row is None else [row, row % 3] for row in rows], pa.list_(pa.int64()))
        pieces = [lists.slice(start, end - start) for start, end in pairwise([0, *cuts, len(rows)])]
        kept = kept_values.file_lists(pieces, pa.int64(), len(rows))
        assert kept is not None
        tokens = lists_of(list_entry_of(0, len(rows), "kind", "reading", kept))
        elements = kept_values.decoded_values(tokens.tokens, pa.int64()).to_pylist()
        elements_of = [set[int]() for _ in rows]
        for code, element in enumerate(elements):
            for row in tokens.rows[tokens.starts[code] : tokens.starts[code + 1]].tolist():
                elements_of[row].add(element)
        assert elements_of == [set() if row is None else {row, row % 3} for row in rows]


@pytest.mark.parametrize("text", ["by name", "7", "[]"])
def test_values_that_another_writer_read_in_its_own_way_are_not_used(
    table: Table, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(reading, "reading_of", lambda *_, **__: text)
    build_version(table, SECTIONS)
    own, scanned, how = both_ways(table, SECTIONS, "id >= 600")
    assert own == scanned
    assert "the schema has changed since they were read" in how
    monkeypatch.undo()
    table.append(make_rows(900, 950))
    build_version(table, SECTIONS)
    assert both_ways(table, SECTIONS, "id >= 600")[2] == "by the index's values of id"


def test_texts_of_more_than_arrow_takes_are_read_from_the_data_files(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_version(table, SECTIONS)
    count = 2**30 + 1
    many = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, count], np.int32)), pa.py_buffer(np.zeros(count, np.uint8))]
    )
    monkeypatch.setattr(attribute_conditions, "decoded_values", lambda *_: many)
    own, scanned, how = both_ways(table, SECTIONS, "section = 'section 3'")
    assert own == scanned
    assert "offset overflow" in how


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (("colour",), "filters names 'colour', which is no column at the top level; there are id, name, section"),
        (("embedding",), "filters names 'embedding', which is list<float>; only columns of plain values"),
        (("doubles",), "filters names 'doubles', which is list<double>; only columns of plain values"),
    ],
)
def test_a_column_that_cannot_be_kept_is_refused(table: Table, filters: tuple[str, ...], message: str) -> None:
    with table.update_schema() as update:
        update.add_column("doubles", ListType(99, DoubleType(), element_required=False))
    with pytest.raises(DefinitionError, match=message):
        create_index(table, replace(SECTIONS, filters=filters))


ELEMENTS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "texts": (pa.string(), ["", "a", "b", "it's", "\U0001f600"]),
    "numbers": (pa.int64(), [0, -3, 2**40]),
    "prices": (pa.decimal128(9, 2), [Decimal("0.10"), Decimal("-2.00")]),
    "days": (pa.date32(), [dt.date(2026, 1, 1), dt.date(1969, 12, 31)]),
    "raws": (pa.binary(), [b"", b"\xff" * 3]),
    "flags": (pa.bool_(), [True, False]),
}
"""Column of lists -> (type of an element, values)"""
LISTS = replace(RANDOM, name="l", filters=tuple(ELEMENTS))
NIGHT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def lists_table(catalog: Catalog, name: str, rng: random.Random) -> tuple[Table, list[dict[str, Any]]]:
    """(a table of random lists with deletes, its live rows). The last file has one column less, the first two."""

    def lists(values: list[Any], count: int) -> list[Any]:
        return [
            None if rng.random() < 0.15 else [rng.choice([*values, None]) for _ in range(rng.randrange(4))]
            for _ in range(count)
        ]

    def rows(first: int, count: int) -> pa.Table:
        columns = {name: pa.array(lists(own, count), pa.list_(kind)) for name, (kind, own) in ELEMENTS.items()}
        vectors = pa.array([[float(number), 1.0] for number in range(first, first + count)], pa.list_(pa.float32()))
        return pa.table({"id": range(first, first + count), **columns, "embedding": vectors})

    early = rows(0, 50).drop_columns(["flags"])
    table = catalog.create_table(name, early.schema, properties={"format-version": "2"})
    table.append(early)
    with table.update_schema() as change:
        change.add_column("flags", ListType(99, BooleanType(), element_required=False))
    later = rows(50, 70)
    table.append(later)
    removed = [3, 4, 49, 60]
    files = {file.record_count: file.path for file in live_files(table, table.metadata.current_snapshot_id or 0).files}
    append_position_deletes(table, {files[50]: np.array(removed[:3]), files[70]: np.array([10])})
    every = [*({**row, "flags": None} for row in early.to_pylist()), *later.to_pylist()]
    return table.refresh(), [row for row in every if row["id"] not in removed]


def meaning(value: Any, elements: list[Any] | None) -> bool | None:
    """`array_contains`, as Spark has it."""
    if elements is None or (value not in elements and None in elements):
        return None
    return value in elements


def drawn_condition(rng: random.Random, depth: int = 2) -> tuple[BooleanExpression, Callable[[Any], bool | None]]:
    """(a condition on lists, what it is of a row)."""
    name = rng.choice(list(ELEMENTS))
    if depth and rng.random() < 0.6:
        (one, first), (other, second) = drawn_condition(rng, depth - 1), drawn_condition(rng, depth - 1)
        if rng.random() < 0.3:
            return Not(one), lambda row: None if (truth := first(row)) is None else not truth
        decisive = rng.random() < 0.5

        def both(row: Any) -> bool | None:
            truths = {first(row), second(row)}
            return decisive if decisive in truths else None if None in truths else not decisive

        return (Or if decisive else And)(one, other), both
    if rng.random() < 0.2:
        return IsNull(name), lambda row: row[name] is None  # type: ignore[arg-type, call-arg]
    value = rng.choice(ELEMENTS[name][1])
    return ArrayContains(name, value), lambda row: meaning(value, row[name])


@pytest.mark.parametrize("kept", [tuple(ELEMENTS), ("texts", "flags"), ()], ids=len)
def test_conditions_on_lists_mean_what_they_mean_to_spark(catalog: Catalog, kept: tuple[str, ...], seed: str) -> None:
    rng = random.Random(seed)
    table, rows = lists_table(catalog, f"db.lists{len(kept)}", rng)
    definition = replace(LISTS, filters=kept)
    build_version(table, definition)
    for _ in draws(20):
        where, truth = drawn_condition(rng)
        expected = [row["id"] for row in rows if truth(row)]
        own, scanned, how = both_ways(table, definition, where)
        assert own == scanned, where
        assert sum(map(len, own.values())) == len(expected), where
        result = reader(table, definition).search([0.0, 0.0], 200, where=where, columns=["id"])
        assert sorted(result.rows["id"].to_pylist()) == expected, where
        assert len(kept) < len(ELEMENTS) or "read" not in how, how


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("array_contains(tags, 'a')", [0, 1]),
        ("not ARRAY_CONTAINS(tags, 'a') and id < 5", [2, 4]),
        ("array_contains(tags, 'it''s') or id = 5", [2, 5]),
        ("not (array_contains(tags, 'a') or array_contains(tags, 'b'))", [2, 4]),
        ("array_contains(numbers, 2)", [0]),
        ("array_contains(numbers, 2.0)", [0]),
        ("array_contains(numbers, 2.5)", []),
        ("not array_contains(numbers, 2.5)", [0, 1]),
        ("not array_contains(numbers, 9999999999)", [0, 1]),
        ("tags is null", [5]),
        ("tags is not null", [0, 1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("kept", [("tags", "numbers"), ()], ids=len)
def test_conditions_on_lists_are_written_as_sql_writes_them(
    sql_catalog: Catalog, kept: tuple[str, ...], where: str, expected: list[int]
) -> None:
    rows = make_rows(0, 6)
    tags = pa.array([["a"], ["a", None], ["it's"], [None], [], None], pa.list_(pa.string()))
    numbers = pa.array([[2, 2], [3], None, [None], None, None], pa.list_(pa.int32()))
    rows = rows.append_column("tags", tags).append_column("numbers", numbers)
    table = sql_catalog.create_table("db.tags", rows.schema)
    table.append(rows)
    definition = replace(SECTIONS, filters=kept)
    build_version(table, definition)
    result = reader(table, definition).search(queries(1), 6, where=where, columns=["id"])
    assert sorted(result.rows["id"].to_pylist()) == expected
    session = SqlSession(lambda _: (table.refresh(), STORAGE))
    text = f"SELECT id FROM db.t WHERE {where} ORDER BY l2_distance(embedding, :q) LIMIT 6"
    assert sorted(session.sql(text, {"q": queries(1)[0]}).rows["id"].to_pylist()) == expected


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (UUIDType(), [UUID(int=1), UUID(int=1 << 127)], "80000000-0000-0000-0000-000000000000"),
        (TimeType(), [dt.time(8), dt.time(8, 30, 0, 1)], "08:30:00.000001"),
        (DateType(), [dt.date(2026, 1, 1), dt.date(1969, 12, 31)], "1969-12-31"),
        (TimestamptzType(), [NIGHT, NIGHT + dt.timedelta(hours=8)], "2026-01-01 08:00:00+00:00"),
    ],
    ids=str,
)
def test_a_text_stands_for_an_element_that_it_says(kind: Any, values: list[Any], text: str) -> None:
    schema = Schema(NestedField(1, "c", ListType(2, kind, element_required=False)))
    stored = [value.bytes if isinstance(value, UUID) else value for value in values]
    arrow_type = pa.binary(16) if isinstance(kind, UUIDType) else schema.as_arrow().field(0).type.value_type
    lists = pa.array([[stored[0]], stored, [], None, [None, stored[1]]], pa.list_(arrow_type))
    for where in (f"array_contains(c, '{text}')", ArrayContains("c", values[1])):
        satisfied = RowPredicate(where, schema).satisfied(pa.record_batch({"c": lists}), np.arange(5))
        assert satisfied.tolist() == [1, 4], where


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("array_contains(section, 'a')", "section is string: array_contains takes a column of lists of plain values"),
        ("array_contains(numbers, '2')", "numbers is list<int>: array_contains takes a number, not a text"),
        ("array_contains(numbers, true)", "an element of numbers is int, which True is not"),
        (ArrayContains("numbers", None), "array_contains(numbers, ...) does not find null"),
    ],
    ids=str,
)
def test_what_no_list_contains_is_refused(where: Any, message: str) -> None:
    fields = (
        NestedField(1, "section", StringType()),
        NestedField(2, "numbers", ListType(3, IntegerType(), element_required=False)),
    )
    with pytest.raises(FilterError, match=re.escape(message)):
        RowPredicate(where, Schema(*fields))


@pytest.mark.parametrize("where", [f"id = {'9' * 5_000}", f"id in (1, {'9' * 5_000})"])
def test_a_number_of_thousands_of_digits_is_refused_with_kept_values_and_without(
    sql_catalog: Catalog, where: str
) -> None:
    table = sql_catalog.create_table("db.t", ROWS)
    table.append(make_rows(0, 100))
    for filters in ((), ("id", "section")):
        index_head(table, replace(DEFINITION, filters=filters))
        reader = open_index(table.refresh(), replace(DEFINITION, filters=filters), storage=STORAGE)
        with pytest.raises(FilterError):
            reader.search(queries(1), 3, where=where)


def test_long_lists_are_left_out_with_a_reason(sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_values, "ALWAYS_KEPT", 100)
    monkeypatch.setattr(kept_values, "LIST_BYTES_PER_ROW", 8)
    rows = make_rows(0, 100)
    long = rows.append_column("tags", pa.array([["x", "y", f"{number}"] for number in range(100)]))
    table = sql_catalog.create_table("db.long", long.schema)
    table.append(long)
    table.append(rows.append_column("tags", pa.array([["x"]] * 100)))
    definition = replace(SECTIONS, filters=("tags",))
    build_version(table, definition)
    own, scanned, how = both_ways(table, definition, "array_contains(tags, 'x')")
    assert own == scanned
    assert sum(map(len, own.values())) == 200
    assert how.endswith("1 without values of tags: its lists take more than 128 bytes per row")


def test_lists_are_weighed_by_the_bytes_that_a_version_keeps() -> None:
    """A row of a list column is not one value: the driver reads what is small."""
    fields = (
        NestedField(1, "section", StringType()),
        NestedField(2, "numbers", ListType(3, IntegerType(), element_required=False)),
    )
    file = LiveFile("file:/a.parquet", 1, 1_000, 1, "PARQUET")
    sizes = [ColumnsOfFile(FileSlot(0), file, field_ids).size(Schema(*fields)) for field_ids in ((1,), (2,), (1, 2))]
    assert sizes == [8_000, 1_000 * kept_values.LIST_BYTES_PER_ROW, 136_000]


class TwoColumns:
    """Values of two columns of two files of three rows, of which the second column lacks one."""

    field_ids = (1, 2)

    def entries(self, field_id: int) -> Entries:
        own = [[1, 0, 0], [1, 1, 0]] if field_id == 1 else [[0, 1, 0]]
        entries = {}
        for number, numbers in enumerate(own):
            values = kept_values.file_values([pa.array(numbers, pa.int32())], pa.int32(), 3)
            assert values is not None
            entries[FileNumber(number)] = entry_of(number, 3, "int", "reading", values)
        return entries, {} if field_id == 1 else {FileNumber(1): "too long"}


def test_rows_of_a_file_that_one_column_lacks_are_not_counted() -> None:
    schema = Schema(NestedField(1, "a", IntegerType()), NestedField(2, "b", IntegerType()))
    files = tuple(LiveFile(f"file:/{name}.parquet", 100, 3, 1, "PARQUET") for name in "xy")
    live = LiveFiles("t", "uuid", "file:/", SnapshotId(1), 1, 0, files)
    predicate = RowPredicate("a = 1 or b = 1", schema)
    condition = Condition.from_tests([predicate.bound], Attributes(TwoColumns(), live, schema, STORAGE), predicate)
    assert condition.missing == {1: "values of b: too long"}
    assert condition.rows(FileNumber(1)).tolist() == [True, True, False], "as far as is known"
    assert condition.count() == 2


def test_matches_that_are_kept_count_for_two_bitmaps_and_the_rows_of_data_files() -> None:
    rows = [Matches({FileNumber(0): np.arange(count)}, 1) for count in (7, 50)]
    condition: Any = SimpleNamespace(attributes=SimpleNamespace(starts=np.array([0, 3_200, 6_400])))
    of_files = AttributeMatches({}, 0, condition=condition, rest=rows[0], others=rows[1])
    assert of_files.weight == 7 + 50 + 2 * 6_400 // 64
    assert replace(of_files, rest=None).weight == 50 + 2 * 6_400 // 64
