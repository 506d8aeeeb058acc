"""A compaction as format v3 records it. PyIceberg writes no v3, so the row ids that Spark would write are added here;
tests/interop/test_lineage.py has Spark's own.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions, tagged_version
from icepuffin.ops.binding.measurements import Measurement
from icepuffin.ops.index import moved_rows, refresh
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning import changes, dead_nodes, version_plan
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions.version_reader import balls_by_slot, open_version
from icepuffin.ops.model import LiveFiles
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, content, index_head
from tests.ops.index.test_refresh_retries import DriverLostError, DyingRunner, current_versions, refreshed, undo

ROWS, ROWS_PER_FILE = 480, 120


class PackedRunner(LocalRunner):
    """Pickles tasks and results, as a runner in other processes does."""

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        results = super().run(function, pickle.loads(pickle.dumps(tasks)), label=label)  # noqa: S301  our own bytes
        return pickle.loads(pickle.dumps(results))  # noqa: S301


@pytest.fixture
def table(table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch) -> Table:
    """Compacted since it was indexed. Rows have their own id as row id, and lay in files of the commits 1 to 4."""
    new_table = table_factory()
    for start in range(0, ROWS, ROWS_PER_FILE):
        new_table.append(make_rows(start, start + ROWS_PER_FILE))
    index_head(new_table)
    old = live_files(new_table.refresh(), new_table.metadata.current_snapshot_id or 0).files
    new_table.overwrite(new_table.scan().to_arrow())
    first = {file.path: (file.sequence_number - 1) * ROWS_PER_FILE for file in old}
    (new,) = live_files(new_table.refresh(), new_table.metadata.current_snapshot_id or 0).files
    path = new.path.removeprefix("file://")
    rows = pq.read_table(path)
    ids = rows["id"].to_numpy()
    for name, field_id, values in (
        ("_row_id", "2147483540", ids),
        ("_last_updated_sequence_number", "2147483539", ids // ROWS_PER_FILE + 1),
    ):
        rows = rows.append_column(pa.field(name, pa.int64(), metadata={"PARQUET:field_id": field_id}), pa.array(values))
    pq.write_table(rows, path)

    def with_ids(table: Table, snapshot_id: int) -> LiveFiles:
        live = live_files(table, snapshot_id)
        files = [replace(f, first_row_id=first.get(f.path, ROWS), has_row_ids=f.path == new.path) for f in live.files]
        return replace(live, files=tuple(files))

    monkeypatch.setattr(version_plan, "live_files", with_ids)
    monkeypatch.setattr(changes, "live_files", with_ids)
    monkeypatch.setattr(dead_nodes, "NODES_AT_ONCE", 0)
    monkeypatch.setattr(refresh, "SMALL_WORK", 0)
    return new_table


def addresses(table: Table) -> list[Any]:
    """(slots, positions) of all nodes of the newest version."""
    opened = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    found = [open_shard(shard, STORAGE).read_locations() for shard in opened.shards]
    return [(slots.tolist(), positions.tolist()) for slots, positions in found]


def by_hashes(table: Table, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    before = current_versions(table)
    with monkeypatch.context() as patched:
        patched.setattr(moved_rows, "_by_lineage", lambda search: None)
        refreshed(table, LocalRunner(1))
    found = addresses(table)
    undo(table, before)
    return found


@pytest.mark.parametrize("at_once", [1 << 25, ROWS // 5])
def test_lineage_finds_what_hashes_find(table: Table, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = by_hashes(table, monkeypatch)
    monkeypatch.setattr(moved_rows, "HASHES_AT_ONCE", at_once)
    monkeypatch.setattr(moved_rows, "hash_files", None)
    report = refreshed(table, PackedRunner(2))
    assert (report.remapped, report.inserted) == (ROWS, 0)
    assert addresses(table) == expected
    assert answer_with_recall(table)[1] >= 0.96


def test_rows_that_came_beside_a_compaction_are_read_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(make_rows(ROWS, ROWS + 40))
    monkeypatch.setattr(moved_rows, "hash_files", None)
    report = refreshed(table, PackedRunner(2))
    assert (report.remapped, report.inserted, report.tombstones) == (ROWS, 40, 0)
    version = index_versions(table.refresh(), "e")[-1]
    measurement = Measurement.parse(version.measurement) or pytest.fail("none")
    assert {"read": 40, "followed": ROWS + 40}.items() <= measurement.amounts.items()
    assert "hashed" not in measurement.amounts
    opened = open_version(version, STORAGE)
    assert sorted(file.live_rows for file in opened.routing.files if file.present) == [40, ROWS]
    assert all(balls_by_slot(opened, STORAGE).values())
    assert answer_with_recall(table)[1] >= 0.96


def test_row_ids_of_removed_files_come_from_the_index_snapshot(table: Table) -> None:
    opened = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    live = version_plan.live_files(table, table.metadata.current_snapshot_id or 0)
    before = changes.live_files(table, opened.bound.index_snapshot_id).files
    opened = replace(opened, bound=replace(opened.bound, base_snapshot_id=1))  # as where it has expired
    result = changes.find_changes(RunContext(table, STORAGE), opened, live)
    assert {file.path for _, file in result.lineage_files} == {file.path for file in before}
    later = live.files[0].file_sequence_number
    again = replace(before[0], file_sequence_number=later, sequence_number=later)
    result = changes.find_changes(RunContext(table, STORAGE), opened, replace(live, files=(*live.files, again)))
    assert {file.path for file in result.added} == {live.files[0].path, again.path}
    assert {file.path for _, file in result.lineage_files} == {file.path for file in before[1:]}, (
        "it has other rows now"
    )


@pytest.mark.parametrize("after_all", [False, True])
@pytest.mark.parametrize("stage", ["read_lineage", "match_lineage"])
def test_a_refresh_that_is_lost_ends_equal_after_a_retry(table: Table, stage: str, after_all: bool) -> None:
    before = current_versions(table)
    expected = content(refreshed(table, LocalRunner(1)))
    undo(table, before)
    with pytest.raises(DriverLostError):
        refreshed(table, DyingRunner(stage, after_all=after_all))
    assert content(refreshed(table, LocalRunner(1))) == expected


def test_a_vector_that_an_engine_changed_under_its_old_lineage_is_found_and_mended(table: Table) -> None:
    """Far behind the rows of each file that a refresh samples."""
    head = table.refresh().metadata.current_snapshot_id or 0
    (file,) = live_files(table, head).files
    path = file.path.removeprefix("file://")
    rows = pq.read_table(path)
    vectors = rows["embedding"].to_pylist()
    vectors[-1] = [value + 100 for value in vectors[-1]]
    place = rows.schema.get_field_index("embedding")
    pq.write_table(
        rows.set_column(place, rows.schema.field(place), pa.array(vectors, rows.schema.field(place).type)), path
    )
    assert refreshed(table, LocalRunner(1)).remapped == ROWS
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    (fault,) = check_integrity(RunContext(table, STORAGE), version).faults
    assert file.path.rpartition("/")[2] in fault
    reports: list[tuple[str, int, int]] = []
    run = RunContext(table, STORAGE, LocalRunner(1), progress=lambda *step: reports.append(step))
    report = materialize_index(run, DEFINITION, head, verify=True)
    assert (report.remapped, report.inserted) == (ROWS - 1, 1)
    assert [step for step in reports if step[0] == "verify"]
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    found = check_integrity(RunContext(table, STORAGE), version)
    assert (found.faults, found.rows) == ((), ROWS)
    assert answer_with_recall(table)[1] >= 0.96


def test_moved_rows_of_a_file_without_a_ball_have_none_in_the_new_file(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = moved_rows.balls_by_slot
    monkeypatch.setattr(moved_rows, "balls_by_slot", lambda *of: {**real(*of), 2: []})
    assert refreshed(table, LocalRunner(1)).remapped == ROWS
    opened = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    assert list(balls_by_slot(opened, STORAGE).values()) == [[]]
    assert check_integrity(RunContext(table, STORAGE), opened.bound).faults == ()


def test_a_file_of_which_some_rows_have_no_ball_is_never_pruned(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other rows, which lineage does not find, are read and get balls of their own: around one cluster."""
    (file,) = live_files(table, table.refresh().metadata.current_snapshot_id or 0).files
    path = file.path.removeprefix("file://")
    rows = pq.read_table(path)
    place = rows.schema.get_field_index("_row_id")
    row_ids = [number if number % 8 else 10 * ROWS + number for number in rows["_row_id"].to_pylist()]
    pq.write_table(rows.set_column(place, rows.schema.field(place), pa.array(row_ids)), path)
    real = moved_rows.balls_by_slot
    monkeypatch.setattr(moved_rows, "balls_by_slot", lambda *of: {**real(*of), 2: []})
    assert refreshed(table, LocalRunner(1)).remapped == ROWS
    (balls,) = balls_by_slot(open_version(index_versions(table.refresh(), "e")[-1], STORAGE), STORAGE).values()
    assert [radius < 5 for _, radius in balls] == [False, True], "one without end, and that around the cluster"
    reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
    for number in range(0, ROWS, 60):
        vector = make_rows(number, number + 1)["embedding"][0].as_py()
        assert [row["id"] for row in reader.within(vector, 1e-6, columns=["id"])] == [number]
