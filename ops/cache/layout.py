"""Whether the shards of an index are kept in the fast or in the compact layout.

Fast: neighbours in rows of one width, codes of one byte in small dimensions. Compact: neighbours as they are stored,
codes of four bits wherever these preserve the nearest. Vectors lie on the disk in both, and few are read.
"""

import os
from pathlib import Path

from icepuffin.ann_kernels.simd.byte_products import BLOCK
from icepuffin.ops.cache.settings import CacheSettings

_SHARE = 0.5
"""Share of the machine's memory over which an index is kept in the compact layout: the rest is for other work"""
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def is_compact(settings: CacheSettings, walked_bytes: int) -> bool:
    """Whether an index whose walks read `walked_bytes` in the fast layout is kept in the compact one."""
    if settings.layout == "auto":
        return walked_bytes > _SHARE * memory_bytes()
    return settings.layout == "compact"


def walked_bytes(nodes: int, dims: int, max_degree: int) -> int:
    """Bytes that walks may read of so many nodes in the fast layout: neighbours, and codes of one byte."""
    return nodes * (4 * max_degree + dims + -dims % BLOCK)


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
