"""The commands that run tests again: by other seeds, and beside busy loops."""

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.draws import is_drawn
from tests.nightly import law_files
from tests.repository import REPOSITORY

SAMPLE = """
import pytest
from hypothesis import given
from hypothesis import strategies as st

@pytest.fixture
def seed():
    return "5"

@given(st.booleans())
def test_law(value):
    pass

def test_drawn(seed):
    pass

@pytest.mark.parametrize("seed", [1, 2])
def test_fixed(seed):
    raise AssertionError

def test_failing():
    raise AssertionError
"""


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command of Python on the sample."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_sample.py").write_text(SAMPLE)
    return subprocess.run(
        [sys.executable, "-m", *command, "-p", "no:langsmith_plugin", "-c", str(folder / "pytest.ini")],
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("seconds", "outcome"), [(3600, "2 passed, 3 deselected"), (-1, "2 skipped, 3 deselected")])
def test_a_nightly_round_runs_what_draws_until_the_time_is_over(tmp_path: Path, seconds: int, outcome: str) -> None:
    arguments = ("-p", "tests.nightly", "-n", "0", str(tmp_path / "test_sample.py"))
    done = run(tmp_path, "pytest", *arguments, ICEPUFFIN_NIGHTLY_UNTIL=str(time.time() + seconds))
    assert outcome in done.stdout


def test_a_night_takes_files_in_an_order_that_is_drawn(tmp_path: Path) -> None:
    """Not by what they cost: else the time is over before the same files each night."""
    files = [tmp_path / f"test_{letter}.py" for letter in "abcde"]
    for file in files:
        file.write_text("def test_drawn(seed): pass\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-c", str(tmp_path / "pytest.ini"), "-p", "tests.conftest"]
    command += ["-p", "tests.nightly", "-v", "-n", "1", "--dist", "loadfile", "--no-loadscope-reorder"]
    until = {"ICEPUFFIN_SEED": "3", "ICEPUFFIN_NIGHTLY_UNTIL": str(time.time() + 3600)}
    done = subprocess.run(
        [*command, *files], cwd=REPOSITORY, env=os.environ | until, capture_output=True, text=True, check=True
    )
    order = re.findall(r"^\[gw0\].* PASSED \S*test_(.)\.py", done.stdout, re.MULTILINE)
    assert sorted(order) == [*"abcde"]
    drawn = [*"abcde"]
    random.Random(3).shuffle(drawn)
    assert order == drawn


def test_nightly_rounds_know_every_file_that_draws(request: pytest.FixtureRequest) -> None:
    """Of those that this run has collected."""
    drawn = {test.path.relative_to(REPOSITORY).as_posix() for test in request.session.items if is_drawn(test)}
    assert drawn <= {*law_files()}


def test_runs_beside_busy_loops_count_what_failed(tmp_path: Path) -> None:
    done = run(tmp_path, "tests.flaky", str(tmp_path / "test_sample.py"), "--times", "1", "-k", "failing or law")
    assert done.returncode == 1
    *shown, test, summary = done.stdout.splitlines()
    assert "    def test_failing():" in shown
    assert re.fullmatch(r"1 of 1 runs failed in \S*test_sample\.py::test_failing", test)
    assert summary == f"1 of 1 runs failed beside 2 busy loops on core {max(os.sched_getaffinity(0))}"
