"""Which versions stay: by policy, by the owner's tags, by age; and what is left of those that go."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.update import SetSnapshotRefUpdate

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import DerivedVersion, index_versions, tag_target, versions
from icepuffin.ops.binding.expiration import expire_derived
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.upkeep.retention_plan import RetentionPlan, carry_out_retention, plan_retention
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.blob_kind import LASTING_MS, BlobKind, version_tag
from icepuffin.ops.table.snapshots import data_snapshots, is_derived
from tests.conftest import ROWS, STORAGE, make_rows
from tests.interop.lakes import open_lake
from tests.ops.catalog.bindings import binding
from tests.ops.index.comparison import DEFINITION
from tests.ops.index.snapshot_times import set_times

TableFactory = Callable[..., Table]
AT_ONCE = timedelta(0)
PLACE = "/metadata/ann-e-left.puffin"
DAY_MS = 24 * 3600 * 1000


def with_versions(table: Table, count: int, storage: StorageConfig = STORAGE) -> Table:
    """`count` data snapshots, each with a version; the tag is on the last."""
    for number in range(count):
        table.append(make_rows(10 * number, 10 * number + 10))
        table.refresh()
        bindings.publish(table, binding(table, number, expected=tag_target(table, "ann_e"), storage=storage))
    return table


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    return with_versions(table_factory(), 4)


def planned(table: Table, retention: RetentionPolicy, *, days: float = 1) -> RetentionPlan:
    """The plan as it is that many days from now."""
    now = max(item.timestamp_ms for item in table.refresh().metadata.snapshots) + round(days * DAY_MS)
    return plan_retention(table, BlobKind.INDEX, "e", retention, grace=timedelta(hours=1), now_ms=now)


def going(table: Table, retention: RetentionPolicy, *, days: float = 1) -> list[int]:
    """Places, in the history of the table, of the snapshots whose version goes."""
    places = {item.snapshot_id: place for place, item in enumerate(data_snapshots(table.refresh()))}
    return sorted(places[item.base_snapshot_id] for item in planned(table, retention, days=days).expire)


def test_by_default_nothing_goes_before_iceberg_takes_it(table: Table) -> None:
    assert planned(table, RetentionPolicy(), days=1000) == RetentionPlan()


def test_only_the_newest_version_stays(table: Table) -> None:
    assert going(table, RetentionPolicy(RetentionScope.NEWEST)) == [0, 1, 2]


def test_the_last_versions_stay(table: Table) -> None:
    assert going(table, RetentionPolicy(last=2)) == [0, 1]
    assert going(table, RetentionPolicy(last=9)) == []


def test_the_last_few_are_those_of_the_newest_snapshots_whenever_they_were_made(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(100, 110))
    with_versions(table, 3)
    old = data_snapshots(table.refresh())[0].snapshot_id
    bindings.publish(table, replace(binding(table, 9, tag=f"ann_e-{old}"), base_snapshot_id=old))
    assert going(table, RetentionPolicy(last=2)) == [0, 1]


def test_versions_that_an_index_of_other_distances_has_left_do_not_count(table_factory: TableFactory) -> None:
    """They took the places of its own versions, and a tag of the owner's on a snapshot kept them for ever."""
    table = table_factory()
    for number in range(4):
        table.append(make_rows(10 * number, 10 * number + 10))
        before = binding(table.refresh(), number, expected=tag_target(table, "ann_e"))
        bindings.publish(table, replace(before, distances="1 l2 column vamana"))
    first, second, *_ = (snapshot.snapshot_id for snapshot in data_snapshots(table.refresh()))
    table.manage_snapshots().create_tag(second, "release").commit()
    bindings.drop(table.refresh(), "ann_e")
    side = replace(binding(table.refresh(), 8, tag=f"ann_e-{first}"), base_snapshot_id=first)
    bindings.publish(table, replace(side, distances="2 l2 column vamana"))
    assert [item.why for item in planned(table, RetentionPolicy(last=9)).expire] == [
        "a newer version of the same snapshot exists"
    ]
    bindings.publish(table.refresh(), replace(binding(table, 9), distances="2 l2 column vamana"))
    for policy in (RetentionPolicy(), RetentionPolicy(last=2)):
        plan = planned(table, policy)
        assert [item.why for item in plan.expire] == 4 * ["its index was dropped"]
        assert plan.pin == ()


