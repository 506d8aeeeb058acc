"""Values that are kept for the next statement, whichever thread runs it."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from icepuffin.ops.process.lru_cache import RecentValues
from tests.patience import PATIENCE


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_the_values_that_were_used_last_stay() -> None:
    values, keys = RecentValues[str, str](2), list[str]()

    def make(key: str) -> str:
        keys.append(key)
        return key.upper()

    def get(key: str) -> str:
        return values.get(key, lambda: make(key))

    assert [get(key) for key in "abacb"] == ["A", "B", "A", "C", "B"]
    assert keys == ["a", "b", "c", "b"]


def test_a_value_that_cannot_be_made_is_tried_again() -> None:
    values = RecentValues[str, int](2)
    with pytest.raises(ZeroDivisionError):
        values.get("key", lambda: 1 // 0)
    assert values.get("key", lambda: 1) == 1


def test_one_thread_makes_a_value_for_all_and_those_of_other_values_do_not_wait() -> None:
    values, counts, others_done = RecentValues[int, int](4), [0, 0], Event()

    def make(key: int) -> int:
        counts[key] += 1
        assert key == 0 or others_done.wait(PATIENCE)
        return key

    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(values.get, 1, lambda: make(1)) for _ in range(7)]
        assert threads.submit(values.get, 0, lambda: make(0)).result() == 0
        others_done.set()
        assert [value.result() for value in waiting] == [1] * 7
    assert counts == [1, 1]


@pytest.mark.usefixtures("_hasty_threads")
def test_threads_that_push_out_each_other_s_values_get_their_own() -> None:
    values = RecentValues[int, int](2)

    def get(turn: int) -> bool:
        return all(
            values.get((turn + step) % 9, lambda key=(turn + step) % 9: key) == (turn + step) % 9 for step in range(300)
        )

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(get, range(16)))
