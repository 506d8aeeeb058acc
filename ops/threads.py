"""Default number of threads."""

import os


def thread_count(threads: int | None) -> int:
    """`threads`, or one per core that this process may use."""
    if threads is not None:
        return max(1, threads)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
