"""What carrying out a plan will take: rows by shard, bytes, seconds. Made before the work, kept beside what it took.

Rows and bytes come from the plan, the routing blob, the base's location maps (where rows went) and one Parquet footer.
Rows to insert are expected values: which shard a vector goes to is known only when it is read. Seconds come from
`ops.index.rates`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.table import Table

from ops.catalog.deletes import deleted_by_file
from ops.datafile import open_data_file
from ops.index.plan import VersionPlan
from ops.index.rates import Amounts, predicted_seconds
from ops.index.recognize import known_share
from ops.index.report import Action
from ops.index.sample import choose_shards
from ops.index.versions import OpenVersion, covered_paths
from ops.model import LiveFile, StorageConfig
from ops.spark.runner import TaskRunner
from ops.storage import PartSource, open_storage, relative_to
from puffin.blobs.routing import ShardEntry
from puffin.blobs.shard import ShardReader

_LOCATION_BYTES = 4
"""Of a node, in a shard's location map and in a staged block's address, about"""
_STAGED_BYTES = 20
_EDGE_BYTES = 1.6


@dataclass(frozen=True, slots=True)
class ShardEstimate:
    """What is to become of one shard."""

    number: int
    how: str
    """As in ShardReport: built, rebuilt, inserted, remapped, masked, copied."""
    reason: str
    nodes: int
    """Before the work."""
    insert: int
    remap: int
    tombstone: int
    """Nodes whose rows are gone, and are not among those that come back elsewhere."""
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a materialisation will take, as far as can be told before it."""

    action: Action
    reason: str
    inserted: int
    remapped: int
    tombstoned: int
    shards_rebuilt: int
    shards_copied: int
    bytes_read: int
    """Of data files and of the base's shards; the store's own copying is not in it."""
    bytes_written: int
    """Newly made bytes of the file that is published; what is staged before is about as much again."""
    seconds: float
    rates: str
    """What the seconds are from: measured, on how many earlier versions; or the default."""
    shards: tuple[ShardEstimate, ...] = ()


def estimate(table: Table, plan: VersionPlan, *, storage: StorageConfig, runner: TaskRunner) -> Estimate:
    """Reads metadata, at most a sample of vectors, and location maps where rows have gone. Starts no Spark session.

    Raises what reading them raises: the work would raise the same.
    """
    if plan.existing is not None or plan.action is Action.EMPTY:
        shards: tuple[ShardEstimate, ...] = ()
        amounts = Amounts()
    else:
        width, dims = _vector_width(plan, storage)
        shards = _of_refresh(plan, dims, storage) if plan.action is Action.REFRESHED else _of_build(plan, dims)
        amounts = _amounts(plan, shards, dims)
        shards = _with_data_files(shards, sum(file.record_count for file in plan.added) * width)
    seconds, rates = predicted_seconds(table, plan, amounts, runner)
    return Estimate(
        action=plan.action,
        reason=plan.reason,
        inserted=sum(shard.insert for shard in shards),
        remapped=sum(shard.remap for shard in shards),
        tombstoned=sum(shard.tombstone for shard in shards),
        shards_rebuilt=sum(shard.how == "rebuilt" for shard in shards),
        shards_copied=sum(shard.how in ("copied", "masked") for shard in shards),
        bytes_read=sum(shard.bytes_read for shard in shards),
        bytes_written=sum(shard.bytes_written for shard in shards),
        seconds=round(seconds, 3),
        rates=rates,
        shards=shards,
    )


def _of_build(plan: VersionPlan, dims: int) -> tuple[ShardEstimate, ...]:
    definition, rows = plan.definition, _live_rows(plan.added)
    count = min(definition.shards or choose_shards(rows, dims, definition.max_degree), max(1, rows))
    shares = _spread(rows, np.ones(count))
    size = _node_bytes(plan, dims)
    return tuple(
        ShardEstimate(number, "built", plan.reason, 0, share, 0, 0, 0, round(share * size))
        for number, share in enumerate(shares)
    )


def _of_refresh(plan: VersionPlan, dims: int, storage: StorageConfig) -> tuple[ShardEstimate, ...]:
    if plan.base is None:
        raise ValueError("a refresh has a base")
    entries = plan.base.routing.shards
    dead = _dead_nodes(plan, plan.base, storage)
    gone = [max(0, now - len(entry.tombstones)) for now, entry in zip(dead, entries, strict=True)]
    arriving = _live_rows(plan.added)
    known = round(arriving * _known(plan, plan.base, storage)) if sum(gone) else 0
    remaps = _spread(min(known, sum(gone)), np.array(gone, np.float64))
    inserts = _spread(arriving - sum(remaps), np.array([max(1, entry.live) for entry in entries], np.float64))
    return tuple(
        _shard(plan, number, entry, dims, dead[number], gone[number], remaps[number], inserts[number])
        for number, entry in enumerate(entries)
    )


