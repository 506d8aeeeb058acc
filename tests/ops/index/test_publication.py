"""Publishing a version: who comes second finds an equal version, or is refused, and leaves nothing."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate

from icepuffin.ops import steps
from icepuffin.ops.binding.bound_versions import index_versions, tag_target
from icepuffin.ops.binding.commit import CommitOutcome, attempt_commit
from icepuffin.ops.binding.derived_snapshots import tag_ref, tag_update
from icepuffin.ops.binding.errors import BindingError, LostRaceError
from icepuffin.ops.index import new_version
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.steps import RunStep
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.blob_kind import LASTING_MS
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin import PuffinReader
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    new_table = table_factory()
    new_table.append(make_rows(0, 300))
    return new_table


def materialize(table: Table, definition: IndexDefinition) -> IndexReport:
    own = table.catalog.load_table(table.name())
    head = SnapshotId(own.metadata.current_snapshot_id or 0)
    return materialize_index(RunContext(own, STORAGE, LocalRunner(1)), definition, head)


def files_of(table: Table) -> set[str]:
    root = f"{table.location()}/metadata"
    return {item.path for item in open_storage(root, STORAGE).list(root) if "ann-e" in item.path}


@pytest.mark.parametrize("same", [True, False], ids=["an equal version", "another version"])
def test_who_comes_second_returns_an_equal_version_alone(
    table: Table, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = new_version.bindings.publish
    first: list[IndexReport] = []

    def late(*arguments: object) -> object:
        if not first:
            monkeypatch.setattr(new_version.bindings, "publish", publish)
            first.append(materialize(table, DEFINITION if same else replace(DEFINITION, max_degree=20)))
        return publish(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(new_version.bindings, "publish", late)
    if same:
        assert materialize(table, DEFINITION).index_snapshot_id == first[0].index_snapshot_id
    else:
        with pytest.raises(LostRaceError):
            materialize(table, DEFINITION)
    (version,) = index_versions(table.refresh(), "e")
    assert version.index_snapshot_id == first[0].index_snapshot_id == tag_target(table, "ann_e")
    assert files_of(table) == {version.puffin_path}


def test_a_file_is_named_for_its_index_and_snapshot_and_says_who_wrote_it(table: Table) -> None:
    path = materialize(table, DEFINITION).puffin_path or pytest.fail("nothing was published")
    head = table.metadata.current_snapshot_id
    assert re.fullmatch(rf"ann-e-snap-{head}-[0-9a-f]{{32}}\.puffin", path.rpartition("/")[2])
    footer = PuffinReader(open_storage(path, STORAGE).source(path)).footer
    assert footer.properties["created-by"].startswith("icepuffin version ")


def test_a_sweep_deletes_markers_before_what_they_name(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker without its object would be found by the next run of an equal build. What is still written stays."""
    staged = f"{table.location()}/metadata/_icepuffin"
    store, listings = open_storage(staged, STORAGE), list[list[str]]()

    def observe(step: RunStep) -> None:
        if step in (RunStep.COMMITTED, RunStep.SWEEPING):
            listings.append([item.path for item in store.list(staged)])
            if step is RunStep.COMMITTED:
                folder = listings[0][0].rpartition("/")[0]
                store.create(f"{folder}/.written-now", b"")

    monkeypatch.setattr(steps, "observer", observe)
    assert materialize(table, DEFINITION).action is Action.BUILT
    published, without_markers, swept = listings
    markers = {path for path in published if path.endswith(".json")}
    assert markers
    assert set(without_markers) - set(swept) == set(published) - markers != set()
    assert [path.rpartition("/")[2] for path in swept] == [".written-now"]


def test_a_run_that_reuses_the_version_of_the_head_makes_its_tag_last(table: Table) -> None:
    """As tags without an age do not, which any engine's expiry may drop."""
    report = materialize(table, DEFINITION)
    bare = without_age(tag_update("ann_e", tag_ref(report.index_snapshot_id or SnapshotId(0), LASTING_MS)))
    assert attempt_commit(table.refresh(), (bare,), ()) is CommitOutcome.DONE
    assert table.refresh().metadata.refs["ann_e"].max_ref_age_ms is None
    assert materialize(table, DEFINITION).action is Action.REUSED
    assert table.refresh().metadata.refs["ann_e"].max_ref_age_ms == LASTING_MS


def without_age(update: Any) -> TableUpdate:
    """The update of a ref without an age."""
    return update.model_copy(update={"max_ref_age_ms": None})  # type: ignore[no-any-return]


@pytest.mark.parametrize("step", [RunStep.ASSEMBLED, RunStep.LIST_WRITTEN])
def test_a_run_that_stalls_beyond_the_grace_period_says_so_and_the_next_one_publishes(
    table: Table, step: RunStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalls = [step]

    def stall(reached: RunStep) -> None:
        if reached in stalls:
            stalls.remove(reached)
            collect_garbage(table.catalog.load_table(table.name()), storage=STORAGE, grace=timedelta(0))

    monkeypatch.setattr(steps, "observer", stall)
    with pytest.raises(BindingError, match=r"deleted before its version was published: the run stalled.*run it again"):
        materialize(table, DEFINITION)
    again = materialize(table, DEFINITION)
    assert again.action is Action.BUILT
    assert again.puffin_path in files_of(table)
    assert answer_with_recall(table.refresh())[1] >= 0.95
