"""Values within a budget: those that were used longest ago make room for others."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar, cast

from icepuffin.ops.process.process_lock import ProcessLock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key, whose weights add up to `budget` at most. Not thread-safe: whoever shares it has a lock.

    A process may be forked between any two statements, see `ProcessLock`: the cache works there, but its weight may be
    off by that of one value.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        """Sum of the weights at most, from the next value on"""
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0

    @property
    def weight(self) -> int:
        """Sum of the weights of all values."""
        return self._weight

    def get(self, key: K) -> V | None:
        """The value of a key, which is now the last that was used; None where there is none."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Keep a value in place of the key's own, if there is one. A value heavier than the budget is not kept."""
        self.pop(key)
        if not self._values:
            self._weight = 0  # whatever a fork left of it
        if weight > self.budget:
            return
        self._values[key] = value, weight
        self._weight += weight
        while self._weight > self.budget and self._values:
            _, (_, dropped) = self._values.popitem(last=False)
            self._weight -= dropped

    def pop(self, key: K) -> V | None:
        """Take a value out; None where there is none."""
        value, weight = self._values.pop(key, (None, 0))
        self._weight -= weight
        return value

    def items(self) -> Iterator[tuple[K, V]]:
        """Pairs of key and value, the one that was used longest ago first."""
        return ((key, value) for key, (value, _) in self._values.items())

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)


class RecentValues(Generic[K, V]):
    """At most `most` values by key, those that were used last, for whichever thread. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._lock = ProcessLock()
        self._values = LruCache[K, V](most)
        self._making: dict[K, ProcessLock] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
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
