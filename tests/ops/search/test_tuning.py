"""How hard a search tries: by hand, or by the curve that was measured with the index."""

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import Action
from icepuffin.ops.recall.curves import Reach, ShardCentroids, Width, choose, reaches, widths
from icepuffin.ops.search import tuning
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import explain
from icepuffin.ops.search.tuning import (
    ParameterChooser,
    RecallModel,
    SearchOptions,
    SearchParameters,
    _routing_curves,
    choose_parameters,
)
from tests.conftest import ROWS, STORAGE, make_rows, queries, vectors_of
from tests.ops.index.comparison import DEFINITION, ids_by_query, index_head

TableFactory = Callable[..., Table]
SHARDED = replace(DEFINITION, shards=6, max_degree=12, search_list=30)
LEAN = replace(DEFINITION, shards=2, vectors="none", pq_m=8, target_recall=0.3)


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    made = table_factory()
    made.append(make_rows(0, 3000))
    return made


def recall(reader: IndexReader, table: Table, k: int = 10, **options: object) -> float:
    query_vectors = queries(60)
    metric = reader.definition.metric
    true = ids_by_query(
        open_exact(table, "embedding", metric, storage=STORAGE).search(query_vectors, k, columns=["id"]).rows
    )
    answers = ids_by_query(reader.search(query_vectors, k, columns=["id"], **options).rows)  # type: ignore[arg-type]
    return float(np.mean([len(set(answers[query]) & set(true[query])) / k for query in true]))


def test_the_curve_is_kept_with_the_version(table: Table) -> None:
    index_head(table, SHARDED)
    opened = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    for text in opened.curves:
        points = widths(text)
        assert [point.search_list for point in points] == [10, 16, 25, 40, 64, 100, 160, 250]
        assert points[-1].recall >= 0.95
        assert points[0].distances < points[-1].distances
    routing = reaches(opened.routing_curve)
    assert routing[0].shards < routing[-1].shards < 6
    assert routing[0].recall < routing[-1].recall


def test_the_curve_for_a_hundred_rows_is_kept_with_the_version(table: Table) -> None:
    index_head(table, SHARDED)
    opened = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    for text in opened.curves:
        points = widths(text, 100)
        assert [point.search_list for point in points] == [100, 130, 190, 280, 400]
        assert points[0].recall <= points[-1].recall
        assert points[-1].recall >= 0.95
    model = RecallModel.from_version(opened)
    assert [point.k for point in (*model.curve[:1], *model.wide_curve[:1])] == [10, 100]


def test_the_curve_for_a_hundred_rows_counts_from_a_hundred_on(table: Table) -> None:
    index_head(table, SHARDED)
    model = RecallModel.from_version(open_version(index_versions(table.refresh(), "e")[-1], STORAGE))
    reader = open_index(table, SHARDED, storage=STORAGE)
    for k, counts, other in ((99, model.curve, model.wide_curve), (100, model.wide_curve, model.curve)):
        parameters = reader.search(queries(1), k, columns=[], target_recall=0.999).profile.parameters
        choice, wrong = (choose(0.999, k, curve, model.routing_for(k), model.shards) for curve in (counts, other))
        assert parameters is not None
        assert choice != wrong
        assert choice is not None
        assert parameters.search_list == choice.search_list


def test_the_curve_of_the_sample_holds_for_as_many_more_rows_as_the_table_has(table: Table) -> None:
    """It says nothing more where the table is hardly larger than its sample, of 20,000 rows."""
    index_head(table, SHARDED)
    opened = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    for rows, measured in ((20_000, [10, 100]), (200_000, [10, 100]), (400_000, [10, 100, 200])):
        assert [*_routing_curves(opened, rows)] == measured
    assert [*_routing_curves(replace(opened, routing_curve=""), 400_000)] == [200]


def test_the_default_beam_is_wider_for_more_rows(table: Table) -> None:
    index_head(table, SHARDED)
    opened = open_index(table.refresh(), SHARDED, storage=STORAGE, threads=1)

    def width(k: int, **options: int) -> int:
        return opened.search(queries(1), k, columns=[], **options).profile.parameters.search_list

    own = SHARDED.search_list
    assert [width(k) for k in (1, 10, 11, 100)] == [own, own, own + 1, own + 90]
    assert width(100, search_list=40) == 40


