"""The statistics slot: what stands in it after a commit is looked at, not taken for granted."""

from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import RemoveStatisticsUpdate, SetStatisticsUpdate

from icepuffin.ops.binding import joint_commit
from icepuffin.ops.binding.commit import CommitOutcome
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.table.snapshots import UnknownSnapshotError, data_snapshots
from tests.conftest import make_rows
from tests.ops.catalog.bindings import register_statistics


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    new_table = table_factory()
    new_table.append(make_rows(0, 10))
    new_table.append(make_rows(10, 20))
    return new_table


@pytest.fixture
def afterwards(table: Table, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """What happens, one after the other, right after the next commits."""
    waiting: list[Callable[[], Any]] = []
    through = table.catalog.commit_table

    def commit_table(*arguments: Any) -> Any:
        answer = through(*arguments)
        if waiting:
            waiting.pop(0)()
        return answer

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    return waiting


def put(table: Table, path: str, over: str | None = None) -> bool:
    head = data_snapshots(table)[0].snapshot_id
    return register_statistics(table, head, path=path, file_size=10, footer_size=4, blobs=[], over=over)


def somebody_writes(table: Table, snapshot_id: int) -> None:
    entry = StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path="others",
        file_size_in_bytes=1,
        file_footer_size_in_bytes=1,
        blob_metadata=[],
    )
    table.catalog.commit_table(table, (), (SetStatisticsUpdate(statistics=entry),))


def test_what_was_registered_is_there(table: Table) -> None:
    assert put(table, "ours")
    assert put(table, "ours"), "again"
    assert put(table, "newer", over="ours")
    assert not put(table, "ours", over=None)
    (entry,) = table.metadata.statistics
    assert entry.statistics_path == "newer"


def test_a_writer_right_after_our_commit_is_seen(table: Table, afterwards: list[Callable[[], Any]]) -> None:
    first = data_snapshots(table)[0].snapshot_id
    afterwards.append(lambda: somebody_writes(table, first))
    assert not put(table, "ours")
    held = find_statistics(table, first)
    assert held is not None
    assert held.statistics_path == "others"


def test_a_writer_between_our_look_and_our_commit_is_not_overwritten(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = data_snapshots(table)[0].snapshot_id
    through = joint_commit.attempt_commit

    def overtaken(*arguments: Any) -> CommitOutcome:
        monkeypatch.setattr(joint_commit, "attempt_commit", through)
        somebody_writes(table, first)
        return through(*arguments)

    monkeypatch.setattr(joint_commit, "attempt_commit", overtaken)
    assert not put(table, "ours")
    held = find_statistics(table.refresh(), first)
    assert held is not None
    assert held.statistics_path == "others"


def test_a_snapshot_that_expires_between_our_look_and_our_commit_gets_no_entry(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = data_snapshots(table)[0].snapshot_id
    through, other = joint_commit.attempt_commit, table.catalog.load_table(table.name())

    def overtaken(*arguments: Any) -> CommitOutcome:
        monkeypatch.setattr(joint_commit, "attempt_commit", through)
        other.maintenance.expire_snapshots().by_id(first).commit()
        return through(*arguments)

    monkeypatch.setattr(joint_commit, "attempt_commit", overtaken)
    with pytest.raises(UnknownSnapshotError, match="it has expired"):
        put(table, "ours")
    assert not table.refresh().metadata.statistics, "nothing would ever remove it"


def test_a_catalog_that_keeps_no_statistics_is_recognised(table: Table, afterwards: list[Callable[[], Any]]) -> None:
    first = data_snapshots(table)[0].snapshot_id
    update = RemoveStatisticsUpdate(snapshot_id=first)
    afterwards.append(lambda: table.catalog.commit_table(table.catalog.load_table(table.name()), (), (update,)))
    with pytest.raises(
        BindingError, match=rf"db\.t: catalog 'test' accepted statistics of {first} and did not keep them"
    ):
        put(table, "ours")


def test_an_entry_that_could_not_be_set_is_named_by_its_snapshot(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit_table(*_: object) -> None:
        raise CommitFailedException("somebody was first")

    table.transaction().set_properties({"commit.retry.num-retries": "0"}).commit_transaction()
    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    with pytest.raises(BindingError, match=f"statistics of {data_snapshots(table)[0].snapshot_id} not set in 1"):
        put(table, "ours")


def test_a_snapshot_that_expires_in_between_is_named(table: Table, afterwards: list[Callable[[], Any]]) -> None:
    first = data_snapshots(table)[0].snapshot_id
    other = table.catalog.load_table(table.name())
    afterwards.append(lambda: other.refresh().maintenance.expire_snapshots().by_id(first).commit())
    with pytest.raises(UnknownSnapshotError, match="it has expired"):
        put(table, "ours")


@pytest.mark.parametrize("later", [False, True])
def test_after_a_lost_answer_neither_file_is_given_up(
    table: Table, afterwards: list[Callable[[], Any]], monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """The first commit may land yet, and its file must be there then: whoever hears `False` deletes it. And what
    somebody else wrote meanwhile is to be merged, which a repetition does.
    """
    first = data_snapshots(table)[0].snapshot_id
    through = joint_commit.attempt_commit

    def unanswered(*_: Any) -> CommitOutcome:
        monkeypatch.setattr(joint_commit, "attempt_commit", through)
        if later:
            afterwards.append(lambda: somebody_writes(table, first))
        else:
            somebody_writes(table, first)
        return CommitOutcome.UNKNOWN

    monkeypatch.setattr(joint_commit, "attempt_commit", unanswered)
    with pytest.raises(
        BindingError, match=f"answer was lost, and somebody else wrote statistics of {first} "
    ) as caught:
        put(table, "ours")
    assert caught.value.retryable
    held = find_statistics(table.refresh(), first)
    assert held is not None
    assert held.statistics_path == "others"
    assert put(table, "merged", over="others")
