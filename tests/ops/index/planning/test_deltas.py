"""Delta shards from end to end: made, merged, masked, moved into, dropped; what stays is copied."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.expressions import In
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.vamana import Graph
from icepuffin.ops.binding.bound_versions import index_versions, tagged_version
from icepuffin.ops.index import moved_rows, refresh
from icepuffin.ops.index.definitions.ddl import drop_index
from icepuffin.ops.index.index_materialization import materialize_index, rebuild_tombstoned_shards
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions.version_reader import OpenVersion, open_version
from icepuffin.ops.index.versions.version_sizes import VersionSizes
from icepuffin.ops.model import Action, ObjectRange, StorageConfig, StoredShard
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.matching import match_hashes
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin.blobs import routing_blob
from icepuffin.puffin.blobs.shard_blob import ShardReader
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    new_table = table_factory()
    new_table.append(make_rows(0, 900))
    index_head(new_table)
    return new_table


def how_of_shards(report: IndexReport) -> list[str]:
    return [shard.how for shard in report.shard_reports]


def newest(table: Table) -> OpenVersion:
    return open_version(index_versions(table.refresh(), "e")[-1], STORAGE)


def blob(version: OpenVersion, number: int) -> bytes:
    part = version.shards[number].blob
    return open_storage(part.path, STORAGE).read_range(part.path, part.offset, part.length)


def append(table: Table, first: int, last: int) -> IndexReport:
    table.refresh()
    table.append(make_rows(first, last))
    report = index_head(table)
    found, recall = answer_with_recall(table)
    assert found.coverage is Coverage.EXACT_VERSION
    assert recall >= 0.96
    return report


def test_an_append_makes_a_delta_and_older_shards_keep_every_byte(table: Table) -> None:
    before = newest(table)
    report = append(table, 900, 950)
    after = newest(table)
    assert how_of_shards(report) == ["copied"] * 3 + ["built"]
    assert (report.deltas, report.base_snapshot_id) == (1, before.routing.base_snapshot_id)
    assert (after.routing.routed_shards, len(after.routing.shards)) == (3, 4)
    assert [blob(after, number) for number in range(3)] == [blob(before, number) for number in range(3)]
    assert after.routing.shards[3].live_rows == 50


def test_deltas_are_few_and_what_comes_then_goes_into_the_smallest(table: Table) -> None:
    for start, last in ((900, 910), (910, 940), (940, 970), (970, 1000)):
        assert how_of_shards(append(table, start, last))[-1] == "built"
    report = append(table, 1000, 1020)
    assert how_of_shards(report) == ["copied"] * 3 + ["inserted", "copied", "copied", "copied"]
    assert [shard.live for shard in report.shard_reports[3:]] == [30] * 4


def test_when_deltas_hold_too_much_their_rows_go_where_the_codebook_leads(table: Table) -> None:
    append(table, 900, 1000)
    append(table, 1000, 1100)
    report = append(table, 1100, 1200)
    assert set(how_of_shards(report)) == {"inserted"}
    assert (report.shards, report.inserted, report.rows) == (3, 100, 1200)
    assert newest(table).routing.routed_shards == 3


@pytest.mark.parametrize(
    ("dead_rows", "arriving", "how"),
    [(60, 0, "masked"), (61, 0, "rebuilt"), (61, 10, "inserted"), (63, 10, "rebuilt")],
)
def test_a_shard_is_rebuilt_over_a_fifth_of_tombstones_among_all_nodes(
    table_factory: TableFactory, dead_rows: int, arriving: int, how: str
) -> None:
    """Of all nodes, the dead ones and those that come: of 240 live rows 60 are a quarter."""
    table, definition = table_factory(), replace(DEFINITION, shards=1, max_deltas=0)
    table.append(make_rows(0, 300))
    index_head(table, definition)
    file = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files[0].path
    append_position_deletes(table, {file: np.arange(dead_rows)})
    if arriving:
        table.refresh().append(make_rows(300, 300 + arriving))
    assert how_of_shards(index_head(table, definition)) == [how]


@pytest.mark.parametrize("vectors", ["none", "f16"])
def test_lean_and_half_precision_deltas_are_distributed_too(table_factory: TableFactory, vectors: str) -> None:
    table = table_factory()
    definition = replace(DEFINITION, vectors=vectors)
    table.append(make_rows(0, 900))
    index_head(table, definition)
    for start, deltas in ((900, 1), (1020, 0)):
        table.append(make_rows(start, start + 120))
        report = index_head(table, definition)
        assert report.shards == 3 + deltas
        assert answer_with_recall(table, definition=definition)[1] >= 0.9


@pytest.mark.parametrize("vectors", ["none", "f16", "f32"])
def test_a_shard_whose_rows_are_all_gone_takes_new_ones(table_factory: TableFactory, vectors: str) -> None:
    def rows(first: int, last: int) -> pa.Table:
        """Two clusters: the rows of odd ids, and those of even ones."""
        made = make_rows(first, last)
        vectors = np.array(made["embedding"].to_pylist()) + 100 * (np.asarray(made["id"])[:, None] % 2)
        return made.set_column(3, made.schema.field(3), pa.array(vectors.tolist(), made.schema.field(3).type))

    table = table_factory()
    definition = replace(DEFINITION, vectors=vectors, shards=2, max_deltas=0)
    table.append(rows(0, 60))
    index_head(table, definition)
    table.delete(In("id", [*range(1, 60, 2)]))  # type: ignore[arg-type, misc]
    index_head(table, definition)
    assert sorted(entry.count for entry in newest(table).routing.shards) == [0, 30]
    table.append(rows(61, 62))
    report = index_head(table, definition)
    assert (report.rows, report.inserted, report.shards_rebuilt) == (31, 1, 0)
    assert answer_with_recall(table, definition=definition)[1] >= 0.96


def test_a_delta_whose_rows_are_all_gone_is_dropped(table: Table) -> None:
    append(table, 900, 950)
    table.delete("id >= 900")
    assert index_head(table).shards == 3
    assert answer_with_recall(table)[1] >= 0.96


def test_a_delta_full_of_tombstones_is_rebuilt_alone(table: Table) -> None:
    append(table, 900, 1000)
    file = next(
        item for item in live_files(table, table.metadata.current_snapshot_id or 0).files if item.record_count == 100
    )
    append_position_deletes(table, {file.path: np.arange(30)})
    report = index_head(table)
    assert how_of_shards(report) == ["copied"] * 3 + ["rebuilt"]
    assert report.rows == 970
    assert answer_with_recall(table)[1] >= 0.96


def test_a_compaction_finds_rows_in_deltas_and_writes_addresses_alone(table: Table) -> None:
    append(table, 900, 950)
    before = newest(table)
    table.refresh()
    table.overwrite(table.scan().to_arrow())
    report = index_head(table)
    assert how_of_shards(report) == ["remapped"] * 4
    assert (report.inserted, report.remapped, report.tombstones) == (0, 950, 0)
    assert report.bytes_written < report.bytes_total / 2, "of rows this small, addresses are much"
    after = newest(table)
    assert [entry.sha256 for entry in after.routing.shards] == [
        hashlib.sha256(blob(after, number)).digest() for number in range(4)
    ]
    assert [entry.medoid for entry in after.routing.shards] == [entry.medoid for entry in before.routing.shards]
    assert answer_with_recall(table)[1] >= 0.96


def test_equal_rows_are_matched_one_to_one_across_shards(table: Table) -> None:
    again = make_rows(0, 60)
    table.refresh()
    table.append(again)
    index_head(table)
    table.refresh()
    table.overwrite(table.scan().to_arrow())
    report = index_head(table)
    assert (report.rows, report.remapped, report.inserted, report.tombstones) == (960, 960, 0, 0)


def test_rows_changed_in_other_columns_keep_their_nodes_and_new_rows_make_a_delta(table: Table) -> None:
    table.refresh()
    table.overwrite(make_rows(880, 930), overwrite_filter="id >= 880")
    report = index_head(table)
    assert (report.inserted, report.tombstones) == (30, 0)
    assert report.remapped == 900, "the file was rewritten"
    assert report.shards == 4
    assert answer_with_recall(table)[1] >= 0.96


def test_rows_that_take_the_place_of_others_are_new(table: Table) -> None:
    table.refresh()
    append_position_deletes(
        table, {live_files(table, table.metadata.current_snapshot_id or 0).files[0].path: np.arange(50)}
    )
    report = append(table, 900, 950)
    assert (report.rows, report.remapped, report.inserted, report.tombstones) == (900, 0, 50, 50)
    assert how_of_shards(report) == ["masked"] * 3 + ["built"]


def test_a_version_counts_live_rows_and_the_largest_share_of_tombstones(table: Table) -> None:
    """Of the delta, where it is the largest. `test_work_bounds.py` has what follows from these sizes."""
    table.refresh()
    (routed,) = live_files(table, table.metadata.current_snapshot_id or 0).files
    table.append(make_rows(900, 950))
    index_head(table)
    delta = next(file for file in live_files(table, table.metadata.current_snapshot_id or 0).files if file != routed)
    append_position_deletes(table, {routed.path: np.arange(50), delta.path: np.arange(8)})
    assert how_of_shards(index_head(table)) == ["masked"] * 4
    sizes = VersionSizes.parse(index_versions(table.refresh(), "e")[-1].sizes)
    assert sizes is not None
    assert (sizes.shards, sizes.rows, sizes.deltas, sizes.tombstones) == (3, 850, (50,), 8 / 50)


def test_a_rolled_back_delete_brings_rows_back_to_life(table: Table) -> None:
    table.refresh()
    before = table.metadata.current_snapshot_id or 0
    append_position_deletes(table, {live_files(table, before).files[0].path: np.arange(40)})
    deleted = index_head(table)
    assert deleted.tombstones == 40
    table.refresh().manage_snapshots().rollback_to_snapshot(before).commit()
    table.append(make_rows(900, 910))
    drop_version_of(table, before)
    report = index_head(table)
    assert (report.action, report.rows, report.tombstones) == (Action.REFRESHED, 910, 0)
    assert answer_with_recall(table)[1] >= 0.96


def drop_version_of(table: Table, snapshot_id: int) -> None:
    for version in index_versions(table, "e"):
        if version.base_snapshot_id == snapshot_id:
            open_storage(version.puffin_path, STORAGE).delete(version.puffin_path)


def test_the_same_history_gives_the_same_bytes_for_any_threads(table_factory: TableFactory) -> None:
    contents = []
    table = table_factory()
    table.append(make_rows(0, 600))
    index_head(table)
    first = index_versions(table, "e")
    table.append(make_rows(600, 700))
    for threads in (1, 3):
        report = index_head(table, threads=threads)
        assert report.action is Action.REFRESHED
        version = newest(table)
        store = open_storage(version.bound.puffin_path, STORAGE)
        contents.append(store.read_range(version.bound.puffin_path, 0, version.file_size))
        drop_index(table, "e")
        table.refresh()
        ours = {item.index_snapshot_id for item in index_versions(table, "e")} - {
            item.index_snapshot_id for item in first
        }
        table.maintenance.expire_snapshots().by_ids(list(ours)).commit()
        table.refresh()
    assert contents[0] == contents[1]


def test_maintenance_rebuilds_a_delta_full_of_tombstones(table: Table) -> None:
    append(table, 900, 1000)
    file = next(
        item for item in live_files(table, table.metadata.current_snapshot_id or 0).files if item.record_count == 100
    )
    append_position_deletes(table, {file.path: np.arange(30)})
    lenient = replace(DEFINITION, rebuild_ratio=0.9)
    assert how_of_shards(index_head(table, lenient))[-1] == "masked"
    report = rebuild_tombstoned_shards(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION)
    assert report is not None
    assert how_of_shards(report)[-1] == "rebuilt"


def test_many_ranges_of_hashes_give_what_one_gives(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moved_rows, "HASHES_AT_ONCE", 100)
    monkeypatch.setattr(refresh, "SMALL_WORK", 0)
    table.refresh()
    table.overwrite(table.scan().to_arrow())
    table.append(make_rows(900, 930))
    labels: list[tuple[str, int]] = []
    reads: list[ObjectRange] = []

    def opened(shard: StoredShard, storage: StorageConfig) -> ShardReader:
        reads.append(shard.blob)
        return open_shard(shard, storage)

    monkeypatch.setattr(match_hashes, "open_shard", opened)

    class LabelRecorder(LocalRunner):
        parallelism = 2

        def run(self, function: Any, tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
            labels.append((label, len(tasks)))
            return super().run(function, tasks, label=label, progress=progress)

    head = table.refresh().metadata.current_snapshot_id or 0
    report = materialize_index(RunContext(table, STORAGE, LabelRecorder(1)), DEFINITION, head)
    assert ("match rows", 16) in labels, "by the runner, although the rows are few"
    assert len(reads) == len(set(reads)) > 1, "each shard is read once, not once per range"
    assert (report.remapped, report.inserted, report.tombstones) == (900, 30, 0)
    assert check_integrity(RunContext(table, STORAGE), newest(table).bound).faults == (), (
        "each row has the node of its vector"
    )


def test_a_graph_that_inserts_have_spoilt_is_rebuilt_and_the_report_has_it(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forget_the_new(graph: Graph, vectors: np.ndarray, *_: object, **__: object) -> Graph:
        lonely = len(vectors) - graph.count
        return Graph(
            np.concatenate([graph.neighbors, np.full((lonely, graph.neighbors.shape[1]), -1, np.int32)]),
            np.concatenate([graph.degrees, np.zeros(lonely, np.int32)]),
            graph.medoid,
        )

    monkeypatch.setattr(vamana, "insert", forget_the_new)
    table.refresh()
    table.append(make_rows(900, 1800))
    report = index_head(table, replace(DEFINITION, target_recall=0.9))
    assert set(how_of_shards(report)) == {"rebuilt"}
    assert "is built anew" in caplog.text
    assert answer_with_recall(table)[1] >= 0.96


def test_tombstones_of_all_shards_may_be_more_than_one_bitmap_may_hold(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing_blob, "_ALWAYS_ALLOWED", 1_600)
    lenient = replace(DEFINITION, rebuild_ratio=0.9)
    file = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files[0].path
    append_position_deletes(table, {file: np.arange(400)})
    report = index_head(table, lenient)
    assert (report.tombstones, report.rows) == (400, 500)
    found, recall = answer_with_recall(table)
    assert (found.coverage, found.warnings) == (Coverage.EXACT_VERSION, ())
    assert recall >= 0.96
    table.refresh().append(make_rows(900, 910))
    assert index_head(table, lenient).tombstones == 400
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    assert check_integrity(RunContext(table, STORAGE), version).faults == ()
