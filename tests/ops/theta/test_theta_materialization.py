import io
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.types import LongType, StringType

from icepuffin.ann_kernels.sketches.theta_estimates import estimate
from icepuffin.ops.binding.bound_versions import TagTakenError, sketch_versions
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.binding.statistics import StatisticsPart, find_statistics
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.table.blob_kind import LASTING_MS, SIDE_TAG_AGE_MS, SKETCHES_TAG
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import UnknownSnapshotError, data_snapshots
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta import publication as publish_module
from icepuffin.ops.theta.errors import UnsketchableColumnError
from icepuffin.ops.theta.file_sketches import BUDGET_BYTES
from icepuffin.ops.theta.ndv import outdated_statistics, read_ndv
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaOutcome
from icepuffin.puffin import BytesSource, PuffinReader, PuffinWriter
from icepuffin.puffin.blobs.theta_blob import decode
from icepuffin.puffin.types import BlobType
from tests.ops.theta import foreign
from tests.ops.theta.conftest import SCHEMA, STORAGE, ThreadlessRunner, append, current, named, rows

CREATED = {"id", "name", "at", "price", "size"}


def exact(table: Table, snapshot_id: int, columns: set[str]) -> dict[str, int]:
    data = table.scan(snapshot_id=snapshot_id).to_arrow()
    return {c: len(set(data[c].drop_null().to_pylist())) for c in columns}


def materialize(
    table: Table, snapshot_id: int, runner: Any, *, columns: Iterable[str] | None = None, **options: Any
) -> Any:
    run = RunContext(table, STORAGE, runner)
    return count_theta_sketches(run, snapshot_id, requested=named(columns), **options).publish()


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def blobs_of(table: Table, snapshot_id: int) -> Mapping[int, Any]:
    entry = find_statistics(table.refresh(), snapshot_id)
    assert entry is not None
    reader = PuffinReader(BytesSource(Path(local(entry.statistics_path)).read_bytes()))
    return {b.fields[0]: decode(reader.read_blob(b)) for b in reader.footer.of_type(BlobType.THETA)}


def test_files_that_lack_the_same_sketches_share_the_list_of_their_columns(
    table: Table, runner: ThreadlessRunner
) -> None:
    append(table, 0, 100)
    count_theta_sketches(RunContext(table, STORAGE, runner), append(table, 100, 200)).publish()
    lists = [file_part.statistics for task in runner.tasks for file_part in task.file_parts]
    assert len(lists) == 2
    assert lists[0] is lists[1], "of 200 columns and 100,000 files each of its own takes gigabytes"


def test_sketches_of_an_older_snapshot_have_a_tag_of_their_own_that_ages(
    table: Table, runner: ThreadlessRunner
) -> None:
    """Those of the newest keep the main tag, for good."""
    first = append(table, 0, 100)
    newest = append(table, 100, 200)
    for snapshot, columns in ((newest, ["id"]), (first, None), (newest, ["id", "name"])):
        count_theta_sketches(RunContext(table, STORAGE, runner), snapshot, requested=named(columns)).publish()
    ages = {name: ref.max_ref_age_ms for name, ref in table.refresh().metadata.refs.items() if name != "main"}
    assert ages == {SKETCHES_TAG: LASTING_MS, f"{SKETCHES_TAG}-{first}": SIDE_TAG_AGE_MS}


def test_the_tag_of_a_version_whose_entry_was_removed_goes_to_the_next_one(
    table: Table, runner: ThreadlessRunner
) -> None:
    """Trino's `drop_extended_stats` removes the entries of all snapshots."""
    materialize(table, append(table, 0, 100), runner)
    for entry in table.refresh().metadata.statistics:
        with table.update_statistics() as update:
            update.remove_statistics(entry.snapshot_id)
    newest = append(table, 100, 200)
    assert not materialize(table, newest, runner).note
    (version,) = sketch_versions(table.refresh())
    assert (version.base_snapshot_id, version.tags) == (newest, (SKETCHES_TAG,))


