"""Columns that versions store: rows of answers have the values of the data files, and no data file is read."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import In
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import Transform
from pyiceberg.types import FixedType, FloatType, IntegerType, ListType, LongType, NestedField

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.ddl import create_index, load_definition
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.files import included_blobs as columns_of_versions
from icepuffin.ops.index.files import unread_columns
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.index.versions.version_reader import location_of, open_version, read_included_blob
from icepuffin.ops.messages import readable_bytes
from icepuffin.ops.model import Action, FileNumber
from icepuffin.ops.rows import included_columns as layout
from icepuffin.ops.rows import included_values
from icepuffin.ops.runs.index_runs import ensure_defined
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.overview import IncludedState, overview
from icepuffin.ops.search.result import Coverage, SearchResult, explain
from icepuffin.ops.storage.local_storage import LocalStorage, to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks import attribute_task
from icepuffin.ops.tasks import included_task as reading
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.orchestration.cli.index import version_facts
from icepuffin.puffin.blobs import included_columns_blob as blobs
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.search.partitioned import TYPES, build_version, random_table
from tests.ops.search.test_random_conditions import PARTITIONS
from tests.selection import some

RANDOM = IndexDefinition(name="r", column="embedding", metric="l2", target_recall=0.0, include=tuple(TYPES))
NAMES = IndexDefinition(name="s", column="embedding", metric="l2", shards=2, target_recall=0.0, include=("name", "id"))


def search(table: Table, definition: IndexDefinition, *columns: str, k: int = 20) -> SearchResult:
    reader = open_index(table, definition, storage=STORAGE)
    return reader.search(queries(3, dims=reader.dims or 0), k, columns=list(columns))


def faults(table: Table, name: str = "s") -> tuple[str, ...]:
    return check_integrity(RunContext(table, STORAGE), index_versions(table.refresh(), name)[-1]).faults


def scanned(table: Table, definition: IndexDefinition, *columns: str, k: int = 20) -> SearchResult:
    """The answer of the same version, whose rows come from the data files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(included_values.IncludedColumns, "has", lambda *_: False)
        return search(table, definition, *columns, k=k)


