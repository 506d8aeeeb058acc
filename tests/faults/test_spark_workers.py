"""kill -9 of Spark's Python workers, in each job of a run: Spark tries again, and no byte differs."""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.steps import RunStep
from tests.faults.kills import die_at
from tests.faults.stages import FULL, SCENARIOS, Outcome, Stage, assert_swept_and_nothing_else, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.jvm


KILLED_AT = (RunStep.TASK_WRITTEN, RunStep.TASK_RECORDED)


class DoomedRunner(SparkRunner):
    """A Spark runner that loses a worker at the start of each job, and one at each of the steps."""

    def __init__(self, session: "SparkSession", notes: Path) -> None:
        super().__init__(session)
        self._notes = notes
        self.jobs = 0

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        at_start = self._notes / f"job {self.jobs}"
        self.jobs += 1
        steps = [f"{step}#1:{self._notes}/{step}" for step in KILLED_AT]
        armed = [
            (at_start if at == 0 else None, steps[at % len(steps)], function, task) for at, task in enumerate(tasks)
        ]
        return super().run(run_armed, armed, label=label, progress=progress)


def run_armed(call: tuple[Path | None, str, Callable[[Any], Any], Any]) -> Any:
    at_start, kill_at, function, task = call
    if at_start is not None and not at_start.exists():
        at_start.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    die_at(kill_at)
    return function(task)


def test_killed_workers_change_no_byte(
    stages: dict[str, Stage],
    undisturbed: dict[str, Outcome],
    spark: "SparkSession",
    tmp_path: Path,
    survived: Counter[str],
    rng: random.Random,
) -> None:
    """In one kind of run, another each time, or in all of them."""
    for scenario in SCENARIOS if FULL else rng.sample([*SCENARIOS], 1):
        stage = stages[scenario]
        stage.restore()
        before = read(stage.load())
        notes = tmp_path / scenario
        notes.mkdir()
        runner = DoomedRunner(spark, notes)
        assert stage.work(runner) == undisturbed[scenario], scenario
        killed = {note.name for note in notes.iterdir()}
        assert killed - {*KILLED_AT} == {f"job {number}" for number in range(runner.jobs)}, (
            f"{scenario}: one did not die"
        )
        assert killed > {*KILLED_AT} or (killed and "first build" not in scenario), f"{scenario}: one did not die"
        assert read(stage.load()) == before, scenario
        assert_swept_and_nothing_else(stage)
        survived["Spark worker killed"] += len(killed)
