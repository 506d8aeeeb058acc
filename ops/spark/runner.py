"""Where tasks run. All heavy work is a pure function mapped over frozen tasks; runners differ in where, not in what."""

import pickle
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ops.errors import IcepuffinError
from ops.tasks.run import RESULT_SCHEMA, TaskFailure, pack_call, run_packed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[int, int], None]
"""Told (tasks done, tasks in all)."""


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


class SparkRunner:
    """One Spark task a task, by the DataFrame API alone: local, standalone, YARN, Kubernetes or Spark Connect.

    `session` is a live session, or what opens one: it is opened for the first task, not for work that turns out to be
    done. Lost workers are retried by Spark; tasks are idempotent.
    """

    def __init__(self, session: "SparkSession | Callable[[], SparkSession]", *, task_threads: int = 1) -> None:
        self._open = session
        self.task_threads = max(1, task_threads)

    @cached_property
    def _session(self) -> "SparkSession":
        return self._open() if callable(self._open) else self._open

    @property
    def parallelism(self) -> int:
        context = getattr(self._session, "_jsc", None)
        if context is None:  # Spark Connect does not say
            return int(self._session.conf.get("spark.sql.shuffle.partitions") or 8)
        return int(context.sc().defaultParallelism())

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, label: str, progress: Progress | None = None
    ) -> list[R]:
        if not tasks:
            return []
        rows = [(number, bytearray(pack_call(function, task))) for number, task in enumerate(tasks)]
        calls = self._session.createDataFrame(rows, "number int, call binary")
        spread = calls.repartitionByRange(len(rows), "number")
        found = spread.mapInArrow(run_packed, RESULT_SCHEMA).collect()
        if progress:
            progress(len(found), len(tasks))
        results: dict[int, Any] = {row["number"]: pickle.loads(bytes(row["result"])) for row in found}  # noqa: S301
        if len(results) != len(tasks):
            raise RunnerError(
                f"{label}: {len(tasks) - len(results)} of {len(tasks)} tasks gave no result; run it again"
            )
        for number in range(len(tasks)):
            if isinstance(results[number], TaskFailure):
                raise results[number].error
        return [results[number] for number in range(len(tasks))]