@pytest.mark.parametrize(("column", "transform"), some(PARTITIONS, 4), ids=lambda value: str(value or "plain"))
def test_rows_of_every_type_are_those_of_the_data_files(
    catalog: Catalog, column: str, transform: Transform[Any, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nulls, NaN, defaults, partitions that are no column of their files, deletes."""
    monkeypatch.setattr(layout, "BLOCK_BYTES", 64)
    table, _ = random_table(catalog, f"db.t{PARTITIONS.index((column, transform))}", column, transform)
    build_version(table, RANDOM)
    own, other = (way(table, RANDOM, *TYPES, k=400) for way in (search, scanned))
    assert own.rows.schema == other.rows.schema
    assert own.rows.to_pylist().__repr__() == other.rows.to_pylist().__repr__(), "NaN is no equal of itself"
    assert set(own.profile.included_rows) == set(TYPES)
    assert own.profile.bytes_read["rows"] == 0
    assert own.warnings == other.warnings
    assert faults(table, "r") == ()


def test_no_data_file_is_read(table: Table) -> None:
    build_version(table, NAMES)
    reader = open_index(table, NAMES, storage=STORAGE)
    for file in table.scan().plan_files():
        to_path(file.file.file_path).unlink()
    for result in (
        reader.search(queries(2), 5, columns=["id", "name"]),
        reader.within(queries(1), 3.0, columns=["name", "id"]),
    ):
        assert [row["name"] for row in result] == [f"name {row['id']}" for row in result]
        rows = len({row["id"] for row in result})
        assert result.profile.included_rows == {"id": rows, "name": rows}
        assert result.profile.bytes_read["rows"] == 0
        assert f"name of {rows} rows" in result.explain()
        assert dict(explain(result))["included"].endswith(" bytes of the index")
    once, again = (open_index(table, NAMES, storage=STORAGE) for _ in range(2))
    read = [one.search(queries(2), 5, columns=["id"]).profile.bytes_read["included"] for one in (once, again, again)]
    assert read[0] == read[1] > read[2] == 0, "the blocks are in memory"


def test_data_files_are_read_for_the_other_columns_alone(table: Table) -> None:
    build_version(table, NAMES)
    own, other = (way(table, NAMES, "section", "name", "id", "embedding") for way in (search, scanned))
    assert own.rows.equals(other.rows)
    assert re.fullmatch(r"name of .*, and [\d,]+ of data files for the others", dict(explain(own))["included"])
    assert 0 < own.profile.bytes_read["rows"] < other.profile.bytes_read["rows"]
    assert other.profile.included_rows == {}
    assert "included" not in other.explain()


def test_rows_that_the_version_lacks_come_from_their_files(table: Table) -> None:
    build_version(table, NAMES)
    table.append(make_rows(2_000, 2_100))
    result = search(table, NAMES, "id", "name", k=400)
    assert result.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    assert result.rows.equals(scanned(table, NAMES, "id", "name", k=400).rows)
    indexed = sum(number < 2_000 for number in set(result.rows["id"].to_pylist()))
    assert result.profile.included_rows == {"id": indexed, "name": indexed}
    assert result.profile.bytes_read["rows"] > 0


def test_values_are_copied_where_the_file_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    build_version(table, NAMES)
    before = {column: [values_of(table, column, part) for part in parts_of(table, column)] for column in (1, 2)}
    tasks: list[reading.IncludedTask] = []
    stage = reading.stage_included

    def watched(task: reading.IncludedTask) -> Any:
        tasks.append(task)
        return stage(task)

    monkeypatch.setattr(columns_of_versions, "stage_included", watched)
    table.delete(In("id", {3, 5}))
    table.append(make_rows(2_000, 2_050))
    assert build_version(table, NAMES) is Action.REFRESHED
    read = {columns.file.record_count for task in tasks for columns in task.files}
    assert 50 in read
    assert read < {file.file.record_count for file in table.scan().plan_files()}, "others are copied"
    after = {column: [values_of(table, column, part) for part in parts_of(table, column)] for column in (1, 2)}
    assert all({*before[column]} & {*after[column]} for column in (1, 2))
    assert faults(table) == ()
    own, other = (way(table, NAMES, "id", "name", k=400) for way in (search, scanned))
    assert own.rows.equals(other.rows)
    assert own.profile.bytes_read["rows"] == 0


def parts_of(table: Table, field_id: int, name: str = "s") -> tuple[blobs.IncludedEntry, ...]:
    version = open_version(index_versions(table.refresh(), name)[-1], STORAGE)
    return read_included_blob(version, field_id, STORAGE).entries


def values_of(table: Table, field_id: int, entry: blobs.IncludedEntry) -> bytes:
    location = location_of(index_versions(table, "s")[-1], entry)
    return to_path(location.path).read_bytes()[location.offset : location.offset + location.length]


@pytest.mark.parametrize("method", ["diskann", "centroid"])
def test_values_in_packs_are_shared(table: Table, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1)
    definition = replace(NAMES, method=method)
    build_version(table, definition)
    (first,) = {entry.pack for entry in (*parts_of(table, 1), *parts_of(table, 2))}
    pack = index_versions(table, "s")[-1].packs[first - 1].path
    table.append(make_rows(2_000, 2_020))
    build_version(table, definition)
    version = open_version(index_versions(table.refresh(), "s")[-1], STORAGE)
    assert pack in {bound.path for bound in version.bound.packs}, "it is named, not copied"
    used = [entry.pack for field_id in (1, 2) for entry in parts_of(table, field_id)]
    assert {version.bound.packs[number - 1].path for number in used if number} >= {pack}
    assert version.bytes_total > version.bytes_searched
    own, other = (way(table, definition, "id", "name", k=400) for way in (search, scanned))
    assert own.rows.equals(other.rows)
    assert own.profile.bytes_read["rows"] == 0
    assert faults(table) == ()


def test_an_overview_shows_what_is_stored(table: Table) -> None:
    build_version(table, NAMES)
    view = overview(table, NAMES, STORAGE)
    assert view is not None
    sizes = {field_id: sum(entry.length for entry in parts_of(table, field_id)) for field_id in (2, 1)}
    assert view.included == (IncludedState("name", sizes[2], 2, 0), IncludedState("id", sizes[1], 2, 0))
    shown = version_facts(replace(view, included=(replace(view.included[0], files_left_out=1),)))
    assert shown["stores"].startswith(f"name {readable_bytes(sizes[2])} (1 of 2 files left out): rows of answers")


def test_equal_work_makes_equal_bytes_however_it_is_split(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    class Split(LocalRunner):
        parallelism = 3

    table.append(make_rows(2_000, 2_300))
    contents = []
    for runner in (LocalRunner(1), Split(1)):
        monkeypatch.setattr(unread_columns, "small_work_runner", lambda own, _: own)
        head = table.refresh().metadata.current_snapshot_id or 0
        materialize_index(RunContext(table, STORAGE, runner), NAMES, head)
        contents.append(to_path(index_versions(table.refresh(), "s")[-1].puffin_path).read_bytes())
        table.manage_snapshots().remove_tag("ann_s").commit()
        to_path(index_versions(table.refresh(), "s")[-1].puffin_path).unlink()
    assert contents[0] == contents[1]


def test_a_changed_definition_needs_no_new_graph(table: Table) -> None:
    build_version(table, replace(NAMES, include=()))
    head = table.refresh().metadata.current_snapshot_id or 0
    report = materialize_index(RunContext(table, STORAGE, LocalRunner(1)), NAMES, head)
    assert (report.action, report.inserted) == (Action.REFRESHED, 0)
    assert search(table, NAMES, "id", "name").profile.bytes_read["rows"] == 0
    assert build_version(table, NAMES) is Action.REUSED


def test_a_renamed_column_is_the_same_column(table: Table) -> None:
    definition = create_index(table, NAMES)
    build_version(table, definition)
    with table.update_schema() as update:
        update.rename_column("name", "title")
    assert search(table.refresh(), definition, "title").profile.bytes_read["rows"] == 0
    table.append(make_rows(2_000, 2_010).rename_columns(["id", "title", "section", "embedding"]))
    build_version(table, load_definition(table.refresh(), "s"))
    result = search(table, definition, "id", "title", k=400)
    assert result.rows.equals(scanned(table, definition, "id", "title", k=400).rows)
    assert result.profile.bytes_read["rows"] == 0
    assert faults(table) == ()


def test_a_promoted_column_is_read_until_the_next_refresh(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("year", IntegerType())
    years = pa.array(range(100), pa.int32())
    table.append(make_rows(2_000, 2_100).append_column("year", years))
    definition = replace(NAMES, include=("year", "id"))
    build_version(table, definition)
    assert search(table, definition, "year", "id").profile.bytes_read["rows"] == 0
    with table.update_schema() as update:
        update.update_column("year", LongType())
    result = search(table.refresh(), definition, "year", "id", k=400)
    assert result.rows.schema.field("year").type == pa.int64()
    assert result.rows.equals(scanned(table, definition, "year", "id", k=400).rows)
    assert result.profile.bytes_read["rows"] > 0
    assert set(result.profile.included_rows) == {"id"}
    table.append(make_rows(3_000, 3_010).append_column("year", pa.array(range(10), pa.int64())))
    build_version(table, definition)
    assert search(table, definition, "year", "id", k=400).profile.bytes_read["rows"] == 0
    assert faults(table) == ()


def test_values_that_would_be_read_otherwise_today_are_not_used(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "reading_of", lambda *_, **__: "another writer's")
    build_version(table, NAMES)
    monkeypatch.undo()
    result = search(table, NAMES, "id", "name")
    assert (result.profile.included_rows, result.warnings) == ({}, ())
    assert result.profile.bytes_read["rows"] > 0
    assert faults(table) == ()
    table.append(make_rows(2_000, 2_010))
    build_version(table, NAMES)
    assert search(table, NAMES, "id", "name", k=400).profile.bytes_read["rows"] == 0, "they were read again"


def test_an_answer_takes_two_rounds_of_requests(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of block indexes, and of blocks: whatever the number of files, columns and rows."""
    build_version(table, NAMES)
    reader = open_index(table, NAMES, storage=STORAGE)
    rounds: list[int] = []

    def opened(path: str, _: object) -> LocalStorage:
        class Counting(LocalStorage):
            def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
                rounds.append(len(ranges))
                return super().read_ranges(path, ranges)

        return Counting()

    monkeypatch.setattr(included_values, "open_storage", opened)
    files = len(list(table.scan().plan_files()))
    reader.search(queries(3), 50, columns=["id", "name"])
    assert len(rounds) == 2
    assert rounds[0] == 2 * files == 4
    reader.search(queries(3), 50, columns=["id", "name"])
    assert len(rounds) == 2, "all is in memory"


def test_an_older_snapshot_is_answered_by_a_newer_version(table: Table) -> None:
    before = table.metadata.current_snapshot_id
    table.delete(In("id", set(range(40))))
    build_version(table, NAMES)
    reader = open_index(table, NAMES, snapshot=before, storage=STORAGE)
    result = reader.search(queries(2), 300, columns=["id", "name"])
    assert [row["name"] for row in result] == [f"name {row['id']}" for row in result]
    assert sum(result.profile.included_rows.values()) > 0


def damaged(table: Table, change: Callable[[bytearray], None]) -> None:
    path = to_path(index_versions(table.refresh(), "s")[-1].puffin_path)
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


@pytest.mark.parametrize("part", ["block", "index", "places"])
def test_damaged_values_are_not_used(table: Table, part: str) -> None:
    build_version(table, NAMES)
    entry = max(parts_of(table, 2), key=lambda one: one.rows)
    version = open_version(index_versions(table, "s")[-1], STORAGE)
    place = {
        "block": entry.offset + 3,
        "index": entry.offset + entry.length - 1,
        "places": version.included[2].offset + 40,
    }[part]

    def change(data: bytearray) -> None:
        data[place] ^= 1

    damaged(table, change)
    result = search(table, NAMES, "id", "name", k=400)
    assert result.rows.equals(scanned(table, NAMES, "id", "name", k=400).rows)
    assert any("included column name cannot be read" in warning for warning in result.warnings)
    assert result.profile.bytes_read["rows"] > 0
    assert faults(table)
    head = table.metadata.current_snapshot_id or 0
    materialize_index(RunContext(table, STORAGE, LocalRunner(1)), NAMES, head, verify=True)
    assert faults(table) == ()
    assert search(table, NAMES, "id", "name").warnings == ()


def test_places_that_are_damaged_are_not_copied_by_a_refresh(table: Table) -> None:
    build_version(table, NAMES)
    place = open_version(index_versions(table.refresh(), "s")[-1], STORAGE).included[2].offset + 40

    def change(data: bytearray) -> None:
        data[place] ^= 1

    damaged(table, change)
    table.append(make_rows(900, 950))
    assert build_version(table, NAMES) is Action.REFRESHED
    assert faults(table) == ()


def test_values_of_other_rows_are_a_fault(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    block_of = layout.block_of

    def turned(values: pa.Array) -> blobs.ValueBlock:
        return block_of(pa.concat_arrays([values.slice(1), values.slice(0, 1)]))

    monkeypatch.setattr(layout, "block_of", turned)
    build_version(table, NAMES)
    monkeypatch.undo()
    assert any("included values of column 2 are others" in fault for fault in faults(table))


@pytest.mark.parametrize(
    ("include", "message"),
    [
        (("colour",), "include names 'colour', which is no column at the top level; there are id, name, section"),
        (("embedding",), "include names 'embedding', which is list<float>; only columns of plain values can be stored"),
        (("name", "name"), "include names a column twice"),
    ],
)
def test_a_column_that_cannot_be_included_is_refused(table: Table, include: tuple[str, ...], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        create_index(table, replace(NAMES, include=include))


def test_columns_of_the_settings_are_those_of_the_first_run(table: Table) -> None:
    ensure_defined(table, NAMES)
    with table.update_schema() as update:
        update.rename_column("name", "title")
        update.rename_column("section", "name")
    table.refresh()
    assert ensure_defined(table, NAMES).include_ids == (2, 1), "the column that had the name then"
    assert ensure_defined(table, replace(NAMES, include=("name", "title"))).include_ids == (2, 2)


def test_values_over_the_limit_of_a_blob_are_left_out(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    build_version(table, replace(NAMES, name="other"))
    longest = max(entry.length for field_id in (1, 2) for entry in parts_of(table, field_id, "other"))
    monkeypatch.setattr(columns_of_versions, "MAX_BLOB_BYTES", longest - 1)
    build_version(table, NAMES)
    kept = {bool(entry.left_out) for entry in (*parts_of(table, 1), *parts_of(table, 2))}
    assert kept == {False, True}
    own, other = (way(table, NAMES, "id", "name", k=400) for way in (search, scanned))
    assert own.rows.equals(other.rows)
    assert faults(table) == ()


def test_a_reader_keeps_no_more_blocks_than_its_budget(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BLOCK_BYTES", 256)
    build_version(table, NAMES)
    live = live_files(table, table.refresh().metadata.current_snapshot_id or 0)
    version = open_version(index_versions(table, "s")[-1], STORAGE)
    columns = included_values.IncludedColumns(version, live, table.schema(), STORAGE, budget_bytes=6_000)
    read = 0
    for start in (*range(0, 300, 20), 0):
        meter = included_values.IncludedMeter()
        positions = np.array([start + 7, start, start + 7])
        (values,) = columns.values([(FileNumber(0), positions)], [2, 1], meter)
        assert values[2].to_pylist() == [f"name {number}" for number in values[1].to_pylist()]
        assert values[1][0] == values[1][2] != values[1][1]
        assert 0 < columns._kept.weight <= 6_000
        read = meter.bytes
    assert read > 0, "the first blocks were dropped"
    before, large = columns._kept.weight, SimpleNamespace(nbytes=1_501)
    columns._keep(((1, FileNumber(0)), 999), large)  # type: ignore[arg-type]
    assert columns._kept.weight == before, "one block takes no more than a fourth of it"


def test_blocks_are_of_few_bytes_and_read_in_any_order() -> None:
    texts = pa.array([None if number % 7 == 0 else "ä" * (number % 50) for number in range(700)])
    rows = layout.rows_per_block(texts)
    assert rows == 64
    assert layout.rows_per_block(pa.array(range(9))) == layout.MAX_ROWS
    assert layout.rows_per_block(pa.array(["x" * 100_000])) == 1
    cuts = [texts.slice(0, 5), texts.slice(5, 0), texts.slice(5, 500), texts.slice(505)]
    read = list(layout.value_blocks(cuts, rows))
    assert [len(block.present) for block in read] == [64] * 10 + [60]
    some = layout.values_at([(read[-1], [59, 0, 3, 3]), (read[1], [2])], pa.string())
    assert some.equals(texts.take(pa.array([699, 640, 643, 643, 66])))
    assert pc.sum(pc.cast(texts.is_null(), pa.int64())).as_py() == sum(int((~block.present).sum()) for block in read)


def test_texts_that_begin_short_and_become_huge_stay_in_their_files(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MAX_BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(attribute_task, "BATCH_ROWS", 100)
    for name, long_from, stored in (("even", 0, True), ("uneven", 150, False)):
        rows = make_rows(0, 300)
        texts = [f"text {number}" + "x" * (9_000 if number >= long_from else 0) for number in range(300)]
        rows = rows.set_column(1, "name", pa.array(texts))
        table = catalog.create_table(f"db.{name}", rows.schema)
        table.append(rows)
        table.append(make_rows(300, 350))
        build_version(table, NAMES)
        entries = {entry.rows: entry for entry in parts_of(table, 2)}
        assert entries[50].block_rows > 0
        assert (entries[300].block_rows > 0, bool(entries[300].left_out)) == (stored, not stored)
        own, other = (way(table, NAMES, "id", "name", k=400) for way in (search, scanned))
        assert own.rows.equals(other.rows)
        assert faults(table) == ()


def test_one_huge_text_has_a_block_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MAX_BLOCK_BYTES", 1_000)
    texts = pa.array(["x" * 5_000, "y" * 5_000, "z"])
    assert [len(block.values) for block in layout.value_blocks([texts], 1)] == [5_000, 5_000, 1]
    for batches in ([texts], [texts[:1], texts[1:]], [texts[2:], texts[:1]]):
        with pytest.raises(layout.LargeBlockError):
            list(layout.value_blocks(batches, 2))


def test_values_of_no_bytes_are_not_included(catalog: Catalog) -> None:
    fields = NestedField(1, "id", LongType()), NestedField(2, "none", FixedType(0))
    vectors = NestedField(3, "embedding", ListType(4, FloatType()))
    table = catalog.create_table("db.zero", Schema(*fields, vectors))
    with pytest.raises(DefinitionError, match=r"include names 'none', which is fixed\[0\]; only columns of plain"):
        create_index(table, replace(NAMES, include=("none",)))
