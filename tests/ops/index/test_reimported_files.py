"""Imported files come again under their names: a nightly export is taken out of the table, and added once more."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import LessThan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.update import SetLocationUpdate
from pyiceberg.typedef import Record
from pyiceberg.types import FloatType, ListType

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.index.definitions.ddl import create_index, load_definition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning import version_plan
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.model import Action
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import ROWS, STORAGE, make_rows, queries, vectors_of
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head

TableFactory = Callable[..., Table]


@pytest.fixture
def export(tmp_path: Path) -> Path:
    return tmp_path / "night.parquet"


@pytest.fixture
def table(table_factory: TableFactory, export: Path) -> Table:
    """An imported file, and eleven others; indexed. Then the import is deleted, and its name written anew."""
    new_table = table_factory()
    pq.write_table(make_rows(0, 100), export)
    new_table.add_files([str(export)])
    for first in range(1_000, 12_000, 1_000):
        new_table.append(make_rows(first, first + 50))
    index_head(new_table)
    new_table.refresh().delete(LessThan("id", 1_000))
    pq.write_table(make_rows(100, 200, seed=5), export)
    new_table.refresh().add_files([str(export)])
    return new_table.refresh()


def newest(table: Table) -> int:
    return table.refresh().metadata.current_snapshot_id or 0


def assert_right(table: Table) -> None:
    _, recall = answer_with_recall(table)
    assert recall >= 0.96
    vectors = make_rows(100, 110, seed=5)["embedding"].to_pylist()
    found = open_index(table, DEFINITION, storage=STORAGE).search(vectors, 1, columns=["id"])
    assert found.rows["id"].to_pylist() == list(range(100, 110))
    assert max(found.rows["distance"].to_pylist()) < 1e-6


def test_rows_of_the_file_that_is_there_now_are_found_before_a_refresh_and_after_it(table: Table) -> None:
    assert_right(table)
    report = index_head(table)
    assert report.action is Action.REFRESHED
    assert_right(table)
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    assert not check_integrity(RunContext(table, STORAGE), version).faults


def test_a_later_version_does_not_answer_for_what_came_after_it(table: Table, export: Path) -> None:
    """The same name a third time, and a version of the second in between."""
    index_head(table)
    table.refresh().delete(LessThan("id", 1_000))
    pq.write_table(make_rows(200, 300, seed=6), export)
    table.refresh().add_files([str(export)])
    report = open_index(table.refresh(), DEFINITION, storage=STORAGE).search(queries(1), 1_000, columns=["id"])
    assert sorted(report.rows["id"].to_pylist())[:100] == list(range(200, 300))
    head = table.metadata.current_snapshot_id or 0
    made = materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, head)
    assert made.rows == 650
    assert answer_with_recall(table.refresh())[1] >= 0.96


@pytest.mark.parametrize("rows", [60, 100, 160])
def test_in_format_v1_a_file_that_was_added_again_is_another_file(
    table_factory: TableFactory, export: Path, rows: int
) -> None:
    """Manifests of v1 have no sequence numbers; they name the commit that added a file."""
    table = table_factory(**{"format-version": "1"})
    for first in range(1_000, 12_000, 1_000):
        table.append(make_rows(first, first + 50))
    pq.write_table(make_rows(0, 100), export)
    table.add_files([str(export)])
    index_head(table)
    table.refresh().delete(LessThan("id", 1_000))
    pq.write_table(make_rows(100, 100 + rows, seed=5), export)
    table.refresh().add_files([str(export)])
    assert_right(table.refresh())
    assert index_head(table).rows == 550 + rows
    assert_right(table.refresh())


@pytest.mark.parametrize("upgraded", [False, True])
def test_in_format_v1_a_file_is_another_one_where_the_commit_that_added_it_has_expired(
    table_factory: TableFactory, export: Path, upgraded: bool
) -> None:
    """Nothing but the manifests of the index snapshot tells then which of the two it is. An upgrade of the table takes
    the times away, too.
    """
    table = table_factory(**{"format-version": "1"})
    for first in range(1_000, 12_000, 1_000):
        table.append(make_rows(first, first + 50))
    pq.write_table(make_rows(0, 100), export)
    table.add_files([str(export)])
    index_head(table)
    table.refresh().delete(LessThan("id", 1_000))
    pq.write_table(make_rows(100, 200, seed=5), export)
    table.refresh().add_files([str(export)])
    old = [item.snapshot_id for item in data_snapshots(table.refresh())]
    if upgraded:
        with table.transaction() as change:
            change.upgrade_table_version(2)
    table.append(make_rows(12_000, 12_050))
    table.refresh().maintenance.expire_snapshots().by_ids(old).commit()
    assert_right(table.refresh())
    report = index_head(table)
    assert (report.action, report.rows, report.inserted + report.remapped) == (Action.REFRESHED, 700, 150)
    assert_right(table.refresh())


@pytest.mark.parametrize("nulls", [0, 90])
@pytest.mark.parametrize("deleted", [0, 80])
@pytest.mark.parametrize("later", [False, True])
def test_files_that_a_mended_name_mapping_gives_vectors_are_indexed(
    table_factory: TableFactory, export: Path, later: bool, deleted: int, nulls: int
) -> None:
    """By the mapping that the index was built under, the imported file has no vectors."""
    table, key = table_factory(), "schema.name-mapping.default"
    for first in range(1_000, 6_000, 1_000):
        table.append(make_rows(first, first + 50))
    rows, column = make_rows(100 - nulls, 200, seed=5), ROWS.field("embedding")
    vectors = pa.concat_arrays([pa.nulls(nulls, column.type), rows["embedding"].combine_chunks()[nulls:]])
    pq.write_table(rows.set_column(3, column, vectors), export)
    table.add_files([str(export)])
    if deleted:
        (path,) = (file.path for file in live_files(table, newest(table)).files if "night" in file.path)
        append_position_deletes(table, {path: np.arange(nulls + 20, nulls + 20 + deleted)})
    right = table.refresh().properties[key]
    with table.transaction() as change:
        change.set_properties({key: right.replace('"embedding"', '"vector"')})
    assert index_head(table.refresh()).rows == 250
    with table.transaction() as change:
        change.set_properties({key: right})
    if later:
        table.refresh().append(make_rows(9_000, 9_050))
    assert_right(table.refresh())
    assert open_index(table, DEFINITION, storage=STORAGE).coverage is Coverage.NEAREST_VERSION_AND_TAIL
    report = index_head(table.refresh())
    assert (report.action, report.rows) == (Action.REFRESHED, (400 if later else 350) - deleted)
    assert_right(table.refresh())
    assert index_head(table).action is Action.REUSED


def add_without_mapping(table: Table, path: Path) -> None:
    """Add 100 rows of a file without field ids, and leave the table's name mapping alone."""
    data_file = DataFile.from_args(
        content=DataFileContent.DATA, file_format=FileFormat.PARQUET, file_path=str(path), partition=Record(),
        file_size_in_bytes=path.stat().st_size, record_count=100, spec_id=0,
        column_sizes={}, value_counts={}, null_value_counts={}, nan_value_counts={}, lower_bounds={}, upper_bounds={},
    )  # fmt: skip
    with table.refresh().transaction() as change, change.update_snapshot().fast_append() as appended:
        appended.append_data_file(data_file)


