"""Garbage collection beside runs that publish: what a commit came to name since the table was read stays."""

import os
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding import bindings
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.model import CREATED_BY, ObjectInfo
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.storage import open_storage
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.puffin import PuffinWriter
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.bindings import binding

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    made = table_factory()
    made.append(make_rows(0, 10))
    return made


@pytest.mark.parametrize("before", [False, True])
def test_what_is_published_while_files_are_listed_stays(
    table: Table, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The file is there before the listing; its commit comes before the listing has ended, or before it has begun."""
    new_binding, listed = binding(table), LocalStorage.list
    other = table.catalog.load_table(table.name())

    def published_meanwhile(self: LocalStorage, prefix: str) -> Iterator[ObjectInfo]:
        if before:
            bindings.publish(other, new_binding)
        yield from list(listed(self, prefix))
        if not before:
            bindings.publish(other, new_binding)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "list", published_meanwhile)
        assert collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted == ()
    assert open_storage(new_binding.puffin_path, STORAGE).exists(new_binding.puffin_path)
    table.refresh()
    for snapshot in table.metadata.snapshots:
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 10


def test_names_that_only_begin_or_end_as_ours_are_not_ours(table: Table) -> None:
    """Whoever keeps notes beside the metadata keeps them."""
    names = (
        "ann-notes.txt",
        "theta-plan.csv",
        "snap-1-0-x.avro",
        "icepuffin-snap-1.txt",
        "my-ann-e.puffin",
        "x/ann-e.puffin",
    )
    folder = Path(f"{table.location()}/metadata".removeprefix("file://"))
    (folder / "x").mkdir()
    for name in (*names, "ann-e-snap-1.puffin", "icepuffin-snap-1-0-x.avro"):
        (folder / name).write_bytes(b"x")
    deleted = collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted
    assert {Path(path).name for path in deleted} == {"ann-e-snap-1.puffin", "icepuffin-snap-1-0-x.avro"}
    assert all((folder / name).exists() for name in names)


def test_what_a_killed_process_was_writing_is_swept(table: Table) -> None:
    """A local disk has it under a name of its own until it is whole; others may keep hidden files there, too."""
    unique, statistics = uuid.uuid4().hex, f"12-{uuid.uuid4()}.stats"
    names = [f".{name}.{uuid.uuid4().hex}" for name in ("ann-e-snap-1.puffin", "theta-files-1.puffin", statistics)]
    others = (".notes", f".{statistics}", f".{statistics}.{unique[1:]}", f".x{statistics}.{unique}", statistics)
    folder = Path(f"{table.location()}/metadata".removeprefix("file://"))
    for name in (*names, *others):
        (folder / name).write_bytes(b"x")
    deleted = collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted
    assert {Path(path).name for path in deleted} == {*names}
    assert all((folder / name).exists() for name in others)


def test_files_are_swept_once_they_are_older_than_the_grace_period(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the millisecond; a dry run counts the same and deletes nothing."""
    folder = Path(f"{table.location()}/metadata".removeprefix("file://"))
    now = 1_800_000_000_000
    ages = {"ann-old.puffin": 3_600_000, "theta-older.puffin.index.json": 9_000_000, "ann-young.puffin": 3_599_999}
    staged = folder / "_icepuffin" / "build" / "shard-0"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"12345")
    os.utime(staged, ns=(0, 0))
    for name, age in ages.items():
        (folder / name).write_bytes(b"123")
        os.utime(folder / name, ns=(0, (now - age) * 1_000_000))
    monkeypatch.setattr(LocalStorage, "now_ms", lambda *_: now)
    dry = collect_garbage(table, storage=STORAGE, grace=timedelta(hours=1), dry_run=True)
    assert staged.exists()
    assert all((folder / name).exists() for name in ages)
    done = collect_garbage(table, storage=STORAGE, grace=timedelta(hours=1))
    assert (dry.dry_run, done.dry_run, dry.deleted) == (True, False, done.deleted)
    assert [Path(path).name for path in done.deleted] == ["shard-0", "ann-old.puffin", "theta-older.puffin.index.json"]
    assert (done.table, done.bytes_freed, done.kept_young) == ("db.t", 11, 1)
    assert [name for name in ages if (folder / name).exists()] == ["ann-young.puffin"]


