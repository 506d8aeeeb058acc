"""How hard a search tries: the beam's width, the number of shards that are probed, the candidates that are reranked."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from icepuffin.ops.index.planning.sizes import sample_size
from icepuffin.ops.index.versions.tuning_record import TuningRecord
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.index.versions.version_sizes import fit_of
from icepuffin.ops.recall.curves import (
    MEASURED_K,
    OVERSAMPLE,
    WIDE_K,
    Choice,
    Foresight,
    Reach,
    ShardCentroids,
    Width,
    choice_at,
    choose,
    combined,
    foresee,
    longer_list,
    reaches,
    widths,
)
from icepuffin.ops.recall.measured_points import SHARES, MeasuredPoint, choose_point, points_for
from icepuffin.ops.search.errors import QueryError

Grouped = Callable[[Any, int], Any]
"""Function from a MaskedShard and a factor to its Searcher, which finds so many times the rows of a group. Their
modules need kernels"""
P = TypeVar("P", Width, MeasuredPoint)
_MAX_REMEMBERED = 256
_ROWS_PER_CENTROID = 24
"""Rows per centroid under which every shard is probed: such a table has a few hundred rows per shard"""
_ROUNDED = (
    "the column holds doubles, and distances are those of its vectors as the index holds them, rounded to float or "
    "coarser: rerank ranks by the doubles"
)
_FEW_CANDIDATES = (
    "{} candidates per query were ranked by the table's vectors, and the recall of an index was measured with {}: "
    "fewer of the nearest rows may be found for a small k; oversample = {} ranks as many, target_recall chooses"
)
_NOT_RANKED = "oversample = {} has no effect: {}"
_EXACT_ALREADY = "the index's distances are those of the table's vectors; a larger search_list finds more"
_NOT_RERANKED = "candidates are ranked by what the index holds; with rerank they are ranked by the table's vectors"
_NO_SHARE = (
    "recall_share goes by the queries that `icepuffin tune` measured, {}: the parameters are those of target_recall on "
    "average"
)
_OTHERS = "the curves that were measured with the index do not have these parameters"
_UNDER_CONDITION = "recall under a condition was not measured"
_APPROXIMATE = "distances are of what the index holds in place of the table's vectors, which were not requested"


@dataclass(frozen=True, slots=True, eq=False)
class RecallModel:
    """Recall of a version as it was measured when the version was built, and where its shards lie."""

    routed: ShardCentroids
    """Centroids of the shards that the codebook routes to. Other shards hold later rows, and every query probes them"""
    shards: int
    """Number of shards, routed or not"""
    curve: tuple[Width, ...]
    """Recall curve of all shards together, for 10 rows"""
    routing: Mapping[int, tuple[Reach, ...]]
    """Recall curves of the codebook, by the number of rows that each was measured for, ascending; none where it does
    not fit the rows, or has few rows for each centroid
    """
    wide_curve: tuple[Width, ...] = ()
    """Recall curve of all shards together, for 100 rows; empty where a shard has none"""
    with_curve: int = 0
    """Number of shards with live rows that have a curve"""
    without_curve: int = 0
    """Number of shards with live rows that have none"""

    @classmethod
    def from_version(cls, opened: OpenVersion) -> "RecallModel":
        """The model of a version, from its curves and its codebook."""
        table = opened.routing
        rows = sum(entry.live_rows for entry in table.shards)
        shards = list(zip(opened.curves, table.shards, strict=True))
        routed = {int(shard) for shard in table.partition_to_shard}  # deltas have no curve
        main = [text for number, (text, entry) in enumerate(shards) if number in routed and entry.live_rows]
        measured = [bool(widths(text)) for text, entry in shards if entry.live_rows]
        has_wide = all(widths(text, WIDE_K) for text in main)
        return cls(
            ShardCentroids.from_codebook(table.codebook, table.partition_to_shard, opened.definition.metric),
            len(table.shards),
            combined([(widths(text), entry.live_rows) for text, entry in shards], opened.across.of_curve()),
            _routing_curves(opened, rows) if _tells_shards(opened, rows) else {},
            combined(
                [(widths(text, WIDE_K), entry.live_rows) for text, entry in shards], opened.across.of_curve(WIDE_K)
            )
            if has_wide
            else (),
            sum(measured),
            len(measured) - sum(measured),
        )

    def routing_for(self, k: int) -> tuple[Reach, ...]:
        """The routing curve that holds for k rows; empty where none was measured for so many."""
        return next((points for measured_k, points in self.routing.items() if measured_k >= k), ())

    def ranks(self, queries: npt.NDArray[Any]) -> dict[int, int]:
        """Rank of the shards that the codebook routes to, by distance from some queries, the best of each: the nearest
        shard of any query has 0.
        """
        if not len(self.routed.shards):
            return {}
        order = np.argsort(self.routed.distances(queries), axis=1, kind="stable")
        ranks = np.argsort(order, axis=1, kind="stable").min(axis=0)
        return dict(zip(self.routed.shards.tolist(), ranks.tolist(), strict=True))

    def probed(self, queries: npt.NDArray[Any], parameters: "SearchParameters") -> npt.NDArray[np.bool_] | None:
        """bool[Q, shards]: the shards that each query probes; None where every query probes all."""
        if not self.leaves_out_shards(parameters):
            return None
        routed, nearest = self.routed.shards, self._nearest(parameters)
        distances = self.routed.distances(queries)
        limit = np.partition(distances, nearest - 1, axis=1)[:, nearest - 1 : nearest]
        if not math.isinf(parameters.probe_slack):
            limit = np.minimum(limit, distances.min(axis=1, keepdims=True) * (1 + parameters.probe_slack))
        probed = np.ones((len(queries), self.shards), np.bool_)
        probed[:, routed] = distances <= limit
        return probed

    def probed_in_the_end(
        self, queries: npt.NDArray[Any], parameters: "SearchParameters", k: int, live_rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_] | None:
        """The same as `probed`, with the shards that a query probes since its first ones have fewer than k rows.

        `live_rows` int64[shards]. The caller who gave the number of shards gets no others.
        """
        probed = self.probed(queries, parameters)
        if probed is not None and parameters.shards is None:
            probed[probed @ live_rows < k] = True
        return probed

    def leaves_out_shards(self, parameters: "SearchParameters") -> bool:
        """Whether some query may not probe all shards."""
        routed = len(self.routed.shards)
        every = math.isinf(parameters.probe_slack) and self._nearest(parameters) == routed
        return self.shards > 1 and routed > 0 and not every

    def _nearest(self, parameters: "SearchParameters") -> int:
        """Number of the nearest shards that a query probes at most, of those that the codebook routes to."""
        routed = len(self.routed.shards)
        return routed if parameters.shards is None else min(parameters.shards, routed)


def _tells_shards(opened: OpenVersion, rows: int) -> bool:
    """Whether the codebook's curves hold for queries near any row. Centroids of few rows lie so near to these that
    fewer shards are within a slack than for the rows held out, by which it was measured.
    """
    return rows >= _ROWS_PER_CENTROID * len(opened.routing.codebook) and not fit_of(opened.bound.sizes).steps_apart


def _routing_curves(opened: OpenVersion, rows: int) -> dict[int, tuple[Reach, ...]]:
    """Routing curves by the number of rows that each holds for. The 10 nearest rows of a sample are as far away as many
    more in the table: the curve of the sample holds for these.
    """
    curves = {k: reaches(opened.routing_curve, k) for k in (MEASURED_K, WIDE_K)}
    curves = {k: points for k, points in curves.items() if points}
    sampled_k = MEASURED_K * rows // max(1, sample_size(rows))
    if sampled_k > max(curves, default=0):
        curves[sampled_k] = reaches(opened.sample_curve)
    return curves


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Search parameters as the caller gives them; None leaves the choice to the index."""

    search_list: int | None = None
    shards: int | None = None
    oversample: int | None = None
    target_recall: float | None = None
    rerank: bool | None = None
    recall_share: float | None = None

    def __post_init__(self) -> None:
        target, share = self.target_recall, self.recall_share
        if target is not None and not (isinstance(target, int | float | np.floating) and 0 < target <= 1):
            raise QueryError(f"target_recall is {target!r}; it is a share, over 0 and at most 1")
        if share is not None and not (isinstance(share, int | float | np.floating) and 0 < share <= SHARES[-1]):
            raise QueryError(
                f"recall_share is {share!r}; it is a share of the queries, over 0 and at most {SHARES[-1]}"
            )
        if share is not None and target is None:
            raise QueryError("recall_share is of the queries that reach target_recall: give that, too, such as 0.9")


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """How hard a search tries."""

    search_list: int
    """L, the width of the beam"""
    oversample: int = OVERSAMPLE
    """Candidates per result row, of shards whose distances are not exact"""
    shards: int | None = None
    """Number of shards that a query probes, the nearest ones; None: as many as `probe_slack` admits"""
    probe_slack: float = math.inf
    """Slack of the centroid distance: shards at most (1 + probe_slack) times as far as the nearest; inf: all"""
    foreseen: Foresight | None = None
    """Recall and cost by the curves that were measured with the index; None where these do not have them"""
    why: str = "the index's own"
    """Reason for this choice, in words"""
    rerank: bool = False
    """Whether candidates are ranked by the table's vectors, because those of the index differ from them"""
    unforeseen: str = _OTHERS
    """Reason why nothing is foreseen, where nothing is"""
    grouped: Grouped | None = field(default=None, repr=False, compare=False)
    """Searchers of shards; None for their own"""


