"""Properties of objects that several threads and processes use."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from icepuffin.ann_kernels.cached_property import cached_property
from tests.patience import PATIENCE


class Slow:
    """An object whose property takes until `finish` is set."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.finish = threading.Event()
        self.count = 0

    @cached_property
    def value(self) -> int:
        self.count += 1
        self.started.set()
        assert self.finish.wait(PATIENCE)
        return self.count


class Failing:
    @cached_property
    def value(self) -> int:
        self.count = getattr(self, "count", 0) + 1
        if self.count == 1:
            raise ValueError("the first time")
        return self.count


def test_threads_that_come_at_once_work_it_out_once() -> None:
    slow = Slow()
    with ThreadPoolExecutor(4) as pool:
        values = [pool.submit(getattr, slow, "value") for _ in range(4)]
        assert slow.started.wait(PATIENCE)
        slow.finish.set()
        assert [value.result() for value in values] == [1] * 4
    assert slow.count == 1
    assert vars(slow).keys() == {"started", "finish", "count", "value"}, "no lock is left"


def test_objects_of_a_class_do_not_wait_for_each_other() -> None:
    slow, other = Slow(), Slow()
    with ThreadPoolExecutor(2) as pool:
        value = pool.submit(getattr, slow, "value")
        assert slow.started.wait(PATIENCE)
        other.finish.set()
        assert pool.submit(getattr, other, "value").result(PATIENCE) == 1
        slow.finish.set()
        assert value.result() == 1


@pytest.mark.parametrize("of_other", [False, True])
def test_a_process_that_is_forked_meanwhile_works_it_out_itself(*, of_other: bool) -> None:
    slow, other = Slow(), Slow()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(getattr, slow, "value")
        assert slow.started.wait(PATIENCE)
        child = get_context("fork").Process(target=_read, args=(other if of_other else slow,))
        child.start()
        child.join(PATIENCE)
        hangs = child.is_alive()
        child.kill()
        child.join()
        slow.finish.set()
    assert not hangs
    assert child.exitcode == 0


def _read(slow: Slow) -> None:
    slow.finish = threading.Event()  # the lock of the other may be taken
    slow.finish.set()
    assert slow.value


def test_an_error_is_not_kept() -> None:
    failing = Failing()
    with pytest.raises(ValueError, match="first time"):
        _ = failing.value
    copy: Any = pickle.loads(pickle.dumps(failing))  # noqa: S301  made here
    assert failing.value == failing.value == copy.value == 2


def test_a_class_has_the_property_itself() -> None:
    assert isinstance(Slow.value, cached_property)