@pytest.mark.parametrize("later", [False, True])
def test_files_in_which_the_name_mapping_finds_another_column_now_are_read_again(
    table_factory: TableFactory, export: Path, *, later: bool
) -> None:
    """The imported file has two columns of vectors. A change of the mapping makes no snapshot."""
    table, key = table_factory(), "schema.name-mapping.default"
    for first in range(1_000, 6_000, 1_000):
        table.append(make_rows(first, first + 50))
    rows, vectors = make_rows(100, 200), make_rows(100, 200, seed=5)["embedding"]
    with table.update_schema() as evolution:
        evolution.add_column("other", ListType(20, FloatType()))
    original = create_mapping_from_schema(table.schema()).model_dump_json()
    with table.transaction() as change:
        change.set_properties({key: original.replace('"embedding"', '"old"').replace('"other"', '"new"')})
    pq.write_table(rows.rename_columns(["id", "name", "section", "old"]).append_column("new", vectors), export)
    add_without_mapping(table, export)
    assert index_head(table.refresh()).rows == 350
    with table.transaction() as change:
        change.set_properties({key: original.replace('"embedding"', '"new"').replace('"other"', '"old"')})
    if later:
        table.refresh().append(make_rows(9_000, 9_050))
    assert_right(table.refresh())
    assert open_index(table, DEFINITION, storage=STORAGE).coverage is Coverage.NEAREST_VERSION_AND_TAIL
    report = index_head(table.refresh())
    assert (report.action, report.rows) == (Action.REFRESHED, 400 if later else 350)
    assert_right(table.refresh())
    assert open_index(table, DEFINITION, storage=STORAGE).coverage is Coverage.EXACT_VERSION
    assert index_head(table).action is Action.REUSED


