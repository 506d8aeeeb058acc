"""What a version keeps of its base is copied while the rest is made; a refresh that fails leaves nothing of it."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from ops.index import GateFailedError, materialize, work
from ops.storage import local
from ops.storage.local import to_path
from ops.tasks.shard import ShardResult, ShardTask, make_shard
from tests.conftest import make_rows
from tests.ops.index.history import found_and_true, index_head


class LostError(Exception):
    """A task cannot be done."""


@pytest.fixture
def changed(table_factory: Callable[..., Table]) -> Table:
    """Indexed, then appended to."""
    table = table_factory()
    table.append(make_rows(0, 900))
    index_head(table)
    table.append(make_rows(900, 950))
    return table


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when something of the base has been copied."""
    done, real = threading.Event(), local._append_range

    def append_range(*args: Any) -> None:
        real(*args)
        done.set()

    monkeypatch.setattr(local, "_append_range", append_range)
    return done


def files(table: Table) -> set[Path]:
    """Hidden ones, too."""
    return {path for path in to_path(table.location()).rglob("*") if path.is_file()}


def test_the_base_is_copied_while_new_shards_are_made(
    changed: Table, copied: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waiting(task: ShardTask) -> ShardResult:
        assert copied.wait(60)
        return make_shard(task)

    monkeypatch.setattr(work, "make_shard", waiting)
    report = index_head(changed)
    assert report.shards_copied == report.shards - 1
    assert found_and_true(changed)[1] >= 0.95


@pytest.mark.parametrize("at", ["task", "gate"])
def test_of_a_refresh_that_fails_meanwhile_no_file_is_left(
    changed: Table, copied: threading.Event, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def failing(_: Any, *__: Any) -> ShardResult:
        assert copied.wait(60)
        raise LostError if at == "task" else GateFailedError

    monkeypatch.setattr(*((work, "make_shard", failing) if at == "task" else (materialize, "pass_gate", failing)))
    before = files(changed)
    with pytest.raises((LostError, GateFailedError)):
        index_head(changed)
    left = {path for path in files(changed) - before if "_icepuffin" not in path.parts}  # staged: for the next attempt
    assert not left
