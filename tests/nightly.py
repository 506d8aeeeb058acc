"""All tests that draw, with other seeds than the commit's and more draws: `make nightly SECONDS=1800`, with SEED, too.

Each round has a seed of its own, and an order of the files that is drawn, until the time is over: then no test begins.
Ends with 1 where a round failed. The file is a plugin of pytest, too, which leaves out what draws nothing.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from tests.draws import SEED, is_drawn
from tests.repository import REPOSITORY

_UNTIL = "ICEPUFFIN_NIGHTLY_UNTIL"
"""Variable with the time after which no test begins, in seconds since 1970"""
_TIMES = 4
"""Value of ICEPUFFIN_DRAWS"""
_LAWS = 200
"""Number of laws that the time is shared by, about: each has so small a part, and no less than it has in each commit"""
_SIGNS = ("from hypothesis import", "seed: str", '"seed"', "rng: random.Random")
"""Texts of which a file that draws has one"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800, help="how long to begin tests [default: 1800]")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(2**32),
        help="that of the first round [default: new]",
    )
    arguments, of_pytest = parser.parse_known_args()
    begun, until = datetime.now(UTC), time.time() + arguments.seconds
    files = law_files()
    outcomes: list[str] = []
    is_sound = True
    while time.time() < until:
        seed = (arguments.seed + len(outcomes)) % 2**32
        environment = {
            "ICEPUFFIN_SEED": str(seed),
            "ICEPUFFIN_NIGHTLY": "1",
            "ICEPUFFIN_DRAWS": str(_TIMES),
            "ICEPUFFIN_LAW_SECONDS": f"{arguments.seconds / _LAWS:.1f}",
            "PYTHONHASHSEED": str(seed),
            _UNTIL: str(until),
        }
        command = [
            "-m",
            "pytest",
            "-p",
            "tests.nightly",
            "-n",
            "3",
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",
            "-q",
        ]
        done = subprocess.run(
            [sys.executable, *command, *of_pytest, *files], cwd=REPOSITORY, env=os.environ | environment, check=False
        )
        is_sound = is_sound and not done.returncode
        outcomes.append(f"seed {seed}: {'failed' if done.returncode else 'passed'}")
        print(f"round {len(outcomes)}, {outcomes[-1]}", flush=True)
    print(f"{begun:%Y-%m-%d}, {arguments.seconds:,.0f} s: {'; '.join(outcomes)}")
    return not is_sound


def law_files() -> list[str]:
    """Paths of the files of tests that may have one that draws."""
    paths = sorted((REPOSITORY / "tests").rglob("test_*.py"))
    drawn = [path for path in paths if any(sign in path.read_text(encoding="utf-8") for sign in _SIGNS)]
    return [str(path.relative_to(REPOSITORY)) for path in drawn]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what draws, the files in an order that is drawn: with little time others come first each time."""
    others = [test for test in items if not is_drawn(test)]
    config.hook.pytest_deselected(items=others)
    drawn = [test for test in items if is_drawn(test)]
    files = sorted({str(test.path) for test in drawn})
    random.Random(SEED).shuffle(files)
    items[:] = sorted(drawn, key=lambda test: files.index(str(test.path)))


def pytest_runtest_setup() -> None:
    if time.time() > float(os.environ[_UNTIL]):
        pytest.skip("the time is over")


if __name__ == "__main__":
    sys.exit(main())
