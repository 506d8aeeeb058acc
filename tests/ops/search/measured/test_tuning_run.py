"""A target recall for queries that are not like the rows: measured by some of them, met for others."""

import json
import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ann_kernels.graphs import graph_search
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.commit import CommitOutcome, attempt_commit
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions import ddl
from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.versions import tuning_record
from icepuffin.ops.index.versions.tuning_record import (
    PREFIX,
    TuningError,
    TuningRecord,
    find_record,
    forget_record,
    keep_record,
)
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.recall.curves import ShardCentroids, Width
from icepuffin.ops.recall.measured_points import MeasuredPoint, front
from icepuffin.ops.search.arguments import prepare_queries
from icepuffin.ops.search.errors import IndexUnavailableError, QueryError
from icepuffin.ops.search.measured import recall_trial, tuning_run
from icepuffin.ops.search.measured.recall_trial import RecallTrial
from icepuffin.ops.search.measured.tuning_run import TuningReport, tune
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import explain
from icepuffin.ops.search.tuning import RecallModel, SearchOptions, SearchParameters, choose_parameters
from icepuffin.ops.tasks.task_runner import LocalRunner
from tests.conftest import DIMS, ROWS, STORAGE, make_rows, queries, vectors_of
from tests.ops.index.comparison import DEFINITION, index_head

TableFactory = Callable[..., Table]
SHARDED = replace(DEFINITION, metric="cosine", shards=6, max_degree=8, search_list=20, target_recall=0.1)
PROPERTY = f"{PREFIX}e"
Vectors = npt.NDArray[np.float32]


def foreign(count: int, first: int) -> Vectors:
    """Queries that are like the rows of another table, rotated by a seed: f32[count, DIMS]."""
    rotation, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((DIMS, DIMS)))
    return np.asarray(vectors_of(np.arange(first, first + count)) @ rotation, np.float32)


MEASURED, OTHERS = foreign(300, 1_000_000), foreign(300, 2_000_000)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """An indexed table, the same for all tests: what they keep with it is forgotten after each."""
    folder = tmp_path_factory.mktemp("tuning")
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    catalog = open_catalog("test", properties)
    catalog.create_namespace("db")
    created = catalog.create_table("db.t", ROWS, properties={"format-version": "2"})
    created.append(make_rows(0, 3000))
    index_head(created, SHARDED)
    return created.refresh()


@pytest.fixture(scope="module")
def report(table: Table) -> TuningReport:
    return tune(table, MEASURED, SHARDED, storage=STORAGE, dry_run=True)


@pytest.fixture
def tuned(table: Table, report: TuningReport) -> Iterator[Table]:
    keep_record(table, "e", report.record)
    yield table
    forget_record(table, "e")


@pytest.fixture
def own_table(table_factory: TableFactory) -> Table:
    """A smaller one, for a test that changes it."""
    created = table_factory()
    created.append(make_rows(0, 600))
    create_index(created, replace(SHARDED, shards=2))
    index_head(created, replace(SHARDED, shards=2))
    return created.refresh()


def recall(table: Table, vectors: Vectors, k: int, target: float, definition: IndexDefinition = SHARDED) -> float:
    """Recall by distances of a search by target."""
    return float(recalls(table, vectors, k, definition, target_recall=target).mean())


def recalls(
    table: Table, vectors: Vectors, k: int, definition: IndexDefinition, **options: Any
) -> npt.NDArray[np.float64]:
    """f64[Q]: recall by distances of each query."""
    exact = open_exact(table, "embedding", definition.metric, storage=STORAGE).search(vectors, k, columns=[]).rows
    found = open_index(table, definition, storage=STORAGE).search(vectors, k, columns=[], **options).rows
    true, distances = (np.asarray(rows["distance"]).reshape(len(vectors), k) for rows in (exact, found))
    return recalls_of(distances, true, 1e-6 * true[:, -1])


