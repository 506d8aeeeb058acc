"""What carrying out a plan will take: rows by shard, bytes, seconds. Made before the work, kept beside what it took.

Rows and bytes come from the plan, the routing blob, the base's location maps (where rows went) and one Parquet footer.
Rows to insert are expected values: which shard a vector goes to is known only when it is read. Seconds come from
`icepuffin.ops.index.rates`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from pyiceberg.table import Table

from icepuffin.ops.datafile import column_names, open_data_file
from icepuffin.ops.index.changes import known_share
from icepuffin.ops.index.deltas import NEW_DELTA, place
from icepuffin.ops.index.plan import VersionPlan
from icepuffin.ops.index.rates import Amounts, predicted_seconds, rows_read
from icepuffin.ops.index.refresh import DeadNodes, find_dead_nodes
from icepuffin.ops.index.report import Action, Estimate, ShardEstimate
from icepuffin.ops.index.sample import choose_shard_count, rows_per_shard
from icepuffin.ops.index.version_reader import OpenVersion, same_files
from icepuffin.ops.model import How, LiveFile, StorageConfig
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.runner import LocalRunner, TaskRunner
from icepuffin.puffin.blobs.routing import ShardEntry

_LOCATION_BYTES = 4
"""Of a node, in a shard's location map and in a staged block's address, about"""
_STAGED_BYTES = 20
_EDGE_BYTES = 1.6


def estimate(
    table: Table,
    plan: VersionPlan,
    *,
    storage: StorageConfig,
    runner: TaskRunner,
    dead: DeadNodes | None = None,
) -> Estimate:
    """Reads metadata, at most a sample of vectors, and location maps where rows have gone, unless `dead` tells already
    which nodes of the base's shards those are. Starts no Spark session.

    Raises what reading them raises: the work would raise the same.
    """
    merged = 0
    if plan.existing is not None or plan.action is Action.EMPTY:
        shards: tuple[ShardEstimate, ...] = ()
        amounts = Amounts()
    else:
        width, dims = _vector_width(plan, storage)
        if plan.base is not None and plan.action is Action.REFRESHED:
            if dead is None:
                dead = find_dead_nodes(plan, plan.base, runner=LocalRunner(), storage=storage)
            shards, merged = _of_refresh(plan, plan.base, dead.nodes, dims, storage)
        else:
            shards = _of_build(plan, dims)
        amounts = _amounts(plan, shards, dims, merged)
        by_lineage = bool(plan.changes.left)  # then vectors are read of new rows alone
        rows = sum(shard.insert for shard in shards) if by_lineage else sum(file.record_count for file in plan.added)
        shards = _with_data_files(shards, rows * width)
    seconds, rates = predicted_seconds(table, plan, amounts, runner)
    return Estimate(
        action=plan.action,
        reason=plan.reason,
        inserted=sum(shard.insert for shard in shards) - merged,
        remapped=sum(shard.remap for shard in shards),
        tombstoned=sum(shard.tombstone for shard in shards),
        merged=merged,
        shards_rebuilt=sum(shard.how is How.REBUILT for shard in shards),
        shards_copied=sum(shard.how.keeps_bytes for shard in shards),
        bytes_read=sum(shard.bytes_read for shard in shards),
        bytes_written=sum(shard.bytes_written for shard in shards),
        seconds=round(seconds, 3),
        rates=rates,
        shards=shards,
    )


def _of_build(plan: VersionPlan, dims: int) -> tuple[ShardEstimate, ...]:
    definition, rows = plan.definition, _live_rows(plan.added)
    count = min(definition.shards or choose_shard_count(rows, dims, definition.max_degree), max(1, rows))
    shares = _spread(rows, np.ones(count))
    size = _node_bytes(plan, dims)
    return tuple(
        ShardEstimate(number, How.BUILT, plan.reason, 0, share, 0, 0, 0, round(share * size), 0)
        for number, share in enumerate(shares)
    )


def _of_refresh(
    plan: VersionPlan, base: OpenVersion, dead: Sequence[npt.NDArray[np.int64]], dims: int, storage: StorageConfig
) -> tuple[tuple[ShardEstimate, ...], int]:
    """(shards, rows dealt out from deltas): as `icepuffin.ops.index.refresh` decides, from counts."""
    entries = base.routing.shards
    gone = [len(now) - len(entry.tombstones) for now, entry in zip(dead, entries, strict=True)]
    arriving = _live_rows(plan.added)
    known = round(arriving * _known(plan, base, storage)) if sum(gone) else 0
    remaps = _spread(min(known, sum(gone)), np.array(gone, np.float64))
    left = [len(now) - remap for now, remap in zip(dead, remaps, strict=True)]
    live = [entry.count - dead_now for entry, dead_now in zip(entries, left, strict=True)]
    firm = base.routing.base_shards
    new = arriving - sum(remaps)
    placement = place(
        plan.definition,
        base_rows=sum(live[:firm]),
        deltas=dict(enumerate(live[firm:], firm)),
        arriving=new,
        largest=rows_per_shard(dims, plan.definition.max_degree),
    )
    inserts = [new if number == placement.target else 0 for number in range(len(entries))]
    merged = sum(live[number] for number in placement.spilled)
    if placement.target is None:
        inserts[:firm] = _spread(new + merged, np.array([max(1, rows) for rows in live[:firm]], np.float64))
    kept = [number for number in range(len(entries)) if number not in (*placement.spilled, *placement.dropped)]
    shards = [
        _shard(plan, at, entries[number], dims, left[number], gone[number], remaps[number], inserts[number])
        for at, number in enumerate(kept)
    ]
    if placement.target == NEW_DELTA:
        size = round(new * _node_bytes(plan, dims))
        shards.append(ShardEstimate(len(kept), How.BUILT, "a delta of the new rows", 0, new, 0, 0, 0, size, 0))
    return tuple(shards), merged


def _shard(
    plan: VersionPlan, number: int, entry: ShardEntry, dims: int, left: int, gone: int, remap: int, insert: int
) -> ShardEstimate:
    """`left`: dead nodes that stay dead; `gone`: nodes that have lost their row."""
    ratio, nodes = plan.definition.rebuild_ratio, entry.count + insert
    looked = _LOCATION_BYTES * entry.count if plan.live_positions_change else 0
    copied = 0
    grown = round(entry.length * nodes / max(1, entry.count)) if entry.count else round(nodes * _node_bytes(plan, dims))
    if left > ratio * nodes:
        how, why = How.REBUILT, f"{left / max(1, nodes):.0%} of its nodes are dead, over {ratio:.0%}"
        read, written = entry.length, round(grown * (nodes - left) / max(1, nodes))
    elif insert:
        how, why, read, written = How.INSERTED, "it takes rows that are new", entry.length, grown
    elif remap:
        how, why, read, written = How.REMAPPED, "its rows moved to other files", 2 * looked, looked
        copied = entry.length - looked
    elif gone:
        how, why, read, written, copied = How.MASKED, "only its tombstones are new", looked, 0, entry.length
    else:
        how, why, read, written, copied = How.COPIED, "nothing came and nothing went", looked, 0, entry.length
    return ShardEstimate(number, how, why, entry.count, insert, remap, gone - remap, read, written, copied)


def _with_data_files(shards: tuple[ShardEstimate, ...], data_bytes: float) -> tuple[ShardEstimate, ...]:
    """Each shard's part of the bytes that are read from data files, by the rows that it gets."""
    parts = _spread(round(data_bytes), np.array([shard.insert + shard.remap for shard in shards], np.float64))
    return tuple(replace(shard, bytes_read=shard.bytes_read + part) for shard, part in zip(shards, parts, strict=True))


