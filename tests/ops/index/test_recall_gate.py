"""What the gate certifies is what a search of the published index finds, whatever numbers the vectors are made of."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.table import Table

from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.errors import GateFailedError
from icepuffin.ops.index.index_layout import Layout
from icepuffin.ops.index.new_version import pass_gate
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.model import Action
from icepuffin.ops.recall.shard_recall import ShardRecall
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.overview import overview
from tests.ann_kernels.data import near_duplicates
from tests.conftest import STORAGE
from tests.ops.index.comparison import ids_by_query, index_head
from tests.selection import some

TableFactory = Callable[..., Table]
ROWS, DIMS, QUERIES = 1_500, 12, 100
SAMPLING_ERROR = 0.05
"""Largest error of recall@10 by 64 rows, which the gate searches for, and by 100, which are searched for here"""


def _normal(scale: float, offset: float = 0.0) -> np.ndarray:
    return offset + scale * np.random.default_rng(7).standard_normal((ROWS, DIMS))


def _mixed() -> np.ndarray:
    return _normal(1.0) * 10.0 ** np.random.default_rng(8).uniform(-8, 4, (ROWS, 1))


RANGES = {
    "ordinary": _normal(1.0),
    "tiny": _normal(1e-8),
    "offset": _normal(0.01, 100.0),
    "huge": _normal(1e5),
    "mixed": _mixed(),
}


@pytest.mark.parametrize(
    ("values", "metric", "kept"), some(list(product(RANGES, ["l2", "cosine", "ip"], ["f32", "f16", "none"])), 15)
)
def test_what_is_published_finds_what_the_gate_says(
    table_factory: TableFactory, kept: str, metric: str, values: str
) -> None:
    vectors = RANGES[values].astype(np.float32)
    table = table_factory()
    table.append(_rows(vectors))
    definition = IndexDefinition(
        name="e", column="embedding", metric=metric, vectors=kept, max_degree=32, search_list=100, target_recall=0.8
    )
    report, refusal = _indexed(table, definition)
    if report is None:
        assert kept != "f32"
        assert values != "ordinary"
        assert "vectors = 'f32'" in refusal
        assert values != "huge" or "half precision ends at 65504" in refusal
        return
    query_rows = np.random.default_rng(9).choice(ROWS, QUERIES, replace=False)
    result = open_index(table, definition, storage=STORAGE).search(vectors[query_rows], 11, columns=["id"])
    assert np.isfinite(result.rows["distance"].to_numpy()).all()
    exact = _exact(vectors, query_rows, metric)
    share = []
    for query, own in enumerate(query_rows):
        rows = np.array(result.rows.filter(pc.equal(result.rows["query"], query))["id"])
        far = np.delete(exact[query], own)
        limit = np.partition(far, 9)[9]
        share.append(min(10, int((exact[query][rows[rows != own]] <= limit + 1e-6 * abs(limit)).sum())) / 10)
    assert float(np.mean(share)) >= report.recall - SAMPLING_ERROR


ACROSS = {
    "codes": {"vectors": "none", "pq_m": 4, "shards": 16},
    "poor graphs": {"max_degree": 6, "search_list": 10, "shards": 4},
    "inner products": {"metric": "ip", "max_degree": 6, "search_list": 10, "shards": 4},
}


@pytest.mark.parametrize("kind", ACROSS)
def test_what_is_published_is_found_by_a_search_of_many_shards(table_factory: TableFactory, kind: str) -> None:
    """Each shard alone finds many more of its own rows; a refresh goes on from what the build has measured."""
    vectors = np.random.default_rng(5).standard_normal((3_200, 32)).astype(np.float32)
    table = table_factory()
    table.append(_rows(vectors))
    options = {"name": "e", "column": "embedding", "metric": "l2", "target_recall": 0.1} | ACROSS[kind]
    definition = IndexDefinition(**options)
    report = index_head(table, definition)
    alone = np.average([it.recall for it in report.shard_reports], weights=[it.nodes for it in report.shard_reports])
    assert report.recall is not None
    assert report.recall < alone - 0.03
    rows = np.arange(0, len(vectors), 16)
    ids = ids_by_query(open_index(table, definition, storage=STORAGE).search(vectors[rows], 11, columns=["id"]).rows)
    exact = _exact(vectors, rows, definition.metric)
    exact[np.arange(len(rows)), rows] = np.inf
    nearest = np.argsort(exact, axis=1)[:, :10]
    hits = [len({*ids[query]} & {*nearest[query].tolist()}) for query in range(len(rows))]
    assert report.recall == pytest.approx(np.mean(hits) / 10, abs=SAMPLING_ERROR)
    view = overview(table, definition, storage=STORAGE)
    assert view is not None
    assert view.recall == pytest.approx(report.recall, abs=1e-4)
    with pytest.raises(GateFailedError, match=r"recall@10 is 0\.\d{4} \(0\.\d{4} in single shards\)"):
        index_head(table, replace(definition, name="f", target_recall=1.0))
    table.append(_rows(vectors[:5], first=len(vectors)))
    assert index_head(table, definition).recall == pytest.approx(report.recall, abs=0.02)


def _indexed(table: Table, definition: IndexDefinition) -> tuple[IndexReport | None, str]:
    """(the report, "") or (None, why there is none)."""
    try:
        return index_head(table, definition), ""
    except (VectorColumnError, GateFailedError) as error:
        return None, str(error)


def test_a_vector_beyond_half_precision_is_refused_by_file_and_row(table_factory: TableFactory) -> None:
    vectors = _normal(1.0).astype(np.float32)
    vectors[77, 3] = 70_000
    table = table_factory()
    table.append(_rows(vectors))
    definition = IndexDefinition(name="e", column="embedding", metric="l2", vectors="f16")
    with pytest.raises(VectorColumnError, match=r"parquet: the vector of row 77 holds 70000, and half precision ends"):
        index_head(table, definition)
    assert index_head(table, replace(definition, vectors="f32")).recall > 0.9


def refusal(recall: float, *, action: Action = Action.BUILT, other: float | None = None) -> str:
    """What the gate says of a shard that was written with this recall, and has another one now."""
    error = None if other is None else GateFailedError("")
    if error is not None and other is not None:
        error.recall = other
    live = SimpleNamespace(table="db.t", snapshot_id=7)
    definition = IndexDefinition(name="e", column="embedding", target_recall=0.9)
    plan: Any = SimpleNamespace(live=live, definition=definition, action=action, other_error=error, may_build_anew=True)
    layout = Layout(np.ones((1, 4), np.float32), np.zeros(1, np.uint32), 1, None)
    shard = SimpleNamespace(written_recall=recall, live_rows=5, recall=ShardRecall(0.9 - recall, 64))
    shard_set: Any = SimpleNamespace(layout=layout, shards=[shard])
    try:
        pass_gate(plan, shard_set, has_version=True)
    except GateFailedError as refused:
        return str(refused)
    return ""


def test_the_gate_lets_pass_what_reached_its_target_when_it_was_written() -> None:
    assert refusal(0.9) == ""
    assert refusal(0.89) == (
        "db.t, index e, snapshot 7: recall@10 is 0.8900, the target is 0.9. Nothing was published, the previous "
        "version stays. To find more, raise max_degree or search_list, or lower target_recall"
    )


@pytest.mark.parametrize(
    ("action", "both"),
    [
        (Action.BUILT, "recall@10 is 0.8000 where it is built anew, 0.7000 by a refresh, the target"),
        (Action.REFRESHED, "recall@10 is 0.8000 by a refresh, 0.7000 where it is built anew, the target"),
    ],
)
def test_where_neither_way_reaches_the_target_each_is_named_with_its_recall(action: Action, both: str) -> None:
    assert both in refusal(0.8, action=action, other=0.7)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize(("metric", "scale"), [("l2", 1e-41), ("ip", 1e-23), ("ip", 1e20)])
def test_a_gate_that_fails_by_floats_range_says_to_scale_the_column(
    table_factory: TableFactory, metric: str, scale: float
) -> None:
    """No degree of a graph helps where squares are infinite or zero."""
    table = table_factory()
    table.append(_rows(_normal(scale).astype(np.float32)))
    with pytest.raises(GateFailedError, match="scale the column to about 1, and queries alike"):
        index_head(table, IndexDefinition(name="e", column="embedding", metric=metric))
    cosine = IndexDefinition(name="e", column="embedding", metric="cosine")
    assert index_head(table, cosine).recall > 0.9


def test_near_duplicates_make_an_index_that_passes_its_gate(table_factory: TableFactory) -> None:
    vectors = near_duplicates(40_000, 8, 80, 1e-4)
    table = table_factory()
    table.append(_rows(vectors))
    report = index_head(table, IndexDefinition(name="e", column="embedding", metric="l2"), threads=2)
    assert report.recall >= 0.95


@pytest.mark.parametrize("kept", ["f32", "f16"])
def test_equal_vectors_make_an_index_that_passes_its_gate(table_factory: TableFactory, kept: str) -> None:
    """By a build, and by rows that come later, whose equals lie in the version. Of halves, all was built anew each
    time: rows that had come earlier counted as farther than their equals that had just come.
    """
    rng = np.random.default_rng(3)
    vectors = rng.permutation(np.repeat(rng.standard_normal((120, 24)), 50, axis=0)).astype(np.float32)
    table = table_factory()
    definition = IndexDefinition(
        name="e", column="embedding", metric="l2", vectors=kept, max_deltas=0, target_recall=0.97
    )
    queries = rng.standard_normal((40, 24)).astype(np.float32)
    for stop in (4_000, 5_000, 6_000):
        table.append(_rows(vectors[stop - (4_000 if stop == 4_000 else 1_000) : stop]))
        report = index_head(table, definition, threads=2)
        assert report.action is (Action.BUILT if stop == 4_000 else Action.REFRESHED)
        assert report.recall >= 0.99
        table.refresh()
        rerank = True if kept == "f16" else None
        found = open_index(table, definition, storage=STORAGE).search(queries, 10, columns=[], rerank=rerank)
        exact = np.sort(np.linalg.norm(vectors[None, :stop].astype(float) - queries[:, None], axis=2), axis=1)[:, :10]
        np.testing.assert_allclose(found.rows["distance"].to_numpy().reshape(40, 10), exact, rtol=1e-5)


def _rows(vectors: np.ndarray, *, first: int = 0) -> pa.Table:
    texts = [""] * len(vectors)
    return pa.table({
        "id": np.arange(first, first + len(vectors)), "name": texts, "section": texts,
        "embedding": pa.array(list(vectors), pa.list_(pa.float32())),
    })  # fmt: skip


def _exact(vectors: np.ndarray, query_rows: np.ndarray, metric: str) -> np.ndarray:
    """f64[Q, N], without anything that the product uses but its unit vectors."""
    points = prepare(vectors, Metric.parse(metric)).astype(np.float64)
    if metric == "ip":
        return -(points[query_rows] @ points.T)
    return np.stack([((points - points[row]) ** 2).sum(axis=1) for row in query_rows])