@pytest.mark.parametrize("target", [0.9, 0.95])
def test_a_target_is_met_for_queries_unlike_the_rows(table: Table, report: TuningReport, target: float) -> None:
    assert recall(table, OTHERS, 10, target) < target - 0.02
    keep_record(table, "e", report.record)
    for k in (5, 10, 40, 100):
        assert recall(table, OTHERS, k, target) >= target - 0.01
    forget_record(table, "e")


@pytest.mark.parametrize(("target", "share"), [(0.8, 0.9), (0.9, 0.95), (0.8, 0.99)])
def test_a_share_of_queries_unlike_the_rows_reaches_the_target(
    table: Table, report: TuningReport, target: float, share: float
) -> None:
    """Whether the mean does is another question: here and there it does at half of the cost."""
    keep_record(table, "e", report.record)
    for k in (10, 100):
        reaching = recalls(table, OTHERS, k, SHARDED, target_recall=target, recall_share=share) >= target - 1e-9
        on_average = recalls(table, OTHERS, k, SHARDED, target_recall=target) >= target - 1e-9
        assert reaching.mean() >= share - 0.03
        assert on_average.mean() < share - 0.03
    reader = open_index(table, SHARDED, storage=STORAGE)
    result = reader.search(MEASURED, target_recall=target, recall_share=share, columns=[])
    reached = recalls(table, MEASURED, 10, SHARDED, target_recall=target, recall_share=share) >= target - 1e-9
    assert reached.mean() >= share, "of those that were measured"
    assert not result.warnings
    told = dict(explain(result))
    assert f"recall {target} of {share:.0%} of the queries, by 300 queries" in told["parameters"]
    assert re.search("on average, [01].[0-9]{2} or more for 95% of the queries, [01].[0-9]{2} or", told["foreseen"])
    with reader.follow() as following:
        assert following.search(MEASURED, target_recall=target, recall_share=share).rows.equals(
            reader.search(MEASURED, target_recall=target, recall_share=share).rows
        )
    forget_record(table, "e")


def test_a_share_that_was_not_measured_is_said_and_the_mean_counts(table: Table, report: TuningReport) -> None:
    def told(**options: Any) -> tuple[tuple[str, ...], SearchParameters]:
        reader = open_index(table, SHARDED, storage=STORAGE)
        result = reader.search(MEASURED, target_recall=0.9, columns=[], **options)
        assert result.profile.parameters is not None
        return result.warnings, replace(result.profile.parameters, foreseen=None)

    share = {"recall_share": 0.95}
    untuned, by_mean = told(**share)
    assert "and the index has no such record: the parameters are those of target_recall on average" in untuned[0]
    assert by_mean == told()[1]
    older = replace(report.record, points=tuple(replace(it, reached=()) for it in report.record.points))
    keep_record(table, "e", older)
    of_0_1_0, by_mean = told(**share)
    assert "a release before 0.2 measured them" in of_0_1_0[0]
    assert by_mean == told()[1]
    forget_record(table, "e")
    keep_record(table, "e", report.record)
    assert told(**share)[0] == ()
    assert told(**share)[1].search_list > told()[1].search_list
    assert "none of them under a condition" in told(**share, where="id >= 0")[0][0]
    assert told(k=5, **share)[0] == ("recall_share was measured for 10 rows per query, not for 5",)
    few = replace(report.record, points=tuple(it for it in report.record.points if it.reached[1] < 0.5))
    forget_record(table, "e")
    keep_record(table, "e", few)
    assert "measured 95% of the queries reach 0.9; the best, 0." in told(**share)[0][0]
    forget_record(table, "e")