def test_a_name_mapping_that_finds_vectors_of_other_dimensions_has_the_index_built_anew(
    table_factory: TableFactory, export: Path
) -> None:
    """None of the rows has stayed, though all files have."""
    table, key, second = table_factory(), "schema.name-mapping.default", vectors_of(np.arange(100), seed=5, dims=24)
    with table.update_schema() as evolution:
        evolution.add_column("other", ListType(20, FloatType()))
    original = create_mapping_from_schema(table.schema()).model_dump_json()
    with table.transaction() as change:
        change.set_properties({key: original.replace('"embedding"', '"old"').replace('"other"', '"new"')})
    rows = make_rows(0, 100).rename_columns(["id", "name", "section", "old"])
    pq.write_table(rows.append_column("new", pa.array(second.tolist(), pa.list_(pa.float32()))), export)
    add_without_mapping(table, export)
    assert index_head(table.refresh()).rows == 100
    with table.transaction() as change:
        change.set_properties({key: original.replace('"embedding"', '"new"').replace('"other"', '"old"')})
    report = index_head(table.refresh())
    assert (report.action, report.rows) == (Action.BUILT, 100)
    assert "shares only 0% of the rows" in report.reason
    answer = open_index(table.refresh(), DEFINITION, storage=STORAGE).search(second[:5], 1, columns=["id"])
    assert answer.rows["id"].to_pylist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("followed", [False, True])
def test_files_that_a_name_mapping_takes_vectors_from_are_not_answered_from_the_index(
    table_factory: TableFactory, export: Path, *, followed: bool
) -> None:
    """The table had no mapping as the index was built. A change of the mapping makes no snapshot."""
    table = table_factory()
    for first in range(1_000, 6_000, 1_000):
        table.append(make_rows(first, first + 50))
    pq.write_table(make_rows(100, 200), export)
    add_without_mapping(table, export)
    assert index_head(table.refresh()).rows == 350
    other = create_mapping_from_schema(table.schema()).model_dump_json().replace('"embedding"', '"other"')
    reader = open_index(table, DEFINITION, storage=STORAGE)
    with table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": other})
    with reader.follow(interval=1e6) as following:
        assert following.update()
        reader = following.reader if followed else open_index(table.refresh(), DEFINITION, storage=STORAGE)
    assert min(reader.search(queries(1), 1_000, columns=["id"]).rows["id"].to_pylist()) == 1_000
    assert index_head(table).rows == 250


