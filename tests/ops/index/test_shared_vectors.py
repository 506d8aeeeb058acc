"""Versions share vectors: they are written once, and stay where they lie while graphs over them change."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ops.binding.bound_versions import index_versions, tagged_version
from icepuffin.ops.index import refresh, stages
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.index.versions.version_reader import OpenVersion, open_version
from icepuffin.ops.model import ObjectRange, StoredRun
from icepuffin.ops.shards import vector_runs
from icepuffin.ops.shards.shard_reader import check_shard, open_shard
from icepuffin.ops.storage import open_storage
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks import delta_rows, markers, shard_task
from icepuffin.ops.tasks.rows import VectorRows
from icepuffin.ops.tasks.shard_task import ShardTask
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.puffin.errors import ChecksumError
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head, vector_place

TableFactory = Callable[..., Table]
ROW_BYTES = 4 * 16


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is worth a pack, and a vector is worth a run."""
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1)
    monkeypatch.setattr(vector_runs, "MIN_BYTES", ROW_BYTES)


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    """600 rows, indexed: three shards in a pack."""
    table = table_factory()
    table.append(make_rows(0, 600))
    index_head(table)
    return table


def head_version(table: Table) -> OpenVersion:
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    return open_version(version, STORAGE)


def require_right(table: Table, definition: IndexDefinition = DEFINITION) -> None:
    """Each live node has the vector of its row: in all of the shard, and where a single one is read."""
    version = head_version(table)
    by_place = vectors_by_place(table)
    nodes = 0
    for stored, entry in zip(version.shards, version.routing.shards, strict=True):
        reader = open_shard(stored, STORAGE)
        slots, positions = reader.read_locations()
        vectors = reader.read_vectors()
        assert vectors is not None
        for node in np.setdiff1d(np.arange(entry.count), entry.tombstones).tolist():
            expected = by_place[version.routing.files[slots[node]].path, int(positions[node])]
            expected = prepare(expected[None], definition.metric)[0].astype(vectors.dtype)
            assert np.array_equal(vectors[node], expected)
            place = vector_place(stored, node)
            assert read(place) == expected.tobytes()
            nodes += 1
    assert nodes == len(table.scan().to_arrow())
    assert check_integrity(RunContext(table, STORAGE), version.bound).faults == ()
    assert answer_with_recall(table, definition=definition)[1] >= 0.96


def vectors_by_place(table: Table) -> dict[tuple[str, int], npt.NDArray[np.float32]]:
    """The vector of each row, by file and row position, past all of our own readers."""
    out = {}
    for file in live_files(table, table.metadata.current_snapshot_id or 0).files:
        vectors = pq.read_table(to_path(file.path), columns=["embedding"])["embedding"].to_pylist()
        relative = file.path.removeprefix(f"{table.location()}/")
        out |= {(relative, row): np.array(vector, np.float32) for row, vector in enumerate(vectors)}
    return out


def read(place: ObjectRange) -> bytes:
    return open_storage(place.path, STORAGE).read_range(place.path, place.offset, place.length)


def runs_of(version: OpenVersion) -> list[list[ObjectRange]]:
    return [[run.location for run in stored.runs] for stored in version.shards]


def stored_vectors(table: Table) -> int:
    """Bytes of the vectors of all versions, each place once."""
    places = {
        (run.location.path, run.location.offset + row): run.row_bytes
        for bound in index_versions(table.refresh(), "e")
        for stored in open_version(bound, STORAGE).shards
        for run in stored.runs
        for row in range(0, run.location.length, run.row_bytes)
    }
    return sum(places.values())