def test_a_report_says_what_the_curves_of_the_index_would_have_chosen(table: Table, report: TuningReport) -> None:
    assert [(choice.k, choice.target) for choice in report.targets] == [
        (k, target) for k in (10, 100) for target in (0.9, 0.95, 0.99)
    ]
    for choice in report.targets[:3]:
        by_search = recall(table, MEASURED, 10, choice.target)
        assert choice.by_curves.recall == pytest.approx(by_search, abs=1e-3)
        assert choice.tuned.recall >= choice.target
        assert choice.is_reached
    best = front(point for point in report.points if point.k == 10)
    assert [point.recall for point in best] == sorted(point.recall for point in best)
    assert best[0].shards < 6
    assert repr(report).endswith(f"{report.record.queries:,} queries, not kept)")
    of_ten, _, *choices = report.grids()
    assert len(of_ten.rows) == len(best)
    assert [len(grid.rows) for grid in choices] == [3, 3]


def test_what_tuning_foresees_happens(tuned: Table) -> None:
    reader = open_index(tuned, SHARDED, storage=STORAGE)
    result = reader.search(MEASURED, target_recall=0.9, columns=[])
    parameters = result.profile.parameters
    assert parameters is not None
    assert parameters.foreseen is not None
    assert result.profile.distances / 300 == pytest.approx(parameters.foreseen.distances, rel=0.02)
    assert sum(shard.queries for shard in result.profile.work) / 300 == pytest.approx(parameters.foreseen.shards)
    assert parameters.foreseen.recall == pytest.approx(recall(tuned, MEASURED, 10, 0.9), abs=0.005)
    measured = f"300 queries that `icepuffin tune` measured with index version {result.index_snapshot_id}"
    assert parameters.why.startswith(f"recall 0.9, by {measured} of snapshot {result.base_snapshot_id} on 20")
    assert measured in dict(explain(result))["foreseen"]
    assert not result.warnings


def test_a_report_has_what_readers_get_from_then_on(tuned: Table, report: TuningReport) -> None:
    reader = open_index(tuned, SHARDED, storage=STORAGE)
    assert find_record(tuned, "e") == report.record
    for choice in report.targets:
        result = reader.search(MEASURED, choice.k, target_recall=choice.target, columns=[])
        assert result.profile.parameters is not None
        assert result.profile.parameters.search_list == choice.tuned.search_list
        assert result.profile.parameters.probe_slack == choice.tuned.probe_slack
        assert result.profile.distances / 300 == pytest.approx(choice.tuned.distances)


def test_under_a_condition_and_by_hand_all_is_as_without_tuning(table: Table, report: TuningReport) -> None:
    options: tuple[dict[str, Any], ...] = (
        {"target_recall": 0.9, "where": "id >= 5"}, {"search_list": 30}, {"target_recall": 0.9, "search_list": 77},
    )  # fmt: skip

    def chosen(options: dict[str, Any]) -> tuple[int, bool]:
        parameters = open_index(table, SHARDED, storage=STORAGE).search(queries(1), **options).profile.parameters
        assert parameters is not None
        return parameters.search_list, parameters.probe_slack == np.inf

    before = [chosen(one) for one in options]
    keep_record(table, "e", report.record)
    after = [chosen(one) for one in options]
    forget_record(table, "e")
    assert after[:2] == before[:2]
    assert after[2][0] == 77


def test_a_target_that_is_not_sure_to_be_reached_is_reported(tuned: Table) -> None:
    """However wide the list is: 50 queries cannot tell .999 from .98."""
    few = tune(tuned, MEASURED[:50], SHARDED, targets=[0.999], storage=STORAGE)
    assert "recall@10 of 0.999 is not sure to be reached" in few.warnings[0]
    (warning,) = open_index(tuned, SHARDED, storage=STORAGE).search(queries(1), target_recall=0.999).warnings
    assert "no point that `icepuffin tune` measured is sure to reach recall 0.999" in warning


def test_tasks_measure_what_this_process_measures(table: Table) -> None:
    here, by_tasks = (
        tune(table, MEASURED[:50], SHARDED, targets=[0.9], storage=STORAGE, dry_run=True, **options)
        for options in ({}, {"runner": LocalRunner(1), "in_process_mb": 0})
    )
    assert by_tasks.points == here.points


