"""kill -9 of a Spark Python worker at the steps that it comes to: Spark tries again, and no byte differs."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from icepuffin.ops.spark.runner import SparkRunner
from icepuffin.ops.steps import RunStep
from tests.faults.kills import die_at
from tests.faults.stages import Outcome, Stage, assert_swept_and_nothing_else, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.jvm


KILLED_AT = (RunStep.TASK_WRITTEN, RunStep.TASK_RECORDED)


class DoomedRunner(SparkRunner):
    """A Spark runner of whose workers one dies at each of the steps, once."""

    def __init__(self, session: "SparkSession", notes: Path) -> None:
        super().__init__(session)
        self._kill_at = [f"{step}#1:{notes}/{step}" for step in KILLED_AT]

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        armed = [(self._kill_at[at % len(self._kill_at)], function, task) for at, task in enumerate(tasks)]
        return super().run(run_armed, armed, label=label, progress=progress)


def run_armed(call: tuple[str, Callable[[Any], Any], Any]) -> Any:
    kill_at, function, task = call
    die_at(kill_at)
    return function(task)


def test_killed_workers_change_no_byte(
    stages: dict[str, Stage],
    undisturbed: dict[str, Outcome],
    spark: "SparkSession",
    tmp_path: Path,
    survived: Counter[str],
) -> None:
    stage = stages["a first build"]
    stage.restore()
    before = read(stage.load())
    assert stage.work(DoomedRunner(spark, tmp_path)) == undisturbed["a first build"]
    assert {note.name for note in tmp_path.iterdir()} == {str(step) for step in KILLED_AT}, "somebody did not die"
    assert read(stage.load()) == before
    assert_swept_and_nothing_else(stage)
    survived["Spark worker killed"] += len(KILLED_AT)
