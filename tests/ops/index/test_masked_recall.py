"""The recall of a version is that of its shards as they are in it, whichever rows have gone since they were written."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index import masked_recall
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.recall.shard_recall import ShardRecall
from icepuffin.ops.search.overview import overview
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.recall_gate import recall_of_nodes, searcher_of
from icepuffin.ops.tasks.rows import live_nodes
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.orchestration.cli.index import version_grids
from tests.conftest import ROWS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head

TableFactory = Callable[..., Table]
NUMBER, DIMS, EASY = 900, 32, 171
"""Rows, dimensions, and rows that lie in a plane far from all others, where a weak graph finds the nearest"""
WEAK = replace(DEFINITION, shards=1, max_degree=4, search_list=8, target_recall=0.0)


def delete_rows(table: Table, count: int) -> None:
    """Delete the first rows of the first file."""
    first = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {first.path: np.arange(count)})


def recall_of_all_rows(table: Table, rows: int = 10) -> float:
    """recall@`rows` of the one shard, by each live row as a query."""
    version = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    shard = open_shard(version.shards[0], STORAGE).read()
    vectors = np.asarray(shard.vectors, np.float32)
    live = live_nodes(shard.count, version.routing.shards[0].tombstones)
    searcher = searcher_of(shard, vectors, live)
    return float(recall_of_nodes(searcher, shard, vectors, live, np.flatnonzero(live), threads=1, rows=rows).mean())


@pytest.mark.parametrize("kept", ["f32", "f16", "none"])
def test_where_the_rows_that_were_found_are_deleted_the_recall_of_the_version_falls(
    table_factory: TableFactory, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked_recall, "GATE_QUERIES", 400)  # a handful would leave more to chance
    definition = replace(WEAK, vectors=kept)
    table = table_factory()
    rows = np.random.default_rng(0).standard_normal((NUMBER, DIMS))
    rows[:EASY, :2] *= 0.1
    rows[:EASY, 2:] = 10
    table.append(_rows(rows))
    built = index_head(table, definition)
    before = recall_of_all_rows(table) if kept != "none" else 1.0
    delete_rows(table, EASY)
    masked = index_head(table, definition)
    (shard,) = masked.shard_reports
    assert (shard.how, masked.tombstones) == ("masked", EASY)
    if kept == "none":
        assert (masked.recall, masked.recall_basis.rows_outdated) == (pytest.approx(built.recall), NUMBER - EASY)
        return
    assert (masked.recall_basis.rows_here, masked.recall_basis.queries) == (NUMBER - EASY, 400)
    assert masked.recall == pytest.approx(recall_of_all_rows(table), abs=0.03)
    assert masked.recall < before - 0.05
    wide = recall_of_all_rows(table, 100)
    assert built.recall_basis.wide is not None
    assert built.recall_basis.wide > wide + 0.03
    assert masked.recall_basis.wide == (pytest.approx(wide, abs=0.01) if kept == "f32" else None)
    searched = check_integrity(RunContext(table, STORAGE), index_versions(table.refresh(), "e")[-1]).self_search
    assert searched is not None
    assert searched.recall_low <= masked.recall <= searched.recall_high


def test_what_rounding_costs_is_not_forgotten_where_the_rounded_vectors_alone_are_compared(
    table_factory: TableFactory,
) -> None:
    definition = replace(WEAK, vectors="f16", max_degree=16, search_list=40)
    table = table_factory()
    table.append(_rows(100 + 0.01 * np.random.default_rng(0).standard_normal((300, DIMS))))
    built = index_head(table, definition)
    delete_rows(table, 30)
    masked = index_head(table, definition)
    assert masked.recall == pytest.approx(built.recall)
    assert built.recall < 0.8
    assert (masked.recall_basis.rows_here, masked.recall_basis.wide) == (270, None)


def test_shards_over_the_budget_are_measured_by_a_later_refresh_and_are_said_to_be_outdated_until_then(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_factory()
    table.append(make_rows(0, 600))
    built = index_head(table)
    delete_rows(table, 20)
    lengths = [shard.bytes for shard in built.shard_reports]
    monkeypatch.setattr(masked_recall, "_ALWAYS_MEASURED", max(lengths))
    masked = index_head(table)
    measured = {shard.number for shard in masked.shard_reports if shard.measured == "here"}
    outdated = [shard for shard in masked.shard_reports if shard.measured == "outdated"]
    assert measured == {max(masked.shard_reports, key=lambda shard: (shard.nodes - shard.live) / shard.nodes).number}
    assert [shard.recall for shard in outdated] == pytest.approx(
        [built.shard_reports[shard.number].recall for shard in outdated]
    )
    assert masked.recall_basis.rows_outdated == sum(shard.live for shard in outdated) > 0
    assert "not measured since they lost rows" in masked.recall_basis.summary
    assert index_head(table).recall_basis.rows_outdated == masked.recall_basis.rows_outdated
    view = overview(table.refresh(), DEFINITION, STORAGE)
    assert view is not None
    assert {shard.shard for shard in view.shards if shard.changed} == {shard.number for shard in outdated}
    shards, *_ = version_grids(view)
    assert {f"{shard.recall:.4f}*" for shard in outdated} <= {row[4] for row in shards.rows}
    assert "* before it lost rows" in shards.title
    monkeypatch.setattr(masked_recall, "_ALWAYS_MEASURED", sum(lengths))
    table.append(make_rows(600, 610))
    later = index_head(table)
    assert {shard.number: shard.measured for shard in later.shard_reports} == {
        **dict.fromkeys(measured, "unchanged"),
        **{shard.number: "here" for shard in outdated},
        3: "here",
    }


def test_one_large_shard_is_measured_once_a_twentieth_of_its_nodes_has_changed(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked_recall, "_ALWAYS_MEASURED", 1)
    table = table_factory()
    table.append(make_rows(0, 600))
    index_head(table)
    delete_rows(table, 20)
    few = index_head(table).shard_reports
    assert [shard.measured for shard in few] == ["outdated"] * 3
    assert max((shard.nodes - shard.live) / shard.nodes for shard in few) < 1 / 20
    delete_rows(table, 70)
    many = index_head(table).shard_reports
    by_change = sorted(many, key=lambda shard: (shard.live - shard.nodes) / shard.nodes)
    assert [shard.measured for shard in by_change] == ["here", "outdated", "outdated"]
    assert (by_change[1].nodes - by_change[1].live) / by_change[1].nodes > 1 / 20
    delete_rows(table, 71)
    later = {shard.number: shard.measured for shard in index_head(table).shard_reports}
    assert later[by_change[1].number] == "here"
    assert later[by_change[2].number] == "outdated"


@pytest.mark.parametrize(
    ("shards", "chosen"),
    [
        ([(100, 1), (101, 2)], [0]),
        ([(50, 2), (50, 3), (1, 1)], [1, 0]),
        ([(200, 49), (1, 1)], [1]),
        ([(200, 50), (300, 51), (1, 1)], [1, 2]),
        ([(200, 50), (1, 1)], [0, 1]),
        ([(251, 9), (3_749, 0)], []),
        ([(250, 9), (3_750, 0)], [0]),
        ([(300, 9), (299, 8), (8_000, 0)], [1]),
    ],
)
def test_shards_are_measured_up_to_a_sixteenth_of_what_stays_within_bounds(
    shards: list[tuple[int, int]], chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes, and changed ones of 1,000 nodes: 100 bytes always, and 299 at most, but for one with 50 changed nodes."""
    monkeypatch.setattr(masked_recall, "_ALWAYS_MEASURED", 100)
    monkeypatch.setattr(masked_recall, "SMALL_WORK", 299)
    results: Any = [
        SimpleNamespace(shard_id=number, length=length, count=1_000, recall=ShardRecall(1.0, 64, changed=changed))
        for number, (length, changed) in enumerate(shards)
    ]
    assert [shard.shard_id for shard in masked_recall._chosen(results)] == chosen


def _rows(vectors: np.ndarray) -> pa.Table:
    texts = [""] * len(vectors)
    columns = [
        np.arange(len(vectors)),
        texts,
        texts,
        pa.array(list(vectors.astype(np.float32)), pa.list_(pa.float32())),
    ]
    return pa.table(dict(zip(ROWS.names, columns, strict=True)), schema=ROWS)
