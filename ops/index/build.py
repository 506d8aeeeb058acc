"""Building all shards of a version from data files."""

from icepuffin.ops.index.plan import VersionPlan
from icepuffin.ops.index.sample import make_layout
from icepuffin.ops.index.slots import file_table, slots_of
from icepuffin.ops.index.stages import BuildContext, Progress, ReadSummary, ShardSet, blocks_by_shard
from icepuffin.ops.model import How, StorageConfig
from icepuffin.ops.tasks.runner import TaskRunner
from icepuffin.ops.tasks.scatter import RowSelection


def build_shards(
    plan: VersionPlan, *, runner: TaskRunner, storage: StorageConfig, progress: Progress | None = None
) -> ShardSet | None:
    """Sample, scatter and build. None where no live row has a vector."""
    layout = make_layout(plan, storage, threads=max(2, runner.task_threads))
    if layout is None:
        return None
    work = BuildContext(plan, layout, slots_of(plan), storage, runner, progress)
    scattered = work.scatter([RowSelection(slot, file) for slot, file in work.slots], layout.partition_to_shard)
    blocks = blocks_by_shard([result.blocks for result in scattered])
    for number, staged in blocks.items():
        work.require_room(number, sum(rows for _, rows in staged))
    tasks = [work.shard_task(number, How.BUILT, blocks.get(number, ())) for number in range(layout.shards)]
    shards = work.make(tasks, plan.live.record_count)
    read = ReadSummary.of(scattered)
    return ShardSet(layout, file_table(plan, work.slots, read.rows, {}), tuple(shards), read)
