"""What sketching will take is estimated before it, stands beside what it took, and is learned from."""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Summary
from pyiceberg.types import LongType

from icepuffin.ops.binding.bound_versions import DerivedVersion, sketch_versions
from icepuffin.ops.binding.measurements import Measurement, measured_versions
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.model import LiveFiles, SnapshotId
from icepuffin.ops.table.blob_kind import BlobKind
from icepuffin.ops.table.snapshots import find_snapshot
from icepuffin.ops.table.summaries import summary_of
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta import theta_bounds as work_bounds
from icepuffin.ops.theta import theta_estimate
from icepuffin.ops.theta.requested_statistics import KEPT_UP
from icepuffin.ops.theta.theta_bounds import parts_to_sketch
from icepuffin.ops.theta.theta_estimate import default_seconds, estimate_theta_sketches
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaEstimate, ThetaOutcome
from tests.ops.catalog.bindings import register_statistics
from tests.ops.theta import foreign
from tests.ops.theta.conftest import STORAGE, ThreadlessRunner, append, named


def estimated(table: Table, snapshot_id: int, runner: ThreadlessRunner, **options: Any) -> ThetaEstimate:
    return estimate_theta_sketches(RunContext(table, STORAGE, runner), snapshot_id, **options)


def test_an_estimate_foresees_what_is_then_done_and_changes_nothing(table: Table, runner: ThreadlessRunner) -> None:
    append(table, 0, 300)
    snapshot = append(table, 200, 900)
    before = table.refresh().metadata_location
    estimate = estimated(table, snapshot, runner)
    assert table.refresh().metadata_location == before
    assert not runner.tasks
    assert (estimate.outcome, estimate.columns, estimate.values) == (ThetaOutcome.WRITTEN, 5, 5 * 1000)
    assert (estimate.rates, estimate.seconds) == (
        "default rate, 2 threads; one that starts Spark or compiles kernels takes longer",
        0.2,
    )
    report = count_theta_sketches(RunContext(table, STORAGE, runner), snapshot).publish()
    assert report.estimate == estimate
    assert (report.files_sketched, report.files_reused) == (estimate.files_sketched, estimate.files_reused) == (2, 0)
    size = sum(file["file_size_in_bytes"] for file in table.inspect.files().to_pylist())
    assert 0 < estimate.bytes_read < size, "without the vectors"
    per_column = [24 + 8 * rows for rows in (300, 700, 1_000)]
    assert estimate.bytes_written == 5 * sum(per_column), "sketches of the files, and of the snapshot"
    assert 0 < report.bytes_written <= estimate.bytes_written + 20_000, "footers and JSON besides"
    files = [Path(str(path).removeprefix("file://")) for path in (report.statistics_path, report.file_sketches_path)]
    assert report.bytes_written == sum(file.stat().st_size for file in files)
    assert len(runner.shares) == 2, "no file is long enough to be cut"


def test_nothing_is_expected_of_columns_that_have_no_sketches(table: Table, runner: ThreadlessRunner) -> None:
    snapshot = append(table, 0, 10)
    assert estimated(table, snapshot, runner, requested=named(())) == ThetaEstimate(ThetaOutcome.NO_COLUMNS)


