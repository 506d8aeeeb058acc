"""Locks that a forked process finds free, whatever the threads of its parent were doing."""

import os
import threading
from weakref import WeakSet


class ProcessLock:
    """A lock among the threads of one process: a context manager. Where the process is forked while a thread holds it,
    it is free in the child, which has no such thread.

    What it guards must be of use between any two statements: the thread may have been there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def forked(self) -> None:
        """Replace the lock, in a child."""
        self._lock = threading.Lock()


_locks: WeakSet[ProcessLock] = WeakSet()


def _forked() -> None:
    for lock in list(_locks):
        lock.forked()


os.register_at_fork(after_in_child=_forked)
