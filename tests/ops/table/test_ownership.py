"""Which snapshots are icepuffin's own: nothing that a writer sets or copies hides its rows."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertTableUUID

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import bound_names, holder_ids, index_versions, own_names
from icepuffin.ops.binding.derived_snapshots import NewPack
from icepuffin.ops.binding.expiration import unnamed_packs
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.search.opening import open_exact
from icepuffin.ops.table.blob_kind import KIND_KEY, BlobKind
from icepuffin.ops.table.ownership import own_snapshot, own_snapshots
from icepuffin.ops.table.snapshots import UnknownSnapshotError, data_snapshots, derived_ids, head_of, resolve_snapshot
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows
from tests.ops.catalog.bindings import binding
from tests.ops.index.comparison import index_head

PACK = NewPack(path="s3://nowhere/pack.puffin", size=4, footer_size=2)
VERSION = {
    "ann.index": "e",
    "ann.base-snapshot-id": "7",
    "ann.build-id": "b",
    "statistics-file": "s3://b/f",
    "ann.packs": "8,9",
}
SKETCHES = {
    KIND_KEY: "theta-sketches",
    "theta-sketches.base-snapshot-id": "7",
    "theta-sketches.build-id": "b",
    "theta-sketches.fields": "1,2",
    "statistics-file": "s3://b/f",
}


def snapshot(
    properties: Mapping[str, str], *, operation: Operation = Operation.REPLACE, parent: int | None = None
) -> Snapshot:
    return Snapshot(
        snapshot_id=5,
        parent_snapshot_id=parent,
        timestamp_ms=1,
        manifest_list="s3://b/m",
        summary=Summary(operation, **properties),
    )


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    made = table_factory()
    made.append(make_rows(0, 60))
    return made


@pytest.mark.parametrize("kind", list(BlobKind))
@pytest.mark.parametrize("full", [False, True])
def test_the_rows_of_an_append_with_our_properties_are_found(
    table: Table, kind: BlobKind, caplog: pytest.LogCaptureFixture, *, full: bool
) -> None:
    first = data_snapshots(table)[-1].snapshot_id
    copied = {key.replace("ann", kind): value for key, value in VERSION.items()} if full else {}
    table.append(make_rows(60, 120), snapshot_properties={**copied, f"{kind}.base-snapshot-id": str(first)})
    head = table.metadata.current_snapshot_id
    assert [item.snapshot_id for item in data_snapshots(table)] == [first, head]
    assert resolve_snapshot(table).snapshot_id == head
    query = np.asarray(make_rows(65, 66)["embedding"].to_pylist(), np.float32)
    answer = open_exact(table, "embedding", Metric.L2, storage=STORAGE).search(query, 1, columns=["id"])
    assert answer.rows["id"].to_pylist() == [65]
    assert f"snapshot {head} has properties of icepuffin's in its summary, and counts as data: its operation" in (
        caplog.text
    )
    assert caplog.messages[0].endswith("Whoever wrote it set or copied them; have it leave them out")
    caplog.clear()
    assert derived_ids(table.refresh().metadata) == frozenset()
    assert caplog.text == ""


@pytest.mark.parametrize("text", ["abc", "", "-7", "1,2", "9" * 30, "7.0"])
def test_a_base_that_is_no_id_is_warned_of_and_hurts_nothing(
    table: Table, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    table.append(make_rows(60, 120), snapshot_properties={"ann.base-snapshot-id": text})
    head = SnapshotId(table.metadata.current_snapshot_id or 0)
    assert len(data_snapshots(table)) == 2
    assert index_versions(table, "e") == ()
    assert str(head) in caplog.text
    good = bindings.publish(table, binding(table))
    assert good.base_snapshot_id == head


def test_all_that_is_bound_is_known_as_ours_by_one_key(table: Table) -> None:
    version = bindings.publish(table, replace(binding(table), new_packs=(PACK,)))
    ours = own_snapshots(table.metadata)
    (holder_id,) = ours[version.index_snapshot_id].pack_ids
    assert set(ours) == {version.index_snapshot_id, holder_id} == derived_ids(table.metadata)
    assert (ours[holder_id].kind, ours[holder_id].base_id, ours[holder_id].pack_owner) == ("ann", None, "e")
    assert head_of(table, "ann_e") == version.base_snapshot_id
    summaries = (table.metadata.snapshot_by_id(item) for item in ours)
    assert [item.summary[KIND_KEY] for item in summaries if item and item.summary] == ["ann", "ann"]
    with pytest.raises(UnknownSnapshotError, match="only holds shards of index e, and has no rows"):
        resolve_snapshot(table, holder_id)
    left = [item for item in table.metadata.snapshots if item.snapshot_id != version.base_snapshot_id]
    table.metadata = table.metadata.model_copy(update={"snapshots": left})
    assert head_of(table, "ann_e") == version.index_snapshot_id, "it stands for what has expired"


OLD_SKETCHES = {key: value for key, value in SKETCHES.items() if key != KIND_KEY}


@pytest.mark.parametrize(
    "properties", [VERSION, SKETCHES, {**VERSION, KIND_KEY: "ann", "added-records": "0"}, {**VERSION, "ann.packs": ""}]
)
def test_a_version_is_ours(properties: Mapping[str, str]) -> None:
    own = own_snapshot(snapshot(properties))
    assert own is not None
    assert (own.base_id, own.pack_owner) == (7, None)
    assert own.pack_ids == holder_ids(snapshot(properties)) == ((8, 9) if properties.get("ann.packs") else ())
    assert own.fields == ({1, 2} if properties is SKETCHES else frozenset())


@pytest.mark.parametrize("properties", [VERSION, OLD_SKETCHES])
def test_a_version_without_a_kind_may_be_a_child_of_its_data_snapshot(properties: Mapping[str, str]) -> None:
    """As all were before."""
    assert own_snapshot(snapshot(properties, parent=7)) == own_snapshot(snapshot(properties))
    assert own_snapshot(snapshot(properties, parent=7)) is not None


def test_the_rows_of_a_rewrite_that_copied_all_of_a_versions_summary_are_found(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """Its writer counts nothing, and its parent is the version's data snapshot: rows of it were in no answer."""
    version = bindings.publish(table, binding(table))
    own = table.metadata.snapshot_by_id(version.index_snapshot_id)
    assert own is not None
    table.append(make_rows(60, 120))
    head = table.metadata.current_snapshot()
    assert head is not None
    assert head.parent_snapshot_id == version.base_snapshot_id
    snapshots = [
        item.model_copy(update={"summary": own.summary}) if item.snapshot_id == head.snapshot_id else item
        for item in table.metadata.snapshots
    ]
    table.metadata = table.metadata.model_copy(update={"snapshots": snapshots})
    assert resolve_snapshot(table).snapshot_id == data_snapshots(table)[-1].snapshot_id == head.snapshot_id
    query = np.asarray(make_rows(65, 66)["embedding"].to_pylist(), np.float32)
    answer = open_exact(table, "embedding", Metric.L2, storage=STORAGE).search(query, 1, columns=["id"])
    assert answer.rows["id"].to_pylist() == [65]
    assert f"snapshot {head.snapshot_id} has properties of icepuffin's in its summary, and counts as data" in (
        caplog.text
    )