def test_a_refresh_carries_the_curve_on(table: Table) -> None:
    index_head(table, SHARDED)
    table.refresh().append(make_rows(3000, 3005))
    index_head(table, SHARDED)
    opened = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    assert all(
        widths(text) for text, entry in zip(opened.curves, opened.routing.shards, strict=True) if entry.live_rows > 50
    )
    assert reaches(opened.routing_curve)


@pytest.mark.parametrize(
    "definition", [SHARDED, LEAN, replace(SHARDED, metric=Metric.INNER_PRODUCT)], ids=["fat", "lean", "inner products"]
)
@pytest.mark.parametrize("target", [0.8, 0.9, 0.97])
def test_a_target_is_met_by_new_queries(table: Table, definition: object, target: float) -> None:
    index_head(table, definition)  # type: ignore[arg-type]
    reader = open_index(table, definition, storage=STORAGE)  # type: ignore[arg-type]
    parameters = reader.search(queries(1), target_recall=target).profile.parameters
    assert parameters is not None
    assert parameters.foreseen is not None
    assert parameters.foreseen.recall >= target - 1e-9
    assert recall(reader, table, target_recall=target) >= target - 0.03


@pytest.mark.parametrize("vectors", ["f32", "f16"])
def test_a_target_is_met_once_rows_that_are_harder_to_find_have_come(table_factory: TableFactory, vectors: str) -> None:
    definition = replace(SHARDED, shards=1, max_degree=32, search_list=100, max_deltas=0, vectors=vectors)
    made, rng = table_factory(), np.random.default_rng(0)
    plane = rng.standard_normal((2, 32))
    for first, rows in ((0, rng.standard_normal((600, 2)) @ plane), (600, rng.standard_normal((590, 32)))):
        columns = make_rows(first, first + len(rows))
        lists = pa.array(rows.tolist(), pa.list_(pa.float32()))
        made.append(columns.set_column(3, columns.schema.field("embedding"), lists))
        report = index_head(made, definition)
    assert report.action is Action.REFRESHED
    new = np.concatenate([rng.standard_normal((40, 2)) @ plane, rng.standard_normal((40, 32))]).astype(np.float32)
    answer = open_index(made, definition, storage=STORAGE).search(new, columns=["id"], target_recall=0.97)
    true = open_exact(made, "embedding", definition.metric, storage=STORAGE).search(new, columns=["id"])
    answers, wanted = ids_by_query(answer.rows), ids_by_query(true.rows)
    assert np.mean([len(set(answers[query]) & set(wanted[query])) / 10 for query in wanted]) >= 0.95


@pytest.mark.parametrize("k", [1, 900])
def test_a_target_is_met_whatever_k_is(table: Table, k: int) -> None:
    """For many rows, the shards that hold the 10 nearest rows were probed."""
    index_head(table, SHARDED)
    reader = open_index(table, SHARDED, storage=STORAGE)
    assert recall(reader, table, k, target_recall=0.9) >= 0.87


@pytest.mark.parametrize("target", [0.2, 0.5, 0.9])
def test_an_answer_has_as_many_rows_as_there_are_whatever_the_target_is(
    table_factory: TableFactory, target: float
) -> None:
    """Shards that hold most of the 100 nearest rows need not have 100 rows."""
    few = table_factory()
    few.append(make_rows(0, 400))
    index_head(few, SHARDED)
    result = open_index(few, SHARDED, storage=STORAGE).search(queries(20), 100, target_recall=target)
    assert len(result) == 20 * 100
    assert len(open_index(few, SHARDED, storage=STORAGE).search(queries(2), 500, target_recall=target)) == 2 * 400


