"""Estimates of a plan: rows by shard, bytes and seconds, made before the work.

Rows and bytes come from the plan, the routing blob, the base version's location maps (if rows have gone) and one
Parquet footer per column. Rows to insert are expected values: the shard of a vector is known only when it is read.
Seconds come from `icepuffin.ops.index.planning.rates`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from icepuffin.ann_kernels.codes.code_sizes import rotated_bytes
from icepuffin.ops.index.planning.changes import sample_new_rows
from icepuffin.ops.index.planning.dead_nodes import DeadNodes, find_dead_nodes
from icepuffin.ops.index.planning.deltas import NEW_DELTA, place
from icepuffin.ops.index.planning.index_report import Estimate, ShardEstimate
from icepuffin.ops.index.planning.rates import Amounts, predicted_seconds, rows_read
from icepuffin.ops.index.planning.sizes import (
    ADDRESS_BYTES,
    EDGE_BYTES,
    balls_per_file,
    cell_row_bytes,
    choose_shard_count,
    rows_per_shard,
    why_rebuilt,
)
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.index.versions.version_sizes import fit_of
from icepuffin.ops.model import Action, How, LiveFile, ShardId, StorageConfig
from icepuffin.ops.rows.datafile import column_names, open_data_file
from icepuffin.ops.rows.element_types import OF_COLUMN, dims_of
from icepuffin.ops.rows.vector_column import element_type_of
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.shared_deletes import DeleteFilter, compares_keys
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin.blobs.routing_blob import ShardEntry

_LOCATION_BYTES = 4
"""Bytes per node in a shard's location map, about"""


def estimate(run: RunContext, plan: VersionPlan, *, dead: DeadNodes | None = None) -> Estimate:
    """Estimate the work of a plan. Starts no Spark session.

    Reads metadata, at most a sample of vectors and, where rows have gone, location maps; these not where `dead` holds
    the nodes without rows. Raises StorageError, PuffinError, DataFileError, as the work itself would.
    """
    merged = columns = 0
    if plan.existing is not None or plan.action is Action.EMPTY:
        shards: tuple[ShardEstimate, ...] = ()
        amounts = Amounts()
    elif not plan.definition.has_graphs:
        return _of_balls(run, plan)
    else:
        width, dims = _vector_width(plan, run.storage)
        if plan.base is not None and plan.action is Action.REFRESHED:
            dead = dead or plan.dead
            if dead is None:
                dead = find_dead_nodes(replace(run, runner=LocalRunner()), plan.changes, plan.base)
            shards, merged = _of_refresh(plan, plan.base, dead.nodes, dims, run.storage)
        else:
            shards = _of_build(plan, dims)
        amounts = _amounts(plan, shards, dims, merged)
        by_lineage = bool(plan.changes.lineage_files)  # then vectors are read of new rows alone
        rows = sum(shard.insert for shard in shards) if by_lineage else sum(file.record_count for file in plan.added)
        shards = _with_data_files(shards, rows * width)
        columns = _column_bytes(plan, run.storage)
    seconds, rates = predicted_seconds(run, plan, amounts)
    return Estimate(
        action=plan.action,
        reason=plan.reason,
        inserted=sum(shard.insert for shard in shards) - merged,
        remapped=sum(shard.remap for shard in shards),
        tombstoned=sum(shard.tombstone for shard in shards),
        merged=merged,
        shards_rebuilt=sum(shard.how is How.REBUILT for shard in shards),
        shards_copied=sum(shard.how.keeps_bytes for shard in shards),
        bytes_read=sum(shard.bytes_read for shard in shards) + columns,
        bytes_written=sum(shard.bytes_written for shard in shards),
        seconds=round(seconds, 3),
        rates=rates,
        shards=shards,
    )


def _of_balls(run: RunContext, plan: VersionPlan) -> Estimate:
    """A version without graphs reads the files that are new, and writes all balls."""
    width, dims = _vector_width(plan, run.storage)
    rows, files = _live_rows(plan.added), len(plan.live.files)
    seconds, rates = predicted_seconds(run, plan, Amounts(**rows_read(plan, rows, rows), dims=dims))
    return Estimate(
        action=plan.action,
        reason=plan.reason,
        inserted=rows,
        remapped=0,
        tombstoned=0,
        merged=0,
        shards_rebuilt=0,
        shards_copied=0,
        bytes_read=round(rows * width) + _column_bytes(plan, run.storage),
        bytes_written=files * balls_per_file(files, dims) * (4 * dims + 8),
        seconds=round(seconds, 3),
        rates=rates,
    )


def _of_build(plan: VersionPlan, dims: int) -> tuple[ShardEstimate, ...]:
    definition, rows = plan.definition, _live_rows(plan.added)
    count = min(definition.shards or choose_shard_count(rows, dims, definition.max_degree), max(1, rows))
    shares = _spread(rows, np.ones(count))
    size = _node_bytes(plan, dims)
    return tuple(
        ShardEstimate(ShardId(shard_id), How.BUILT, plan.reason, 0, share, 0, 0, 0, round(share * size), 0)
        for shard_id, share in enumerate(shares)
    )