def _spread(total: int, weights: npt.NDArray[np.float64]) -> list[int]:
    """`total` in whole parts in proportion to the weights; the parts add up."""
    if not weights.sum():
        return [0] * len(weights)
    ends = np.round(np.cumsum(weights) / weights.sum() * total).astype(np.int64)
    return [int(part) for part in np.diff(ends, prepend=0)]


def _known(plan: VersionPlan, base: OpenVersion, storage: StorageConfig) -> float:
    """Share of the arriving rows that the base has already, by a sample; rows of files that it covers are all known."""
    arriving = _live_rows(plan.added)
    same = {plan.live.files[number].path for number in same_files(base, plan.live).values()}
    new = _live_rows([file for file in plan.added if file.path not in same])
    share = plan.known
    if share is None:
        share = known_share(base, plan.live, plan.schema, plan.field_id, storage) if new else 0.0
    return (share * new + arriving - new) / max(1, arriving)


def _live_rows(files: Sequence[LiveFile]) -> int:
    """Rows that no delete counts; a delete file over several data files is counted for each: a lower bound then."""
    return sum(max(0, file.record_count - sum(item.record_count for item in file.deletes)) for file in files)


def _node_bytes(plan: VersionPlan, dims: int) -> float:
    vectors = {"f32": 4 * dims, "f16": 2 * dims, "none": plan.definition.pq_m}[plan.definition.vectors]
    return vectors + _EDGE_BYTES * plan.definition.max_degree + _STAGED_BYTES


def _vector_width(plan: VersionPlan, storage: StorageConfig) -> tuple[float, int]:
    """(stored bytes of a vector, its dimensions), from the footer of the largest added file or the base."""
    dims = int(plan.base.routing.codebook.shape[1]) if plan.base else 0
    if not plan.added:
        return 0.0, dims
    file = max(plan.added, key=lambda item: item.record_count)
    parquet = open_data_file(open_storage(file.path, storage), file)
    name = column_names(parquet.schema, file, plan.schema).get(plan.field_id)
    size = values = 0
    for group in range(parquet.metadata.num_row_groups):
        row_group = parquet.metadata.row_group(group)
        for number in range(row_group.num_columns):
            chunk = row_group.column(number)
            if chunk.path_in_schema.split(".")[0] == name:
                size, values = size + chunk.total_compressed_size, values + chunk.num_values
    rows = max(1, parquet.metadata.num_rows)
    return size / rows, dims or max(1, values // rows)


def _amounts(plan: VersionPlan, shards: Sequence[ShardEstimate], dims: int, merged: int) -> Amounts:
    return Amounts(
        **rows_read(plan, _live_rows(plan.added), sum(shard.insert for shard in shards) - merged),
        built=sum(_rows_built(shard) for shard in shards),
        inserted=sum(shard.insert for shard in shards if shard.how is How.INSERTED),
        rewritten=sum(shard.nodes for shard in shards if shard.how.rewrites_nodes),
        looked_up=sum(shard.nodes for shard in shards) if plan.live_positions_change else 0,
        copied=sum(shard.bytes_copied for shard in shards),
        dims=dims,
    )


def _rows_built(shard: ShardEstimate) -> int:
    if shard.how is How.BUILT:
        return shard.insert
    return shard.nodes + shard.insert + shard.remap - shard.tombstone if shard.how is How.REBUILT else 0
