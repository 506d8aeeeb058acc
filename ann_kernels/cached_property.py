"""Properties that are worked out once per object, by one thread.

That of the standard library has one lock for all objects of a class in Python 3.11: a thread that works it out for one
keeps those of all others waiting, and a process that is forked meanwhile waits for ever. From 3.12 on it has no lock:
threads that come at once each work it out, and each needs the memory.
"""

import functools
import os
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801  named as the original
        """`functools.cached_property` with a lock per object, which a forked process finds free."""

        def __get__(self, holder: Any, owner: Any = None) -> Any:
            if holder is None:
                return self
            kept, name = holder.__dict__, self.attrname
            own_lock = f"lock of {name}"
            lock = kept.setdefault(own_lock, _Lock())
            if lock.process != os.getpid():
                lock = kept[own_lock] = _Lock()
            with lock.lock:
                value = kept[name] if name in kept else self.func(holder)
                kept[name] = value
            kept.pop(own_lock, None)
            return value


class _Lock:
    """A lock among the threads of one process. A copy of its object has one of its own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.process = os.getpid()

    def __reduce__(self) -> tuple[type["_Lock"], tuple[()]]:
        return _Lock, ()
