"""Recall of searches of all shards, measured again by a refresh once many rows have come since."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index import build, refresh
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_layout import Layout
from icepuffin.ops.index.planning.version_plan import VersionPlan
from icepuffin.ops.index.recall_across import draw_queries, measured_across
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.index.versions.version_reader import OpenVersion, open_version
from icepuffin.ops.index.versions.version_sizes import fit_of
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.recall import shard_recall
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.table.live_files import live_files
from tests.conftest import ROWS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, ids_by_query, index_head

OLD, GONE, NEW, DIMS = 900, 400, 450, 32
"""Rows of the first model, of which some go; rows of the second; dimensions"""
CODES = replace(DEFINITION, vectors="none", pq_m=4, shards=8, target_recall=0.0, rebuild_ratio=1.0)
POOR = replace(DEFINITION, max_degree=4, search_list=11, shards=8, target_recall=0.0, rebuild_ratio=1.0)


def rows_of(model: int, first: int, count: int) -> pa.Table:
    rng = np.random.default_rng([model, first])
    vectors = rng.standard_normal((count, DIMS)) * (0.6 if model else 1.0) + model
    column = pa.array(vectors.tolist(), pa.list_(pa.float32()))
    return make_rows(first, first + count).set_column(3, ROWS.field("embedding"), column)


def found_by_searches(table: Table, definition: IndexDefinition) -> float:
    """recall@10 of searches by each fourth row of the table, a row being no answer to itself."""
    chosen = table.refresh().scan().to_arrow().sort_by("id").to_pylist()[::4]
    queries = np.array([row["embedding"] for row in chosen])
    answers = ids_by_query(open_index(table, definition).search(queries, 11, columns=["id"]).rows)
    exact = open_exact(table, "embedding", Metric.parse(definition.metric)).search(queries, 11, columns=["id"])
    nearest = ids_by_query(exact.rows)
    return float(np.mean([len({*answers[i]} & {*nearest[i]} - {row["id"]}) / 10 for i, row in enumerate(chosen)]))


def newest(table: Table) -> OpenVersion:
    return open_version(index_versions(table.refresh(), "e")[-1], STORAGE)


def fit(table: Table) -> LayoutFit:
    return fit_of(index_versions(table.refresh(), "e")[-1].sizes)


@pytest.mark.parametrize(
    "definition",
    [CODES, replace(CODES, metric="ip"), POOR, replace(POOR, vectors="rq8", metric="cosine")],
    ids=lambda it: f"{it.vectors} {it.metric}",
)
def test_where_rows_of_another_model_have_come_the_recall_is_what_searches_find(
    table_factory: Callable[..., Table], definition: IndexDefinition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some shards stay as they are but for deleted rows, which are neither searched for nor found."""
    measured: list[tuple[Any, Any]] = []

    def note(layout: Layout, queries: Any, shards: Any, metric: Metric) -> Layout:
        measured.append((queries, shards))
        return measured_across(layout, queries, shards, metric)

    monkeypatch.setattr(refresh, "measured_across", note)
    monkeypatch.setattr(shard_recall, "GATE_QUERIES", 256)  # 64 would leave more to chance
    table = table_factory()
    table.append(rows_of(0, 0, OLD))
    built = index_head(table, definition)
    share, curve = newest(table).across.share(), newest(table).routing_curve
    (file,) = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files
    append_position_deletes(table, {file.path: np.arange(GONE)})
    table.append(rows_of(1, OLD, NEW))
    report = index_head(table, definition)
    assert report.recall == pytest.approx(found_by_searches(table, definition), abs=0.05)
    ((queries, shards),) = measured
    live = np.array(table.scan().to_arrow()["embedding"].to_pylist())
    metric = Metric.parse(definition.metric)
    _, exact = exact_top_k(queries, prepare(live, metric), 11, metric)
    nearest = np.sort(np.concatenate([shard.found[0].nearest for shard in shards], axis=1), axis=1)
    assert np.array_equal(nearest[:, :11], exact)
    assert len(queries) < (OLD - GONE + NEW) / 10, "for its curve they are left out of the graphs"
    assert {"masked"} < {str(shard.how) for shard in report.shard_reports}
    assert (newest(table).across.share() != share, fit(table).arrived) == (True, 0)
    assert (newest(table).routing_curve != curve) == (definition.metric != "ip")
    if definition.vectors == "none":
        assert built.recall is not None
        assert report.recall is not None
        assert report.recall < built.recall - 0.15


def test_of_few_rows_as_few_tell_the_recall_as_were_searched_for(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def note(layout: Layout, queries: Any, shards: Any, metric: Metric) -> Layout:
        counts.extend(len(rows.nearest) for rows in shards[0].found)
        return measured_across(layout, queries, shards, metric)

    monkeypatch.setattr(build, "measured_across", note)
    table = table_factory()
    table.append(rows_of(0, 0, 230))
    report = index_head(table, replace(POOR, shards=2))
    assert report.recall_basis is not None
    assert {report.recall_basis.queries, report.recall_basis.wide_queries} == {*counts} == {22, 16}


@pytest.mark.parametrize(("vectors", "steps"), [("f32", [40, 80, 0]), ("none", [40, 80, 120, 160, 200, 0])])
def test_it_is_measured_once_over_a_tenth_of_the_rows_has_come(
    table_factory: Callable[..., Table], vectors: str, steps: list[int]
) -> None:
    """However few come at once. Shards without vectors wait until the rows of deltas are distributed: of a quarter."""
    definition = replace(POOR, vectors=vectors, shards=2, max_deltas=1)
    table = table_factory()
    table.append(rows_of(0, 0, 900))
    index_head(table, definition)
    share, arrived = newest(table).across.share(), []
    for first in range(900, 900 + 40 * len(steps), 40):
        table.append(rows_of(0, first, 40))
        index_head(table, definition)
        arrived.append((fit(table).arrived, newest(table).across.share() == share))
    assert arrived == [(rows, rows > 0) for rows in steps]


def test_one_shard_alone_is_all_shards(table_factory: Callable[..., Table]) -> None:
    """From the beginning, and once its deltas are dissolved."""
    definition, table, told = replace(POOR, shards=1), table_factory(), []
    for first, last in ((0, 300), (300, 360), (360, 460)):
        table.append(rows_of(0, first, last - first))
        index_head(table, definition)
        told.append((len(newest(table).shards), bool(newest(table).across.points), fit(table).arrived))
    assert told == [(1, False, 0), (2, True, 0), (1, False, 100)]


def test_rows_without_a_vector_do_not_count_and_files_of_such_are_not_read(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def note(plan: VersionPlan, shards: int, storage: StorageConfig) -> Any:
        read.append(len(plan.live.files))
        return draw_queries(plan, shards, storage)

    monkeypatch.setattr(refresh, "draw_queries", note)
    table, nothing = table_factory(), pa.nulls(3_000, ROWS.field("embedding").type)
    table.append(make_rows(10_000, 13_000).set_column(3, ROWS.field("embedding"), nothing))
    table.append(rows_of(0, 0, 400))
    index_head(table, CODES)
    for first in (400, 460):
        rows = [make_rows(20_000, 23_000).set_column(3, ROWS.field("embedding"), nothing), rows_of(0, first, 60)]
        table.append(pa.concat_tables(rows))
        index_head(table, CODES)
    assert (read, fit(table).arrived) == ([2, 3], 0)