def test_a_run_that_finds_its_sketches_in_place_makes_their_tag_last(table: Table, runner: ThreadlessRunner) -> None:
    """As that of an index: any engine's expiry may drop a tag without an age."""
    snapshot = append(table, 0, 100)
    materialize(table, snapshot, runner)
    derived = table.refresh().refs()[SKETCHES_TAG].snapshot_id
    bare = SetSnapshotRefUpdate(ref_name=SKETCHES_TAG, type=SnapshotRefType.TAG, snapshot_id=derived)
    table.catalog.commit_table(table, (), (bare,))
    assert table.refresh().refs()[SKETCHES_TAG].max_ref_age_ms is None
    assert materialize(table, snapshot, runner).outcome is ThetaOutcome.CURRENT
    assert table.refresh().refs()[SKETCHES_TAG].max_ref_age_ms == LASTING_MS


def test_the_first_sketches_are_of_the_creation_types_and_count_exactly(table: Table, runner: ThreadlessRunner) -> None:
    append(table, 0, 300)
    snapshot = append(table, 200, 900)
    begun = time.perf_counter()
    report = materialize(table, snapshot, runner)
    assert 0 < report.seconds < time.perf_counter() - begun + 0.001
    assert report.outcome is ThetaOutcome.WRITTEN
    assert report.ndv == exact(table, snapshot, CREATED)
    assert report.fresh
    assert (report.files_sketched, report.files_reused) == (2, 0)
    assert report.bytes_written > 0
    assert report.table == "db.t"
    assert not report.note


def test_the_entry_is_what_the_standard_requires(table: Table, runner: ThreadlessRunner) -> None:
    snapshot = append(table, 0, 100)
    report = materialize(table, snapshot, runner)
    entry = find_statistics(table.refresh(), snapshot)
    assert entry is not None
    path = local(entry.statistics_path)
    assert path.name.startswith(f"{snapshot}-")
    assert path.suffix == ".stats"
    assert path.parent.name == "metadata"
    assert entry.file_size_in_bytes == path.stat().st_size
    reader = PuffinReader(BytesSource(Path(path).read_bytes()))
    assert reader.footer.properties["created-by"].startswith("icepuffin version ")
    assert [b.compression_codec for b in reader.footer.blobs] == ["zstd"] * 5
    for listed, stored in zip(entry.blob_metadata, reader.footer.blobs, strict=True):
        assert listed.type == BlobType.THETA
        assert listed.snapshot_id == stored.snapshot_id == snapshot
        assert listed.sequence_number == stored.sequence_number == 1
        assert tuple(listed.fields) == stored.fields
        assert listed.properties == stored.properties
        assert listed.properties is not None
        ndv = report.ndv[table.schema().find_column_name(listed.fields[0]) or ""]
        assert listed.properties["ndv"] == str(ndv), "Java's Long.parseLong takes neither spaces nor a point"


def test_an_increment_reads_only_the_added_file(table: Table, runner: ThreadlessRunner) -> None:
    materialize(table, append(table, 0, 300), runner)
    second = ThreadlessRunner()
    snapshot = append(table, 250, 500)
    report = materialize(table, snapshot, second)
    assert (report.files_sketched, report.files_reused) == (1, 1)
    assert len(second.files) == 1
    assert report.ndv == exact(table, snapshot, CREATED)


def test_a_second_run_writes_nothing(table: Table, runner: ThreadlessRunner) -> None:
    snapshot = append(table, 0, 300)
    first = materialize(table, snapshot, runner)
    before = table.refresh().metadata_location
    files = sorted(local(table.location()).rglob("*"))
    again = materialize(table, snapshot, ThreadlessRunner())
    assert again.outcome is ThetaOutcome.CURRENT
    assert (again.files_sketched, again.bytes_written) == (0, 0)
    assert (again.ndv, again.statistics_path, again.fresh) == (first.ndv, first.statistics_path, True)
    assert table.refresh().metadata_location == before
    assert sorted(local(table.location()).rglob("*")) == files


