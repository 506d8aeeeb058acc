"""The memory that a process may use."""

import os
from pathlib import Path

import pytest

from icepuffin.ops.process import memory
from icepuffin.ops.process.memory import memory_bytes


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/memory.max": "70000\n", "a/b/memory.max": "max\n"}, 70_000),
        ("5:cpu:/x\n3:memory:/pod\n", {"memory/pod/memory.limit_in_bytes": "60000", "memory.max": "1"}, 60_000),
        ("3:memory:/docker/17\n", {"memory/memory.limit_in_bytes": "50000", "memory.limit_in_bytes": "1"}, 50_000),
        ("0::/\n", {}, None),
    ],
)
def test_the_memory_is_what_control_groups_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, limits: dict[str, str], expected: int | None
) -> None:
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "own")
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_bytes() == (expected or physical)
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "none")
    assert memory_bytes() == physical
