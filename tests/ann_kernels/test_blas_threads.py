"""Any thread can hold BLAS to one thread, and BLAS has its own number again when the last of several leaves."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

from threadpoolctl import threadpool_info

from icepuffin.ann_kernels.blas_threads import one_blas_thread


def blas_threads() -> list[int]:
    """Threads of each BLAS library of the process."""
    return [int(pool["num_threads"]) for pool in threadpool_info() if pool["user_api"] == "blas"]


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
            entered.wait(10)
        first_left.set()
        again.wait(10)  # still alive, as a thread of a pool is

    def last() -> list[int]:
        with one_blas_thread:
            entered.wait(10)
            assert first_left.wait(10)
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
