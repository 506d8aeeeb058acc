from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyiceberg.avro.file import AvroFile
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import TagTakenError, index_versions, own_tags, tag_target
from icepuffin.ops.binding.derived_snapshots import NewPack
from icepuffin.ops.binding.errors import BindingError, LostRaceError, UnsupportedCatalogError
from icepuffin.ops.index.definitions.ddl import create_index, drop_index, list_definitions
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy
from icepuffin.ops.index.planning.version_plan import plan_version
from icepuffin.ops.model import Action
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.table.blob_kind import LASTING_MS
from icepuffin.ops.table.snapshots import UnknownSnapshotError, data_snapshots, is_derived, resolve_snapshot
from icepuffin.ops.table.summaries import summary_of
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.bindings import binding
from tests.ops.index.comparison import DEFINITION, index_head

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    made = table_factory()
    made.append(make_rows(0, 10))
    return made


def test_a_version_is_a_replace_snapshot_with_a_tag_and_a_statistics_file(table: Table) -> None:
    version = bindings.publish(table, binding(table))
    snapshot = table.metadata.snapshot_by_id(version.index_snapshot_id)
    base = table.metadata.current_snapshot()
    assert snapshot is not None
    assert base is not None
    assert is_derived(snapshot)
    assert snapshot.parent_snapshot_id is None
    assert snapshot.sequence_number == base.sequence_number == table.metadata.last_sequence_number
    assert snapshot.manifest_list != base.manifest_list
    assert snapshot.manifests(table.io) == base.manifests(table.io)
    with AvroFile[ManifestFile](table.io.new_input(snapshot.manifest_list)) as manifest_list:
        assert manifest_list.header.meta["snapshot-id"] == str(snapshot.snapshot_id)
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.REPLACE
    assert snapshot.summary["total-records"] == "10"
    assert snapshot.summary["statistics-file"] == version.puffin_path
    assert version.tags == ("ann_e",)
    assert table.metadata.statistics[0].blob_metadata == []
    assert table.scan(snapshot_id=version.index_snapshot_id).to_arrow().num_rows == 10


def totals(snapshot: Snapshot | None) -> dict[str, str]:
    assert snapshot is not None
    return {key: value for key, value in summary_of(snapshot).items() if key.startswith("total-")}


def test_a_version_has_the_totals_of_its_base_and_a_pack_those_of_an_empty_table(table: Table) -> None:
    """Planners go by them: a version counts as the rows that it reads as, less the deleted ones, its pack as none."""
    new_pack = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
    version = bindings.publish(table, replace(binding(table), new_packs=(new_pack,)))
    base, (pack,) = table.metadata.current_snapshot(), version.packs
    holder = table.metadata.snapshot_by_id(pack.holder_id)
    assert holder is not None
    assert totals(holder).keys() == {"total-records", "total-data-files", "total-position-deletes"}
    expected = {name: totals(base)[name] for name in totals(holder)}
    assert totals(table.metadata.snapshot_by_id(version.index_snapshot_id)) == expected
    assert set(totals(holder).values()) == {"0"}
    assert holder.schema_id == table.metadata.current_schema_id
    assert table.scan(snapshot_id=holder.snapshot_id).to_arrow().num_rows == 0


def test_derived_snapshots_are_not_the_users_history(table: Table) -> None:
    version = bindings.publish(table, binding(table))
    table.append(make_rows(10, 20))
    snapshots = data_snapshots(table)
    assert [snapshot.operation for snapshot in snapshots] == ["append", "append"]
    assert resolve_snapshot(table, version.index_snapshot_id) == snapshots[0]


def test_the_index_tag_names_the_rows_that_it_keeps_after_its_snapshot_has_expired(table: Table) -> None:
    version = bindings.publish(table, binding(table))
    table.append(make_rows(10, 20))
    table.maintenance.expire_snapshots().by_id(version.base_snapshot_id).commit()
    result = resolve_snapshot(table.refresh(), "ann_e")
    assert result.snapshot_id == version.index_snapshot_id
    assert len(table.scan(snapshot_id=result.snapshot_id).to_arrow()) == 10
    with pytest.raises(UnknownSnapshotError, match="is icepuffin's own, for data snapshot"):
        plan_version(RunContext(table, STORAGE), DEFINITION, result.snapshot_id)


