"""Recall of searches of all shards, measured when all are built, and again once many rows have come since."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.index_layout import Layout, draw_sample
from icepuffin.ops.index.planning.sizes import SMALLEST_SAMPLE
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.routing_recall import curve_in_table, routing_queries, split_off_queries
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.recall.curves import DECIMALS, WIDE_K, combined, widths
from icepuffin.ops.recall.shard_recall import BY_DEFAULTS, AcrossShards, mean_recall
from icepuffin.ops.tasks.found_rows import recalls_of_all
from icepuffin.ops.tasks.shard_task import ShardResult


def draw_queries(plan: VersionPlan, shards: int, storage: StorageConfig) -> npt.NDArray[np.float32] | None:
    """f32[Q, D], prepared: random rows of the table, by which so many shards are to be measured; None for very few.

    Raises VectorColumnError, DataFileError, StorageError.
    """
    sample, count = draw_sample(plan, storage, at_most=SMALLEST_SAMPLE), routing_queries(plan.live.record_count, shards)
    _, queries = split_off_queries(sample, shards, queries=count, seed=plan.definition.seed)
    return queries if len(queries) else None


def measured_across(
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
