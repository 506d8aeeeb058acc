"""Which tests a commit runs."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests import selection

SLOW = [f"test_slow[{number}]" for number in range(90)]


class Chosen(NamedTuple):
    tests: list[str]
    printed: str
    """What the end of the run says of the others"""


def of_commit(seed: int, patch: pytest.MonkeyPatch) -> Chosen:
    """What a commit runs of some tests."""
    patch.setattr(selection, "SEED", seed)
    patch.setattr(selection, "_left_out", type(selection._left_out)())
    tests: list[Any] = [SimpleNamespace(nodeid="test_fast", get_closest_marker=lambda _: None)]
    mark = selection.one_in(3).mark
    tests += [SimpleNamespace(nodeid=name, get_closest_marker=lambda _, mark=mark: mark) for name in SLOW]
    lines: list[str] = []
    config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: None))
    selection.pytest_collection_modifyitems(config, tests)
    terminal: Any = SimpleNamespace(write_line=lines.append)
    selection.pytest_terminal_summary(terminal)
    return Chosen([test.nodeid for test in tests], "\n".join(lines))


def test_a_commit_runs_a_part_of_the_slow_tests_and_counts_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_IS_OF_COMMIT", True)
    every = set()
    for seed in range(20):
        of_seed = of_commit(seed, monkeypatch)
        assert of_seed == of_commit(seed, monkeypatch)
        assert of_seed.tests[0] == "test_fast"
        assert 10 < len(of_seed.tests) < 60
        assert of_seed.printed == f"{91 - len(of_seed.tests)} tests that one commit in 3 runs were left out"
        every |= {*of_seed.tests}
    assert every == {"test_fast", *SLOW}


def test_who_names_files_runs_them_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_IS_OF_COMMIT", False)
    assert of_commit(1, monkeypatch) == (["test_fast", *SLOW], "")