def test_a_dry_run_writes_nothing(table: Table) -> None:
    before = table.refresh().metadata_location
    tuning = tune(table, MEASURED[:50], SHARDED, targets=[0.9], storage=STORAGE, dry_run=True)
    assert (table.refresh().metadata_location, tuning.is_kept) == (before, False)


def test_progress_rises_to_its_total(table: Table) -> None:
    steps: dict[str, list[tuple[int, int]]] = {}
    tune(
        table, MEASURED[:50], SHARDED, targets=[0.9], storage=STORAGE, dry_run=True,
        progress=lambda label, done, total: steps.setdefault(label, []).append((done, total)),
    )  # fmt: skip
    assert {"exact 10 nearest", "recall@10"} <= steps.keys()
    for shown in steps.values():
        done = [each for each, _ in shown]
        assert (done[0], done) == (0, sorted(done))
        assert {total for _, total in shown} == {done[-1]}


def test_at_most_a_thousand_queries_are_taken_evenly(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    class Recorder(tuning_run._TuningRun):
        def __init__(self, trial: RecallTrial, vectors: Vectors, progress: None) -> None:
            measured.append(vectors)
            super().__init__(trial, vectors[:50], progress)

    monkeypatch.setattr(tuning_run, "_TuningRun", Recorder)
    offered = np.random.default_rng(0).standard_normal((1999, DIMS))
    tuning = tune(table, offered, SHARDED, targets=[0.9], storage=STORAGE, dry_run=True)
    assert (tuning.record.queries, tuning.offered_queries) == (1000, 1999)
    assert np.array_equal(measured[0], prepare_queries(offered[::2], Metric.COSINE, DIMS))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.ones((60, DIMS + 1)), f"the query has {DIMS + 1} dimensions, the index has {DIMS}"),
        (np.full((60, DIMS), np.nan), "the query cannot be run"),
        (np.ones((49, DIMS)), "there are 49 queries; tuning takes 50 at least"),
        ([["a"] * DIMS] * 60, "queries are text, not numbers"),
    ],
    ids=["dimensions", "NaN", "few", "text"],
)
def test_queries_that_measure_nothing_are_refused(table: Table, wrong: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        tune(table, wrong, SHARDED, storage=STORAGE)


def test_what_cannot_be_tuned_is_refused(table: Table, table_factory: TableFactory) -> None:
    with pytest.raises(QueryError, match="target_recall is 90; it is a share"):
        tune(table, MEASURED, SHARDED, targets=[90], storage=STORAGE)
    with pytest.raises(IndexUnavailableError, match="index other has no version yet"):
        tune(table, MEASURED, replace(SHARDED, name="other"), storage=STORAGE)
    balls = replace(DEFINITION, name="b", method="centroid")
    other = table_factory()
    other.append(make_rows(0, 50))
    index_head(other, balls)
    with pytest.raises(QueryError, match="every row is compared, which needs no tuning"):
        tune(other.refresh(), MEASURED, balls, storage=STORAGE)


def test_a_lean_index_is_tuned_by_its_candidates(own_table: Table) -> None:
    lean = replace(SHARDED, name="lean", shards=2, vectors="none", pq_m=4, target_recall=0.1)
    index_head(own_table, lean)
    tune(own_table.refresh(), MEASURED[:100], lean, targets=[0.95], storage=STORAGE)
    assert recall(own_table, OTHERS[:100], 10, 0.95, lean) >= 0.94
    reader = open_index(own_table, lean, storage=STORAGE)
    cheap, dear = (reader.search(queries(1), target_recall=t).profile.parameters for t in (0.5, 0.99))
    assert cheap is not None
    assert dear is not None
    assert cheap.oversample < dear.oversample
    unranked = reader.search(queries(1), target_recall=0.99, rerank=False).profile.parameters
    assert unranked is not None
    assert unranked.foreseen is None  # nobody measured candidates that are not ranked


def test_as_many_candidates_are_ranked_as_were_measured() -> None:
    """Of a lean index, for fewer rows than were measured: by the record as by the index's own curve."""

    @dataclass(frozen=True)
    class Lean:
        recall_model: RecallModel
        search_list: int = 100
        exact: bool = False
        lean: bool = True
        coded: bool = False
        column_is_double: bool = False

    centroids = ShardCentroids.from_codebook(np.zeros((1, 2), np.float32), np.zeros(1, np.uint32))
    curve = (Width(100, 1, 0.93, 500.0), Width(100, 3, 0.99, 500.0))
    version = Lean(RecallModel(centroids, 1, curve, {}))
    points = tuple(
        MeasuredPoint(10, *(*astuple(width)[:2], math.inf, width.recall, 0.0, 500.0, 1.0)) for width in curve
    )
    record = TuningRecord(points, 500, SnapshotId(1), SnapshotId(1), 0, {})
    for k in (1, 3, 10, 40):
        for target in (0.9, 0.98):
            options = SearchOptions(target_recall=target)
            by_curve, _ = choose_parameters(version, k, options, filtered=False)
            by_record, _ = choose_parameters(version, k, options, filtered=False, record=record)
            assert by_record.oversample == by_curve.oversample
            assert by_record.search_list == by_curve.search_list
            cost = by_record.foreseen and (by_record.foreseen.distances, by_record.foreseen.shards)
            assert cost == ((500.0, 1.0) if k <= 10 else (None, None)), "of more rows than were measured none"
    plain = SearchOptions(target_recall=0.9, rerank=False)
    lists = [choose_parameters(version, k, plain, filtered=False, record=record)[0].search_list for k in (10, 40)]
    assert lists == [100, 130], "longer by the rows that were not measured"


def test_a_list_is_longer_by_the_rows_that_were_not_measured(tuned: Table) -> None:
    reader = open_index(tuned, SHARDED, storage=STORAGE)
    few, more, many = (
        reader.search(queries(1), k, target_recall=0.9, columns=[]).profile.parameters for k in (101, 131, 227)
    )
    assert few is not None
    assert more is not None
    assert many is not None
    assert [more.search_list - few.search_list, many.search_list - few.search_list] == [30, 126]


def test_what_is_foreseen_for_more_rows_than_were_measured_is_said_to_be_of_fewer(tuned: Table) -> None:
    reader = open_index(tuned, SHARDED, storage=STORAGE)
    wide = reader.search(OTHERS[:5], 300, target_recall=0.9)
    assert any("recall@300 was not measured" in warning for warning in wide.warnings)
    for k in (10, 50, 100):
        assert not any("was not measured" in text for text in reader.search(OTHERS[:5], k, target_recall=0.9).warnings)


def test_recall_is_of_the_nearest_rows_where_inner_products_are_large(own_table: Table) -> None:
    """A constant feature of all rows makes their products large and alike."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((3_000, DIMS))
    values[:, 0] = 1_000
    table = own_table.catalog.create_table("db.biased", ROWS)
    table.append(make_rows(0, len(values)).set_column(3, ROWS.field(3), pa.array(values.tolist(), ROWS.field(3).type)))
    definition = replace(DEFINITION, metric="ip", shards=1, max_degree=8, search_list=12, target_recall=0.0)
    index_head(table, definition)
    reader = open_index(table.refresh(), definition, storage=STORAGE)
    trial, vectors = reader.recall_trial(), rng.standard_normal((100, DIMS)).astype(np.float32)
    vectors[:, 0] = 1_000
    prepared = trial.prepared(vectors)
    measured = trial.measure(prepared, 10, SearchParameters(12), trial.ground_truth(prepared, 10))
    nearest, true = (
        np.asarray(answer.rows["id"]).reshape(100, 10)
        for answer in (
            reader.search(vectors, 10, search_list=12, columns=["id"]),
            open_exact(table, "embedding", definition.metric, storage=STORAGE).search(vectors, 10, columns=["id"]),
        )
    )
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(nearest, true, strict=True)])
    assert measured.recall == pytest.approx(recall)
    assert recall < 0.95


def test_tuning_outlives_a_refresh_and_not_a_drop(own_table: Table) -> None:
    tuning = tune(own_table, MEASURED[:60], "e", targets=[0.9], storage=STORAGE)
    assert tuning.is_kept
    own_table.append(make_rows(600, 640))
    index_head(own_table, replace(SHARDED, shards=2))
    result = open_index(own_table.refresh(), storage=STORAGE).search(queries(1), target_recall=0.9)
    assert result.index_snapshot_id != tuning.record.index_snapshot_id
    assert result.profile.parameters is not None
    assert f"60 queries that `icepuffin tune` measured with index version {tuning.record.index_snapshot_id}" in (
        result.profile.parameters.why
    )
    assert not result.warnings
    drop_index(own_table, "e")
    assert PROPERTY not in own_table.refresh().properties


def test_tuning_is_dropped_with_the_definition_and_without_it(
    own_table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drop that fails half-way leaves no record that stands alone; one that does is dropped by its name."""
    tune(own_table, MEASURED[:60], "e", targets=[0.9], storage=STORAGE)

    def fails(*_: object) -> None:
        raise TuningError("no commit succeeds")

    with monkeypatch.context() as patch:
        patch.setattr(ddl.bindings, "drop", fails)
        with pytest.raises(TuningError, match="no commit succeeds"):
            drop_index(own_table, "e")
    assert PROPERTY not in own_table.refresh().properties
    drop_index(own_table, "e")
    own_table.transaction().set_properties({PROPERTY: "{}"}).commit_transaction()
    drop_index(own_table, "e")
    assert PROPERTY not in own_table.refresh().properties
    with pytest.raises(DefinitionError):
        drop_index(own_table, "e")


def test_tuning_of_another_definition_is_not_used_and_that_is_reported(own_table: Table) -> None:
    tune(own_table, MEASURED[:60], "e", targets=[0.9], storage=STORAGE)
    changed = replace(SHARDED, shards=2, max_degree=16)
    index_head(own_table, changed)
    reader = open_index(own_table.refresh(), changed, storage=STORAGE)
    result = reader.search(queries(1), target_recall=0.9)
    assert result.profile.parameters is not None
    assert result.profile.parameters.why == "recall 0.9, by the curve measured with the index"
    (warning,) = result.warnings
    assert "is not used, since the index has changed: max_degree was 8 and is 16" in warning
    assert "icepuffin tune db.t e --queries FILE" in warning
    assert not reader.search(queries(1)).warnings
    own_table.transaction().set_properties({PROPERTY: "{}"}).commit_transaction()
    (warning,) = open_index(own_table, changed, storage=STORAGE).search(queries(1), target_recall=0.9).warnings
    assert f"table property {PROPERTY} is not used: it is no record of tuning" in warning
    assert "forget the record: icepuffin tune db.t e --forget" in warning
    kept = tune(own_table, MEASURED[:60], "e", targets=[0.9], storage=STORAGE).record.document()
    with pytest.raises(TuningError, match="it is no record of tuning"):
        TuningRecord.from_json(json.dumps({**kept, "timestamp-ms": 10**18}))
    later = {"format": 2}
    own_table.transaction().set_properties({PROPERTY: json.dumps(later)}).commit_transaction()
    with pytest.raises(TuningError, match="it has format 2, and this release reads 1"):
        find_record(own_table, "e")


def test_an_older_version_of_another_definition_is_measured_and_not_kept(own_table: Table) -> None:
    """Its record would replace that of the newest version, and no reader would use it."""
    older = own_table.metadata.current_snapshot_id
    own_table.append(make_rows(600, 640))
    newer = replace(SHARDED, shards=2, max_degree=16)
    index_head(own_table, newer)
    kept = tune(own_table.refresh(), MEASURED[:60], newer, targets=[0.9], storage=STORAGE).record
    tuning = partial(tune, own_table, MEASURED[:60], newer, targets=[0.9], snapshot=older, storage=STORAGE)
    message = rf"the version of snapshot {older} was built otherwise .* max_degree was 8 and is 16"
    with pytest.raises(QueryError, match=message):
        tuning()
    assert tuning(dry_run=True).record.base_snapshot_id == older
    assert find_record(own_table.refresh(), "e") == kept


def test_a_following_reader_takes_tuning_up(table: Table, report: TuningReport) -> None:
    with open_index(table, SHARDED, storage=STORAGE).follow(interval=3600) as following:
        keep_record(table, "e", report.record)
        following.update()
        parameters = following.search(queries(1), target_recall=0.9).profile.parameters
    forget_record(table, "e")
    assert parameters is not None
    assert "300 queries" in parameters.why


def test_one_tuning_is_kept_when_several_end_at_once(table: Table, report: TuningReport) -> None:
    records = [replace(report.record, queries=number) for number in range(60, 64)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda record: keep_record(table.catalog.load_table("db.t"), "e", record), records))
    assert find_record(table.refresh(), "e") in [TuningRecord.from_json(record.to_json()) for record in records]
    assert forget_record(table, "e")
    assert not forget_record(table, "e")


