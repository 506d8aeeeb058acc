"""Memory of this process for rows of freshness tails: one budget for all readers, so that they do not grow together."""

from collections import deque

from icepuffin.ops.cache import process_cache
from icepuffin.ops.process_lock import ProcessLock


class TailMemory:
    """Bytes that are reserved, within the budget of the cache's settings. Thread-safe."""

    def __init__(self) -> None:
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
        """Bytes that may be reserved; 0 where no tail is to be kept."""
        return process_cache().settings.tail_bytes

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


TAIL_MEMORY = TailMemory()
