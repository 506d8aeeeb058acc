"""A table whose location is set anew: files stay where they are, and new ones come elsewhere under the same names."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.table.update import SetLocationUpdate

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.index.planning.index_report import Action
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.storage import path_mover
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaReport
from icepuffin.puffin import PuffinWriter
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import answer_with_recall, index_head

FIRST, SAME_NAME, OTHERS = range(300), range(5_000, 5_300), range(900, 1_300)


def add(table: Table, path: str, rows: range) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(make_rows(rows.start, rows.stop), path)
    table.add_files([f"file://{path}"])


def set_location(table: Table, location: str) -> None:
    with table.transaction() as change:
        change._apply((SetLocationUpdate(location=location),), ())


def sketch_head(table: Table) -> ThetaReport:
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    return count_theta_sketches(RunContext(table, STORAGE, LocalRunner()), head).publish()


@pytest.fixture
def moved(table_factory: Callable[..., Table], tmp_path: Path) -> Table:
    """An indexed table with a file of one relative path under its first location, and one under its location of now."""
    table = table_factory()
    first = table.location().removeprefix("file://")
    add(table, f"{tmp_path}/elsewhere/others.parquet", OTHERS)
    add(table, f"{first}/data/part.parquet", FIRST)
    add(table, f"{tmp_path}/second/data/part.parquet", SAME_NAME)
    index_head(table)
    sketch_head(table)
    set_location(table, f"file://{tmp_path}/second")
    return table


def test_answers_before_a_refresh_are_of_the_rows_that_the_version_was_made_for(moved: Table) -> None:
    result, recall = answer_with_recall(moved)
    assert recall > 0.9
    assert result.coverage is Coverage.EXACT_VERSION
    moved.append(make_rows(1_300, 1_320))
    result, recall = answer_with_recall(moved)
    assert recall > 0.9
    assert result.coverage is Coverage.NEAREST_VERSION_AND_TAIL


def test_a_refresh_takes_over_the_files_of_both_locations_and_counts_each(moved: Table) -> None:
    moved.append(make_rows(1_300, 1_320))
    report = index_head(moved)
    assert report.action is Action.REFRESHED
    assert answer_with_recall(moved)[1] > 0.9
    sketches = sketch_head(moved)
    assert (sketches.files_sketched, sketches.ndv["id"]) == (1, 1_020)
    (version,) = (each for each in index_versions(moved.refresh(), "e") if each.tags)
    assert check_integrity(RunContext(moved, STORAGE), version).faults == ()


def test_garbage_collection_deletes_nothing_under_the_first_location(moved: Table, tmp_path: Path) -> None:
    """Another table may be there by now, or a copy of this one."""
    first = Path(f"{tmp_path}/warehouse/db/t/metadata")
    before = {*first.iterdir()}
    moved.append(make_rows(1_300, 1_320))
    index_head(moved)
    sketch_head(moved)
    moved.refresh()
    newest = RetentionPolicy(RetentionScope.NEWEST)
    collect_table_garbage(moved, storage=STORAGE, retentions={}, default=newest, grace_hours=0)
    assert {*first.iterdir()} >= before
    assert answer_with_recall(moved)[1] > 0.9


def test_a_table_that_was_moved_with_its_files_keeps_its_version(tmp_path: Path) -> None:
    """As Iceberg's `rewrite_table_path` moves one: the statistics entry names the file at its new place."""
    file, here = f"file://{tmp_path}/moved/metadata/ann-e-snap-1.puffin", f"file:{tmp_path}/moved/"
    assert path_mover(file, here)("data/part.parquet") == "data/part.parquet"
    assert (
        path_mover("s3a://b/then/_icepuffin/x.puffin", "s3://b/now")("data/p.parquet") == "s3://b/then/data/p.parquet"
    )
    assert path_mover("s3a://b/then/metadata/x.puffin", "s3://b/now")("s3://b/now/data/p.parquet") == "data/p.parquet"
    assert path_mover("s3://b/t//metadata/x.puffin", "s3://b/t/")("data/p.parquet") == "data/p.parquet"


@pytest.mark.parametrize(
    ("name", "goes"),
    [
        ("12-0b8a8f0e-4d5f-4a52-9a0e-2f8a7b1c9d3e.stats", True),
        (".12-0b8a8f0e-4d5f-4a52-9a0e-2f8a7b1c9d3e.stats.0123456789abcdef0123456789abcdef", True),
        ("query-0b8a8f0e-4d5f-4a52-9a0e-2f8a7b1c9d3e.stats", False),
    ],
)
def test_statistics_files_that_a_killed_run_left_go_and_those_of_others_stay(
    table_factory: Callable[..., Table], name: str, goes: bool
) -> None:
    table = table_factory()
    table.append(make_rows(0, 10))
    assert sketch_head(table).statistics_path is not None
    folder = Path(f"{table.location()}/metadata".removeprefix("file://"))
    (own,) = folder.glob("[0-9]*.stats")
    (folder / name).write_bytes(own.read_bytes())
    others = folder / "12-0b8a8f0e-4d5f-4a52-9a0e-2f8a7b1c9d3f.stats"
    with others.open("wb") as sink:
        PuffinWriter(sink).finish({"created-by": "another engine"})
    damaged = folder / "12-0b8a8f0e-4d5f-4a52-9a0e-2f8a7b1c9d30.stats"
    damaged.write_bytes(b"PFA1")
    newest = RetentionPolicy(RetentionScope.NEWEST)
    table.refresh()
    collect_table_garbage(table, storage=STORAGE, retentions={}, default=newest, grace_hours=0)
    assert (folder / name).exists() is not goes
    assert own.exists()
    assert others.exists()
    assert damaged.exists()