def test_damaged_sketches_are_made_anew_where_that_is_to_be_verified(table: Table, runner: ThreadlessRunner) -> None:
    snapshot = append(table, 0, 300)
    first = materialize(table, snapshot, runner)
    path = local(first.statistics_path or "")
    data = bytearray(path.read_bytes())
    data[20:50] = bytes(byte ^ 255 for byte in data[20:50])
    path.write_bytes(data)
    assert materialize(table, snapshot, runner).outcome is ThetaOutcome.CURRENT, "nothing is read"
    mended = materialize(table, snapshot, runner, verify=True)
    assert (mended.outcome, mended.ndv) == (ThetaOutcome.WRITTEN, first.ndv)
    assert f"{first.statistics_path} is damaged: " in mended.note
    again = materialize(table, snapshot, runner, verify=True)
    assert (again.outcome, again.statistics_path) == (ThetaOutcome.CURRENT, mended.statistics_path)
    empty = io.BytesIO()
    PuffinWriter(empty).finish()
    local(mended.statistics_path or "").write_bytes(empty.getvalue())
    lacking = f"{mended.statistics_path} lacks sketches that the table lists"
    assert lacking in materialize(table, snapshot, runner, verify=True).note


def test_sketches_that_the_table_lists_and_the_file_lacks_are_made_anew_where_that_is_to_be_verified(
    table: Table, runner: ThreadlessRunner
) -> None:
    snapshot = append(table, 0, 300)
    one = local(materialize(table, snapshot, runner, columns=["id"]).statistics_path).read_bytes()
    both = materialize(table, snapshot, runner, columns=["id", "name"])
    local(both.statistics_path).write_bytes(one)
    mended = materialize(table, snapshot, runner, columns=["id", "name"], verify=True)
    assert (mended.outcome, mended.ndv) == (ThetaOutcome.WRITTEN, both.ndv)
    assert f"{both.statistics_path} lacks sketches that the table lists" in mended.note


def test_removed_files_are_subtracted_without_reading_anything(table: Table, runner: ThreadlessRunner) -> None:
    append(table, 0, 300)
    materialize(table, append(table, 1_000, 1_300), runner)
    table.delete("id >= 1000")
    snapshot, second = current(table), ThreadlessRunner()
    report = materialize(table, snapshot, second)
    assert report.files_sketched == 0
    assert not second.tasks
    assert report.ndv == exact(table, snapshot, CREATED)
    assert report.ndv["id"] == 300


def test_deleted_rows_do_not_count_and_only_their_file_is_read_again(table: Table, runner: ThreadlessRunner) -> None:
    from examples.demo.row_deletes import append_position_deletes  # noqa: PLC0415

    append(table, 0, 300)
    materialize(table, append(table, 1_000, 1_300), runner)
    path = next(task.file.file_path for task in table.scan(row_filter="id < 300").plan_files())
    append_position_deletes(table, {path: list(range(100))})
    snapshot, second = current(table), ThreadlessRunner()
    report = materialize(table, snapshot, second)
    assert second.files == {path}
    assert (report.files_sketched, report.files_reused) == (1, 1)
    assert report.ndv == exact(table, snapshot, CREATED)
    assert report.ndv["id"] == 500


def test_there_are_no_more_distinct_values_than_rows(table: Table, runner: ThreadlessRunner) -> None:
    snapshot = append(table, 0, 6_000)
    report = materialize(table, snapshot, runner)
    ids = blobs_of(table, snapshot)[1]
    assert estimate(ids.theta, len(ids.hashes)) > 6_000, "planners take the estimate as it is"
    assert report.ndv["id"] == 6_000
    assert read_ndv(table, snapshot).entries["id"].ndv == 6_000


def test_compacted_files_are_counted_anew_and_the_union_stays_exact(table: Table, runner: ThreadlessRunner) -> None:
    append(table, 0, 300)
    materialize(table, append(table, 250, 600), runner)
    table.delete("id >= 500")
    table.refresh().overwrite(table.scan().to_arrow())
    snapshot, second = current(table), ThreadlessRunner()
    report = materialize(table, snapshot, second)
    assert report.ndv == exact(table, snapshot, CREATED)
    assert (report.files_sketched, report.files_reused, report.fresh) == (len(second.files), 0, True)


