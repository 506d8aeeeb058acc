"""Building all shards of a version from data files."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.index_layout import Layout, make_layout
from icepuffin.ops.index.planning.slots import assign_slots, file_table
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.routing_recall import curve_in_table
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
from icepuffin.ops.recall.curves import WIDE_K, combined, widths
from icepuffin.ops.recall.shard_recall import BY_DEFAULTS, DECIMALS, AcrossShards, mean_recall
from icepuffin.ops.tasks.found_rows import recalls_of_all
from icepuffin.ops.tasks.scatter import RowSelection
from icepuffin.ops.tasks.shard_task import ShardResult
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
        layout = _measured(layout, layout.routing_queries, shards, plan.definition.metric)
    read = ReadSummary.from_results(scattered)
    fit = LayoutFit.of_build([shard.live_rows for shard in shards], scattered)
    return ShardSet(layout, file_table(plan, context.files, read.rows, {}), tuple(shards), read, fit=fit)


def _measured(
    layout: Layout, queries: npt.NDArray[np.float32], shards: Sequence[ShardResult], metric: Metric
) -> Layout:
    """The layout, with what the shards tell together of searches for the queries f32[Q, D]."""
    distances: Any = [shard.routing for shard in shards]
    curve = curve_in_table(layout.codebook, layout.partition_to_shard, queries, distances, metric)
    return replace(layout, routing_curve=curve, across=_across_shards(queries, shards, metric))


def _across_shards(queries: npt.NDArray[np.float32], shards: Sequence[ShardResult], metric: Metric) -> AcrossShards:
    """What searches of all shards find, beside the mean of what is found in each alone."""
    points = []
    for parts in zip(*(shard.found for shard in shards if shard.found), strict=True):
        k = parts[0].k
        curve = combined([(widths(shard.curve, k), shard.live_rows) for shard in shards])
        alone = {(point.search_list, point.oversample): point.recall for point in curve}
        recalls = [(it.recall.recall, it.live_rows) for it in shards]
        if k == WIDE_K:
            recalls = [(it.recall.wide_recall, it.live_rows) for it in shards if it.recall.wide_queries]
        alone[BY_DEFAULTS] = mean_recall(recalls, 1.0) or 0.0
        for parameters, recall in recalls_of_all(parts, queries, metric).items():
            if alone.get(parameters):
                points.append((*parameters, k, round(recall / alone[parameters], DECIMALS)))
    return AcrossShards(tuple(points))
