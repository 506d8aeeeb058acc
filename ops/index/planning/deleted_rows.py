"""Deleted rows of data files, found in the driver, or by tasks where equality deletes are about many rows."""

from collections.abc import Collection
from itertools import chain

import numpy as np
import numpy.typing as npt

from icepuffin.ops.model import LiveFile, StorageConfig
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.row_deletes import deleted_by_file
from icepuffin.ops.table.shared_deletes import DeleteFilter, compares_keys
from icepuffin.ops.tasks.matching.deleted_row_task import DeletedRowsTask, find_deleted_rows
from icepuffin.ops.tasks.task_runner import SMALL_WORK, TaskRunner, balanced_groups
from icepuffin.puffin.blobs import deletion_vector_blob

_KEY_BYTES = 16
"""Bytes of a row's key, about"""


def deleted_rows(
    files: Collection[LiveFile], storage: StorageConfig, runner: TaskRunner
) -> dict[str, npt.NDArray[np.int64]]:
    """Deleted row positions of each file, int64, ascending, by path. Paths are distinct.

    runner: where the keys of many rows are read. Each task reads all delete files of its files,
    at the same time as the others: that takes no longer, but a delete file is requested by up to all tasks. Files
    without equality deletes are left to this process, which reads each of their delete files once. Raises as
    `deleted_by_file`.
    """
    keyed = DeleteFilter(compares_keys)
    compared = [file for file in files if keyed.select(file.deletes)]
    size = _KEY_BYTES * sum(file.record_count for file in compared)
    if size <= SMALL_WORK or runner.parallelism == 1:
        return deleted_by_file(lambda path: open_storage(path, storage), files)
    groups = balanced_groups(list(enumerate(compared)), runner, lambda item: (item[0], item[1].record_count))
    tasks = [DeletedRowsTask(tuple(file for _, file in group), storage) for group in groups]
    results = runner.run(find_deleted_rows, tasks, label="resolve equality deletes")
    by_tasks = {
        file.path: deletion_vector_blob.decode(rows)
        for (_, file), rows in zip(chain(*groups), chain(*results), strict=True)
    }
    others = [file for file in files if not keyed.select(file.deletes)]
    return deleted_by_file(lambda path: open_storage(path, storage), others) | by_tasks