def test_young_versions_stay(table: Table) -> None:
    assert going(table, RetentionPolicy(days=3), days=2) == []
    assert going(table, RetentionPolicy(days=3), days=3.1) == [0, 1, 2]


def test_nothing_younger_than_the_grace_period_goes(table: Table) -> None:
    assert planned(table, RetentionPolicy(RetentionScope.NEWEST), days=0.01) == RetentionPlan(postponed=3)


@pytest.mark.parametrize("kind", BlobKind)
def test_each_version_goes_by_its_own_age(table_factory: TableFactory, kind: BlobKind) -> None:
    """Of four versions, one published a day from the next, the first goes alone, and the second is too young."""
    table, now = table_factory(), 1_800_000_000_000
    name = "e" if kind is BlobKind.INDEX else str(kind)
    tag = version_tag(kind, name)
    for number in range(4):
        table.append(make_rows(number, number + 1))
        publication = binding(table.refresh(), number, expected=tag_target(table, tag))
        bindings.publish(table, replace(publication, kind=kind, name=name, tag=tag))
    published = versions(table.refresh(), kind, name)
    set_times(table, [item.index_snapshot_id for item in published], [now - age * DAY_MS for age in (4, 3, 2, 1)])
    plans = [
        plan_retention(table, kind, name, policy, grace=timedelta(days=3), now_ms=now)
        for policy in (RetentionPolicy(days=2.5), RetentionPolicy(days=3), RetentionPolicy(last=1))
    ]
    first = published[0].index_snapshot_id
    assert [[item.index_snapshot_id for item in plan.expire] for plan in plans] == [[first]] * 3
    assert [plan.postponed for plan in plans] == [1, 0, 2]


def test_the_version_of_a_tagged_snapshot_stays_and_is_pinned(table: Table) -> None:
    second = data_snapshots(table)[1].snapshot_id
    table.manage_snapshots().create_tag(second, "release").commit()
    assert going(table, RetentionPolicy(RetentionScope.TAGGED)) == [0, 2]
    assert going(table, RetentionPolicy(last=1)) == [0, 2]
    assert {item.why for item in planned(table, RetentionPolicy(last=1)).expire} == {"there is 1 newer one"}
    assert going(table, RetentionPolicy(RetentionScope.NEWEST)) == [0, 1, 2]
    plan = planned(table, RetentionPolicy())
    assert [item.base_snapshot_id for item in plan.pin] == [second]
    carry_out_retention(table, "ann_e", plan)
    assert f"ann_e-{second}" in table.refresh().metadata.refs
    assert planned(table, RetentionPolicy()) == RetentionPlan()
    table.manage_snapshots().remove_tag("release").commit()
    assert going(table, RetentionPolicy(RetentionScope.TAGGED)) == [0, 1, 2]


def test_a_version_of_a_tagged_snapshot_is_pinned_although_its_own_tag_will_age(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(100, 110))
    old = data_snapshots(table.refresh())[0].snapshot_id
    with_versions(table, 2)
    side = replace(binding(table, 9, tag=f"ann_e-{old}"), base_snapshot_id=old, max_ref_age_ms=1000)
    bindings.publish(table, side)
    assert planned(table, RetentionPolicy()) == RetentionPlan()
    table.manage_snapshots().create_tag(old, "release").commit()
    plan = planned(table, RetentionPolicy())
    assert [item.base_snapshot_id for item in plan.pin] == [old]
    carry_out_retention(table, "ann_e", plan)
    assert table.refresh().metadata.refs[f"ann_e-{old}"].max_ref_age_ms == LASTING_MS
    assert planned(table, RetentionPolicy()) == RetentionPlan()


