"""Holding BLAS to one thread: the cores are busy with our threads, and results must not depend on BLAS's number."""

import os
import threading
from types import TracebackType
from typing import Any

from threadpoolctl import ThreadpoolController

from icepuffin.ann_kernels.cached_property import cached_property


class _OneThread:
    """The limit belongs to the process: the first user sets it, and the last one lifts it.

    From version 3.8 on threadpoolctl takes settings of OpenBLAS from one thread alone, as long as that lives, and drops
    those of others without a word: our users may be several threads, and the thread of somebody else's limit another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limits: Any = None
        """Restorer of BLAS's own numbers; None where nothing is limited"""

    @cached_property
    def _libraries(self) -> ThreadpoolController:
        """The BLAS libraries of the process, looked for once: the search takes 2 ms."""
        return ThreadpoolController().select(user_api="blas")

    def __enter__(self) -> None:
        with self._lock:
            if not self._users and self._limits is None:
                self._take_control()
                self._limits = self._libraries.limit(limits=1)
                self._take_control()  # and leave it to whoever sets a number next
            self._users += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._limits is not None:
                self._take_control()
                self._limits.restore_original_limits()
                self._limits = None
                self._take_control()

    def _take_control(self) -> None:
        """Let this thread set the numbers, whichever did so before."""
        for library in self._libraries.lib_controllers:
            if hasattr(library, "clear_controlling_thread"):
                library.clear_controlling_thread(force=True)

    def forked(self) -> None:
        """Forget the users, in a child, which has none of their threads. The next one lifts a limit that is left."""
        self._lock = threading.Lock()
        self._users = 0


one_blas_thread = _OneThread()
"""Context manager under which BLAS uses one thread; any number of threads may enter it at once"""
os.register_at_fork(after_in_child=one_blas_thread.forked)
