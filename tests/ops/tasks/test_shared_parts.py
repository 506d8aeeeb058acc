import pickle
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ops.tasks.shared_parts import LARGE_ARRAY, LONG_TUPLE, pickle_without, shared_parts, unpickle_with

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Task:
    number: int
    arrays: tuple[Bytes, ...]
    files: tuple[str, ...] = ()


def array(value: int, size: int = LARGE_ARRAY) -> Bytes:
    return np.full(size, value, np.uint8)


def test_large_parts_of_several_tasks_are_pickled_once() -> None:
    codebook, files = array(1), tuple(f"file {number}" for number in range(LONG_TUPLE))
    tasks = [Task(number, (codebook, array(number), codebook), files) for number in range(3)]
    parts = shared_parts(tasks)
    assert {id(part) for part in parts} == {id(codebook), id(files)}
    pickled = [pickle_without(task, parts) for task in tasks]
    assert all(LARGE_ARRAY < len(data) < 1.1 * LARGE_ARRAY for data in pickled), "its own array alone"
    elsewhere = pickle.loads(pickle.dumps(parts))  # noqa: S301  our own
    for number, data in enumerate(pickled):
        task = unpickle_with(data, elsewhere)
        assert (task.number, task.files) == (number, files)
        assert [values.tolist() for values in task.arrays] == [values.tolist() for values in tasks[number].arrays]
        assert task.arrays[0] is task.arrays[2] is elsewhere[0 if parts[0] is codebook else 1]


def test_small_parts_and_those_of_one_task_stay_where_they_are() -> None:
    small, short = array(1, LARGE_ARRAY - 1), ("file",) * (LONG_TUPLE - 1)
    tasks = [Task(number, (small, array(number)), short) for number in range(3)]
    assert shared_parts(tasks) == shared_parts(tasks[:1]) == shared_parts([]) == []
    assert unpickle_with(pickle_without(tasks[2], []), []).arrays[1].tolist() == array(2).tolist()
