"""What a Spark Python worker runs: pickled tasks in, pickled results out. No Spark is imported here."""

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.storage import ObjectMissingError, StorageError
from icepuffin.ops.tasks.shared_parts import unpickle_with
from icepuffin.ops.tasks.task_runner import BroadcastBytes, received
from icepuffin.puffin.errors import PuffinError

Sent = bytes | BroadcastBytes
RESULT_SCHEMA = "number int, result binary"


class TaskFailure:
    """An error of ours, handed back as a value: raised inside Spark it would be tried again, whatever it is, and reach
    the driver as a text.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error

    @property
    def may_pass(self) -> bool:
        """Whether the next attempt might fare better: a store may answer again, an object that is gone stays gone."""
        return (
            isinstance(self.error, StorageError)
            and self.error.retryable
            and not isinstance(self.error, ObjectMissingError)
        )


def run_packed(function: Sent, shared: Sent, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Body of `mapInArrow`: rows (number int, task binary) -> rows (number int, result binary).

    `function` goes by its module and name: the partitions import the project themselves. It may be a `partial`, with
    what is the same for all tasks. `shared` are the parts without which tasks are pickled.
    """
    call, parts = pickle.loads(received(function)), pickle.loads(received(shared))  # noqa: S301  made by our own driver, in this very job
    for batch in batches:
        for number, task in zip(batch["number"].to_pylist(), batch["task"].to_pylist(), strict=True):
            yield _result(number, _attempt(call, unpickle_with(task, parts)))


def run_carried(function: Sent, tasks: bytes, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Body of `mapInArrow`: rows (partition bigint) -> rows (number int, result binary).

    `tasks` are the pairs (number, task) of all partitions, by partition.
    """
    call, by_partition = pickle.loads(received(function)), pickle.loads(tasks)  # noqa: S301
    for batch in batches:
        for partition in batch.column(0).to_pylist():
            for number, task in by_partition.get(partition, ()):
                yield _result(number, _attempt(call, task))


def run_broadcast(function: Sent, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Body of `mapInArrow`: rows (partition bigint, tasks binary) -> the same as `run_carried`, of its partition."""
    for batch in batches:
        for row in range(batch.num_rows):
            yield from run_carried(function, batch.column(1)[row].as_py(), [batch.slice(row, 1)])


def _result(number: int, result: Any) -> pa.RecordBatch:
    columns = {"number": pa.array([number], pa.int32()), "result": pa.array([pickle.dumps(result)], pa.binary())}
    return pa.record_batch(columns)


def _attempt(function: Callable[[Any], Any], task: Any) -> Any:
    try:
        return function(task)
    except (IcepuffinError, KernelError, PuffinError) as error:
        return TaskFailure(error)
