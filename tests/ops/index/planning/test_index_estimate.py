"""What is expected before the work, beside what it then was."""

from collections.abc import Callable
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions
from icepuffin.ops.binding.measurements import Measurement
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.planning import index_estimate, rates
from icepuffin.ops.index.planning.changes import Changes
from icepuffin.ops.index.planning.index_estimate import estimate
from icepuffin.ops.index.planning.index_report import Estimate, IndexReport
from icepuffin.ops.index.planning.rates import Amounts, default_seconds, predicted_seconds
from icepuffin.ops.index.planning.version_plan import plan_version
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import Action, DeleteFile, DeleteKind, FileSlot, LiveFile, ShardId
from icepuffin.ops.table.blob_kind import BlobKind
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin.blobs.routing_blob import AddressesEntry, ShardEntry, VectorRun
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    new_table = table_factory()
    for start in range(0, 1200, 400):
        new_table.append(make_rows(start, start + 400))
    return new_table


def first_file(table: Table) -> str:
    return str(min(table.refresh().inspect.files()["file_path"].to_pylist()))


def estimate_and_report(table: Table, definition: IndexDefinition = DEFINITION) -> tuple[Estimate, IndexReport]:
    """The estimate that was made before anything was done, and the report, which holds an equal one."""
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    before = table.metadata_location
    plan = plan_version(RunContext(table, STORAGE), definition, head)
    expected = estimate(RunContext(table, STORAGE, LocalRunner(1)), plan)
    assert table.refresh().metadata_location == before
    report = index_head(table, definition)
    assert report.estimate == expected
    return expected, report


def test_a_build_is_foreseen(table: Table) -> None:
    expected, report = estimate_and_report(table)
    assert (expected.action, expected.inserted) == (Action.BUILT, report.inserted)
    assert [shard.how for shard in expected.shards] == ["built"] * 3
    kept = {(shard.nodes, shard.remap, shard.tombstone, shard.bytes_copied) for shard in expected.shards}
    assert (kept, [shard.insert for shard in expected.shards]) == ({(0, 0, 0, 0)}, [400] * 3)
    assert expected.bytes_written == pytest.approx(report.bytes_written, rel=0.4)
    vectors = pq.read_metadata(first_file(table).removeprefix("file://")).row_group(0).column(3)
    assert expected.bytes_read == 3 * vectors.total_compressed_size
    assert expected.rates == "default rates, 1 thread; the first run on a machine compiles kernels, too"


def test_columns_that_are_read_beside_the_vectors_count(table: Table) -> None:
    """Of new files; of all files where the version before lacks the column."""

    def stored(*paths: str) -> int:
        groups = [pq.read_metadata(path.removeprefix("file://")).row_group(0) for path in paths]
        chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
        return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema in ("id", "name"))

    index_head(table)
    before, definition = (
        table.refresh().inspect.files()["file_path"],
        replace(DEFINITION, text=("name",), include=("id",)),
    )
    expected, _ = estimate_and_report(table, definition)
    assert expected.bytes_read == pytest.approx(stored(*before.to_pylist()), rel=0.2)
    table.append(make_rows(1200, 1240))
    (new,) = {*table.refresh().inspect.files()["file_path"].to_pylist()} - {*before.to_pylist()}
    expected, _ = estimate_and_report(table, definition)
    assert expected.bytes_read - sum(shard.bytes_read for shard in expected.shards) == stored(new)


@pytest.mark.parametrize("method", ["diskann", "centroid"])
def test_columns_that_a_build_reads_count_with_any_method(table: Table, method: str) -> None:
    plain = (
        DEFINITION if method == "diskann" else IndexDefinition(name="e", column="embedding", metric="l2", method=method)
    )
    head = table.refresh().metadata.current_snapshot_id or 0
    sizes = [
        estimate(RunContext(table, STORAGE), plan_version(RunContext(table, STORAGE), definition, head)).bytes_read
        for definition in (plain, replace(plain, text=("name",)), replace(plain, include=("name",)))
    ]
    assert sizes[0] < sizes[1] == sizes[2]


def test_appended_rows_are_foreseen_and_seconds_are_measured_from_then_on(table: Table) -> None:
    index_head(table)
    table.append(make_rows(1200, 1240))
    expected, report = estimate_and_report(table)
    assert (expected.inserted, expected.remapped, expected.tombstoned) == (40, 0, 0) == (report.inserted, 0, 0)
    assert expected.bytes_written == pytest.approx(report.bytes_written, abs=10_000), "a delta, and what every file has"
    assert expected.rates == "measured on the last version, made another way"
    table.append(make_rows(1240, 1280))
    assert estimate_and_report(table)[0].rates == "measured on the last version, refreshed like this one"


