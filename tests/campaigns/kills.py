"""kill -9 of a driver's whole process group at a random moment, in each scenario of tests/faults.

After it the table reads as before, one retry publishes the bytes of an undisturbed run, and `gc` sweeps the rest.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.faults.stages import SCENARIOS, Outcome, Stage, assert_swept_and_nothing_else, make_stage, read
from tests.faults.victim import AFTER


def run(budget: Budget) -> None:
    """Raises BrokenPromiseError."""
    with tempfile.TemporaryDirectory() as folder, _victims() as victims:
        stages = [make_stage(Path(folder) / str(number), scenario) for number, scenario in enumerate(SCENARIOS)]
        outcomes = [stage.work() for stage in stages]
        durations = [_duration(stage, victims) for stage in stages]
        for number, rng in budget.trials():
            chosen = rng.randrange(len(stages))
            seconds = rng.uniform(0, 1.2 * durations[chosen])
            try:
                ended = _try(stages[chosen], outcomes[chosen], victims, seconds)
            except AssertionError as error:
                what = list(SCENARIOS)[chosen]
                raise BrokenPromiseError(f"trial {number}, {what}, killed after {seconds:.4f} s: {error}") from error
            budget.counts["killed at work" if ended == signal.SIGKILL else "finished before the kill"] += 1


def _try(stage: Stage, undisturbed: Outcome, victims: "subprocess.Popen[str]", seconds: float) -> int:
    stage.restore()
    before = read(stage.load())
    ended = _kill(stage, victims, seconds)
    assert ended in (0, signal.SIGKILL), "the driver failed before the kill"
    assert read(stage.load()) == before, "the table reads otherwise"
    assert stage.work() == undisturbed, "a retry publishes other bytes"
    assert read(stage.load()) == before, "the table reads otherwise after the retry"
    assert_swept_and_nothing_else(stage)
    return ended


def _duration(stage: Stage, victims: "subprocess.Popen[str]") -> float:
    """Seconds of a run to its end."""
    stage.restore()
    begun = time.monotonic()
    ended = _kill(stage, victims, 3_600)
    assert ended == 0, f"a driver that nobody killed ended by signal {ended}"
    return time.monotonic() - begun


def _kill(stage: Stage, victims: "subprocess.Popen[str]", seconds: float) -> int:
    assert victims.stdin is not None
    assert victims.stdout is not None
    print(f"{stage.folder}\t{AFTER}{seconds}", file=victims.stdin, flush=True)
    return int(victims.stdout.readline())


@contextmanager
def _victims() -> Iterator["subprocess.Popen[str]"]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.faults.victim"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as victims:
        assert victims.stdin is not None
        assert victims.stdout is not None
        assert any(line == "ready\n" for line in victims.stdout)
        yield victims
        victims.stdin.close()
