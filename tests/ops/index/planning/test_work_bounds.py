"""What a run may have to do, by summaries alone. `test_histories.py` compares these bounds with what its runs did."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, Summary

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning import work_bounds
from icepuffin.ops.index.planning.work_bounds import RefreshBounds, refresh_bounds
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.index.versions.version_sizes import VersionSizes, graph_id
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.blob_kind import SIZES_KEY
from icepuffin.ops.table.snapshots import is_derived
from icepuffin.puffin.types import MAX_DIMS
from tests.conftest import ROWS, make_rows
from tests.ops.index.comparison import DEFINITION, index_head

BASE = VersionSizes(graph_id(DEFINITION, 4), dims=16, shards=3, rows=900, largest=400, deltas=(20,), tombstones=0.0)
"""What the version of the table says, but for the largest shard"""


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """An index of three shards and a delta, and one more append of 1 %."""
    folder = tmp_path_factory.mktemp("bounds")
    catalog = open_catalog("b", {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/w"})
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS, properties={"format-version": "2"})
    for first, last in ((0, 900), (900, 920)):
        table.append(make_rows(first, last))
        index_head(table)
    table.append(make_rows(920, 929))
    return table


@pytest.fixture
def table(indexed: Table) -> Table:
    """The table, loaded anew: tests change its metadata in memory."""
    return indexed.catalog.load_table("db.t")


def bounds(table: Table, definition: IndexDefinition = DEFINITION) -> RefreshBounds | None:
    head = table.current_snapshot()
    assert head is not None
    return refresh_bounds(table, definition, head)


def with_summaries(table: Table, change: Callable[[Snapshot, dict[str, str]], None]) -> None:
    """Change the summaries of all snapshots."""
    snapshots = []
    for snapshot in table.metadata.snapshots:
        assert snapshot.summary is not None
        summary = dict(snapshot.summary.additional_properties)
        change(snapshot, summary)
        snapshots.append(snapshot.model_copy(update={"summary": Summary(snapshot.summary.operation, **summary)}))
    table.metadata = table.metadata.model_copy(update={"snapshots": snapshots})


def at_head(table: Table, **counts: str | None) -> None:
    """Change counts of the head's summary; None removes one."""

    def change(snapshot: Snapshot, summary: dict[str, str]) -> None:
        if snapshot.snapshot_id == table.metadata.current_snapshot_id:
            named = {key.replace("_", "-"): value for key, value in counts.items()}
            summary.update({key: value for key, value in named.items() if value is not None})
            for key in (key for key, value in named.items() if value is None):
                summary.pop(key)

    with_summaries(table, change)


def sized(table: Table, sizes: VersionSizes) -> None:
    """Give these sizes to all versions."""

    def change(_: Snapshot, summary: dict[str, str]) -> None:
        if SIZES_KEY in summary:
            summary[SIZES_KEY] = sizes.text()

    with_summaries(table, change)


def test_a_version_says_how_large_it_is(table: Table) -> None:
    first, second = (VersionSizes.parse(version.sizes) for version in index_versions(table, "e"))
    assert first is not None
    assert second is not None
    assert 300 <= second.largest < 900
    assert second == replace(BASE, largest=second.largest, fit=second.fit)
    assert first == replace(second, deltas=(), fit=first.fit)
    assert first.fit.balance == first.fit.built_balance == second.fit.built_balance == first.largest / 300


@pytest.mark.parametrize(
    "text",
    ["", "{}", "7", "a x 3 900 400 0 1 1 0 0 0 0", "a 16 3 900 400 0 1 1 0 0 0", "a 16 3 900 400 0 1 1 0 0 0 0 x",
     "a 65537 3 900 400 0 1 1 0 0 0 0",
     '{"definition":"a","dims":16,"shards":3,"rows":900,"largest":400,"deltas":[],"tombstones":0.0}'],
)  # fmt: skip
def test_other_sizes_are_not_read(text: str) -> None:
    assert VersionSizes.parse(text) is None


@pytest.mark.parametrize(
    "by_hand",
    [
        {"dims": 0},
        *({count: -1} for count in ("shards", "rows", "largest")),
        {"deltas": (-1,)},
        {"deltas": (20, -1)},
        {"tombstones": -0.1},
        {"tombstones": 1.1},
        {"fit": LayoutFit(balance=float("inf"))},
    ],
    ids=str,
)
def test_sizes_that_cannot_be_are_not_read(by_hand: dict[str, Any]) -> None:
    least = replace(BASE, dims=1, shards=0, rows=0, largest=0, deltas=(0,))
    for sizes in (BASE, least, replace(BASE, dims=MAX_DIMS, tombstones=1.0)):
        assert VersionSizes.parse(sizes.text()) == sizes
    assert VersionSizes.parse(replace(BASE, **by_hand).text()) is None