def test_one_of_two_refreshers_loses(table: Table) -> None:
    bindings.publish(table, binding(table, 1))
    with pytest.raises(LostRaceError, match="somebody else published first"):
        bindings.publish(table, binding(table, 2))


def test_the_tag_moves_to_the_next_version_and_both_are_listed(table: Table) -> None:
    first = bindings.publish(table, binding(table, 1))
    second = bindings.publish(table, binding(table, 2, expected=first.index_snapshot_id))
    known = index_versions(table, "e")
    assert [version.index_snapshot_id for version in known] == [first.index_snapshot_id, second.index_snapshot_id]
    assert [version.tags for version in known] == [(), ("ann_e",)]


def test_a_repeated_publication_of_one_build_is_found_done(table: Table) -> None:
    wanted = binding(table)
    assert bindings.publish(table, wanted) == bindings.publish(table, wanted)


def test_a_build_is_published_again_where_the_tag_went_back_before_it(table: Table) -> None:
    """As after a rollback: that a version of the same file exists does not help whoever follows the tag."""
    first = bindings.publish(table, binding(table, 1)).index_snapshot_id
    request = binding(table, 2, expected=first)
    second = bindings.publish(table, request).index_snapshot_id
    bindings.move_tag(table, "ann_e", first, expected_ref=second)
    again = bindings.publish(table, request)
    assert again.tags == ("ann_e",)
    assert again.index_snapshot_id not in {first, second}


@pytest.mark.parametrize("target", ["none", "an older snapshot", "a newer snapshot"])
def test_packs_whose_tag_is_not_on_them_are_not_shared(table: Table, target: str) -> None:
    ids = [bindings.publish(table, binding(table, 1, name="a")).index_snapshot_id]
    new_pack = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
    first = bindings.publish(table, replace(binding(table, 1), new_packs=(new_pack,)))
    ids.append(bindings.publish(table, binding(table, 1, name="b")).index_snapshot_id)
    (pack,) = first.packs
    request = replace(binding(table, 2, expected=first.index_snapshot_id), packs=(pack.holder_id,))
    if target == "none":
        change(table, RemoveSnapshotRefUpdate(ref_name=f"ann_e-pack-{pack.holder_id}"))
    else:
        least, most = min(*ids, first.base_snapshot_id), max(*ids, first.base_snapshot_id)
        other = most if target == "a newer snapshot" else least
        set_ref(table, f"ann_e-pack-{pack.holder_id}", other, SnapshotRefType.TAG)
    with pytest.raises(LostRaceError, match="packs of ann_e that the version shares were dropped meanwhile"):
        bindings.publish(table, request)


def test_a_stale_table_object_is_refreshed(table: Table, sql_catalog: Catalog) -> None:
    other = sql_catalog.load_table("db.t")
    new_binding = binding(table)
    other.append(make_rows(10, 20))
    version = bindings.publish(table, new_binding)
    assert version.base_snapshot_id == new_binding.base_snapshot_id
    assert table.scan().to_arrow().num_rows == 20


def test_a_base_that_expired_is_refused(table: Table) -> None:
    new_binding = binding(table)
    table.append(make_rows(10, 20))
    table.maintenance.expire_snapshots().by_id(new_binding.base_snapshot_id).commit()
    with pytest.raises(UnknownSnapshotError, match="expired"):
        bindings.publish(table, new_binding)


