"""An index and its sketches go into one commit, and neither keeps the other back."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding import joint_commit
from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions, sketch_versions
from icepuffin.ops.binding.commit import CommitOutcome
from icepuffin.ops.index import new_version
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.errors import GateFailedError
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.runs import snapshot
from icepuffin.ops.runs.snapshot import RefreshReport, refresh
from icepuffin.ops.table.blob_kind import BlobKind
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta import sketch_packs
from icepuffin.ops.theta.ndv import read_ndv
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head
from tests.ops.theta.test_presto import load_statistics


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    indexed = table_factory()
    indexed.append(make_rows(0, 60))
    create_index(indexed, DEFINITION)
    return indexed.refresh()


def commits_of(table: Table, act: Callable[[Table], Any]) -> int:
    before = len(table.refresh().metadata.metadata_log)
    act(table)
    return len(table.refresh().metadata.metadata_log) - before


def refreshed(table: Table) -> RefreshReport:
    return refresh(table, storage=STORAGE, threads=1)


def published(table: Table, *replaced: str | None) -> tuple[DerivedVersion, ...]:
    """The versions of the index and of the sketches. All files of ours but those `replaced` are named, and exist."""
    versions = (*index_versions(table.refresh(), "e"), *sketch_versions(table))
    named = {entry.statistics_path.removeprefix("file://") for entry in table.metadata.statistics}
    folder = Path(table.location().removeprefix("file://"))
    files = {str(path) for path in folder.rglob("*") if path.suffix in (".puffin", ".stats")}
    assert files - {path.removeprefix("file://") for path in replaced if path} == named
    return versions


def test_an_index_and_its_sketches_are_one_commit(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch_packs, "FEW_FILES", 0)
    for first in (60, 120):
        table.append(make_rows(first, first + 60))
        assert commits_of(table, refreshed) == 1
        assert commits_of(table, refreshed) == 0, "all is there"
        newest = {version.kind: version for version in published(table)}
        assert {version.base_snapshot_id for version in newest.values()} == {table.metadata.current_snapshot_id}
        ndvs = {entry.field_id: entry.ndv for entry in read_ndv(table).entries.values()}
        assert first + 60 in ndvs.values()
        derived = {version.index_snapshot_id for version in newest.values()}
        footers = [load_statistics(entry)[0] for entry in table.metadata.statistics if entry.snapshot_id in derived]
        assert footers == [ndvs, ndvs], "planners find them in each file"


def test_sketches_are_published_where_the_index_misses_its_recall(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise GateFailedError("too low")

    monkeypatch.setattr(new_version, "pass_gate", fail)

    def missed(indexed: Table) -> None:
        with pytest.raises(GateFailedError, match="too low"):
            refreshed(indexed)

    assert commits_of(table, missed) == 1
    assert [version.kind for version in published(table)] == [BlobKind.SKETCHES]
    assert read_ndv(table).entries["id"].fresh


def test_sketches_that_others_publish_meanwhile_do_not_keep_the_index_back(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    through, replaced = snapshot.materialize_index, []

    def late(run: RunContext, *arguments: Any, **named: Any) -> Any:
        other = run.table.catalog.load_table(run.table.name())
        head = run.table.metadata.current_snapshot_id or 0
        sketched = count_theta_sketches(
            RunContext(other, STORAGE, LocalRunner(1)), head, requested=RequestedStatistics(ndv=("id",))
        ).publish()
        replaced.append(sketched.statistics_path)
        return through(run, *arguments, **named)

    monkeypatch.setattr(snapshot, "materialize_index", late)
    report = refreshed(table)
    assert report.sketches is not None
    assert "somebody else published first" in report.sketches.note
    assert set(report.sketches.ndv) >= {"id", "name"}
    assert len(published(table, *replaced)) == 2


@pytest.mark.parametrize("has_version", [False, True])
def test_sketches_that_garbage_collection_takes_during_a_build_are_not_named(
    table: Table, monkeypatch: pytest.MonkeyPatch, has_version: bool
) -> None:
    if has_version:
        index_head(table)
    through = snapshot.materialize_index

    def late(run: RunContext, *arguments: Any, **named: Any) -> Any:
        other = run.table.catalog.load_table(run.table.name())
        assert len(collect_garbage(other, storage=STORAGE, grace=timedelta(0)).deleted) == 2
        return through(run, *arguments, **named)

    monkeypatch.setattr(snapshot, "materialize_index", late)
    sketched = refreshed(table).sketches
    assert sketched is not None
    assert "was deleted before it was registered" in sketched.note
    assert [version.kind for version in published(table)] == [BlobKind.INDEX]
    assert read_ndv(table).entries["id"].fresh


def test_parts_of_a_commit_whose_answer_was_lost_are_found_and_not_sent_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    through, outcomes = joint_commit.attempt_commit, [CommitOutcome.UNKNOWN]

    def unanswered(*arguments: Any) -> CommitOutcome:
        outcome = through(*arguments)
        return outcomes.pop() if outcomes else outcome

    monkeypatch.setattr(joint_commit, "attempt_commit", unanswered)
    assert commits_of(table, refreshed) == 1
    assert len(published(table)) == 2
