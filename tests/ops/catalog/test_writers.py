"""The law of a good guest: no write of the user's fails because of a version, or has to be tried again."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AssertRefSnapshotId

from icepuffin.ops.binding import bindings, commit, derived_snapshots
from icepuffin.ops.binding.bound_versions import index_versions, own_tags, tag_target
from icepuffin.ops.binding.commit import CommitOutcome
from icepuffin.ops.binding.derived_snapshots import NewPack
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.binding.expiration import expire_derived
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.index.index_materialization import materialize_index, rebuild_tombstoned_shards
from icepuffin.ops.model import Action
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.blob_kind import KIND_KEY
from icepuffin.ops.table.snapshots import ancestor_ids, data_snapshots
from icepuffin.ops.table.summaries import summary_of
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.bindings import binding
from tests.ops.catalog.writers import (
    WRITES,
    assert_numbers,
    commits_of_writers,
    counted_commits,
    refresh,
)
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head

Act = Callable[[Catalog], None]
pytestmark = pytest.mark.filterwarnings("ignore:Delete operation did not match any records:UserWarning")


@pytest.fixture
def writers_catalog(sql_catalog: Catalog, tmp_path: Path) -> Catalog:
    """The same catalog, by a client of the writers' own."""
    return open_catalog("test", dict(sql_catalog.properties))


def property_changes(count: int) -> Callable[[Table], None]:
    """As many commits as a refresh of ours takes, of somebody who sets a property."""

    def change(table: Table) -> None:
        for number in range(count):
            table.refresh().transaction().set_properties({f"number-{number}": "1"}).commit_transaction()

    return change


def publications() -> Callable[[Table], None]:
    """Publishes another version and pack each time."""
    numbers = itertools.count()

    def publish(table: Table) -> None:
        number = next(numbers)
        pack = NewPack(path=f"s3://nowhere/pack-{number}.puffin", size=4, footer_size=2)
        request = binding(table, number, expected=tag_target(table, "ann_e"))
        bindings.publish(table, replace(request, new_packs=(pack,)))

    return publish


@pytest.mark.parametrize("version", ["1", "2", "1, then 2"])
def test_writers_that_loaded_their_table_before_a_version_write_as_if_it_was_none(
    table_factory: Callable[..., Table], writers_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    indexed, control = (table_factory(name, **{"format-version": version[0]}) for name in ("t", "control"))
    for table in (indexed, control):
        table.append(make_rows(0, 60))
    between = refresh if version == "2" else publications()
    sent: list[int] = []

    def counted(table: Table) -> None:
        with counted_commits(table.catalog, monkeypatch) as commits:
            between(table)
        sent.append(len(commits))

    writes = {"append first": WRITES["append"], "upgrade": upgrade, **WRITES} if "then" in version else WRITES
    commits = commits_of_writers(indexed, writers_catalog, monkeypatch, counted, writes)
    expected = commits_of_writers(control, writers_catalog, monkeypatch, property_changes(max(sent)), writes)
    assert commits == expected == dict.fromkeys(writes, 1)
    rows = [sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) for table in (indexed, control)]
    assert rows[0] == rows[1]
    assert indexed.metadata.format_version == int(version[-1])


def upgrade(table: Table, _: int) -> None:
    table.transaction().upgrade_table_version(2).commit_transaction()