def _shard(
    plan: VersionPlan, number: int, entry: ShardEntry, dims: int, dead: int, gone: int, remap: int, insert: int
) -> ShardEstimate:
    """As `ops.tasks.shard` decides, from counts."""
    ratio, left, nodes = plan.definition.rebuild_ratio, dead - remap, entry.count + insert
    worn = left > ratio * nodes
    looked = _LOCATION_BYTES * entry.count if plan.live_positions_change else 0
    grown = round(entry.length * nodes / max(1, entry.count)) if entry.count else round(nodes * _node_bytes(plan, dims))
    if worn:
        how, why = "rebuilt", f"{left / max(1, nodes):.0%} of its nodes are dead, over {ratio:.0%}"
        read, written = entry.length, round(grown * (nodes - left) / max(1, nodes))
    elif insert:
        how, why, read, written = "inserted", "rows of added files belong to it", entry.length, grown
    elif remap:
        how, why, read, written = "remapped", "its rows moved to other files", entry.length, entry.length
    elif gone:
        how, why, read, written = "masked", "rows were removed: only its tombstones are new", looked, 0
    else:
        how, why, read, written = "copied", "nothing came and nothing went", looked, 0
    return ShardEstimate(number, how, why, entry.count, insert, remap, gone - remap, read, written)


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


def _dead_nodes(plan: VersionPlan, base: OpenVersion, storage: StorageConfig) -> list[int]:
    """Nodes of each of the base's shards whose rows are not live where the base has them."""
    if not plan.live_positions_change:
        return [len(entry.tombstones) for entry in base.routing.shards]
    added = {file.path for file in plan.added}
    kept = {relative_to(file.path, plan.live.location): file for file in plan.live.files if file.path not in added}
    slots = {
        slot: kept[file.path] for slot, file in enumerate(base.routing.files) if file.present and file.path in kept
    }
    deleted = deleted_by_file(lambda path: open_storage(path, storage), slots.values())
    is_kept = np.zeros(len(base.routing.files), np.bool_)
    is_kept[list(slots)] = True
    dead = []
    for shard in base.shards:
        of_node, positions = ShardReader(PartSource(open_storage(shard.path, storage), shard)).read_locations()
        count = int((~is_kept[of_node]).sum())
        for slot, file in slots.items():
            if len(deleted[file.path]):
                count += int(np.isin(positions[of_node == slot], deleted[file.path]).sum())
        dead.append(count)
    return dead


def _known(plan: VersionPlan, base: OpenVersion, storage: StorageConfig) -> float:
    """Share of the arriving rows that the base has already, by a sample; rows of files that it covers are all known."""
    arriving = _live_rows(plan.added)
    covered = covered_paths(base)
    new = _live_rows([file for file in plan.added if relative_to(file.path, plan.live.location) not in covered])
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
    name = _stored_name(parquet.schema, plan)
    size = values = 0
    for group in range(parquet.metadata.num_row_groups):
        row_group = parquet.metadata.row_group(group)
        for number in range(row_group.num_columns):
            chunk = row_group.column(number)
            if chunk.path_in_schema.split(".")[0] == name:
                size, values = size + chunk.total_compressed_size, values + chunk.num_values
    rows = max(1, parquet.metadata.num_rows)
    return size / rows, dims or max(1, values // rows)


def _stored_name(schema: pa.Schema, plan: VersionPlan) -> str:
    wanted = str(plan.field_id).encode()
    by_id = [field.name for field in schema if (field.metadata or {}).get(b"PARQUET:field_id") == wanted]
    return by_id[0] if by_id else plan.schema.find_field(plan.field_id).name


def _amounts(plan: VersionPlan, shards: Sequence[ShardEstimate], dims: int) -> Amounts:
    copied = 0
    if plan.action is Action.REFRESHED and plan.base is not None:
        lengths = [entry.length for entry in plan.base.routing.shards]
        copied = sum(lengths[shard.number] for shard in shards if shard.how in ("copied", "masked"))
    return Amounts(
        read=_live_rows(plan.added),
        built=sum(_rows_built(shard) for shard in shards),
        inserted=sum(shard.insert for shard in shards if shard.how == "inserted"),
        rewritten=sum(shard.nodes for shard in shards if shard.how in ("inserted", "remapped", "rebuilt")),
        looked_up=sum(shard.nodes for shard in shards) if plan.live_positions_change else 0,
        copied=copied,
        dims=dims,
    )


def _rows_built(shard: ShardEstimate) -> int:
    if shard.how == "built":
        return shard.insert
    return shard.nodes + shard.insert + shard.remap - shard.tombstone if shard.how == "rebuilt" else 0
