from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.types import FloatType, ListType, StringType

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions, tag_target
from icepuffin.ops.index.definitions.ddl import create_index, drop_index, list_definitions, load_definition
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.errors import GateFailedError
from icepuffin.ops.index.index_materialization import materialize_index, rebuild_tombstoned_shards
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.upkeep.outcome_reports import reuse_report
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.process.stage_clock import StageClock
from icepuffin.ops.recall.shard_recall import AcrossShards, ShardRecall
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.runs.snapshot import refresh as refresh_all
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage import open_storage, relative_to
from icepuffin.ops.table.blob_kind import LASTING_MS, SIDE_TAG_AGE_MS, BlobKind
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import ROWS, STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    new_table = table_factory()
    for start in range(0, 900, 300):
        new_table.append(make_rows(start, start + 300))
    return new_table


@pytest.mark.parametrize("vectors", ["none", "f16", "f32"])
@pytest.mark.parametrize("metric", ["l2", "cosine", "ip"])
def test_an_index_answers_as_exact_search_does(table: Table, metric: str, vectors: str) -> None:
    definition = replace(DEFINITION, metric=metric, vectors=vectors)
    report = index_head(table, definition)
    result, recall = answer_with_recall(table, definition=definition)
    assert report.action is Action.BUILT
    assert report.rows == 900
    assert result.coverage is Coverage.EXACT_VERSION
    assert recall >= 0.96


def test_main_and_its_statistics_are_not_touched(table: Table) -> None:
    head = table.metadata.current_snapshot_id
    log = table.metadata.snapshot_log
    report = index_head(table)
    table.refresh()
    assert table.metadata.current_snapshot_id == head
    assert table.metadata.snapshot_log == log
    assert [entry.snapshot_id for entry in table.metadata.statistics] == [report.index_snapshot_id]
    assert tag_target(table, "ann_e") == report.index_snapshot_id


def test_a_second_run_finds_the_work_done(table: Table) -> None:
    first = index_head(table)
    second = index_head(table)
    assert second.action is Action.REUSED
    assert (first.recall_basis.rows_here, second.recall_basis.rows_unchanged) == (first.rows, second.rows)
    assert second.recall == pytest.approx(first.recall)
    assert (first.deltas, second.deltas) == (0, 0)
    assert (second.recall_basis.wide, second.recall_basis.queries) == (first.recall_basis.wide, 3 * 64)
    assert second.index_snapshot_id == first.index_snapshot_id
    assert len(index_versions(table, "e")) == 1


@pytest.mark.parametrize("threads", [2, 3])
def test_bytes_do_not_depend_on_threads(table_factory: TableFactory, threads: int) -> None:
    table = table_factory()
    table.append(make_rows(0, 600))
    head = table.metadata.current_snapshot_id
    assert head is not None
    contents = []
    for number in (1, threads):
        report = materialize_index(RunContext(table, STORAGE, LocalRunner(number)), DEFINITION, head)
        assert report.puffin_path is not None
        store = open_storage(report.puffin_path, STORAGE)
        contents.append(store.read_range(report.puffin_path, 0, store.size(report.puffin_path)))
        drop_everything(table)
    assert contents[0] == contents[1]


def drop_everything(table: Table) -> None:
    drop_index(table, "e")
    ours = [version.index_snapshot_id for version in index_versions(table, "e")]
    table.maintenance.expire_snapshots().by_ids(ours).commit()
    table.refresh()


def test_appended_rows_are_inserted_and_found(table: Table) -> None:
    index_head(table)
    table.append(make_rows(900, 1000))
    report = index_head(table)
    found, recall = answer_with_recall(table)
    assert (report.action, report.inserted, report.rows) == (Action.REFRESHED, 100, 1000)
    assert report.reason.startswith("shares 90% of its rows, by data files, with the version of snapshot ")
    assert found.coverage is Coverage.EXACT_VERSION
    assert recall >= 0.96