def test_the_version_under_the_index_tag_needs_no_other_whatever_age_the_tag_has(table: Table) -> None:
    """A tag that somebody set anew has none; the next refresh makes it last."""
    newest = index_versions(table, "e")[-1]
    ages = {"max_ref_age_ms": None, "max_snapshot_age_ms": None, "min_snapshots_to_keep": None}
    tag = SetSnapshotRefUpdate(ref_name="ann_e", type="tag", snapshot_id=newest.index_snapshot_id, **ages)
    table.catalog.commit_table(table, (), (tag,))
    table.refresh().manage_snapshots().create_tag(newest.base_snapshot_id, "release").commit()
    table.append(make_rows(40, 50))
    assert table.metadata.refs["ann_e"].max_ref_age_ms is None
    assert planned(table, RetentionPolicy(RetentionScope.TAGGED)).pin == ()


def test_the_newest_stays_where_its_tag_was_taken_away(table: Table) -> None:
    table.manage_snapshots().remove_tag("ann_e").commit()
    assert going(table, RetentionPolicy(RetentionScope.NEWEST)) == [0, 1, 2]
    assert going(table, RetentionPolicy(RetentionScope.NONE)) == [0, 1, 2, 3]


def test_without_its_tag_the_newest_is_one_whose_snapshot_is_there(table: Table) -> None:
    """That of an expired snapshot has no use; the others have."""
    *_, third, last = data_snapshots(table)
    table.manage_snapshots().rollback_to_snapshot(third.snapshot_id).commit()
    table.manage_snapshots().remove_tag("ann_e").commit()
    table.maintenance.expire_snapshots().by_id(last.snapshot_id).commit()
    retired = planned(table, RetentionPolicy(RetentionScope.NEWEST)).expire
    assert last.snapshot_id in {item.base_snapshot_id for item in retired}
    assert third.snapshot_id not in {item.base_snapshot_id for item in retired}


def test_the_version_of_the_head_is_not_pinned_as_the_index_tag_returns_to_it(table: Table) -> None:
    second = data_snapshots(table)[1].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(second).commit()
    assert planned(table, RetentionPolicy()) == RetentionPlan()
    table.manage_snapshots().create_branch(data_snapshots(table.refresh())[0].snapshot_id, "audit").commit()
    assert len(planned(table, RetentionPolicy()).pin) == 1


def test_the_version_of_a_tagged_head_is_pinned_where_the_index_tag_is_elsewhere(table: Table) -> None:
    """As that of an index is which follows another branch."""
    second = data_snapshots(table)[1].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(second).create_tag(second, "release").commit()
    assert [item.base_snapshot_id for item in planned(table.refresh(), RetentionPolicy()).pin] == [second]


def test_a_branch_named_as_our_tag_keeps_what_it_points_at_and_protects_nothing_else(table: Table) -> None:
    table.manage_snapshots().remove_tag("ann_e").commit()
    versions_before = index_versions(table.refresh(), "e")
    branch = f"ann_e-{versions_before[0].base_snapshot_id}"
    ages = {"max_ref_age_ms": None, "max_snapshot_age_ms": None, "min_snapshots_to_keep": None}
    update = SetSnapshotRefUpdate(
        ref_name=branch, type="branch", snapshot_id=versions_before[0].index_snapshot_id, **ages
    )
    table.catalog.commit_table(table, (), (update,))
    assert going(table, RetentionPolicy(RetentionScope.NEWEST)) == [1, 2]
    carry_out_retention(table, "ann_e", planned(table, RetentionPolicy(RetentionScope.NEWEST)))
    assert branch in table.refresh().metadata.refs