def test_tuning_is_kept_beside_a_version_that_is_published_meanwhile(
    own_table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []

    def meanwhile(*arguments: Any) -> CommitOutcome:
        if not outcomes:
            other = own_table.catalog.load_table("db.t")
            other.append(make_rows(600, 610))
            index_head(other, replace(SHARDED, shards=2))
        outcomes.append(attempt_commit(*arguments))
        return outcomes[-1]

    monkeypatch.setattr(tuning_record, "attempt_commit", meanwhile)
    tune(own_table, MEASURED[:60], "e", targets=[0.9], storage=STORAGE)
    assert outcomes == [CommitOutcome.REFUSED, CommitOutcome.DONE]
    assert find_record(own_table.refresh(), "e") is not None


def test_tuning_of_an_index_that_is_dropped_meanwhile_is_not_kept(
    own_table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(*arguments: Any) -> CommitOutcome:
        monkeypatch.undo()
        drop_index(own_table.catalog.load_table("db.t"), "e")
        return attempt_commit(*arguments)

    monkeypatch.setattr(tuning_record, "attempt_commit", meanwhile)
    with pytest.raises(TuningError, match="index e was dropped meanwhile; nothing is kept"):
        tune(own_table, MEASURED[:60], "e", targets=[0.9], storage=STORAGE)
    assert PROPERTY not in own_table.refresh().properties


def test_other_rows_as_near_as_the_true_ones_count(table: Table) -> None:
    """Of many equal rows the exact search names some, and the index others."""
    trial = open_index(table, SHARDED, storage=STORAGE).recall_trial()
    vectors = trial.prepared(MEASURED[:50])
    truth = trial.ground_truth(vectors, 10)
    others = replace(truth, addresses=tuple(np.empty(0, np.int64) for _ in truth.addresses))
    alike, expected = (trial.measure(vectors, 10, SearchParameters(20), rows).recall for rows in (others, truth))
    assert 0.5 < expected < 1
    assert alike == pytest.approx(expected, abs=0.01)


def test_any_rows_as_near_as_the_true_ones_count_where_distances_are_rounded(own_table: Table) -> None:
    """Distances of vectors of zeros and ones are equal for hundreds of rows, more than the exact search names first."""
    rng = np.random.default_rng(1)
    values, vectors = rng.integers(0, 2, (1_000, 12)), rng.integers(0, 2, (60, 12))
    table = own_table.catalog.create_table("db.tied", ROWS)
    vectors_column = pa.array(values.tolist(), ROWS.field(3).type)
    table.append(make_rows(0, len(values)).set_column(3, ROWS.field(3), vectors_column))
    definition = replace(DEFINITION, metric="l2", vectors="f16", shards=1, target_recall=0.0)
    index_head(table, definition)
    trial = open_index(table.refresh(), definition, storage=STORAGE).recall_trial()
    prepared = trial.prepared(vectors)
    truth = trial.ground_truth(prepared, 10)
    distances = np.sort(((vectors[:, None] - values) ** 2).sum(axis=2), axis=1)
    ties = [int(np.count_nonzero(own <= own[9])) for own in distances]
    assert max(ties) > 10 + 16
    assert [len(rows) for rows in truth.addresses] == ties
    assert not truth.more_ties.any()
    assert trial.measure(prepared, 10, SearchParameters(1_000), truth).recall == 1.0


def test_among_rows_that_tie_tuning_chooses_nothing_dearer_than_the_curves_do(
    own_table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The narrowest list finds all of them, by comparing every row of the shard."""
    monkeypatch.setattr(graph_search, "_WALKED_WHERE_LOST", 10_000)  # no wider beam is tried first
    values = np.random.default_rng(5).integers(0, 2, (1_500, 24))
    table = own_table.catalog.create_table("db.binary", ROWS)
    table.append(make_rows(0, len(values)).set_column(3, ROWS.field(3), pa.array(values.tolist(), ROWS.field(3).type)))
    definition = IndexDefinition(name="e", column="embedding", metric="l2", max_degree=24, search_list=64, shards=1)
    index_head(table, definition)
    report = tune(table.refresh(), values[:100], definition, targets=[0.9], storage=STORAGE, dry_run=True)
    choice = report.targets[0]
    assert report.points[0].recall == choice.tuned.recall == 1.0
    assert choice.tuned.distances <= choice.by_curves.distances < 500 < report.points[0].distances


def test_wider_lists_are_measured_until_they_cost_more(own_table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of 10 is too narrow to have all rows compared that tie, and one of 16 finds all of them so."""
    monkeypatch.setattr(graph_search, "_WALKED_WHERE_LOST", 10_000)  # no wider beam is tried first
    hot = np.random.default_rng(5).integers(0, 64, (3, 6_000))
    values = np.eye(64, dtype=np.float32)[hot].sum(axis=0)
    table = own_table.catalog.create_table("db.hot", ROWS)
    table.append(make_rows(0, len(values)).set_column(3, ROWS.field(3), pa.array(values.tolist(), ROWS.field(3).type)))
    definition = IndexDefinition(name="e", column="embedding", metric="l2", max_degree=24, search_list=64, shards=1)
    index_head(table, definition)
    report = tune(table.refresh(), values[:50], definition, targets=[0.95], storage=STORAGE, dry_run=True)
    narrow, dear, *_ = [point for point in report.points if point.k == 10]
    assert narrow.assured < 0.95
    assert dear.recall == 1.0
    tuned = [one.tuned for one in report.targets if one.k == 10]
    assert all(one.recall == 1.0 and one.search_list > dear.search_list for one in tuned)
    assert all(5 * one.distances < dear.distances for one in tuned)


def test_ties_that_are_too_many_to_list_are_reported(own_table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table = own_table.catalog.create_table("db.equal", ROWS)
    same = pa.array([[1.0] * DIMS] * 200, ROWS.field(3).type)
    table.append(make_rows(0, 200).set_column(3, ROWS.field(3), same))
    definition = replace(DEFINITION, metric="l2", vectors="f16", shards=1, target_recall=0.0)
    index_head(table, definition)
    tuning = partial(tune, table.refresh(), MEASURED[:60], definition, targets=[0.9], storage=STORAGE, dry_run=True)
    assert not tuning().warnings
    monkeypatch.setattr(recall_trial, "_MAX_PAIRS", 1_000)
    assert "60 queries have too many rows as near as the 10-th to list them all" in tuning().warnings[0]