def test_an_estimate_foresees_deltas_that_will_be_distributed(table: Table) -> None:
    index_head(table)
    for start in (1200, 1400):
        table.append(make_rows(start, start + 200))
        expected, report = estimate_and_report(table)
        assert expected.inserted == report.inserted == 200
    assert expected.merged == report.merged == 200
    assert {shard.how for shard in expected.shards} == {"inserted"}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(("count", "is_searched"), [(133, False), (134, True)])
def test_shards_that_are_searched_since_many_rows_came_are_foreseen_as_read(
    table: Table, count: int, is_searched: bool, shards: int
) -> None:
    """To 1,200 rows: over a tenth of those that there are then. They make a delta."""
    definition = replace(DEFINITION, shards=shards)
    index_head(table, definition)
    table.append(make_rows(1200, 1200 + count))
    expected, _ = estimate_and_report(table, definition)
    version = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    kept = [shard for shard in expected.shards if shard.how == "copied"]
    assert len(kept) == shards
    sizes = [entry.all_bytes if is_searched else 0 for entry in version.routing.shards[:shards]]
    assert [shard.bytes_read for shard in kept] == sizes


def test_a_shard_that_takes_rows_grows_with_them(table: Table) -> None:
    definition = replace(DEFINITION, max_deltas=0)
    index_head(table, definition)
    table.append(make_rows(1200, 1400))
    plan = plan_version(RunContext(table, STORAGE), definition, table.refresh().metadata.current_snapshot_id or 0)
    shards = estimate(RunContext(table, STORAGE, LocalRunner(1)), plan).shards
    assert plan.base is not None
    assert sum(shard.insert for shard in shards) == 200
    for shard, entry in zip(shards, plan.base.routing.shards, strict=True):
        growth = shard.bytes_written - entry.length
        assert growth / entry.all_bytes == pytest.approx(shard.insert / entry.count, rel=1e-3)


def test_a_shard_with_few_tombstones_takes_rows_and_is_not_rebuilt(table: Table) -> None:
    definition = replace(DEFINITION, max_deltas=0)
    index_head(table, definition)
    append_position_deletes(table, {first_file(table): np.arange(9)})
    table.refresh().append(make_rows(1200, 1400))
    report = index_head(table, definition)
    assert (report.inserted, report.gone, report.shards_rebuilt) == (200, 9, 0)


def test_deleted_rows_are_counted_where_they_were(table: Table) -> None:
    index_head(table)
    append_position_deletes(table, {first_file(table): np.arange(30)})
    expected, report = estimate_and_report(table)
    assert expected.tombstoned == report.gone == 30
    assert expected.bytes_written == 0
    assert expected.shards_copied == report.shards_copied == 3


def test_rows_that_moved_are_foreseen_as_remapped(table: Table) -> None:
    index_head(table)
    table.overwrite(table.scan().to_arrow())
    expected, report = estimate_and_report(table)
    assert (expected.inserted, expected.remapped) == (0, 1200) == (report.inserted, report.remapped)
    assert {shard.how for shard in expected.shards} == {"remapped"}


@pytest.mark.parametrize("appends", [3, 20])
def test_a_large_file_counts_for_more_than_a_small_one(table: Table, appends: int) -> None:
    """Beside a compacted table small new files are few rows: it is not built anew for them."""
    index_head(table)
    table.overwrite(table.refresh().scan().to_arrow())
    for start in range(1200, 1200 + 5 * appends, 5):
        table.append(make_rows(start, start + 5))
    expected, report = estimate_and_report(table)
    assert (report.action, report.inserted, report.remapped) == (Action.REFRESHED, 5 * appends, 1200)
    assert expected.inserted == pytest.approx(5 * appends, abs=0 if appends == 3 else 200)


def test_rows_with_the_vectors_of_live_rows_are_foreseen_as_new(table: Table) -> None:
    """A build matches new rows only with nodes whose rows are deleted."""
    index_head(table)
    append_position_deletes(table, {first_file(table): np.arange(30)})
    table.refresh().append(make_rows(600, 700))
    expected, report = estimate_and_report(table)
    assert (expected.inserted, expected.remapped, expected.tombstoned) == (100, 0, 30)
    assert (report.inserted, report.remapped, report.gone) == (100, 0, 30)


def test_rows_that_come_back_are_foreseen_as_remapped(table: Table) -> None:
    """Their nodes are tombstones of the base version."""
    index_head(table)
    file = first_file(table)
    append_position_deletes(table, {file: np.arange(30)})
    index_head(table)
    left = set(table.refresh().scan().to_arrow()["id"].to_pylist())
    first = min(set(range(1200)) - left)
    append_position_deletes(table, {file: np.arange(30, 40)})
    table.refresh().append(make_rows(first, first + 30))
    expected, report = estimate_and_report(table)
    assert (expected.inserted, expected.remapped) == (0, 30) == (report.inserted, report.remapped)