def test_rows_of_a_deleted_file_become_tombstones(table: Table) -> None:
    index_head(table)
    table.refresh()
    table.delete("id < 100")
    table.refresh()
    report = index_head(table)
    _, recall = answer_with_recall(table)
    assert report.tombstones == 100
    assert report.remapped == 200, "rows that moved to a rewritten file keep their nodes"
    assert recall >= 0.96


def test_position_deletes_become_tombstones_and_nothing_is_rewritten(table: Table) -> None:
    index_head(table)
    table.refresh()
    first = live_files(table, table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {first.path: np.arange(20)})
    report = index_head(table)
    _, recall = answer_with_recall(table)
    assert (report.tombstones, report.inserted, report.shards_copied) == (20, 0, 3)
    touched = [shard for shard in report.shard_reports if shard.how == "masked"]
    assert report.recall_basis.rows_here == sum(shard.live for shard in touched), "their recall may be another now"
    assert report.recall_basis.rows_unchanged == report.rows - report.recall_basis.rows_here
    assert report.bytes_written < report.bytes_total / 4
    assert recall >= 0.96


def test_a_shard_full_of_tombstones_is_rebuilt_and_others_are_not(table: Table) -> None:
    index_head(table)
    gone = _rows_of_first_shard(table)
    append_position_deletes(table, gone)
    report = index_head(table)
    _, recall = answer_with_recall(table)
    assert (report.shards_rebuilt, report.shards_copied) == (1, 2)
    unchanged = [shard for shard in report.shard_reports if shard.how.keeps_bytes]
    assert report.recall_basis.rows_unchanged == sum(shard.live for shard in unchanged)
    assert [shard.measured for shard in unchanged] == ["unchanged", "unchanged"]
    assert report.recall_basis.rows_here == report.rows - report.recall_basis.rows_unchanged
    assert report.tombstones == 0
    assert recall >= 0.96


def _rows_of_first_shard(table: Table) -> dict[str, np.ndarray]:
    """Every third of its rows, by data file."""
    version = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    slots, positions = open_shard(version.shards[0], STORAGE).read_locations()
    paths = {path: slot for slot, path in enumerate(file.path for file in version.routing.files)}
    files = live_files(table, table.metadata.current_snapshot_id or 0)
    return {
        file.path: np.sort(positions[slots == paths[relative_to(file.path, files.location)]])[::3]
        for file in files.files
    }


def test_a_table_written_anew_with_its_old_rows_costs_no_graph_work(table: Table) -> None:
    index_head(table)
    rows = table.refresh().scan().to_arrow()
    table.overwrite(rows)
    report = index_head(table)
    assert report.action is Action.REFRESHED
    assert (report.inserted, report.remapped, report.tombstones) == (0, 900, 0)
    assert {shard.how for shard in report.shard_reports} == {"remapped"}
    assert report.recall_basis.rows_unchanged == 900, "no node of the graphs is another"
    found, recall = answer_with_recall(table)
    assert found.coverage is Coverage.EXACT_VERSION
    assert recall >= 0.96


def test_rewriting_files_again_and_again_does_not_lengthen_the_file_table(table: Table) -> None:
    index_head(table)
    append_position_deletes(
        table, {live_files(table, table.metadata.current_snapshot_id or 0).files[0].path: np.array([1])}
    )
    lengths = []
    for _ in range(4):
        index_head(table)
        found, recall = answer_with_recall(table)
        assert found.coverage is Coverage.EXACT_VERSION
        assert recall >= 0.96
        lengths.append(len(open_version(index_versions(table, "e")[-1], STORAGE).routing.files))
        table.refresh().overwrite(table.scan().to_arrow())
    assert max(lengths[1:]) <= 5, "three files, of which one has a tombstone, and the one that all are rewritten to"


def test_a_table_written_anew_with_other_rows_is_built_anew(table: Table) -> None:
    index_head(table)
    table.refresh().overwrite(make_rows(5000, 5600))
    report = index_head(table)
    assert report.action is Action.BUILT
    assert "0%" in report.reason
    assert answer_with_recall(table)[1] >= 0.96


