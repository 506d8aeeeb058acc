"""Holding BLAS to one thread: the cores are busy with our threads, and results must not depend on BLAS's number."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from types import TracebackType
from typing import Any

from threadpoolctl import ThreadpoolController


class _OneThread:
    """The limit belongs to the process: the first user sets it, and the last one lifts it.

    Each does so in a thread of its own, which ends. threadpoolctl takes settings of OpenBLAS from one thread alone, as
    long as that lives, and drops those of others without a word: the first user and the last may be two threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limits: Any = None

    @cached_property
    def _libraries(self) -> ThreadpoolController:
        """The BLAS libraries of the process, looked for once: the search takes 2 ms."""
        return ThreadpoolController()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._limits = _in_a_thread(lambda: self._libraries.limit(limits=1, user_api="blas"))
            self._users += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._limits is not None:
                _in_a_thread(self._limits.restore_original_limits)


def _in_a_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


one_blas_thread = _OneThread()
"""Context manager under which BLAS uses one thread; any number of threads may enter it at once"""
