"""Tuning: the recall of an index for a user's own queries, measured and kept with the table.

The curves that are measured with an index take rows as queries. Queries from elsewhere, such as texts that search
images, find fewer of their nearest rows with the same parameters, and their nearest rows lie in more shards.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pyiceberg.table import Table

from icepuffin.ann_kernels.arrays import F64
from icepuffin.ops.binding.bound_versions import DerivedVersion, tagged_version
from icepuffin.ops.catalog.read_restrictions import require_table
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index.definitions.ddl import load_definition, only_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.versions.tuning_record import TuningRecord, changes_of, identity_of, keep_record
from icepuffin.ops.index.versions.version_reader import OpenVersion, open_version
from icepuffin.ops.messages import plural
from icepuffin.ops.model import IN_PROCESS_MB, StorageConfig
from icepuffin.ops.presentation import Grid, Presentation
from icepuffin.ops.recall.curves import MEASURED_K, WIDE_K
from icepuffin.ops.recall.measured_points import MeasuredPoint, choose_point, front_grids, points_for, points_to_keep
from icepuffin.ops.search.errors import IndexUnavailableError, QueryError
from icepuffin.ops.search.measured.recall_trial import GroundTruth, RecallTrial
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.result import StalePolicy
from icepuffin.ops.search.tuning import SearchOptions, SearchParameters, choose_parameters
from icepuffin.ops.table.snapshots import SnapshotName, table_name
from icepuffin.ops.tasks.recall_gate import (
    CURVE_OVERSAMPLES,
    CURVE_WIDTHS,
    WIDE_CURVE_OVERSAMPLES,
    WIDE_CURVE_WIDTHS,
)
from icepuffin.ops.tasks.task_runner import StageProgress, TaskRunner

TARGETS = (0.9, 0.95, 0.99)
MAX_QUERIES = 1_000
MIN_QUERIES = 50
_WIDTHS = {MEASURED_K: (*CURVE_WIDTHS, 400, 640), WIDE_K: (*WIDE_CURVE_WIDTHS, 600, 900)}
"""Widths by k: queries unlike the rows need wider ones than rows do"""
_OVERSAMPLES = {MEASURED_K: CURVE_OVERSAMPLES, WIDE_K: WIDE_CURVE_OVERSAMPLES}
_SHARDS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0, 1024.0)
"""Shards per query, on average, that probe slacks are measured for"""
_MIN_GAIN = 0.001
"""Gain of recall by the next width under which wider ones are not measured: what is missing lies in other shards"""
_MAX_STEPS = 4
"""Points that are measured for one target, each between two others"""
_COLUMNS = ("target", "L", "shards", "distances", "recall", "L, tuned", "shards", "distances", "recall")
_WHOLE = 0.9995
"""Recall from which wider lists are not measured"""


@dataclass(frozen=True, slots=True)
class TunedTarget:
    """The search parameters for a target recall, without and with tuning."""

    k: int
    target: float
    by_curves: MeasuredPoint
    """What the curves that were measured with the index choose, and what that gave the queries"""
    tuned: MeasuredPoint
    """What is chosen from now on"""

    @property
    def is_reached(self) -> bool:
        """Whether the queries are enough to be sure of the target."""
        return self.tuned.reaches(self.target)


@dataclass(frozen=True, slots=True, repr=False)
class TuningReport(Presentation):
    """What `tune` measured."""

    table: str
    index: str
    record: TuningRecord
    """Record that readers choose by"""
    points: tuple[MeasuredPoint, ...]
    """All points that were measured"""
    targets: tuple[TunedTarget, ...]
    offered_queries: int
    """Queries that were handed over; at most 1,000, evenly among these, were measured"""
    is_kept: bool
    """Whether the record is in the table's properties now"""
    warnings: tuple[str, ...] = field(default=())

    def headline(self) -> str:
        kept = "kept" if self.is_kept else "not kept"
        return f"index {self.index!r} of {self.table!r}, measured by {plural(self.record.queries, 'query')}, {kept}"

    def grids(self) -> Iterator[Grid]:
        yield from front_grids(self.points)
        for k in sorted({point.k for point in self.points}):
            chosen = [one for one in self.targets if one.k == k]
            rows = [(f"{one.target:g}", *_cells(one.by_curves), *_cells(one.tuned)) for one in chosen]
            yield Grid(f"what target_recall chooses for {k} rows by the index's own curves, and tuned", rows, _COLUMNS)


def _cells(point: MeasuredPoint) -> tuple[object, ...]:
    return point.search_list, f"{point.shards:.1f}", f"{point.distances:,.0f}", f"{point.recall:.4f}"


