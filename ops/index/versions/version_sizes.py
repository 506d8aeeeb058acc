"""Sizes of an index version, kept in the summary of its snapshot: runs are foreseen by them before any file is read."""

import hashlib
import json
import math
from dataclasses import astuple, dataclass, field, replace

from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.index.versions.version_format import FORMAT_VERSION
from icepuffin.ops.table.summaries import finite_number, whole_number
from icepuffin.puffin.types import MAX_DIMS


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
        """Words, for the summary: the definition, and numbers in the order of the fields, those of deltas last."""
        tombstones = math.ceil(round(1e6 * self.tombstones, 3)) / 1e6  # never fewer: live rows are counted by them
        shares = (f"{share:.6g}" for share in (tombstones, *astuple(self.fit)))
        counts = (self.dims, self.shards, self.rows, self.largest)
        return " ".join(map(str, (self.definition, *counts, *shares, *self.deltas)))

    @classmethod
    def parse(cls, text: str) -> "VersionSizes | None":
        """The sizes in a summary; None for an empty text, and for one that another release or a person wrote."""
        try:
            definition, *words = text.split(" ")
            dims, shards, rows, largest = map(whole_number, words[:4])
            tombstones, *fit = map(finite_number, words[4:11])
            deltas = tuple(map(whole_number, words[11:]))
            sizes = cls(definition, dims, shards, rows, largest, deltas, tombstones, LayoutFit(*fit))
        except ValueError:
            return None
        is_possible = len(fit) == len(astuple(sizes.fit)) and 0 < dims <= MAX_DIMS and 0 <= tombstones <= 1
        return sizes if is_possible and min(shards, rows, largest, *deltas) >= 0 else None


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
    if definition.text:
        identity |= {"text_ids": definition.text_ids, "analyzer": definition.analyzer}
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
