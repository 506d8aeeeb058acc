"""How hard a search tries: the width of the beam, the shards that are probed, the candidates that are ranked again."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ann_kernels.metric import Metric
from ops.curves import OVERSAMPLE, Choice, Reach, Width, choose, combined, reaches, shard_distances, widths
from ops.index.versions import OpenVersion
from ops.probe.errors import QueryError


@dataclass(frozen=True, slots=True, eq=False)
class Advice:
    """What a version knows of its own recall, and where its shards lie."""

    codebook: npt.NDArray[np.float32]
    """f32[k, D]"""
    to_shard: npt.NDArray[np.uint32]
    """u32[k]"""
    shards: int
    metric: Metric
    curve: tuple[Width, ...]
    """Of all shards together"""
    routing: tuple[Reach, ...]

    @classmethod
    def of(cls, opened: OpenVersion) -> "Advice":
        table = opened.routing
        curves = [(widths(text), entry.live) for text, entry in zip(opened.curves, table.shards, strict=True)]
        return cls(
            table.codebook,
            table.partition_to_shard,
            len(table.shards),
            opened.definition.metric_value,
            combined(curves),
            reaches(opened.routing_curve),
        )

    def nearness(self, queries: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """f32[Q, shards], how far the nearest centroid of each shard is; 0 of one that no centroid leads to.

        Such shards hold rows that came after the codebook was made, from anywhere: every query is near them.
        """
        far = np.zeros((len(queries), self.shards), np.float32)
        known = shard_distances(queries, self.codebook, self.to_shard, self.metric)
        led = np.unique(self.to_shard)
        far[:, led] = known[:, led]
        return far

    def probed(self, queries: npt.NDArray[np.float32], knobs: "Knobs") -> npt.NDArray[np.bool_] | None:
        """bool[Q, shards]: which shards each query is asked of; None where it is all."""
        if self.shards == 1:
            return None
        led = np.unique(self.to_shard)
        if not len(led) or (math.isinf(knobs.slack) and (knobs.shards or len(led)) >= len(led)):
            return None
        far = self.nearness(queries)
        near = np.ones(far.shape, np.bool_)
        nearest = far[:, led].min(axis=1, keepdims=True)
        if not math.isinf(knobs.slack):
            near[:, led] = far[:, led] <= nearest * (1 + knobs.slack)
        if knobs.shards is not None and knobs.shards < len(led):
            last = np.partition(far[:, led], knobs.shards - 1, axis=1)[:, knobs.shards - 1 : knobs.shards]
            near[:, led] &= far[:, led] <= last
        return near


@dataclass(frozen=True, slots=True)
class Asked:
    """Knobs as the caller gives them; None leaves the choice to the index."""

    search_list: int | None = None
    shards: int | None = None
    oversample: int | None = None
    target_recall: float | None = None
    rerank: bool | None = None

    def __post_init__(self) -> None:
        target = self.target_recall
        if target is not None and not (isinstance(target, int | float | np.floating) and 0 < target <= 1):
            raise QueryError(f"target_recall is {target!r}; it is a share, over 0 and at most 1")


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a search uses."""

    search_list: int
    oversample: int = OVERSAMPLE
    """Of shards whose distances are not exact"""
    shards: int | None = None
    """The nearest so many, a query; None: by slack"""
    slack: float = math.inf
    """Shards up to (1 + slack) times as far as the nearest one; inf: all"""
    expected: float | None = None
    """recall@10 by the measured curve, where knobs were chosen by it"""
    why: str = "the index's own"
    rerank: bool = False
    """Whether candidates are ranked by the table's vectors, as those of the index are others"""


def settle(
    advice: Advice, own: int, k: int, asked: Asked, *, filtered: bool, rerank: bool
) -> tuple[Knobs, tuple[str, ...]]:
    """The knobs of one search, and what could not be done as it was asked.

    `own`: the definition's search list. Under a condition every shard is probed: how many matching rows lie far from
    the query was not measured. `rerank`: whether candidates are to be ranked by the table's vectors.
    """
    warnings: list[str] = []
    chosen: Choice | None = None
    if asked.target_recall is not None:
        chosen = choose(asked.target_recall, k, advice.curve, () if filtered else advice.routing, advice.shards)
        if chosen is None:
            warnings.append("the version has no recall curve to choose by; its own search list was used")
        elif chosen.recall < asked.target_recall:
            reached = f"the widest one, {chosen.recall:.4f}, was used"
            warnings.append(f"no width that was measured reaches recall {asked.target_recall:g}; {reached}")
    if filtered and asked.shards is not None:
        warnings.append("under a condition every shard is probed, not only the nearest ones")
    by_curve = Knobs(own) if chosen is None else Knobs(chosen.search_list, chosen.oversample, None, chosen.slack)
    given = [name for name in ("search_list", "shards", "oversample") if getattr(asked, name) is not None]
    why = (
        "the index's own" if chosen is None else f"recall {asked.target_recall:g}, by the curve measured with the index"
    )
    return Knobs(
        search_list=asked.search_list or by_curve.search_list,
        oversample=(asked.oversample or by_curve.oversample) if rerank else 1,
        shards=None if filtered else asked.shards,
        slack=math.inf if asked.shards is not None else by_curve.slack,
        expected=chosen.recall if chosen and not given else None,
        why=f"{why}; given: {', '.join(given)}" if given else why,
        rerank=rerank,
    ), tuple(warnings)
