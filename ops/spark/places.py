"""Places of tasks on a cluster: partitions that Spark caches, so that it runs a task where the one before it ran.

A scheduler prefers the executor that has a partition's cached rows. That is the only say that the DataFrame API has in
where tasks run. Preferred locations of an RDD would do it too, but name executors by private means.
"""

import hashlib
import threading
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTLED_SECONDS = 60.0
"""How long a set of executors stays the same before places are spread over it: one that was lost is replaced by then,
and one that has registered takes tasks
"""


class Places:
    """Numbers of partitions for one session. All of its runners have the same ones, as long as its executors stay.

    With others they are spread anew, and shards are loaded anew: those of an executor that was lost would pile up on
    another one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settled: str | None = None
        self._newest, self._since = "", 0.0

    def partitions(self, session: "SparkSession", count: int) -> tuple[range, "DataFrame"]:
        """(`count` numbers, a cached frame of one partition for each)."""
        digest = hashlib.sha256(self._executors(_executors(session)).encode()).digest()
        start = int.from_bytes(digest[:6], "little")  # another set has other numbers, and so another frame
        frame = session.range(start, start + count, 1, count)
        if not frame.storageLevel.useMemory:
            frame.persist()
        return range(start, start + count), frame

    def _executors(self, current: str) -> str:
        """The executors that places are spread over, of which `current` may differ."""
        now = monotonic()
        with self._lock:
            if current != self._newest:
                self._newest, self._since = current, now
            if self._settled is None or now - self._since >= SETTLED_SECONDS:
                self._settled = current
            return self._settled


def places_of(session: "SparkSession") -> Places:
    """The places of a session."""
    with _places_lock:
        return _places.setdefault(session, Places())


def _executors(session: "SparkSession") -> str:
    """Addresses of the executors; empty where Spark Connect hides them."""
    context = getattr(session, "_jsc", None)
    if context is None:
        return ""
    return " ".join(sorted(str(context.sc().getExecutorMemoryStatus().keySet().mkString(" ")).split()))


_places_lock = threading.Lock()
_places: "WeakKeyDictionary[SparkSession, Places]" = WeakKeyDictionary()