def test_a_version_that_a_branch_of_the_owners_comes_from_stays(table: Table) -> None:
    """Else the branch would lose its history, and `main` could not be moved forward to it."""
    second = index_versions(table, "e")[1]
    table.manage_snapshots().create_branch(second.index_snapshot_id, "mine").commit()
    table.refresh().append(make_rows(90, 95), branch="mine")
    before = data_snapshots(table.refresh(), "mine")
    lost = table.catalog.load_table(table.name())
    lost.metadata = lost.metadata.model_copy(update={"statistics": []})
    left = plan_retention(lost, BlobKind.INDEX, "e", RetentionPolicy(), grace=timedelta(days=-1)).expire
    assert second.index_snapshot_id not in {item.index_snapshot_id for item in left}, "nor where it has lost its file"
    assert len(left) == 2
    assert [item.snapshot_id for item in before[:2]] == [item.snapshot_id for item in data_snapshots(table)[:2]]
    assert going(table, RetentionPolicy(RetentionScope.NEWEST)) == [0, 2]
    assert carry_out_retention(table, "ann_e", planned(table, RetentionPolicy(RetentionScope.NEWEST)))
    assert expire_derived(table, [second.index_snapshot_id], own_tags=["ann_e"]) == ()
    assert data_snapshots(table.refresh(), "mine") == before
    table.manage_snapshots().remove_branch("mine").commit()
    head = before[-1].snapshot_id
    table.refresh().maintenance.expire_snapshots().by_id(head).commit()
    assert going(table, RetentionPolicy(RetentionScope.NEWEST)) == [1]


def test_a_version_that_somebody_tagged_stays(table: Table) -> None:
    oldest = index_versions(table, "e")[0].index_snapshot_id
    table.manage_snapshots().create_tag(oldest, "release").commit()
    assert going(table, RetentionPolicy(RetentionScope.NEWEST)) == [1, 2]


def test_a_version_whose_entry_was_removed_goes_unless_a_ref_is_on_it(table: Table) -> None:
    """Trino's `drop_extended_stats` removes all entries of a table, and nobody can read such a version."""
    for entry in table.refresh().metadata.statistics:
        with table.update_statistics() as update:
            update.remove_statistics(entry.snapshot_id)
    versions = {snapshot.snapshot_id for snapshot in table.refresh().metadata.snapshots if is_derived(snapshot)}
    table.manage_snapshots().create_tag(min(versions - {tag_target(table, "ann_e")}), "audit").commit()
    assert planned(table, RetentionPolicy(), days=0.01).postponed == 2
    on_refs = {ref.snapshot_id for ref in table.metadata.refs.values()}
    lost = [item for item in table.metadata.snapshots if item.snapshot_id in versions - on_refs]
    hour_later, grace = min(item.timestamp_ms for item in lost) + 3_600_000, timedelta(hours=1)
    for now, goes in ((hour_later, False), (hour_later + 1, True)):
        plan = plan_retention(table, BlobKind.INDEX, "e", RetentionPolicy(), grace=grace, now_ms=now)
        assert bool(plan.expire) is goes
    plan = planned(table, RetentionPolicy())
    assert [item.why for item in plan.expire] == 2 * ["its statistics entry was removed"]
    assert len(carry_out_retention(table, "ann_e", plan)) == 2
    bindings.drop(table, "ann_e")
    plan = planned(table, RetentionPolicy(RetentionScope.NONE))
    assert len(carry_out_retention(table, "ann_e", plan)) == 1
    assert versions.intersection(item.snapshot_id for item in table.refresh().metadata.snapshots) == {
        table.metadata.refs["audit"].snapshot_id
    }


def test_a_version_goes_when_its_snapshot_has_expired_and_the_newest_never(table: Table) -> None:
    table.append(make_rows(100, 110))
    expired = [item.snapshot_id for item in data_snapshots(table.refresh())[:4]]
    table.maintenance.expire_snapshots().by_ids(expired).commit()
    plan = planned(table, RetentionPolicy())
    assert [item.base_snapshot_id for item in plan.expire] == expired[:3]
    assert {item.why for item in plan.expire} == {"its snapshot has expired"}


