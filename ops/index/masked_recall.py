"""Recall of shards that a refresh keeps, measured again where they have lost rows since it was measured."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from icepuffin.ann_kernels.graphs.vamana import Graph
from icepuffin.ops.cache import ShardKey, process_cache
from icepuffin.ops.index.stages import BuildContext
from icepuffin.ops.model import MIB, ShardId
from icepuffin.ops.process.large_arrays import as_floats
from icepuffin.ops.recall.curves import GATE_QUERIES
from icepuffin.ops.recall.shard_recall import ShardRecall
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.tasks.recall_gate import measure_recall
from icepuffin.ops.tasks.rows import live_nodes
from icepuffin.ops.tasks.shard_task import ShardResult
from icepuffin.ops.tasks.task_runner import SMALL_WORK, driver_runner
from icepuffin.puffin.blobs.shard_blob import Shard

_ONE_BYTE_IN = 16
"""Bytes of shards that stay per byte of those that are measured"""
_ALWAYS_MEASURED = 8 * MIB
"""Bytes of shards that are measured however few there are"""
_MANY_CHANGED = 1 / 20
"""Share of a shard's nodes that have changed since its recall was measured, from which on it is measured at any size"""
_COMPARED = 80 * MIB
"""Bytes of shards that are compared with queries, a byte counting once per query: 8 to 64 queries per shard"""
_MIN_QUERIES = 8
_AT_ONCE = 8
"""Queries that are compared with all rows together: as few as are compared without a matrix product, whose threads
would go on spinning for longer than it takes
"""


def measure_masked(context: BuildContext, shards: Collection[ShardResult]) -> dict[ShardId, ShardRecall]:
    """Recall of some of the shards, by id, as they are in the new version. `shards`: all that stay.

    Those with most changed nodes come first, up to a sixteenth of the bytes that stay: at least 8 MiB, and at most 64.
    One beyond these, of any size, follows where a twentieth of its nodes have changed: so a large one is measured some
    times before its tombstones have it rebuilt, and a refresh reads one of these at most.

    The choice never depends on what the shard cache holds, since a version keeps the result; a shard in the cache is
    only sooner read. Lean shards have no vectors to compare, and are not measured. Raises StorageError, PuffinError.
    """
    definition, plan = context.plan.definition, context.plan
    if not definition.holds_vectors or plan.base is None:
        return {}
    chosen = _chosen(shards)
    size = sum(shard.length for shard in chosen)
    queries = min(max(_MIN_QUERIES, _COMPARED // max(1, size)), GATE_QUERIES)
    threads = driver_runner(context.run.runner).task_threads
    recalls = {}
    for result in chosen:
        key = ShardKey(replace(result.stored, addresses=None), result.sha256)
        shard = _read(context, key)
        recall = measure_recall(
            shard,
            np.asarray(shard.vectors),
            live_nodes(shard.count, result.tombstones),
            seed=definition.seed,
            threads=threads,
            queries=queries,
            at_once=_AT_ONCE,
        )
        if definition.vectors == "f16":  # the rounded vectors alone are known
            recall = recall.at_most(ShardRecall(result.written_recall, 0))
        recalls[result.shard_id] = recall
    return recalls


def _chosen(shards: Collection[ShardResult]) -> list[ShardResult]:
    """The shards that are measured."""
    size = sum(shard.length for shard in shards)
    budget = min(max(_ALWAYS_MEASURED, size // _ONE_BYTE_IN), SMALL_WORK)
    outdated = [shard for shard in shards if shard.recall.changed]
    chosen, has_one_more = [], False
    for shard in sorted(outdated, key=lambda shard: (-shard.recall.changed / shard.count, shard.shard_id)):
        if shard.length <= budget:
            budget -= shard.length
        elif not has_one_more and shard.recall.changed >= _MANY_CHANGED * shard.count:
            has_one_more = True
        else:
            continue
        chosen.append(shard)
    return chosen


def _read(context: BuildContext, key: ShardKey) -> Shard:
    """Graph and vectors of a shard, these as f32. It has no addresses."""
    cached = process_cache().find(key, context.run.storage)
    if cached is not None and cached.vectors is not None and isinstance(cached.graph, Graph):
        graph, vectors = cached.graph, cached.vectors
    else:
        reader = open_shard(key.stored, context.run.storage)
        graph = Graph(*reader.read_graph(), reader.header.medoid)
        vectors = as_floats(np.asarray(reader.read_vectors()))
    definition = context.plan.definition
    return Shard(
        metric=definition.metric.code,
        dims=vectors.shape[1],
        max_degree=definition.max_degree,
        search_list=definition.search_list,
        alpha=definition.alpha,
        medoid=graph.medoid,
        neighbors=graph.neighbors,
        degrees=graph.degrees,
        file_slots=np.empty(0, np.uint32),
        row_positions=np.empty(0, np.int64),
        content_hashes=np.empty(0, np.uint64),
        vectors=vectors,
    )
