"""What the demo's table is made of, what it refuses, and the recall that it shows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from rich.console import Console

from examples.demo import demo_report, demo_run, history
from examples.demo.history import DemoDataError, load_rows
from examples.demo.local_sensor import LocalRun
from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import SnapshotId
from tests.conftest import ROWS, make_rows, queries
from tests.ops.index.comparison import index_head


def test_the_rows_are_split_into_a_table_and_queries_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = pa.array([[2.0 * number, 2.0 * number + 1] for number in range(30)], pa.list_(pa.float32()))
    pq.write_table(pa.table({"id": range(30), "embedding": vectors}), tmp_path / "packages.parquet")
    monkeypatch.setattr(history, "SHIPPED", tmp_path / "packages.parquet")
    rows = load_rows(held_out=4)
    assert rows.table.num_rows == 26
    pairs = zip(rows.table["id"].to_pylist(), rows.table["embedding"].to_pylist(), strict=True)
    assert all(vector == [2 * number, 2 * number + 1] for number, vector in pairs)
    held_out = {int(first) // 2 for first, _ in rows.held_out}
    assert held_out | set(rows.table["id"].to_pylist()) == set(range(30))


def test_the_rows_of_the_first_two_appends_and_of_the_overwrite_follow_each_other() -> None:
    parts = history._split(pa.table({"id": range(40)}), (0.60, 0.35))
    assert [part["id"].to_pylist() for part in parts] == [[*range(24)], [*range(24, 38)], [38, 39]]


def test_the_recall_that_is_shown_is_the_share_of_the_nearest_rows(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 60))
    head = SnapshotId(table.metadata.current_snapshot_id or 0)
    definition = IndexDefinition(name=demo_report.INDEX, column="embedding", metric="cosine")
    index_head(table, create_index(table, definition))
    assert demo_report.recall(table.refresh(), head, queries(3)) == 1.0


def test_rows_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SHIPPED", tmp_path / "nothing")
    with pytest.raises(DemoDataError, match="nothing is missing"):
        load_rows()


def test_position_deletes_are_of_files_of_a_table_of_format_v2(
    table_factory: Callable[..., Table], sql_catalog: Catalog
) -> None:
    of_v1 = sql_catalog.create_table("db.old", ROWS, properties={"format-version": "1"})
    with pytest.raises(BindingError, match=r"db\.old: position deletes are written to v2 tables only"):
        append_position_deletes(of_v1, {})
    table = table_factory()
    with pytest.raises(BindingError, match=r"db\.t has no rows to delete"):
        append_position_deletes(table, {})
    table.append(make_rows(0, 3))
    with pytest.raises(BindingError, match=r"db\.t: no live data file a\.parquet"):
        append_position_deletes(table, {"b.parquet": np.zeros(1, np.int64), "a.parquet": np.zeros(1, np.int64)})
    assert len(table.refresh().snapshots()) == 1


def test_a_run_of_the_demo_that_fails_ends_it_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [LocalRun("1", "a", True, ""), LocalRun("2", "b", False, "the disk is full")]
    monkeypatch.setattr(demo_run, "tick", lambda *_: runs)
    with pytest.raises(demo_run.DemoError, match="the run for snapshot 2 failed: the disk is full"):
        demo_run._tick(None, None, Console(quiet=True))  # type: ignore[arg-type]
