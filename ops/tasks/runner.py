"""Where tasks run. All heavy work is a pure function mapped over frozen tasks; runners differ in where, not in what."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from icepuffin.ops.errors import IcepuffinError

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]
"""Called with (tasks done, tasks in all)."""


class RunnerError(IcepuffinError):
    """Raised when a runner lost tasks: the job ended without an error and without all results."""


class TaskRunner(Protocol):
    """Maps a module-level function over tasks; both are picklable, results come back in the order of the tasks."""

    @property
    def task_threads(self) -> int:
        """Threads that one task may use."""
        ...

    @property
    def parallelism(self) -> int:
        """Tasks that run at once: how finely work is worth cutting."""
        ...

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, label: str, progress: Progress | None = None
    ) -> list[R]: ...


class LocalRunner:
    """One task after the other in this process, each with all threads: a task's memory is the job's memory."""

    parallelism = 1

    def __init__(self, threads: int = 1) -> None:
        self.task_threads = max(1, threads)

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, label: str, progress: Progress | None = None
    ) -> list[R]:
        results = []
        for number, task in enumerate(tasks, start=1):
            results.append(function(task))
            if progress:
                progress(number, len(tasks))
        return results
