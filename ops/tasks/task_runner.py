"""Where tasks run. Heavy work is a pure function mapped over frozen tasks; runners differ in where, not in what."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import numpy as np

from icepuffin.ops.errors import UnreachableError
from icepuffin.ops.model import MIB, StorageConfig
from icepuffin.ops.process.large_arrays import LARGEST_IN_MEMORY
from icepuffin.ops.process.memory import memory_bytes
from icepuffin.ops.process.threads import thread_count

if TYPE_CHECKING:
    from pyiceberg.table import Table

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]
"""Callback of (tasks done, tasks in all)."""
StageProgress = Callable[[str, int, int], None]
"""Callback of (stage, tasks done, tasks in all)."""

_MAX_AT_ONCE = 8
_SHARE_AT_ONCE = 1 / 4
"""Share of a job's tasks that run at once in one process: so little of an index is in memory at a time"""
_MEMORY_AT_ONCE = 1 / 2
"""Share of the memory that this process may use, for tasks that run at once"""
_BESIDE_ROWS = 64 * MIB
"""Memory of each task beside its rows: its threads' own, and what malloc keeps for them"""

PROCESS_MEMORY = 512 * MIB
"""Memory of a run's process without rows: Dagster, PyIceberg, Arrow and the kernels"""
SHARD_MEMORY_FACTOR = 2
"""Peak memory of making a shard, in bytes of vectors and neighbours; 1.9 was measured with the reading of the files"""
_CODE_BYTES = 1 / 4
"""Bytes of a vector's code in memory, per byte of the vector as f32"""
UNION_BYTES = 128 * MIB
"""Bytes of unions of theta sketches that all tasks return, at most; up to twice as many where one task per worker
returns that much
"""
SMALL_WORK = 64 * MIB
"""Bytes of vectors or values up to which a refresh works in the driver: sooner than Spark starts a job. Such work is
not recorded; after a fault it is done again.
"""


def node_bytes(dims: int, max_degree: int) -> int:
    """Bytes of a row in a shard that is made: its vector as f32, and its neighbours."""
    return 4 * (dims + max_degree)


def shard_bytes(rows: float, dims: int, max_degree: int) -> float:
    """Bytes of a shard's vectors as f32 and neighbours in memory. Vectors that lie in a file count as their codes; see
    `icepuffin.ops.process.large_arrays`.
    """
    vectors = 4 * dims * rows
    return min(vectors, max(LARGEST_IN_MEMORY, _CODE_BYTES * vectors)) + 4 * max_degree * rows


class RunnerError(UnreachableError):
    """Raised when a runner lost tasks: a job ended without all results, or Spark ended it."""


class TaskRunner(Protocol):
    """Maps a module-level function over tasks. Both are picklable; results come back in the order of the tasks."""

    @property
    def task_threads(self) -> int:
        """Threads that one task may use."""
        ...

    @property
    def parallelism(self) -> int:
        """Tasks that run at once: how finely work is worth splitting."""
        ...

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, label: str, progress: Progress | None = None
    ) -> list[R]:
        """Run all tasks. Raises the first error of ours that a task raised, and RunnerError."""
        ...


@runtime_checkable
class KeepsPlaces(Protocol):
    """A runner whose tasks have places: a cluster's."""

    def in_place(self) -> TaskRunner:
        """The same runner, whose task of a number runs where that of the same number of such a job ran before."""
        ...


class BroadcastBytes(Protocol):
    """Bytes that each machine of a runner gets once."""

    @property
    def value(self) -> bytes:
        """The bytes."""
        ...


@runtime_checkable
class Broadcasts(Protocol):
    """A runner that can send bytes of many jobs once."""

    def broadcast(self, data: bytes, owner: object) -> bytes | BroadcastBytes:
        """The bytes, for as long as `owner` lives; small ones as they are."""
        ...


@runtime_checkable
class HasMemory(Protocol):
    """A task that states its memory: in one process it may run beside others."""

    @property
    def memory_bytes(self) -> int | None:
        """Peak of its memory; None where that is not known beforehand."""
        ...