def test_the_older_of_two_versions_of_one_snapshot_expires(table: Table) -> None:
    bindings.publish(table, binding(table, 9, expected=tag_target(table, "ann_e")))
    (gone,) = planned(table, RetentionPolicy()).expire
    assert gone.why == "a newer version of the same snapshot exists"
    assert gone.puffin_path.endswith("ann-e-3.puffin")


def files_of(table: Table, version: DerivedVersion) -> list[str]:
    snapshot = table.metadata.snapshot_by_id(version.index_snapshot_id)
    assert snapshot is not None
    return [version.puffin_path, snapshot.manifest_list]


def assert_carried_out(table: Table, storage: StorageConfig) -> None:
    """Those that go leave no snapshot, no tag, no file; the data and the rest are as they were."""
    versions_before = index_versions(table.refresh(), "e")
    history = data_snapshots(table)
    doomed, leftover = files_of(table, versions_before[0]), files_of(table, versions_before[-1])
    plan = planned(table, RetentionPolicy(RetentionScope.NEWEST))
    ids = {item.index_snapshot_id for item in plan.expire}
    report = collect_garbage(table, storage=storage, grace=AT_ONCE, dry_run=True, expiring=ids)
    assert set(doomed) <= set(report.deleted)
    assert collect_garbage(table, storage=storage, grace=AT_ONCE).deleted == (), "they are still named by metadata"
    assert {item.index_snapshot_id for item in carry_out_retention(table, "ann_e", plan)} == ids
    store = open_storage(table.location(), storage)
    assert set(report.deleted) == set(collect_garbage(table, storage=storage, grace=AT_ONCE).deleted)
    assert not any(store.exists(path) for path in doomed)
    assert all(store.exists(path) for path in leftover)
    assert index_versions(table.refresh(), "e") == versions_before[-1:]
    assert [item.snapshot_id for item in data_snapshots(table)] == [item.snapshot_id for item in history]
    for item in history:
        assert table.scan(snapshot_id=item.snapshot_id).count() > 0
    carry_out_retention(table, "ann_e", plan)
    assert index_versions(table.refresh(), "e") == versions_before[-1:]


def test_versions_that_go_leave_nothing_and_touch_nothing(table: Table) -> None:
    assert_carried_out(table, STORAGE)


