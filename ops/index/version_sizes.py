"""Sizes of an index version, kept in the summary of its snapshot: runs are foreseen by them before any file is read."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from icepuffin.ops.index.definition import IndexDefinition
from icepuffin.ops.index.plan import VersionPlan
from icepuffin.ops.json_texts import parse_json

if TYPE_CHECKING:
    from icepuffin.ops.index.stages import ShardSet


@dataclass(frozen=True, slots=True)
class VersionSizes:
    """Counts of the nodes of a version. Nodes count with their tombstones."""

    definition: str
    """`graph_id` of its definition"""
    dims: int
    shards: int
    """Number of the shards that the codebook routes rows to"""
    rows: int
    """Number of live rows that the codebook has routed to them"""
    largest: int
    """Nodes of the largest routed shard"""
    deltas: tuple[int, ...]
    """Nodes of each delta shard"""
    tombstones: float
    """Share of tombstones among the nodes of a shard, at most"""

    @property
    def live_rows(self) -> int:
        """Live rows, at least: deltas count with the largest share of tombstones that a shard has."""
        return self.rows + int(sum(self.deltas) * (1 - self.tombstones))

    def text(self) -> str:
        """JSON, for the summary."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> "VersionSizes | None":
        """The sizes in a summary; None for an empty text, and for one that another release or a person wrote."""
        try:
            record = parse_json(text)
            counts = {name: int(record[name]) for name in ("dims", "shards", "rows", "largest")}
            deltas, tombstones = tuple(map(int, record["deltas"])), float(record["tombstones"])
        except (ValueError, KeyError, TypeError, OverflowError):
            return None
        is_possible = counts["dims"] > 0 and min(*counts.values(), *deltas) >= 0 and 0 <= tombstones <= 1
        return cls(str(record["definition"]), **counts, deltas=deltas, tombstones=tombstones) if is_possible else None

    @classmethod
    def of(cls, plan: VersionPlan, shard_set: "ShardSet") -> "VersionSizes":
        """The sizes of a version that was just made."""
        routed = shard_set.shards[: shard_set.layout.shards]
        return cls(
            definition=graph_id(plan.definition, plan.field_id),
            dims=shard_set.layout.dims,
            shards=len(routed),
            rows=sum(shard.live_rows for shard in routed),
            largest=max((shard.count for shard in routed), default=0),
            deltas=tuple(shard.count for shard in shard_set.shards[shard_set.layout.shards :]),
            tombstones=max((len(shard.tombstones) / max(1, shard.count) for shard in shard_set.shards), default=0.0),
        )


def graph_id(definition: IndexDefinition, field_id: int) -> str:
    """A hash of what graphs and kept columns depend on: a version with an equal one reads new rows alone."""
    identity = replace(definition, field_id=field_id).graph_identity()
    if definition.filters:
        identity["filter_ids"] = definition.filter_ids
    if definition.include:
        identity["include_ids"] = definition.include_ids
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
