"""The columns of data files whose values a new version does not have yet: for conditions, and for answers."""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence

from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.model import FileSlot, LiveFile
from icepuffin.ops.storage import relative_to
from icepuffin.ops.tasks.attribute_task import ColumnsOfFile
from icepuffin.ops.tasks.task_runner import TaskRunner, balanced_groups, small_work_runner
from icepuffin.puffin.blobs.routing_blob import CoveredFile


def live_files_by_slot(plan: VersionPlan, files: Sequence[CoveredFile]) -> dict[FileSlot, LiveFile]:
    """The live files of a version's file table."""
    by_path = {relative_to(file.path, plan.live.location): file for file in plan.live.files}
    return {FileSlot(slot): by_path[file.path] for slot, file in enumerate(files) if file.present}


def unread_columns(
    plan: VersionPlan,
    files: Mapping[FileSlot, LiveFile],
    kept: Mapping[int, Container[FileSlot]],
    runner: TaskRunner,
    *,
    of_words: bool = False,
) -> tuple[list[tuple[ColumnsOfFile, ...]], TaskRunner]:
    """(columns of each file to read, in a group per task; the runner of the tasks). `kept`: slots of the files whose
    values, or words, are there already, by field id.
    """
    missing = defaultdict[FileSlot, list[int]](list)
    for field_id, slots in kept.items():
        for slot in files:
            if slot not in slots:
                missing[slot].append(field_id)
    selected = [ColumnsOfFile(slot, files[slot], tuple(missing[slot])) for slot in sorted(missing)]
    sizes = (columns.file.size if of_words else columns.size(plan.column_schema) for columns in selected)
    chosen = small_work_runner(runner, sum(sizes))
    return balanced_groups(selected, chosen, lambda columns: (columns.slot, columns.file.record_count)), chosen
