"""Which of several versions a refresh starts from: it shall cost what has changed, whatever was indexed meanwhile."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions
from icepuffin.ops.index.errors import NotAnIndexError
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning import version_plan
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.planning.version_plan import nearest_first
from icepuffin.ops.index.versions import version_reader
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.storage import ObjectMissingError, RefusedError, StorageError
from icepuffin.ops.table.blob_kind import BlobKind
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    """Three files of 300 rows; the head is indexed."""
    new_table = table_factory()
    for start in range(0, 900, 300):
        new_table.append(make_rows(start, start + 300))
    index_head(new_table)
    return new_table


@pytest.fixture
def head(table: Table) -> int:
    assert table.metadata.current_snapshot_id is not None
    return table.metadata.current_snapshot_id


def index_snapshot(table: Table, snapshot_id: int) -> IndexReport:
    return materialize_index(RunContext(table.refresh(), STORAGE, LocalRunner(1)), DEFINITION, snapshot_id)


def index_a_branch(table: Table, head: int) -> None:
    """With 100 rows more than `head`."""
    table.manage_snapshots().create_branch(head, "audit").commit()
    table.append(make_rows(2000, 2100), branch="audit")
    assert index_snapshot(table, table.refresh().metadata.refs["audit"].snapshot_id).inserted == 100


def test_a_backfill_of_an_old_snapshot_does_not_lead_the_next_append_astray(table: Table, head: int) -> None:
    index_snapshot(table, data_snapshots(table)[0].snapshot_id)
    table.refresh().append(make_rows(900, 940))
    report = index_head(table)
    assert (report.base_snapshot_id, report.inserted, report.tombstones) == (head, 40, 0)
    assert answer_with_recall(table)[1] >= 0.96


def test_a_backfill_starts_from_the_next_snapshot_that_has_a_version(
    table: Table, head: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in (900, 940):
        table.refresh().append(make_rows(start, start + 40))
        index_head(table)
    monkeypatch.setattr(version_plan, "MAX_BASES", 1)
    report = index_snapshot(table, data_snapshots(table)[1].snapshot_id)
    assert (report.base_snapshot_id, report.gone, report.inserted) == (head, 300, 0)


def test_an_append_starts_from_its_own_branch(table: Table, head: int) -> None:
    index_a_branch(table, head)
    table.append(make_rows(900, 940))
    report = index_head(table)
    assert (report.base_snapshot_id, report.inserted, report.tombstones) == (head, 40, 0)


def test_a_rewrite_starts_from_its_own_branch(table: Table, head: int) -> None:
    index_a_branch(table, head)
    table.overwrite(table.scan().to_arrow())
    report = index_head(table)
    assert (report.base_snapshot_id, report.remapped, report.inserted, report.tombstones) == (head, 900, 0, 0)
    assert answer_with_recall(table)[1] >= 0.96


def test_rows_that_were_deleted_since_do_not_make_a_version_the_base(table: Table, head: int) -> None:
    """Main has got other vectors by deletes: the branch's version has more rows of the files that both have."""
    files = [task.file for task in table.scan().plan_files()]
    append_position_deletes(table, {file.file_path: np.arange(290) for file in files})
    table.refresh().append(make_rows(900, 1700))
    index_head(table)
    index_a_branch(table, head)
    table.append(make_rows(1700, 1740))
    reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
    assert reader.search(queries(1), 5, columns=["id"]).profile.tail_rows == 40
    report = index_head(table)
    assert (report.action, report.inserted) == (Action.REFRESHED, 40)


def test_nearer_versions_of_a_busy_branch_leave_room_for_that_of_an_ancestor(
    table: Table, head: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.overwrite(make_rows(900, 1800))
    index_head(table)
    index_a_branch(table, head)
    table.append(make_rows(1800, 1840))
    monkeypatch.setattr(version_plan, "MAX_BASES", 1)
    reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
    assert reader.coverage is Coverage.NEAREST_VERSION_AND_TAIL
    report = index_head(table)
    assert (report.action, report.inserted) == (Action.REFRESHED, 40)


def test_what_was_rolled_back_is_no_base_for_what_comes_next(table: Table, head: int) -> None:
    table.append(make_rows(900, 1200))
    index_head(table)
    table.refresh().manage_snapshots().rollback_to_snapshot(head).commit()
    table.append(make_rows(1200, 1240))
    report = index_head(table)
    assert (report.base_snapshot_id, report.inserted, report.tombstones) == (head, 40, 0)


def test_after_an_append_to_many_versions_one_is_opened(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in (900, 940):
        table.refresh().append(make_rows(start, start + 40))
        index_head(table)
    table.refresh().append(make_rows(980, 1020))
    opened: list[Any] = []
    real = version_plan.open_versions
    monkeypatch.setattr(
        version_plan,
        "open_versions",
        lambda at, known, *more, **how: opened.extend(known) or real(at, known, *more, **how),
    )
    assert index_head(table).inserted == 40
    assert len(opened) == 1


def test_a_backfill_does_not_lead_a_search_astray_either(
    table: Table, head: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_snapshot(table, data_snapshots(table)[0].snapshot_id)
    table.refresh().append(make_rows(900, 940))
    monkeypatch.setattr(version_plan, "MAX_BASES", 1)
    found, recall = answer_with_recall(table)
    of_head = next(item for item in index_versions(table.refresh(), "e") if item.base_snapshot_id == head)
    assert found.index_snapshot_id == of_head.index_snapshot_id
    assert recall >= 0.96


def test_of_versions_that_are_as_near_the_newest_is_considered_first() -> None:
    """Those of the snapshot itself come before, and those of other distances behind all others."""

    def version(number: int, base: int, sequence_number: int, time_ms: int, distances: str = "d") -> DerivedVersion:
        return DerivedVersion(
            BlobKind.INDEX, "e", SnapshotId(number), SnapshotId(base), "", "p", sequence_number, time_ms, base, (),
            distances=distances,
        )  # fmt: skip

    versions = [
        version(1, 6, 6, 10), version(2, 6, 7, 11), version(3, 6, 7, 12), version(4, 4, 4, 9), version(5, 1, 1, 1),
        version(6, 5, 5, 8, "other"), version(7, 5, 5, 8),
    ]  # fmt: skip
    ordered = nearest_first(versions, 5, 5, "d")
    assert [item.index_snapshot_id for item in ordered] == [7, 3, 2, 1, 4, 5, 6]


@pytest.mark.parametrize(
    ("cause", "is_lasting"),
    [(ObjectMissingError("gone"), True), (RefusedError("no rights"), True), (StorageError("away"), False)],
)
def test_a_version_is_passed_over_whose_file_is_gone_or_refused_and_no_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch, cause: StorageError, is_lasting: bool
) -> None:
    """Without a version that is whole all its rows would be indexed again."""

    def fail(*_: object) -> None:
        raise NotAnIndexError("no version") from cause

    monkeypatch.setattr(version_reader, "open_version", fail)
    table: Any = None
    versions: Any = [SimpleNamespace(base_snapshot_id=7)]
    if is_lasting:
        opened, unreadable = version_reader.open_versions(table, versions, STORAGE, skip_unanswered=False)
        assert (opened, [str(error) for error in unreadable]) == ([], ["no version"])
    else:
        with pytest.raises(StorageError, match="away"):
            version_reader.open_versions(table, versions, STORAGE, skip_unanswered=False)
    assert version_reader.open_versions(table, versions, STORAGE)[0] == []
