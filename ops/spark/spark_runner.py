"""Tasks run by Spark, through the DataFrame API alone."""

import copy
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icepuffin.ops.process.threads import thread_count
from icepuffin.ops.spark.broadcasts import broadcast_for_job, broadcast_for_owner
from icepuffin.ops.spark.errors import reported, require_live
from icepuffin.ops.spark.spark_types import spread_by
from icepuffin.ops.spark.task_placement import Executors, placement_of
from icepuffin.ops.tasks.run import RESULT_SCHEMA, TaskFailure, run_broadcast, run_carried, run_packed
from icepuffin.ops.tasks.shared_parts import pickle_without, shared_parts
from icepuffin.ops.tasks.task_runner import BroadcastBytes, Progress, R, RunnerError, T

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CARRIED_BYTES = 832 << 10
"""Bytes of all tasks of a job up to which each partition gets them all: a shuffle takes longer. With the
`INLINE_BYTES` of a function they are under 1 MiB, which PySpark would write to the driver's disk"""
BROADCAST_BYTES = 112 << 20
"""Bytes of all tasks of a job in place up to which each executor gets them all: one task sends them, and Spark refuses
one of more than `spark.rpc.message.maxSize`, 128 MiB"""
_BATCH_BYTES = 16 << 20
"""Bytes of tasks that go to Spark as one batch, or one task of more: where they are over 48 MiB together, each batch
is a Spark task"""
_ATTEMPTS = 4
"""Jobs for a task whose store does not answer: as many as Spark makes for a task whose worker is lost"""
_DESCRIPTION = "spark.job.description"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


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
    keep_places : bool, optional
        Whether the tasks that search a shard run on the executor that loaded it, as long as there is one. For that
        Spark caches a number per task on the executors. By default they do so in a classic session without dynamic
        allocation: that would keep executors that cache anything, and not every Spark Connect server can cache.

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

    def __init__(
        self,
        session: "SparkSession | Callable[[], SparkSession]",
        *,
        task_threads: int = 1,
        keep_places: bool | None = None,
    ) -> None:
        self._open = session
        self.task_threads = thread_count(task_threads)
        self._keep_places = keep_places
        self.keeps_places = False
        """Whether a job's tasks run where those of the same number ran before"""

    @cached_property
    def _opened(self) -> "SparkSession":
        return self._open() if callable(self._open) else self._open

    @property
    def _session(self) -> "SparkSession":
        """The session. Raises RunnerError where it was stopped."""
        require_live(self._opened)
        return self._opened

    @property
    def parallelism(self) -> int:
        """Cores of the executors; of a runner in place, of those that its partitions are spread over."""
        session = self._opened
        with reported(session, "the number of cores"):
            return placement_of(session).cores(session) if self.keeps_places else Executors.from_session(session).cores

    def in_place(self) -> "SparkRunner":
        """The same runner, whose tasks run where those of the same number ran before, in jobs of as many tasks.

        They run elsewhere where that executor was lost, or stays busy for `spark.locality.wait`.
        """
        _ = self._session  # opened once, not by each of the two
        placed = copy.copy(self)
        placed.keeps_places = self._may_keep_places()
        return placed

    def _may_keep_places(self) -> bool:
        if self._keep_places is not None:
            return self._keep_places
        with reported(self._opened, "a setting"):
            releases = self._opened.conf.get("spark.dynamicAllocation.enabled", "false") or ""
        return hasattr(self._session, "_jsc") and releases.strip().lower() != "true"

    def broadcast(self, data: bytes, owner: object) -> bytes | BroadcastBytes:
        with reported(self._opened, "a broadcast"):
            return broadcast_for_owner(self._opened, data, owner)

    def run(
        self, function: Callable[[T], R], tasks: Sequence[T], *, label: str, progress: Progress | None = None
    ) -> list[R]:
        if not tasks:
            return []
        results: dict[int, Any] = {}
        waiting = dict(enumerate(tasks))
        for _ in range(_ATTEMPTS):
            results |= self._job(function, waiting, len(tasks), label)
            failures = {number: item for number, item in sorted(results.items()) if isinstance(item, TaskFailure)}
            if progress:
                progress(len(tasks) - len(failures), len(tasks))
            if not failures:
                return [results[number] for number in range(len(tasks))]
            if lasting := [failure for failure in failures.values() if not failure.may_pass]:
                raise lasting[0].error
            waiting = {number: tasks[number] for number in failures}
        raise next(iter(failures.values())).error

    def _job(self, function: Callable[[T], R], tasks: Mapping[int, T], count: int, label: str) -> dict[int, Any]:
        """Results by number, some of them TaskFailure, of those of `count` tasks that wait. Raises RunnerError."""
        with reported(self._opened, label), self._described(label), ExitStack() as job:
            call = broadcast_for_job(self._session, pickle.dumps(function), job)
            frame = self._placed_frame(call, tasks, count, job) if self.keeps_places else self._frame(call, tasks, job)
            returned = frame.toArrow()
        results: dict[int, Any] = {
            number.as_py(): pickle.loads(result.as_buffer())  # noqa: S301  without a copy of all results
            for number, result in zip(returned["number"], returned["result"], strict=True)
        }
        if results.keys() != tasks.keys():
            raise RunnerError(
                f"{label}: {len(tasks) - len(results)} of {len(tasks)} tasks gave no result; run it again"
            )
        return results

    def _placed_frame(
        self, function: bytes | BroadcastBytes, tasks: Mapping[int, T], count: int, job: ExitStack
    ) -> "DataFrame":
        """Results by number, of a partition per core, which is cached: one stage. Each has some tasks."""
        partitions, frame = placement_of(self._session).partitions(self._session, count)
        by_partition: dict[int, list[tuple[int, T]]] = {}
        for number, task in tasks.items():
            by_partition.setdefault(partitions[number % len(partitions)], []).append((number, task))
        carried = pickle.dumps(by_partition)
        if len(carried) <= CARRIED_BYTES:
            return frame.mapInArrow(partial(run_carried, function, carried), RESULT_SCHEMA)
        if len(carried) > BROADCAST_BYTES:
            return self._frame(function, tasks, job)
        everywhere = self._sent(pa.table({"tasks": pa.array([carried], pa.binary())}))
        rows = frame.crossJoin(everywhere.hint("broadcast"))
        return rows.mapInArrow(partial(run_broadcast, function), RESULT_SCHEMA)

    def _frame(self, function: bytes | BroadcastBytes, tasks: Mapping[int, T], job: ExitStack) -> "DataFrame":
        """Results by number, of one partition per task.

        Few bytes of tasks go with the function, to every partition of a range of numbers: one stage, and no shuffle.
        So do large parts that several tasks have, whatever their size: each executor gets them once.
        """
        carried = pickle.dumps({partition: [item] for partition, item in enumerate(tasks.items())})  # shared parts once
        if len(carried) <= CARRIED_BYTES:
            rows = self._session.range(0, len(tasks), 1, len(tasks))
            return rows.mapInArrow(partial(run_carried, function, carried), RESULT_SCHEMA)
        parts = shared_parts(list(tasks.values()))
        spread = spread_by(self._sent(_calls(tasks, parts)), "number", len(tasks))
        shared = broadcast_for_job(self._session, pickle.dumps(parts), job)
        return spread.mapInArrow(partial(run_packed, function, shared), RESULT_SCHEMA)

    def _sent(self, rows: pa.Table) -> "DataFrame":
        """The rows as a frame. PySpark cannot make one in a classic session whose batches may have any number of rows:
        another session of the same context makes it, and is the active one no longer than that.
        """
        if not hasattr(self._session, "_jsc") or int(self._session.conf.get(_BATCH_ROWS) or 0) > 0:
            return self._session.createDataFrame(rows)
        other = self._session.newSession()
        other.conf.set(_BATCH_ROWS, 10_000)
        frame = other.createDataFrame(rows)
        self._session.createDataFrame([], "number int")  # Spark takes settings, as of catalogs, from the active session
        return frame

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


def _calls(tasks: Mapping[int, T], parts: Sequence[object]) -> pa.Table:
    """Rows (number int, task binary without the shared parts), in batches of few bytes."""
    batches: list[list[tuple[int, bytes]]] = []
    room = 0
    for number, task in tasks.items():
        pickled = pickle_without(task, parts)
        if len(pickled) > room:
            batches.append([])
            room = _BATCH_BYTES
        batches[-1].append((number, pickled))
        room -= len(pickled)
    schema = pa.schema([("number", pa.int32()), ("task", pa.binary())])
    columns = (zip(*batch, strict=True) for batch in batches)
    return pa.Table.from_batches(
        [
            pa.record_batch([pa.array(numbers, pa.int32()), pa.array(calls, pa.binary())], schema=schema)
            for numbers, calls in columns
        ]
    )
