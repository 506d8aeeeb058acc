"""Which versions an index has that was dropped, and made anew otherwise under its name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Summary

import icepuffin
from icepuffin.assets.newest_snapshots import newest_snapshots
from icepuffin.assets.spec import TableSpec
from icepuffin.assets.table_settings import StatisticsSettings, TableSettings
from icepuffin.ops.binding.bindings import publish
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.planning.current_versions import find_field_id, versions_of
from icepuffin.ops.index.upkeep.freshness import index_lag
from icepuffin.ops.model import Action
from icepuffin.ops.resources import Engine
from icepuffin.ops.runs.requirements import run_requirements
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.snapshots import data_snapshots
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.bindings import binding
from tests.orchestration.lake import make_lake

DIMS = 16
ROWS = 40
BEFORE = {"column": "a", "metric": "l2", "target_recall": 0.5}
OTHERWISE = [
    pytest.param({"column": "b"}, id="another column"),
    pytest.param({"metric": "cosine"}, id="another metric"),
    pytest.param({"column": "bytes", "element_type": "i8"}, id="bytes"),
    pytest.param({"method": "centroid"}, id="no graphs"),
]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two snapshots, and an index on the column `a` with a version of each that was dropped since."""
    random = np.random.default_rng(7)
    vector = pa.list_(pa.float32())
    schema = pa.schema([("id", pa.int64()), ("a", vector), ("b", vector), ("bytes", pa.binary())])
    table = make_lake(tmp_path, snapshots=0).catalog.create_table("demo.two", schema)
    for number in range(2):
        a, b = (random.standard_normal((ROWS, DIMS)).astype(np.float32) for _ in range(2))
        octets = [row.tobytes() for row in random.integers(-9, 9, (ROWS, DIMS), np.int8)]
        ids = np.arange(ROWS) + ROWS * number
        table.append(pa.table({"id": ids, "a": a.tolist(), "b": b.tolist(), "bytes": octets}, schema=schema))
        if not number:
            icepuffin.create_index(table, IndexDefinition(name="e", **BEFORE))
        icepuffin.refresh(table, "e")
    icepuffin.drop_index(table, "e")
    return table


def matrix(table: Table, snapshot_id: int, column: str) -> np.ndarray:
    rows = table.scan(snapshot_id=snapshot_id).to_arrow().sort_by("id")[column].to_pylist()
    return np.array([np.frombuffer(row, np.int8) if isinstance(row, bytes) else row for row in rows], np.float32)


def nearest(vectors: np.ndarray, query: np.ndarray, metric: str) -> list[int]:
    if metric == "cosine":
        vectors, query = vectors / np.linalg.norm(vectors, axis=1, keepdims=True), query / np.linalg.norm(query)
    return [int(row) for row in np.argsort(((vectors - query) ** 2).sum(axis=1))[:5]]


@pytest.mark.parametrize("changes", OTHERWISE)
def test_versions_of_before_are_no_versions_of_an_index_that_is_made_otherwise(
    table: Table, changes: dict[str, Any]
) -> None:
    definition = icepuffin.create_index(table, IndexDefinition(name="e", **BEFORE | changes))
    first, second = (snapshot.snapshot_id for snapshot in data_snapshots(table))
    spec = TableSpec(
        TableSettings(catalog="demo", name="demo.two", statistics=StatisticsSettings(ndv="off")), (definition,)
    )
    assert len(index_versions(table, "e")) == 2
    assert versions_of(table, definition) == ()
    assert index_lag(table, definition, "main").snapshots == 2
    assert [entry.missing for entry in newest_snapshots(table, spec)] == [("e",), ("e",)]

    report = icepuffin.refresh(table, "e", snapshot=first)
    assert report.indexes["e"].action is Action.BUILT
    for read_when in (definition, IndexDefinition(name="e", **BEFORE)):
        assert [version.base_snapshot_id for version in versions_of(table, read_when)] == [first]
    assert [entry.missing for entry in newest_snapshots(table, spec)] == [("e",), ()]
    for snapshot in (first, second):
        vectors = matrix(table, snapshot, definition.column)
        query = vectors[3] + vectors[5]
        result = icepuffin.open_index(table, "e", snapshot=snapshot).search(query, k=5, search_list=2 * ROWS)
        assert [row["id"] for row in result] == nearest(vectors, query, definition.metric)