def test_indexes_of_one_table_published_at_once_all_land(table: Table, sql_catalog: Catalog) -> None:
    def publish(number: int) -> None:
        own_table = sql_catalog.load_table("db.t")
        bindings.publish(own_table, binding(own_table, number, name=str(number)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(publish, range(8)))
    table.refresh()
    assert {ref for ref in table.metadata.refs if ref.startswith("ann_")} == {f"ann_{number}" for number in range(8)}


def test_a_dropped_tag_is_gone_and_dropping_again_is_harmless(table: Table) -> None:
    bindings.publish(table, binding(table))
    assert bindings.drop(table, "ann_e")
    assert not bindings.drop(table, "ann_e")
    assert index_versions(table, "e")[0].tags == ()


class Afterwards:
    """Does something to the table right after the next commit to it, as other clients may, or the catalog itself."""

    def __init__(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table = table
        self.then: Callable[[Table], None] | None = None
        through = table.catalog.commit_table

        def commit_table(*arguments: Any) -> Any:
            answer = through(*arguments)
            then, self.then = self.then, None
            if then is not None:
                then(table.catalog.load_table(table.name()))
            return answer

        monkeypatch.setattr(table.catalog, "commit_table", commit_table)


@pytest.fixture
def afterwards(table: Table, monkeypatch: pytest.MonkeyPatch) -> Afterwards:
    return Afterwards(table, monkeypatch)


def change(table: Table, *updates: TableUpdate) -> None:
    table.catalog.commit_table(table, (), updates)


def set_ref(table: Table, name: str, snapshot_id: int, kind: SnapshotRefType = SnapshotRefType.BRANCH) -> None:
    ages = {"max_ref_age_ms": None, "max_snapshot_age_ms": None, "min_snapshots_to_keep": None}
    change(table, SetSnapshotRefUpdate(ref_name=name, type=kind, snapshot_id=snapshot_id, **ages))


def expired(snapshot_id: int) -> Callable[[Table], None]:
    return lambda table: table.maintenance.expire_snapshots().by_id(snapshot_id).commit()


def test_where_the_base_expires_during_the_commit_the_tag_is_put_back(table: Table, afterwards: Afterwards) -> None:
    good = bindings.publish(table, binding(table, 1))
    table.append(make_rows(10, 20))
    new_binding = binding(table, 2, expected=good.index_snapshot_id)
    table.append(make_rows(20, 30))
    ref = table.metadata.refs["ann_e"]
    afterwards.then = expired(new_binding.base_snapshot_id)
    with pytest.raises(UnknownSnapshotError, match="expired while its version was published; undone"):
        bindings.publish(table, new_binding)
    assert table.refresh().metadata.refs["ann_e"] == ref
    assert index_versions(table, "e") == (good,), "what was undone is not left in the table"


def test_where_the_base_expires_the_side_tag_goes_with_a_version_that_shares_packs(
    table: Table, afterwards: Afterwards
) -> None:
    pack = NewPack(f"{table.location()}/metadata/ann-e-pack.puffin", 4, 2)
    good = bindings.publish(table, replace(binding(table, 1), new_packs=(pack,)))
    table.append(make_rows(10, 20))
    base = data_snapshots(table)[-1].snapshot_id
    new_binding = replace(binding(table, 2, tag=f"ann_e-{base}"), packs=(good.packs[0].holder_id,))
    table.append(make_rows(20, 30))
    afterwards.then = expired(base)
    with pytest.raises(UnknownSnapshotError, match="undone"):
        bindings.publish(table, new_binding)
    assert index_versions(table.refresh(), "e") == (good,)
    assert set(table.metadata.refs) == {"main", "ann_e", f"ann_e-pack-{good.packs[0].holder_id}"}


def test_where_the_base_expires_a_version_stays_that_the_owner_has_tagged(table: Table, afterwards: Afterwards) -> None:
    new_binding = binding(table)
    table.append(make_rows(10, 20))

    def tagged_and_expired(other: Table) -> None:
        set_ref(other, "theirs", other.metadata.refs["ann_e"].snapshot_id, SnapshotRefType.TAG)
        expired(new_binding.base_snapshot_id)(other.refresh())

    afterwards.then = tagged_and_expired
    with pytest.raises(UnknownSnapshotError, match="undone"):
        bindings.publish(table, new_binding)
    assert set(table.refresh().metadata.refs) == {"main", "theirs"}


def test_where_there_was_no_tag_or_it_can_not_go_back_none_is_left(table: Table, afterwards: Afterwards) -> None:
    table.append(make_rows(10, 20))
    first = data_snapshots(table)[0].snapshot_id
    table.append(make_rows(20, 30))
    early = replace(binding(table, 1), base_snapshot_id=first)
    afterwards.then = expired(first)
    with pytest.raises(UnknownSnapshotError, match="undone"):
        bindings.publish(table, early)
    assert set(table.refresh().metadata.refs) == {"main"}
    second = data_snapshots(table)[0].snapshot_id
    good = bindings.publish(table, replace(binding(table, 2), base_snapshot_id=second))
    new_binding = replace(binding(table, 3, expected=good.index_snapshot_id), base_snapshot_id=second)

    def both_expire(other: Table) -> None:
        change(other, RemoveSnapshotsUpdate(snapshot_ids=[second, good.index_snapshot_id]))

    afterwards.then = both_expire
    with pytest.raises(UnknownSnapshotError, match="undone"):
        bindings.publish(table, new_binding)
    assert set(table.refresh().metadata.refs) == {"main"}


def test_a_tag_that_has_moved_on_by_then_is_left_where_it_is(table: Table, afterwards: Afterwards) -> None:
    new_binding = binding(table, 1)
    table.append(make_rows(10, 20))

    def overtaken(other: Table) -> None:
        bindings.publish(other, binding(other, 2, expected=tag_target(other, "ann_e")))
        expired(new_binding.base_snapshot_id)(other)

    afterwards.then = overtaken
    with pytest.raises(UnknownSnapshotError, match="undone"):
        bindings.publish(table, new_binding)
    assert index_versions(table.refresh(), "e")[-1].tags == ("ann_e",)
    assert len(index_versions(table, "e")) == 2


def test_a_catalog_that_makes_the_index_snapshot_current_is_recognised(table: Table, afterwards: Afterwards) -> None:
    afterwards.then = lambda other: set_ref(other, "main", other.metadata.refs["ann_e"].snapshot_id)
    base = table.metadata.current_snapshot_id
    words = rf"made snapshot \d+, which is icepuffin's, the current one; use another catalog .*\. Roll back to {base}$"
    with pytest.raises(UnsupportedCatalogError, match=words) as refused:
        bindings.publish(table, binding(table))
    assert not refused.value.retryable


def test_a_catalog_that_makes_the_snapshot_of_a_pack_current_is_recognised(
    table: Table, afterwards: Afterwards
) -> None:
    def move_main(other: Table) -> None:
        (holder,) = (ref.snapshot_id for name, ref in other.metadata.refs.items() if name.startswith("ann_e-pack-"))
        set_ref(other, "main", holder)

    afterwards.then = move_main
    new_pack = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
    with pytest.raises(UnsupportedCatalogError, match="which is icepuffin's, the current one"):
        bindings.publish(table, replace(binding(table), new_packs=(new_pack,)))


def test_a_catalog_that_does_not_keep_the_tag_is_recognised(table: Table, afterwards: Afterwards) -> None:
    afterwards.then = lambda other: change(other, RemoveSnapshotRefUpdate(ref_name="ann_e"))
    with pytest.raises(UnsupportedCatalogError, match="accepted tag ann_e and did not keep it"):
        bindings.publish(table, binding(table))


def test_a_catalog_that_leaves_the_tag_where_it_was_is_recognised(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bindings.publish(table, binding(table, 1)).index_snapshot_id
    table.append(make_rows(10, 20))
    through = table.catalog.commit_table

    def commit_table(at: Table, requirements: Any, updates: tuple[TableUpdate, ...]) -> Any:
        return through(at, requirements, tuple(u for u in updates if not isinstance(u, SetSnapshotRefUpdate)))

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    with pytest.raises(UnsupportedCatalogError, match="accepted tag ann_e and did not keep it"):
        bindings.publish(table, binding(table, 2, expected=first))
    second = index_versions(table, "e")[-1].index_snapshot_id
    assert second != first == tag_target(table, "ann_e")
    with pytest.raises(UnsupportedCatalogError, match="accepted tag ann_e and did not keep it"):
        bindings.move_tag(table, "ann_e", second, expected_ref=first)
    bindings.make_lasting(table, "ann_e")


def test_a_catalog_that_drops_the_tag_of_the_version_before_is_recognised(table: Table, afterwards: Afterwards) -> None:
    first = bindings.publish(table, binding(table, 1)).index_snapshot_id
    afterwards.then = lambda other: change(other, RemoveSnapshotRefUpdate(ref_name="ann_e"))
    with pytest.raises(UnsupportedCatalogError, match="accepted tag ann_e and did not keep it"):
        bindings.publish(table, binding(table, 2, expected=first))


def test_a_catalog_that_does_not_keep_the_statistics_entry_is_recognised(table: Table, afterwards: Afterwards) -> None:
    """Without it nothing names the file, and any cleaner of orphans deletes it."""

    def forget(other: Table) -> None:
        change(other, RemoveStatisticsUpdate(snapshot_id=other.metadata.refs["ann_e"].snapshot_id))

    afterwards.then = forget
    with pytest.raises(UnsupportedCatalogError, match="did not keep it"):
        bindings.publish(table, binding(table))


def test_a_catalog_that_does_not_keep_the_snapshot_is_recognised(table: Table, afterwards: Afterwards) -> None:
    def forget(other: Table) -> None:
        change(other, RemoveSnapshotsUpdate(snapshot_ids=[other.metadata.refs["ann_e"].snapshot_id]))

    afterwards.then = forget
    with pytest.raises(UnsupportedCatalogError, match="did not keep it"):
        bindings.publish(table, binding(table))


@pytest.mark.parametrize("update", ["tag", "statistics", "snapshot"])
def test_a_catalog_that_does_not_keep_a_pack_is_recognised(table: Table, afterwards: Afterwards, update: str) -> None:
    """A version without its pack answers nothing, and any cleaner of orphans deletes a pack that nothing names."""

    def forget(other: Table) -> None:
        (tag,) = (ref for ref in other.metadata.refs if ref.startswith("ann_e-pack-"))
        holder_id = other.metadata.refs[tag].snapshot_id
        changes: dict[str, TableUpdate] = {
            "tag": RemoveSnapshotRefUpdate(ref_name=tag),
            "statistics": RemoveStatisticsUpdate(snapshot_id=holder_id),
            "snapshot": RemoveSnapshotsUpdate(snapshot_ids=[holder_id]),
        }
        change(other, changes[update])

    afterwards.then = forget
    new_pack = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
    with pytest.raises(UnsupportedCatalogError, match=r"accepted tag ann_e-pack-\d+ and did not keep it"):
        bindings.publish(table, replace(binding(table), new_packs=(new_pack,)))


def test_a_version_that_was_overtaken_may_have_lost_its_packs(table: Table, afterwards: Afterwards) -> None:
    def overtaken(other: Table) -> None:
        bindings.publish(other, binding(other, 2, expected=tag_target(other, "ann_e")))
        (pack_ref,) = (ref for ref in other.metadata.refs if ref.startswith("ann_e-pack-"))
        change(other, RemoveSnapshotRefUpdate(ref_name=pack_ref))

    afterwards.then = overtaken
    new_pack = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
    assert bindings.publish(table, replace(binding(table, 1), new_packs=(new_pack,))).tags == ()


@pytest.mark.parametrize(
    ("is_holder", "message"),
    [(False, r"gave index snapshot \d+ a parent"), (True, r"gave holder snapshot \d+ a parent")],
)
def test_a_catalog_that_gives_a_snapshot_a_parent_is_recognised(
    table: Table, monkeypatch: pytest.MonkeyPatch, is_holder: bool, message: str
) -> None:
    """That of a version, or of its pack, which then holds data files that nobody may expire."""
    base = data_snapshots(table)[-1].snapshot_id
    through = table.catalog.commit_table

    def with_parent(update: TableUpdate) -> TableUpdate:
        if not isinstance(update, AddSnapshotUpdate):
            return update
        if is_holder is not any(key.endswith(".pack") for key in summary_of(update.snapshot)):
            return update
        changed = {"parent_snapshot_id": base, "sequence_number": 2}
        return update.model_copy(update={"snapshot": update.snapshot.model_copy(update=changed)})

    def commit_table(at: Table, requirements: Any, updates: tuple[TableUpdate, ...]) -> Any:
        return through(at, requirements, tuple(map(with_parent, updates)))

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    new_pack = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
    with pytest.raises(UnsupportedCatalogError, match=message):
        bindings.publish(table, replace(binding(table), new_packs=(new_pack,)))


def test_the_commit_itself_asserts_where_the_tag_was(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check and the commit somebody else publishes, on a snapshot of the same sequence number or none."""
    new_binding = binding(table, 1)
    first = bindings.publish(table, binding(table, 2))
    bindings.drop(table, "ann_e")
    through = table.catalog.commit_table
    steps = iter([lambda: set_ref(table, "ann_e", first.index_snapshot_id, SnapshotRefType.TAG)])

    def commit_table(*arguments: Any) -> Any:
        next(steps, lambda: None)()
        return through(*arguments)

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    with pytest.raises(LostRaceError, match="somebody else published first"):
        bindings.publish(table, new_binding)
    assert tag_target(table.refresh(), "ann_e") == first.index_snapshot_id


def test_the_commit_itself_asserts_the_tags_of_its_packs(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check and the commit a sweep drops the tag of a pack that the version shares."""
    new_pack = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
    first = bindings.publish(table, replace(binding(table, 1), new_packs=(new_pack,)))
    (pack,) = first.packs
    through = table.catalog.commit_table
    steps = iter([lambda: change(table, RemoveSnapshotRefUpdate(ref_name=f"ann_e-pack-{pack.holder_id}"))])

    def commit_table(*arguments: Any) -> Any:
        next(steps, lambda: None)()
        return through(*arguments)

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    with pytest.raises(LostRaceError, match="packs of ann_e that the version shares were dropped meanwhile"):
        bindings.publish(table, replace(binding(table, 2, expected=first.index_snapshot_id), packs=(pack.holder_id,)))
    assert tag_target(table.refresh(), "ann_e") == first.index_snapshot_id


def test_a_move_of_the_tag_asserts_where_it_was_too(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the check and the commit somebody else puts it back on an older version."""
    moves, expected = [], None
    for number in range(3):
        expected = bindings.publish(table, binding(table, number, expected=expected)).index_snapshot_id
        moves.append(expected)
    through = table.catalog.commit_table
    steps = iter([lambda: set_ref(table, "ann_e", moves[0], SnapshotRefType.TAG)])

    def commit_table(*arguments: Any) -> Any:
        next(steps, lambda: None)()
        return through(*arguments)

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    with pytest.raises(LostRaceError, match=r"somebody else moved ann_e; look again before you decide$"):
        bindings.move_tag(table, "ann_e", moves[1], expected_ref=moves[2])
    assert tag_target(table.refresh(), "ann_e") == moves[0]


def test_a_tag_is_not_moved_to_a_version_that_has_expired(table: Table) -> None:
    gone = bindings.publish(table, binding(table)).index_snapshot_id
    bindings.drop(table, "ann_e")
    change(table, RemoveSnapshotsUpdate(snapshot_ids=[gone]))
    with pytest.raises(BindingError, match=rf"^db\.t: version {gone} expired meanwhile; try again$"):
        bindings.move_tag(table, "ann_e", gone, expected_ref=None)
    assert "ann_e" not in table.refresh().metadata.refs


def test_a_tag_that_comes_back_tags_the_packs_of_its_version_again(table: Table) -> None:
    new_pack = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
    version = bindings.publish(table, replace(binding(table), new_packs=(new_pack,)))
    (pack,) = version.packs
    bindings.drop(table, "ann_e", f"ann_e-pack-{pack.holder_id}")
    assert set(table.metadata.refs) == {"main"}
    bindings.move_tag(table, "ann_e", version.index_snapshot_id, expected_ref=None)
    assert tag_target(table, f"ann_e-pack-{pack.holder_id}") == pack.holder_id
    assert table.metadata.refs[f"ann_e-pack-{pack.holder_id}"].max_ref_age_ms == LASTING_MS


def test_an_index_snapshot_has_the_schema_of_its_base(table: Table) -> None:
    with table.update_schema() as change_of_schema:
        change_of_schema.rename_column("name", "title")
    version = bindings.publish(table, binding(table))
    index_snapshot, base = (
        table.metadata.snapshot_by_id(number) for number in (version.index_snapshot_id, version.base_snapshot_id)
    )
    assert index_snapshot is not None
    assert base is not None
    assert index_snapshot.schema_id == base.schema_id != table.metadata.current_schema_id


@pytest.mark.parametrize("kind", SnapshotRefType)
@pytest.mark.parametrize("name", ["ann_e", "ann_e-{}"])
def test_a_ref_of_the_owners_is_not_taken_for_ours(table: Table, kind: SnapshotRefType, name: str) -> None:
    create_index(table, DEFINITION)
    table.append(make_rows(10, 20))
    first, second = (item.snapshot_id for item in data_snapshots(table))
    name = name.format(first)
    set_ref(table, name, second, kind)
    refs = dict(table.refresh().metadata.refs)
    target = second if name == "ann_e" else first
    with pytest.raises(
        TagTakenError,
        match=rf"db\.t has a {kind.value} '{name}' that icepuffin did not make, .* give the index another name",
    ) as caught:
        plan_version(RunContext(table, STORAGE), DEFINITION, target)
    assert not caught.value.retryable
    with pytest.raises(TagTakenError):
        bindings.publish(table, replace(binding(table, tag=name, expected=second), base_snapshot_id=target))
    with pytest.raises(TagTakenError):
        bindings.move_tag(table, name, first, expected_ref=second)
    with pytest.raises(TagTakenError):
        bindings.drop(table, name)
    assert drop_index(table, "e") == ()
    assert list_definitions(table.refresh()) == ()
    assert table.metadata.refs == refs
    assert table.scan(snapshot_id=second).count() == 20


def test_an_index_whose_tag_is_taken_is_not_defined(table: Table) -> None:
    table.manage_snapshots().create_branch(data_snapshots(table)[0].snapshot_id, "ann_e").commit()
    with pytest.raises(TagTakenError, match="give the index another name"):
        create_index(table, DEFINITION)
    assert list_definitions(table.refresh()) == ()


def test_a_branch_on_a_version_is_its_owners(table: Table) -> None:
    version = bindings.publish(table, binding(table))
    bindings.drop(table, "ann_e")
    set_ref(table, "ann_e", version.index_snapshot_id)
    assert own_tags(table.refresh(), "ann_e") == frozenset()
    with pytest.raises(TagTakenError, match="a branch 'ann_e'"):
        bindings.publish(table, binding(table, 2, expected=version.index_snapshot_id))


def test_a_tag_on_another_indexs_version_is_its_owners(table: Table) -> None:
    other = bindings.publish(table, binding(table, name="other"))
    for name in ("ann_e", "ann_other-1", "ann_e-1"):
        set_ref(table, name, other.index_snapshot_id, SnapshotRefType.TAG)
    table.refresh()
    assert own_tags(table, "ann_e") == frozenset()
    assert own_tags(table, "ann_other") == {"ann_other"}
    with pytest.raises(TagTakenError):
        bindings.drop(table, "ann_e")


def test_tags_that_are_to_last_carry_their_own_reference_age(table: Table) -> None:
    version = bindings.publish(table, binding(table))
    assert table.metadata.refs["ann_e"].max_ref_age_ms == LASTING_MS == np.iinfo(np.int64).max, "as much as Java reads"
    bindings.drop(table, "ann_e")
    bindings.move_tag(table, "ann_e", version.index_snapshot_id, expected_ref=None)
    assert table.metadata.refs["ann_e"].max_ref_age_ms == LASTING_MS


def test_all_tags_of_an_index_go_in_one_commit(table: Table) -> None:
    create_index(table, DEFINITION)
    base = data_snapshots(table)[0].snapshot_id
    bindings.publish(table, binding(table, 1))
    bindings.publish(table, binding(table, 2, tag=f"ann_e-{base}"))
    bindings.publish(table, binding(table, 3, name="other"))
    log = len(table.refresh().metadata.metadata_log)
    assert drop_index(table, "e") == ("ann_e", f"ann_e-{base}")
    assert len(table.refresh().metadata.metadata_log) == log + 2, "one for the definition, one for the tags"
    assert set(table.metadata.refs) == {"main", "ann_other"}


def test_a_ref_of_the_owners_that_took_a_tags_name_meanwhile_is_not_dropped(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot_id = bindings.publish(table, binding(table)).base_snapshot_id
    through = table.catalog.commit_table

    def after_another(other: Table, requirements: Any, updates: Any) -> Any:
        monkeypatch.setattr(table.catalog, "commit_table", through)
        change(table, RemoveSnapshotRefUpdate(ref_name="ann_e"))
        set_ref(table, "ann_e", snapshot_id)
        return through(other, requirements, updates)

    monkeypatch.setattr(table.catalog, "commit_table", after_another)
    with pytest.raises(TagTakenError, match="branch 'ann_e' that icepuffin did not make"):
        bindings.drop(table, "ann_e")
    assert table.refresh().metadata.refs["ann_e"].snapshot_id == snapshot_id


def test_a_sweep_leaves_a_branch_of_the_owners_alone(table: Table) -> None:
    create_index(table, DEFINITION)
    head = data_snapshots(table)[0].snapshot_id
    for name in ("ann_e", "theta_sketches"):
        set_ref(table, name, head)
    refs = dict(table.refresh().metadata.refs)
    report = collect_table_garbage(table, storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=0)
    assert table.refresh().metadata.refs == refs
    assert not report.refused, "what is not icepuffin's is no step that failed"


def test_a_tag_without_an_age_is_mended_where_it_is(table: Table) -> None:
    version = bindings.publish(table, binding(table))
    set_ref(table, "ann_e", version.index_snapshot_id, SnapshotRefType.TAG)
    assert table.refresh().metadata.refs["ann_e"].max_ref_age_ms is None
    bindings.make_lasting(table, "ann_e")
    assert table.metadata.refs["ann_e"].max_ref_age_ms == LASTING_MS
    assert tag_target(table, "ann_e") == version.index_snapshot_id
    create_index(table, DEFINITION)
    set_ref(table, "ann_e", version.index_snapshot_id, SnapshotRefType.TAG)
    collect_table_garbage(table, storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=24)
    assert table.metadata.refs["ann_e"].max_ref_age_ms == LASTING_MS
    for age in (LASTING_MS, 1_000):  # the other one its owner has set
        ages = {"max_ref_age_ms": age, "max_snapshot_age_ms": None, "min_snapshots_to_keep": None}
        tag = {"ref_name": "ann_e", "type": SnapshotRefType.TAG, "snapshot_id": version.index_snapshot_id}
        change(table, SetSnapshotRefUpdate(**tag, **ages))
        before = table.refresh().metadata_location
        bindings.make_lasting(table, "ann_e")
        assert table.refresh().metadata_location == before, "what has an age already takes no commit"


def test_dropping_an_index_leaves_one_whose_name_begins_as_its_own(table: Table) -> None:
    for name in ("docs", "docs.title"):
        create_index(table, replace(DEFINITION, name=name))
        bindings.publish(table, binding(table, name=name))
    assert drop_index(table, "docs") == ("ann_docs",)
    assert [item.name for item in list_definitions(table.refresh())] == ["docs.title"]
    assert own_tags(table, "ann_docs.title") == {"ann_docs.title"}
    collect_table_garbage(table, storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=0)
    assert index_versions(table.refresh(), "docs") == ()
    assert len(index_versions(table, "docs.title")) == 1


def test_sketches_leave_a_branch_of_the_owners_alone(table: Table) -> None:
    head = data_snapshots(table)[0].snapshot_id
    table.manage_snapshots().create_branch(head, "theta_sketches").commit()
    before = table.metadata_location
    with pytest.raises(TagTakenError, match="a branch 'theta_sketches'"):
        count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish()
    assert table.refresh().metadata_location == before


@pytest.mark.parametrize("mend", ["refresh", "sweep"])
def test_tags_without_an_age_are_mended_by(mend: str, table: Table) -> None:
    create_index(table, DEFINITION)
    index_head(table)
    head = data_snapshots(table.refresh())[0].snapshot_id
    count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish()
    for name in ("ann_e", "theta_sketches"):
        set_ref(table, name, table.refresh().metadata.refs[name].snapshot_id, SnapshotRefType.TAG)
    if mend == "refresh":
        assert index_head(table).action is Action.REUSED
        assert count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish().outcome == "current"
    else:
        collect_table_garbage(table, storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=24)
    refs = table.refresh().metadata.refs
    assert [refs[name].max_ref_age_ms for name in ("ann_e", "theta_sketches")] == [LASTING_MS] * 2
