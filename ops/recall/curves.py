"""Recall curves, measured when an index is built, and the cheapest search parameters for a target recall.

They are kept as JSON text in blob properties: in a shard, recall@10 and recall@100 by the width of the beam; in the
routing blob, the share of neighbours in the shards that are probed. Cost is a number of distances, which is the same on
every machine.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.metric import Metric

MEASURED_K = 10
"""Rows per query by which recall is measured: by the gate of a shard, and in curves"""
WIDE_K = 100
"""The other k that curves are measured for, of shards that are large enough"""
GATE_QUERIES = 64
"""Queries by which the recall of a shard is measured before it is published"""
DECIMALS = 6
"""Decimals of recall in properties"""
OVERSAMPLE = 3
"""Candidates per result row that a lean shard hands over for exact ranking, by default"""

BY_CURVES = "the curves measured with the index"


@dataclass(frozen=True, slots=True)
class Width:
    """One point of a shard's curve: search parameters, their recall and their cost."""

    search_list: int
    """L of the beam"""
    oversample: int
    """Candidates per result row that are re-ranked by exact distance; 1 where distances are exact at once"""
    recall: float
    """recall@k"""
    distances: float
    """Distances computed per query, on average"""
    k: int = MEASURED_K
    """Rows per query, by which recall was measured"""


@dataclass(frozen=True, slots=True)
class Reach:
    """One point of the routing curve: shards with a centroid at most (1 + probe_slack) times as far as the nearest."""

    probe_slack: float
    shards: float
    """Shards probed per query, on average"""
    recall: float
    """Share of the k nearest rows that lie in the probed shards"""
    k: int = MEASURED_K


@dataclass(frozen=True, slots=True)
class Choice:
    """Search parameters for a target recall."""

    search_list: int
    oversample: int
    probe_slack: float
    """Slack of the centroid distance up to which shards are probed, as `Reach` has it; inf for every shard"""
    recall: float
    """Expected recall"""


@dataclass(frozen=True, slots=True)
class Foresight:
    """What the curves foresee of a search."""

    recall: float
    distances: float | None = None
    """Distances computed per query in `shards`, on average; None where only the recall is known"""
    shards: float | None = None
    """Shards with a curve that are probed per query, on average; None where only the recall is known"""
    shards_without_curve: int = 0
    """Shards of later rows: every query probes them, at a cost that was not measured"""
    source: str = BY_CURVES
    """Measurements that this is foreseen by, in words"""
    low: str = ""
    """Recall that most queries have at least, in words; empty where it was not measured"""


