"""What an index looks like, and how one answer came about."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.expiration import expire_derived
from icepuffin.ops.binding.measurements import recall_history
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.search import tuning
from icepuffin.ops.search.indexed.version_search import ShardWork
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.overview import overview
from icepuffin.ops.search.result import explain
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import data_snapshots, resolve_snapshot
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin.blobs.shard_header import Section, read_header
from icepuffin.puffin.sources import BytesSource
from tests.conftest import DIMS, STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head
from tests.patience import until

TableFactory = Callable[..., Table]
CODES = {Section.PQ_CODES, Section.CODE_TERMS, Section.HIGH_CODES, Section.LOW_CODES}
"""Sections with bytes for each node"""


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    new_table = table_factory()
    new_table.append(make_rows(0, 900))
    file = live_files(new_table, new_table.metadata.current_snapshot_id or 0).files[0]
    index_head(new_table)
    append_position_deletes(new_table.refresh(), {file.path: np.arange(0, 90)})
    index_head(new_table)
    new_table.refresh().append(make_rows(900, 1200))
    return new_table


def test_an_overview_counts_shards_tombstones_and_coverage(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_ROWS_PER_CENTROID", 1)
    view = overview(table, DEFINITION, STORAGE)
    assert view is not None
    assert sum(shard.live for shard in view.shards) == 810
    assert sum(shard.tombstones for shard in view.shards) == 90
    assert view.tombstone_ratio == pytest.approx(0.1)
    deltas = tuple(replace(shard, routed=False) for shard in view.shards)
    assert replace(view, shards=deltas).tombstone_ratio == pytest.approx(0.1)
    assert (view.rows, view.rows_covered, view.coverage) == (1200, 900, 0.75)
    assert view.base_snapshot_id != view.head_snapshot_id
    assert view.curve[0].recall <= view.curve[-1].recall
    assert view.routing
    table.delete("id < 900")
    left = overview(table.refresh(), DEFINITION, STORAGE)
    assert left is not None
    assert (left.rows, left.rows_covered, left.coverage) == (300, 0, 0.0), "files that are gone cover none"
    table.append(make_rows(1200, 1250))
    index_head(table)
    table.delete("id >= 900 and id < 1200")
    index_head(table)
    last = overview(table.refresh(), DEFINITION, STORAGE)
    assert last is not None
    assert [view.files, left.files, last.files] == [1, 1, 1]


def test_a_version_of_a_branch_is_shown_before_main_has_a_snapshot(table_factory: TableFactory) -> None:
    """As where each write is audited on a branch first."""
    table = table_factory()
    table.append(make_rows(0, 300))
    snapshot_id = resolve_snapshot(table).snapshot_id
    table.manage_snapshots().create_branch(snapshot_id, "audit").remove_branch("main").commit()
    assert table.metadata.current_snapshot_id is None
    create_index(table, DEFINITION)
    materialize_index(RunContext(table, STORAGE, LocalRunner(2), ref="audit"), DEFINITION, snapshot_id)
    view = overview(table.refresh(), DEFINITION, STORAGE)
    assert view is not None
    assert (view.head_snapshot_id, view.rows, view.coverage) == (snapshot_id, 300, 1.0)


def test_a_version_is_compared_with_the_branch_that_the_index_follows(table: Table) -> None:
    """Rows that main alone has are no rows that it lacks."""
    head = resolve_snapshot(table).snapshot_id
    index_head(table)
    table.refresh().manage_snapshots().create_branch(head, "audit").commit()
    table.append(make_rows(1200, 1500))
    for ref, rows, covered in (("audit", 1200, 1200), ("main", 1500, 1200)):
        view = overview(table.refresh(), DEFINITION, STORAGE, ref=ref)
        assert view is not None
        assert (view.rows, view.rows_covered) == (rows, covered)
    assert view.head_snapshot_id != head


def test_rows_that_came_later_are_shown_as_such(table: Table) -> None:
    index_head(table)
    view = overview(table, DEFINITION, STORAGE)
    assert view is not None
    assert view.coverage == 1.0
    assert sum(shard.nodes for shard in view.shards if not shard.routed) in (0, 300)


def test_the_version_at_the_tag_is_shown_whichever_was_made_last(table: Table) -> None:
    create_index(table, DEFINITION)
    head = index_head(table)
    table.refresh()
    for version in index_versions(table, "e"):
        if version.index_snapshot_id != head.index_snapshot_id:
            expire_derived(table, [version.index_snapshot_id], [])
    backfilled = data_snapshots(table)[0].snapshot_id
    old = materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, backfilled)
    assert index_versions(table.refresh(), "e")[-1].index_snapshot_id == old.index_snapshot_id
    seen = overview(table, DEFINITION, STORAGE)
    assert seen is not None
    assert (seen.index_snapshot_id, seen.coverage) == (head.index_snapshot_id, 1.0)
    (shown,) = SqlSession(lambda _: (table, STORAGE)).sql("SHOW INDEXES ON db.t").rows.to_pylist()
    assert (shown["versions"], shown["snapshot_id"]) == (2, head.snapshot_id)
    history = recall_history(index_versions(table, "e"))
    assert [item.base_snapshot_id for item in history] == [backfilled, head.snapshot_id]


def test_an_index_without_a_version_has_no_overview(table: Table) -> None:
    assert overview(table, replace(DEFINITION, name="other"), STORAGE) is None


@pytest.mark.parametrize("vectors", ["f32", "rq4", "rq5", "none"])
def test_the_bytes_of_a_version_are_known_by_part(table_factory: TableFactory, vectors: str) -> None:
    """Those of codes by the sections of the shards, which no overview reads."""
    table = table_factory()
    table.append(make_rows(0, 300))
    definition = replace(DEFINITION, vectors=vectors, pq_m=4, filters=("section",), target_recall=0.1, shards=1)
    create_index(table, definition)
    report = index_head(table, definition)
    view = overview(table.refresh(), definition, STORAGE)
    assert view is not None
    (version,) = index_versions(table, "e")
    (shard,) = open_version(version, STORAGE).shards
    source = open_storage(shard.blob.path, STORAGE).source(shard.blob.path)
    header = read_header(BytesSource(source.read_range(shard.blob.offset, shard.blob.length)))
    codes = sum(entry.stored_length for entry in header.sections if entry.kind in CODES)
    parts = view.bytes_by_part
    assert sum(parts.values()) == report.bytes_total
    assert parts["vectors"] == (300 * DIMS * 4 if vectors == "f32" else 0)
    assert parts["attributes"] > 0
    assert parts["codes"] == codes
    assert parts["graphs"] > 300 * 8


def test_an_answer_explains_itself(table: Table) -> None:
    reader = open_index(table, DEFINITION, storage=STORAGE)
    result = reader.search(queries(2), where="id >= 0", search_list=50)
    explained = dict(explain(result))
    assert len(explained) == len(list(explain(result))), "no part has another's name"
    assert "nearest-version+tail" in explained["answer"]
    assert f"made for {result.base_snapshot_id}" in explained["version"]
    assert explained["tier"] == "in-process: the index is in memory"
    assert "bytes of shards" in explained["opened"]
    assert explained["strategy"].endswith("1,110 rows match")
    assert "300 rows scanned" in explained["distances"]
    assert {"filter", "index", "scan", "rows", "total"} <= set(explained)
    assert result.profile.bytes_read["rows"] > 0
    assert "filter" in result.explain()


def test_an_explanation_has_what_was_measured_of_live_queries(table: Table) -> None:
    reader = open_index(table, DEFINITION, storage=STORAGE, recall_sample=1.0)
    sampler = reader._pipeline.sampler
    assert sampler is not None
    reader.search(queries(1))
    until(lambda: reader.stats().queries == 1)
    measured = reader.stats()
    later = f"; live recall {measured.recall:.4f} ({measured.low:.4f} to {measured.high:.4f}), 1 measured"
    with sampler.paused():  # else the next one might be measured before its answer is explained
        assert later in dict(explain(reader.search(queries(1))))["happened"]


def test_an_explanation_fits_on_one_screen_however_many_shards_were_searched(table: Table) -> None:
    result = open_index(table, DEFINITION, storage=STORAGE).search(queries(2), where="id >= 0", search_list=50)
    work = tuple(ShardWork(number, 1_000, 2, 10 + number, 100 + number % 60) for number in range(64))
    many = replace(result, profile=replace(result.profile, work=work))
    lines = many.explain().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    long = replace(many, warnings=("a word, and another " * 20,)).explain()
    assert len(long.splitlines()) > len(lines), "a notebook does not scroll sideways"
    assert " ".join(long.split()).endswith("a word, and another")
    parts = dict(explain(many))
    assert [name for name in parts if name.startswith("shard ")] == [f"shard {number}" for number in range(52, 60)]
    left_out = [shard for shard in work if not 52 <= shard.shard_id < 60]
    assert parts["shards"] == (
        f"56 others: {sum(shard.expanded for shard in left_out):,} of 56,000 nodes visited, "
        f"{sum(shard.distances for shard in left_out):,} distances"
    )


def test_an_explanation_counts_each_shard_and_what_was_read(table: Table) -> None:
    reader = open_index(table, DEFINITION, storage=STORAGE)
    first, again = reader.search(queries(1), target_recall=0.9), reader.search(queries(1), target_recall=0.9)
    assert sum(item.distances for item in first.profile.work) == first.profile.distances
    assert sum(item.expanded for item in first.profile.work) == first.profile.nodes_expanded
    assert first.profile.bytes_read["rows"] > again.profile.bytes_read["rows"] == 0
    parts = dict(explain(first))
    assert parts["foreseen"].endswith("shards per query, by the curves measured with the index")
    assert parts["happened"].startswith(f"{first.profile.distances:,} distances in ")
    assert parts["happened"].endswith("% of the foreseen")
    assert dict(explain(reader.search(queries(1), shards=1)))["foreseen"].startswith("nothing: the curves")
    pruned = dict(explain(reader.within(queries(1), 1.0)))
    assert "out of reach" in pruned["pruning"]
