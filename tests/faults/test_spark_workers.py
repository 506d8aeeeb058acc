"""kill -9 of a Spark Python worker at the steps that it comes to: Spark tries again, and no byte differs."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ops.spark.runner import SparkRunner
from ops.steps import KILL_AT, Step
from tests.faults.stages import Outcome, Stage, assert_swept_and_nothing_else, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.jvm,
    # PySpark leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class DoomedRunner(SparkRunner):
    """A Spark runner one of whose workers dies at a step, once."""

    def __init__(self, session: "SparkSession", kill_at: str) -> None:
        super().__init__(session)
        self._kill_at = kill_at

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        armed = [(self._kill_at, function, task) for task in tasks]
        return super().run(run_armed, armed, label=label, progress=progress)


def run_armed(call: tuple[str, Callable[[Any], Any], Any]) -> Any:
    os.environ[KILL_AT], function, task = call
    return function(task)


@pytest.mark.parametrize("step", [Step.TASK_WRITTEN, Step.TASK_RECORDED])
def test_a_killed_worker_changes_no_byte(
    stages: dict[str, Stage],
    undisturbed: dict[str, Outcome],
    spark: "SparkSession",
    tmp_path: Path,
    step: Step,
    survived: Counter[str],
) -> None:
    stage = stages["a first build"]
    stage.restore()
    before = read(stage.load())
    assert stage.work(DoomedRunner(spark, f"{step}#1:{tmp_path}/note")) == undisturbed["a first build"]
    assert (tmp_path / "note").exists(), "nobody died"
    assert read(stage.load()) == before
    assert_swept_and_nothing_else(stage)
    survived["Spark worker killed"] += 1
