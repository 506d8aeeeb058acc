"""The result of searching rows by their own vectors in a version's file."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from icepuffin.ops.recall.confidence import confidence_interval

if TYPE_CHECKING:  # reports are read without kernels
    from icepuffin.ops.tasks.matching.self_search import SelfSearchResult

MIN_RETURNED = 0.5
"""Share of rows that a sound file gives back at least, relative to the target recall. It separates a broken graph from
vectors that are hard to tell apart, which are the recall gate's concern
"""


@dataclass(frozen=True, slots=True)
class SelfSearch:
    """Rows of the table, searched by their own vectors in the file as written."""

    rows: int
    misplaced: int
    """Rows whose node is missing, or holds another vector."""
    returned: int
    """Rows that came back, or whose answers were as near as they are."""
    shards: int
    """Shards that were searched."""
    queries: int
    """Rows by whose vectors recall was measured again, within these shards; 0 where those hold codes alone."""
    recall: float
    """recall@10 of `queries`; 1.0 where there are none."""
    recall_low: float
    """Lower bound of the 95 % confidence interval of `recall`."""
    recall_high: float
    """Upper bound of the 95 % confidence interval of `recall`."""
    wide_queries: int = 0
    """Rows by whose vectors recall@100 was measured, too."""
    wide_recall: float = 1.0
    """recall@100 of `wide_queries`, by default parameters; 1.0 where there are none."""

    @classmethod
    def from_result(cls, result: "SelfSearchResult", *, shards: int) -> "SelfSearch":
        low, high = confidence_interval(result.recall, result.queries)
        return cls(
            rows=result.rows,
            misplaced=result.misplaced,
            returned=result.returned,
            shards=shards,
            queries=result.queries,
            recall=result.recall,
            recall_low=low,
            recall_high=high,
            wide_queries=result.wide_queries,
            wide_recall=result.wide_recall,
        )

    @property
    def summary(self) -> str:
        """The numbers in words, on one line."""
        if not self.shards:
            return "none: there was no shard to search"
        shards = f"{self.shards:,} shard" + "s" * (self.shards != 1)
        text = f"{self.returned:,} of {self.rows:,} rows came back by their own vectors, in {shards}"
        if not self.queries:
            return text
        wide = f", recall@100 {self.wide_recall:.4f}" if self.wide_queries else ""
        return f"{text}; recall@10 there {self.recall:.4f} ({self.recall_low:.3f} to {self.recall_high:.3f}){wide}"


def fault_of(result: "SelfSearchResult", target_recall: float) -> str | None:
    """What is wrong with the file, as a clause; None where nothing is."""
    if result.misplaced:
        return f"{result.misplaced} of {result.rows} rows have nodes with the vectors of other rows"
    least = MIN_RETURNED * target_recall
    is_walkable = result.drawn > 0 and result.drawn_returned >= least * result.drawn
    if result.returned < least * result.rows and not is_walkable:
        return f"of {result.rows} rows that were searched by their own vectors {result.returned} came back"
    return None
