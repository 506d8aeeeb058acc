"""The number of threads that a process may use."""

import os


def thread_count(threads: int | None) -> int:
    """`threads`, or where it is None one per core that this process may use. Raises ValueError under 1."""
    if threads is not None:
        if threads < 1:
            raise ValueError(f"threads is {threads}: give 1 or more, or None for every core that this process may use")
        return threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
