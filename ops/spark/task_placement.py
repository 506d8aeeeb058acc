"""Placement of tasks on a cluster: partitions that Spark caches, so that it runs a task where the one before it ran.

A scheduler prefers the executor that has a partition's cached rows. That is the only say that the DataFrame API has in
where tasks run. Preferred locations of an RDD would do it too, but name executors by private means.
"""

import hashlib
import threading
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTLED_SECONDS = 60.0
"""How long a set of executors stays the same before places are spread over it: one that was lost is replaced by then,
and one that has registered takes tasks
"""


@dataclass(frozen=True, slots=True)
class Executors:
    """The executors of a cluster at one time."""

    addresses: str
    """Their addresses; empty where Spark Connect hides them"""
    cores: int
    """Tasks that they run at once"""

    @classmethod
    def from_session(cls, session: "SparkSession") -> "Executors":
        """The executors that a session has now."""
        context = getattr(session, "_jsc", None)
        if context is None:  # Spark Connect does not say
            return cls("", int(session.conf.get("spark.sql.shuffle.partitions") or 8))
        addresses = str(context.sc().getExecutorMemoryStatus().keySet().mkString(" ")).split()
        return cls(" ".join(sorted(addresses)), int(context.sc().defaultParallelism()))


class TaskPlacement:
    """Numbers of partitions for one cluster. All of its runners have the same ones, as long as its executors stay.

    With others they are spread anew, and shards are loaded anew: those of an executor that was lost would pile up on
    another one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settled: Executors | None = None
        self._newest, self._since = Executors("", 0), 0.0
        self._cached: set[tuple[int, int]] = set()

    def cores(self, session: "SparkSession") -> int:
        """Tasks that run at once on the executors that partitions are spread over."""
        return self._executors(Executors.from_session(session)).cores

    def partitions(self, session: "SparkSession", count: int) -> tuple[range, "DataFrame"]:
        """(at most `count` numbers, one per core; a cached frame of one partition for each)."""
        executors = self._executors(Executors.from_session(session))
        digest = hashlib.sha256(f"{executors.addresses} {executors.cores}".encode()).digest()
        start = int.from_bytes(digest[:6], "little")  # another set has other numbers, and so another frame
        count = min(count, executors.cores)
        frame = _frame(session, start, count)
        if not frame.storageLevel.useMemory:
            frame.persist()
        for former_start, former_count in self._former(start, count):
            _frame(session, former_start, former_count).unpersist()
        return range(start, start + count), frame

    def _former(self, start: int, count: int) -> set[tuple[int, int]]:
        """What was cached for other executors; `count` numbers from `start` are cached now."""
        with self._lock:
            former = {cached for cached in self._cached if cached[0] != start}
            self._cached = self._cached - former | {(start, count)}
        return former

    def _executors(self, current: Executors) -> Executors:
        """The executors that partitions are spread over, of which `current` may differ."""
        now = monotonic()
        with self._lock:
            if current != self._newest:
                self._newest, self._since = current, now
            if self._settled is None or now - self._since >= SETTLED_SECONDS:
                self._settled = current
            return self._settled


def placement_of(session: "SparkSession") -> TaskPlacement:
    """The placement of a session's cluster: all sessions of a Spark context share executors and what they cache."""
    with _placements_lock:
        return _placements.setdefault(getattr(session, "_sc", session), TaskPlacement())


def _frame(session: "SparkSession", start: int, count: int) -> "DataFrame":
    return session.range(start, start + count, 1, count)


_placements_lock = threading.Lock()
_placements: "WeakKeyDictionary[object, TaskPlacement]" = WeakKeyDictionary()