def tune(
    table: Table,
    queries: npt.ArrayLike,
    index: str | IndexDefinition | None = None,
    *,
    targets: Sequence[float] = TARGETS,
    snapshot: SnapshotName = None,
    dry_run: bool = False,
    storage: StorageConfig | None = None,
    threads: int | None = None,
    runner: TaskRunner | None = None,
    in_process_mb: int = IN_PROCESS_MB,
    progress: StageProgress | None = None,
) -> TuningReport:
    """Measure the recall of an index for your own queries; from then on `target_recall` is met for queries like these.

    Needed where queries are not like the rows: texts that search images, titles that search articles. Up to 1,000
    queries are compared with every row, and then searched for with many parameters. The outcome is kept in a property
    of the table, so that every reader has it, after refreshes too.

    Parameters
    ----------
    table : pyiceberg.table.Table
        The table. It is read anew from its catalog before the outcome is kept.
    queries : array_like
        Vectors [Q, D] as for `IndexReader.search`, 50 at least: logged ones, or a set that is held out.
    index : str, optional
        Name of the index. Default: the only one that the table has.
    targets : sequence of float
        Recalls for which parameters are reported and measured themselves.
    snapshot : int, str or datetime, optional
        Snapshot whose version is measured. Default: that of the version at the index tag.
    dry_run : bool
        Keep nothing.
    storage, threads, runner, in_process_mb : optional
        As for `open_index`.
    progress : callable, optional
        Called with a label, and the numbers of finished pieces and of all pieces of that work.

    Returns
    -------
    TuningReport
        Recall with its interval, and cost, of all that was measured; and for each target what is chosen, without and
        with tuning.

    Raises
    ------
    QueryError
        There are too few queries, or one is not a vector of the index's dimensions; or the index has no graphs; or the
        version was built otherwise than the newest one, and `dry_run` is not set.
    IndexUnavailableError
        The snapshot has no version that can be read.
    DefinitionError, UnknownSnapshotError, StorageError, DataFileError
        As for `open_index`, and where data files cannot be read.
    IcepuffinError
        The property cannot be written.

    Examples
    --------
    >>> logged = [row["embedding"] for row in table.scan(limit=60).to_arrow().to_pylist()]
    >>> report = icepuffin.tune(table, logged, "embedding", dry_run=True)
    >>> [(choice.k, choice.target) for choice in report.targets][:3]
    [(10, 0.9), (10, 0.95), (10, 0.99)]
    """
    require_table(table, "tune")
    for target in targets:
        SearchOptions(target_recall=target)  # raises for what is no share
    index = only_index(table) if index is None else index
    name = index if isinstance(index, str) else index.name
    tagged = tagged_version(table, name)
    chosen = snapshot
    if chosen is None:
        if tagged is None:
            if isinstance(index, str):
                load_definition(table, index)  # raises where there is none of this name
            raise IndexUnavailableError(f"{table_name(table)}: index {name} has no version yet; refresh it first")
        chosen = tagged.index_snapshot_id
    reader = open_index(
        table, index, snapshot=chosen, storage=storage, stale=StalePolicy.FAIL, threads=threads, runner=runner,
        in_process_mb=in_process_mb,
    )  # fmt: skip
    trial = reader.recall_trial()
    if snapshot is not None and tagged is not None and not dry_run:
        _require_alike(trial.opened, tagged, storage or storage_of(table))
    offered = trial.prepared(queries)
    if len(offered) < MIN_QUERIES:
        raise QueryError(
            f"there are {len(offered)} queries; tuning takes {MIN_QUERIES} at least, and some hundred are better"
        )
    vectors = offered[np.linspace(0, len(offered) - 1, min(len(offered), MAX_QUERIES)).astype(np.int64)]
    ks = (MEASURED_K, WIDE_K) if trial.rows >= WIDE_K else (MEASURED_K,)
    run = _TuningRun(trial, vectors, progress)
    points = [point for k in ks for point in run.points(k, targets)]
    bound = trial.opened.bound
    record = TuningRecord(
        points_to_keep(points, targets),
        len(vectors),
        bound.index_snapshot_id,
        bound.base_snapshot_id,
        time.time_ns() // 1_000_000,
        identity_of(trial.opened),
    ).as_kept()
    outcomes = [run.outcome(k, target, record) for k in ks for target in targets]
    if not dry_run:
        keep_record(table, name, record)
    return TuningReport(
        table_name(table), name, record, tuple(points), tuple(outcomes), len(offered), not dry_run,
        (*_warnings(outcomes, len(vectors)), *run.warnings()),
    )  # fmt: skip


def _require_alike(measured: OpenVersion, tagged: DerivedVersion, storage: StorageConfig) -> None:
    """Raises QueryError where readers of the newest version would not choose by what is measured with another."""
    changes = changes_of(identity_of(measured), identity_of(open_version(tagged, storage)))
    if changes:
        raise QueryError(
            f"the version of snapshot {measured.bound.base_snapshot_id} was built otherwise than the newest one, whose "
            f"readers could not use what is measured with it: {changes}; measure it without keeping anything (dry_run, "
            "--dry-run)"
        )


