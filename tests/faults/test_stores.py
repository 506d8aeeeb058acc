"""Stores that fail: each call once, writes that are cut off, a disk that is full. One retry makes all of it good."""

import errno
import resource
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pytest

from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage.local import LocalStorage
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

STRIDE = 1 if FULL else 11
"""Calls per fault: that every call fails once would take a minute"""
S3_STRIDE = 1 if FULL else 62
"""Calls to an S3 server per fault"""
T = TypeVar("T")
_CALLS = ("size", "exists", "read_ranges", "list", "delete", "open_output")
_S3_CALLS = (*_CALLS, "deletion_errors", "read_range", "concat", "now_ms")


class Torn:
    """A stream that breaks in the middle of the first write."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        self._stream.write(memoryview(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class FailingStore:
    """Makes the n-th call to any store of a kind fail; counts all."""

    def __init__(self, patch: pytest.MonkeyPatch, fail_at: int, kind: type[Any]) -> None:
        self.calls = 0
        self._fail_at = fail_at
        for name in _CALLS if kind is LocalStorage else _S3_CALLS:
            wrap = self._output if name == "open_output" else self._call
            patch.setattr(kind, name, wrap(getattr(kind, name)))

    def _is_due(self) -> bool:
        self.calls += 1
        return self.calls == self._fail_at

    def _call(self, through: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self._is_due():
                raise OSError(errno.EIO, "the store does not answer")
            return through(*arguments)

        return call

    def _output(self, through: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def call(store: Any, path: str, **options: Any) -> Iterator[Any]:
            due = self._is_due()
            with through(store, path, **options) as stream:
                yield Torn(stream) if due else stream

        return call


def undisturbed_run(stage: Stage, kind: type[Any]) -> tuple[Outcome, int]:
    """(what a run publishes that nothing happens to, the number of its calls to stores of the kind)."""
    outcome, calls = with_calls(kind, stage.work)
    assert calls > 20
    return outcome, calls


def with_calls(kind: type[Any], act: Callable[[], T]) -> tuple[T, int]:
    """(what the act returns, the number of its calls to stores of the kind)."""
    with pytest.MonkeyPatch.context() as patch:
        store = FailingStore(patch, 0, kind)
        return act(), store.calls


def drawn_numbers(count: int, stride: int) -> range:
    """Numbers of 1 to `count`, so far apart. The first is drawn anew in each run."""
    return range(1 + secrets.randbelow(min(stride, count)), count + 1, stride)


@contextmanager
def failing_call(kind: type[Any], number: int) -> Iterator[None]:
    """The call of that number to stores of the kind fails while the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        FailingStore(patch, number, kind)
        yield


def assert_failures_survived(
    stage: Stage,
    fault: Callable[[int], AbstractContextManager[None]],
    numbers: Sequence[int],
    undisturbed: Outcome,
    *,
    hid_a_version: Callable[[], bool] = lambda: False,
) -> int:
    """Let the numbered faults happen, each in a run of its own. Nothing or all of it is published, and all of it by the
    next run. Returns how many were tried.

    `hid_a_version`: whether a server has just denied that a version's file is there. It is lost then, and the version
    that is made without it is another one, and as good.
    """
    stage.restore()
    before = read(stage.load())
    for number in numbers:
        stage.restore()
        expected = undisturbed
        with fault(number):
            try:
                outcome = stage.work()
            except (OSError, IcepuffinError):
                assert read(stage.load()) == before, number
            else:
                if outcome != undisturbed and hid_a_version():
                    assert_sound(stage)
                    expected = outcome
                assert outcome == expected, f"{number}: a cache may be lost without a word, a version not"
        assert stage.work() == expected, number
        assert_swept_and_nothing_else(stage)
    return len(numbers)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_call_to_the_store_may_fail(
    stages: dict[str, Stage], undisturbed: dict[str, Outcome], scenario: str, survived: Counter[str]
) -> None:
    stage = stages[scenario]
    stage.restore()
    _, calls = undisturbed_run(stage, LocalStorage)
    numbers = range(1 + list(SCENARIOS).index(scenario), calls + 1, STRIDE)
    survived["store call failed"] += assert_failures_survived(
        stage, partial(failing_call, LocalStorage), numbers, undisturbed[scenario]
    )


def scenarios_on_servers() -> list[str]:
    """All where each fault is tried; else one, drawn anew in each run: a call to a server takes long."""
    return list(SCENARIOS) if FULL else [secrets.choice(list(SCENARIOS))]


@pytest.mark.services
def test_each_call_to_an_object_store_may_fail(tmp_path: Path, survived: Counter[str]) -> None:
    with s3proxy(tmp_path) as storage:
        for scenario in scenarios_on_servers():
            stage = make_bucket_stage(tmp_path, scenario, storage)
            outcome, calls = undisturbed_run(stage, S3Storage)
            survived["S3 call failed"] += assert_failures_survived(
                stage, partial(failing_call, S3Storage), drawn_numbers(calls, S3_STRIDE), outcome
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
    stages: dict[str, Stage], undisturbed: dict[str, Outcome], survived: Counter[str]
) -> None:
    stage = stages["a first build"]
    before = read(stage.load())
    size = len(undisturbed["a first build"].index)
    named = f"{stage.folder}/live/|catalog 'test' cannot be opened"
    for limit in (1, size // 8, size // 4, size // 2, size - 1):
        stage.restore()
        with no_file_larger_than(limit), pytest.raises((OSError, IcepuffinError), match=named):
            stage.work()
        assert read(stage.load()) == before, limit
        assert stage.work() == undisturbed["a first build"], limit
        assert_swept_and_nothing_else(stage)
        survived["disk full"] += 1
