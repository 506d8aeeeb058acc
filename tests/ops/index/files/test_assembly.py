"""What a version keeps of its base is copied while the rest is made; a refresh that fails leaves nothing of it."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from icepuffin.ops.index import new_version, stages
from icepuffin.ops.index.files import assembly, attribute_blobs, background_file, included_blobs, unread_columns
from icepuffin.ops.storage import StorageError, local_storage
from icepuffin.ops.storage.local_storage import LocalStorage, to_path
from icepuffin.ops.tasks.shard_task import ShardResult, ShardTask, make_shard
from tests.conftest import make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head
from tests.patience import PATIENCE


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
    done, real = threading.Event(), local_storage._append_range

    def append_range(*args: Any) -> None:
        real(*args)
        done.set()

    monkeypatch.setattr(local_storage, "_append_range", append_range)
    return done


def files(table: Table) -> set[Path]:
    """Hidden ones, too."""
    return {path for path in to_path(table.location()).rglob("*") if path.is_file()}


def left(table: Table, before: set[Path]) -> set[Path]:
    """Files that came since, but for those that are staged for the next attempt."""
    return {path for path in files(table) - before if "_icepuffin" not in path.parts}


def test_the_base_is_copied_while_new_shards_are_made(
    changed: Table, copied: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waiting(task: ShardTask) -> ShardResult:
        assert copied.wait(PATIENCE)
        return make_shard(task)

    monkeypatch.setattr(stages, "make_shard", waiting)
    report = index_head(changed)
    assert report.shards_copied == report.shards - 1
    assert answer_with_recall(changed)[1] >= 0.96


@pytest.mark.parametrize("stage", [(stages, "make_shard"), (new_version, "pass_gate"), (assembly, "_read_back")])
def test_a_refresh_that_fails_leaves_no_file(
    changed: Table, copied: threading.Event, monkeypatch: pytest.MonkeyPatch, stage: tuple[Any, str]
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        assert copied.wait(PATIENCE)
        raise LostError

    monkeypatch.setattr(*stage, failing)
    before = files(changed)
    with pytest.raises(LostError):
        index_head(changed)
    assert not left(changed, before)


@pytest.fixture
def heard() -> Iterator[threading.Event]:
    """Set when the main thread hears of Ctrl-C. The handler of a Spark context, which stays in place, raises another
    error once the context is stopped.
    """
    event = threading.Event()

    def interrupt(*_: object) -> None:
        if not event.is_set():
            event.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    yield event
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_the_last_parts_are_written_leaves_no_file(
    changed: Table, heard: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LocalStorage.concat

    def interrupted(*args: Any) -> int:
        copied = real(*args)
        while not heard.wait(0.2):  # one that comes just before the main thread waits for this one does not wake it
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return copied

    before = files(changed)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "concat", interrupted)
        with pytest.raises(KeyboardInterrupt):
            index_head(changed)
    assert not left(changed, before)
    assert index_head(changed).shards_copied


@pytest.mark.parametrize("is_started", [True, False])
def test_ctrl_c_while_a_thread_starts_leaves_no_file(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch, *, is_started: bool
) -> None:
    """The main thread does not come to know of the thread, which writes the file before that or after it."""
    table, threads, interrupted = table_factory(), list[threading.Thread](), threading.Event()
    table.append(make_rows(0, 300))

    class Starting(ThreadPoolExecutor):
        def submit(self, write: Callable[..., Any], /, *arguments: Any, **_: Any) -> Any:
            threads.append(threading.Thread(target=with_pause, args=(write, *arguments)))
            threads[0].start()
            if is_started:
                threads[0].join()
            raise KeyboardInterrupt

    def with_pause(write: Callable[..., Any], *arguments: Any) -> None:
        if not is_started:
            assert interrupted.wait(PATIENCE)
        with contextlib.suppress(CancelledError):
            write(*arguments)

    before = files(table)
    with monkeypatch.context() as patch:
        patch.setattr(background_file, "ThreadPoolExecutor", Starting)
        with pytest.raises(KeyboardInterrupt):
            index_head(table)
        interrupted.set()
        threads[0].join()
    assert not left(table, before)
    assert index_head(table).rows == 300


@pytest.mark.parametrize("error", [StorageError("the store is away"), PermissionError("not yours")])
def test_a_file_that_cannot_be_removed_hides_no_error_of_the_work(tmp_path: Path, error: Exception) -> None:
    class Kept(LocalStorage):
        def delete(self, path: str) -> None:
            raise error

    file = background_file.BackgroundFile(Kept(), f"{tmp_path}/file")
    file.finish([[b"whole"]])
    file.leave(failed=True)
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_a_store_that_fails_while_shards_are_made_is_named_when_they_are(
    changed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards_are_ready = threading.Event()

    def failing(*_: Any) -> None:
        raise StorageError("the store is away")

    def counted(task: ShardTask) -> ShardResult:
        shards_are_ready.set()
        return make_shard(task)

    monkeypatch.setattr(local_storage, "_append_range", failing)
    monkeypatch.setattr(stages, "make_shard", counted)
    before = files(changed)
    with pytest.raises(StorageError, match="the store is away"):
        index_head(changed)
    assert shards_are_ready.is_set()
    assert not left(changed, before)


def test_columns_are_read_of_new_files_alone(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values for conditions, and those for answers."""
    table, read, real = table_factory(), list[list[int]](), unread_columns.unread_columns

    def recorded(*given: Any, **named: Any) -> Any:
        groups, chosen = real(*given, **named)
        read.append([columns.file.record_count for group in groups for columns in group])
        return groups, chosen

    for module in (attribute_blobs, included_blobs):
        monkeypatch.setattr(module, "unread_columns", recorded)
    for first, last in ((0, 60), (60, 65)):
        table.append(make_rows(first, last))
        index_head(table, replace(DEFINITION, shards=1, filters=("section",), include=("name",)))
    assert read == [[60], [60], [5], [5]]
