"""A join on a cluster of several executors, of which one is killed in each stage."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.selection import nightly

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAM = "tests.ops.spark.lost_executor_join"


@nightly
@pytest.mark.jvm
@pytest.mark.timeout(2_400)
def test_no_left_row_is_lost_or_doubled_when_an_executor_is_killed_in_any_stage(tmp_path: Path) -> None:
    """Where the left side comes in another order, all rows are there; with other values, they are, or it is refused."""
    command = [sys.executable, "-m", PROGRAM, tmp_path]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert len(outcomes) >= 10
    assert {outcome["killed"] for outcome in outcomes} == {1}
    for outcome in outcomes:
        allowed = {"all rows"} if outcome["changes"] == "order" else {"all rows", "refused"}
        assert outcome["ended"] in allowed, outcome
    assert "refused" in {outcome["ended"] for outcome in outcomes}
