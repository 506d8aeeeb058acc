"""What CI leaves to `make nightly`: tests that take long, and most cases of long products. A plugin of pytest, too."""

import os
import random
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from tests.draws import SEED

CaseT = TypeVar("CaseT")

IS_NIGHT = bool(os.environ.get("ICEPUFFIN_NIGHTLY"))
"""Whether nothing is left out"""
_IS_OF_COMMIT = bool(os.environ.get("ICEPUFFIN_OF_COMMIT")) and not IS_NIGHT
"""Whether this is the run of a whole commit, not of files that somebody has named"""
_LEFT_OUT = "left_out"
_left_out = Counter[int]()
"""Number of tests that this commit leaves out, by the number of commits of which one has them"""

nightly = pytest.mark.skipif(not IS_NIGHT, reason="takes long: ICEPUFFIN_NIGHTLY=1 or make nightly runs it")


def one_in(commits: int) -> pytest.MarkDecorator:
    """A test that takes long beside others like it: one commit in so many runs each of its cases.

    Which cases these are is drawn by the seed. Who names files runs them whole.
    """
    return pytest.mark.one_in(commits)


def some(cases: Sequence[CaseT], count: int) -> list[CaseT]:
    """So many of the cases in their order, drawn by the seed: of each commit others. All of them by night."""
    if IS_NIGHT:
        return list(cases)
    return [cases[number] for number in sorted(random.Random(SEED).sample(range(len(cases)), count))]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _IS_OF_COMMIT:
        return
    chosen, others = [], []
    for test in items:
        marker = test.get_closest_marker("one_in")
        if marker is None or zlib.crc32(f"{SEED} {test.nodeid}".encode()) % marker.args[0] == 0:
            chosen.append(test)
        else:
            others.append(test)
            _left_out[marker.args[0]] += 1
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Workers tell the process that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_LEFT_OUT] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each worker has collected all tests."""
    _left_out.update({} if _left_out else node.workeroutput[_LEFT_OUT])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for commits, count in sorted(_left_out.items()):
        terminalreporter.write_line(f"{count} tests that one commit in {commits} runs were left out")
