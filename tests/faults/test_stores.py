"""Stores that fail: each call once, writes that are cut off, a disk that is full. One retry makes all of it good."""

import errno
import random
import re
import resource
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

import pytest

from icepuffin.ops.binding import commit
from icepuffin.ops.binding.errors import UnknownOutcomeError
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage import StorageError
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.storage.s3 import S3Storage
from tests.faults.stages import (
    FULL,
    SCENARIOS,
    Outcome,
    Stage,
    assert_sound,
    assert_swept_and_nothing_else,
    make_stage,
    read,
)
from tests.services.s3proxy import BUCKET, s3proxy

STRIDE = 1 if FULL else 23
"""Calls per fault: that every call fails once would take a minute"""
S3_STRIDE = 1 if FULL else 124
"""Calls to an S3 server per fault"""
T = TypeVar("T")
_CALLS = ("size", "exists", "read_ranges", "list", "delete", "open_output")
_S3_CALLS = (*_CALLS, "deletion_errors", "read_range", "concat", "now_ms")


class Torn:
    """A stream that breaks in the middle of the first write, in whichever way its store writes."""

    def __init__(self, stream: BinaryIO, full: BinaryIO, store: "FailingStore") -> None:
        """`full`: a file of a disk without space."""
        self._stream = stream
        self._full = full
        self._store = store

    def write(self, data: bytes) -> int:
        self._stream.write(memoryview(data)[: len(data) // 2])
        self._store.fail()

    def upload(self, _: bytes) -> None:
        """Of a multipart upload."""
        self._store.fail()

    def copy(self, *_: object) -> None:
        """Of a multipart upload."""
        self._store.fail()

    def fileno(self) -> int:
        """For those who write past this stream."""
        self._store.has_failed = True
        return self._full.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class FailingStore:
    """Makes the n-th call to any store of a kind fail, by the error that such a store raises; counts all."""

    def __init__(self, patch: pytest.MonkeyPatch, fail_at: int, kind: type[Any]) -> None:
        self.calls = 0
        self.has_failed = False
        self._is_local = kind is LocalStorage
        self.version_calls: list[int] = []
        """Numbers of the calls that open the file of an index"""
        self._fail_at = fail_at
        for name in _CALLS if self._is_local else _S3_CALLS:
            wrap = self._output if name == "open_output" else self._call
            patch.setattr(kind, name, wrap(getattr(kind, name)))

    def _is_due(self) -> bool:
        self.calls += 1
        return self.calls == self._fail_at

    def fail(self) -> NoReturn:
        self.has_failed = True
        raise OSError(errno.EIO, "no answer") if self._is_local else StorageError("no answer")

    def _call(self, through: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self._is_due():
                self.fail()
            return through(*arguments)

        return call

    def _output(self, through: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def call(store: Any, path: str, **options: Any) -> Iterator[Any]:
            due = self._is_due()
            if "/ann-" in path:
                self.version_calls.append(self.calls)
            with through(store, path, **options) as stream:
                if not due:
                    yield stream
                    return
                with Path("/dev/full").open("wb", buffering=0) as full:
                    yield Torn(stream, full, self)

        return call


def undisturbed_run(stage: Stage, kind: type[Any], stride: int, rng: random.Random) -> tuple[Outcome, list[int]]:
    """(what a run publishes that nothing happens to, numbers of its calls to stores of the kind that shall fail: so far
    apart, and those that write the version).
    """
    outcome, store = with_calls(kind, stage.work)
    assert store.calls > 20
    assert store.version_calls
    return outcome, sorted({*drawn_numbers(store.calls, stride, rng), *store.version_calls})


def with_calls(kind: type[Any], act: Callable[[], T]) -> tuple[T, FailingStore]:
    """(what the act returns, the count of its calls to stores of the kind)."""
    with pytest.MonkeyPatch.context() as patch:
        store = FailingStore(patch, 0, kind)
        return act(), store


def drawn_numbers(count: int, stride: int, rng: random.Random) -> range:
    """Numbers of 1 to `count`, so far apart. The first is drawn."""
    return range(1 + rng.randrange(min(stride, count)), count + 1, stride)


@contextmanager
def failing_call(kind: type[Any], number: int) -> Iterator[None]:
    """The call of that number to stores of the kind fails while the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        store = FailingStore(patch, number, kind)
        yield
    assert store.has_failed, f"call {number} did not fail, of {store.calls}"


def assert_failures_survived(
    stage: Stage,
    happens: Callable[[T], AbstractContextManager[None]],
    faults: Sequence[T],
    undisturbed: Outcome,
    *,
    hid_a_version: Callable[[], bool] = lambda: False,
) -> int:
    """Let the faults happen, each in a run of its own. Nothing or all of it is published, and all of it by the
    next run. Returns how many were tried.

    `hid_a_version`: whether a server has just denied that a version's file is there. It is lost then, and the version
    that is made without it is another one, and as good.
    """
    stage.restore()
    before = read(stage.load())
    for fault in faults:
        stage.restore()
        expected = undisturbed
        with happens(fault):
            try:
                outcome = stage.work()
            except (OSError, IcepuffinError):
                assert read(stage.load()) == before, fault
            else:
                if outcome != undisturbed and hid_a_version():
                    assert_sound(stage)
                    expected = outcome
                assert outcome == expected, f"{fault}: a cache may be lost without a word, a version not"
        assert stage.work() == expected, fault
        assert_swept_and_nothing_else(stage)
    return len(faults)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_call_to_the_store_may_fail(
    stages: dict[str, Stage], undisturbed: dict[str, Outcome], scenario: str, survived: Counter[str], rng: random.Random
) -> None:
    stage = stages[scenario]
    stage.restore()
    _, numbers = undisturbed_run(stage, LocalStorage, STRIDE, rng)
    survived["store call failed"] += assert_failures_survived(
        stage, partial(failing_call, LocalStorage), numbers, undisturbed[scenario]
    )


def test_no_index_is_built_anew_because_a_store_did_not_answer(
    stages: dict[str, Stage], undisturbed: dict[str, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that a refresh starts from is whole, and the next run reads it."""
    stage = stages["deletes and an append"]
    stage.restore()
    read_ranges = LocalStorage.read_ranges

    def unanswered(store: LocalStorage, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if "/ann-e-snap" in path:
            raise StorageError("no answer")
        return read_ranges(store, path, ranges)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "read_ranges", unanswered)
        with pytest.raises(StorageError, match="no answer"):
            stage.work()
    assert stage.work() == undisturbed["deletes and an append"]


@pytest.mark.services
def test_each_call_to_an_object_store_may_fail(
    server_scenario: str, tmp_path: Path, survived: Counter[str], rng: random.Random
) -> None:
    with s3proxy(tmp_path) as storage:
        stage = make_bucket_stage(tmp_path, server_scenario, storage)
        outcome, numbers = undisturbed_run(stage, S3Storage, S3_STRIDE, rng)
        survived["S3 call failed"] += assert_failures_survived(
            stage, partial(failing_call, S3Storage), numbers, outcome
        )


def make_bucket_stage(folder: Path, scenario: str, storage: StorageConfig) -> Stage:
    """A stage in the bucket of the server that `s3proxy(folder)` has started."""
    name = scenario.replace(" ", "-")
    return make_stage(folder / "data" / BUCKET / name, scenario, bucket=f"s3://{BUCKET}/{name}", storage=storage)


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """As a full disk: what grows beyond it cannot be written (EFBIG). Needs no rights."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_publishes_nothing_and_the_next_run_succeeds(
    stages: dict[str, Stage], undisturbed: dict[str, Outcome], survived: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full while the file sketches, a shard, its marker or the version is written, and while SQLite commits."""
    monkeypatch.setattr(commit, "COMMIT_ATTEMPTS", 2)  # each waits longer than the one before
    stage = stages["a first build"]
    stage.restore()
    before = read(stage.load())
    size = len(undisturbed["a first build"].index)
    cut_off = set()
    limits = (
        (1, False),
        (size // 4, False),
        (size // 4, True),
        (size // 2, True),
        (size - 1, True),
        (1 << 20, True),
    )
    for limit, has_sketches in limits:
        stage.restore()
        table = stage.load()  # SQLite's own files are of their size while somebody has them open
        if has_sketches:
            stage.sketch(table)
        if limit > size:
            for number in range(
                limit // 4096
            ):  # as many pages in the log of SQLite, the only file that is too large then
                table.catalog.create_namespace(f"n{number}")
        with no_file_larger_than(limit), pytest.raises((OSError, IcepuffinError)) as caught:
            stage.work()
        names = re.findall(rf"{stage.folder}/live/\S+/[^/]+(\.[a-z]+)", str(caught.value))
        cut_off.update(["a commit"] if isinstance(caught.value, UnknownOutcomeError) else names)
        assert read(table.refresh()) == before, limit
        assert stage.work() == undisturbed["a first build"], limit
        assert_swept_and_nothing_else(stage)
        survived["disk full"] += 1
    assert cut_off == {".dann", ".json", ".puffin", "a commit"}