def _warnings(outcomes: Iterable[TunedTarget], queries: int) -> list[str]:
    return [
        f"recall@{choice.k} of {choice.target:g} is not sure to be reached: the best that was measured is "
        f"{choice.tuned.recall:.4f} +- {choice.tuned.margin:.4f} by {queries:,} queries"
        for choice in outcomes
        if not choice.is_reached
    ]


class _TuningRun:
    """Measures one version with the same queries f64[Q, D], prepared; each point once."""

    def __init__(self, trial: RecallTrial, vectors: F64, progress: StageProgress | None) -> None:
        self._trial = trial
        self._vectors = vectors
        self._progress = progress
        self._truth: dict[int, GroundTruth] = {}
        self._measured: dict[tuple[int, SearchParameters], MeasuredPoint] = {}

    def points(self, k: int, targets: Sequence[float]) -> list[MeasuredPoint]:
        """Points for k rows: some of each probe slack, and what they lead to for each target."""
        self._show(f"exact {k} nearest", 0, 1)
        self._truth[k] = self._trial.ground_truth(self._vectors, k)
        self._show(f"exact {k} nearest", 1, 1)
        points = self._grid(k)
        for target in targets:
            if (by_curves := self._by_curves(k, target)) not in points:
                points.append(by_curves)  # the grid ends with the first list that finds all, which may be a dear one
            for _ in range(_MAX_STEPS):  # between two widths recall is reckoned: there it is measured, too
                chosen = choose_point(points_for(points, k), target)
                if chosen is None or chosen in points:
                    break
                points.append(self._measure(k, _parameters_at(chosen)))
        return points

    def warnings(self) -> list[str]:
        """Queries whose recall is measured too low, by k; none where rows are compared by their distances."""
        tied = {k: int(truth.more_ties.sum()) for k, truth in self._truth.items() if not self._trial.version.exact}
        return [
            f"{count:,} queries have too many rows as near as the {k}-th to list them all: their recall@{k} may be "
            "higher than what was measured"
            for k, count in tied.items()
            if count
        ]

    def outcome(self, k: int, target: float, record: TuningRecord) -> TunedTarget:
        """What the queries get by what a reader chooses for a target, without and with the record."""
        options = SearchOptions(target_recall=target)
        tuned, _ = choose_parameters(self._trial.version, k, options, filtered=False, record=record)
        return TunedTarget(k, target, self._by_curves(k, target), self._measure(k, tuned))

    def _by_curves(self, k: int, target: float) -> MeasuredPoint:
        """What the queries get by what a reader chooses without a record."""
        options = SearchOptions(target_recall=target)
        return self._measure(k, choose_parameters(self._trial.version, k, options, filtered=False)[0])

    def _grid(self, k: int) -> list[MeasuredPoint]:
        """The points of each probe slack, by width, up to the one from which wider lists find nothing more."""
        slacks, widths = self._trial.slacks(self._vectors, _SHARDS), self._widths(k)
        points: list[MeasuredPoint] = []
        for number, slack in enumerate(slacks):
            before: MeasuredPoint | None = None
            for step, (search_list, oversample) in enumerate(widths):
                self._show(f"recall@{k}", number * len(widths) + step, len(slacks) * len(widths))
                point = self._measure(k, SearchParameters(search_list, oversample, None, slack))
                points.append(point)
                if before is not None and point.distances >= before.distances:  # else it was dear: see `choose_point`
                    gain = math.inf if math.isinf(slack) else point.recall - before.recall
                    if before.recall >= _WHOLE or gain < _MIN_GAIN:
                        break
                before = point
        self._show(f"recall@{k}", len(slacks) * len(widths), len(slacks) * len(widths))
        return points

    def _widths(self, k: int) -> list[tuple[int, int]]:
        """(L, oversample), ascending: of lean shards by oversample, whose list has to hold all candidates; of
        those that hold rotated codes both.
        """
        version = self._trial.version
        ranked = [(width, 1) for width in _WIDTHS[k]]
        if not version.lean:
            return ranked
        reranked = [(max(version.search_list, 2 * k * oversample), oversample) for oversample in _OVERSAMPLES[k]]
        return [*ranked, *reranked[1:]] if version.coded else reranked

    def _measure(self, k: int, parameters: SearchParameters) -> MeasuredPoint:
        searched = SearchParameters(
            parameters.search_list, parameters.oversample, parameters.shards, parameters.probe_slack
        )
        key = k, searched
        if key not in self._measured:
            self._measured[key] = self._trial.measure(self._vectors, k, searched, self._truth[k])
        return self._measured[key]

    def _show(self, label: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(label, done, total)


def _parameters_at(point: MeasuredPoint) -> SearchParameters:
    return SearchParameters(point.search_list, point.oversample, None, point.probe_slack)
