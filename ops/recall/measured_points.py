"""Recall and cost of an index at some search parameters, measured by queries, and the cheapest for a target recall.

Unlike the curves that are measured with an index (`icepuffin.ops.recall.curves`), a point is of all shards together and
of queries that need not be like the rows. Cost is a number of distances, which is the same on every machine.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from icepuffin.ops.presentation import Grid
from icepuffin.ops.recall.confidence import DEVIATIONS
from icepuffin.ops.recall.curves import MEASURED_K, WIDE_K

TOLERANCE = 0.01
"""What the recall of other queries may miss a target by, as far as the queries that were measured can tell"""
SHARES = (0.9, 0.95, 0.99)
"""Shares of the queries for which the recall is measured that all of them have at least"""
_DOUBT = 0.025
_ROUNDING = 1e-9
_TARGETS = np.round(np.arange(0.5, 1.0, 0.0025), 4)
"""Targets that the points to keep are for, beside those between the recalls that were measured"""


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """Recall and cost of searches for k rows at some search parameters."""

    k: int
    """Rows per query"""
    search_list: int
    """L of the beam"""
    oversample: int
    """Candidates per result row that are re-ranked by exact distance; 1 where distances are exact at once"""
    probe_slack: float
    """Slack of the centroid distance up to which shards are probed; inf for every shard"""
    recall: float
    """recall@k, the mean over the queries"""
    margin: float
    """Half of the width of the 95 % confidence interval of `recall`"""
    distances: float
    """Distances computed per query, on average"""
    shards: float
    """Shards probed per query, on average"""
    reached: tuple[float, ...] = ()
    """recall@k that each of `SHARES` of other queries have at least, missed by `TOLERANCE` of them at most, with a
    confidence of 97.5 %; empty where 0.1.0 measured the point
    """

    def reached_by(self, share: float) -> float:
        """recall@k that a share of the queries has at least, by the next one that was measured; -1: not measured."""
        return next((recall for of, recall in zip(SHARES, self.reached, strict=False) if of >= share - _ROUNDING), -1.0)

    @property
    def assured(self) -> float:
        """Recall that other queries of the kind miss by `TOLERANCE` at most, with a confidence of 97.5 %."""
        return self.recall - max(0.0, self.margin - TOLERANCE)

    def reaches(self, target: float) -> bool:
        """Whether the target is assured."""
        return self.assured >= target - _ROUNDING

    @property
    def interval(self) -> tuple[float, float]:
        """(low, high): the 95 % confidence interval of `recall`."""
        return max(0.0, self.recall - self.margin), min(1.0, self.recall + self.margin)


def margin_of(recalls: npt.NDArray[np.float64]) -> float:
    """Half of the width of the 95 % confidence interval of the mean of recalls f64[Q] of single queries.

    The normal one by their own spread, and one query in addition: a sample without a spread is no proof of none.
    """
    return float(DEVIATIONS * recalls.std(ddof=1) / math.sqrt(len(recalls)) + 1 / len(recalls))


def reached_of(recalls: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """What each of `SHARES` of other queries have at least, by the recalls f64[Q] of some of their kind: as
    `MeasuredPoint.reached` has it, and no more than such a share of these have. 0 where there are too few to tell.
    """
    ascending, count = np.sort(recalls), len(recalls)
    below = (min(_below(count, share - TOLERANCE), math.floor((1 - share) * count + _ROUNDING)) for share in SHARES)
    return tuple(float(ascending[number]) if number >= 0 else 0.0 for number in below)


def _below(count: int, share: float) -> int:
    """How many of so many queries may be below a recall, at most, for a share of all to have it in 97.5 of 100 draws
    (the binomial distribution); -1 where that is not sure even if none is.
    """
    numbers = np.arange(count)
    steps = np.log((count - numbers) / (numbers + 1) * ((1 - share) / share))  # from each number's chance to the next
    chances = np.exp(count * math.log(share) + np.concatenate([[0.0], np.cumsum(steps)]))
    return int(np.searchsorted(np.cumsum(chances), _DOUBT, side="right")) - 1


def points_for(points: Iterable[MeasuredPoint], k: int) -> list[MeasuredPoint]:
    """The points that hold for k rows: those for 10 up to there, those for 100 from there on.

    The 50 nearest rows lie in fewer shards than the 100 nearest. For more rows than were measured every shard is
    probed: how far away their shards are is not in the points.
    """
    measured = tuple(points)
    wide = [point for point in measured if point.k == WIDE_K]
    fitting = wide if k > MEASURED_K and wide else [point for point in measured if point.k == MEASURED_K]
    return [point for point in fitting if k <= point.k or math.isinf(point.probe_slack)]


def choose_point(points: Sequence[MeasuredPoint], target: float, share: float | None = None) -> MeasuredPoint | None:
    """The point with the fewest distances whose recall is assured to be `target`, between two widths too; or at which
    so large a share of the queries that were measured has that recall.

    The one of the highest recall where none reaches it; None where there are no points. All are for one k.
    """
    if share is not None:
        reaching = [point for point in points if point.reached_by(share) >= target - _ROUNDING]
        if reaching:
            return min(reaching, key=lambda point: point.distances)
        return max(points, key=lambda point: (point.reached_by(share), -point.distances), default=None)
    if segment := _reaching(points, target):
        return segment.point
    return max(points, key=lambda point: (point.assured, -point.distances), default=None)


def points_to_keep(points: Sequence[MeasuredPoint], targets: Iterable[float] = ()) -> tuple[MeasuredPoint, ...]:
    """The points that some target needs: of `targets`, of a grid from .5 on, or at and between measured recalls."""
    kept: set[MeasuredPoint] = set()
    for k in (MEASURED_K, WIDE_K, WIDE_K + 1):
        fitting = points_for(points, k)
        if not fitting:
            continue
        kept |= {min(fitting, key=lambda point: point.distances), choose_point(fitting, math.inf) or fitting[0]}
        for target in {*_TARGETS.tolist(), *targets, *_measured_targets(fitting)}:
            if segment := _reaching(fitting, target):
                kept |= {segment.before, segment.after}
        for share, level in {(share, point.reached_by(share)) for point in fitting for share in SHARES}:
            kept |= {choose_point(fitting, level, share) or fitting[0]}
    return tuple(point for point in points if point in kept)


def _measured_targets(points: Iterable[MeasuredPoint]) -> list[float]:
    """The recalls that points assure, of those on the grid or over it, and one between each two."""
    assured = sorted({point.assured for point in points if point.assured >= _TARGETS[0]})
    return [*assured, *(sum(pair) / 2 for pair in pairwise(assured))]


def front(points: Iterable[MeasuredPoint]) -> list[MeasuredPoint]:
    """The points that no other one beats in both recall and distances (the Pareto front), by distances."""
    best, highest = [], -math.inf
    for point in sorted(points, key=lambda point: (point.distances, -point.recall)):
        if point.recall > highest:
            best.append(point)
            highest = point.recall
    return best


def front_grids(points: Sequence[MeasuredPoint]) -> Iterator[Grid]:
    """Recall and cost of the points that no other one beats: a table for each k, by distances."""
    for k in sorted({point.k for point in points}):
        rows = [
            (point.search_list, point.oversample, f"{point.shards:.1f}", f"{point.recall:.4f}",
             "{:.4f} to {:.4f}".format(*point.interval), *(_known(point.reached_by(share)) for share in SHARES[1:]),
             f"{point.distances:,.0f}")
            for point in front(point for point in points if point.k == k)
        ]  # fmt: skip
        title = f"recall@{k} and distances per query; no other parameters gave more for less"
        low = tuple(f"{share:.0%} have" for share in SHARES[1:])
        yield Grid(title, rows, ("L", "oversample", "shards", f"recall@{k}", "95 % interval", *low, "distances"))


def _known(recall: float) -> str:
    return f"{recall:.2f}" if recall > 0 else "-"


def _series(points: Iterable[MeasuredPoint]) -> list[list[MeasuredPoint]]:
    """The points of each probe slack and oversample, by width."""
    by_parameters: dict[tuple[float, int], list[MeasuredPoint]] = {}
    for point in points:
        by_parameters.setdefault((point.probe_slack, point.oversample), []).append(point)
    return [sorted(series, key=lambda point: point.search_list) for series in by_parameters.values()]


@dataclass(frozen=True, slots=True)
class _Segment:
    """Two points of one series, before and after the target, and the one between them that reaches it."""

    before: MeasuredPoint
    after: MeasuredPoint
    point: MeasuredPoint


def _reaching(points: Iterable[MeasuredPoint], target: float) -> _Segment | None:
    """Where the series reaches the target that does so with the fewest distances; None where none does."""
    segments: list[_Segment] = []
    for series in _series(points):
        before: MeasuredPoint | None = None
        passed: MeasuredPoint | None = None
        for number, after in enumerate(series, 1):
            if any(wider.assured >= after.assured and wider.distances < after.distances for wider in series[number:]):
                passed = after  # among rows that tie a narrow beam may end in comparing them all; so do those beside it
                continue
            if after.assured >= target:
                point = after if passed else _between(before or after, after, target)
                segments.append(_Segment(passed or before or after, after, point))
            if before is None or after.assured >= before.assured:
                before, passed = after, None
    return min(segments, key=lambda segment: segment.point.distances, default=None)


def _between(before: MeasuredPoint, after: MeasuredPoint, target: float) -> MeasuredPoint:
    """The narrowest width at which the target is assured: recall is taken as linear in the logarithm of L."""
    if before.assured >= target or before.search_list == after.search_list:
        return after
    share = (target - before.assured) / (after.assured - before.assured)
    low, high = math.log(before.search_list), math.log(after.search_list)
    values = {
        name: getattr(before, name) + share * (getattr(after, name) - getattr(before, name))
        for name in ("recall", "margin", "distances", "shards")
    }
    width = math.ceil(math.exp(low + share * (high - low)) - _ROUNDING)
    return after if width >= after.search_list else replace(after, search_list=width, reached=before.reached, **values)
