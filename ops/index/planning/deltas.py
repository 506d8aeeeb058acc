"""Placement of new rows: the merge policy of delta shards. Pure, so that equal versions are equal to the byte.

A few new rows make a small shard of their own, a delta shard, and all other shards are copied as they are. Every search
probes every delta, so their number is limited: once there are `max_deltas`, new rows are inserted into the smallest,
which keeps them of one size. If the deltas would hold more than `delta_share` of the rows of the other shards, they are
dissolved: their rows and the new ones are inserted into the shards that the codebook routes them to. A row is thus
inserted into a graph twice in its life, whatever the size of the appends.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import ShardId

NEW_DELTA = ShardId(-1)
"""Id in place of a delta shard that does not exist yet."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Destination of new rows, and what becomes of the delta shards."""

    target: ShardId | None
    """The delta shard that takes all new rows, or NEW_DELTA. None: each row goes where the codebook routes it."""
    dissolved: tuple[ShardId, ...] = ()
    """Delta shards whose rows go to the other shards"""
    dropped: tuple[ShardId, ...] = ()
    """Delta shards without a live row"""

    def may_read_shards(self, definition: IndexDefinition) -> bool:
        """Whether shards that stay may be read whole. Rows of a lean one are read from data files, each once per shard:
        as little more as it takes where its rows are distributed anyway.
        """
        return definition.holds_vectors or self.target is None


def place(
    definition: IndexDefinition, *, routed_rows: int, deltas: Mapping[ShardId, int], arriving: int, largest: int
) -> Placement:
    """Decide where `arriving` rows go.

    routed_rows: live rows of the shards that the codebook routes to. deltas: live rows by delta shard.
    largest: the most rows that a delta shard may have.
    """
    dropped = tuple(shard_id for shard_id, rows in deltas.items() if not rows)
    filled = {shard_id: rows for shard_id, rows in deltas.items() if rows}
    if not arriving:
        return Placement(None, dropped=dropped)
    smallest = min(filled, key=lambda shard_id: (filled[shard_id], shard_id), default=NEW_DELTA)
    target = smallest if len(filled) >= definition.max_deltas else NEW_DELTA
    too_many = sum(filled.values()) + arriving > definition.delta_share * routed_rows
    if not definition.max_deltas or too_many or filled.get(target, 0) + arriving > largest:
        return Placement(None, dissolved=tuple(filled), dropped=dropped)
    return Placement(target, dropped=dropped)