@pytest.mark.parametrize("metric", ["l2", "cosine"])
@pytest.mark.parametrize("vectors", ["f32", "f16"])
def test_each_vector_is_written_once_through_inserts_and_dissolved_deltas(
    table_factory: TableFactory, vectors: str, metric: str
) -> None:
    definition = replace(DEFINITION, vectors=vectors, metric=metric, max_deltas=2)
    table = table_factory()
    table.append(make_rows(0, 600))
    index_head(table, definition)
    merged = 0
    for first in range(600, 900, 50):
        before = runs_of(head_version(table))
        table.append(make_rows(first, first + 50))
        report = index_head(table, definition)
        merged += report.merged
        after = runs_of(head_version(table))
        if not report.merged:
            assert after[:3] == before[:3]
        for old, new in zip(before[:3], after[:3], strict=True):
            assert new[: len(old)] == old, "node ids and vectors stay as they are"
    assert merged == 150
    assert 2 < max(len(runs) for runs in runs_of(head_version(table))) <= 8, "each delta gives a shard a few ranges"
    row_bytes = ROW_BYTES if vectors == "f32" else ROW_BYTES // 2
    assert stored_vectors(table) == 900 * row_bytes
    require_right(table, definition)


@pytest.mark.parametrize("small_work", [0, 1 << 26])
def test_the_addresses_of_a_dissolved_delta_are_read_once(
    table: Table, monkeypatch: pytest.MonkeyPatch, small_work: int
) -> None:
    """By the task that takes the rows, also where it is recorded, by a name that the addresses are a part of."""
    monkeypatch.setattr(refresh, "SMALL_WORK", small_work)
    definition = replace(DEFINITION, max_deltas=1, delta_share=0.1)
    table.append(make_rows(600, 650))
    index_head(table, definition)
    blocks: list[str] = []
    read_in_order = delta_rows.read_in_order
    monkeypatch.setattr(
        delta_rows, "read_in_order", lambda *arguments: blocks.append(arguments[1][0][0]) or read_in_order(*arguments)
    )
    table.append(make_rows(650, 700))
    assert index_head(table, definition).merged == 50
    assert len(blocks) == len(set(blocks)) > 1
    require_right(table, definition)


def test_a_delta_has_its_nodes_by_the_shards_that_they_will_go_to(table: Table) -> None:
    for first in (600, 650):
        table.append(make_rows(first, first + 50))
        index_head(table, replace(DEFINITION, max_deltas=1))
    version = head_version(table)
    delta, start = version.shards[3], 0
    vectors = open_shard(delta, STORAGE).read_vectors()
    assert vectors is not None
    labels, _ = kmeans.assign(vectors.astype(np.float32), version.routing.codebook)
    shards = version.routing.partition_to_shard[labels].astype(int)
    assert [run.count for run in delta.runs] == [50, 50], "built, and inserted"
    for run in delta.runs:
        of_run = shards[start : start + run.count]
        assert (np.diff(of_run) >= 0).all()
        assert len(set(of_run.tolist())) > 1
        start += run.count


def test_a_dissolved_delta_leaves_out_dead_rows(table: Table) -> None:
    definition = replace(DEFINITION, rebuild_ratio=0.9)
    table.append(make_rows(600, 700))
    index_head(table, definition)
    delta_file = next(
        file for file in live_files(table, table.metadata.current_snapshot_id or 0).files if file.record_count == 100
    )
    append_position_deletes(table, {delta_file.path: np.arange(0, 100, 50)})
    table.refresh().append(make_rows(700, 800))
    report = index_head(table, definition)
    assert (report.merged, report.rows) == (98, 798)
    delta = [run.location for run in open_version(index_versions(table, "e")[1], STORAGE).shards[3].runs]
    taken = [place for runs in runs_of(head_version(table)) for place in runs if place.path == delta[0].path]
    assert sum(place.length for place in taken) == 98 * ROW_BYTES
    rows = table.scan().to_arrow()
    assert len(rows) == 798
    assert check_integrity(RunContext(table, STORAGE), head_version(table).bound).faults == ()
    assert answer_with_recall(table, definition=definition)[1] >= 0.96


def test_vectors_that_lie_in_no_pack_are_copied(table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1 << 30)
    table = table_factory()
    for first in range(0, 600, 50):
        table.append(make_rows(first, first + 50))
        index_head(table, replace(DEFINITION, max_deltas=2))
    version = head_version(table)
    assert {place.path for runs in runs_of(version) for place in runs} == {version.bound.puffin_path}
    require_right(table, replace(DEFINITION, max_deltas=2))