def test_a_rollback_moves_only_the_tag(table: Table) -> None:
    first = index_head(table)
    table.append(make_rows(900, 950))
    index_head(table)
    table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    report = index_head(table)
    assert report.action is Action.RETAGGED
    assert tag_target(table, "ann_e") == first.index_snapshot_id
    assert answer_with_recall(table)[1] >= 0.96


def test_old_snapshots_are_indexed_in_any_order_under_their_own_tags(table: Table) -> None:
    history = [entry.snapshot_id for entry in table.metadata.snapshot_log]
    for snapshot in (history[2], history[0], history[1]):
        materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, snapshot)
    for snapshot, rows in zip(history, (300, 600, 900), strict=True):
        found, recall = answer_with_recall(table, snapshot)
        assert found.coverage is Coverage.EXACT_VERSION
        assert table.scan(snapshot_id=snapshot).to_arrow().num_rows == rows
        assert recall >= 0.96
    ages = {name: ref.max_ref_age_ms for name, ref in table.refresh().metadata.refs.items() if name != "main"}
    assert ages == {
        "ann_e": LASTING_MS,
        f"ann_e-{history[0]}": SIDE_TAG_AGE_MS,
        f"ann_e-{history[1]}": SIDE_TAG_AGE_MS,
    }


def test_refreshed_versions_answer_as_well_as_fresh_ones(table_factory: TableFactory) -> None:
    refreshed, fresh = table_factory("refreshed"), table_factory("fresh")
    for start in range(0, 1200, 200):
        refreshed.refresh()
        refreshed.append(make_rows(start, start + 200))
        index_head(refreshed)
    fresh.append(make_rows(0, 1200))
    index_head(fresh)
    assert answer_with_recall(refreshed)[1] >= answer_with_recall(fresh)[1] - 0.01


def test_a_failed_gate_publishes_nothing_and_keeps_the_last_good_version(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    good = index_head(table)
    table.append(make_rows(900, 1000))
    weak = replace(DEFINITION, target_recall=1.0, max_degree=4, search_list=8)
    with pytest.raises(GateFailedError, match=r"the target is .* Nothing was published, the previous version stays"):
        index_head(table, weak)
    with pytest.raises(GateFailedError, match="Nothing was published, and the index has no version yet"):
        index_head(table, replace(weak, name="other"))
    assert "built by codes of one byte" in caplog.text  # and by vectors before it was refused
    assert tag_target(table, "ann_e") == good.index_snapshot_id
    assert answer_with_recall(table)[0].coverage is Coverage.NEAREST_VERSION_AND_TAIL


def test_an_empty_table_gets_no_version(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 10))
    table.delete("id >= 0")
    assert index_head(table).action is Action.EMPTY
    assert index_versions(table, "e") == ()


def test_a_table_of_one_row_is_indexed(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 1))
    assert index_head(table).rows == 1
    found, recall = answer_with_recall(table)
    assert recall == 1.0
    assert found.rows.num_rows == 20


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([float("nan")] * 16, "NaN or infinity"),
        ([float("inf")] * 16, "NaN or infinity"),
        ([1.0] * 3, "3 dimensions"),
        ([None] * 16, "null element"),
        ([0.0] * 16, "is zero"),
    ],
)
@pytest.mark.parametrize("indexed", [True, False], ids=["refresh", "build"])
def test_a_vector_that_cannot_be_indexed_is_named_by_file_and_row(
    table_factory: TableFactory, indexed: bool, value: list[float], message: str
) -> None:
    table = table_factory()
    cosine = replace(DEFINITION, metric="cosine")
    table.append(make_rows(0, 50))
    good = index_head(table, cosine) if indexed else None
    rows = make_rows(50, 60).to_pylist()
    rows[2]["embedding"] = None  # left out, and counted
    rows[7]["embedding"] = value
    table.refresh().append(pa.Table.from_pylist(rows, schema=ROWS))
    with pytest.raises(VectorColumnError, match=rf"\.parquet: .*row 7 .*{message}"):
        index_head(table, cosine)
    assert tag_target(table, "ann_e") == (good.index_snapshot_id if good else None)


