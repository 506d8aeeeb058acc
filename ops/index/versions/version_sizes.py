"""Sizes of an index version, kept in the summary of its snapshot: runs are foreseen by them before any file is read."""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace

from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.index.versions.version_format import FORMAT_VERSION
from icepuffin.ops.json_texts import parse_json


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
    fit: LayoutFit = field(default_factory=LayoutFit)

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
            fit = LayoutFit(**{name: float(value) for name, value in dict(record.get("fit", {})).items()})
        except (ValueError, KeyError, TypeError, OverflowError):
            return None
        is_possible = counts["dims"] > 0 and min(*counts.values(), *deltas) >= 0 and 0 <= tombstones <= 1
        return (
            cls(str(record["definition"]), **counts, deltas=deltas, tombstones=tombstones, fit=fit)
            if is_possible
            else None
        )


def fit_of(text: str) -> LayoutFit:
    """The fit of a version's layout by the sizes in its summary; that of a new one where they are not known."""
    sizes = VersionSizes.parse(text)
    return LayoutFit() if sizes is None else sizes.fit


def graph_id(definition: IndexDefinition, field_id: int) -> str:
    """A hash of what graphs and kept columns depend on: a version with an equal one reads new rows alone."""
    identity = replace(definition, field_id=field_id).graph_identity() | {"format": FORMAT_VERSION}
    if definition.filters:
        identity["filter_ids"] = definition.filter_ids
    if definition.include:
        identity["include_ids"] = definition.include_ids
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