@pytest.mark.parametrize("changes", OTHERWISE)
def test_a_damaged_version_of_before_is_no_reason_for_a_build(table: Table, changes: dict[str, Any]) -> None:
    """Its file was named as that of a version of the index."""
    for version in index_versions(table, "e"):
        open_storage(version.puffin_path, STORAGE).delete(version.puffin_path)
    icepuffin.create_index(table, IndexDefinition(name="e", **BEFORE | changes))
    report = icepuffin.refresh(table, "e").indexes["e"]
    assert (report.action, report.reason) == (Action.BUILT, "the definition has changed since the versions there are")


def test_an_index_that_is_made_again_as_it_was_has_the_versions_of_before(table: Table) -> None:
    definition = icepuffin.create_index(table, IndexDefinition(name="e", **BEFORE))
    assert versions_of(table, definition) == index_versions(table, "e")
    assert icepuffin.refresh(table, "e").indexes["e"].action is not Action.BUILT


def test_the_memory_of_a_build_does_not_go_by_the_dimensions_of_another_column(table: Table) -> None:
    counts = {"total-records": "1000000", "total-files-size": "900000000"}
    snapshots = []
    for snapshot in table.refresh().metadata.snapshots:
        assert snapshot.summary is not None
        summary = Summary(snapshot.summary.operation, **snapshot.summary.additional_properties | counts)
        snapshots.append(snapshot.model_copy(update={"summary": summary}))
    table.metadata = table.metadata.model_copy(update={"snapshots": snapshots})
    engine = Engine(spark_conf={}, threads=2, driver_only_rows=0)

    def memory_mb(name: str) -> int:
        definition = IndexDefinition(name=name, **BEFORE | {"column": "b"})
        return run_requirements(table, [definition], data_snapshots(table)[-1].snapshot_id, engine=engine).memory_mb

    assert memory_mb("e") == memory_mb("a_new_name")


def test_an_old_snapshot_is_searched_and_refreshed_by_the_one_version_that_fits(table: Table) -> None:
    """Of the versions nearest to it 16 are considered, which were all of the index that was dropped."""
    schema = table.schema().as_arrow()
    definition = icepuffin.create_index(table, IndexDefinition(name="e", **BEFORE))
    for number in range(2 * ROWS, 2 * ROWS + 18):
        rows = table.scan("id < 1").to_arrow().set_column(0, "id", [[number]])
        table.append(rows.cast(schema))
        icepuffin.refresh(table, "e")
    icepuffin.drop_index(table, "e")
    definition = icepuffin.create_index(table, IndexDefinition(name="e", **BEFORE | {"column": "b"}))
    icepuffin.refresh(table, "e")
    (version,) = versions_of(table, definition)
    _, second, *_ = (snapshot.snapshot_id for snapshot in data_snapshots(table))
    query = matrix(table, second, "b")[3]
    assert (
        icepuffin.open_index(table, "e", snapshot=second).search(query, k=1).base_snapshot_id
        == version.base_snapshot_id
    )
    assert icepuffin.refresh(table, "e", snapshot=second).indexes["e"].action is Action.REFRESHED


def test_a_definition_of_the_tables_that_is_broken_hides_no_version(table_factory: Callable[..., Table]) -> None:
    made = table_factory()
    made.append(make_rows(0, 10))
    versions = (publish(made, replace(binding(made), distances="4 l2 column diskann")),)
    definition = IndexDefinition(name="e", column="embedding", metric="l2")
    assert versions_of(made, definition) == versions
    assert versions_of(made, replace(definition, metric="cosine")) == ()
    broken = {"ann.index.e.column": "embedding", "ann.index.e.metric": "none such"}
    made.transaction().set_properties(broken).commit_transaction()
    assert versions_of(made.refresh(), definition) == versions


def test_the_field_of_the_tables_own_definition_is_that_of_its_own_column(table_factory: Callable[..., Table]) -> None:
    made = table_factory()
    embedding = made.schema().find_field("embedding").field_id
    for column, field_id in (("embedding", 7), ("other", embedding)):
        own = IndexDefinition(name="e", column=column, field_id=7)
        made.transaction().set_properties(own.to_properties()).commit_transaction()
        assert find_field_id(made.refresh(), IndexDefinition(name="e", column="embedding")) == field_id


def test_a_definition_without_a_field_is_not_changed_to_another_column(catalog: Catalog) -> None:
    """Somebody wrote its property by hand."""
    vector = pa.list_(pa.float32())
    table = catalog.create_table("db.two", pa.schema([("a", vector), ("b", vector)]))
    table.transaction().set_properties({"ann.index.e.column": "a"}).commit_transaction()
    with pytest.raises(DefinitionError, match="has an index 'e' already, with field_id None; drop it"):
        icepuffin.create_index(table, name="e", column="b", replace=True)
    assert icepuffin.create_index(table, name="e", column="a").field_id == 1