def test_a_renamed_column_is_followed_and_a_dropped_one_is_named(table: Table) -> None:
    definition = create_index(table, DEFINITION)
    index_head(table, definition)
    with table.update_schema() as change:
        change.rename_column("embedding", "vector")
    table.append(make_rows(900, 950).rename_columns(["id", "name", "section", "vector"]))
    assert index_head(table, definition).inserted == 50
    with table.update_schema() as change:
        change.delete_column("vector")
        change.add_column("other", StringType())
    table.append(make_rows(950, 960).drop_columns(["embedding"]))
    with pytest.raises(DefinitionError, match="was dropped, or not there yet"):
        index_head(table, definition)
    with table.update_schema() as change:
        change.add_column("embedding", ListType(0, FloatType(), element_required=False))
    table.append(make_rows(960, 970).append_column("other", pa.array([""] * 10)))
    with pytest.raises(DefinitionError, match=r"its 'embedding' is another column, field \d+\. .*index drop \S+ e$"):
        index_head(table, definition)


def test_columns_of_a_definition_that_was_set_by_hand_are_followed_from_its_first_version_on(table: Table) -> None:
    written = {key: value for key, value in DEFINITION.to_properties().items() if not key.endswith("-id")}
    with table.transaction() as change:
        change.set_properties(written | {"ann.index.e.filters": "section"})
    refresh_all(table)
    with table.update_schema() as update:
        update.rename_column("embedding", "vector")
        update.rename_column("section", "part")
    table.append(make_rows(900, 950).rename_columns(["id", "name", "part", "vector"]))
    refresh_all(table)
    result = open_index(table.refresh(), "e", storage=STORAGE).search(queries(1), 3, where="part = 'section 1'")
    assert result.coverage is Coverage.EXACT_VERSION
    assert {row["part"] for row in result.rows.to_pylist()} == {"section 1"}


def test_definitions_live_in_table_properties(table: Table) -> None:
    created = create_index(table, DEFINITION)
    assert created.field_id is not None
    assert list_definitions(table) == (created,)
    assert load_definition(table, "e") == created
    with pytest.raises(DefinitionError, match=r"already, with metric l2; drop it, or take another name$"):
        create_index(table, replace(DEFINITION, metric="ip"))
    changed = replace(DEFINITION, max_deltas=1, target_recall=0.7)
    with pytest.raises(DefinitionError, match=r"would change: .*max_deltas \d+ becomes 1.*Pass replace=True"):
        create_index(table, changed)
    assert list_definitions(table) == (created,)
    assert create_index(table, changed, replace=True).max_deltas == 1, "graphs stay as they are"
    assert load_definition(table, "e").target_recall == 0.7
    index_head(table, created)
    assert drop_index(table, "e") == ("ann_e",)
    assert list_definitions(table) == ()
    with pytest.raises(DefinitionError, match="no index"):
        load_definition(table, "e")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "-a", "ä", "x" * 65])
def test_a_name_that_is_no_tag_name_is_refused(name: str) -> None:
    with pytest.raises(
        DefinitionError,
        match=r"cannot name an index: use 1 to 64 letters, digits, .*, starting with a letter or digit$",
    ):
        IndexDefinition(name=name, column="embedding")


def test_maintenance_does_nothing_without_shards_full_of_tombstones(table: Table) -> None:
    index_head(table)
    assert rebuild_tombstoned_shards(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION) is None