@dataclass(frozen=True, slots=True, eq=False)
class ShardCentroids:
    """Centroids of a codebook, grouped by the shard that they lead to, and prepared for comparing queries with them."""

    shards: npt.NDArray[np.int64]
    """int64[S], ascending: shards that a centroid leads to"""
    starts: npt.NDArray[np.int64]
    """int64[S]: index of the first centroid of each shard"""
    offset: npt.NDArray[np.float32]
    """f32[D]: mean of all centroids; zero under inner product, which depends on the origin"""
    moved: npt.NDArray[np.float32]
    """f32[k, D]: centroids by shard, less the offset. Of a large offset that they share, only rounding would be left"""
    squares: npt.NDArray[np.float32]
    """f32[k]: squared lengths of `moved`"""
    metric: Metric

    @classmethod
    def from_codebook(
        cls, codebook: npt.NDArray[np.float32], to_shard: npt.NDArray[np.uint32], metric: Metric = Metric.L2
    ) -> "ShardCentroids":
        """Group the centroids f32[k, D] of a codebook by their shards uint32[k]."""
        order = np.argsort(to_shard, kind="stable")
        order = order[np.isin(order, _first_of_equals(codebook))]
        shards, starts = np.unique(to_shard[order], return_index=True)
        moved, offset = codebook[order], np.zeros(codebook.shape[1], np.float32)
        if metric is not Metric.INNER_PRODUCT and len(moved):
            offset = moved.mean(axis=0, dtype=np.float64).astype(np.float32)
            moved = moved - offset
        squares = np.einsum("ij,ij->i", moved, moved)
        return cls(shards.astype(np.int64), starts.astype(np.int64), offset, moved, squares, metric)

    def distances(self, queries: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """f32[Q, S]: Euclidean distance (or - inner product) of each query to the nearest centroid of each shard.

        Reads each centroid once: for one query that rules, 4 k D bytes; for many, their 2 k D flops each.
        """
        moved_queries = (queries - self.offset).astype(np.float32)
        products = moved_queries @ self.moved.T
        if self.metric is Metric.INNER_PRODUCT:
            return -np.maximum.reduceat(products, self.starts, axis=1)
        lengths = np.einsum("ij,ij->i", moved_queries, moved_queries)
        nearest = np.minimum.reduceat(self.squares - 2 * products, self.starts, axis=1) + lengths[:, None]
        return np.asarray(np.sqrt(np.maximum(nearest, np.float32(0))))


def _first_of_equals(codebook: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """int64[..]: indices of the centroids that are equal to none before them. Rows of few distinct vectors give k-means
    equal centroids, and go to the first: the others lead to shards that have no such row.
    """
    positive = np.ascontiguousarray(codebook + np.float32(0))  # minus zero is zero
    rows = positive.view(np.dtype((np.void, positive.itemsize * positive.shape[1])))
    return np.unique(rows.ravel(), return_index=True)[1]


def encode(points: Sequence[Width] | Sequence[Reach]) -> str:
    """The curve as JSON text, with four decimals. Points for 10 rows have no k."""
    rows = [[round(value, 4) for value in astuple(point)] for point in points]
    return json.dumps([row[:-1] if row[-1] == MEASURED_K else row for row in rows], separators=(",", ":"))


def at_most(text: str, other: str) -> str:
    """A shard's curve, lowered to the best recall of another one where there is that, for each k."""
    points: list[Width] = []
    for k in (WIDE_K, MEASURED_K):
        best = max((point.recall for point in widths(other, k)), default=1.0)
        points += (replace(point, recall=min(point.recall, best)) for point in widths(text, k))
    return encode(points) if points else ""


def widths(text: str, k: int = MEASURED_K) -> tuple[Width, ...]:
    """A shard's curve for k rows, by cost; empty where there is none or it is not readable: it is advice, not data."""
    rows = _rows(text, 4) if k == MEASURED_K else [row for row in _rows(text, 5) if row[4] == k]
    points = [Width(int(row[0]), int(row[1]), row[2], row[3], k) for row in rows if row[0] >= 1 and row[1] >= 1]
    return tuple(sorted(points, key=lambda point: point.distances))


def reaches(text: str, k: int = MEASURED_K) -> tuple[Reach, ...]:
    """The routing curve for k rows, by slack; empty where there is none or it is not readable."""
    rows = _rows(text, 3) if k == MEASURED_K else [row for row in _rows(text, 4) if row[3] == k]
    points = [Reach(row[0], row[1], row[2], k) for row in rows if row[0] >= 0 and row[1] >= 1]
    return tuple(sorted(points, key=lambda point: point.probe_slack))


def _rows(text: str, length: int) -> list[list[float]]:
    try:
        rows = json.loads(text or "[]")
        numbers = [[float(value) for value in row] for row in rows if len(row) == length]
    except (TypeError, ValueError, OverflowError, RecursionError):
        return []
    return [row for row in numbers if all(math.isfinite(value) for value in row) and 0 <= row[2] <= 1]


def combined(
    curves: Sequence[tuple[Sequence[Width], int]], across: Mapping[tuple[int, int], float] = MappingProxyType({})
) -> tuple[Width, ...]:
    """One curve of all shards, each with its live rows as its weight: recall is the mean, distances add up.

    across: the share of that recall that a search of all shards finds, by width and oversample; 1 where it is not
    known.

    Every shard is searched with the same width, so only widths that all of them measured are used.
    """
    weighted = [(points, weight) for points, weight in curves if weight and points]
    if not weighted:
        return ()
    common = set.intersection(*({(point.search_list, point.oversample) for point in points} for points, _ in weighted))
    total = sum(weight for _, weight in weighted)
    curve = []
    for parameters in sorted(common):
        points_at = [
            (next(p for p in points if (p.search_list, p.oversample) == parameters), weight)
            for points, weight in weighted
        ]
        mean = sum(point.recall * weight for point, weight in points_at) / total
        recall = min(1.0, round(mean * across.get(parameters, 1.0), DECIMALS))
        curve.append(Width(*parameters, recall, sum(point.distances for point, _ in points_at), points_at[0][0].k))
    return tuple(curve)


def choose(target: float, k: int, curve: Sequence[Width], routing: Sequence[Reach], shards: int) -> Choice | None:
    """The search parameters that compute the fewest distances among those whose recall is at least `target`.

    Those of the best recall where none reaches it; None without a curve. Between two widths recall is taken as linear
    in the logarithm of L. A list for k rows is longer than one for those of the curve by as many rows (measured: 10 to
    100 on text), and for fewer no shorter: a beam of one finds a third of the nearest rows where one of 10 finds nine
    of 10.
    """
    if not curve:
        return None
    reaches = [*routing, Reach(math.inf, float(max(1, shards)), 1.0)]
    choices: list[tuple[float, Choice]] = []
    for reach in reaches:
        point = _narrowest(curve, target / reach.recall if reach.recall else math.inf)
        if point is not None:
            cost = point.distances * reach.shards
            choices.append((cost, choice_at(point, reach.probe_slack, point.recall * reach.recall, k)))
    if not choices:
        widest = max(curve, key=lambda point: (point.recall, point.search_list))
        return choice_at(widest, math.inf, widest.recall, k)
    return min(choices, key=lambda item: item[0])[1]


def _beats(point: Width, other: Width) -> bool:
    """Whether a point costs less and finds no less: among rows that tie, a narrow beam may end in comparing all."""
    return point.oversample == other.oversample and point.recall >= other.recall and point.distances < other.distances


def choice_at(point: Width, probe_slack: float, recall: float, k: int) -> Choice:
    """The search parameters of a point for k rows, which may be others than those that it was measured with."""
    longer = longer_list(k, point.oversample, point.k)
    oversample = _oversample(point, k)
    return Choice(max(k * oversample, point.search_list + longer), oversample, probe_slack, recall)


def foresee(choice: Choice, k: int, curve: Sequence[Width], routing: Sequence[Reach], shards: int) -> Foresight | None:
    """Recall and cost of a search for k rows by these parameters, whose own `recall` does not count. `shards`: how many
    have a curve.

    None for widths outside of those that were measured. Between two of them both are linear in the logarithm of L.
    """
    reach = next((reach for reach in routing if reach.probe_slack == choice.probe_slack), None)
    if reach is None and not math.isinf(choice.probe_slack):
        return None
    measured_k = curve[0].k if curve else MEASURED_K
    is_reranked = choice.oversample > 1
    fitting = [
        point for point in curve if choice.oversample == (_oversample(point, k) if is_reranked else point.oversample)
    ]
    fitting.sort(key=lambda point: point.search_list)
    alike = _point_at(fitting, choice.search_list - longer_list(k, choice.oversample, measured_k))
    as_long = _point_at(fitting, choice.search_list)
    if alike is None or as_long is None:
        return None
    if reach is None:
        return Foresight(alike.recall, as_long.distances, float(shards))
    return Foresight(alike.recall * reach.recall, as_long.distances * reach.shards / shards, reach.shards)


def _point_at(points: Sequence[Width], search_list: int) -> Width | None:
    """The point of a list's length, between two measured ones too; None outside of what was measured."""
    index = next((index for index, point in enumerate(points) if point.search_list >= search_list), None)
    if index is None or (index == 0 and points[0].search_list != search_list):
        return None
    before, after = points[max(0, index - 1)], points[index]
    if after.search_list == search_list:
        return after
    low, high = math.log(before.search_list), math.log(after.search_list)
    share = (math.log(search_list) - low) / (high - low)
    recall = before.recall + share * (after.recall - before.recall)
    distances = before.distances + share * (after.distances - before.distances)
    return Width(search_list, after.oversample, recall, distances, after.k)


def _oversample(point: Width, k: int) -> int:
    """Candidates per row of a search for k rows: together as many as were measured, at least."""
    return -(-point.oversample * max(k, point.k) // k)


def longer_list(k: int, oversample: int, measured_k: int = MEASURED_K) -> int:
    """Number by which the list of a search for k rows is longer than one for `measured_k` rows."""
    return max(0, k - measured_k) * (2 * oversample if oversample > 1 else 1)


def _narrowest(curve: Sequence[Width], target: float) -> Width | None:
    """The narrowest width that reaches the target, between measured ones too where only L differs.

    But between two that are not beaten lies none that is: what is reckoned there would be as dear.
    """
    before: Width | None = None
    for point in curve:
        if any(_beats(other, point) for other in curve):
            continue
        if point.recall >= target:
            if before is None or before.oversample != point.oversample or point.recall == before.recall:
                return point
            if any(before.search_list < it.search_list < point.search_list and _beats(point, it) for it in curve):
                return point
            share = (target - before.recall) / (point.recall - before.recall)
            low, high = math.log(before.search_list), math.log(point.search_list)
            return Width(
                math.ceil(math.exp(low + share * (high - low))),
                point.oversample,
                target,
                before.distances + share * (point.distances - before.distances),
                point.k,
            )
        before = point if before is None or point.recall > before.recall else before
    return None
