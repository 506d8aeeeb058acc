"""Versions and packs as the table's metadata show them, before and after others have removed a part."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    TableRequirement,
    TableUpdate,
)

from icepuffin.ops.binding import bindings, expiration
from icepuffin.ops.binding.assertions import AssertUnchanged
from icepuffin.ops.binding.bound_versions import (
    BoundPack,
    DerivedVersion,
    TagTakenError,
    bound_names,
    holder_ids,
    index_versions,
    lost_versions,
    own_names,
    own_tags,
    sketch_versions,
    tagged_version,
    untagged_packs,
)
from icepuffin.ops.binding.commit import CommitOutcome, attempt_commit
from icepuffin.ops.binding.derived_snapshots import Binding, NewPack, tag_ref
from icepuffin.ops.binding.expiration import expire_derived, expire_packs, unnamed_packs
from icepuffin.ops.binding.pack_upkeep import expire_packs_if_possible
from icepuffin.ops.errors import TableFaultError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table.blob_kind import LASTING_MS, SIDE_TAG_AGE_MS, SKETCHES_TAG, BlobKind
from icepuffin.ops.table.snapshots import head_of
from tests.conftest import make_rows
from tests.ops.catalog.bindings import binding
from tests.ops.index.snapshot_times import set_times

PACK = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    made = table_factory()
    made.append(make_rows(0, 10))
    return made


def change(table: Table, *updates: TableUpdate) -> None:
    table.catalog.commit_table(table, (), updates)
    table.refresh()


def sketches(table: Table, number: int = 0, expected: SnapshotId | None = None) -> Binding:
    made = binding(table, number, name="s", tag=SKETCHES_TAG, expected=expected)
    return replace(made, kind=BlobKind.SKETCHES, name=str(BlobKind.SKETCHES), fields=frozenset({7, 1}))


def test_a_version_is_all_that_its_snapshot_says(table: Table) -> None:
    request = replace(binding(table), new_packs=(PACK,), measurement="took long")
    version = bindings.publish(table, request)
    snapshot = table.metadata.snapshot_by_id(version.index_snapshot_id)
    assert snapshot is not None
    (holder_id,) = holder_ids(snapshot)
    pack = BoundPack(holder_id, PACK.path, 4, is_kept=True)
    assert version == DerivedVersion(
        kind=BlobKind.INDEX,
        name="e",
        index_snapshot_id=SnapshotId(snapshot.snapshot_id),
        base_snapshot_id=request.base_snapshot_id,
        build_id=request.build_id,
        puffin_path=request.puffin_path,
        sequence_number=1,
        timestamp_ms=snapshot.timestamp_ms,
        base_sequence_number=1,
        tags=("ann_e",),
        measurement="took long",
        packs=(pack,),
        file_size=request.file_size,
        table_location=table.location(),
    )
    assert tagged_version(table, "e") == version
    tags = {name: table.metadata.refs[name] for name in ("ann_e", f"ann_e-pack-{holder_id}")}
    assert {tag.max_ref_age_ms for tag in tags.values()} == {LASTING_MS}
    change(table, RemoveSnapshotRefUpdate(ref_name=f"ann_e-pack-{holder_id}"))
    assert index_versions(table, "e") == (replace(version, packs=(replace(pack, is_kept=False),)),)
    assert untagged_packs(table, [version.index_snapshot_id, SnapshotId(17)]) == {f"ann_e-pack-{holder_id}": holder_id}
    change(table, RemoveStatisticsUpdate(snapshot_id=holder_id))
    lost_pack = (BoundPack(holder_id, "", 0, is_kept=False),)
    assert index_versions(table, "e") == (replace(version, packs=lost_pack),)
    change(table, RemoveSnapshotsUpdate(snapshot_ids=[holder_id]))
    assert index_versions(table, "e") == (replace(version, packs=lost_pack),)
    assert untagged_packs(table, [version.index_snapshot_id]) == {}
    left = StatisticsFile(snapshot_id=holder_id, statistics_path=PACK.path, file_size_in_bytes=4,
                          file_footer_size_in_bytes=2, blob_metadata=[])  # fmt: skip
    change(table, SetStatisticsUpdate(statistics=left))
    assert index_versions(table, "e") == (replace(version, packs=lost_pack),), "an entry is left that an engine forgot"


def test_a_version_may_have_the_distances_that_its_summary_does_not_tell(table: Table) -> None:
    version = bindings.publish(table, replace(binding(table), distances="3 l2"))
    assert [version.may_have(distances) for distances in ("3 l2", "3 cosine", "")] == [True, False, False]
    assert replace(version, distances="").may_have("3 cosine")


def test_a_version_whose_data_snapshot_has_expired_has_its_own_number_in_place_of_that(table: Table) -> None:
    request = binding(table)
    table.append(make_rows(10, 20))
    version = bindings.publish(table, request)
    assert (version.sequence_number, version.base_sequence_number) == (2, 1)
    table.maintenance.expire_snapshots().by_id(version.base_snapshot_id).commit()
    assert index_versions(table.refresh(), "e") == (replace(version, base_sequence_number=2),)
    assert head_of(table, "ann_e") == version.index_snapshot_id, "which has the same rows"


def test_versions_are_in_the_order_of_their_commits_whatever_the_clocks_of_their_machines_were(table: Table) -> None:
    first = bindings.publish(table, binding(table, 1))
    table.append(make_rows(10, 20))
    second = bindings.publish(table, binding(table, 2, expected=first.index_snapshot_id))
    ids = [first.index_snapshot_id, second.index_snapshot_id]
    set_times(table, ids, [second.timestamp_ms + 60_000, second.timestamp_ms])
    assert [version.index_snapshot_id for version in index_versions(table, "e")] == ids


def test_versions_of_one_number_are_in_the_order_of_their_times(table: Table) -> None:
    first = bindings.publish(table, binding(table, 1))
    second = bindings.publish(table, binding(table, 2, expected=first.index_snapshot_id))
    set_times(table, [first.index_snapshot_id, second.index_snapshot_id], [second.timestamp_ms, first.timestamp_ms - 1])
    assert [version.puffin_path for version in index_versions(table, "e")] == [second.puffin_path, first.puffin_path]


def test_versions_of_one_kind_and_name_are_those_of_no_other(table: Table) -> None:
    index = bindings.publish(table, binding(table, 1))
    other = bindings.publish(table, binding(table, 1, name="other"))
    sketch = bindings.publish(table, sketches(table))
    assert (sketch.kind, sketch.fields, sketch.tags) == (BlobKind.SKETCHES, {1, 7}, (SKETCHES_TAG,))
    assert (index_versions(table, "e"), sketch_versions(table)) == ((index,), (sketch,))
    assert index_versions(table, "other") == (other,)
    assert tagged_version(table, "nothing") is None
    assert bound_names(table, BlobKind.INDEX) == {"e", "other"}
    assert bound_names(table, BlobKind.SKETCHES) == {BlobKind.SKETCHES}
    by_id = {version.index_snapshot_id: version for version in (index, sketch)}
    names = [own_names(item) for item in table.metadata.snapshots if item.snapshot_id in by_id]
    assert names == [
        {"ann_e", f"ann_e-{index.base_snapshot_id}", "ann_e-side"},
        {SKETCHES_TAG, f"{SKETCHES_TAG}-{sketch.base_snapshot_id}", f"{SKETCHES_TAG}-side"},
    ]
    change(table, RemoveStatisticsUpdate(snapshot_id=other.index_snapshot_id))
    lost = {name: [item.snapshot_id for item in lost_versions(table, BlobKind.INDEX, name)] for name in ("e", "other")}
    assert lost == {"e": [], "other": [other.index_snapshot_id]}


def test_tags_of_packs_are_those_of_their_index(table: Table) -> None:
    version = bindings.publish(table, replace(binding(table), new_packs=(PACK,)))
    tag = f"ann_e-pack-{version.packs[0].holder_id}"
    assert own_tags(table, "ann_e") == {"ann_e", tag}
    assert own_tags(table, "ann_other") == frozenset()
    assert bindings.drop(table, tag) == (tag,)
    assert own_tags(table, "ann_e") == {"ann_e"}


def test_a_ref_of_the_owners_that_has_the_name_of_a_packs_tag_is_warned_of(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    version = bindings.publish(table, replace(binding(table), new_packs=(PACK,)))
    tag = f"ann_e-pack-{version.packs[0].holder_id}"
    assert untagged_packs(table, [version.index_snapshot_id]) == {}
    assert caplog.text == ""
    ages = {"max_ref_age_ms": None, "max_snapshot_age_ms": None, "min_snapshots_to_keep": None}
    for target in (version.base_snapshot_id, version.index_snapshot_id):
        caplog.clear()
        change(table, SetSnapshotRefUpdate(ref_name=tag, type=SnapshotRefType.TAG, snapshot_id=target, **ages))
        assert untagged_packs(table, [version.index_snapshot_id]) == {}
        assert f"the ref '{tag}', which icepuffin did not make" in caplog.text
        assert caplog.messages[0].endswith("Give the ref another name")


def test_packs_go_with_the_last_version_that_names_them(table: Table) -> None:
    first = bindings.publish(table, replace(binding(table, 1), new_packs=(PACK,)))
    (pack,) = first.packs
    request = replace(binding(table, 2, expected=first.index_snapshot_id), packs=(pack.holder_id,))
    second = bindings.publish(table, request)
    assert second.packs == (pack,)
    assert unnamed_packs(table) == {}
    assert unnamed_packs(table, [first.index_snapshot_id]) == {}
    assert unnamed_packs(table, [first.index_snapshot_id, second.index_snapshot_id]) == {pack.holder_id: "e"}
    assert expire_packs(table) == ()
    before = table.metadata_location
    expire_packs_if_possible(table)
    assert table.refresh().metadata_location == before, "nothing to do takes no commit"
    expire_derived(table, [first.index_snapshot_id, second.index_snapshot_id], ["ann_e"])
    table.manage_snapshots().create_tag(pack.holder_id, "release").commit()
    assert unnamed_packs(table.refresh()) == {}, "the owner's tag keeps it"
    table.manage_snapshots().remove_tag("release").commit()
    expire_packs_if_possible(table.refresh())
    assert table.metadata.snapshot_by_id(pack.holder_id) is None
    assert set(table.metadata.refs) == {"main"}


def test_packs_stay_where_a_catalog_hides_snapshots_that_may_name_them(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = bindings.publish(table, replace(binding(table), new_packs=(PACK,)))
    expire_derived(table, [version.index_snapshot_id], ["ann_e"])
    hidden = table.metadata.current_snapshot_id
    table.append(make_rows(10, 20))
    before, through = table.metadata_location, table.refresh

    def without_one() -> Table:
        kept = [item for item in through().metadata.snapshots if item.snapshot_id != hidden]
        table.metadata = table.metadata.model_copy(update={"snapshots": kept})
        return table

    monkeypatch.setattr(table, "refresh", without_one)
    with pytest.raises(
        TableFaultError, match=r"does not show all snapshots .* so nothing is expired and nothing deleted"
    ):
        expire_packs(table)
    assert through().metadata_location == before


def test_a_commit_that_removes_packs_asserts_our_tags_alone_however_many_snapshots_there_are(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = bindings.publish(table, replace(binding(table), new_packs=(PACK,)))
    expire_derived(table, [version.index_snapshot_id], ["ann_e"])
    newest = table.current_snapshot() or pytest.fail("no snapshot")
    change(table, *(AddSnapshotUpdate(snapshot=newest.model_copy(update={"snapshot_id": at})) for at in range(1, 301)))
    sent: list[TableRequirement] = []

    def count(*args: object) -> CommitOutcome:
        sent.extend(args[2])  # type: ignore[call-overload]
        return attempt_commit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(expiration, "attempt_commit", count)
    (holder_id,) = expire_packs(table)
    assert [type(requirement) for requirement in sent[:1]] == [AssertUnchanged]
    assert sent[1:] == [
        AssertRefSnapshotId(ref="ann_e", snapshot_id=None),
        AssertRefSnapshotId(ref=f"ann_e-pack-{holder_id}", snapshot_id=holder_id),
        AssertRefSnapshotId(ref="ann_e-side", snapshot_id=None),
    ]


@pytest.mark.parametrize("kind", BlobKind)
def test_a_version_that_shares_packs_under_a_tag_of_its_own_moves_the_side_tag(table: Table, kind: BlobKind) -> None:
    """By which a commit that removes its packs, having seen them unnamed, is refused."""
    make = binding if kind is BlobKind.INDEX else sketches
    tag = "ann_e" if kind is BlobKind.INDEX else SKETCHES_TAG
    first = bindings.publish(table, replace(make(table, 1), new_packs=(PACK,)))
    (pack,) = first.packs
    assert f"{tag}-side" not in table.metadata.refs
    for number in (2, 3):
        side = f"{tag}-{number}{first.base_snapshot_id}"
        second = bindings.publish(table, replace(make(table, number), tag=side, packs=(pack.holder_id,)))
        assert table.metadata.refs[f"{tag}-side"] == tag_ref(second.index_snapshot_id, SIDE_TAG_AGE_MS)
    assert SIDE_TAG_AGE_MS == TableProperties.MAX_SNAPSHOT_AGE_MS_DEFAULT
    expire_derived(table, [second.index_snapshot_id], [])
    assert table.metadata.refs[f"{tag}-side"].snapshot_id == second.index_snapshot_id


@pytest.mark.parametrize("is_side", [False, True])
def test_packs_that_a_version_names_meanwhile_stay(
    table: Table, is_side: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was planned before the last version with the pack expired, and comes between look and commit."""
    first = bindings.publish(table, replace(binding(table, 1), new_packs=(PACK,)))
    holder_id = first.packs[0].holder_id
    tag = f"ann_e-{first.base_snapshot_id}" if is_side else "ann_e"
    planned = replace(binding(table, 2), tag=tag, packs=(holder_id,))
    expire_derived(table, [first.index_snapshot_id], ["ann_e"])
    outcomes: list[CommitOutcome] = []

    def commit(*args: object) -> CommitOutcome:
        bindings.publish(table.catalog.load_table(table.name()), planned)
        outcomes.append(attempt_commit(*args))  # type: ignore[arg-type]
        return outcomes[-1]

    monkeypatch.setattr(expiration, "attempt_commit", commit)
    assert expire_packs(table) == ()
    assert outcomes == [CommitOutcome.REFUSED]
    (version,) = index_versions(table, "e")
    assert version.packs == first.packs