class TunableVersion(Protocol):
    """An index version, as far as the choice of search parameters needs it."""

    @property
    def recall_model(self) -> RecallModel: ...
    @property
    def search_list(self) -> int:
        """The definition's own search list"""

    @property
    def exact(self) -> bool:
        """Whether its distances are those of the vectors that the table has"""

    @property
    def lean(self) -> bool:
        """Whether a shard holds no vectors to compare with"""

    @property
    def coded(self) -> bool:
        """Whether shards hold rotated codes, by which candidates are ranked well without vectors"""

    @property
    def column_is_double(self) -> bool:
        """Whether the column's vectors are doubles, which shards hold as floats"""


class ParameterChooser:
    """Chooses the search parameters for searches of one version. Thread-safe.

    `unfit_record`: why the record of `tune` does not serve; `reranks`: whether candidates are ranked by the table's
    vectors in any case; `no_effect`: warning of options where there is no version to choose for.
    """

    def __init__(
        self,
        version: TunableVersion | None,
        record: TuningRecord | None = None,
        unfit_record: str = "",
        *,
        reranks: bool = False,
        no_effect: str = "",
    ) -> None:
        self._version = version
        self._record = record
        self._unfit_record = unfit_record
        self._reranks = reranks
        self._no_effect = no_effect
        self._chosen: dict[tuple[int, SearchOptions, bool], tuple[SearchParameters | None, tuple[str, ...]]] = {}

    def choose(
        self, k: int, options: SearchOptions, *, filtered: bool
    ) -> tuple[SearchParameters | None, tuple[str, ...]]:
        """The search parameters (None without a version), and warnings of options that could not be followed.

        The choice is remembered: an application gives the same options with every query.
        """
        if self._version is None:
            return None, (self._no_effect,) if self._no_effect and options != SearchOptions() else ()
        if self._reranks:
            options = replace(options, rerank=True)
        key = (k, options, filtered)
        if remembered := self._chosen.get(key):
            return remembered
        by_target = options.target_recall is not None and not filtered
        parameters, warnings = choose_parameters(self._version, k, options, filtered=filtered, record=self._record)
        chosen = parameters, (*warnings, self._unfit_record) if by_target and self._unfit_record else warnings
        if len(self._chosen) >= _MAX_REMEMBERED:
            self._chosen.clear()  # other threads return values of their own, not what this dict holds
        self._chosen[key] = chosen
        return chosen