@pytest.mark.services
def test_a_rest_catalog_expires_them_as_well(rest_uri: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("kept")
    with open_lake("kept", rest_uri, folder) as lake:
        assert_carried_out(with_versions(lake.create("t"), 4), STORAGE)


def test_a_version_that_the_index_tag_came_back_to_is_left_in_place(table: Table) -> None:
    """A rollback between the plan and the sweep: the tag, which is ours, protects it all the same."""
    plan = planned(table, RetentionPolicy(RetentionScope.NEWEST))
    versions_before = index_versions(table, "e")
    bindings.move_tag(
        table, "ann_e", versions_before[0].index_snapshot_id, expected_ref=versions_before[-1].index_snapshot_id
    )
    gone = carry_out_retention(table, "ann_e", plan)
    assert [item.index_snapshot_id for item in gone] == [
        versions_before[1].index_snapshot_id,
        versions_before[2].index_snapshot_id,
    ]
    assert tag_target(table.refresh(), "ann_e") == versions_before[0].index_snapshot_id
    assert {item.index_snapshot_id for item in index_versions(table, "e")} == {
        versions_before[0].index_snapshot_id,
        versions_before[3].index_snapshot_id,
    }


def test_a_side_tag_that_moves_during_the_commit_is_read_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    versions_before = index_versions(table, "e")
    side = f"ann_e-{versions_before[0].base_snapshot_id}"
    bindings.move_tag(table, side, versions_before[0].index_snapshot_id, expected_ref=None)
    again = replace(
        binding(table, 9, tag=side, expected=versions_before[0].index_snapshot_id),
        base_snapshot_id=versions_before[0].base_snapshot_id,
    )
    plan = planned(table, RetentionPolicy(RetentionScope.NEWEST))
    through = table.catalog.commit_table
    steps = iter([lambda: bindings.publish(table.catalog.load_table(table.name()), again)])

    def commit_table(*arguments: Any) -> Any:
        next(steps, lambda: None)()
        return through(*arguments)

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    carry_out_retention(table, "ann_e", plan)
    assert [item.puffin_path for item in index_versions(table.refresh(), "e") if side in item.tags] == [
        again.puffin_path
    ]


def leave_behind(table: Table) -> Path:
    file = Path(f"{table.location()}{PLACE}".removeprefix("file://"))
    file.write_bytes(b"left behind")
    return file


def test_a_file_that_a_summary_names_is_left_to_whoever_made_it(table: Table) -> None:
    leftover = leave_behind(table)
    table.append(make_rows(90, 95), snapshot_properties={"statistics-file": f"file:{leftover}"})
    assert collect_garbage(table, storage=STORAGE, grace=AT_ONCE).deleted == ()
    assert leftover.exists()


def test_what_is_old_is_so_by_the_clock_of_the_store(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    create_index(table, DEFINITION)
    leftover = leave_behind(table)
    true = time.time()
    monkeypatch.setattr(time, "time", lambda: true + 7 * 24 * 3600)
    assert collect_garbage(table, storage=STORAGE).deleted == ()
    report = collect_table_garbage(
        table, storage=STORAGE, retentions={}, default=RetentionPolicy(RetentionScope.NEWEST), grace_hours=24
    )
    assert (report.deleted, report.kept_young, report.retired_later) == ((), 1, 3)
    assert leftover.exists()


def test_a_table_whose_location_has_a_double_slash_is_swept(sql_catalog: Catalog, tmp_path: Path) -> None:
    location = f"file://{tmp_path}/x//c/t"
    table = sql_catalog.create_table("db.slashed", ROWS, location, properties={"format-version": "2"})
    with_versions(table, 2)
    left = leave_behind(table)
    assert collect_garbage(table, storage=STORAGE, grace=AT_ONCE).deleted == (f"file://{tmp_path}/x/c/t{PLACE}",)
    assert not left.exists()
    store = open_storage(location, STORAGE)
    assert all(store.exists(path) for version in index_versions(table, "e") for path in files_of(table, version))
    assert table.scan().count() == 20


def test_a_snapshot_that_a_new_tag_points_at_is_left_in_place(table: Table, sql_catalog: Catalog) -> None:
    plan = planned(table, RetentionPolicy(RetentionScope.NEWEST))
    rescued = plan.expire[0].index_snapshot_id
    sql_catalog.load_table("db.t").manage_snapshots().create_tag(rescued, "release").commit()
    gone = carry_out_retention(table, "ann_e", plan)
    assert rescued not in {item.index_snapshot_id for item in gone}
    assert len(gone) == 2
    assert index_versions(table.refresh(), "e")[0].index_snapshot_id == rescued


def test_a_version_that_a_run_tags_meanwhile_stays(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner rolls back, and a run moves the index tag to an old version while that is about to go."""
    plan = planned(table, RetentionPolicy(RetentionScope.NEWEST))
    versions_before = index_versions(table, "e")
    again = versions_before[1].index_snapshot_id
    run = table.catalog.load_table(table.name())
    through = table.catalog.commit_table

    def a_run_comes_first(*arguments: Any) -> Any:
        monkeypatch.setattr(table.catalog, "commit_table", through)
        bindings.move_tag(run, "ann_e", again, expected_ref=versions_before[-1].index_snapshot_id)
        return through(*arguments)

    monkeypatch.setattr(table.catalog, "commit_table", a_run_comes_first)
    gone = carry_out_retention(table, "ann_e", plan)
    assert {item.index_snapshot_id for item in gone} == {versions_before[at].index_snapshot_id for at in (0, 2)}
    assert tag_target(table.refresh(), "ann_e") == again
