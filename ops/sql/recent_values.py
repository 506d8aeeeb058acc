"""The values that were used last, kept for the next statement of whichever thread."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, cast

from icepuffin.ops.process.lru_cache import LruCache
from icepuffin.ops.process.process_lock import ProcessLock

V = TypeVar("V")


class RecentValues(Generic[V]):
    """At most `most` values by key, those that were used last. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._lock = ProcessLock()
        self._values = LruCache[Hashable, V](most)
        self._making: dict[Hashable, ProcessLock] = {}

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key, made where there is none. Threads that need it meanwhile wait for it; others do not."""
        with self._lock:
            if key in self._values:
                return cast("V", self._values.get(key))
            making = self._making.setdefault(key, ProcessLock())
        with making:
            with self._lock:
                if key in self._values:
                    return cast("V", self._values.get(key))
            try:
                value = make()
                with self._lock:
                    self._values.put(key, value)
            finally:
                with self._lock:
                    self._making.pop(key, None)
        return value
