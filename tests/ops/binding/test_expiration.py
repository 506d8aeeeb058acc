"""Expiry of versions takes what icepuffin made and nothing else, and says what is gone."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, TableRequirement, TableUpdate
from sqlalchemy.exc import OperationalError

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.commit import CommitOutcome, attempt_commit
from icepuffin.ops.binding.expiration import expire_derived
from tests.conftest import make_rows
from tests.ops.catalog.bindings import binding

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    new_table = table_factory()
    new_table.append(make_rows(0, 10))
    new_table.append(make_rows(10, 20))
    return new_table


def test_a_data_snapshot_stays_even_where_it_is_named(table: Table) -> None:
    version = bindings.publish(table, binding(table))
    data = [item.snapshot_id for item in table.metadata.snapshots if item.snapshot_id != version.index_snapshot_id]
    assert expire_derived(table, [*data, version.index_snapshot_id], ["ann_e"]) == (version.index_snapshot_id,)
    assert [item.snapshot_id for item in table.refresh().metadata.snapshots] == data
    assert set(table.metadata.refs) == {"main"}


def test_a_snapshot_that_a_writer_has_staged_stays_where_it_is_named(table: Table) -> None:
    """It is in no history, and no ref points at it."""
    table.append(make_rows(20, 30), branch=None)
    staged = table.refresh().metadata.snapshots[-1].snapshot_id
    expire_derived(table, [staged], [])
    assert staged in {snapshot.snapshot_id for snapshot in table.refresh().metadata.snapshots}


def test_a_removal_asserts_each_tag_that_a_run_might_put_on_the_version_meanwhile(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = bindings.publish(table, binding(table))
    through, asserted = table.catalog.commit_table, []

    def commit_table(table: Table, requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]) -> Any:
        asserted.extend(one for one in requirements if isinstance(one, AssertRefSnapshotId))
        return through(table, tuple(requirements), tuple(updates))

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    expire_derived(table, [version.index_snapshot_id], ["ann_e"])
    tags = "ann_e", f"ann_e-{version.base_snapshot_id}", "ann_e-side"
    targets = dict.fromkeys(tags) | {"ann_e": version.index_snapshot_id}
    assert {one.ref: one.snapshot_id for one in asserted} == targets


def test_a_version_that_another_ref_points_at_stays_and_is_not_reported_as_expired(table: Table) -> None:
    version = bindings.publish(table, binding(table))
    bindings.drop(table, "ann_e")
    table.manage_snapshots().create_tag(version.index_snapshot_id, "release").commit()
    assert expire_derived(table, [version.index_snapshot_id], []) == ()
    assert table.refresh().metadata.refs["release"].snapshot_id == version.index_snapshot_id
    assert expire_derived(table, [17], []) == (17,), "what is gone already is gone"


def test_a_version_that_the_owner_made_the_current_one_stays_in_the_history(table: Table) -> None:
    """Without it Iceberg's Java library drops what the history has of before: no query AS OF a time finds that."""
    version, head = bindings.publish(table, binding(table)), table.metadata.current_snapshot_id
    for current in (version.index_snapshot_id, head):
        table.manage_snapshots().set_current_snapshot(snapshot_id=current).commit()
    history = table.refresh().metadata.snapshot_log
    assert expire_derived(table, [version.index_snapshot_id], ["ann_e"]) == ()
    assert table.refresh().metadata.snapshot_log == history


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_ref_that_the_owner_sets_between_look_and_commit_keeps_the_version(
    table: Table, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A catalog drops the refs on a snapshot that is removed."""
    version = bindings.publish(table, binding(table))
    through, sent = table.catalog.commit_table, []

    def commit_table(*arguments: Any) -> Any:
        sent.append(arguments)
        if len(sent) == 1:
            theirs = table.catalog.load_table(table.name()).manage_snapshots()
            (theirs.create_tag if kind == "tag" else theirs.create_branch)(
                version.index_snapshot_id, "release"
            ).commit()
        return through(*arguments)

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    assert expire_derived(table, [version.index_snapshot_id], ["ann_e"]) == ()
    assert table.refresh().metadata.refs["release"].snapshot_id == version.index_snapshot_id
    assert len(sent) == 2, "the owner's commit, and ours, which was refused"


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [("database is locked", CommitOutcome.REFUSED), ("server closed the connection", CommitOutcome.UNKNOWN)],
)
def test_a_lost_answer_proves_a_rollback_only_where_the_database_was_locked(
    table: Table, monkeypatch: pytest.MonkeyPatch, cause: str, outcome: CommitOutcome
) -> None:
    def commit_table(*_: object) -> None:
        raise OperationalError("COMMIT", {}, Exception(cause))

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    assert attempt_commit(table, (), ()) is outcome
