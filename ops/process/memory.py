"""The memory that a process may use."""

import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def memory_bytes() -> int:
    """Memory that this process may use: that of the machine, or what its control groups leave of it."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_group_limits()])


def _group_limits() -> list[int]:
    """Limits of this process's control groups, of version 2 and of version 1, and of the groups around them."""
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return []
    limits = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = (_GROUPS, "memory.max") if not controllers else (_GROUPS / "memory", "memory.limit_in_bytes")
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                limits += _limit(folder / name)
    return limits


def _limit(file: Path) -> list[int]:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError:  # a container may show its own group as the root, at another path
        return []
    return [int(text)] if text.isdecimal() else []