def test_a_row_finds_its_neighbors_where_centroids_have_few_rows(table_factory: TableFactory) -> None:
    """Rows lie nearer to such centroids than those that were held out, so fewer shards are within a slack."""
    table, rng = table_factory(), np.random.default_rng(15)
    vectors = rng.standard_normal((320, 16)).astype(np.float32)
    rows = make_rows(0, 320)
    table.append(rows.set_column(3, rows.schema.field("embedding"), pa.array(vectors.tolist(), pa.list_(pa.float32()))))
    definition = replace(DEFINITION, metric=Metric.COSINE, shards=8, target_recall=0.3)
    index_head(table, definition)
    found = open_index(table, definition, storage=STORAGE).search(vectors, 10, columns=["id"], target_recall=0.9)
    true = open_exact(table, "embedding", "cosine", storage=STORAGE).search(vectors, 10, columns=["id"])
    pairs = [
        set(zip(answer.rows["query"].to_pylist(), answer.rows["id"].to_pylist(), strict=True))
        for answer in (found, true)
    ]
    assert len(pairs[0] & pairs[1]) >= 0.85 * len(pairs[1])


def test_only_queries_with_too_few_rows_search_further_shards(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, real, searched = table_factory(), Searcher.search, []
    monkeypatch.setattr(tuning, "_ROWS_PER_CENTROID", 1)

    def counted(self: Searcher, vectors: npt.NDArray[np.float64], *args: Any, **options: Any) -> Any:
        searched.append(len(vectors))
        return real(self, vectors, *args, **options)

    for first in (0, 200):
        few.append(make_rows(first, first + 200))
    index_head(few, SHARDED)
    reader, version = open_index(few, SHARDED, storage=STORAGE), open_version(index_versions(few, "e")[-1], STORAGE)
    rows, routed = [entry.live_rows for entry in version.routing.shards], RecallModel.from_version(version).routed
    k = sorted(rows)[3]  # some shards have as many, and others do not
    nearest = routed.shards[routed.distances(queries(20)).argmin(axis=1)]
    alone = [reader.search(query, k, columns=["id"], target_recall=0.2) for query in queries(20)]
    shards = [len(answer.profile.work) for answer in alone]
    assert shards == [1 if rows[shard] >= k else 6 for shard in nearest]
    assert {*shards} == {1, 6}
    monkeypatch.setattr(Searcher, "search", counted)
    together = reader.search(queries(20), k, columns=["id"], target_recall=0.2)
    assert sum(searched) == sum(shard.queries for shard in together.profile.work) == sum(shards)
    assert together.profile.distances == sum(answer.profile.distances for answer in alone)
    assert together.rows["id"].to_pylist() == [row["id"] for answer in alone for row in answer]


def test_a_lower_target_costs_less(table: Table) -> None:
    index_head(table, SHARDED)
    reader = open_index(table, SHARDED, storage=STORAGE)
    costs = [reader.search(queries(), target_recall=target).profile.distances for target in (0.6, 0.9, 0.99)]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1] / 2


def test_a_target_out_of_reach_is_reported(table: Table) -> None:
    definition = replace(DEFINITION, vectors="none", pq_m=1, shards=1, target_recall=0.0)
    index_head(table, definition)
    found = open_index(table, definition, storage=STORAGE).search(queries(1), target_recall=1.0)
    assert "no width that was measured reaches recall 1" in found.warnings[0]


@pytest.mark.parametrize("options", [{}, {"target_recall": 0.9}, {"target_recall": 0.97}, {"search_list": 40}], ids=str)
@pytest.mark.parametrize("k", [5, 10, 30])
def test_what_is_foreseen_happens(table: Table, k: int, options: dict[str, Any]) -> None:
    """About: curves are of rows of the table, and the queries here are others. Near shards cost more than far ones."""
    index_head(table, SHARDED)
    reader = open_index(table, SHARDED, storage=STORAGE)
    query_vectors = queries(60)
    profile = reader.search(query_vectors, k, **options).profile
    assert profile.parameters is not None
    foreseen = profile.parameters.foreseen
    assert foreseen is not None
    assert profile.queries == 60
    assert profile.distances / 60 == pytest.approx(foreseen.distances, rel=0.35)
    assert sum(shard.queries for shard in profile.work) / 60 == pytest.approx(foreseen.shards, rel=0.25)
    if k == 10:
        assert recall(reader, table, **options) == pytest.approx(foreseen.recall, abs=0.08)


