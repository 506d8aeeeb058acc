"""A table whose index has a layout that was given up: refused by readers, built anew by the next refresh."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions, sketch_versions, tagged_version
from icepuffin.ops.index.definitions.ddl import drop_index
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy
from icepuffin.ops.index.planning.version_plan import plan_version
from icepuffin.ops.index.verify.integrity import check_integrity, remedy
from icepuffin.ops.index.versions import version_format
from icepuffin.ops.index.versions.version_format import FORMAT_VERSION, build_id_of, given_up, seed_of
from icepuffin.ops.model import Action
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.search.errors import IndexUnavailableError
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.result import Coverage, StalePolicy
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.puffin.blobs import (
    addresses_blob,
    attributes_blob,
    centroid_blob,
    included_columns_blob,
    routing_blob,
    shard_header,
)
from tests.conformance.golden_files import GOLDEN, golden_table
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head
from tests.repeatable import lying_in

_UNRELEASED = GOLDEN.parent / "unreleased"
"""Table `before` as the wheel of commit 62dca91c made it, with `PACK_BYTES` 1: the rows and the index of these tests;
both snapshots have theta sketches and a version
"""


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    """Two snapshots with versions of the layout before, which share a pack; their build ids name no format."""
    shutil.copytree(_UNRELEASED, tmp_path, dirs_exist_ok=True)
    with lying_in(tmp_path):
        yield golden_table(tmp_path, "before", tmp_path)


def test_search_and_sql_are_refused_with_the_command_that_mends_the_index(table: Table) -> None:
    for stale in StalePolicy:
        with pytest.raises(IndexUnavailableError, match=r"without a format.*: its layout was given up.*refresh"):
            open_index(table, DEFINITION, storage=STORAGE, stale=stale)
    vector = ", ".join(f"{value:.6f}" for value in queries(1)[0])
    command = f"icepuffin refresh db.before --index e --snapshot {table.metadata.current_snapshot_id}"
    with pytest.raises(IndexUnavailableError, match=f"{command}$"):
        SqlSession.on(table.catalog, storage=STORAGE).sql(
            f"SELECT id, l2_distance(embedding, ARRAY({vector})) AS d FROM db.before ORDER BY d LIMIT 5"
        )
    table.append(make_rows(210, 220))
    with pytest.raises(IndexUnavailableError, match="its layout was given up"):
        open_index(table, DEFINITION, storage=STORAGE)  # whose versions are all of other snapshots


@pytest.mark.parametrize("appended", [0, 10])
def test_the_next_refresh_builds_anew_and_says_why(table: Table, appended: int) -> None:
    if appended:
        table.append(make_rows(210, 210 + appended))
    report = index_head(table)
    assert report.action is Action.BUILT
    assert "version without a format in its build id: its layout was given up" in report.reason
    found, recall = answer_with_recall(table)
    assert (found.coverage, found.warnings, recall >= 0.96) == (Coverage.EXACT_VERSION, (), True)
    assert index_head(table).action is Action.REUSED
    table.append(make_rows(300, 310))
    assert index_head(table).action is Action.REFRESHED


def test_a_run_takes_nothing_that_was_staged_for_another_layout(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    head = table.metadata.current_snapshot_id or 0
    now = plan_version(RunContext(table, STORAGE), DEFINITION, head).build_id
    assert plan_version(RunContext(table, STORAGE), DEFINITION, head).build_id == now
    monkeypatch.setattr(version_format, "FORMAT_VERSION", version_format.FORMAT_VERSION - 1)
    assert plan_version(RunContext(table, STORAGE), DEFINITION, head).build_id != now


def test_the_check_of_integrity_names_the_refresh(table: Table) -> None:
    version = tagged_version(table, "e") or pytest.fail("gone")
    checked = check_integrity(RunContext(table, STORAGE), version)
    assert "its layout was given up" in checked.faults[0]
    assert "icepuffin refresh db.before --index e" in remedy("db.before", "e", version, checked)


@pytest.mark.parametrize("built_anew", [False, True])
def test_nothing_of_it_stays_once_the_index_is_dropped(table: Table, built_anew: bool) -> None:
    if built_anew:
        index_head(table)
    drop_index(table.refresh(), "e")
    collect_table_garbage(
        table.refresh(), storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=0, dry_run=False
    )
    table.refresh()
    assert set(table.metadata.refs) == {"main", "theta_sketches"}
    named = {*data_snapshot_ids(table), *(version.index_snapshot_id for version in sketch_versions(table))}
    assert {snapshot.snapshot_id for snapshot in table.metadata.snapshots} == named
    folder = f"{table.location()}/metadata"
    assert not [item.path for item in open_storage(folder, STORAGE).list(folder) if "ann-e" in item.path]
    assert table.scan().to_arrow().num_rows == 210


def test_distinct_values_are_counted_again(table: Table) -> None:
    assert not any(entry.fresh for entry in read_ndv(table).entries.values())
    head = table.metadata.current_snapshot_id or 0
    report = count_theta_sketches(
        RunContext(table, STORAGE), head, requested=RequestedStatistics(ndv=("id", "section"))
    ).publish()
    assert (report.files_sketched, report.files_reused) == (2, 0)
    counted = read_ndv(table.refresh()).entries
    assert [(counted[name].ndv, counted[name].fresh) for name in ("id", "section")] == [(210, True), (5, True)]


def test_snapshots_of_the_layout_before_count_as_ours(table: Table) -> None:
    assert len(data_snapshot_ids(table)) == 2
    assert len(index_versions(table, "e")) == len(sketch_versions(table)) == 2


def data_snapshot_ids(table: Table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in data_snapshots(table)]


@pytest.mark.parametrize("build_id", ["f791284f" * 8, "1-ab", "2-ab", "", "-ab", "-3-ab", "x-ab", "٣-ab", "9" * 64])
def test_a_build_id_tells_whether_the_layout_was_given_up(build_id: str) -> None:
    assert "its layout was given up, this release reads 3" in given_up(build_id)
    assert given_up(build_id_of({"a": 1})) == given_up(f"{FORMAT_VERSION + 1}-ab") == "", "nor that of a later release"


def test_build_ids_of_one_identity_differ_by_the_format_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = build_id_of({"a": 1})
    assert build_id_of({"a": 1}) == now != build_id_of({"a": 2})
    assert 0 <= seed_of(now) < 2**128
    monkeypatch.setattr(version_format, "FORMAT_VERSION", FORMAT_VERSION + 1)
    assert build_id_of({"a": 1}).partition("-")[2] != now.partition("-")[2]
    assert given_up(now) == "version of format 3: its layout was given up, this release reads 4"


def test_the_format_is_raised_with_the_version_of_any_blob() -> None:
    """By the format alone a table's metadata tells that a version cannot be read."""
    blobs = (routing_blob, shard_header, centroid_blob, addresses_blob, attributes_blob, included_columns_blob)
    assert (FORMAT_VERSION, [blob.VERSION for blob in blobs]) == (3, [6, 5, 1, 1, 1, 1])