def test_a_day_is_the_grace_period_where_none_is_named(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(f"{table.location()}/metadata".removeprefix("file://"))
    (folder / "ann-e-left.puffin").write_bytes(b"123")
    os.utime(folder / "ann-e-left.puffin", ns=(0, 0))
    for now, count in ((24 * 3_600_000 - 1, 0), (24 * 3_600_000, 1)):
        monkeypatch.setattr(LocalStorage, "now_ms", lambda *_, now=now: now)
        assert len(collect_garbage(table, storage=STORAGE).deleted) == count


def test_what_counts_as_expiring_is_what_a_dry_run_would_sweep(table: Table) -> None:
    """The file of the version, the list of its snapshot, and its metadata beside it; nothing of other snapshots."""
    first = bindings.publish(table, binding(table, 1))
    second = bindings.publish(table, binding(table, 2, expected=first.index_snapshot_id))
    for version in (first, second):
        Path(f"{version.puffin_path}.index.json".removeprefix("file://")).write_bytes(b"{}")
    gone = {first.index_snapshot_id}
    report = collect_garbage(table, storage=STORAGE, grace=timedelta(0), dry_run=True, expiring=gone)
    snapshot = table.metadata.snapshot_by_id(first.index_snapshot_id)
    assert snapshot is not None
    assert set(report.deleted) == {first.puffin_path, f"{first.puffin_path}.index.json", snapshot.manifest_list}
    assert collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted == ()


def test_statistics_are_swept_that_say_that_icepuffin_made_them_and_no_others(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that goes while it is to be read is another run's concern; a name that only begins as ours is no proof."""
    folder = Path(f"{table.location()}/metadata".removeprefix("file://"))
    names = {made_by: f"12-{uuid.uuid4()}.stats" for made_by in (CREATED_BY, "icepuffins 1.0", "Spark 4.0", "")}
    for made_by, name in names.items():
        with (folder / name).open("wb") as sink:
            PuffinWriter(sink).finish({"created-by": made_by})
    listed = LocalStorage.list

    def with_one_that_goes(self: LocalStorage, prefix: str) -> Iterator[ObjectInfo]:
        yield ObjectInfo(f"{prefix}/13-{uuid.uuid4()}.stats", 3, 0)
        yield from list(listed(self, prefix))

    monkeypatch.setattr(LocalStorage, "list", with_one_that_goes)
    deleted = collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted
    assert [Path(path).name for path in deleted] == [names[CREATED_BY]]


def test_what_cannot_be_changed_is_reported_and_keeps_no_garbage(table: Table) -> None:
    """The owner's branch has the name of the tag that would pin a version of a snapshot that the owner has tagged."""
    table.transaction().set_properties({"ann.index.e.column": "embedding"}).commit_transaction()
    base = table.metadata.current_snapshot_id or 0
    made = bindings.publish(table, binding(table, 1))
    table.append(make_rows(10, 20))
    bindings.publish(table, binding(table, 2, expected=made.index_snapshot_id))
    table.manage_snapshots().create_tag(base, "release").create_branch(base, f"ann_e-{base}").commit()
    left = f"{table.location()}/metadata/ann-e-left.puffin"
    Path(left.removeprefix("file://")).write_bytes(b"x")
    report = collect_table_garbage(
        table, storage=STORAGE, retentions={}, default=RetentionPolicy(RetentionScope.TAGGED), grace_hours=0
    )
    (refusal,) = report.refused
    assert f"has a branch 'ann_e-{base}' that icepuffin did not make" in refusal
    assert report.deleted == (left,)
