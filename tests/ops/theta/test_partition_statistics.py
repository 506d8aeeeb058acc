"""Partition statistics: what each partition of a snapshot has, counted as a naive reader of all manifests counts."""

import datetime as dt
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import BadRequestError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.statistics import PartitionStatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    TruncateTransform,
    UnknownTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from examples.demo.row_deletes import append_position_deletes, commit_delete_files
from icepuffin.ops.binding.joint_commit import commit_together
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import find_snapshot
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta import partition_statistics
from icepuffin.ops.theta.partition_statistics import (
    PartitionTally,
    _changes_in_file,
    _partition_type,
    _plain,
    _unified,
    tally_for,
    write_partition_statistics,
)
from icepuffin.ops.theta.requested_statistics import KEPT_UP, RequestedStatistics
from icepuffin.ops.theta.side_files import SideFiles
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaOutcome, ThetaReport
from tests.naive.partitions import partition_rows
from tests.ops.theta.conftest import SCHEMA, STORAGE, ThreadlessRunner, append, current

COUNTS = (
    "data_record_count",
    "data_file_count",
    "total_data_file_size_in_bytes",
    "position_delete_record_count",
    "position_delete_file_count",
    "equality_delete_record_count",
    "equality_delete_file_count",
)
KINDS: dict[str, tuple[PrimitiveType, Any, list[Any]]] = {
    "flag": (BooleanType(), IdentityTransform(), [True, False]),
    "small": (IntegerType(), IdentityTransform(), [-3, 0, 7]),
    "big": (LongType(), TruncateTransform(10), [-10, 0, 2**40]),
    "weight": (DoubleType(), IdentityTransform(), [-1.5, -0.0, 0.0, math.inf, math.nan]),
    "price": (DecimalType(9, 2), IdentityTransform(), [Decimal("-1.25"), Decimal("0.00"), Decimal("3.10")]),
    "day": (DateType(), IdentityTransform(), [-1, 0, 20_000]),
    "time": (TimeType(), IdentityTransform(), [0, 86_399_999_999]),
    "local": (TimestampType(), IdentityTransform(), [-1, 10**15 + 1]),
    "moment": (TimestamptzType(), DayTransform(), [-1, 19_000]),
    "hour": (TimestamptzType(), HourTransform(), [-1, 450_000]),
    "text": (StringType(), IdentityTransform(), ["", "a", "\u00e9", "\U0001f600"]),
    "octets": (BinaryType(), TruncateTransform(2), [b"", b"\x00", b"\xff"]),
    "fixed": (FixedType(3), IdentityTransform(), [b"\x00\x01\x02", b"\xff\x01\x02"]),
    "key": (UUIDType(), IdentityTransform(), [uuid.UUID(int=1), uuid.UUID(int=2**127 + 5)]),
    "bucket": (StringType(), BucketTransform(4), [0, 3]),
}
"""A column of each kind, the transform that the table is partitioned by, and values of partitions"""
COLUMNS = Schema(*(NestedField(i, name, kind[0], required=False) for i, (name, kind) in enumerate(KINDS.items(), 1)))


def spec_of(*names: str) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(COLUMNS.find_field(name).field_id, 1000 + number, KINDS[name][1], f"p_{name}")
            for number, name in enumerate(names)
        )
    )


def file(table: Table, values: tuple[Any, ...], spec_id: int | None = None, **more: Any) -> DataFile:
    """A file that nobody reads."""
    made = DataFile.from_args(
        **{
            "content": DataFileContent.DATA,
            "file_path": f"{table.location()}/data/{uuid.uuid4()}.parquet",
            "file_format": FileFormat.PARQUET,
            "partition": Record(*values),
            "record_count": 10,
            "file_size_in_bytes": 100,
            **more,
        }
    )
    made.spec_id = table.spec().spec_id if spec_id is None else spec_id
    return made


