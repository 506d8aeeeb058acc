"""One rule for times that have no zone, whatever the machine's zone and the session's are: they are UTC.

A TIMESTAMP of Spark is an instant; only Spark's literals of it are read by the session's zone. The machine's zone is
drawn: ICEPUFFIN_ZONE=... is a certain one.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.draws import SEED

ZONES = ("Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/St_Johns")
ZONE = os.environ.get("ICEPUFFIN_ZONE") or random.Random(SEED).choice(ZONES)


@pytest.mark.jvm
@pytest.mark.usefixtures("seed")
def test_a_time_names_the_same_snapshot_in_every_zone(tmp_path: Path) -> None:
    sys.stderr.write(f"ICEPUFFIN_ZONE={ZONE}\n")
    command = [sys.executable, "-m", "tests.ops.zones", str(tmp_path)]
    done = subprocess.run(command, env={**os.environ, "TZ": ZONE}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads(done.stdout.splitlines()[-1])
    assert len(answers) == 25
    assert answers == dict.fromkeys(answers, 50)
