"""Where new rows go: the merge policy of delta shards. Pure, so that equal versions are equal to the byte.

A few rows make a small shard of their own, a delta, and every older shard is copied as it is. A search looks into each
delta, so there are few: when there are `max_deltas`, new rows are inserted into the smallest, which keeps them of one
size. When deltas would hold more than `delta_share` of the rows of the other shards, all of them are dealt out to the
shards that the codebook leads to. A row is thus put into a graph twice in its life, whatever the size of the appends.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from icepuffin.ops.index.definition import IndexDefinition

NEW_DELTA = -1


@dataclass(frozen=True, slots=True)
class Placement:
    """What becomes of new rows, and of the deltas."""

    target: int | None
    """The delta that takes all new rows: one that there is, or NEW_DELTA. None: each goes where the codebook leads"""
    spilled: tuple[int, ...] = ()
    """Deltas that are dealt out to the other shards and are no more"""
    dropped: tuple[int, ...] = ()
    """Deltas without a live row"""


def place(
    definition: IndexDefinition, *, base_rows: int, deltas: Mapping[int, int], arriving: int, largest: int
) -> Placement:
    """`base_rows`: live rows of the shards that partitions lead to; `deltas`: live rows by shard number; `largest`: how
    many rows a shard may have.
    """
    dropped = tuple(number for number, rows in deltas.items() if not rows)
    held = {number: rows for number, rows in deltas.items() if rows}
    if not arriving:
        return Placement(None, dropped=dropped)
    full = len(held) >= definition.max_deltas
    smallest = min(held, key=lambda number: (held[number], number), default=NEW_DELTA)
    target = smallest if full else NEW_DELTA
    too_many = sum(held.values()) + arriving > definition.delta_share * base_rows
    if not definition.max_deltas or too_many or held.get(target, 0) + arriving > largest:
        return Placement(None, spilled=tuple(held), dropped=dropped)
    return Placement(target, dropped=dropped)