def add(table: Table, *files: DataFile, remove: tuple[DataFile, ...] = ()) -> int:
    snapshot = table.transaction()
    with snapshot.update_snapshot().overwrite() if remove else snapshot.update_snapshot().fast_append() as update:
        for each in files:
            update.append_data_file(each)
        for each in remove:
            update.delete_data_file(each)
    snapshot.commit_transaction()
    return current(table)


def make(table: Table, snapshot_id: int) -> SideFiles:
    """Count, write and register, as a run does."""
    table.refresh()
    tally = tally_for(table, SnapshotId(snapshot_id), STORAGE)
    live_files(table, SnapshotId(snapshot_id), observe=tally.add if tally else None)
    made = write_partition_statistics(table, STORAGE, find_snapshot(table, SnapshotId(snapshot_id)), tally)
    commit_together(table, made.parts())
    assert made.result()[2] == ""
    return made


def entry_of(table: Table, snapshot_id: int) -> PartitionStatisticsFile | None:
    entries = {entry.snapshot_id: entry for entry in table.refresh().metadata.partition_statistics}
    return entries.get(snapshot_id)


def path_of(table: Table, snapshot_id: int) -> Path:
    entry = entry_of(table, snapshot_id)
    assert entry is not None
    path = Path("/" + entry.statistics_path.removeprefix("file:").lstrip("/"))
    assert not path.exists() or path.stat().st_size == entry.file_size_in_bytes
    return path


def rows_of(table: Table, snapshot_id: int) -> pa.Table:
    return pq.read_table(path_of(table, snapshot_id))


def stored(value: Any) -> Any:
    """As manifests have it, and such that equal texts are equal values."""
    if isinstance(value, dt.datetime):
        value = round((value.replace(tzinfo=None) - dt.datetime(1970, 1, 1)) / dt.timedelta(microseconds=1))  # noqa: DTZ001
    elif isinstance(value, dt.date):
        value = value.toordinal() - dt.date(1970, 1, 1).toordinal()
    elif isinstance(value, dt.time):
        value = ((value.hour * 60 + value.minute) * 60 + value.second) * 10**6 + value.microsecond
    return repr(value)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a file in the form of the oracle's."""
    return {
        "values": {name: stored(value) for name, value in row["partition"].items()},
        "spec_id": row["spec_id"],
        "counts": {name: row[name] for name in sorted((*COUNTS, "dv_count")) if row.get(name)},
        "at": row["last_updated_at"],
        "by": row["last_updated_snapshot_id"],
    }


def check(table: Table, snapshot_id: int) -> None:
    found = rows_of(table, snapshot_id).to_pylist()
    expected = partition_rows(table, snapshot_id)
    for row in expected:
        row["values"] = {name: stored(value) for name, value in row["values"].items()}
    assert sorted(map(repr, map(plain, found))) == sorted(map(repr, expected))
    assert all(row[name] is not None for row in found for name in COUNTS)
    assert {row["total_record_count"] for row in found} == {None}


