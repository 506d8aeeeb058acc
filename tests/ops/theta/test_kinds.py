"""Statistics of every kind: those of a snapshot's live rows, at every snapshot, whatever happens to the table."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icepuffin.ann_kernels.sketches.kll import KllSketch
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.tasks.sketches.images import encode
from icepuffin.ops.tasks.sketches.statistic import Kind, kind_of
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta import sketch_packs
from icepuffin.ops.theta.build_id import OTHERS
from icepuffin.ops.theta.errors import UnsketchableColumnError
from icepuffin.ops.theta.file_sketches import BUDGET_BYTES
from icepuffin.ops.theta.requested_statistics import KEPT_UP, RequestedStatistics
from icepuffin.ops.theta.statistics_slot import listed_thetas
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaOutcome, ThetaReport
from icepuffin.puffin import PuffinReader, codec
from icepuffin.puffin.blobs import sketch_directory_blob, theta_blob
from tests.ops.theta.brute_force import all_kinds, possible, require_exact
from tests.ops.theta.conftest import SCHEMA as TABLE
from tests.ops.theta.conftest import STORAGE, ThreadlessRunner, append, current
from tests.ops.theta.test_histories import SCHEMA, History
from tests.ops.theta.test_sketch_budget import FourAtOnceRunner
from tests.selection import IS_NIGHT


def count(table: Table, requested: RequestedStatistics = KEPT_UP, **options: Any) -> ThetaReport:
    run = RunContext(table.refresh(), STORAGE, options.pop("runner", None) or ThreadlessRunner())
    return count_theta_sketches(
        run, options.pop("snapshot", None) or current(table), requested=requested, **options
    ).publish()


def files_of(table: Table) -> set[Path]:
    return {path for path in Path(table.location().removeprefix("file://")).rglob("*") if path.is_file()}


def blob_types(table: Table) -> set[str]:
    entry = find_statistics(table.refresh(), current(table))
    assert entry is not None
    return {blob.type for blob in PuffinReader(LocalStorage().source(entry.statistics_path)).footer.blobs}


def markers(table: Table) -> list[str]:
    listed = listed_thetas(find_statistics(table.refresh(), current(table))).values()
    return [(blob.properties or {})[OTHERS] for blob in listed if OTHERS in (blob.properties or {})]


class Changes(History):
    """Columns are dropped, too."""

    def change(self) -> None:
        if self.random.random() < 0.12:
            ids = self.table.schema().field_ids
            late = [self.table.schema().find_column_name(i) for i in ids if i == 8 or i > len(SCHEMA.fields)]
            if late:
                with self.table.update_schema() as change:
                    change.delete_column(self.random.choice(late))
        super().change()


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("seed", range(6 if IS_NIGHT else 2))
def test_every_kind_follows_every_change(catalog: SqlCatalog, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch_packs, "PACK_BYTES", (sketch_packs.PACK_BYTES, 500)[seed % 2])
    monkeypatch.setattr(sketch_packs, "FEW_FILES", (sketch_packs.FEW_FILES, 0)[seed // 2 % 2])
    table = catalog.create_table("db.k", SCHEMA, properties={"format-version": "2"})
    history, random = Changes(table, seed), Random(seed)
    for step in range(10):
        history.change()
        table.refresh()
        snapshot = current(table) if step % 3 else random.choice(history.snapshots())
        names = [field.name for field in table.schema().fields]
        joint = tuple(tuple(random.sample(names, random.choice([2, 3]))) for _ in range(2))
        requested = all_kinds(*joint, ndv=names if step % 2 else None)
        budget = random.choice([0, 2_000, BUDGET_BYTES])
        assert count(table, requested, snapshot=snapshot, budget_bytes=budget).outcome != ThetaOutcome.CURRENT
        read = require_exact(table, snapshot)
        for kind in (Kind.HISTOGRAM, Kind.SIZE, Kind.FREQUENT):
            assert {ids for of, ids in read if of is kind} == possible(table, snapshot, kind), kind
        then = [tuple(sorted(table.schema().find_field(name).field_id for name in names)) for names in joint]
        there = {field_id for (field_id,) in possible(table, snapshot, Kind.JOINT)}
        assert {ids for of, ids in read if of is Kind.JOINT} == {ids for ids in then if there.issuperset(ids)}
    for snapshot in history.snapshots():
        count(table, snapshot=snapshot)
        require_exact(table, snapshot)


def test_a_second_run_writes_nothing_and_the_kinds_are_kept_up_and_switched_off(table: Table) -> None:
    append(table, 0, 300)
    requested = all_kinds(("name", "size"))
    assert count(table, requested).outcome == ThetaOutcome.WRITTEN
    first, files = require_exact(table, current(table)), files_of(table)
    assert {kind for kind, _ in first} == {*Kind}
    for again in (requested, KEPT_UP):
        runner = ThreadlessRunner()
        assert (count(table, again, runner=runner).outcome, runner.tasks) == (ThetaOutcome.CURRENT, [])
    assert files_of(table) == files
    append(table, 250, 400)
    count(table)
    assert require_exact(table, current(table)).keys() == first.keys(), "kept up from the ancestor"
    assert len(markers(table)) == 1
    count(table, RequestedStatistics(None, "*", (), (), ()))
    assert {kind for kind, _ in require_exact(table, current(table))} == {Kind.NDV, Kind.HISTOGRAM}
    off = RequestedStatistics(None, (), (), (), ())
    assert count(table, off).outcome == ThetaOutcome.WRITTEN
    assert {kind for kind, _ in require_exact(table, current(table))} == {Kind.NDV}
    assert (blob_types(table), markers(table)) == ({"apache-datasketches-theta-v1"}, [])
    assert count(table, off).outcome == ThetaOutcome.CURRENT
    assert count(table).outcome == ThetaOutcome.CURRENT, "nothing is kept up that the snapshot itself has not"


def test_columns_are_refused_by_name(table: Table) -> None:
    append(table, 0, 10)
    for requested, words in (
        (RequestedStatistics(histogram=("name",)), "statistics.histogram names name"),
        (RequestedStatistics(size=("id", "name")), "statistics.size names id"),
        (RequestedStatistics(frequent=("embedding",)), "statistics.frequent names embedding"),
        (RequestedStatistics(joint=(("id", "gone"),)), "statistics.joint names gone"),
    ):
        with pytest.raises(UnsketchableColumnError, match=f"db.t, {words}, which it cannot be made of"):
            count(table, requested)
    assert find_statistics(table.refresh(), current(table)) is None


@pytest.mark.parametrize("budget", [0, BUDGET_BYTES])
def test_only_new_files_are_read_and_those_of_an_ancestor_are_not_read_again(
    table: Table, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch_packs, "FEW_FILES", 0)  # a version of file sketches for each count
    requested = all_kinds(("name", "size"))
    for start in range(0, 2_000, 400):
        append(table, start, start + 500)
        report = count(table, requested, budget_bytes=budget)
        assert report.files_sketched == 1
        require_exact(table, current(table))
    append(table, 5_000, 5_100)
    table.delete("id < 400")
    report = count(table, requested, budget_bytes=budget)
    assert (report.files_sketched, report.files_reused) == ((2, 4) if budget else (6, 0)), "one is rewritten"
    require_exact(table, current(table))


def test_of_an_ancestor_no_row_counts_twice_where_its_files_are_read_again_to_be_kept(table: Table) -> None:
    """Of few files no version keeps the sketches until there are more: an ancestor's sketch has their rows."""
    requested = all_kinds(("name", "size"))
    for start in range(0, 1_200, 100):
        append(table, start, start + 100)
        count(table, requested)
        require_exact(table, current(table))