def test_shards_of_later_rows_are_no_part_of_what_is_foreseen(table: Table) -> None:
    """They have no curve, and every query probes them."""
    index_head(table, SHARDED)
    for start in (3000, 3100):
        table.refresh().append(make_rows(start, start + 100))
        index_head(table.refresh(), SHARDED)
    result = open_index(table.refresh(), SHARDED, storage=STORAGE).search(queries(8))
    parameters, whole = result.profile.parameters, dict(explain(result))
    assert parameters is not None
    assert parameters.foreseen is not None
    assert (parameters.foreseen.shards, parameters.foreseen.shards_without_curve) == (6.0, 2)
    assert "in 6 shards and some in 2 of later rows per query" in whole["foreseen"]
    assert whole["happened"].endswith("distances in 8 shards per query")


@pytest.mark.parametrize("k", [7, 8, 9, 50])
def test_a_target_foresees_its_recall_whatever_is_reranked(table: Table, k: int) -> None:
    index_head(table, LEAN)
    profile = open_index(table, LEAN, storage=STORAGE).search(queries(1), k, target_recall=0.7).profile
    assert profile.parameters is not None
    assert profile.parameters.foreseen is not None
    assert profile.parameters.foreseen.recall >= 0.7 - 1e-9


@pytest.mark.parametrize("options", [{"search_list": 5000}, {"shards": 2}, {"where": "id >= 500"}], ids=str)
def test_what_no_curve_tells_is_not_foreseen(table: Table, options: dict[str, Any]) -> None:
    index_head(table, SHARDED)
    profile = open_index(table, SHARDED, storage=STORAGE).search(queries(1), **options).profile
    assert profile.parameters is not None
    assert profile.parameters.foreseen is None


def test_fewer_shards_are_probed_for_less_work(table: Table) -> None:
    index_head(table, SHARDED)
    reader = open_index(table, SHARDED, storage=STORAGE)
    whole, two = reader.search(queries()).profile, reader.search(queries(), shards=2).profile
    assert sum(item.queries for item in two.work) == 2 * 20
    assert sum(item.queries for item in whole.work) == 6 * 20
    assert two.distances < whole.distances / 2
    assert recall(reader, table, shards=6) == recall(reader, table)
    assert recall(reader, table, shards=2) <= recall(reader, table)
    assert len(reader.search(queries(1), 3_000, shards=1)) < 3_000, "no others, however few rows it has"
    with_target = reader.search(queries(), shards=2, target_recall=0.2).profile
    assert sum(item.queries for item in with_target.work) == 2 * 20, "as many, whatever the target needs"


def test_every_query_probes_its_own_shards_and_gets_its_own_rows(table: Table) -> None:
    """A batch gives what its queries give one by one."""
    index_head(table, SHARDED)
    reader = open_index(table, SHARDED, storage=STORAGE)
    query_vectors = queries(12)
    batch = ids_by_query(reader.search(query_vectors, shards=1, columns=["id"]).rows)
    for number, query in enumerate(query_vectors):
        assert ids_by_query(reader.search(query, shards=1, columns=["id"]).rows)[0] == batch[number]


@pytest.mark.parametrize("metric", [Metric.L2, Metric.COSINE, Metric.INNER_PRODUCT])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_distances_to_shards_are_those_of_their_nearest_centroids(metric: Metric, offset: float) -> None:
    """An offset that all vectors share is 1,000 times as long as their differences."""
    random = np.random.default_rng(0)
    codebook, query_vectors = ((offset + random.standard_normal((count, 24))).astype(np.float32) for count in (50, 20))
    to_shard = np.append(2 * random.permutation(np.arange(48) % 6), [12, 12]).astype(np.uint32)
    centroids = ShardCentroids.from_codebook(codebook, to_shard, metric)
    assert centroids.shards.tolist() == [0, 2, 4, 6, 8, 10, 12]
    measured = centroids.distances(query_vectors)
    for place, shard in enumerate(centroids.shards):
        own = codebook[to_shard == shard].astype(np.float64)
        if metric is Metric.INNER_PRODUCT:
            expected = -(query_vectors.astype(np.float64) @ own.T).max(axis=1)
        else:
            expected = np.linalg.norm(query_vectors[:, None] - own, axis=2).min(axis=1)
        assert np.allclose(measured[:, place], expected, rtol=1e-4)
    one_by_one = np.concatenate([centroids.distances(query[None]) for query in query_vectors])
    assert np.allclose(one_by_one, measured, rtol=1e-5)