def _of_refresh(
    plan: VersionPlan, base: OpenVersion, dead: Sequence[npt.NDArray[np.int64]], dims: int, storage: StorageConfig
) -> tuple[tuple[ShardEstimate, ...], int]:
    """(shards, rows that move out of deltas): what `icepuffin.ops.index.refresh` would decide, from counts."""
    entries = base.routing.shards
    newly_dead = [len(now) - len(entry.tombstones) for now, entry in zip(dead, entries, strict=True)]
    arriving = _live_rows(plan.added)
    moved = round(arriving * _moved_fraction(plan, base, dead, storage)) if sum(newly_dead) else 0
    dead_nodes = [len(now) for now in dead]  # tombstones of the base version, too: their rows may have come back
    remaps = _spread(min(moved, sum(dead_nodes)), np.array(dead_nodes, np.float64))
    tombstones = [len(now) - remap for now, remap in zip(dead, remaps, strict=True)]
    live_rows = [entry.count - count for entry, count in zip(entries, tombstones, strict=True)]
    routed_shards = base.routing.routed_shards
    new = arriving - sum(remaps)
    placement = place(
        plan.definition,
        routed_rows=sum(live_rows[:routed_shards]),
        deltas={ShardId(shard_id): rows for shard_id, rows in enumerate(live_rows[routed_shards:], routed_shards)},
        arriving=new,
        largest=rows_per_shard(dims, plan.definition.max_degree),
    )
    inserts = [new if shard_id == placement.target else 0 for shard_id in range(len(entries))]
    merged = sum(live_rows[shard_id] for shard_id in placement.dissolved)
    if placement.target is None:
        inserts[:routed_shards] = _spread(
            new + merged, np.array([max(1, rows) for rows in live_rows[:routed_shards]], np.float64)
        )
    kept = [i for i in range(len(entries)) if i not in (*placement.dissolved, *placement.dropped)]
    shards = [
        _shard(plan, ShardId(shard_id), entries[i], dims, tombstones[i], newly_dead[i], remaps[i], inserts[i])
        for shard_id, i in enumerate(kept)
    ]
    is_outdated = fit_of(base.bound.sizes).outdates_recall(sum(live_rows) + new, new)
    if is_outdated and placement.may_read_shards(plan.definition) and len(shards) + (placement.target == NEW_DELTA) > 1:
        shards = [
            replace(shard, bytes_read=entries[i].all_bytes) if shard.how.keeps_bytes else shard
            for shard, i in zip(shards, kept, strict=True)
        ]
    if placement.target == NEW_DELTA:
        size = round(new * _node_bytes(plan, dims))
        shards.append(ShardEstimate(ShardId(len(kept)), How.BUILT, "a delta of the new rows", 0, new, 0, 0, 0, size, 0))
    return tuple(shards), merged


def _shard(
    plan: VersionPlan,
    shard_id: ShardId,
    entry: ShardEntry,
    dims: int,
    tombstones: int,
    newly_dead: int,
    remap: int,
    insert: int,
) -> ShardEstimate:
    """`tombstones`: those of the new version; `newly_dead`: nodes without a row at their address, remapped ones too."""
    nodes = entry.count + insert
    location_bytes = _LOCATION_BYTES * entry.count if plan.changes.move_live_positions else 0
    own_bytes, copied = entry.bytes_by_pack.get(0, 0), 0
    grown = round(entry.all_bytes * nodes / max(1, entry.count))
    grown = grown if entry.count else round(nodes * _node_bytes(plan, dims))
    if why := why_rebuilt(plan.definition, dims, entry, tombstones, insert):
        how, read, written = How.REBUILT, entry.all_bytes, round(grown * (nodes - tombstones) / max(1, nodes))
    elif insert:
        how, why, read, written = How.INSERTED, "it takes rows that are new", entry.all_bytes, grown
        copied = own_bytes - (0 if entry.pack else entry.length)
        written -= entry.all_bytes - entry.length
    elif remap:
        how, why, read, written = How.REMAPPED, "its rows moved to other files", 2 * location_bytes, location_bytes
        copied = own_bytes
    else:
        how = How.MASKED if newly_dead else How.COPIED
        why = "only its tombstones are new" if newly_dead else "no row is new, moved or gone"
        read, written, copied = location_bytes, 0, own_bytes
        copied += entry.addresses.length if entry.addresses else 0
    gone = max(0, newly_dead - remap)
    return ShardEstimate(shard_id, how, why, entry.count, insert, remap, gone, read, written, copied)


def _with_data_files(shards: tuple[ShardEstimate, ...], data_bytes: float) -> tuple[ShardEstimate, ...]:
    """Add the bytes that are read from data files, split over the shards by the rows that they get."""
    parts = _spread(round(data_bytes), np.array([shard.insert + shard.remap for shard in shards], np.float64))
    return tuple(replace(shard, bytes_read=shard.bytes_read + part) for shard, part in zip(shards, parts, strict=True))


