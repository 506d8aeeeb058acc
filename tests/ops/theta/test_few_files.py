"""Few small files that were added are no reason for another version of the file sketches."""

from pathlib import Path

import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import sketch_versions
from icepuffin.ops.table.blob_kind import SKETCHES_TAG, BlobKind, pack_tag
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta import sketch_packs
from icepuffin.ops.theta.sketch_packs import FEW_FILES, FEW_VALUES, are_few
from icepuffin.ops.theta.theta_estimate import estimate_theta_sketches
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaReport
from tests.ops.theta.conftest import STORAGE, ThreadlessRunner, append, current, named
from tests.repository import REPOSITORY


def count(table: Table, runner: ThreadlessRunner) -> ThetaReport:
    runner.tasks.clear()
    snapshot_id = current(table)
    estimate = estimate_theta_sketches(RunContext(table, STORAGE, runner), snapshot_id)
    report = count_theta_sketches(RunContext(table, STORAGE, runner), snapshot_id).publish()
    assert report.estimate is not None
    assert (estimate.files_sketched, estimate.values) == (report.files_sketched, report.estimate.values)
    return report


def grown(table: Table, runner: ThreadlessRunner, files: int) -> list[ThetaReport]:
    """Reports on a table of one file, and on each of so many that came then."""
    reports = []
    for number in range(files + 1):
        append(table, 10 * number, 10 * number + 10)
        reports.append(count(table, runner))
        assert reports[-1].ndv["id"] == 10 * number + 10
    return reports


def bases(table: Table) -> list[int]:
    return [version.base_snapshot_id for version in sketch_versions(table.refresh())]


def test_what_is_few_is_what_the_documents_say() -> None:
    described = (REPOSITORY / "docs" / "concepts.md").read_text()
    assert "up to 8 data files with 1,048,576 values" in described
    assert (FEW_FILES, FEW_VALUES) == (8, 1_048_576)
    assert are_few([FEW_VALUES // 8] * 8)
    assert not are_few([0] * 9)
    assert not are_few([FEW_VALUES, 1])


def test_few_files_that_came_bind_no_version_and_are_read_again_by_the_one_that_is_bound(
    table: Table, runner: ThreadlessRunner
) -> None:
    reports = grown(table, runner, FEW_FILES)
    first = table.metadata.snapshots[0].snapshot_id
    assert bases(table) == [first]
    assert [report.files_sketched for report in reports] == [1] * (FEW_FILES + 1)
    assert {report.file_sketches_path for report in reports[1:]} == {None}

    append(table, 1_000, 1_010)
    report = count(table, runner)
    assert (report.files_sketched, report.files_reused) == (FEW_FILES + 1, 1)
    assert report.ndv["id"] == 10 * FEW_FILES + 20
    assert bases(table) == [first, current(table)]
    table.delete("id >= 1000")
    report = count(table.refresh(), runner)
    assert (report.files_sketched, report.files_reused) == (0, FEW_FILES + 1), "all others are kept"


def test_many_values_are_kept_at_once(table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    values = 10 * len(grown(table, runner, 1)[-1].ndv)
    monkeypatch.setattr(sketch_packs, "FEW_VALUES", 3 * values - 1)
    for number, read in ((2, 1), (3, 3)):
        append(table, 100 * number, 100 * number + 10)
        assert count(table, runner).files_sketched == read
    assert len(bases(table)) == 2


def test_where_rows_went_or_the_version_is_not_whole_another_one_is_bound(
    table: Table, runner: ThreadlessRunner
) -> None:
    grown(table, runner, 1)
    table.refresh().delete("id < 10")
    append(table, 100, 110)
    report = count(table, runner)
    assert (report.files_sketched, report.ndv["id"]) == (2, 20), "an ancestor's sketch does not serve any more"
    assert len(bases(table)) == 2, "the first one would keep a data file alive that the table has left"

    append(table, 110, 120)
    report = count(table, runner)
    assert report.file_sketches_path is None
    assert report.bytes_written == Path((report.statistics_path or "").removeprefix("file://")).stat().st_size
    bindings.drop(table.refresh(), SKETCHES_TAG)
    append(table, 120, 130)
    assert count(table, runner).file_sketches_path is not None
    assert len(bases(table)) == 3


def test_columns_that_were_chosen_since_are_remembered_by_another_version(
    table: Table, runner: ThreadlessRunner
) -> None:
    grown(table, runner, 0)
    append(table, 10, 20)
    run = RunContext(table, STORAGE, runner)
    count_theta_sketches(run, current(table), requested=named(["id", "weight"])).publish()
    (_, second) = sketch_versions(table.refresh())
    assert second.fields == {table.schema().find_field(name).field_id for name in ("id", "weight")}


def test_the_budget_counts_what_the_version_before_keeps_of_a_file_too(table: Table, runner: ThreadlessRunner) -> None:
    append(table, 0, 300)
    count(table, runner)
    append(table, 300, 310)
    report = count_theta_sketches(
        RunContext(table, STORAGE, runner), current(table), requested=named(["id", "weight"]), budget_bytes=4_000
    ).publish()
    assert report.note == "the sketches of 1 file are over the budget of 4,000 bytes"


def test_a_pack_whose_tag_was_dropped_gets_it_back_from_another_version(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch_packs, "PACK_BYTES", 1)
    grown(table, runner, 1)
    ((pack,),) = [version.packs for version in sketch_versions(table.refresh())]
    bindings.drop(table, pack_tag(BlobKind.SKETCHES, pack.holder_id))
    append(table, 20, 30)
    count(table, runner)
    assert len(bases(table)) == 2
    assert all(pack.is_kept for pack in sketch_versions(table.refresh())[-1].packs)


def test_files_over_the_budget_are_not_read_again(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch_packs, "FEW_FILES", 1)
    for number in range(4):
        append(table, 10 * number, 10 * number + 10)
    count_theta_sketches(RunContext(table, STORAGE, runner), current(table), budget_bytes=1_000).publish()
    append(table, 100, 110)
    assert count(table, runner).files_sketched == 1
    assert len(bases(table)) == 2