def test_a_ref_of_the_owners_with_the_name_of_the_side_tag_is_left_alone(table: Table) -> None:
    first = bindings.publish(table, replace(binding(table, 1), new_packs=(PACK,)))
    table.manage_snapshots().create_tag(first.base_snapshot_id, "ann_e-side").commit()
    shares = replace(binding(table, 2), tag=f"ann_e-{first.base_snapshot_id}", packs=(first.packs[0].holder_id,))
    with pytest.raises(TagTakenError, match="a tag 'ann_e-side' that icepuffin did not make"):
        bindings.publish(table, shares)
    assert table.refresh().metadata.refs["ann_e-side"].snapshot_id == first.base_snapshot_id


def test_packs_that_cannot_be_removed_stay_and_are_warned_of(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    version = bindings.publish(table, replace(binding(table), new_packs=(PACK,)))
    expire_derived(table, [version.index_snapshot_id], ["ann_e"])

    def forbidden(*_: object) -> None:
        raise ForbiddenError("no right to remove snapshots")

    monkeypatch.setattr(table.catalog, "commit_table", forbidden)
    expire_packs_if_possible(table)
    assert "packs that no version names stay until a later refresh" in caplog.text
    assert "no right to remove snapshots" in caplog.text
    assert version.packs[0].holder_id in unnamed_packs(table.refresh())
