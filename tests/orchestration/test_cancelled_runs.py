"""Runs that are cancelled, out of time, or interrupted: they end, and the next evaluation goes on from there."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterEventType, DagsterRunStatus

from icepuffin.ops import steps
from icepuffin.ops.steps import RunStep
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.orchestration.sensor.local_sensor import DueRuns, LocalRun, due_runs, tick
from icepuffin.orchestration.settings import Settings, load
from tests.orchestration.lake import Lake, make_lake

INDEX = dg.AssetKey(["demo", "demo", "packages", "ann_index", "embedding"])
Report = Callable[[dg.DagsterInstance, dg.DagsterRun], object]


@pytest.fixture
def settings(lake: Lake) -> Settings:
    return load(lake.write_settings(retries=2))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path / "lake", snapshots=1)


def interrupt_at(
    step: RunStep, instance: dg.DagsterInstance, report: Report, patch: pytest.MonkeyPatch
) -> Counter[RunStep]:
    """Interrupt the run at the step each time, as Dagster's signal handler does. Returns the steps reached."""
    counts: Counter[RunStep] = Counter()

    def observer(reached: RunStep) -> None:
        counts[reached] += 1
        if reached == step:
            report(instance, instance.get_runs(limit=1)[0])
            raise dg.DagsterExecutionInterruptedError

    patch.setattr(steps, "observer", observer)
    return counts


def runs_of(settings: Settings, instance: dg.DagsterInstance) -> list[LocalRun]:
    return [event for event in tick(settings, instance) if isinstance(event, LocalRun)]


def due_of(settings: Settings, instance: dg.DagsterInstance) -> tuple[str, ...]:
    (due,) = due_runs(settings, instance)
    assert isinstance(due, DueRuns)
    return due.snapshots


REPORTS: dict[DagsterRunStatus, Report] = {
    DagsterRunStatus.CANCELED: dg.DagsterInstance.report_run_canceling,
    DagsterRunStatus.FAILURE: lambda instance, run: instance.report_run_failed(run, "Exceeded maximum runtime"),
}
"""What Dagster reports before it interrupts a run: the user ended it, or its time was up; by the status after it."""


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (RunStep.SKETCHED, DagsterRunStatus.CANCELED),
        (RunStep.STATISTICS_REGISTERED, DagsterRunStatus.FAILURE),
        (RunStep.PLANNED, DagsterRunStatus.CANCELED),
        (RunStep.COMMITTED, DagsterRunStatus.FAILURE),
    ],
)
def test_a_run_that_is_ended_from_outside_does_not_try_again(
    lake: Lake,
    settings: Settings,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    step: RunStep,
    status: DagsterRunStatus,
) -> None:
    with monkeypatch.context() as patch:
        seen = interrupt_at(step, instance, REPORTS[status], patch)
        (run,) = runs_of(settings, instance)
    assert seen[step] == 1
    assert instance.get_runs()[0].status is status
    started = instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_START)
    assert started[-1].step_key is not None
    made = "theta_sketches" if step in (RunStep.SKETCHED, RunStep.STATISTICS_REGISTERED) else "ann_index"
    assert made in started[-1].step_key, "no other step of the run is begun"
    assert not instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_RESTARTED)
    again = () if status is DagsterRunStatus.CANCELED else (run.partition_key,)
    assert due_of(settings, instance) == again, "what a user ended stays ended; the head of another run is made up for"
    added = str(lake.append())
    assert due_of(settings, instance) == (added,)
    assert [(run.partition_key, run.succeeded) for run in runs_of(settings, instance)] == [(added, True)]


def test_an_interrupt_ends_the_command_and_the_run_and_the_next_evaluation_repeats_it(
    lake: Lake, settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in `sensor-tick`."""
    lake.append()
    with monkeypatch.context() as patch:
        counts = interrupt_at(RunStep.MADE, instance, lambda *_: None, patch)
        with pytest.raises(KeyboardInterrupt):
            runs_of(settings, instance)
    assert counts[RunStep.MADE] == 1
    assert [run.status for run in instance.get_runs()] == [DagsterRunStatus.FAILURE]
    due = [str(snapshot.snapshot_id) for snapshot in data_snapshots(lake.table.refresh())]
    assert [run.partition_key for run in runs_of(settings, instance)] == due
    assert instance.get_materialized_partitions(INDEX) == set(due)