class LocalRunner:
    """Runs tasks in this process, each with all threads.

    One after the other, so that a task's memory is the job's memory. Of many tasks that state their memory a few run
    at once, since what each does in one thread leaves the other cores idle.
    """

    parallelism = 1

    def __init__(self, threads: int | None = None) -> None:
        """Take so many threads; by default one per core."""
        self.task_threads = thread_count(threads)

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, label: str, progress: Progress | None = None
    ) -> list[R]:
        """Run all tasks. Raises what the first raises that fails; no task begins then, and those at work end first."""
        at_once = self._at_once(tasks)
        if at_once > 1:
            return self._run_at_once(at_once, function, tasks, progress)
        results = []
        for number, task in enumerate(tasks, start=1):
            results.append(function(task))
            if progress:
                progress(number, len(tasks))
        return results

    def _at_once(self, tasks: Sequence[object]) -> int:
        largest = 0
        for task in tasks:
            size = task.memory_bytes if isinstance(task, HasMemory) else None
            if size is None:
                return 1
            largest = max(largest, size)
        memory = memory_bytes()
        room = min(int(_MEMORY_AT_ONCE * memory), memory - PROCESS_MEMORY) // (largest + _BESIDE_ROWS)
        return max(1, min(self.task_threads, _MAX_AT_ONCE, int(_SHARE_AT_ONCE * len(tasks)), room))

    @staticmethod
    def _run_at_once(count: int, function: Callable[[T], R], tasks: Sequence[T], progress: Progress | None) -> list[R]:
        threads = ThreadPoolExecutor(count)
        results = [threads.submit(function, task) for task in tasks]
        try:
            for done, result in enumerate(as_completed(results), start=1):
                result.result()
                if progress:
                    progress(done, len(tasks))
        except BaseException as error:
            # An interrupt is answered at once. What is at work then ends where it next starts threads, or when it is
            # done, and the interpreter waits for that at its exit
            threads.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
            raise
        threads.shutdown()
        return [result.result() for result in results]


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run on one table, from its plan to its commit: what it works on, and by which means."""

    table: "Table"
    storage: StorageConfig
    runner: TaskRunner = field(default_factory=LocalRunner)
    """Runner of tasks; work that is small is done in this process"""
    progress: StageProgress | None = None
    ref: str = "main"
    """Branch or tag that the tags of indexes follow"""

    def stage_progress(self, stage: str) -> Progress | None:
        """A callback for the tasks of one stage; None where nobody watches."""
        return None if self.progress is None else partial(self.progress, stage)


def small_work_runner(runner: TaskRunner, size: int) -> TaskRunner:
    """The runner for work that takes `size` bytes: this process where a job would cost more than the work."""
    return driver_runner(runner) if size <= SMALL_WORK else runner


def driver_runner(runner: TaskRunner) -> LocalRunner:
    """The runner for work that is too small for a job: `runner` where it is local, else all cores of this process."""
    return runner if isinstance(runner, LocalRunner) else LocalRunner()


def placed_runner(runner: TaskRunner) -> TaskRunner:
    """The runner for tasks that find again what earlier ones of the same number have left on their machine."""
    return runner.in_place() if isinstance(runner, KeepsPlaces) else runner


def broadcast_by(runner: TaskRunner, data: bytes, owner: object) -> bytes | BroadcastBytes:
    """The bytes, as they travel with each job of `owner`."""
    return runner.broadcast(data, owner) if isinstance(runner, Broadcasts) else data


def received(data: bytes | BroadcastBytes) -> bytes:
    """The bytes, where a task runs."""
    return data if isinstance(data, bytes) else data.value


def is_local(runner: TaskRunner) -> bool:
    """Whether its tasks run in this process, and share its memory."""
    return isinstance(runner, LocalRunner)


def balanced_groups(
    items: Sequence[T], runner: TaskRunner, order_and_weight: Callable[[T], tuple[int, int]]
) -> list[tuple[T, ...]]:
    """Group items for tasks of about equal weight, two tasks for each that runs at once; each group is in order."""
    groups = min(len(items), 2 * runner.parallelism)
    loads = np.zeros(groups, np.int64)
    members: list[list[T]] = [[] for _ in range(groups)]
    for member in sorted(items, key=lambda member: -order_and_weight(member)[1]):
        lightest = int(loads.argmin())
        members[lightest].append(member)
        loads[lightest] += order_and_weight(member)[1]
    return [tuple(sorted(group, key=lambda member: order_and_weight(member)[0])) for group in members]