def test_a_slot_written_between_our_read_and_our_commit_is_merged(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = append(table, 0, 300)
    through, visits = publish_module.StatisticsPart, []

    def part(entry: StatisticsFile, over: str | None) -> StatisticsPart:
        visits.append(over)
        if len(visits) == 1:
            other = table.catalog.load_table("db.t")
            assert materialize(other, snapshot, ThreadlessRunner(), columns=("weight",)).ndv == {"weight": 300}
        return through(entry, over)

    monkeypatch.setattr(publish_module, "StatisticsPart", part)
    report = materialize(table, snapshot, runner)
    assert report.ndv == exact(table, snapshot, CREATED | {"weight"})
    assert report.merged_columns == ("weight",)
    assert len(visits) == 3
    files = {path.name for path in local(table.location()).rglob("*.stats")}
    assert local(report.statistics_path).name in files
    assert len(files) == 2, "the file that was not registered is gone"


def test_a_slot_that_others_keep_writing_is_left_to_them(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[str] = []

    def overtaken(part: StatisticsPart, _: Table) -> bool:
        paths.append(part.entry.statistics_path)
        return False

    monkeypatch.setattr(StatisticsPart, "find", overtaken)
    with pytest.raises(BindingError, match=r"others keep writing the statistics of snapshot \d+; try again later$"):
        materialize(table, append(table, 0, 30), runner)
    assert len(paths) == 5
    assert not any(local(path).exists() for path in paths)


def test_older_snapshots_in_any_order_cost_their_own_files_only(table: Table, runner: ThreadlessRunner) -> None:
    snapshots = [append(table, 100 * i, 100 * i + 150) for i in range(4)]
    table.overwrite(rows(5_000, 5_050))
    snapshots.append(current(table))
    read = {}
    for i in (4, 1, 3, 0, 2):
        each = ThreadlessRunner()
        report = materialize(table, snapshots[i], each)
        assert report.ndv == exact(table, snapshots[i], CREATED)
        read[i] = len(each.files)
    assert read == {4: 1, 1: 2, 3: 2, 0: 0, 2: 0}
    assert current(table) == snapshots[-1]


def test_main_and_its_history_are_untouched(table: Table, runner: ThreadlessRunner) -> None:
    snapshot = append(table, 0, 100)
    materialize(table, snapshot, runner)
    assert current(table) == snapshot
    found = sketch_versions(table)
    assert [(v.base_snapshot_id, v.tags) for v in found] == [(snapshot, (SKETCHES_TAG,))]
    assert len(table.scan().to_arrow()) == 100


def test_floats_are_sketched_only_once_they_have_a_sketch(table: Table, runner: ThreadlessRunner) -> None:
    first = append(table, 0, 100)
    assert "weight" not in materialize(table, first, runner).ndv
    named = materialize(table, first, runner, columns=["id", "weight"])
    assert named.ndv["weight"] == 100
    snapshot = append(table, 100, 150)
    assert materialize(table, snapshot, runner).ndv == exact(table, snapshot, CREATED | {"weight"})


def test_a_column_without_a_sketch_gets_none_on_an_increment(table: Table, runner: ThreadlessRunner) -> None:
    materialize(table, append(table, 0, 100), runner, columns=["id", "name"])
    assert set(materialize(table, append(table, 100, 150), runner).ndv) == {"id", "name"}


@pytest.mark.parametrize("budget", [0, BUDGET_BYTES])
def test_without_names_a_snapshot_keeps_the_columns_that_have_a_sketch_whatever_is_kept_of_files(
    table: Table, runner: ThreadlessRunner, budget: int
) -> None:
    """The choice is that of the next snapshot, too. The sketches of files are a cache, and not what it depends on."""
    snapshot = append(table, 0, 100)
    assert set(materialize(table, snapshot, runner, columns=["id"], budget_bytes=budget).ndv) == {"id"}
    unnamed = materialize(table, snapshot, runner, budget_bytes=budget)
    assert (unnamed.outcome, set(unnamed.ndv)) == (ThetaOutcome.CURRENT, {"id"})
    added = materialize(table, snapshot, runner, columns=["id", "weight"], budget_bytes=budget)
    assert (added.outcome, set(added.ndv)) == (ThetaOutcome.WRITTEN, {"id", "weight"})
    assert set(materialize(table, append(table, 100, 150), runner, budget_bytes=budget).ndv) == {"id", "weight"}


def test_sketches_of_another_engine_are_no_choice_of_columns_for_its_own_snapshot(
    table: Table, runner: ThreadlessRunner
) -> None:
    snapshot = table.snapshot_by_id(append(table, 0, 100))
    assert snapshot is not None
    foreign.stamp(table, snapshot, {1: foreign.sketch(table.scan().to_arrow()["id"], "long")})
    assert set(materialize(table, snapshot.snapshot_id, runner).ndv) == CREATED


def test_a_column_that_was_dropped_is_no_longer_listed(table: Table, runner: ThreadlessRunner) -> None:
    snapshot = append(table, 0, 100)
    materialize(table, snapshot, runner)
    with table.update_schema() as update:
        update.delete_column("size")
    assert outdated_statistics(table.refresh(), snapshot) is not None, "so that the sensor requests a run"
    report = materialize(table, snapshot, runner)
    assert outdated_statistics(table.refresh(), snapshot) is None
    assert report.outcome is ThetaOutcome.WRITTEN
    assert report.files_sketched == 0
    assert set(report.ndv) == CREATED - {"size"}
    assert set(blobs_of(table, snapshot)) == {1, 2, 3, 4}


def test_a_promoted_column_is_counted_anew_as_its_new_type(table: Table, runner: ThreadlessRunner) -> None:
    materialize(table, append(table, 0, 100), runner)
    with table.update_schema() as update:
        update.update_column("size", LongType())
    table.append(rows(90, 140).set_column(5, "size", pa.array([i % 80 for i in range(90, 140)], pa.int64())))
    second = ThreadlessRunner()
    snapshot = current(table)
    report = materialize(table, snapshot, second)
    assert report.ndv == exact(table, snapshot, CREATED)
    assert len(second.files) == 2
    assert {tuple(it.key[0] for it in share.statistics) for share in second.shares} == {
        (6,),
        (1, 2, 3, 4, 6),
    }


def test_a_column_that_was_added_or_renamed_is_followed_by_field_id(table: Table, runner: ThreadlessRunner) -> None:
    materialize(table, append(table, 0, 100), runner)
    with table.update_schema() as update:
        update.rename_column("name", "title")
        update.add_column("note", LongType())
    table.append(pa.table({"id": [7], "title": ["name-3"], "note": [5]}))
    second = ThreadlessRunner()
    report = materialize(table, current(table), second, columns=["title", "note"])
    assert {c: report.ndv[c] for c in ("title", "note")} == {"title": 7, "note": 1}
    assert materialize(table, current(table), second, columns=["title", "note"]).outcome is ThetaOutcome.CURRENT


def test_ndvs_of_a_snapshot_have_the_names_that_columns_had_there(table: Table, runner: ThreadlessRunner) -> None:
    snapshot = append(table, 0, 100)
    assert materialize(table, snapshot, runner, columns=["id", "name"]).ndv == {"id": 100, "name": 7}
    for before, after in (("id", "swapping"), ("name", "id"), ("swapping", "name")):
        with table.update_schema() as update:
            update.rename_column(before, after)
    table.refresh()
    then, now = read_ndv(table, snapshot).entries, read_ndv(table).entries
    assert {name: entry.ndv for name, entry in then.items()} == {"id": 100, "name": 7}
    assert {name: entry.ndv for name, entry in now.items()} == {"id": 7, "name": 100}
    with table.update_schema() as update:
        update.delete_column("name")
    assert read_ndv(table.refresh(), snapshot).entries["id"].ndv == 100
    assert read_ndv(table).entries.keys() == {"id"}


@pytest.mark.parametrize("columns", [("kind",), ("kind", "id"), None])
def test_a_column_that_files_lack_counts_its_default(
    table: Table, runner: ThreadlessRunner, columns: tuple[str, ...] | None
) -> None:
    append(table, 0, 50)
    with table.update_schema() as change:
        change.add_column("kind", StringType(), default_value="web")
        change.add_column("plain", StringType())
    more = rows(50, 60).append_column("kind", pa.array(["app"] * 10)).append_column("plain", pa.nulls(10, pa.string()))
    table.refresh().append(more)
    report = materialize(table, current(table), runner, columns=columns)
    assert report.ndv["kind"] == 2
    assert report.ndv.get("plain", 0) == 0


@pytest.mark.parametrize("columns", [("name",), ("name", "id")])
def test_a_column_that_is_a_partition_and_in_no_file_counts_the_partitions(
    table: Table, runner: ThreadlessRunner, columns: tuple[str, ...]
) -> None:
    with table.update_spec() as change:
        change.add_identity("name")
    snapshot = append(table.refresh(), 0, 100)
    for file in live_files(table, snapshot).files:
        rows = pq.ParquetFile(local(file.path)).read()  # `read_table` would take the partition from the path
        pq.write_table(rows.drop_columns(["name"]), local(file.path))
    report = materialize(table, snapshot, runner, columns=columns)
    assert report.ndv["name"] == exact(table, snapshot, {"name"})["name"] == 7


@pytest.mark.parametrize("value", ["0", "False", " off ", "NO"])
def test_bodos_switch_turns_it_off(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("BODO_ENABLE_THETA_SKETCHES", value)
    snapshot = append(table, 0, 100)
    report = materialize(table, snapshot, runner)
    assert report.outcome is ThetaOutcome.OFF
    assert (report.ndv, report.statistics_path, report.fresh) == ({}, None, False)
    assert not table.refresh().metadata.statistics
    assert not runner.tasks
    monkeypatch.setenv("BODO_ENABLE_THETA_SKETCHES", "1")
    assert materialize(table, snapshot, runner).ndv


def test_a_table_without_rows_has_no_distinct_values(table: Table, runner: ThreadlessRunner) -> None:
    append(table, 0, 10)
    table.delete("id >= 0")
    report = materialize(table, current(table), runner)
    assert report.ndv == dict.fromkeys(CREATED, 0)
    assert report.fresh


def test_a_table_without_columns_to_sketch_is_left_alone(catalog: SqlCatalog, runner: ThreadlessRunner) -> None:
    floats = catalog.create_table("db.floats", pa.schema([("x", pa.float64())]))
    floats.append(pa.table({"x": [1.0, 2.0]}))
    report = materialize(floats, current(floats), runner)
    assert report.outcome is ThetaOutcome.NO_COLUMNS
    assert report.ndv == {}


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"no Puffin file")])
def test_lost_kept_sketches_cost_a_recount_and_are_reported(
    table: Table, runner: ThreadlessRunner, lose: Callable[[Path], object]
) -> None:
    report = materialize(table, append(table, 0, 100), runner)
    lose(local(report.file_sketches_path))
    lose(local(report.statistics_path))
    snapshot = append(table, 100, 150)
    again = materialize(table, snapshot, runner)
    assert again.ndv == exact(table, snapshot, CREATED)
    assert again.files_sketched == 2
    assert "are lost" in again.note


