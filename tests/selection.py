"""What CI leaves to `make nightly`: tests that take long, and most cases of long products."""

import os
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest

from tests.draws import SEED

CaseT = TypeVar("CaseT")

IS_NIGHT = bool(os.environ.get("ICEPUFFIN_NIGHTLY"))
"""Whether nothing is left out"""

nightly = pytest.mark.skipif(not IS_NIGHT, reason="takes long: ICEPUFFIN_NIGHTLY=1 or make nightly runs it")


def some(cases: Sequence[CaseT], count: int) -> list[CaseT]:
    """So many of the cases in their order, drawn by the seed: of each commit others. All of them by night."""
    if IS_NIGHT:
        return list(cases)
    return [cases[number] for number in sorted(random.Random(SEED).sample(range(len(cases)), count))]
