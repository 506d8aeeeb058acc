"""What is tried and survived is counted, and printed at the end of a run in one process."""

from collections import Counter

import pytest

from tests.faults.stages import SCENARIOS, Outcome, Stage, make_stage

SURVIVED: Counter[str] = Counter()
"""Number of faults survived, by kind."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if SURVIVED:
        counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(SURVIVED.items()))
        terminalreporter.write_line(f"faults survived: {SURVIVED.total()} ({counts})")


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stage]:
    folder = tmp_path_factory.mktemp("stages")
    return {name: make_stage(folder / str(number), name) for number, name in enumerate(SCENARIOS)}


@pytest.fixture(scope="session")
def undisturbed(stages: dict[str, Stage]) -> dict[str, Outcome]:
    """What a run that nothing happens to publishes."""
    return {name: stage.work() for name, stage in stages.items()}


@pytest.fixture
def survived() -> Counter[str]:
    """Count a fault here once everything was found right after it."""
    return SURVIVED
