"""What is tried and survived is counted, and printed at the end of a run in one process."""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.stages import FULL, SCENARIOS, Outcome, Stage, make_stage

SURVIVED: Counter[str] = Counter()
"""Number of faults survived, by kind."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if SURVIVED:
        counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(SURVIVED.items()))
        terminalreporter.write_line(f"faults survived: {SURVIVED.total()} ({counts})")


class Stages(dict[str, Stage]):
    """Stages by scenario. One is made, and a run that nothing happens to, when a test first names the scenario: few
    test files name all, and workers share none.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.outcomes: dict[str, Outcome] = {}

    def __missing__(self, scenario: str) -> Stage:
        self[scenario] = stage = make_stage(self._folder / str(len(self)), scenario)
        self.outcomes[scenario] = stage.work()
        return stage


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return Stages(tmp_path_factory.mktemp("stages"))


@pytest.fixture(scope="session")
def undisturbed(stages: Stages) -> dict[str, Outcome]:
    """What a run that nothing happens to publishes, by the scenarios of the stages that were named."""
    return stages.outcomes


@pytest.fixture
def rng(seed: str) -> random.Random:
    """The one generator of a test: two of the same seed would draw alike, and some pairs of draws never come."""
    return random.Random(seed)


@pytest.fixture(params=list(SCENARIOS) if FULL else [pytest.param(None, id="drawn")])
def server_scenario(request: pytest.FixtureRequest, rng: random.Random) -> str:
    """Each kind of run where each fault is tried; else one that is drawn: a call to a server takes long."""
    return request.param or rng.choice(list(SCENARIOS))


@pytest.fixture
def survived() -> Counter[str]:
    """Count a fault here once everything was found right after it."""
    return SURVIVED