def test_the_parts_of_a_file_that_several_tasks_return_are_kept_as_one(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icepuffin.ops.theta.snapshot_sketches.PART_ROWS", 500)
    properties = {"format-version": "2", "write.parquet.row-group-limit": "300"}
    table, runner = catalog.create_table("db.p", TABLE, properties=properties), FourAtOnceRunner()
    append(table, 0, 3_000)
    append(table, 3_000, 3_100)
    count(table, all_kinds(("name", "size")), runner=runner)
    tasks_of = [{part.file.path for part in task.file_parts} for task in runner.tasks]
    assert max(Counter(path for paths in tasks_of for path in paths).values()) > 1
    table.delete("id >= 3050")
    assert count(table).files_reused == 1
    require_exact(table, current(table))


def test_budgets_change_nothing_of_what_is_counted(catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of files and in many files, of more rows than each sketch keeps."""
    monkeypatch.setattr("icepuffin.ops.theta.snapshot_sketches.PART_ROWS", 1_000)
    found = []
    for number, budget in enumerate((0, 40_000, BUDGET_BYTES)):
        table = catalog.create_table(
            f"db.b{number}", TABLE, properties={"format-version": "2", "write.parquet.row-group-limit": "900"}
        )
        for start, stop in ((0, 7_000), (6_000, 6_100), (6_100, 11_000)):
            append(table, start, stop)
            count(table, all_kinds(("id", "name"), ("name", "size")), budget_bytes=budget)
        found.append(require_exact(table, current(table)))
        assert {len(sketch.levels) > 1 for sketch in found[-1].values() if isinstance(sketch, KllSketch)} == {True}
    same = [{of: encode(it) for of, it in one.items() if of[0] in (Kind.NDV, Kind.JOINT, Kind.SIZE)} for one in found]
    assert same == [same[0]] * 3


def test_a_version_has_the_sketches_of_0_1_0_in_a_blob_of_their_own(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch_packs, "FEW_FILES", 0)
    append(table, 0, 300)
    path = count(table, all_kinds(("name", "size"))).file_sketches_path
    reader = PuffinReader(LocalStorage().source(str(path)))
    images, directory, other_images, other_directory = reader.footer.blobs
    assert (images.type, directory.type) == ("icepuffin-theta-files-v4", "icepuffin-theta-directory-v1")
    assert (other_images.type, other_directory.type) == (
        "icepuffin-statistics-files-v1",
        "icepuffin-statistics-directory-v1",
    )
    (_, written), (_, others) = (
        (blob, sketch_directory_blob.decode(reader.read_blob(blob))) for blob in (directory, other_directory)
    )
    assert {kind_of(key) for key in written.columns} == {Kind.NDV}
    assert {kind_of(key) for key in others.columns} == {*Kind} - {Kind.NDV}
    (entry,) = written.files
    raw = reader.read_blob(images)
    if entry.stored_length != entry.raw_length:
        raw = codec.decompress(raw, "zstd", where="", max_bytes=entry.raw_length)
    offset = 0
    for number, length in entry.images:
        decoded = theta_blob.decode(raw[offset : offset + length])
        assert len(decoded.hashes) == {1: 300, 2: 7, 3: 150, 4: 300, 6: 50}[written.columns[number][0]]
        offset += length
    assert offset == entry.raw_length


def test_of_a_file_that_is_listed_twice_only_distinct_values_are_counted(table: Table) -> None:
    append(table, 0, 300)
    count(table, all_kinds(("id", "name")))
    (task,) = table.refresh().scan().plan_files()
    table.add_files([task.file.file_path], check_duplicate_files=False)
    for _ in range(2):
        report = count(table, all_kinds(("id", "name")))
        if report.outcome != ThetaOutcome.CURRENT:
            assert "a data file is listed twice" in report.note
        read = require_exact(table, current(table))
        assert {kind for kind, _ in read} == {Kind.NDV, Kind.JOINT}


def test_a_joint_count_of_a_column_with_itself_is_refused(table: Table) -> None:
    append(table, 0, 300)
    with pytest.raises(UnsketchableColumnError, match="names a column twice: id, name, name"):
        count(table, RequestedStatistics(joint=(("id", "name", "name"),)))
