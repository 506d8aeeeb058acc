"""What is broadcast, and when its file goes: by stand-ins for Spark's own. With Spark: test_join.py."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from icepuffin.ops.spark import broadcasts
from icepuffin.ops.spark.broadcasts import INLINE_BYTES, broadcast_for_plans


def session_of(jvm: object = None, **fields: object) -> Any:
    context = SimpleNamespace(broadcast=lambda data: SimpleNamespace(_jbroadcast=data, _path="file"), _jvm=jvm)
    return SimpleNamespace(sparkContext=context, **fields)


def test_few_bytes_and_all_of_a_connect_session_go_with_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "_of_plans", [])
    references = SimpleNamespace(WeakReference=lambda sent: sent)
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(ref=references)))
    classic, connect = session_of(jvm, _jsc=object()), session_of()
    few, many = bytes(INLINE_BYTES), bytes(INLINE_BYTES + 1)
    assert (broadcast_for_plans(classic, few), broadcast_for_plans(connect, many)) == (few, many)
    assert broadcasts._of_plans == []
    broadcast_for_plans(classic, many)
    assert broadcasts._of_plans == [(classic.sparkContext, many, "file")]


def test_a_file_goes_with_the_last_plan_that_uses_it_or_with_its_context(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running, stopped = SimpleNamespace(_jsc=object()), SimpleNamespace(_jsc=None)
    used, collected = (SimpleNamespace(get=lambda value=value: value) for value in (object(), None))
    kinds = ((running, used), (running, collected), (stopped, used))
    files = [tmp_path / str(number) for number in range(3)]
    for file in files[:2]:  # the last one went with its context already
        file.touch()
    monkeypatch.setattr(broadcasts, "_of_plans", [(*kind, str(file)) for kind, file in zip(kinds, files, strict=True)])
    broadcast_for_plans(session_of(), b"")
    assert [path for *_, path in broadcasts._of_plans] == [str(files[0])]
    assert [file.exists() for file in files] == [True, False, False]


def test_what_was_broadcast_is_not_destroyed_after_its_context() -> None:
    destroyed: list[bool] = []
    for is_running in (True, False):
        context = SimpleNamespace(_jsc=object() if is_running else None)
        broadcasts._destroy(SimpleNamespace(_sc=context, destroy=lambda own=is_running: destroyed.append(own)))
    assert destroyed == [True]