def test_a_shard_without_a_centroid_is_probed_by_every_query() -> None:
    codebook = np.array([[0, 0], [10, 0], [20, 0]], np.float32)
    model = RecallModel(ShardCentroids.from_codebook(codebook, np.array([0, 1, 2], np.uint32)), 5, (), {})
    query_vectors: npt.NDArray[np.float32] = np.array([[1, 0], [19, 0]], np.float32)
    probed = model.probed(query_vectors, SearchParameters(10, shards=1))
    assert probed is not None
    assert probed.tolist() == [[True, False, False, True, True], [False, False, True, True, True]]
    probed = model.probed(np.array([[5, 0]], np.float32), SearchParameters(10, probe_slack=0.1))
    assert probed is not None
    assert probed.tolist() == [[True, True, False, True, True]]
    assert model.probed(query_vectors, SearchParameters(10)) is None
    assert model.probed(query_vectors, SearchParameters(10, shards=99)) is None, "there are no more"
    rows, near = np.array([5, 2, 3, 1, 1]), SearchParameters(10, probe_slack=0.1)
    for k, shards in ((5, [3, 3]), (6, [3, 5]), (8, [5, 5])):  # the nearest, and two that have no centroid
        probed = model.probed_in_the_end(query_vectors, near, k, rows)
        assert probed is not None
        assert probed.sum(axis=1).tolist() == shards
    alone = model.probed_in_the_end(query_vectors, SearchParameters(10, shards=1), 8, rows)
    assert alone is not None
    assert alone.sum() == 6


def version_of(curve: tuple[Width, ...] = (), **kinds: bool) -> Any:
    """A version of one shard, of vectors as the table has them, or of such `kinds`."""
    centroids = ShardCentroids.from_codebook(np.zeros((1, 2), np.float32), np.zeros(1, np.uint32))
    plain = {"exact": not kinds, **dict.fromkeys(("lean", "coded", "column_is_double"), False)}
    return SimpleNamespace(recall_model=RecallModel(centroids, 1, curve, {}), search_list=40, **{**plain, **kinds})


@pytest.mark.parametrize(
    ("version", "options", "filtered", "warning"),
    [
        (version_of(), {"target_recall": 0.9}, False, "the version has no recall curve to choose by; its own search"),
        (
            version_of((Width(50, 1, 0.8, 9.0),)), {"target_recall": 0.9}, False,
            "no width that was measured reaches recall 0.9; the one with the best, 0.8000, was used",
        ),
        (version_of((Width(50, 1, 0.9, 9.0),)), {"target_recall": 0.9}, False, ""),
        (version_of(lean=True), {"rerank": False}, False, "distances are of what the index holds in place of the"),
        (version_of(lean=True), {}, False, ""),
        (version_of(lean=True, coded=True), {"rerank": False}, False, ""),
        (version_of(column_is_double=True), {}, False, "the column holds doubles, and distances are those of its"),
        (version_of(column_is_double=True), {"rerank": True}, False, ""),
        (version_of(), {"shards": 1}, True, "under a condition every shard is probed, not only the nearest ones"),
        (version_of(), {"shards": 1}, False, ""),
    ],
)  # fmt: skip
def test_what_an_option_does_not_do_is_said(
    version: Any, options: dict[str, Any], filtered: bool, warning: str
) -> None:
    _, warnings = choose_parameters(version, 10, SearchOptions(**options), filtered=filtered)
    assert [text[: len(warning)] for text in warnings] == ([warning] if warning else [])