def choose_parameters(
    version: TunableVersion, k: int, options: SearchOptions, *, filtered: bool, record: TuningRecord | None = None
) -> tuple[SearchParameters, tuple[str, ...]]:
    """The parameters of one search, and warnings of options that could not be followed.

    Under a condition every shard is probed: how many matching rows lie far from the query was not measured. Else a
    target is met by the points of `record`, where there is one; by the curves that were measured with the index where
    there is none.
    """
    model, width = version.recall_model, version.search_list
    rerank = not version.exact and _reranks(version, options)
    warnings: list[str] = []
    choice: Choice | None = None
    point: MeasuredPoint | None = None
    if options.target_recall is not None:
        if record is not None and not filtered:
            point = _measured_point(version, k, options, record)
        if point is not None and record is not None:
            rerank |= version.coded and options.rerank is None and point.oversample > 1
            choice = _choice_at_point(point, k, rerank=rerank)
            warnings += [*_out_of_reach(point, options, record), *_unmeasured(point, k, options.recall_share)]
        else:
            choice = _choice_by_curves(version, k, options, filtered=filtered)
            rerank |= choice is not None and version.coded and options.rerank is None and choice.oversample > 1
            warnings += _out_of_reach_of_curves(choice, options, filtered=filtered)
    if filtered and options.shards is not None:
        warnings.append("under a condition every shard is probed, not only the nearest ones")
    if version.lean and not rerank and not version.coded:
        warnings.append(_APPROXIMATE)
    elif version.column_is_double and not rerank:
        warnings.append(_ROUNDED)
    if (
        version.lean
        and not version.coded
        and rerank
        and choice is None
        and options.oversample is None
        and k < MEASURED_K
    ):
        measured = MEASURED_K * OVERSAMPLE
        warnings.append(_FEW_CANDIDATES.format(k * OVERSAMPLE, measured, -(-measured // k)))
    if (options.oversample or 1) > 1 and not rerank:
        warnings.append(_NOT_RANKED.format(options.oversample, _EXACT_ALREADY if version.exact else _NOT_RERANKED))
    candidates = (options.oversample or OVERSAMPLE) if rerank else 1
    by_curve = (
        SearchParameters(width + longer_list(k, candidates))
        if choice is None
        else SearchParameters(choice.search_list, choice.oversample, None, choice.probe_slack)
    )
    explicit = [name for name in ("search_list", "shards", "oversample") if getattr(options, name) is not None]
    source = record.origin if record is not None and point is not None else "the curve measured with the index"
    why = "the index's own" if choice is None else f"{_promise(options, point, filtered=filtered)}, by {source}"
    if version.coded:
        why += "; ranked by codes, then by the table's vectors" if rerank else "; ranked by codes"
    parameters = SearchParameters(
        search_list=options.search_list or by_curve.search_list,
        oversample=(options.oversample or by_curve.oversample) if rerank else 1,
        shards=None if filtered else options.shards,
        probe_slack=math.inf if options.shards is not None else by_curve.probe_slack,
        why=f"{why}; given: {', '.join(explicit)}" if explicit else why,
        rerank=rerank,
        unforeseen=_UNDER_CONDITION if filtered else _OTHERS,
    )
    foreseen: Foresight | None
    as_measured = not explicit and (rerank or not version.lean or choice is None or choice.oversample == 1)
    if point is not None and as_measured:
        foreseen = _foreseen_by_point(point, k, source)
    else:
        foreseen = None if filtered else _foreseen(model, k, parameters, choice if as_measured else None)
    return replace(parameters, foreseen=foreseen), tuple(warnings)


def _measured_point(
    version: TunableVersion, k: int, options: SearchOptions, record: TuningRecord
) -> MeasuredPoint | None:
    """The point of a record for a target, of its mean where no share was measured."""
    points = points_for(record.points, k)
    share = options.recall_share if any(point.reached for point in points) else None
    return choose_point(_allowed(points, version, options), options.target_recall or 0.0, share)


def _promise(options: SearchOptions, point: MeasuredPoint | None, *, filtered: bool) -> str:
    """The recall that a choice is made for, and for which queries it holds."""
    share = options.recall_share if point and point.reached else None
    of = f" of {100 * share:g}% of the queries" if share else ""
    return f"recall {options.target_recall:g}{of}{' where there is no condition' if filtered else ''}"


def _reranks(version: TunableVersion, options: SearchOptions) -> bool:
    """Whether candidates are ranked by the table's vectors, whatever a target chooses."""
    if options.rerank is not None:
        return options.rerank
    return (options.oversample or 1) > 1 if version.coded else version.lean


def _allowed(points: Sequence[P], version: TunableVersion, options: SearchOptions) -> list[P]:
    """The measured points that a choice is made among: of codes that rank without vectors, those with or without
    ranking by vectors, as the caller wants it.
    """
    if not version.coded or options.rerank is None:
        return list(points)
    return [point for point in points if (point.oversample > 1) == options.rerank] or list(points)


def _choice_by_curves(version: TunableVersion, k: int, options: SearchOptions, *, filtered: bool) -> Choice | None:
    """The choice by the curves that were measured with the index; None without one. Of codes that rank without vectors,
    one that reads no vectors is chosen where it reaches the target.
    """
    model, target = version.recall_model, options.target_recall or 0.0
    routing = () if filtered else model.routing_for(k)
    curve = model.wide_curve if k >= WIDE_K and model.wide_curve else model.curve
    points = _allowed(curve, version, options)
    if version.coded and options.rerank is None:
        choice = choose(target, k, [point for point in points if point.oversample == 1], routing, model.shards)
        if choice is not None and choice.recall >= target:
            return choice
    return choose(target, k, points, routing, model.shards)


def _out_of_reach_of_curves(choice: Choice | None, options: SearchOptions, *, filtered: bool) -> Iterator[str]:
    if options.recall_share is not None:
        yield _NO_SHARE.format("none of them under a condition" if filtered else "and the index has no such record")
    if choice is None:
        yield "the version has no recall curve to choose by; its own search list was used"
    elif choice.recall < (options.target_recall or 0.0):
        best = f"the one with the best, {choice.recall:.4f}, was used"
        yield f"no width that was measured reaches recall {options.target_recall:g}; {best}"


def _out_of_reach(point: MeasuredPoint, options: SearchOptions, record: TuningRecord) -> tuple[str, ...]:
    target, share = options.target_recall or 0.0, options.recall_share
    if share is not None and not point.reached:
        return (_NO_SHARE.format("and a release before 0.2 measured them, which did not look"),)
    if share is not None and point.reached_by(share) < target:
        best = f"the best, {point.reached_by(share):.4f}, was used"
        return (f"at no point that `icepuffin tune` measured {100 * share:g}% of the queries reach {target:g}; {best}",)
    if share is not None or point.reaches(target):
        return ()
    best = f"the best, {point.recall:.4f} +- {point.margin:.4f} by {record.queries:,} queries, was used"
    return (f"no point that `icepuffin tune` measured is sure to reach recall {target:g}; {best}",)


def _unmeasured(point: MeasuredPoint, k: int, share: float | None) -> tuple[str, ...]:
    if share is not None and k < point.k:
        return (f"recall_share was measured for {point.k} rows per query, not for {k}",)
    if k <= point.k:
        return ()
    return (f"recall@{k} was not measured by `icepuffin tune`; what is foreseen is recall@{point.k}",)


def _choice_at_point(point: MeasuredPoint, k: int, *, rerank: bool) -> Choice:
    if point.oversample == 1 and not rerank:
        search_list = point.search_list + longer_list(k, 1, point.k)
        return Choice(search_list, 1, point.probe_slack, point.recall)
    width = Width(point.search_list, point.oversample, point.recall, point.distances, point.k)
    return choice_at(width, point.probe_slack, point.recall, k)


def _foreseen_by_point(point: MeasuredPoint, k: int, source: str) -> Foresight:
    """What a point foresees; of more rows than it was measured with, the recall alone."""
    if k > point.k:
        return Foresight(point.recall, source=source)
    shares = zip(SHARES[1:], point.reached[1:], strict=False) if k == point.k else ()
    low = ", ".join(f"{recall:.2f} or more for {share:.0%} of the queries" for share, recall in shares if recall)
    return Foresight(point.recall, point.distances, point.shards, source=source, low=low)


def _foreseen(model: RecallModel, k: int, parameters: SearchParameters, choice: Choice | None) -> Foresight | None:
    """What the curves foresee: nothing for a number of shards that the caller sets. `choice`: by a target recall."""
    if parameters.shards is not None or not model.with_curve:
        return None
    curve = model.wide_curve if k >= WIDE_K and model.wide_curve else model.curve
    parameters_of_search = Choice(parameters.search_list, parameters.oversample, parameters.probe_slack, 0.0)
    foreseen = foresee(parameters_of_search, k, curve, model.routing_for(k), model.with_curve)
    if foreseen is None:
        return Foresight(choice.recall) if choice else None
    return replace(foreseen, shards_without_curve=model.without_curve)
