"""Recall of one shard of a version, and how far it is that of the shard as it is now."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from icepuffin.ops.recall.curves import DECIMALS, GATE_QUERIES, MEASURED_K

BY_DEFAULTS = 0, 0
"""In place of width and oversample: a search by default parameters"""


SHARED_QUERIES_PER_WIDE_ONE = 4
"""Queries for 10 rows per query for 100 rows, where all shards are searched for the same"""


def shared_queries(shards: int) -> int:
    """Queries for 10 rows that a build searches each of so many shards for. What its tasks return grows with both."""
    return max(16, min(GATE_QUERIES, 16_384 // max(1, shards)))


class RecallBasis(StrEnum):
    """How far the recall of a shard is that of the shard as it is."""

    HERE = "here"
    """This run has measured it"""
    UNCHANGED = "unchanged"
    """An earlier run has measured it, and the shard has the same live nodes still"""
    OUTDATED = "outdated"
    """Nodes have lost their rows since an earlier run has measured it, or have got one again"""


@dataclass(frozen=True, slots=True)
class ShardRecall:
    """Recall of one shard alone, by searches for some of its live rows."""

    recall: float
    """recall@10; NaN where it is not known"""
    queries: int
    """Rows that were searched for; 0 where there was nothing to find"""
    wide_recall: float = 1.0
    """recall@100"""
    wide_queries: int = 0
    """Rows that were searched for, for that; 0 where the shard has not a hundred other rows"""
    changed: int = 0
    """Nodes that have lost their rows since then, or have got one again"""
    is_new: bool = True
    """Whether this run has measured it"""

    @property
    def basis(self) -> RecallBasis:
        if self.is_new:
            return RecallBasis.HERE
        return RecallBasis.OUTDATED if self.changed else RecallBasis.UNCHANGED

    def after(self, changed: int) -> "ShardRecall":
        """The same measurement, for a shard of which `changed` more nodes have lost or got their rows."""
        return replace(self, changed=self.changed + changed, is_new=False)

    def at_most(self, other: "ShardRecall") -> "ShardRecall":
        """This measurement, lowered to another one where that is lower; recall@100 only where both have it."""
        queries = self.wide_queries if other.wide_queries else 0
        return replace(
            self,
            recall=min(self.recall, other.recall) if other.recall == other.recall else self.recall,
            wide_recall=min(self.wide_recall, other.wide_recall) if queries else 1.0,
            wide_queries=queries,
        )

    def text(self) -> str:
        """JSON, for a property of the routing blob: [recall@10, queries, recall@100, queries, changed nodes]."""
        recall, wide = round(self.recall, DECIMALS), round(self.wide_recall, DECIMALS)
        return json.dumps([recall, self.queries, wide, self.wide_queries, self.changed], separators=(",", ":"))

    @classmethod
    def parse(cls, text: str, *, written: float, live_rows: int, tombstones: int) -> "ShardRecall":
        """The measurement in a property, "" where there is none.

        Without one that is readable, it is the recall when the shard was `written`, maybe without its tombstones.
        """
        try:
            recall, queries, wide, wide_queries, changed = json.loads(text or "[]")
            counts = int(queries), int(wide_queries), int(changed)
            if 0 <= recall <= 1 and 0 <= wide <= 1 and min(counts) >= 0:
                return cls(float(recall), counts[0], float(wide), counts[1], counts[2], is_new=False)
        except (TypeError, ValueError, OverflowError, RecursionError):
            pass  # advice, not data
        return cls(written, min(GATE_QUERIES, live_rows), changed=tombstones, is_new=False)


@dataclass(frozen=True, slots=True)
class AcrossShards:
    """What searches of all shards find, as a share of what is found where each shard is searched alone, for its own
    rows: poor graphs lead less well to what is near a vector that they do not have, and where codes tell distances the
    rows of all shards compete for the places of candidates.
    """

    points: tuple[tuple[int, int, int, float], ...] = ()
    """(width, oversample, k, share of recall@k) of each search; 1 where there is none. It may be above 1: where lengths
    vary, inner products with the rows of one shard alone may be the harder search
    """

    def share(self, k: int = MEASURED_K) -> float:
        """Of a search by default parameters."""
        return self.of_curve(k).get(BY_DEFAULTS, 1.0)

    def of_curve(self, k: int = MEASURED_K) -> dict[tuple[int, int], float]:
        """By width and oversample."""
        return {(width, oversample): share for width, oversample, measured_k, share in self.points if measured_k == k}

    def told_by(self, queries: int, shards: int, rows: int, k: int = MEASURED_K) -> int:
        """Number of queries that tell recall@k: those of single shards, or where a search of all differs, those that
        all of them were searched for. Of few rows less than a tenth are held out.
        """
        together = -(-shared_queries(shards) // (1 if k == MEASURED_K else SHARED_QUERIES_PER_WIDE_ONE))
        return min(queries, together, max(1, rows // MEASURED_K - 1)) if self.share(k) != 1 else queries

    def text(self) -> str:
        """JSON, for a property of the routing blob; "" where there is no difference."""
        points = [point for point in self.points if point[-1] != 1]
        return json.dumps(points, separators=(",", ":")) if points else ""

    @classmethod
    def parse(cls, text: str) -> "AcrossShards":
        """The shares in a property; no difference where there is none that is readable."""
        try:
            points = tuple(
                (int(width), int(over), int(k), float(it)) for width, over, k, it in json.loads(text or "[]")
            )
        except (TypeError, ValueError, OverflowError, RecursionError):
            return cls()  # advice, not data
        return cls(points) if all(0 <= share < math.inf for *_, share in points) else cls()


def mean_recall(recalls: Iterable[tuple[float, int]], across: float) -> float | None:
    """Recall of several shards, each with its live rows as its weight; None where there are none. `across`: the share
    of it that a search of all shards finds. Rounded as the share is: else their product is under a recall of 1.
    """
    weighted = list(recalls)
    live_rows = sum(weight for _, weight in weighted)
    if not live_rows:
        return None
    return min(1.0, round(across * sum(recall * weight for recall, weight in weighted) / live_rows, DECIMALS))