def test_parameters_are_those_that_are_given_and_say_so() -> None:
    chooser, options = ParameterChooser(version_of(coded=True)), SearchOptions(50, 2, 3)
    for filtered, shards in ((False, 2), (True, None)):
        chosen, _ = chooser.choose(10, options, filtered=filtered)
        why = "the index's own; ranked by codes, then by the table's vectors; given: search_list, shards, oversample"
        assert replace(chosen, unforeseen="") == SearchParameters(50, 3, shards, why=why, rerank=True, unforeseen="")
        assert ("under a condition" in chosen.unforeseen) == filtered


def test_a_number_of_shards_that_is_given_holds_beside_a_target_of_all_rows() -> None:
    version = version_of((Width(50, 1, 1.0, 9.0),), coded=True)
    routed = replace(version.recall_model, routing={10: (Reach(0.1, 1.0, 1.0),)}, shards=4)
    version.recall_model = routed
    for options, slack in ((SearchOptions(target_recall=1), 0.1), (SearchOptions(shards=2, target_recall=1), math.inf)):
        chosen, _ = choose_parameters(version, 10, options, filtered=False)
        assert (chosen.shards, chosen.probe_slack) == (options.shards, slack)
        assert "; ranked by codes" in chosen.why


def test_parameters_are_remembered_up_to_a_number() -> None:
    chooser = ParameterChooser(version_of())
    for k in range(1, 400):
        chooser.choose(k, SearchOptions(), filtered=False)
    assert len(chooser._chosen) <= 256


def test_where_there_are_no_graphs_parameters_have_no_effect_and_that_is_said() -> None:
    chooser = ParameterChooser(None, no_effect="no graphs")
    assert chooser.choose(10, SearchOptions(), filtered=False) == (None, ())
    assert chooser.choose(10, SearchOptions(search_list=5), filtered=False) == (None, ("no graphs",))
    assert ParameterChooser(None).choose(10, SearchOptions(search_list=5), filtered=False) == (None, ())


def test_a_record_that_does_not_serve_is_told_of_where_it_would_choose() -> None:
    chooser = ParameterChooser(version_of(), None, "the record is of another definition")
    told = [
        "the record is of another definition" in chooser.choose(10, options, filtered=filtered)[1]
        for options in (SearchOptions(), SearchOptions(target_recall=0.9))
        for filtered in (True, False)
    ]
    assert told == [False, False, False, True]


@pytest.mark.parametrize("distinct", [1, 2, 3])
@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_rows_that_are_mostly_equal_are_found_in_their_own_shard(
    table_factory: TableFactory, distinct: int, metric: str
) -> None:
    """Of equal centroids of several shards one was nearest by rounding, also of a shard without rows."""
    table = table_factory()
    vectors = np.random.default_rng(0).standard_normal((distinct, 16)).astype(np.float32)
    rows = {**make_rows(0, 60).to_pydict(), "embedding": vectors[np.arange(60) % distinct].tolist()}
    table.append(pa.table(rows, schema=ROWS))
    definition = replace(SHARDED, metric=metric, shards=4, target_recall=0.01)
    index_head(table, definition)
    reader = open_index(table, definition, storage=STORAGE)
    query_vectors = np.concatenate([vectors, np.random.default_rng(1).standard_normal((40, 16))])
    whole = reader.search(query_vectors, 1).rows
    for number, query in enumerate(query_vectors):
        alone = reader.search(query, 1, shards=1).rows
        assert alone.num_rows == 1
        if number < distinct and metric == "l2":
            assert alone["distance"][0].as_py() == whole["distance"][number].as_py() == 0


def test_under_a_condition_every_shard_is_probed_and_that_is_reported(table: Table) -> None:
    index_head(table, SHARDED)
    found = open_index(table, SHARDED, storage=STORAGE).search(queries(1), 200, shards=1, where="id >= 500")
    assert found.rows.num_rows == 200
    assert "every shard is probed" in found.warnings[0]