def test_broken_kept_sketches_cost_a_recount_and_are_reported(table: Table, runner: ThreadlessRunner) -> None:
    report = materialize(table, append(table, 0, 100), runner)
    local(report.statistics_path).unlink()
    kept = bytearray(local(report.file_sketches_path).read_bytes())
    kept[10:200] = bytes(190)
    local(report.file_sketches_path).write_bytes(kept)
    snapshot = append(table, 100, 150)
    again = materialize(table, snapshot, runner)
    assert (again.ndv, again.files_sketched) == (exact(table, snapshot, CREATED), 2)
    assert "are broken" in again.note
    assert again.file_sketches_path is not None, "few as they are: the version before has them broken"


def test_a_name_mapping_that_cannot_be_read_is_not_missed_where_files_have_ids(
    table: Table, runner: ThreadlessRunner
) -> None:
    snapshot = append(table, 0, 100)
    expected = exact(table, snapshot, CREATED)
    table.transaction().set_properties({"schema.name-mapping.default": "{"}).commit_transaction()
    assert materialize(table.refresh(), snapshot, runner).ndv == expected


def test_a_derived_snapshot_is_refused_by_name(table: Table, runner: ThreadlessRunner) -> None:
    snapshot = append(table, 0, 100)
    materialize(table, snapshot, runner)
    derived = table.refresh().refs()[SKETCHES_TAG].snapshot_id
    other = f"is icepuffin's own, for data snapshot {snapshot}; name that one, or another if it has expired"
    with pytest.raises(UnknownSnapshotError, match=other):
        materialize(table, derived, runner)