def test_the_vectors_of_rows_with_a_lineage_are_not_counted_as_read(table: Table) -> None:
    index_head(table)
    table.overwrite(table.scan().to_arrow())
    plan = plan_version(RunContext(table, STORAGE), DEFINITION, table.refresh().metadata.current_snapshot_id or 0)
    known = replace(plan, changes=replace(plan.changes, lineage_files=tuple(enumerate(plan.added))))
    expected = [estimate(RunContext(table, STORAGE, LocalRunner(1)), item) for item in (plan, known)]
    assert expected[0].remapped == expected[1].remapped == 1200
    assert expected[0].bytes_read - expected[1].bytes_read > 1200 * 16 * 4 * 0.8


def test_the_rebuild_of_shards_full_of_tombstones_is_foreseen_with_its_reason(table: Table) -> None:
    index_head(table)
    append_position_deletes(table, {first_file(table): np.arange(380)})
    expected, report = estimate_and_report(table)
    assert expected.shards_rebuilt == report.shards_rebuilt > 0
    assert expected.tombstoned == report.gone == 380, "those too that a rebuild leaves out"
    assert any("of its nodes are tombstones, over 20%" in shard.reason for shard in expected.shards)
    assert {shard.how for shard in expected.shards} == {shard.how for shard in report.shard_reports}


@pytest.mark.parametrize(
    ("changes", "how", "gone", "bytes_"),
    [
        ((0, 0, 0, 0), "copied", 0, (400, 0, 8_200)),
        ((10, 7, 0, 0), "masked", 7, (400, 0, 8_200)),
        ((10, 7, 5, 0), "remapped", 2, (800, 400, 8_000)),
        ((24, 7, 5, 20), "inserted", 2, (16_000, 16_000 * 120 / 100 - 13_000, 5_000)),
        ((25, 9, 9, 20), "rebuilt", 0, (16_000, 16_000 * 95 / 100, 0)),
    ],
    ids=lambda part: part if isinstance(part, str) else None,
)
def test_what_becomes_of_a_shard_is_foreseen_with_its_bytes(
    changes: tuple[int, int, int, int], how: str, gone: int, bytes_: tuple[int, float, int]
) -> None:
    """A shard of 100 nodes in 3,000 bytes, with vectors in 5,000 beside it and in 8,000 of a pack, and new addresses.
    Those that are read, written and copied; a tombstone in five nodes is no reason to rebuild it.
    """
    runs = VectorRun(0, 0, 5_000, 40, b""), VectorRun(1, 0, 8_000, 60, b"")
    entry = ShardEntry(
        100, 100, 0, 0.9, 3_000, b"", np.empty(0, np.int64), addresses=AddressesEntry(200, b""), runs=runs
    )
    plan: Any = SimpleNamespace(definition=DEFINITION, changes=Changes(emptied_slots=(FileSlot(0),)))
    tombstones, newly_dead, remap, insert = changes
    found = index_estimate._shard(plan, ShardId(3), entry, 16, tombstones, newly_dead, remap, insert)
    assert (found.number, found.how, found.nodes) == (3, how, 100)
    assert (found.insert, found.remap, found.tombstone) == (insert, remap, gone)
    assert (found.bytes_read, found.bytes_written, found.bytes_copied) == bytes_


def test_live_rows_are_those_that_no_delete_names_by_its_position() -> None:
    """Whatever keys others name, and however many data files share a delete file."""
    kinds = ((DeleteKind.POSITION, 30), (DeleteKind.POSITION, 5), (DeleteKind.EQUALITY, 50))
    deletes = [DeleteFile(str(place), kind, count, 2, 9) for place, (kind, count) in enumerate(kinds)]
    files = [LiveFile("a", 1, 100, 1, "PARQUET", deletes=deletes), LiveFile("b", 1, 20, 1, "PARQUET", deletes=deletes)]
    assert index_estimate._live_rows(files) == 65 + 0


def test_what_is_there_already_costs_nothing(table: Table) -> None:
    index_head(table)
    head = table.metadata.current_snapshot_id
    assert head is not None
    plan = plan_version(RunContext(table, STORAGE), DEFINITION, head)
    found = estimate(RunContext(table, STORAGE, LocalRunner(1)), plan)
    assert (found.action, found.bytes_read, found.bytes_written, found.shards) == (Action.REUSED, 0, 0, ())
    assert index_head(table).estimate is None