def test_the_next_estimate_counts_new_files_and_learns_from_what_the_last_took(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = append(table, 0, 300)
    count_theta_sketches(RunContext(table, STORAGE, runner), first).publish()
    current = estimated(table, first, runner)
    assert (current.outcome, current.columns, current.files_reused) == (ThetaOutcome.CURRENT, 5, 1)
    estimate = estimated(table, append(table, 250, 500), runner)
    assert (estimate.files_sketched, estimate.files_reused, estimate.values) == (1, 1, 5 * 250)
    assert estimate.bytes_written == 5 * (24 + 8 * 550), "a single file is no reason to keep sketches of files"
    assert estimate.rates == "measured on the last snapshot"
    ((_, measured),) = measured_versions(sketch_versions(table))
    miss = measured.seconds / default_seconds(5 * 300, runner.task_threads)
    assert estimate.seconds == round(default_seconds(5 * 250, runner.task_threads) * miss, 3)
    monkeypatch.setenv("BODO_ENABLE_THETA_SKETCHES", "0")
    off = estimated(table, first, runner)
    assert (off, off.seconds) == (ThetaEstimate(ThetaOutcome.OFF), 0)


def test_an_estimate_makes_one_table_of_the_files(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, by_path = [], LiveFiles.by_path
    monkeypatch.setattr(LiveFiles, "by_path", lambda live: tables.append(live) or by_path(live))
    for start in range(0, 500, 100):
        snapshot = append(table, start, start + 100)
    assert estimated(table, snapshot, runner).files_sketched == 5
    assert len(tables) == 1, "one per file takes an hour for 100,000 files"


def test_removed_files_are_nothing_to_read(table: Table, runner: ThreadlessRunner) -> None:
    append(table, 0, 300)
    count_theta_sketches(RunContext(table, STORAGE, runner), append(table, 1_000, 1_300)).publish()
    table.delete("id >= 1000")
    estimate = estimated(table, table.refresh().metadata.snapshots[-1].snapshot_id, runner)
    assert (estimate.outcome, estimate.files_sketched, estimate.bytes_read) == (ThetaOutcome.WRITTEN, 0, 0)


def test_a_sketch_is_of_4096_hashes_at_most(table: Table, runner: ThreadlessRunner) -> None:
    estimate = estimated(table, append(table, 0, 5_000), runner, requested=named(("id",)))
    assert estimate.bytes_written == 2 * (24 + 8 * 4_096), "of the file, and of the snapshot"


def test_a_column_that_a_file_lacks_is_nothing_to_read(table: Table, runner: ThreadlessRunner) -> None:
    append(table, 0, 300)
    with table.update_schema() as change:
        change.add_column("added", LongType())
    snapshot = append(table.refresh(), 300, 310)
    bytes_read = [estimated(table, snapshot, runner, requested=named(c)).bytes_read for c in (("id",), ("id", "added"))]
    assert bytes_read[0] == bytes_read[1] > 0


def test_the_parts_to_sketch_are_those_of_files_that_came_since(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts(snapshot_id: int) -> int:
        return parts_to_sketch(table.refresh(), find_snapshot(table, snapshot_id), KEPT_UP)

    first = append(table, 0, 300)
    assert parts(append(table, 300, 400)) == 2
    count_theta_sketches(RunContext(table, STORAGE, runner), first).publish()
    assert parts(append(table.refresh(), 400, 500)) == 2 + 1, "one more may be kept now"
    assert parts(append(table, 500, 600)) == 3 + 1
    table.delete("id < 300")
    newest = table.refresh().metadata.snapshots[-1].snapshot_id
    assert parts(newest) == 3, "all that are left"
    monkeypatch.setattr(work_bounds, "PART_ROWS", 100)
    assert parts(newest) == 3 + 300 // 100, "a long file is cut"


@pytest.mark.parametrize("key", ["added-delete-files", "removed-delete-files", "deleted-data-files"])
def test_the_parts_to_sketch_are_those_of_all_files_where_a_commit_since_has_removed_something(
    table: Table, runner: ThreadlessRunner, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are gone, or live again, are in the sketch of a file that is there."""
    monkeypatch.setattr(work_bounds, "FEW_FILES", 0)
    count_theta_sketches(RunContext(table, STORAGE, runner), append(table, 0, 300)).publish()
    newest = append(table.refresh(), 300, 400)
    assert parts_to_sketch(table.refresh(), find_snapshot(table, newest), KEPT_UP) == 1
    snapshots = [
        item.model_copy(update={"summary": Summary(item.summary.operation, **{**summary_of(item), key: "1"})})
        if item.snapshot_id == newest and item.summary is not None
        else item
        for item in table.metadata.snapshots
    ]
    table.metadata = table.metadata.model_copy(update={"snapshots": snapshots})
    assert parts_to_sketch(table, find_snapshot(table, newest), KEPT_UP) == 2


def test_an_ancestor_serves_up_to_the_limit_and_with_the_schema_of_now(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts(snapshot_id: int) -> int:
        return parts_to_sketch(table.refresh(), find_snapshot(table, snapshot_id), KEPT_UP)

    monkeypatch.setattr(work_bounds, "FEW_FILES", 0)
    monkeypatch.setattr(work_bounds, "MAX_ANCESTORS", 1)
    count_theta_sketches(RunContext(table, STORAGE, runner), append(table, 0, 300)).publish()
    second = append(table.refresh(), 300, 400)
    assert parts(second) == 1
    assert parts(append(table, 400, 500)) == 3, "all, as the one with sketches is the second before it"
    count_theta_sketches(RunContext(table, STORAGE, runner), second).publish()
    with table.refresh().update_schema() as change:
        change.add_column("added", LongType())
    count_theta_sketches(RunContext(table, STORAGE, runner), table.metadata.current_snapshot_id or 0).publish()
    assert parts(append(table.refresh(), 500, 600)) == 4, "all, which may have a default of the new column"


def test_the_parts_to_sketch_are_those_of_all_files_for_a_column_that_has_no_sketch_of_ours(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_bounds, "FEW_FILES", 0)
    first = find_snapshot(table, append(table, 0, 300))
    foreign.stamp(table, first, {2: foreign.sketch(table.scan().to_arrow()["name"], "string")})
    newest = append(table.refresh(), 300, 400)

    def parts(*columns: str) -> int:
        return parts_to_sketch(table.refresh(), find_snapshot(table, newest), named(columns))

    assert parts("name") == 2, "another engine counted it"
    count_theta_sketches(
        RunContext(table, STORAGE, runner), first.snapshot_id, requested=named(("id", "size"))
    ).publish()
    assert [parts("id"), parts("size", "id"), parts("id", "weight")] == [1, 1, 2]


def test_sketches_that_an_engine_has_copied_from_another_snapshot_serve_none(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_bounds, "FEW_FILES", 0)
    first = append(table, 0, 300)
    count_theta_sketches(RunContext(table, STORAGE, runner), first).publish()
    second = append(table.refresh(), 300, 400)
    ours = find_statistics(table.refresh(), SnapshotId(first))
    assert ours is not None
    register_statistics(
        table, second, path="file:///x", file_size=9, footer_size=4, blobs=ours.blob_metadata, over=None
    )
    newest = append(table.refresh(), 400, 500)
    assert parts_to_sketch(table.refresh(), find_snapshot(table, newest), KEPT_UP) == 2


def test_more_threads_are_expected_to_take_less() -> None:
    assert default_seconds(10**9, 1) == pytest.approx(30.2)
    assert default_seconds(10**9, 3) == pytest.approx(10.2)


def taken(number: int, factor: float, **others: Any) -> DerivedVersion:
    """A version of file sketches whose run took `factor` times what the default rate says of a million values."""
    values = {"runner": "LocalRunner", "amounts": {"values": 1_000_000}, **others}
    text = Measurement(threads=1, seconds=factor * default_seconds(1_000_000, 1), **values).text()
    return DerivedVersion(BlobKind.SKETCHES, "s", number, 1, "", "p", number, 1, 1, (), text)


@pytest.mark.parametrize(
    ("versions", "factor", "source"),
    [
        ([], 1, "default rate, 1 thread; one that starts Spark or compiles kernels takes longer"),
        ([taken(1, 1), *(taken(n, n + 3) for n in range(2, 7))], 7, "measured on the last 5 snapshots"),
        ([taken(1, 2), taken(2, 9), taken(3, 4)], 4, "measured on the last 3 snapshots"),
        ([taken(1, 2), taken(2, 9, runner="SparkRunner")], 2, "measured on the last snapshot"),
        ([taken(1, 2), taken(2, 9, amounts={"rows": 1})], 2, "measured on the last snapshot"),
    ],
    ids=lambda part: part if isinstance(part, str) else None,
)
def test_seconds_are_corrected_by_the_last_five_runs_of_the_same_runner(
    monkeypatch: pytest.MonkeyPatch, versions: list[DerivedVersion], factor: float, source: str
) -> None:
    monkeypatch.setattr(theta_estimate, "sketch_versions", lambda _: tuple(versions))
    table: Any = None
    seconds, words = theta_estimate._predicted(RunContext(table, STORAGE, LocalRunner(1)), 3_000_000)
    assert seconds == pytest.approx(factor * default_seconds(3_000_000, 1), rel=0.01)
    assert words == source
