"""What sketching will take is estimated before it, stands beside what it took, and is learned from."""

from typing import Any

from pyiceberg.table import Table

from icepuffin.ops.theta import ThetaEstimate, ThetaOutcome, estimate_theta_sketches, materialize_theta_sketches
from tests.ops.theta.conftest import STORAGE, ThreadlessRunner, append


def estimated(table: Table, snapshot_id: int, runner: ThreadlessRunner, **options: Any) -> ThetaEstimate:
    return estimate_theta_sketches(table, snapshot_id, runner=runner, storage=STORAGE, **options)


def test_an_estimate_foresees_what_is_then_done_and_changes_nothing(table: Table, runner: ThreadlessRunner) -> None:
    append(table, 0, 300)
    snapshot = append(table, 200, 900)
    before = table.refresh().metadata_location
    estimate = estimated(table, snapshot, runner)
    assert table.refresh().metadata_location == before
    assert not runner.tasks
    assert (estimate.outcome, estimate.columns, estimate.values) == (ThetaOutcome.WRITTEN, 5, 5 * 1000)
    assert estimate.rates == "default rate, 2 threads"
    report = materialize_theta_sketches(table, snapshot, runner=runner, storage=STORAGE)
    assert report.estimate == estimate
    assert (report.files_sketched, report.files_reused) == (estimate.files_sketched, estimate.files_reused) == (2, 0)
    size = sum(file["file_size_in_bytes"] for file in table.inspect.files().to_pylist())
    assert 0 < estimate.bytes_read < size, "without the vectors"
    assert 0 < report.bytes_written <= estimate.bytes_written + 20_000, "footers and JSON besides"


def test_the_next_estimate_counts_new_files_and_learns_from_what_the_last_took(
    table: Table, runner: ThreadlessRunner
) -> None:
    first = append(table, 0, 300)
    materialize_theta_sketches(table, first, runner=runner, storage=STORAGE)
    assert estimated(table, first, runner).outcome is ThetaOutcome.CURRENT
    estimate = estimated(table, append(table, 250, 500), runner)
    assert (estimate.files_sketched, estimate.files_reused, estimate.values) == (1, 1, 5 * 250)
    assert estimate.rates == "measured on the last snapshot"
    assert estimated(table, first, runner, enabled=False) == ThetaEstimate(ThetaOutcome.OFF)


def test_removed_files_are_nothing_to_read(table: Table, runner: ThreadlessRunner) -> None:
    append(table, 0, 300)
    materialize_theta_sketches(table, append(table, 1_000, 1_300), runner=runner, storage=STORAGE)
    table.delete("id >= 1000")
    estimate = estimated(table, table.refresh().metadata.snapshots[-1].snapshot_id, runner)
    assert (estimate.outcome, estimate.files_sketched, estimate.bytes_read) == (ThetaOutcome.WRITTEN, 0, 0)