def test_what_drops_and_sweeps_versions_fails_no_write_either(
    table_factory: Callable[..., Table], writers_catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_factory()
    table.append(make_rows(0, 60))
    steps = iter([refresh, lambda table: drop_index(table, "e"), sweep, refresh, sweep])

    def step(table: Table) -> None:
        next(steps)(table)

    writes = {name: WRITES[name] for name in ("append", "delete", "overwrite", "upsert", "properties")}
    commits = commits_of_writers(table, writers_catalog, monkeypatch, step, writes)
    assert commits == dict.fromkeys(writes, 1)


def sweep(table: Table) -> None:
    collect_table_garbage(table, storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=0)


@pytest.mark.parametrize("meanwhile", ["publish", "property"])
def test_a_version_in_the_middle_of_a_writers_commit_costs_what_a_property_costs(
    table_factory: Callable[..., Table], writers_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """The pointer to the metadata is swapped once at a time, whoever commits."""
    table = table_factory()
    table.append(make_rows(0, 10))
    request = binding(table)

    def between() -> None:
        if meanwhile == "publish":
            bindings.publish(table, request)
        else:
            property_changes(1)(table)

    handle, through = writers_catalog.load_table("db.t"), type(writers_catalog)._write_metadata  # type: ignore[attr-defined]
    acts = iter([between])

    def write_metadata(*arguments: Any, **keywords: Any) -> None:
        through(*arguments, **keywords)
        next(acts, lambda: None)()

    monkeypatch.setattr(writers_catalog, "_write_metadata", write_metadata)
    with counted_commits(writers_catalog, monkeypatch) as sent:
        handle.append(make_rows(10, 20))
    assert len(sent) == 2
    assert table.refresh().scan().to_arrow().num_rows == 20
    assert_numbers(table)


def stage(catalog: Catalog) -> None:
    """A snapshot as of write-audit-publish: added, and no ref moved."""
    catalog.load_table("db.t").append(make_rows(50, 60), branch=None)


def write_and_roll_back(catalog: Catalog) -> None:
    """All branches are where they were."""
    table = catalog.load_table("db.t")
    head = table.metadata.current_snapshot_id
    table.append(make_rows(50, 60))
    table.manage_snapshots().set_current_snapshot(head).commit()


def write_to_a_new_branch(catalog: Catalog) -> None:
    table = catalog.load_table("db.t")
    table.manage_snapshots().create_branch(table.metadata.current_snapshot_id or 0, "new").commit()
    table.append(make_rows(50, 60), branch="new")


MEANWHILE = [stage, write_and_roll_back, write_to_a_new_branch]


@pytest.fixture
def early(table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Table]:
    """A table whose next commit by us comes after an act of somebody else's, which it did not see."""

    def make(act: Act, writers_catalog: Catalog) -> Table:
        table = table_factory()
        table.append(make_rows(0, 10))
        through, acts = table.catalog.commit_table, iter([act])

        def commit_table(*arguments: Any) -> Any:
            next(acts, lambda _: None)(writers_catalog)
            return through(*arguments)

        monkeypatch.setattr(table.catalog, "commit_table", commit_table)
        return table

    return make


@pytest.mark.parametrize("act", MEANWHILE)
def test_a_snapshot_that_moves_no_branch_makes_our_commit_try_again(
    early: Callable[..., Table],
    writers_catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    act: Act,
) -> None:
    table = early(act, writers_catalog)
    with counted_commits(table.catalog, monkeypatch) as sent:
        version = bindings.publish(table, binding(table))
    assert sent == [1, 2]
    assert (version.sequence_number, version.tags) == (2, ("ann_e",))
    assert_numbers(table)


def without_last_number(table: Table) -> tuple[Any, ...]:
    """As a server sees the requirements that compares no numbers."""
    return tuple(item for item in same_numbers(table) if isinstance(item, AssertRefSnapshotId))


same_numbers = derived_snapshots.same_numbers


@pytest.mark.parametrize("act", MEANWHILE)
def test_where_a_server_let_the_last_number_go_back_it_is_put_right_at_once(
    early: Callable[..., Table],
    writers_catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    act: Act,
) -> None:
    monkeypatch.setattr(bindings, "same_numbers", without_last_number)
    table = early(act, writers_catalog)
    with counted_commits(table.catalog, monkeypatch) as sent:
        version = bindings.publish(table, binding(table))
    assert len(sent) == 2
    assert version.sequence_number == 1
    assert_numbers(table)
    assert table.metadata.last_sequence_number == 2  # type: ignore[union-attr]
    assert index_versions(writers_catalog.load_table("db.t"), "e") == (version,)
    writers_catalog.load_table("db.t").append(make_rows(60, 70))


@pytest.mark.parametrize("branch", ["main", "audit"])
def test_on_any_server_a_branch_that_moves_makes_our_commit_try_again(
    early: Callable[..., Table], writers_catalog: Catalog, monkeypatch: pytest.MonkeyPatch, branch: str
) -> None:
    monkeypatch.setattr(bindings, "same_numbers", without_last_number)

    def write(catalog: Catalog) -> None:
        catalog.load_table("db.t").append(make_rows(50, 60), branch=branch)

    table = early(write, writers_catalog)
    head = table.metadata.current_snapshot_id or 0
    writers_catalog.load_table("db.t").manage_snapshots().create_branch(head, "audit").commit()
    with counted_commits(table.catalog, monkeypatch) as sent:
        version = bindings.publish(table.refresh(), binding(table))
    assert len(sent) == version.sequence_number == 2


def test_to_a_server_the_requirement_of_the_last_number_is_the_uuid(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 10))
    (number, *_) = same_numbers(table)
    assert json.loads(number.model_dump_json()) == {
        "type": "assert-table-uuid",
        "uuid": str(table.metadata.table_uuid),
    }


def test_a_number_that_cannot_be_put_right_is_an_error(
    early: Callable[..., Table], writers_catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings, "same_numbers", without_last_number)
    monkeypatch.setattr(commit, "COMMIT_ATTEMPTS", 2)
    table, through = early(stage, writers_catalog), bindings.attempt_commit
    monkeypatch.setattr(bindings, "attempt_commit", lambda *_: CommitOutcome.REFUSED)
    with pytest.raises(BindingError, match="could not be put right in 2 attempts; run it again"):
        bindings.publish(table, binding(table))
    monkeypatch.setattr(bindings, "attempt_commit", through)
    request = binding(table, 1, expected=index_versions(table, "e")[0].index_snapshot_id)
    assert bindings.publish(table, request).sequence_number == 2
    assert_numbers(table)


def test_a_branch_or_tag_of_the_owners_on_a_version_has_all_rows_and_their_history(
    table_factory: Callable[..., Table],
) -> None:
    table = table_factory()
    for first in (0, 10):
        table.append(make_rows(first, first + 10))
    line = [item.snapshot_id for item in data_snapshots(table)]
    version = bindings.publish(table, binding(table))
    refs = table.manage_snapshots().create_tag(version.index_snapshot_id, "release")
    refs.create_branch(version.index_snapshot_id, "mine").commit()
    table.append(make_rows(20, 30), branch="mine")
    table.refresh()
    assert_numbers(table)
    assert [table.scan().use_ref(name).to_arrow().num_rows for name in ("release", "mine", "main")] == [20, 30, 20]
    assert [item.snapshot_id for item in data_snapshots(table, "mine")][:-1] == line
    assert ancestor_ids(table, version.index_snapshot_id) == {version.index_snapshot_id, *line}
    assert expire_derived(table, [version.index_snapshot_id], ["ann_e"]) == ()


def test_an_index_follows_main_where_the_owner_has_put_it_on_a_version(table_factory: Callable[..., Table]) -> None:
    table = table_factory()
    table.append(make_rows(0, 60))
    made = index_head(table)
    table.refresh().manage_snapshots().set_current_snapshot(made.index_snapshot_id).commit()
    run = RunContext(table.refresh(), STORAGE, LocalRunner(1))
    assert rebuild_tombstoned_shards(run, DEFINITION) is None
    other = materialize_index(run, replace(DEFINITION, max_degree=20), made.snapshot_id)
    assert other.action is Action.BUILT
    assert tag_target(table.refresh(), "ann_e") == other.index_snapshot_id, "so that a sweep keeps this one"


def test_a_version_that_took_a_number_once_gives_way_to_one_that_takes_none(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As versions were bound before: with a parent, the next number, and no kind."""
    table = table_factory()
    table.append(make_rows(0, 60))
    create_index(table, DEFINITION)
    table.refresh()

    def with_number(at: Table, *arguments: Any) -> Snapshot:
        snapshot = derived_snapshots.derive_snapshot(at, *arguments)
        properties = {key: value for key, value in summary_of(snapshot).items() if key != KIND_KEY}
        old = {"parent_snapshot_id": at.metadata.current_snapshot_id, "sequence_number": 2}
        return snapshot.model_copy(update={**old, "summary": Summary(Operation.REPLACE, **properties)})

    with monkeypatch.context() as patch:
        patch.setattr(bindings, "derive_snapshot", with_number)
        with pytest.raises(bindings.UnsupportedCatalogError, match="a parent"):
            index_head(table)
    (old,) = index_versions(table.refresh(), "e")
    assert own_tags(table, "ann_e") == {"ann_e"}
    table.append(make_rows(60, 70))
    assert answer_with_recall(table)[1] == 1
    assert table.metadata.last_sequence_number == 3  # type: ignore[union-attr]
    index_head(table)
    assert_numbers(table.refresh())
    newest = RetentionPolicy(RetentionScope.NEWEST)
    collect_table_garbage(table, storage=STORAGE, retentions={}, default=newest, grace_hours=0)
    (new,) = index_versions(table.refresh(), "e")
    assert (new.sequence_number, new.tags) == (3, ("ann_e",))
    assert not open_storage(old.puffin_path, STORAGE).exists(old.puffin_path)