CHANGES: dict[str, tuple[dict[str, str | None], Operation, int | None]] = {
    "an append": ({}, Operation.APPEND, None),
    "a delete": ({}, Operation.DELETE, None),
    "added rows": ({"added-records": "60"}, Operation.REPLACE, None),
    "deleted files": ({"deleted-data-files": "1"}, Operation.REPLACE, None),
    "removed deletes": ({"removed-delete-files": "1"}, Operation.REPLACE, None),
    "another parent": ({}, Operation.REPLACE, 6),
    "its base as parent": ({KIND_KEY: "ann"}, Operation.REPLACE, 7),
    "no build id": ({"ann.build-id": None}, Operation.REPLACE, None),
    "no file": ({"statistics-file": None}, Operation.REPLACE, None),
    "an empty file": ({"statistics-file": ""}, Operation.REPLACE, None),
    "no base": ({"ann.base-snapshot-id": None, KIND_KEY: "ann"}, Operation.REPLACE, None),
    "packs that are no ids": ({"ann.packs": "8,x"}, Operation.REPLACE, None),
    "two bases": ({"ann.base-snapshot-id": "7,8"}, Operation.REPLACE, None),
    "another kind's keys": ({KIND_KEY: "theta-sketches"}, Operation.REPLACE, None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_snapshot_that_is_ours_in_all_but_one_respect_is_the_owners(change: str) -> None:
    changed, operation, parent = CHANGES[change]
    properties = {key: value for key, value in {**VERSION, **changed}.items() if value is not None}
    changed_snapshot = snapshot(properties, operation=operation, parent=parent)
    assert own_snapshot(changed_snapshot) is None
    assert own_names(changed_snapshot) == frozenset()
    assert holder_ids(changed_snapshot) == ()


def test_a_holder_is_ours_only_without_a_parent() -> None:
    holder = snapshot({"ann.pack": "e", "added-records": "0"})
    own = own_snapshot(holder)
    assert own is not None
    assert (own.base_id, own.pack_owner) == (None, "e")
    assert own_names(holder) == {"ann_e-pack-5"}
    assert own_snapshot(snapshot({"ann.pack": "e"}, parent=7)) is None


def test_what_a_later_release_made_is_ours_and_left_alone(table: Table) -> None:
    base = data_snapshots(table)[-1].snapshot_id
    head = table.metadata.snapshot_by_id(base)
    assert head is not None
    kinds = {11: {"later.base-snapshot-id": str(base), "later.packs": "12"}, 12: {"later.pack": "e"}}
    for snapshot_id, properties in kinds.items():
        summary = Summary(Operation.REPLACE, **{KIND_KEY: "later", **properties})
        changed = {"snapshot_id": snapshot_id, "parent_snapshot_id": None, "summary": summary}
        add = AddSnapshotUpdate(snapshot=head.model_copy(update=changed))
        table.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), (add,))
        table.refresh()
    assert {number: own.pack_ids for number, own in own_snapshots(table.metadata).items()} == {11: (12,), 12: ()}
    assert resolve_snapshot(table, 11).snapshot_id == base
    assert not any(map(own_names, table.metadata.snapshots)), "no tag on them is ours"
    assert (unnamed_packs(table), bound_names(table, BlobKind.INDEX)) == ({}, frozenset())
    with pytest.raises(UnknownSnapshotError, match="holds what a later release of icepuffin made, of kind 'later'"):
        resolve_snapshot(table, 12)


