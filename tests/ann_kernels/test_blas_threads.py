"""Any thread can hold BLAS to one thread, and BLAS has its own number again when the last of several leaves."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import pytest
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from icepuffin.ann_kernels.blas_threads import _OneThread, one_blas_thread
from tests.patience import PATIENCE


def blas_threads() -> list[int]:
    """Threads of each BLAS library of the process."""
    return [int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"]


def set_blas_threads(count: int) -> None:
    for library in ThreadpoolController().select(user_api="blas").lib_controllers:
        library.set_num_threads(count)
        library.clear_controlling_thread(force=True)  # as if no thread of Python had set the number


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """More than one, of which the suite's BLAS has no more."""
    before = blas_threads()
    set_blas_threads(2)
    assert {*blas_threads()} == {2}
    yield
    set_blas_threads(min(before))


def test_blas_is_given_its_threads_back_by_whoever_leaves_last() -> None:
    before = blas_threads()
    with one_blas_thread:
        with one_blas_thread:
            pass
        assert {*blas_threads()} == {1}
    assert blas_threads() == before


def test_any_thread_sets_the_limit_and_any_other_lifts_it() -> None:
    before = blas_threads()
    entered, first_left, again = Barrier(2), Event(), Event()

    def first() -> None:
        with one_blas_thread:
            entered.wait(PATIENCE)
        first_left.set()
        again.wait(PATIENCE)  # still alive, as a thread of a pool is

    def last() -> list[int]:
        with one_blas_thread:
            entered.wait(PATIENCE)
            assert first_left.wait(PATIENCE)
            assert {*blas_threads()} == {1}
        after = blas_threads()
        with one_blas_thread:
            assert {*blas_threads()} == {1}
        again.set()
        return after

    with ThreadPoolExecutor(2) as threads:
        one, other = threads.submit(first), threads.submit(last)
        assert other.result() == before
        one.result()
    assert blas_threads() == before


@pytest.mark.parametrize("in_this_thread", [True, False])
def test_a_number_that_somebody_else_has_set_is_lifted_and_set_again(in_this_thread: bool) -> None:
    """As scikit-learn does, for example: threadpoolctl would drop our limit while that thread lives."""
    with ThreadPoolExecutor(1) as other:
        limits = threadpool_limits(2) if in_this_thread else other.submit(threadpool_limits, 2).result()
        for _ in range(2):
            before = blas_threads()
            with one_blas_thread:
                assert {*blas_threads()} == {1}
            assert blas_threads() == before
        limits.restore_original_limits()


@pytest.mark.parametrize("is_locked", [True, False])
def test_a_forked_child_can_hold_blas_and_gives_it_its_threads_back(is_locked: bool) -> None:
    """Whatever threads of the parent, which the child does not have, were doing."""
    before = blas_threads()
    one_blas_thread.__enter__()
    if is_locked:
        one_blas_thread._lock.acquire()
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE)
        with one_blas_thread:
            is_one = {*blas_threads()} == {1}
        os._exit(0 if is_one and blas_threads() == before else 1)
    status = os.waitpid(child, 0)[1]
    if is_locked:
        one_blas_thread._lock.release()
    one_blas_thread.__exit__(None, None, None)
    assert status == 0
    assert blas_threads() == before


def test_a_limit_that_an_interrupt_has_left_is_lifted_by_the_next_user() -> None:
    before, interrupted = blas_threads(), _OneThread()
    interrupted.__enter__()
    interrupted._users = 0  # as after Ctrl-C in the last statement
    with interrupted:
        assert {*blas_threads()} == {1}
    assert blas_threads() == before
