"""Tasks run by Spark, through the DataFrame API alone."""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icepuffin.ops.spark.spread import spread_by
from icepuffin.ops.tasks.run import RESULT_SCHEMA, TaskFailure, run_carried, run_packed
from icepuffin.ops.tasks.runner import Progress, R, RunnerError, T
from icepuffin.ops.threads import thread_count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CARRIED_BYTES = 960 << 10
"""Bytes of all tasks of a job up to which each partition gets them all: a shuffle takes longer. A function of over
1 MiB, tasks and all, PySpark would write to the driver's disk"""
_ATTEMPTS = 4
"""Jobs for a task whose store does not answer: as many as Spark makes for a task whose worker is lost"""
_DESCRIPTION = "spark.job.description"


class SparkRunner:
    """Runs heavy work as Spark tasks, by the DataFrame API alone: local, standalone, YARN, Kubernetes or Connect.

    Lost workers are retried by Spark, and tasks whose store did not answer in another job; tasks are idempotent.
    Errors of icepuffin keep their types.

    Parameters
    ----------
    session : pyspark.sql.SparkSession or callable
        A live session, or what opens one: it is opened for the first task, not for work that turns out to be done.
    task_threads : int
        Threads that one task may use.

    Raises
    ------
    ValueError
        `task_threads` is under 1.

    Examples
    --------
    >>> reader = icepuffin.open_index(table, runner=icepuffin.SparkRunner(spark))
    >>> reader.tier  # small, or in this process's memory: no task is needed
    'in-process'
    """

    def __init__(self, session: "SparkSession | Callable[[], SparkSession]", *, task_threads: int = 1) -> None:
        self._open = session
        self.task_threads = thread_count(task_threads)

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
        results: dict[int, Any] = {}
        waiting = dict(enumerate(tasks))
        for _ in range(_ATTEMPTS):
            results |= self._job(function, waiting, label)
            failures = {number: item for number, item in sorted(results.items()) if isinstance(item, TaskFailure)}
            if progress:
                progress(len(tasks) - len(failures), len(tasks))
            if not failures:
                return [results[number] for number in range(len(tasks))]
            if lasting := [failure for failure in failures.values() if not failure.may_pass]:
                raise lasting[0].error
            waiting = {number: tasks[number] for number in failures}
        raise next(iter(failures.values())).error

    def _job(self, function: Callable[[T], R], tasks: Mapping[int, T], label: str) -> dict[int, Any]:
        """Results by number, some of them TaskFailure. Raises RunnerError."""
        with self._described(label):
            returned = self._frame(pickle.dumps(function), tasks).toArrow()
        results: dict[int, Any] = {
            number.as_py(): pickle.loads(result.as_buffer())  # noqa: S301  without a copy of all results
            for number, result in zip(returned["number"], returned["result"], strict=True)
        }
        if results.keys() != tasks.keys():
            raise RunnerError(
                f"{label}: {len(tasks) - len(results)} of {len(tasks)} tasks gave no result; run it again"
            )
        return results

    def _frame(self, function: bytes, tasks: Mapping[int, T]) -> "DataFrame":
        """Results by number, of one partition per task.

        Few bytes of tasks go with the function, to every partition of a range of numbers: one stage, and no shuffle.
        """
        carried = pickle.dumps(dict(tasks))  # what tasks share is in it once
        if len(carried) <= CARRIED_BYTES:
            rows = self._session.range(0, len(tasks), 1, len(tasks))
            return rows.mapInArrow(partial(run_carried, function, carried), RESULT_SCHEMA)
        calls = pa.table(
            {
                "number": pa.array(tasks, pa.int32()),
                "task": pa.array([pickle.dumps(task) for task in tasks.values()], pa.binary()),
            }
        )
        spread = spread_by(self._session.createDataFrame(calls), "number", len(tasks))
        return spread.mapInArrow(partial(run_packed, function), RESULT_SCHEMA)

    @contextmanager
    def _described(self, label: str) -> Iterator[None]:
        """Jobs are listed by the label in Spark's UI and its event log. Spark Connect has no such description."""
        if not hasattr(self._session, "_jsc"):
            yield
            return
        context = self._session.sparkContext
        before = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, f"icepuffin: {label}")
        try:
            yield
        finally:
            if context._jsc is not None:  # noqa: SLF001  it was stopped: the error of the job remains
                context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None removes it