def test_each_version_notes_what_it_took(table: Table) -> None:
    report = index_head(table)
    (version,) = index_versions(table.refresh(), "e")
    measurement = Measurement.parse(version.measurement) or pytest.fail("none")
    assert (measurement.action, measurement.runner, measurement.threads) == (Action.BUILT, "LocalRunner", 1)
    assert measurement.amounts == {"read": 1200, "built": 1200, "dims": 16}
    assert 0 < measurement.seconds <= report.seconds


def test_rows_that_are_only_compared_are_noted_as_such(table: Table) -> None:
    index_head(table)
    table.overwrite(table.scan().to_arrow())
    table.append(make_rows(1200, 1240))
    index_head(table)
    measurement = Measurement.parse(index_versions(table.refresh(), "e")[-1].measurement) or pytest.fail("none")
    assert (measurement.amounts["read"], measurement.amounts["hashed"], "followed" in measurement.amounts) == (
        40, 1240, False,
    )  # fmt: skip


def test_copying_goes_on_beside_the_work() -> None:
    work, both = Amounts(read=10_000, dims=384), Amounts(read=10_000, dims=384, copied=10_000_000)
    assert default_seconds(work, 1) == default_seconds(both, 1)
    assert default_seconds(replace(both, copied=10_000_000_000), 1) > default_seconds(both, 1) + 1


@pytest.mark.parametrize(
    ("amount", "microseconds"),
    [
        ("built", 70),
        ("inserted", 280),
        ("read", 40),
        ("hashed", 8),
        ("followed", 1),
        ("rewritten", 30),
        ("looked_up", 1),
    ],
)
def test_each_row_takes_its_microseconds_of_a_core(amount: str, microseconds: int) -> None:
    for dims in (384, 768):
        by_dims = dims // 384 if amount in ("read", "hashed", "rewritten") else 1
        seconds = default_seconds(replace(Amounts(dims=dims), **{amount: 1_000_000}), 2)
        assert seconds == pytest.approx(0.5 + by_dims * microseconds / 2)


def test_more_work_takes_longer_and_more_threads_shorten_it() -> None:
    little, much = Amounts(read=100, inserted=100, dims=64), Amounts(read=10_000, inserted=10_000, dims=64)
    assert default_seconds(little, 1) < default_seconds(much, 2) < default_seconds(much, 1)


def measured(number: int, factor: float, action: Action = Action.REFRESHED, **others: Any) -> DerivedVersion:
    """A version whose run took `factor` times what the default rates say of a thousand rows that were built."""
    amounts = asdict(Amounts(built=1_000, dims=384))
    seconds = factor * default_seconds(Amounts(built=1_000, dims=384), 1)
    text = Measurement(
        **{"runner": "LocalRunner", "amounts": amounts, **others}, threads=1, seconds=seconds, action=action
    ).text()
    return DerivedVersion(BlobKind.INDEX, "e", number, 1, "", "p", number, 1, 1, (), text)


@pytest.mark.parametrize(
    ("versions", "factor", "source"),
    [
        ([], 1, "default rates, 1 thread; the first run on a machine compiles kernels"),
        ([measured(1, 3)], 3, "measured on the last version, refreshed like this one"),
        ([measured(1, 1), *(measured(n, n + 3) for n in range(2, 7))], 7, "measured on the last 5 versions, refreshed"),
        ([measured(1, 2), measured(2, 9), measured(3, 4)], 4, "the last 3 versions"),
        ([measured(1, 2), measured(2, 9, Action.BUILT)], 2, "the last version, refreshed like this one"),
        ([measured(1, 9, Action.BUILT)], 9, "the last version, made another way"),
        ([measured(1, 2), measured(2, 9, runner="SparkRunner")], 2, "the last version, refreshed"),
        ([measured(1, 2), measured(2, 9, amounts={"folded": 1_000})], 2, "the last version, refreshed"),
    ],
    ids=lambda part: part if isinstance(part, str) else None,
)
def test_seconds_are_corrected_by_the_last_five_runs_of_the_same_kind(
    monkeypatch: pytest.MonkeyPatch, versions: list[DerivedVersion], factor: float, source: str
) -> None:
    """By their median. What another runner took, or a release that counts otherwise, says nothing of this one."""
    monkeypatch.setattr(rates, "index_versions", lambda *_: tuple(versions))
    plan: Any = SimpleNamespace(definition=DEFINITION, action=Action.REFRESHED)
    amounts = Amounts(built=5_000, dims=384)
    table: Any = None
    run = RunContext(table, STORAGE, LocalRunner(1))
    seconds, words = predicted_seconds(run, plan, amounts)
    assert seconds == pytest.approx(factor * default_seconds(amounts, 1), rel=0.01)
    assert source in words
    assert predicted_seconds(run, plan, Amounts()) == (0.0, "nothing to do")