@pytest.mark.parametrize("name", ["{}", "{}-side", "{}-{snapshot}"])
def test_a_ref_of_the_owners_with_the_name_of_a_tag_of_ours_is_refused_before_any_work(
    table: Table, runner: ThreadlessRunner, name: str
) -> None:
    snapshot = append(table, 0, 100)
    ref = name.format(SKETCHES_TAG, snapshot=snapshot)
    table.manage_snapshots().create_branch(snapshot, ref).commit()
    with pytest.raises(TagTakenError, match=f"has a branch '{ref}' that icepuffin did not make"):
        materialize(table, snapshot, runner)
    assert not runner.tasks


def test_a_column_that_cannot_be_sketched_is_named_with_its_table_and_setting(
    table: Table, runner: ThreadlessRunner
) -> None:
    snapshot = append(table, 0, 10)
    with pytest.raises(UnsketchableColumnError, match=rf"^{'.'.join(table.name())}, statistics\.ndv names absent"):
        materialize(table, snapshot, runner, columns=["absent"])
    assert not runner.tasks


def test_a_lost_statistics_file_is_written_again(table: Table, runner: ThreadlessRunner) -> None:
    snapshot = append(table, 0, 100)
    first = materialize(table, snapshot, runner)
    local(first.statistics_path).unlink()
    again = materialize(table, snapshot, ThreadlessRunner())
    assert (again.outcome, again.files_sketched, again.ndv) == (ThetaOutcome.WRITTEN, 0, first.ndv)
    assert "could not be read" in again.note


