"""Runs that are cancelled, out of time, or interrupted: they end, and the next evaluation goes on from there."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
from dagster import DagsterEventType, DagsterRunStatus

from icepuffin.ops import steps
from icepuffin.ops.steps import RunStep
from icepuffin.orchestration.factory import build
from icepuffin.orchestration.settings import load
from tests.orchestration.evaluation import evaluated
from tests.orchestration.lake import Lake, make_lake

INDEX = dg.AssetKey(["demo", "demo", "packages", "ann_index", "embedding"])
Report = Callable[[dg.DagsterInstance, dg.DagsterRun], object]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = make_lake(tmp_path / "lake", snapshots=1)
    lake.write_settings(retries=2)
    return lake


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


def refresh_job(settings_file: str) -> dg.JobDefinition:
    """The job as the process of a run makes it: with its own executor, which `execute_in_process` replaces."""
    return build(load(Path(settings_file))).resolve_job_def("refresh_demo_demo_packages")


@dataclass
class Daemon:
    """Evaluations of the sensor, one after the other, and runs of what it requests."""

    lake: Lake
    instance: dg.DagsterInstance
    cursor: str | None = None

    def runs(self) -> list[tuple[str, bool]]:
        """(snapshot, whether its run succeeded) of what one evaluation requests."""
        result = evaluated(load(self.lake.settings_file), self.instance, self.cursor)
        job = dg.build_reconstructable_job(__name__, refresh_job.__name__, (str(self.lake.settings_file),))
        runs = []
        for request in result.run_requests or ():
            tags = {**request.tags, "dagster/partition": request.partition_key or ""}
            with dg.execute_job(job, self.instance, tags=tags) as run:
                runs.append((request.partition_key or "", run.success))
        self.cursor = result.cursor
        return runs


@pytest.fixture
def daemon(lake: Lake, instance: dg.DagsterInstance) -> Daemon:
    return Daemon(lake, instance)


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
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, step: RunStep, status: DagsterRunStatus
) -> None:
    instance, head = daemon.instance, str(daemon.lake.head())
    with monkeypatch.context() as patch:
        seen = interrupt_at(step, instance, REPORTS[status], patch)
        assert daemon.runs() == [(head, False)]
    assert seen[step] == 1
    (run,) = instance.get_runs()
    assert run.status is status
    started = instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_START)
    assert started[-1].step_key is not None
    made = "theta_sketches" if step in (RunStep.SKETCHED, RunStep.STATISTICS_REGISTERED) else "ann_index"
    assert made in started[-1].step_key, "no other step of the run is begun"
    assert not instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_RESTARTED)
    again = [] if status is DagsterRunStatus.CANCELED else [(head, True)]
    assert daemon.runs() == again, "what a user ended stays ended; the head of another run is made up for"
    added = str(daemon.lake.append())
    assert daemon.runs() == [(added, True)]


def test_an_interrupt_ends_the_run_and_the_next_evaluation_makes_up_for_the_head(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a machine that is shut down sends it."""
    instance, head = daemon.instance, str(daemon.lake.head())
    with monkeypatch.context() as patch:
        counts = interrupt_at(RunStep.MADE, instance, lambda *_: None, patch)
        assert daemon.runs() == [(head, False)]
    assert counts[RunStep.MADE] == 1
    assert [run.status for run in instance.get_runs()] == [DagsterRunStatus.FAILURE]
    assert daemon.runs() == [(head, True)]
    assert instance.get_materialized_partitions(INDEX) == {head}