def _spread(total: int, weights: npt.NDArray[np.float64]) -> list[int]:
    """Split `total` into integers in proportion to the weights; they add up to it."""
    if not weights.sum():
        return [0] * len(weights)
    ends = np.round(np.cumsum(weights) / weights.sum() * total).astype(np.int64)
    return [int(part) for part in np.diff(ends, prepend=0)]


def _moved_fraction(
    plan: VersionPlan, base: OpenVersion, dead: Sequence[npt.NDArray[np.int64]], storage: StorageConfig
) -> float:
    """Share of the arriving rows that a node without a row has the vector of, by a sample; it is 1 for rows of files
    that the base version covers.
    """
    share = plan.shared_fraction
    if share is None or any(len(now) < entry.count for now, entry in zip(dead, base.routing.shards, strict=True)):
        arriving, files = _live_rows(plan.added), plan.changes.new
        new = _live_rows(files)
        sample = sample_new_rows(base, files, plan.schema, plan.field_id, storage, among=dead) if new else None
        share = ((sample.shared if sample else 0.0) * new + arriving - new) / max(1, arriving)
    return share


def _live_rows(files: Sequence[LiveFile]) -> int:
    """Rows less deleted rows. A delete file of several data files counts for each of them: then it is a lower bound.
    Equality deletes count for none: which rows they remove is known once the files' keys are read.
    """
    counted = DeleteFilter(lambda delete: not compares_keys(delete))
    deleted = ((delete.record_count for delete in counted.select(file.deletes)) for file in files)
    return sum(max(0, file.record_count - sum(counts)) for file, counts in zip(files, deleted, strict=True))


def _node_bytes(plan: VersionPlan, dims: int) -> float:
    definition = plan.definition
    vectors = {"f32": 4 * dims, "f16": 2 * dims}.get(definition.vectors, definition.pq_m)
    if definition.code_bits:
        vectors = rotated_bytes(dims, definition.code_bits)
    vectors += cell_row_bytes(definition, dims)
    return vectors + EDGE_BYTES * definition.max_degree + ADDRESS_BYTES


def _vector_width(plan: VersionPlan, storage: StorageConfig) -> tuple[float, int]:
    """(stored bytes per vector, its dimensions), from the footer of the largest added file and the base version."""
    dims = int(plan.base.routing.codebook.shape[1]) if plan.base else 0
    if not plan.added:
        return 0.0, dims
    element_type = element_type_of(plan.schema, plan.field_id)
    width, values, raw, rows = _stored_width(plan.added, plan.schema, plan.field_id, storage)
    of_column = values if element_type == OF_COLUMN else dims_of(raw, element_type)
    return width, dims or max(1, of_column // rows)


def _column_bytes(plan: VersionPlan, storage: StorageConfig) -> int:
    """Stored bytes of the included columns and of those of texts, as far as they are read: of files that are added, and
    of all files where the base version lacks a column.
    """
    base = plan.base if plan.action is Action.REFRESHED else None
    total = 0.0
    for field_ids, known in (
        (plan.include_ids, base.included if base else ()),
        (plan.text_ids, base.texts if base else ()),
    ):
        for field_id in field_ids:
            files = plan.added if field_id in known else plan.live.files
            if files:
                width, *_ = _stored_width(files, plan.column_schema, field_id, storage)
                total += width * sum(file.record_count for file in files)
    return round(total)


def _stored_width(
    files: Sequence[LiveFile], schema: Schema, field_id: int, storage: StorageConfig
) -> tuple[float, int, int, int]:
    """(stored bytes per row of a column, its values, its bytes as they were encoded, rows) in the largest of files."""
    file = max(files, key=lambda item: item.record_count)
    parquet = open_data_file(open_storage(file.path, storage), file)
    name = column_names(parquet.schema, file, schema).get(field_id)
    groups = range(parquet.metadata.num_row_groups)
    chunks = [chunk for group in groups for column, chunk in parquet.chunks(group) if column == name]
    rows = max(1, parquet.metadata.num_rows)
    stored, values = sum(it.total_compressed_size for it in chunks), sum(it.num_values for it in chunks)
    return stored / rows, values, sum(it.total_uncompressed_size for it in chunks), rows


def _amounts(plan: VersionPlan, shards: Sequence[ShardEstimate], dims: int, merged: int) -> Amounts:
    return Amounts(
        **rows_read(plan, _live_rows(plan.added), sum(shard.insert for shard in shards) - merged),
        built=sum(_rows_built(shard) for shard in shards),
        inserted=sum(shard.insert for shard in shards if shard.how is How.INSERTED),
        rewritten=sum(shard.nodes for shard in shards if shard.how.rewrites_nodes),
        looked_up=sum(shard.nodes for shard in shards) if plan.changes.move_live_positions else 0,
        copied=sum(shard.bytes_copied for shard in shards),
        dims=dims,
    )


def _rows_built(shard: ShardEstimate) -> int:
    if shard.how is How.BUILT:
        return shard.insert
    return shard.nodes + shard.insert + shard.remap - shard.tombstone if shard.how is How.REBUILT else 0
