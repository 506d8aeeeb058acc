"""One rule for times that have no zone, whatever the machine's zone and the session's are: they are UTC.

A TIMESTAMP of Spark is an instant; only Spark's literals of it are read by the session's zone.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.jvm
@pytest.mark.parametrize(("zone", "session"), [("Europe/Berlin", "connect"), ("America/New_York", "classic")])
def test_a_time_names_the_same_snapshot_in_every_zone(tmp_path: Path, zone: str, session: str) -> None:
    command = [sys.executable, "-m", "tests.ops.zones", str(tmp_path), session]
    done = subprocess.run(command, env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert len(answers) == 20
    assert answers == dict.fromkeys(answers, 50)
