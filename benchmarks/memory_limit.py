"""A limit on the memory of this process that the system enforces, its pages of files included."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def limited_memory(limit: int | None) -> Iterator[None]:
    """Run the body in a control group of `limit` bytes: what is over it is written back, or the process is killed.

    Files' pages count for the group that reads them first, so they should not be in memory before. Without a limit the
    body runs as it is. Raises SystemExit where this user may not make groups.
    """
    if limit is None:
        yield
        return
    of_memory = _GROUPS / "memory"
    root, setting = (of_memory, "memory.limit_in_bytes") if of_memory.is_dir() else (_GROUPS, "memory.max")
    group = root / f"icepuffin-{os.getpid()}"
    try:
        group.mkdir()
        (group / setting).write_text(str(limit))
        (group / "cgroup.procs").write_text("0")
    except OSError as error:
        raise SystemExit(f"a limit on memory needs a control group that this user may make: {error}") from error
    try:
        yield
    finally:
        (root / "cgroup.procs").write_text("0")
        group.rmdir()