def test_over_budget_the_largest_files_are_kept(table: Table, runner: ThreadlessRunner) -> None:
    append(table, 0, 2_000)
    snapshot = append(table, 3_000, 3_010)
    report = materialize(table, snapshot, runner, budget_bytes=41_200)
    assert "the sketches of 1 file are over the budget" in report.note
    table.append(rows(4_000, 4_010))
    table.delete("id >= 3000 and id < 3010")
    second = ThreadlessRunner()
    assert materialize(table, current(table), second).ndv["id"] == 2_010
    assert len(second.files) == 1


def test_a_file_of_many_row_groups_is_cut_into_tasks(
    table: Table, runner: ThreadlessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icepuffin.ops.theta.snapshot_sketches.PART_ROWS", 1_000)
    with table.transaction() as change:
        change.set_properties({"write.parquet.row-group-limit": "500"})
    snapshot = append(table, 0, 4_200)
    shares: list[tuple[str, int, int]] = []
    run = RunContext(table, STORAGE, runner, progress=lambda *share: shares.append(share))
    report = count_theta_sketches(run, snapshot).publish()
    assert [(s.part, s.parts) for s in runner.shares] == [(i, 5) for i in range(5)]
    assert shares == [("sketch", 1, 1)]
    assert report.files_sketched == 1
    assert report.ndv["id"] == pytest.approx(4_200, rel=0.05)
    assert report.ndv["name"] == 7


def test_the_storage_settings_reach_the_tasks(table: Table, runner: ThreadlessRunner) -> None:
    config = StorageConfig({"s3.region": "x"})
    count_theta_sketches(RunContext(table, config, runner), append(table, 0, 10)).publish()
    assert [task.storage for task in runner.tasks] == [config]


def test_ndvs_are_fresh_only_for_the_snapshot_that_they_were_counted_for(
    table: Table, runner: ThreadlessRunner
) -> None:
    before = append(table, 0, 50)
    assert read_ndv(table, before).entries == {}
    first = append(table, 50, 100)
    materialize(table, first, runner)
    now = read_ndv(table, first)
    assert now.fresh
    assert {c: e.ndv for c, e in now.entries.items()} == exact(table, first, CREATED)
    table.delete("id < 10")
    later = read_ndv(table, current(table))
    assert not later.fresh
    assert not later.entries["id"].fresh
    assert f"counted for snapshot {first}" in later.entries["id"].why
    assert later.entries["id"].ndv == 100


def test_a_broken_name_mapping_keeps_no_file_with_field_ids_from_being_counted(
    table: Table, runner: ThreadlessRunner
) -> None:
    snapshot = append(table, 0, 100)
    with table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": "[{"})
    assert materialize(table.refresh(), snapshot, runner).ndv["id"] == 100


def test_names_that_a_column_is_mapped_to_since_are_counted(tmp_path: Path) -> None:
    """A file without field ids has its values where the mapping says: file sketches and seals are of a mapping."""
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", schema=pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    imported = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": range(50), "b": range(50)}), imported)
    table.add_files([str(imported)])
    size = imported.stat().st_size
    pq.write_table(pa.table({"a": range(50), "c": range(50)}), imported)  # as its own writer called it
    assert imported.stat().st_size == size

    def counted(names: str | None, b: str = ', {"field-id": 2, "names": %s}') -> dict[str, int]:
        with table.transaction() as transaction:
            if names is None:
                transaction.remove_properties("schema.name-mapping.default")
            else:
                mapping = '[{"field-id": 1, "names": ["a"]}' + (b % names if b else "") + "]"
                transaction.set_properties({"schema.name-mapping.default": mapping})
        snapshot = table.refresh().current_snapshot()
        assert snapshot is not None
        count_theta_sketches(RunContext(table, STORAGE, ThreadlessRunner()), snapshot.snapshot_id).publish()
        return {name: entry.ndv for name, entry in read_ndv(table.refresh(), snapshot.snapshot_id).entries.items()}

    assert counted('["b"]') == {"a": 50, "b": 0}
    assert counted('["b", "c"]') == {"a": 50, "b": 50}
    table.append(pa.table({"a": [100], "b": [100]}))
    assert counted('["b", "c"]') == {"a": 51, "b": 51}
    pq.write_table(pa.table({"a": range(50), "b": range(50)}), imported)
    assert counted(None) == {"a": 51, "b": 51}, "by the schema's names"
    assert counted("", b="") == {"a": 51, "b": 1}, "the mapping leaves it out"
    table.append(pa.table({"a": [101], "b": [101]}))
    assert counted(None) == {"a": 52, "b": 52}


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_file_that_is_added_again_under_its_name_is_counted_anew(
    catalog: SqlCatalog, tmp_path: Path, version: str
) -> None:
    """An import is deleted and its object written anew: neither file sketches of its name nor an ancestor's serve."""
    table = catalog.create_table("db.imports", SCHEMA, properties={"format-version": version})
    imported = tmp_path / "night.parquet"
    pq.write_table(rows(0, 100), imported)
    table.add_files([str(imported)])
    kept = materialize(table, append(table, 1_000, 1_300), ThreadlessRunner())
    table.delete("id < 1000")
    pq.write_table(rows(500, 560), imported)
    table.add_files([str(imported)])
    snapshot, second = current(table), ThreadlessRunner()
    report = materialize(table, snapshot, second)
    assert report.ndv == exact(table, snapshot, CREATED)
    assert second.files == {f"{imported}"}
    local(kept.file_sketches_path).unlink()
    local(report.file_sketches_path).unlink()
    imported.unlink()
    pq.write_table(rows(700, 720), imported)
    table.delete("id < 1000")
    table.add_files([str(imported)])
    assert materialize(table, current(table), second).ndv == exact(table, current(table), CREATED)