def test_a_share_of_tombstones_is_never_read_as_a_smaller_one() -> None:
    texts = (replace(BASE, tombstones=share).text() for share in (0.16, 1 / 3, 1e-9, 1.0))
    assert [sizes.tombstones for text in texts if (sizes := VersionSizes.parse(text))] == [0.16, 0.333334, 1e-06, 1.0]


def test_rows_of_deltas_count_as_live_but_for_the_largest_share_of_tombstones() -> None:
    """Rows that the codebook has routed are counted as live ones."""
    assert replace(BASE, deltas=(10, 30), tombstones=0.25).live_rows == 930
    assert replace(BASE, deltas=(), tombstones=0.25).live_rows == 900


def test_a_version_with_other_columns_kept_is_of_another_definition() -> None:
    """But one that was made with another name of the index, or another target, is not."""
    kept = [
        replace(DEFINITION, **{names: ("name",), ids: (number,)})
        for names, ids in (("filters", "filter_ids"), ("include", "include_ids"))
        for number in (2, 3)
    ]
    assert len({graph_id(definition, 4) for definition in (DEFINITION, *kept)}) == 5
    assert graph_id(DEFINITION, 5) != graph_id(DEFINITION, 4)
    assert graph_id(replace(DEFINITION, name="other", target_recall=0.6), 4) == graph_id(DEFINITION, 4)


def test_a_lean_index_whose_shards_are_written_counts_as_a_build(table: Table) -> None:
    """The vectors of these shards lie in old data files, of which nothing is known here."""
    lean = replace(DEFINITION, vectors="none")
    sized(table, replace(BASE, definition=graph_id(lean, 4)))
    assert bounds(table, lean) is None


def test_a_small_append_writes_one_delta_shard_at_most(table: Table) -> None:
    for delta in (20, 21):
        sizes = replace(BASE, deltas=(delta,))
        sized(table, sizes)
        assert bounds(table) == RefreshBounds(sizes, arriving=9, removed=0, files=1, largest=delta + 9, written=1)


@pytest.mark.parametrize(
    ("sizes", "definition"),
    [
        (replace(BASE, deltas=(400,)), DEFINITION),
        (replace(BASE, deltas=(400,)), replace(DEFINITION, delta_share=0.01)),
        (BASE, replace(DEFINITION, max_deltas=0)),
    ],
    ids=["deltas hold much", "deltas may hold little", "no deltas"],
)
def test_rows_that_go_to_the_other_shards_may_all_go_to_the_largest(
    table: Table, sizes: VersionSizes, definition: IndexDefinition
) -> None:
    sized(table, sizes)
    found = bounds(table, definition)
    assert found is not None
    assert (found.largest, found.written) == (sizes.largest + sum(sizes.deltas) + 9, 3)


@pytest.mark.parametrize(("arrived", "is_read"), [(83, False), (84, True)])
def test_where_a_tenth_of_the_rows_has_come_all_shards_are_searched(table: Table, arrived: int, is_read: bool) -> None:
    """920 rows are live, and 9 more come."""
    sizes = replace(BASE, fit=LayoutFit(arrived=arrived))
    sized(table, sizes)
    found = bounds(table)
    assert found is not None
    assert (found.largest, found.written) == ((400, 3 + 1 + 1) if is_read else (29, 1))


def test_so_they_may_where_a_delta_may_have_fewer(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_bounds, "rows_per_shard", lambda *_: 26)
    sizes = replace(BASE, largest=60)
    sized(table, sizes)
    assert bounds(table) == RefreshBounds(sizes, arriving=9, removed=0, files=1, largest=60 + 20 + 9, written=3)


@pytest.mark.parametrize(
    ("removed", "tombstones", "largest"),
    [(10, 0.0, 50 + 9), (10, 0.1, 100 + 9), (100, 0.0, 400 + 9), (10, 0.2, 400 + 9), (0, 0.25, 400 + 9), (0, 0.2, 29)],
)
def test_shards_that_deletes_may_fill_with_tombstones_may_be_rebuilt(
    table: Table, removed: int, tombstones: float, largest: int
) -> None:
    """With 10 rows removed, and none before, no shard of 50 nodes or more has over 20 %. Of the others any may be, and
    what arrives makes one more.
    """
    sizes = replace(BASE, tombstones=tombstones)
    sized(table, sizes)
    at_head(table, added_position_deletes=str(removed), total_position_deletes=str(removed))
    found = bounds(table)
    assert found is not None
    assert (found.removed, found.largest, found.written) == (removed, largest, 1 if largest == 29 else 3 + 1 + 1)


