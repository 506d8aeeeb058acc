"""How hard a search tries: the width of the beam, the shards that are probed, the candidates that are ranked again."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from icepuffin.ops.index.sample import sample_rows
from icepuffin.ops.index.version_reader import OpenVersion
from icepuffin.ops.recall_curve import (
    MEASURED_K,
    OVERSAMPLE,
    Choice,
    Reach,
    ShardCentroids,
    Width,
    choose,
    combined,
    reaches,
    widths,
)
from icepuffin.ops.search.errors import QueryError

_SETTLED = 256
_ROUNDED = (
    "the column holds doubles, and distances are those of its vectors rounded to float, as the index holds them: "
    "rerank ranks by the doubles"
)
_APPROXIMATE = "distances are of what the index holds in place of the table's vectors, which were not asked for"


@dataclass(frozen=True, slots=True, eq=False)
class Advice:
    """What a version knows of its own recall, and where its shards lie."""

    led: ShardCentroids
    """The shards that a centroid leads to. Others hold rows that came later, from anywhere: every query is near them"""
    shards: int
    curve: tuple[Width, ...]
    """Of all shards together"""
    routing: tuple[Reach, ...]
    routed_k: int = MEASURED_K
    """The largest k that `routing` holds for: the 10 nearest of a sample are more of the table's own nearest"""

    @classmethod
    def of(cls, opened: OpenVersion) -> "Advice":
        table = opened.routing
        rows = sum(entry.live for entry in table.shards)
        curves = [(widths(text), entry.live) for text, entry in zip(opened.curves, table.shards, strict=True)]
        return cls(
            ShardCentroids.of(table.codebook, table.partition_to_shard, opened.definition.metric_value),
            len(table.shards),
            combined(curves),
            reaches(opened.routing_curve),
            MEASURED_K * rows // max(1, sample_rows(rows)),
        )

    def probed(self, queries: npt.NDArray[Any], knobs: "Knobs") -> npt.NDArray[np.bool_] | None:
        """bool[Q, shards]: which shards each query is asked of; None where it is all."""
        led = self.led.shards
        nearest = len(led) if knobs.shards is None else min(knobs.shards, len(led))
        if self.shards == 1 or not len(led) or (math.isinf(knobs.slack) and nearest == len(led)):
            return None
        far = self.led.distances(queries)
        limit = np.partition(far, nearest - 1, axis=1)[:, nearest - 1 : nearest]
        if not math.isinf(knobs.slack):
            limit = np.minimum(limit, far.min(axis=1, keepdims=True) * (1 + knobs.slack))
        near = np.ones((len(queries), self.shards), np.bool_)
        near[:, led] = far <= limit
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


class Tunable(Protocol):
    """An index version, as far as knobs go."""

    @property
    def advice(self) -> Advice: ...
    @property
    def search_list(self) -> int:
        """The definition's own"""

    @property
    def exact(self) -> bool:
        """Whether its distances are those of the vectors that the table has"""

    @property
    def lean(self) -> bool:
        """Whether a shard holds no vectors to compare with"""

    @property
    def of_doubles(self) -> bool:
        """Whether the column's vectors are doubles, which shards hold as floats"""


class Tuning:
    """Knobs for the searches of one version. Thread-safe."""

    def __init__(self, version: Tunable | None) -> None:
        self._version = version
        self._settled: dict[tuple[int, Asked, bool], tuple[Knobs | None, tuple[str, ...]]] = {}

    def settle(self, k: int, asked: Asked, *, filtered: bool) -> tuple[Knobs | None, tuple[str, ...]]:
        """Knobs (None without a version), and what could not be done as it was asked.

        Decided once for equal wishes, as they come with every query of an application.
        """
        if self._version is None:
            return None, ()
        key = (k, asked, filtered)
        if found := self._settled.get(key):
            return found
        found = settle(self._version, k, asked, filtered=filtered)
        if len(self._settled) >= _SETTLED:
            self._settled.clear()  # other threads may be here, too: what they return they hold themselves
        self._settled[key] = found
        return found


def settle(version: Tunable, k: int, asked: Asked, *, filtered: bool) -> tuple[Knobs, tuple[str, ...]]:
    """The knobs of one search, and what could not be done as it was asked.

    Under a condition every shard is probed: how many matching rows lie far from the query was not measured.
    """
    advice, own = version.advice, version.search_list
    rerank = not version.exact and (version.lean if asked.rerank is None else asked.rerank)
    warnings: list[str] = []
    chosen: Choice | None = None
    if asked.target_recall is not None:
        routing = () if filtered or k > advice.routed_k else advice.routing
        chosen = choose(asked.target_recall, k, advice.curve, routing, advice.shards)
        if chosen is None:
            warnings.append("the version has no recall curve to choose by; its own search list was used")
        elif chosen.recall < asked.target_recall:
            reached = f"the widest one, {chosen.recall:.4f}, was used"
            warnings.append(f"no width that was measured reaches recall {asked.target_recall:g}; {reached}")
    if filtered and asked.shards is not None:
        warnings.append("under a condition every shard is probed, not only the nearest ones")
    if version.lean and not rerank:
        warnings.append(_APPROXIMATE)
    elif version.of_doubles and not rerank:
        warnings.append(_ROUNDED)
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
