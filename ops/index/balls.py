"""Versions of an index without graphs: balls around the vectors of each data file. See docs/concepts.md.

They are made of the files that are new, each read once; the balls of other files are the base version's.
"""

import numpy as np

from icepuffin.ops.index.index_layout import Layout
from icepuffin.ops.index.planning.sizes import balls_per_file
from icepuffin.ops.index.planning.slots import assign_slots, file_table
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.stages import ReadSummary, ShardSet
from icepuffin.ops.model import Action, StorageConfig
from icepuffin.ops.rows.vector_column import element_type_of
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_rows import read_live
from icepuffin.ops.table.row_deletes import deleted_in_turn
from icepuffin.ops.tasks.enclosure import EnclosureTask, enclose
from icepuffin.ops.tasks.task_runner import RunContext, balanced_groups, small_work_runner
from icepuffin.ops.tasks.vectors import VectorColumn, vectors_at, with_vector


def enclose_files(run: RunContext, plan: VersionPlan) -> ShardSet | None:
    """Enclose the vectors of the files that are new. No shard is made.

    Returns None where no live row has a vector. Raises VectorColumnError, StorageError.
    """
    base = plan.base if plan.action is Action.REFRESHED else None
    dims = base.routing.dims if base else _dims(plan, run.storage)
    if dims is None:
        return None
    slotted = assign_slots(plan)
    added = {file.path for file in plan.added}
    new = [(slot, file) for slot, file in slotted if file.path in added]
    column = VectorColumn(plan.schema, plan.field_id, dims, plan.definition.metric, run.storage)
    runner = small_work_runner(run.runner, 4 * dims * sum(file.record_count for _, file in new))
    tasks = [
        EnclosureTask(
            files=group,
            column=column,
            most_balls=balls_per_file(len(slotted), dims),
            seed=plan.definition.seed,
            threads=runner.task_threads,
        )
        for group in balanced_groups(new, runner, lambda item: (item[0], item[1].record_count))
    ]
    enclosed = runner.run(enclose, tasks, label="enclose vectors", progress=run.stage_progress("enclose"))
    read = ReadSummary.from_results(enclosed)
    layout = Layout(np.empty((0, dims), np.float32), np.empty(0, np.uint32), 0, None)
    return ShardSet(layout, file_table(plan, slotted, read.rows, {}, frozenset()), (), read)


def _dims(plan: VersionPlan, storage: StorageConfig) -> int | None:
    """Dimensions of the first vector; None where no live row has one. Reads one batch, mostly."""
    element_type = element_type_of(plan.schema, plan.field_id)
    for file, deleted in deleted_in_turn(lambda path: open_storage(path, storage), plan.live.files):
        store = open_storage(file.path, storage)
        for batch in read_live(store, file, plan.schema, [plan.field_id], deleted=deleted):
            positions, column = with_vector(batch)
            if len(column):
                return len(vectors_at(column[:1], positions[:1], file, None, element_type)[0])
    return None