def test_who_names_the_holder_of_sketches_is_told_what_it_holds(table: Table) -> None:
    (head,) = table.metadata.snapshots
    summary = Summary(Operation.REPLACE, **{KIND_KEY: "theta-sketches", "theta-sketches.pack": "theta-sketches"})
    holder = head.model_copy(update={"snapshot_id": 13, "parent_snapshot_id": None, "summary": summary})
    table.metadata = table.metadata.model_copy(update={"snapshots": [head, holder]})
    with pytest.raises(UnknownSnapshotError, match="only holds theta sketches, and has no rows"):
        resolve_snapshot(table, 13)


def test_snapshots_whose_ids_are_negative_are_indexed_and_their_files_swept(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id is any number of 64 bits. A version of such a snapshot was none, and its tag for good the owner's."""
    with monkeypatch.context() as patch:
        patch.setattr(type(table.metadata), "new_snapshot_id", lambda _: -5)
        table.append(make_rows(60, 120))
    index_head(table)
    sketches = count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), SnapshotId(-5)).publish()
    assert [version.base_snapshot_id for version in index_versions(table.refresh(), "e")] == [-5]
    assert resolve_snapshot(table, "-5").snapshot_id == resolve_snapshot(table, "ann_e").snapshot_id == -5
    table.append(make_rows(120, 130))
    table.maintenance.expire_snapshots().by_id(-5).commit()
    assert sketches.statistics_path in collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted


def test_a_version_that_names_a_pack_as_a_holder_does_is_no_holder() -> None:
    """A sweep of packs that no version names would remove it."""
    own = own_snapshot(snapshot({**VERSION, "ann.pack": "e"}))
    assert own is not None
    assert (own.base_id, own.pack_owner, own.pack_ids) == (7, None, (8, 9))
