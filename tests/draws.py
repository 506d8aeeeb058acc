"""Chance in tests. What they draw follows from the commit: a run of the same commit tries the same cases.

ICEPUFFIN_SEED=<another seed> draws others, as `make nightly` does. ICEPUFFIN_DRAWS=20 draws twenty times as many.
ICEPUFFIN_LAW_SECONDS=9 has each test that draws one by one go on for so many seconds of processor time.
"""

import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.repository import REPOSITORY

if TYPE_CHECKING:
    import pytest

WITHOUT_COMMIT = 20_261_128
"""Seed where git does not know the tree, as in a copy of it"""
TIMES = int(os.environ.get("ICEPUFFIN_DRAWS") or 1)
_LAW_SECONDS = float(os.environ.get("ICEPUFFIN_LAW_SECONDS") or 0)


@dataclass(slots=True)
class Tally:
    """What the test that runs has drawn so far; `tests.draw_report` prints it."""

    counts: Counter[str] = field(default_factory=Counter)
    """Number of draws, by kind"""
    times: int = TIMES
    """Value of ICEPUFFIN_DRAWS that draws all of them again"""


TALLY = Tally()


def seed_of_run() -> tuple[int, str]:
    """The seed, of 32 bits where none is chosen, and what it was made of."""
    if chosen := os.environ.get("ICEPUFFIN_SEED"):
        return int(chosen), "chosen"
    if not (REPOSITORY / ".git").exists() or not shutil.which("git"):
        return WITHOUT_COMMIT, "no commit: this is no clone, or there is no git"
    answer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if answer.returncode:
        return WITHOUT_COMMIT, f"no commit: {answer.stderr.strip()}"
    return int(answer.stdout[:8], 16), f"of commit {answer.stdout[:12]}"


SEED, ORIGIN = seed_of_run()


def is_drawn(test: "pytest.Item") -> bool:
    """Whether a test draws other cases by another seed."""
    chosen = getattr(getattr(test, "callspec", None), "params", {})
    by_seed = "seed" in getattr(test, "fixturenames", ()) and "seed" not in chosen
    return by_seed or test.get_closest_marker("hypothesis") is not None


def amount(count: int, variable: str = "") -> int:
    """As many, or a multiple; or what an environment variable says."""
    return int(os.environ.get(variable) or count * TIMES)


def draws(least: int) -> Iterator[int]:
    """To loop over as many draws, or a multiple; over more where laws have seconds that are not used up."""
    begun, number = time.process_time(), 0
    while number < least * TIMES or time.process_time() - begun < _LAW_SECONDS:
        number += 1
        TALLY.counts["draws"] += 1
        TALLY.times = max(TALLY.times, -(-number // least))
        yield number