def test_shards_beside_a_pack_of_their_vectors_keep_their_recall_curves(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1 << 30)
    monkeypatch.setattr(index_packs, "WORTH_SHARE", 100)
    table.append(make_rows(600, 1200))
    index_head(table)
    version = head_version(table)
    assert {entry.pack for entry in version.routing.shards} == {0}
    assert {entry.runs[0].pack for entry in version.routing.shards} == {1}
    assert all(version.curves), "they were written with the new rows, and measured"
    table.append(make_rows(1200, 1201))
    index_head(table)
    assert head_version(table).curves[: len(version.curves)] == version.curves, "one row is a shard of its own"
    require_right(table)


def test_too_many_runs_become_one(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_runs, "MAX_RUNS", 3)
    for first in range(600, 1000, 50):
        table.append(make_rows(first, first + 50))
        index_head(table, replace(DEFINITION, max_deltas=1))
        assert max(len(runs) for runs in runs_of(head_version(table))) <= 3
    require_right(table, replace(DEFINITION, max_deltas=1))


def test_a_rebuilt_shard_has_its_vectors_in_one_run(table: Table) -> None:
    file = live_files(table, table.metadata.current_snapshot_id or 0).files[0]
    append_position_deletes(table, {file.path: np.arange(300)})
    table.refresh().append(make_rows(600, 620))
    index_head(table)
    assert [len(runs) for runs in runs_of(head_version(table))] == [1, 1, 1, 1]
    assert head_version(table).routing.shards[0].count < 200


def test_other_vectors_than_were_published_are_noticed(table: Table) -> None:
    version = head_version(table)
    place = runs_of(version)[1][0]
    path = to_path(place.path)
    data = bytearray(path.read_bytes())
    data[place.offset + 9] ^= 1
    path.write_bytes(data)
    faults = check_integrity(RunContext(table, STORAGE), version.bound).faults
    assert [fault.partition(" at ")[0] for fault in faults] == ["shard 1"]
    assert "do not have the sha256 of the routing blob" in faults[0]
    check_shard(version.shards[0], STORAGE)
    with pytest.raises(ChecksumError):
        check_shard(version.shards[1], STORAGE)


def test_a_version_names_no_pack_that_it_does_not_use(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that were to last are written again where they are short, and their pack was named all the same."""
    definition = replace(DEFINITION, max_deltas=0)
    monkeypatch.setattr(vector_runs, "MIN_BYTES", 1 << 20)
    for first in (600, 620):
        table.append(make_rows(first, first + 20))
        index_head(table, definition)
        version = head_version(table)
        named = {pack.path for pack in version.bound.packs}
        assert named == {place.path for shard in version.shards for place in (shard.blob, *placement_of(shard.runs))}
        require_right(table, definition)


def placement_of(runs: Iterable[StoredRun]) -> list[ObjectRange]:
    return [run.location for run in runs]


def test_a_retry_takes_no_shard_of_other_addresses(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The addresses of rows whose vectors stay where they lie are a part of what a shard is recorded under."""
    shard_tasks: list[ShardTask] = []
    make = stages.make_shards
    monkeypatch.setattr(
        refresh, "make_shards", lambda context, tasks, rows: shard_tasks.extend(tasks) or make(context, tasks, rows)
    )
    definition = replace(DEFINITION, max_deltas=1, delta_share=0.1)
    for first in (600, 650):
        table.append(make_rows(first, first + 50))
        index_head(table, definition)
    task = next(task for task in shard_tasks if task.passed)
    no_rows = VectorRows(
        np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, np.uint64), np.empty((0, 0), np.float32)
    )
    names = set()
    for position in (3, 4):
        passed = replace(no_rows, positions=np.array([position]))
        inputs = shard_task._inputs(replace(task, base=None), no_rows, [passed] * len(task.passed))
        names.add(markers.name_of("shard", inputs))
    assert len(names) == 2
