"""Which tests a commit runs."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests import selection
from tests.clauses.guards import ALL_EDITS
from tests.durations import Cost
from tests.selection import PARTS, left_to_others

FILE = "test_a.py"
LONG = {f"{FILE}::test_laws[{number}]": f"{FILE}::test_laws" for number in range(3 * PARTS)}
LONG |= {f"{FILE}::test_once_{number}": f"{FILE}::test_once_{number}" for number in range(PARTS)}
SHARING = {f"test_b.py::test_{name}": "test_b.py" for name in ("one", "other", "third")}
SHORT = {f"{FILE}::test_fast": f"{FILE}::test_fast"}
COSTS = {FILE: Cost(80, 80), "test_b.py": Cost(40, 9)} | {
    owner: Cost(3 * PARTS if owner.endswith("laws") else 3 * PARTS + 1, 3) for owner in LONG.values()
}


def test_each_long_test_is_in_one_part_and_each_short_one_in_all() -> None:
    tests = LONG | SHARING | SHORT
    parts = [tests.keys() - left_to_others(tests, COSTS, part) for part in range(PARTS)]
    assert set.intersection(*parts) == {*SHORT}
    assert sorted(test for part in parts for test in part - {*SHORT}) == sorted(LONG | SHARING)


def test_parts_take_equally_long_and_have_cases_of_each_test() -> None:
    for part in range(PARTS):
        chosen = LONG.keys() - left_to_others(LONG, COSTS, part)
        assert sum("laws" in test for test in chosen) == 3
        assert sum("laws" not in test for test in chosen) == 1


def test_tests_that_share_what_takes_long_to_start_are_of_one_part() -> None:
    for part in range(PARTS):
        assert left_to_others(SHARING | LONG, COSTS, part) & {*SHARING} in (set(), {*SHARING})


def test_every_commit_runs_the_tests_of_clauses() -> None:
    tests = {f"{FILE}::{edit.test}[case]": f"{FILE}::{edit.test}" for edit in ALL_EDITS}
    costs = dict.fromkeys(tests.values(), Cost(9, 9))
    assert [left_to_others(tests, costs, part) for part in range(PARTS)] == [set()] * PARTS


@pytest.mark.parametrize("names_files", [False, True])
def test_who_names_files_runs_them_whole(names_files: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_IS_OF_COMMIT", not names_files)
    monkeypatch.setattr(selection, "recorded", lambda: COSTS)
    marked: list[Any] = [
        SimpleNamespace(nodeid=test, get_closest_marker=lambda _, test=test: test in SHARING) for test in SHARING | LONG
    ]
    tests = marked.copy()
    deselected: list[Any] = []

    def deselect(items: list[Any]) -> None:
        deselected.extend(items)

    config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=deselect), stash=pytest.Stash())
    selection.pytest_collection_modifyitems(config, tests)
    lines: list[str] = []
    selection.pytest_terminal_summary(SimpleNamespace(write_line=lines.append), config)  # type: ignore[arg-type]
    assert sorted(test.nodeid for test in [*tests, *deselected]) == sorted(LONG | SHARING)
    if names_files:
        assert tests == marked
        assert lines == []
    else:
        assert {test.nodeid for test in deselected} == left_to_others(LONG | SHARING, COSTS, selection.SEED % PARTS)
        assert lines == [f"{len(deselected)} long tests were left to other commits: make test FILES=tests runs all"]