class History:
    """A partitioned table of files that nobody reads, and changes of it that chance chooses."""

    def __init__(self, catalog: SqlCatalog, random: Random, version: str) -> None:
        self.random = random
        names = random.sample([*KINDS], 2)
        properties = {"format-version": version}
        self.table = catalog.create_table("db.p", COLUMNS, partition_spec=spec_of(*names), properties=properties)
        self.append()

    def change(self) -> None:
        changes = [self.append, self.append, self.overwrite, self.remove, self.evolve, self.drop, self.go_back]
        if self.table.metadata.format_version > 1:
            changes += [self.delete_rows, self.delete_rows]
        self.random.choice(changes)()
        self.table.refresh()

    def values(self, spec: PartitionSpec) -> tuple[Any, ...]:
        kinds = [KINDS[part.name.removeprefix("p_").partition("#")[0]] for part in spec.fields]
        voids = [str(part.transform) == "void" for part in spec.fields]
        return tuple(
            None if is_void or self.random.random() < 0.2 else self.random.choice(values)
            for is_void, (_, _, values) in zip(voids, kinds, strict=True)
        )

    def some(self, **more: Any) -> list[DataFile]:
        """Data files of the spec of now, or delete files of any whose columns are there still."""
        columns = self.table.schema().field_ids
        specs = [spec for spec in self.table.specs().values() if all(part.source_id in columns for part in spec.fields)]
        chosen = self.random.choices(specs if "content" in more else [self.table.spec()], k=self.random.randrange(1, 4))
        return [
            file(self.table, self.values(spec), spec.spec_id, record_count=self.random.randrange(1, 50), **more)
            for spec in chosen
        ]

    def live(self) -> list[DataFile]:
        """Data files that PyIceberg can remove: it makes an expression of their partition."""
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        manifests = snapshot.manifests(self.table.io)
        entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(self.table.io)]
        files = [entry.data_file for entry in entries if entry.data_file.content == DataFileContent.DATA]
        return [each for each in files if "nan" not in map(repr, each.partition._data)]

    def append(self) -> None:
        add(self.table, *self.some(file_size_in_bytes=self.random.randrange(1, 999)))

    def overwrite(self) -> None:
        files = self.live()
        add(self.table, *self.some(), remove=tuple(self.random.sample(files, min(len(files), 2))))

    def remove(self) -> None:
        files = self.live()
        if files:
            add(self.table, remove=tuple(self.random.sample(files, min(len(files), 3))))

    def delete_rows(self) -> None:
        kinds = [
            {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": [1]},
            {"content": DataFileContent.POSITION_DELETES},
        ]
        commit_delete_files(self.table, self.some(**self.random.choice(kinds)))

    def evolve(self) -> None:
        fields = self.table.spec().fields
        with self.table.update_spec() as update:
            if len(fields) > 1 and self.random.random() < 0.5:
                update.remove_field(self.random.choice(fields).name)
            elif free := [name for name in KINDS if self.is_free(name)]:
                name = self.random.choice(free)
                update.add_field(name, KINDS[name][1], f"p_{name}#{len(self.table.specs())}")

    def is_free(self, name: str) -> bool:
        """Whether no partition is made of the column now, and it is there."""
        schema = self.table.schema()
        return name in schema.column_names and all(
            part.source_id != schema.find_field(name).field_id for part in self.table.spec().fields
        )

    def drop(self) -> None:
        """Drop a column that only older specs are about."""
        free = [name for name in KINDS if self.is_free(name)]
        with self.table.update_schema() as update:
            update.delete_column(self.random.choice(free))

    def go_back(self) -> None:
        snapshots = [item.snapshot_id for item in self.table.metadata.snapshots]
        self.table.manage_snapshots().set_current_snapshot(snapshot_id=self.random.choice(snapshots)).commit()


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_random_histories_are_counted_as_all_manifests_say(
    catalog: SqlCatalog, seed: str, version: str, share: float
) -> None:
    """`share`: of snapshots whose statistics are made, so that others are told from those of an ancestor."""
    random = Random(f"{seed} {version} {share}")
    history = History(catalog, random, version)
    for _ in range(12):
        history.change()
        snapshot_id = current(history.table)
        if random.random() < share and not entry_of(history.table, snapshot_id):
            make(history.table, snapshot_id)
            check(history.table, snapshot_id)


def partitioned(catalog: SqlCatalog, **properties: str) -> Table:
    """A table of rows, partitioned by `size`."""
    spec = PartitionSpec(PartitionField(6, 1000, IdentityTransform(), "size"))
    return catalog.create_table("db.r", SCHEMA, partition_spec=spec, properties={"format-version": "2", **properties})


def run(table: Table, snapshot_id: int, requested: RequestedStatistics = KEPT_UP) -> ThetaReport:
    context = RunContext(table, STORAGE, ThreadlessRunner())
    return count_theta_sketches(context, SnapshotId(snapshot_id), requested=requested).publish()


def add_rows(table: Table, *sizes: int | None) -> int:
    """A row for each; the new snapshot's id."""
    table.append(pa.table({"id": range(len(sizes)), "size": pa.array(sizes, pa.int32())}))
    return current(table)


def other_file(table: Table, snapshot_id: int) -> PartitionStatisticsFile:
    """A file of another writer, in the slot."""
    path = (
        Path(table.location().removeprefix("file://"))
        / f"metadata/partition-stats-{snapshot_id}-{uuid.UUID(int=7)}.parquet"
    )
    pq.write_table(pa.table({"spec_id": [0]}), path)
    size = path.stat().st_size
    entry = PartitionStatisticsFile(snapshot_id=snapshot_id, statistics_path=f"file://{path}", file_size_in_bytes=size)
    table.catalog.commit_table(table, (), (SetPartitionStatisticsUpdate(partition_statistics=entry),))
    return entry


def test_a_run_counts_partitions_beside_the_sketches(catalog: SqlCatalog) -> None:
    table = partitioned(catalog)
    first = add_rows(table, 3, 4, 4, None)
    report = run(table, first)
    assert (report.outcome, report.note) == (ThetaOutcome.WRITTEN, "")
    assert report.fields()["partitions"].startswith("3 rows, ")
    check(table, first)
    counted = run(table, add_rows(table, 5))
    assert counted.bytes_written > path_of(table, counted.snapshot_id).stat().st_size
    assert {entry.snapshot_id for entry in table.metadata.partition_statistics} == {first, counted.snapshot_id}
    again = run(table, counted.snapshot_id)
    assert (again.outcome, again.bytes_written, again.partitions) == (ThetaOutcome.CURRENT, 0, "")
    assert "partitions" not in again.fields()


@pytest.mark.parametrize("by_version", [False, True])
def test_both_are_in_the_slots_after_the_same_commit(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch, by_version: bool
) -> None:
    """`by_version`: the commit of an index version takes them along."""
    table = partitioned(catalog)
    first = add_rows(table, 3, 4)
    sent: list[list[str]] = []
    through = catalog.commit_table

    def commit_table(to: Table, requirements: Any, updates: Any) -> Any:
        sent.append([update.action for update in updates])
        return through(to, requirements, updates)

    monkeypatch.setattr(catalog, "commit_table", commit_table)
    counted = count_theta_sketches(RunContext(table, STORAGE, ThreadlessRunner()), SnapshotId(first))
    if by_version:
        commit_together(table, counted.parts())
    assert counted.publish().partitions.startswith("2 rows, ")
    (together,) = [actions for actions in sent if "set-statistics" in actions]
    assert "set-partition-statistics" in together


@pytest.mark.parametrize("is_partitioned", [True, False])
def test_there_is_no_file_where_it_is_switched_off_or_the_table_has_no_partitions(
    catalog: SqlCatalog, table: Table, is_partitioned: bool
) -> None:
    chosen = partitioned(catalog) if is_partitioned else table
    report = run(chosen, append(chosen, 0, 20), RequestedStatistics(partitions=not is_partitioned))
    assert (report.outcome, report.note, report.partitions) == (ThetaOutcome.WRITTEN, "", "")
    assert not chosen.refresh().metadata.partition_statistics
    assert not [*Path(chosen.location().removeprefix("file://")).glob("metadata/partition-stats-*")]


def test_none_is_written_for_a_table_that_is_partitioned_by_nothing_that_is_there(catalog: SqlCatalog) -> None:
    table = catalog.create_table("db.g", COLUMNS, partition_spec=spec_of("text"), properties={"format-version": "2"})
    with table.update_spec() as update:
        update.remove_field("p_text")
    with table.update_schema() as change:
        change.delete_column("text")
    assert make(table, add(table, file(table, ()))).part is None


def test_sketches_that_are_there_get_partitions_beside_them(catalog: SqlCatalog) -> None:
    table = partitioned(catalog)
    first = add_rows(table, 3, 4)
    run(table, first, RequestedStatistics(partitions=False))
    report = run(table, first)
    assert report.outcome is ThetaOutcome.CURRENT
    assert report.partitions.startswith("2 rows, ")
    assert report.bytes_written == path_of(table, first).stat().st_size
    check(table, first)


def test_a_table_without_a_column_to_sketch_has_partitions(catalog: SqlCatalog) -> None:
    table = partitioned(catalog)
    first = add_rows(table, 3, 4)
    report = run(table, first, RequestedStatistics(ndv=()))
    assert (report.outcome, report.partitions[:7]) == (ThetaOutcome.NO_COLUMNS, "2 rows,")
    check(table, first)


def test_another_writer_s_file_is_kept_while_it_is_there(catalog: SqlCatalog) -> None:
    table = partitioned(catalog)
    first = add_rows(table, 3, 4)
    entry = other_file(table, first)
    run(table, first)
    assert entry_of(table, first) == entry
    path_of(table, first).unlink()
    assert run(table, first).partitions.startswith("2 rows, ")
    assert entry_of(table, first) != entry
    check(table, first)


def test_a_writer_that_is_first_is_left_its_slot_and_ours_goes(catalog: SqlCatalog) -> None:
    table = partitioned(catalog)
    first = add_rows(table, 3, 4)
    counted = count_theta_sketches(RunContext(table, STORAGE, ThreadlessRunner()), SnapshotId(first))
    entry = other_file(table, first)
    report = counted.publish()
    assert (report.outcome, report.note, report.partitions) == (ThetaOutcome.WRITTEN, "", "")
    assert entry_of(table, first) == entry
    left = Path(table.location().removeprefix("file://")).glob("metadata/partition-stats-*")
    assert [*left] == [path_of(table, first)]


def test_a_file_that_went_while_it_waited_is_a_note(catalog: SqlCatalog) -> None:
    table = partitioned(catalog)
    first = add_rows(table, 3, 4)
    counted = count_theta_sketches(RunContext(table, STORAGE, ThreadlessRunner()), SnapshotId(first))
    (waiting,) = Path(table.location().removeprefix("file://")).glob("metadata/partition-stats-*")
    waiting.unlink()
    report = counted.publish()
    assert report.outcome is ThetaOutcome.WRITTEN
    assert "deleted before it was registered; a later run writes it anew" in report.note
    assert entry_of(table, first) is None
    assert run(table, first).partitions


def test_a_catalog_that_does_not_know_the_update_takes_the_sketches(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = partitioned(catalog)
    first = add_rows(table, 3, 4)
    through = catalog.commit_table

    def commit_table(to: Table, requirements: Any, updates: Any) -> Any:
        if any(isinstance(update, SetPartitionStatisticsUpdate) for update in updates):
            raise BadRequestError("Cannot convert metadata update action from json: set-partition-statistics")
        return through(to, requirements, updates)

    monkeypatch.setattr(catalog, "commit_table", commit_table)
    report = run(table, first)
    assert report.outcome is ThetaOutcome.WRITTEN
    assert report.ndv["id"] == 2
    assert report.file_sketches_path
    assert report.note.startswith("the partition statistics were not published: Cannot convert metadata update")


def test_a_catalog_that_drops_them_is_told_from_one_that_keeps_them(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = partitioned(catalog)
    first = add_rows(table, 3, 4)
    through = catalog.commit_table

    def commit_table(to: Table, requirements: Any, updates: Any) -> Any:
        kept = tuple(update for update in updates if not isinstance(update, SetPartitionStatisticsUpdate))
        return through(to, requirements, kept)

    monkeypatch.setattr(catalog, "commit_table", commit_table)
    report = run(table, first)
    assert report.ndv["id"] == 2
    assert f"accepted partition statistics of {first} and did not keep them" in report.note
    assert "or set statistics.partitions = false for the table" in report.note


def test_a_partition_field_that_cannot_be_understood_is_a_note(
    catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = partitioned(catalog)
    first = add_rows(table, 3, 4)
    unknown = table.metadata.partition_specs[0].fields[0].model_copy(update={"transform": UnknownTransform("zorder")})
    fields = (table.metadata.partition_specs[0].fields[0], unknown)
    metadata = table.metadata.model_copy(update={"partition_specs": [PartitionSpec(*fields)]})
    with pytest.raises(
        partition_statistics.TableFaultError, match=r"partition field 1000 has a transform of no release"
    ):
        _partition_type(metadata)
    monkeypatch.setattr(partition_statistics, "_partition_type", lambda _: _partition_type(metadata))
    report = run(table, first)
    assert report.note.startswith("the partition statistics were not published: partition field 1000")
    assert report.ndv["id"] == 2


def test_entries_of_expired_snapshots_go_and_so_do_their_files(catalog: SqlCatalog) -> None:
    table = partitioned(catalog)
    first = add_rows(table, 3, 4)
    run(table, first, RequestedStatistics(ndv=("id",)))
    second = add_rows(table, 5)
    old = path_of(table, first)
    foreign = old.with_name(f"partition-stats-{first}-{uuid.UUID(int=3)}.parquet")
    pq.write_table(pa.table({"spec_id": [0]}), foreign)
    table.maintenance.expire_snapshots().by_id(first).commit()
    assert entry_of(table, first) is not None, "PyIceberg leaves it"
    report = collect_garbage(table, storage=STORAGE, grace=dt.timedelta(0))
    assert f"file://{old}" in report.deleted
    assert not old.exists()
    assert foreign.exists(), "another writer's"
    run(table.refresh(), second, RequestedStatistics(ndv=("id",)))
    assert entry_of(table, first) is None
    check(table, second)
    kept = path_of(table, second)
    assert f"file://{kept}" not in collect_garbage(table, storage=STORAGE, grace=dt.timedelta(0)).deleted
    assert kept.exists()


def test_rows_are_sorted_by_partition_null_first(catalog: SqlCatalog) -> None:
    """-0.0 before 0.0, NaN last, bytes unsigned: each kind beside null, in an order of its own."""
    for number, (name, (_, _, values)) in enumerate(KINDS.items()):
        table = catalog.create_table(
            f"db.s{number}", COLUMNS, partition_spec=spec_of(name), properties={"format-version": "2"}
        )
        shuffled = [*reversed(values), None]
        snapshot_id = add(table, *(file(table, (value,)) for value in shuffled))
        make(table, snapshot_id)
        check(table, snapshot_id)
        found = [row["partition"][f"p_{name}"] for row in rows_of(table, snapshot_id).to_pylist()]
        ordered = [False, True] if name == "flag" else values
        assert list(map(stored, found)) == list(map(repr, [None, *ordered])), name


def test_equal_partitions_of_two_specs_are_two_rows_by_spec(catalog: SqlCatalog) -> None:
    table = catalog.create_table("db.w", COLUMNS, partition_spec=spec_of("text"), properties={"format-version": "2"})
    add(table, file(table, ("a",)))
    with table.update_spec() as update:
        update.add_field("small", IdentityTransform(), "p_small")
    snapshot_id = add(table, file(table, ("a", None)), file(table, ("a", 1)))
    make(table, snapshot_id)
    check(table, snapshot_id)
    found = [(*row["partition"].values(), row["spec_id"]) for row in rows_of(table, snapshot_id).to_pylist()]
    assert found == [("a", None, 0), ("a", None, 1), ("a", 1, 1)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ({}, {"data_record_count": 7, "data_file_count": 1, "total_data_file_size_in_bytes": 100}),
        (
            {"content": DataFileContent.POSITION_DELETES},
            {"position_delete_record_count": 7, "position_delete_file_count": 1},
        ),
        (
            {"content": DataFileContent.POSITION_DELETES, "file_format": FileFormat.PUFFIN},
            {"position_delete_record_count": 7, "dv_count": 1},
        ),
        (
            {"content": DataFileContent.EQUALITY_DELETES},
            {"equality_delete_record_count": 7, "equality_delete_file_count": 1},
        ),
    ],
)
def test_each_kind_of_file_has_counts_of_its_own(
    catalog: SqlCatalog, kind: dict[str, Any], expected: dict[str, int]
) -> None:
    table = partitioned(catalog)
    first = add_rows(table, 3)
    tally = PartitionTally(table.metadata)
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=first, data_file=file(table, (3,), record_count=7, **kind)
    )
    tally.add(ManifestFile.from_args(manifest_path="m", added_snapshot_id=first), [entry])
    tally.add(ManifestFile.from_args(manifest_path="n", added_snapshot_id=first), [entry])
    ((_, partition),) = tally.partitions.items()
    assert partition.counts == {name: 2 * count for name, count in expected.items()}


def test_a_removal_is_of_the_snapshot_that_wrote_the_manifest(catalog: SqlCatalog) -> None:
    """Some writers leave the snapshot that added the file in the entry."""
    table = partitioned(catalog)
    first, second = add_rows(table, 3), add_rows(table, 4)
    tally = PartitionTally(table.metadata)
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.DELETED, snapshot_id=first, data_file=file(table, (3,)))
    tally.add(ManifestFile.from_args(manifest_path="m", added_snapshot_id=second), [entry])
    ((_, partition),) = tally.partitions.items()
    assert (partition.changed[2], dict(partition.counts)) == (second, {})


def test_a_field_has_its_newest_name(catalog: SqlCatalog) -> None:
    table = catalog.create_table("db.n", COLUMNS, partition_spec=spec_of("text"), properties={"format-version": "2"})
    add(table, file(table, ("a",)))
    with table.update_spec() as update:
        update.rename_field("p_text", "renamed")
    snapshot_id = add(table, file(table, ("b",)))
    make(table, snapshot_id)
    found = [row["partition"] for row in rows_of(table, snapshot_id).to_pylist()]
    assert found == [{"renamed": "a"}, {"renamed": "b"}]


def test_a_field_that_v1_made_void_keeps_the_type_that_it_had(catalog: SqlCatalog) -> None:
    table = catalog.create_table("db.v", COLUMNS, partition_spec=spec_of("moment"), properties={"format-version": "1"})
    add(table, file(table, (19_000,)))
    with table.update_spec() as update:
        update.remove_field("p_moment")
    snapshot_id = add(table, file(table, (None,)))
    make(table, snapshot_id)
    found = [list(row["partition"].values()) for row in rows_of(table, snapshot_id).to_pylist()]
    assert found == [[None], [dt.date(2022, 1, 8)]]


def removing(catalog: SqlCatalog) -> tuple[Table, list[int]]:
    """A table whose second snapshot takes a file out of a partition, and is followed by others."""
    table = catalog.create_table("db.x", COLUMNS, partition_spec=spec_of("text"), properties={"format-version": "2"})
    one, two = file(table, ("a",)), file(table, ("a",))
    snapshots = [add(table, one, two), add(table, remove=(one,)), add(table, file(table, ("b",)))]
    snapshots.append(add(table, remove=(file_named(table, "b"),)))
    return table, [*snapshots, add(table, file(table, ("c",)))]


def file_named(table: Table, value: str) -> DataFile:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    entries = [e for m in snapshot.manifests(table.io) for e in m.fetch_manifest_entry(table.io)]
    return next(entry.data_file for entry in entries if entry.data_file.partition[0] == value)


def changed_by(table: Table, snapshot_id: int) -> dict[str, int]:
    rows = rows_of(table, snapshot_id).to_pylist()
    return {row["partition"]["p_text"]: row["last_updated_snapshot_id"] for row in rows}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ancestors whose removals are read."""
    snapshots: list[int] = []
    through: Callable[..., Any] = partition_statistics._removed_by

    def removed_by(table: Table, snapshot: Any) -> Any:
        snapshots.append(snapshot.snapshot_id)
        return through(table, snapshot)

    monkeypatch.setattr(partition_statistics, "_removed_by", removed_by)
    return snapshots


def test_a_partition_was_changed_last_by_what_took_a_file_out_of_it(catalog: SqlCatalog, read: list[int]) -> None:
    table, snapshots = removing(catalog)
    make(table, snapshots[-1])
    assert changed_by(table, snapshots[-1]) == {"a": snapshots[1], "c": snapshots[4]}
    assert read == [snapshots[3], snapshots[1]], "no appends"


def test_a_file_of_ours_tells_what_was_before(catalog: SqlCatalog, read: list[int]) -> None:
    table, snapshots = removing(catalog)
    make(table, snapshots[2])
    del read[:]
    make(table, snapshots[4])
    assert read == [snapshots[3]]
    assert changed_by(table, snapshots[4]) == {"a": snapshots[1], "c": snapshots[4]}


@pytest.mark.parametrize("fault", ["lost", "cut", "another's"])
def test_a_file_that_cannot_be_relied_on_is_passed_over(catalog: SqlCatalog, read: list[int], fault: str) -> None:
    table, snapshots = removing(catalog)
    make(table, snapshots[2])
    path = path_of(table, snapshots[2])
    content = path.read_bytes()
    path.unlink()
    if fault == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif fault == "another's":
        pq.write_table(pq.read_table(pa.BufferReader(content)).replace_schema_metadata(), path)
    del read[:]
    make(table, snapshots[4])
    assert read == [snapshots[3], snapshots[1]]
    assert changed_by(table, snapshots[4]) == {"a": snapshots[1], "c": snapshots[4]}


def test_partitions_of_every_type_are_found_in_a_file_again(catalog: SqlCatalog) -> None:
    for number, name in enumerate(KINDS):
        spec = spec_of(name)
        table = catalog.create_table(f"db.k{number}", COLUMNS, partition_spec=spec, properties={"format-version": "2"})
        snapshot_id = add(table, *(file(table, (value,)) for value in (*KINDS[name][2], None)))
        make(table, snapshot_id)
        snapshot, kind = find_snapshot(table.refresh(), SnapshotId(snapshot_id)), _partition_type(table.metadata)
        changes = _changes_in_file(table, STORAGE, snapshot, kind)
        tally = PartitionTally(table.metadata)
        live_files(table, SnapshotId(snapshot_id), observe=tally.add)
        values = _unified(table.metadata, kind, tally.partitions.values())
        change = (snapshot.timestamp_ms, 0, snapshot_id)
        assert changes == {(0, tuple(map(_plain, row))): change for row in values}, name
        assert len(values) == len(KINDS[name][2]) + 1


def test_what_is_older_than_every_last_change_is_not_read(
    catalog: SqlCatalog, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_statistics, "_SNAPSHOTS_AT_ONCE", 1)
    table, snapshots = removing(catalog)
    last = add(table, file(table, ("a",)), remove=(file_named(table, "c"),))
    make(table, last)
    assert read == []
    make(table, snapshots[3])
    assert read == [snapshots[1]]


def test_rows_that_a_dropped_column_made_alike_stay_apart(catalog: SqlCatalog, read: list[int]) -> None:
    """Nor does an earlier file tell when they were changed, that knew the column, or has them alike."""
    names = "text", "small"
    table = catalog.create_table("db.y", COLUMNS, partition_spec=spec_of(*names), properties={"format-version": "2"})
    one, two = file(table, ("a", 0)), file(table, ("a", 7))
    add(table, one, two, file(table, ("a", 0)))
    removed = add(table, remove=(one,))
    make(table, removed)
    with table.update_spec() as update:
        update.remove_field("p_small")
    with table.update_schema() as change:
        change.delete_column("small")
    del read[:]
    last = add(table, file(table, ("a",)))
    make(table, last)
    check(table, last)
    assert read == [removed]
    assert rows_of(table, last).num_rows == 3
    later = add(table, file(table, ("b",)))
    make(table, later)
    check(table, later)


def test_position_deletes_by_their_writer_are_counted(catalog: SqlCatalog) -> None:
    table = partitioned(catalog)
    add_rows(table, 3, 3, 4)
    path = next(task.file.file_path for task in table.scan().plan_files() if task.file.record_count == 2)
    snapshot_id = append_position_deletes(table, {path: np.array([1])})
    run(table, snapshot_id)
    check(table, snapshot_id)
    row = rows_of(table, snapshot_id).to_pylist()[0]
    assert (row["data_record_count"], row["position_delete_record_count"]) == (2, 1)
