"""Where work runs, into how many tasks it is cut, and how many of these run at once in one process."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from icepuffin.ops.model import MIB
from icepuffin.ops.tasks import task_runner as module
from icepuffin.ops.tasks.task_runner import LocalRunner, balanced_groups, is_local, small_work_runner
from tests.ops.theta.conftest import ThreadlessRunner

GIB = 1 << 30


def test_work_of_64_mib_stays_in_this_process() -> None:
    distant, local = ThreadlessRunner(), LocalRunner(1)
    assert is_local(small_work_runner(distant, 64 << 20))
    assert small_work_runner(distant, (64 << 20) + 1) is distant
    assert small_work_runner(local, 1) is local


def test_groups_are_in_order_and_of_about_equal_weight() -> None:
    weights = [7, 1, 1, 1, 5, 1, 6, 2]
    groups = balanced_groups(list(enumerate(weights)), ThreadlessRunner(), lambda pair: pair)
    assert sorted(pair for group in groups for pair in group) == list(enumerate(weights))
    assert all(group == tuple(sorted(group)) for group in groups)
    assert sorted(sum(weight for _, weight in group) for group in groups) == [12, 12]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the memory of the machine, 1 TiB before."""

    def with_memory(size: int) -> None:
        monkeypatch.setattr(module, "memory_bytes", lambda: size)

    with_memory(1 << 40)
    return with_memory


@dataclass(frozen=True)
class Task:
    """A task that states its memory."""

    number: int
    memory_bytes: int | None = 0


def tasks_of(*memory: int | None) -> list[Task]:
    return [Task(number, size) for number, size in enumerate(memory)]


def most_at_once(tasks: Sequence[Task], threads: int, expected: int) -> int:
    """Tasks that were at work together. Each waits until as many are as expected; the pause is for one more."""
    lock, at_work, most = threading.Lock(), 0, 0
    together = threading.Barrier(max(1, expected), timeout=600)

    def work(task: Task) -> int:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        together.wait()
        time.sleep(0.02)
        with lock:
            at_work -= 1
        return -task.number

    steps: list[tuple[int, int]] = []
    results = LocalRunner(threads).run(work, tasks, label="work", progress=lambda done, of: steps.append((done, of)))
    assert results == [-task.number for task in tasks]
    assert steps == [(done, len(tasks)) for done in range(1, len(tasks) + 1)]
    return most


@pytest.mark.parametrize(
    ("tasks", "threads", "memory", "expected"),
    [
        (tasks_of(), 8, 1024 * GIB, 0),
        (tasks_of(*7 * [GIB]), 8, 1024 * GIB, 1),
        (tasks_of(*8 * [GIB]), 8, 1024 * GIB, 2),
        (tasks_of(*12 * [GIB]), 2, 1024 * GIB, 2),
        (tasks_of(*12 * [GIB]), 1, 1024 * GIB, 1),
        (tasks_of(*11 * [0], 2 * GIB), 8, 11 * GIB, 2),
        (tasks_of(*12 * [GIB]), 8, GIB, 1),
        (tasks_of(*40 * [GIB]), 16, 1024 * GIB, 8),
        (tasks_of(*39 * [GIB], None), 16, 1024 * GIB, 1),
    ],
)
def test_a_fourth_of_the_tasks_run_at_once_as_cores_and_memory_allow(
    machine: Callable[[int], None], tasks: list[Task], threads: int, memory: int, expected: int
) -> None:
    machine(memory)
    assert most_at_once(tasks, threads, expected) == expected


@pytest.mark.parametrize("size", [0, 16 * MIB, 100 * MIB, GIB])
@pytest.mark.parametrize(("room", "expected"), [(1, 1), (2, 2), (3, 3)])
def test_tasks_leave_the_process_what_its_tag_counts_for_it(
    machine: Callable[[int], None], size: int, room: int, expected: int
) -> None:
    """Where the process is limited to its tag, there is room for one."""
    machine(max(512 * MIB + room * (size + 64 * MIB), 2 * room * (size + 64 * MIB)))
    assert most_at_once(tasks_of(*12 * [size]), 8, expected) == expected
    machine(512 * MIB + size)
    assert most_at_once(tasks_of(*12 * [size]), 8, 1) == 1


def test_tasks_that_do_not_state_their_memory_run_in_the_caller() -> None:
    names = LocalRunner(8).run(lambda _: threading.current_thread(), range(40), label="work")
    assert {*names} == {threading.current_thread()}


def test_after_a_failure_no_task_begins_and_those_at_work_end(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = list[int](), list[int]()
    beside, shut = threading.Event(), threading.Event()

    class Threads(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            shut.set()
            super().shutdown(wait)

    def work(task: Task) -> None:
        begun.append(task.number)
        if task.number == 0:
            assert beside.wait(600)
            raise ValueError("the first")
        beside.set()
        assert shut.wait(600)
        ended.append(task.number)

    monkeypatch.setattr(module, "ThreadPoolExecutor", Threads)
    with pytest.raises(ValueError, match="the first"):
        LocalRunner(2).run(work, tasks_of(*100 * [0]), label="work")
    assert {0, 1} <= {*begun}
    assert len(begun) <= 3, "the thread that failed may begin one more, while those that wait are called off"
    assert sorted(ended) == sorted(begun)[1:]


def test_an_interrupt_does_not_wait_for_the_tasks_at_work() -> None:
    at_work, go_on = threading.Event(), threading.Event()
    begun, ended = [], []

    def work(task: Task) -> None:
        begun.append(task.number)
        if task.number == 0:
            assert at_work.wait(600)
            raise KeyboardInterrupt
        at_work.set()
        assert go_on.wait(600)
        ended.append(task.number)

    try:
        with pytest.raises(KeyboardInterrupt):
            LocalRunner(2).run(work, tasks_of(*100 * [0]), label="work")
        assert len(begun) < 10
        assert not ended
    finally:
        go_on.set()


def test_tasks_that_run_at_once_are_a_fourth_and_each_is_reported_when_it_is_done() -> None:
    assert [LocalRunner(8)._at_once(tasks_of(*count * [0])) for count in (7, 8, 11, 12)] == [1, 2, 2, 3]
    steps: list[tuple[int, int]] = []
    LocalRunner(2).run(lambda _: None, tasks_of(*9 * [0]), label="", progress=lambda done, of: steps.append((done, of)))
    assert steps == [(done, 9) for done in range(1, 10)]
