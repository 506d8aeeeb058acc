"""What all readers of this process keep together, in bytes, so that they do not grow side by side."""

from collections import deque
from collections.abc import Callable

from icepuffin.ops.cache import CacheSettings, process_cache
from icepuffin.ops.process.process_lock import ProcessLock


class ProcessBudget:
    """Bytes that are reserved, within a budget of the cache's settings. Thread-safe.

    `budget_of`: the budget, of the settings that hold now; 0 where nothing is to be kept.
    """

    def __init__(self, budget_of: Callable[[CacheSettings], int]) -> None:
        self._budget_of = budget_of
        self._lock = ProcessLock()
        self._reserved = 0
        self._released: deque[int] = deque()
        """Sizes that were given back since, and are reserved no more"""

    @property
    def reserved(self) -> int:
        """Bytes that are reserved now."""
        with self._lock:
            return self._without_released()

    @property
    def budget(self) -> int:
        """Bytes that may be reserved; 0 where nothing is to be kept."""
        return self._budget_of(process_cache().settings)

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes, where they are within the budget. Returns whether they are."""
        budget = self.budget
        with self._lock:
            if self._without_released() + size > budget:
                return False
            self._reserved += size
            return True

    def release(self, size: int) -> None:
        """Give reserved bytes back. It waits for nobody: the garbage collector calls it, in a thread that may hold the
        lock just then.
        """
        self._released.append(size)

    def _without_released(self) -> int:
        while self._released:
            self._reserved -= self._released.popleft()
        return self._reserved


TAIL_MEMORY = ProcessBudget(lambda settings: settings.tail_bytes)
"""Rows of freshness tails, in memory"""
ROWS_ON_DISK = ProcessBudget(lambda settings: settings.rows_bytes if settings.disk_bytes else 0)
"""Decoded row groups, in files without a name"""