def test_garbage_collection_takes_only_what_nothing_references(table: Table) -> None:
    from datetime import timedelta  # noqa: PLC0415

    report = index_head(table)
    root = f"{table.location()}/metadata"
    store = open_storage(root, STORAGE)
    store.create(f"{root}/_icepuffin/abc/shard-0.dann", b"left behind")
    store.create(f"{root}/ann-e-snap-1.puffin", b"never bound")
    store.create(f"{root}/somebody-elses.stats", b"not ours")
    planned = collect_garbage(table, storage=STORAGE, grace=timedelta(0), dry_run=True)
    assert {path.rsplit("/", 1)[1] for path in planned.deleted} == {"shard-0.dann", "ann-e-snap-1.puffin"}
    assert store.exists(f"{root}/ann-e-snap-1.puffin")
    assert collect_garbage(table, storage=STORAGE).deleted == (), "younger than the grace period"
    collect_garbage(table, storage=STORAGE, grace=timedelta(0))
    assert not store.exists(f"{root}/ann-e-snap-1.puffin")
    assert store.exists(f"{root}/somebody-elses.stats")
    assert report.puffin_path is not None
    assert store.exists(report.puffin_path)


def test_files_that_were_imported_are_read_by_the_names_that_they_had(table: Table, tmp_path: Path) -> None:
    pq.write_table(make_rows(900, 1000), tmp_path / "imported.parquet")
    table.add_files([f"file://{tmp_path}/imported.parquet"])
    with table.update_schema() as update:
        update.rename_column("embedding", "vector")
        update.rename_column("id", "number")
    table.append(make_rows(1000, 1010).rename_columns(["number", "name", "section", "vector"]))
    definition = replace(DEFINITION, column="vector")
    index_head(table, definition)
    query = make_rows(950, 951)["embedding"].to_pylist()
    found = open_index(table, definition, storage=STORAGE).search(np.array(query, np.float32), 3, columns=["number"])
    assert found.coverage is Coverage.EXACT_VERSION
    assert found.rows["number"][0].as_py() == 950


def test_a_watched_ref_that_does_not_exist_yet_is_no_error(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 200))
    create_index(table, DEFINITION)
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    work = RunContext(table, STORAGE, LocalRunner(1), ref="prod")
    report = materialize_index(work, DEFINITION, head)
    assert report.action is Action.BUILT
    assert set(table.refresh().metadata.refs) == {"main", f"ann_e-{head}"}
    assert rebuild_tombstoned_shards(work, DEFINITION) is None
    table.manage_snapshots().create_branch(head, "prod").commit()
    assert materialize_index(work, DEFINITION, head).action is Action.RETAGGED
    assert tag_target(table.refresh(), "ann_e") == report.index_snapshot_id


def test_a_report_on_a_version_in_place_counts_its_nodes_deltas_and_bytes() -> None:
    """A page shows these of a snapshot whose version was there."""
    entries = [
        SimpleNamespace(count=100, live_rows=80, all_bytes=50),
        SimpleNamespace(count=10, live_rows=10, all_bytes=5),
    ]
    base = SimpleNamespace(
        routing=SimpleNamespace(shards=entries, files=(), routed_shards=1),
        recalls=(ShardRecall(0.9, 64, changed=3, is_new=False), ShardRecall(1.0, 9, is_new=False)),
        bytes_total=70,
        across=AcrossShards(),
    )
    live = SimpleNamespace(table="db.t", snapshot_id=SnapshotId(7), files=(1, 2, 3))
    plan: Any = SimpleNamespace(
        live=live, definition=DEFINITION, reason="it is there", build_id="b", action=Action.REUSED, base=base
    )
    existing = DerivedVersion(BlobKind.INDEX, "e", SnapshotId(8), SnapshotId(7), "b", "p", 1, 1, 1, ())
    report = reuse_report(plan, StageClock(), existing)
    assert (report.files, report.rows, report.tombstones, report.tombstone_ratio) == (3, 90, 20, 20 / 110)
    assert (report.shards, report.deltas, report.bytes_total) == (2, 1, 70)
    assert report.recall == pytest.approx((0.9 * 80 + 10) / 90)
    assert [(one.nodes, one.live, one.bytes) for one in report.shard_reports] == [(100, 80, 50), (10, 10, 5)]
    assert (report.index_snapshot_id, report.puffin_path, report.action) == (8, "p", Action.REUSED)
