"""kill -9 at every named step: the table reads as before, one retry publishes the same bytes, gc sweeps the rest."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from icepuffin.ops import steps
from icepuffin.ops.steps import RunStep
from tests.faults.stages import FULL, SCENARIOS, Outcome, Stage, assert_swept_and_nothing_else, read
from tests.selection import some

Kill = Callable[[Stage, str], int]


@pytest.fixture(scope="module")
def kill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kill]:
    """Run a driver on a stage until it dies at `<step>#<n>`. Returns the signal that ended it."""
    folder = tmp_path_factory.mktemp("notes")
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.faults.victim"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=Path.cwd()
    ) as victims:
        assert victims.stdin is not None
        assert victims.stdout is not None
        stdin, stdout = victims.stdin, victims.stdout
        assert any(line == "ready\n" for line in stdout)

        def run(stage: Stage, at: str) -> int:
            note = folder / f"{stage.folder.name}-{at}"
            print(f"{stage.folder}\t{at}:{note}", file=stdin, flush=True)
            return int(stdout.readline())

        yield run
        stdin.close()


def reached_in(stage: Stage) -> list[str]:
    """`<step>#<n>` of an undisturbed run, in order."""
    reports: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "observer", reports.append)
        stage.work()
    counts: Counter[str] = Counter()
    numbered = []
    for step in reports:
        counts[step] += 1
        numbered.append(f"{step}#{counts[step]}")
    return numbered


def chosen(stage: Stage) -> list[str]:
    """Where a driver of this scenario is killed: the last time that it comes to each step, or each time."""
    numbered = reached_in(stage)
    last = {at.partition("#")[0]: at for at in numbered}
    return numbered if FULL else list(last.values())


@pytest.mark.parametrize("scenario", some(list(SCENARIOS), 3))
def test_a_killed_driver_costs_one_retry_and_nothing_else(
    stages: dict[str, Stage],
    undisturbed: dict[str, Outcome],
    kill: Kill,
    scenario: str,
    survived: Counter[str],
) -> None:
    stage = stages[scenario]
    stage.restore()
    before = read(stage.load())
    moments = chosen(stage)
    sketches = stage.file_sketches()
    assert sketches
    for moment in moments:
        stage.restore()
        assert kill(stage, moment) == signal.SIGKILL, moment
        assert read(stage.load()) == before, moment
        assert stage.work() == undisturbed[scenario], moment
        assert stage.file_sketches() == sketches, moment
        assert read(stage.load()) == before, moment
        assert_swept_and_nothing_else(stage)
        survived["driver killed"] += 1


def test_every_step_that_is_listed_is_reached(stages: dict[str, Stage]) -> None:
    stage = stages["a first build of a pack"]
    stage.restore()
    assert {at.partition("#")[0] for at in reached_in(stage)} == {str(step) for step in RunStep}


def test_markers_are_swept_before_what_they_name(stages: dict[str, Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is killed in between leaves no marker that names what is gone."""
    stage = stages["a first build"]
    stage.restore()
    staged: list[list[str]] = []

    def look(step: RunStep) -> None:
        if step is RunStep.SWEEPING:
            staged.append([name for name in stage.files() if "_icepuffin" in name])

    monkeypatch.setattr(steps, "observer", look)
    stage.work()
    with_objects, with_nothing = staged
    assert with_objects
    assert not any(name.endswith(".json") for name in with_objects)
    assert not with_nothing


def test_nothing_in_the_environment_kills_a_process(tmp_path: Path) -> None:
    """What tests need to end a process is no part of the product."""
    mark_every_step = "from icepuffin.ops.steps import RunStep, reached; [reached(step) for step in RunStep]"
    everything = {f"ICEPUFFIN_{name}": f"{RunStep.MADE}#1:{tmp_path}/note" for name in ("KILL_AT", "KILL", "DIE_AT")}
    done = subprocess.run([sys.executable, "-c", mark_every_step], env={**os.environ, **everything}, check=False)
    assert done.returncode == 0
    assert not any(tmp_path.iterdir())
