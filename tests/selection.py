"""Which tests a commit runs: all short ones, and one part in six of the long ones. A plugin of pytest, too.

A test is long whose cases together take a second or more by `tests/durations.json`: a part has some of its cases.
The commit's id says which part it runs. Tests that notice a broken clause or guard are in each part (`tests/clauses`).
Who names files runs them whole.
"""

import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import pytest

from tests.clauses.guards import ALL_EDITS
from tests.draws import SEED
from tests.durations import Cost, recorded

CaseT = TypeVar("CaseT")

IS_NIGHT = bool(os.environ.get("ICEPUFFIN_NIGHTLY"))
"""Whether nothing is left out"""
_IS_OF_COMMIT = bool(os.environ.get("ICEPUFFIN_OF_COMMIT")) and not IS_NIGHT
"""Whether this is the run of a whole commit, not of files that somebody has named"""
PARTS = 6
"""Number of parts of the long tests"""
_LEFT_OUT = "left_out"
_COUNT = pytest.StashKey[int]()
"""Number of tests that were left out"""

nightly = pytest.mark.skipif(not IS_NIGHT, reason="takes long: ICEPUFFIN_NIGHTLY=1 runs it")


def some(cases: Sequence[CaseT], count: int) -> list[CaseT]:
    """So many of the cases in their order, drawn by the seed: of each commit others. All of them by night."""
    if IS_NIGHT:
        return list(cases)
    return [cases[number] for number in sorted(random.Random(SEED).sample(range(len(cases)), count))]


def left_to_others(tests: Mapping[str, str], costs: Mapping[str, Cost], part: int) -> set[str]:
    """Of tests, by node id, those that other commits run.

    Args:
        tests: the function of each, or the file of those that are dealt together (`whole_file`)
        costs: seconds of files, and of functions that are long, by the names in the table
        part: number of the part that this commit runs
    """
    always = {edit.test for edit in ALL_EDITS}
    count = Counter(tests.values())
    lots: dict[tuple[float, str], list[str]] = {}
    for test, owner in tests.items():
        if owner not in costs or owner.rpartition("::")[2] in always:
            continue
        if "::" in owner:
            lots[-costs[owner].wall / count[owner], test] = [test]
        else:
            lots.setdefault((-costs[owner].wall, owner), []).append(test)
    # the longest first, in turn: parts take equally long
    return {test for number, lot in enumerate(sorted(lots)) if number % PARTS != part for test in lots[lot]}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _IS_OF_COMMIT:
        return
    tests = {
        test.nodeid: test.nodeid.partition("::")[0]
        if test.get_closest_marker("whole_file")
        else test.nodeid.partition("[")[0]
        for test in items
    }
    left_out = left_to_others(tests, recorded(), SEED % PARTS)
    config.stash[_COUNT] = len(left_out)
    config.hook.pytest_deselected(items=[test for test in items if test.nodeid in left_out])
    items[:] = [test for test in items if test.nodeid not in left_out]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Workers tell the process that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_LEFT_OUT] = session.config.stash.get(_COUNT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each worker has collected all tests. One that was lost tells nothing."""
    node.config.stash[_COUNT] = getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(_COUNT, 0):
        terminalreporter.write_line(f"{count} long tests were left to other commits: make test FILES=tests runs all")