@pytest.mark.parametrize(("limit", "is_known"), [(928, True), (929, False), (930, False)])
def test_where_shards_are_out_of_balance_so_few_rows_may_all_be_indexed_anew(
    table: Table, limit: int, is_known: bool
) -> None:
    """The table has 929 rows."""
    sized(table, replace(BASE, fit=LayoutFit(balance=9.0, built_balance=2.0)))
    assert (bounds(table, replace(DEFINITION, build_anew_rows=limit)) is not None) is is_known


def test_deletes_by_position_count(indexed: Table, table: Table) -> None:
    first = min(task.file.file_path for task in indexed.scan().plan_files())
    append_position_deletes(table, {first: np.arange(3)})
    found = bounds(table.refresh())
    assert found is not None
    assert (found.arriving, found.removed) == (9, 3)
    table.manage_snapshots().set_current_snapshot(indexed.metadata.current_snapshot_id).commit()


def forget_tags(table: Table) -> None:
    table.metadata = table.metadata.model_copy(update={"refs": {"main": table.metadata.refs["main"]}})


def forget_versions(table: Table) -> None:
    table.metadata = table.metadata.model_copy(update={"statistics": []})


def forget_ancestors(table: Table) -> None:
    """As where the snapshots have expired that the versions are for."""
    (head,) = (s for s in table.metadata.snapshots if s.snapshot_id == table.metadata.current_snapshot_id)
    derived = [s for s in table.metadata.snapshots if s.summary and SIZES_KEY in s.summary.additional_properties]
    table.metadata = table.metadata.model_copy(update={"snapshots": [*derived, head]})


def name_columns(table: Table) -> None:
    named = {**table.metadata.properties, "schema.name-mapping.default": "[]"}
    table.metadata = table.metadata.model_copy(update={"properties": named})


@pytest.mark.parametrize(
    "change",
    [
        forget_tags,
        forget_versions,
        forget_ancestors,
        name_columns,
        lambda table: with_summaries(table, lambda _, summary: summary.pop(SIZES_KEY, None) and None),
        lambda table: sized(table, replace(BASE, definition="other")),
        lambda table: at_head(table, added_records=None),
        lambda table: at_head(table, total_records="1900", added_records="980"),
        lambda table: at_head(table, added_equality_deletes="1"),
        lambda table: at_head(table, removed_position_deletes="1"),
        lambda table: at_head(table, total_position_deletes="2"),
    ],
    ids=[
        "the index was dropped",
        "no version",
        "the snapshots of the versions have expired",
        "columns are found by other names",
        "versions without sizes",
        "the definition has changed",
        "commits that do not say what they added",
        "most rows are new",
        "deletes by value",
        "deletes that are taken back",
        "deletes that no commit counted",
    ],
)
def test_all_else_counts_as_a_build(table: Table, change: Callable[[Table], None]) -> None:
    assert bounds(table) is not None
    change(table)
    assert bounds(table) is None


def test_another_definition_counts_as_a_build(table: Table) -> None:
    assert bounds(table, replace(DEFINITION, max_degree=17)) is None
    assert bounds(table, replace(DEFINITION, target_recall=0.5)) is not None, "graphs stay"
    assert bounds(table, replace(DEFINITION, column="removed")) is None


def test_a_snapshot_before_all_versions_counts_as_a_build(table: Table) -> None:
    first = min(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    found = refresh_bounds(table, DEFINITION, first)
    assert found is not None, "it has a version of its own"
    assert (found.arriving, found.largest, found.written) == (0, 0, 0)
    without = [
        entry
        for entry in table.metadata.statistics
        if entry.snapshot_id != index_versions(table, "e")[0].index_snapshot_id
    ]
    table.metadata = table.metadata.model_copy(update={"statistics": without})
    assert refresh_bounds(table, DEFINITION, first) is None


def test_where_rows_have_gone_a_version_of_a_later_snapshot_may_be_nearer(table: Table) -> None:
    first, second, third, *_ = sorted(
        (snapshot for snapshot in table.metadata.snapshots if not is_derived(snapshot)),
        key=lambda snapshot: snapshot.sequence_number or 0,
    )
    of_first, of_second = (version.index_snapshot_id for version in index_versions(table, "e"))
    moved = {of_first: third.snapshot_id, of_second: first.snapshot_id}

    def move(snapshot: Snapshot, summary: dict[str, str]) -> None:
        if snapshot.snapshot_id in moved:
            summary["ann.base-snapshot-id"] = str(moved[SnapshotId(snapshot.snapshot_id)])

    with_summaries(table, move)
    assert refresh_bounds(table, DEFINITION, second) is not None
    deletes = {"added-position-deletes": "1", "total-position-deletes": "1"}
    with_summaries(table, lambda it, summary: summary.update(deletes if it.snapshot_id == second.snapshot_id else {}))
    (changed,) = (snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id == second.snapshot_id)
    assert refresh_bounds(table, DEFINITION, changed) is None
