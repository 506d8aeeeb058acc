"""Settings of the shard cache: its folder, its budgets and its layout."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from icepuffin.ops.model import MIB

_OFF = "off"
DIRECTORY = "ICEPUFFIN_SHARD_CACHE"
"""Environment variable of the folder, or `off`"""
DISK_MB = "ICEPUFFIN_SHARD_CACHE_DISK_MB"
MEMORY_MB = "ICEPUFFIN_SHARD_CACHE_MEMORY_MB"
LAYOUT = "ICEPUFFIN_SHARD_CACHE_LAYOUT"
TAIL_MB = "ICEPUFFIN_SHARD_CACHE_TAIL_MB"
ROWS_MB = "ICEPUFFIN_SHARD_CACHE_ROWS_MB"
PREFETCH = "ICEPUFFIN_SHARD_CACHE_PREFETCH"
_BUDGETS = {"disk_bytes": DISK_MB, "memory_bytes": MEMORY_MB, "tail_bytes": TAIL_MB, "rows_bytes": ROWS_MB}
Prefetch = Literal["background", "never"]
PREFETCHES: tuple[str, ...] = get_args(Prefetch)
Layout = Literal["auto", "fast", "compact"]
LAYOUTS: tuple[str, ...] = get_args(Layout)


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Budgets in bytes; 0 switches a level off. Picklable: executors get the driver's."""

    directory: Path | None = None
    """A folder of this user's own, on a local disk; None: `icepuffin/shards` in the user's cache directory"""
    disk_bytes: int = 20 << 30
    memory_bytes: int = 2 << 30
    layout: str = "auto"
    """How shards lie in memory and on disk: `fast`; `compact`, so that walks read a third of the bytes (of 128
    dimensions); `auto`, by these bytes beside the memory of the machine
    """
    tail_bytes: int = 512 << 20
    """Budget of the rows of freshness tails that all readers of a process keep"""
    rows_bytes: int = 4 << 30
    """Budget on disk, beside that of the shards, of the row groups that all readers of a process keep decoded"""
    prefetch: str = "background"
    """Whether shards whose cells have answered a search are fetched in the `background`, or `never`: then cells go on
    answering
    """

    def __post_init__(self) -> None:
        if min(self.disk_bytes, self.memory_bytes, self.tail_bytes, self.rows_bytes) < 0:
            raise ValueError("the budgets of the shard cache are bytes, 0 for none")
        _require_choice("the layout of the shard cache", self.layout, LAYOUTS)
        _require_choice("the prefetching of the shard cache", self.prefetch, PREFETCHES)

    @property
    def folder(self) -> Path:
        """Folder of the files. `~` is the user's home directory: neither TOML nor a unit of systemd expands it."""
        return self.directory.expanduser() if self.directory else user_cache_directory() / "icepuffin" / "shards"

    @classmethod
    def off(cls) -> "CacheSettings":
        return cls(disk_bytes=0, memory_bytes=0, tail_bytes=0, rows_bytes=0)

    @classmethod
    def from_environment(cls) -> "CacheSettings":
        """The defaults with the environment's variables over them. Raises ValueError for a budget that is no number."""
        layout, prefetch = _choice(LAYOUT, LAYOUTS), _choice(PREFETCH, PREFETCHES)
        where = os.environ.get(DIRECTORY, "")
        if where == _OFF:
            return replace(cls.off(), layout=layout, prefetch=prefetch)
        budgets = {name: _mebibytes(variable) * MIB for name, variable in _BUDGETS.items() if variable in os.environ}
        return cls(directory=Path(where) if where else None, layout=layout, prefetch=prefetch, **budgets)


def _choice(variable: str, choices: tuple[str, ...]) -> str:
    """The value of an environment variable; the first of the choices where it is not set."""
    value = os.environ.get(variable) or choices[0]
    _require_choice(f"the environment variable {variable}", value, choices)
    return value


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it takes {', '.join(choices)}")


def _mebibytes(variable: str) -> int:
    text = os.environ[variable]
    if not text.strip().isdecimal():
        raise ValueError(f"the environment variable {variable} takes a whole number of MiB of at least 0")
    return int(text)


def user_cache_directory() -> Path:
    """$XDG_CACHE_HOME, or ~/.cache."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return Path(configured) if configured else Path("~/.cache").expanduser()
