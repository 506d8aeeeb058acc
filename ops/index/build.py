"""Building all shards of a version from data files."""

from icepuffin.ops.index.index_layout import make_layout
from icepuffin.ops.index.planning.slots import assign_slots, file_table
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.recall_across import measured_across
from icepuffin.ops.index.stages import (
    BuildContext,
    ReadSummary,
    ShardSet,
    make_shards,
    require_capacity,
    scatter_rows,
    shard_task,
)
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.model import How, ShardId
from icepuffin.ops.tasks.scatter import RowSelection
from icepuffin.ops.tasks.staged_blocks import blocks_by_destination
from icepuffin.ops.tasks.task_runner import RunContext, driver_runner


def build_shards(run: RunContext, plan: VersionPlan) -> ShardSet | None:
    """Sample the vectors, scatter all rows over the shards, and build each shard's graph.

    Returns None where no live row has a vector. Raises VectorColumnError, ShardTooLargeError, StorageError.
    """
    layout = make_layout(plan, run.storage, threads=driver_runner(run.runner).task_threads)
    if layout is None:
        return None
    context = BuildContext(run, plan, layout, assign_slots(plan))
    selections = [RowSelection(slot, file) for slot, file in context.files]
    scattered = scatter_rows(context, selections, layout.partition_to_shard)
    blocks = blocks_by_destination([result.blocks for result in scattered])
    shard_ids = [ShardId(shard_id) for shard_id in range(layout.shards)]
    for shard_id in shard_ids:
        require_capacity(context, shard_id, sum(rows for _, rows in blocks.get(shard_id, ())))
    tasks = [shard_task(context, shard_id, How.BUILT, blocks.get(shard_id, ())) for shard_id in shard_ids]
    shards = make_shards(context, tasks, plan.live.record_count)
    if layout.routing_queries is not None:
        layout = measured_across(layout, layout.routing_queries, shards, plan.definition.metric)
    read = ReadSummary.from_results(scattered)
    fit = LayoutFit.of_build([shard.live_rows for shard in shards], scattered)
    return ShardSet(layout, file_table(plan, context.files, read.rows, {}), tuple(shards), read, fit=fit)
