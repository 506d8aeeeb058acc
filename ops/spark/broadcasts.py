"""Bytes that each executor of a classic session gets once, and of which nothing outlives what they are for.

PySpark broadcasts a function of more than 1 MiB by itself: it writes a file to the driver's disk, which stays until
the context ends. So what is large is broadcast here, and destroyed with its job, its owner, or the plans that use it.
Spark Connect sends functions with their plan, and leaves no file.
"""

import logging
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from weakref import finalize

from icepuffin.ops.tasks.task_runner import BroadcastBytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
INLINE_BYTES = 128 << 10
"""Bytes up to which a function carries them"""


def broadcast_for_job(session: "SparkSession", data: bytes, job: ExitStack) -> bytes | BroadcastBytes:
    """The data for one job: destroyed where the job ends."""
    sent: bytes | BroadcastBytes = _broadcast(session, data)
    job.callback(_destroy, sent)
    return sent


def broadcast_for_owner(session: "SparkSession", data: bytes, owner: object) -> bytes | BroadcastBytes:
    """The data for all jobs of an owner: destroyed soon after the owner is collected."""
    sent: bytes | BroadcastBytes = _broadcast(session, data)
    if not isinstance(sent, bytes):
        _destroyer()
        finalize(owner, _unowned.put, sent).atexit = False
    return sent


def broadcast_for_plans(session: "SparkSession", data: bytes) -> bytes | BroadcastBytes:
    """The data for a frame and all that is made of it, which the JVM alone knows. The JVM collects it with the last of
    these plans, and its file is removed at the next call.
    """
    _remove_collected()
    sent: Any = _broadcast(session, data)
    if not isinstance(sent, bytes):
        context: Any = session.sparkContext
        _of_plans.append((context, context._jvm.java.lang.ref.WeakReference(sent._jbroadcast), sent._path))  # noqa: SLF001
    return sent  # type: ignore[no-any-return]


def _broadcast(session: "SparkSession", data: bytes) -> Any:
    if len(data) <= INLINE_BYTES or not hasattr(session, "_jsc"):
        return data
    return session.sparkContext.broadcast(data)


def _destroy(sent: Any) -> None:
    if not isinstance(sent, bytes) and sent._sc._jsc is not None:  # noqa: SLF001  else its files went with the context
        sent.destroy()


_removing = Lock()
_of_plans: list[tuple[Any, Any, str]] = []
"""Context, weak reference of the JVM, and file of each broadcast that plans use"""


def _remove_collected() -> None:
    with _removing:  # a call to the JVM lets another thread in
        for of_plan in list(_of_plans):
            context, reference, path = of_plan
            stopped = context._jsc is None  # noqa: SLF001
            if stopped or reference.get() is None:
                _of_plans.remove(of_plan)
                Path(path).unlink(missing_ok=True)


_unowned: "SimpleQueue[Any]" = SimpleQueue()
"""Broadcasts whose owners were collected: that may happen inside of a call to the JVM, which takes no other then"""


@cache
def _destroyer() -> Thread:
    thread = Thread(target=_destroy_unowned, name="icepuffin-broadcasts", daemon=True)
    thread.start()
    return thread


def _destroy_unowned() -> None:
    while True:
        sent = _unowned.get()
        try:
            _destroy(sent)
        except Exception:
            _log.warning("%s is left until the Spark context ends", sent._path, exc_info=True)  # noqa: SLF001