@pytest.mark.parametrize("upgraded", [False, True])
def test_in_format_v1_it_is_counted_anew_where_the_commit_that_added_it_has_expired(
    catalog: SqlCatalog, tmp_path: Path, upgraded: bool
) -> None:
    table = catalog.create_table("db.imports", SCHEMA, properties={"format-version": "1"})
    imported = tmp_path / "night.parquet"
    pq.write_table(rows(0, 100), imported)
    table.add_files([str(imported)])
    materialize(table, append(table, 1_000, 1_300), ThreadlessRunner())
    table.delete("id < 1000")
    pq.write_table(pa.concat_tables([rows(500, 550), rows(500, 550)]), imported)
    table.add_files([str(imported)])
    old = [item.snapshot_id for item in data_snapshots(table.refresh())]
    if upgraded:
        with table.transaction() as change:
            change.upgrade_table_version(2)
    snapshot, second = append(table, 2_000, 2_100), ThreadlessRunner()
    table.maintenance.expire_snapshots().by_ids(old).commit()
    assert materialize(table.refresh(), snapshot, second).ndv == exact(table, snapshot, CREATED)
    assert len(second.files) == 2
    third = append(table.refresh(), 3_000, 3_100)
    assert materialize(table, third, (last := ThreadlessRunner())).ndv == exact(table, third, CREATED)
    assert len(last.files) == 1, "what is kept serves from then on"


def test_columns_that_only_a_later_snapshot_has_sketches_of_do_not_count_as_sketched_before(table: Table) -> None:
    older = append(table, 0, 100)
    materialize(table, append(table, 100, 200), ThreadlessRunner(), columns=["weight"])
    assert set(materialize(table, older, ThreadlessRunner()).ndv) == CREATED