def test_files_without_ids_and_mapping_lose_a_column_that_is_renamed(table_factory: TableFactory, export: Path) -> None:
    """They are read by the schema's names: of today at the head, of then in an older snapshot."""
    table = table_factory()
    for first in range(1_000, 6_000, 1_000):
        table.append(make_rows(first, first + 50))
    pq.write_table(make_rows(100, 200), export)
    add_without_mapping(table, export)
    definition = create_index(table, DEFINITION)
    assert index_head(table.refresh(), definition).rows == 350
    before = newest(table)
    with table.update_schema() as evolution:
        evolution.rename_column("embedding", "vector")

    def first_ids(column: str, snapshot: int | None = None) -> list[int]:
        """The least id that the index has, and that a scan finds."""
        indexed = open_index(table.refresh(), "e", snapshot=snapshot, storage=STORAGE)
        exact = open_exact(table, column, DEFINITION.metric, snapshot=snapshot, storage=STORAGE)
        answers = (reader.search(queries(1), 1_000, columns=["id"]) for reader in (indexed, exact))
        return [min(answer.rows["id"].to_pylist()) for answer in answers]

    assert first_ids("vector") == [1_000, 1_000]
    assert first_ids("embedding", before) == [100, 100]
    table.append(make_rows(9_000, 9_050).rename_columns(["id", "name", "section", "vector"]))
    assert first_ids("vector") == [1_000, 1_000]
    assert index_head(table, definition).rows == 300
    assert first_ids("vector") == [1_000, 1_000]
    assert open_index(table, "e", storage=STORAGE).coverage is Coverage.EXACT_VERSION


def test_a_reader_that_follows_takes_up_another_location_of_the_table(table: Table, tmp_path: Path) -> None:
    """Relative paths of a version are under the location of its table."""
    with open_index(table, DEFINITION, storage=STORAGE).follow(interval=1e6) as following:
        assert not following.update()
        change = SetLocationUpdate(location=f"file://{tmp_path}/elsewhere")
        table.catalog.commit_table(table, (), (change,))
        assert following.update()


def test_a_rename_that_adds_a_name_to_the_mapping_leaves_the_version_as_it_is(
    table_factory: TableFactory, export: Path
) -> None:
    table = table_factory()
    pq.write_table(make_rows(100, 200, seed=5), export)
    table.add_files([str(export)])
    create_index(table, DEFINITION)
    index_head(table, load_definition(table.refresh(), "e"))
    with table.refresh().update_schema() as change:
        change.rename_column("embedding", "vector")
    reader = open_index(table.refresh(), "e", storage=STORAGE)
    assert reader.coverage is Coverage.EXACT_VERSION
    vectors = make_rows(100, 110, seed=5)["embedding"].to_pylist()
    assert reader.search(vectors, 1, columns=["id"]).rows["id"].to_pylist() == list(range(100, 110))


def test_a_file_of_which_every_row_is_deleted_is_not_indexed_again(table_factory: TableFactory, export: Path) -> None:
    table = table_factory()
    table.append(make_rows(1_000, 1_050))
    pq.write_table(make_rows(100, 200, seed=5), export)
    table.add_files([str(export)])
    (path,) = (file.path for file in live_files(table, newest(table)).files if "night" in file.path)
    append_position_deletes(table, {path: np.arange(100)})
    assert index_head(table).rows == 50
    assert open_index(table.refresh(), DEFINITION, storage=STORAGE).coverage is Coverage.EXACT_VERSION
    assert index_head(table).action is Action.REUSED


def test_in_format_v1_the_newest_version_is_the_nearest(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without sequence numbers nothing else tells which of more versions than are opened shares most rows."""
    monkeypatch.setattr(version_plan, "MAX_BASES", 1)
    table = table_factory(**{"format-version": "1"})
    for first in (0, 100, 200):
        table.append(make_rows(first, first + 100))
        report = index_head(table)
    table.refresh().append(make_rows(300, 310))
    version = open_index(table.refresh(), DEFINITION, storage=STORAGE).version
    assert version is not None
    assert version.base_snapshot_id == report.snapshot_id
