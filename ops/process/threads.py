"""The number of threads that a process may use."""

import os
from numbers import Integral

from icepuffin.ops.errors import require_type


def thread_count(threads: int | None) -> int:
    """`threads`, or where it is None one per core that this process may use. Raises ValueError under 1, TypeError."""
    if threads is not None:
        require_type(threads, Integral, "threads is a whole number", "leave it out for all cores of this process")
        if threads < 1:
            raise ValueError(f"threads is {threads}: give 1 or more, or None for every core that this process may use")
        return threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