def test_more_candidates_make_lean_shards_better(table: Table) -> None:
    index_head(table, LEAN)
    reader = open_index(table, LEAN, storage=STORAGE)
    assert recall(reader, table, oversample=1) < recall(reader, table, oversample=16)


def test_fewer_candidates_than_the_gate_measured_with_are_reported(table: Table) -> None:
    """Three candidates found .44 of the nearest rows where the gate had said .9."""
    index_head(table, LEAN)
    reader = open_index(table, LEAN, storage=STORAGE)
    (warning,) = reader.search(queries(3), 1).warnings
    assert warning.startswith("3 candidates per query were ranked by the table's vectors")
    assert "measured with 30" in warning
    assert "oversample = 30 ranks as many" in warning
    assert "oversample = 8 " in reader.search(queries(3), 4).warnings[0]
    for options in ({"oversample": 3}, {"target_recall": 0.5}, {"k": 10}):
        assert not reader.search(queries(3), **{"k": 1, **options}).warnings
    index_head(table, replace(LEAN, vectors="f16"))
    assert (
        not open_index(table, replace(LEAN, vectors="f16"), storage=STORAGE).search(queries(3), 1, rerank=True).warnings
    )


@pytest.mark.parametrize(
    ("vectors", "remedy"), [("f32", "a larger search_list finds more"), ("f16", "with rerank they are ranked by")]
)
def test_an_oversample_without_effect_is_reported(table_factory: TableFactory, vectors: str, remedy: str) -> None:
    """Of two, the least that there is, too."""
    table, definition = table_factory(), replace(LEAN, vectors=vectors)
    table.append(make_rows(0, 60))
    index_head(table, definition)
    reader = open_index(table, definition, storage=STORAGE)
    (warning,) = reader.search(queries(1), oversample=2).warnings
    assert warning.startswith("oversample = 2 has no effect: ")
    assert remedy in warning
    assert not reader.search(queries(1), oversample=1).warnings
    assert bool(reader.search(queries(1), oversample=2, rerank=True).warnings) == (vectors == "f32")


@pytest.mark.parametrize("vectors", ["none", "f16", "f32"])
@pytest.mark.parametrize("where", [None, "id < 1500", "id < 40"])
def test_distances_are_those_of_the_tables_own_vectors(table: Table, vectors: str, where: str | None) -> None:
    definition = replace(LEAN, vectors=vectors)
    index_head(table, definition)
    reader = open_index(table, definition, storage=STORAGE)
    query_vectors = np.concatenate([queries(9), vectors_of(np.arange(3))])
    ranked = reader.search(query_vectors, columns=["id"], where=where, rerank=True)
    gaps = vectors_of(np.asarray(ranked.rows["id"])) - query_vectors[np.asarray(ranked.rows["query"])]
    np.testing.assert_allclose(ranked.rows["distance"], np.linalg.norm(gaps.astype(np.float64), axis=1), rtol=1e-6)
    assert not ranked.warnings
    unranked = reader.search(query_vectors, where=where, rerank=False)
    assert bool(unranked.warnings) == (vectors == "none")
    assert unranked.profile.bytes_read["index"] == 0
    assert unranked.rows["distance"].equals(ranked.rows["distance"]) == (vectors == "f32")
    by_default = reader.search(query_vectors, where=where)
    assert by_default.rows["distance"].equals((ranked if vectors == "none" else unranked).rows["distance"])
    np.testing.assert_allclose(by_default.rows["distance"], ranked.rows["distance"], rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize(
    "wrong",
    [{"search_list": 0}, {"shards": 0}, {"oversample": -1}, {"target_recall": 0}, {"target_recall": "0.9"}, {"k": 2.5},
     {"recall_share": 0.9}, {"target_recall": 0.9, "recall_share": 0}, {"target_recall": 0.9, "recall_share": 0.995}],
)  # fmt: skip
def test_options_out_of_range_are_refused(table: Table, wrong: dict[str, float]) -> None:
    with pytest.raises(QueryError):
        open_index(table, DEFINITION, storage=STORAGE).search(queries(1), **wrong)  # type: ignore[arg-type]
