"""Packs: shards that versions share. They stay as long as a version names them, and are then gone."""

import re
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import SetStatisticsUpdate

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding import bindings, expiration, joint_commit
from icepuffin.ops.binding.bound_versions import BoundPack, index_versions, tagged_version
from icepuffin.ops.binding.commit import CommitOutcome, attempt_commit
from icepuffin.ops.binding.expiration import expire_packs, unnamed_packs
from icepuffin.ops.errors import TableFaultError
from icepuffin.ops.index import new_version
from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.index.errors import CoverageError, NotAnIndexError
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import GcReport
from icepuffin.ops.index.planning.version_plan import plan_version
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.verify import integrity
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.index.versions.index_packs import is_pack, pack_number, packs_to_share
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import Action, ObjectRange, SnapshotId
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.overview import overview
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.storage import ObjectMissingError, open_storage
from icepuffin.ops.storage.local_storage import LocalStorage, to_path
from icepuffin.ops.table.blob_kind import LASTING_MS, pack_tag
from icepuffin.ops.table.snapshots import (
    UnknownSnapshotError,
    data_snapshots,
    find_snapshot,
    is_derived,
    resolve_snapshot,
)
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin import PuffinReader
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, content, index_head

TableFactory = Callable[..., Table]


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """30,000 bytes are worth a pack here: three shards of 200 rows, and not a delta of 20."""
    monkeypatch.setattr(index_packs, "PACK_BYTES", 30_000)
    monkeypatch.setattr(index_packs, "WORTH_SHARE", 0.2)


@pytest.fixture
def table(table_factory: TableFactory, request: pytest.FixtureRequest) -> Table:
    """600 rows in three files, indexed: its three shards lie in a pack. The parameter is the format version."""
    new_table = table_factory(**{"format-version": getattr(request, "param", "2")})
    for first in range(0, 600, 200):
        new_table.append(make_rows(first, first + 200))
    create_index(new_table, DEFINITION)
    index_head(new_table)
    return new_table.refresh()


def head_version(table: Table) -> bindings.DerivedVersion:
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    return version


def packs_of(table: Table) -> set[str]:
    """Paths of the packs in the store."""
    root = f"{table.location()}/metadata"
    return {item.path for item in open_storage(root, STORAGE).list(root) if "/ann-e-pack-" in item.path}


def holders(table: Table) -> set[int]:
    return set(unnamed_packs(table, [version.index_snapshot_id for version in index_versions(table.refresh(), "e")]))


def sweep(table: Table, scope: RetentionScope = RetentionScope.NEWEST, *, dry_run: bool = False) -> GcReport:
    """What `icepuffin gc` does, without a grace period."""
    policy = RetentionPolicy(scope)
    return collect_table_garbage(table, storage=STORAGE, retentions={}, default=policy, grace_hours=-1, dry_run=dry_run)


def assert_right(table: Table) -> None:
    _, recall = answer_with_recall(table)
    assert recall >= 0.96
    assert check_integrity(RunContext(table, STORAGE), head_version(table)).faults == ()


@pytest.mark.parametrize(("shared", "least"), [(0, 64 << 20), (128, 1), (1 << 30, 8 << 20), (1 << 40, 64 << 20)])
def test_a_pack_is_worth_64_mib_or_a_share_of_what_is_in_packs_already(
    monkeypatch: pytest.MonkeyPatch, shared: int, least: int
) -> None:
    monkeypatch.undo()  # the limit of this file's tables
    assert is_pack(least, shared)
    assert not is_pack(least - 1, shared)


@pytest.mark.parametrize("table", ["1", "2"], indirect=True)
def test_a_build_lies_in_a_pack_and_a_refresh_shares_it(table: Table) -> None:
    base = head_version(table)
    index_bytes = sum(pack.size for pack in base.packs)
    assert len(base.packs) == 1
    assert base.packs[0].is_kept
    table.append(make_rows(600, 620))
    report = index_head(table)
    version = head_version(table)
    assert version.packs == base.packs
    assert report.action is Action.REFRESHED
    assert (report.shards, report.shards_copied) == (4, 3)
    assert 0.9 * index_bytes < report.bytes_shared < index_bytes
    assert report.bytes_written < 0.3 * index_bytes
    assert report.bytes_total - report.bytes_shared == len(content(report))
    shown = overview(table, DEFINITION, STORAGE)
    assert shown is not None
    assert [state.pack for state in shown.shards] == [1, 1, 1, 0]
    assert shown.packs[0].versions == 2
    assert (shown.bytes_alone, shown.bytes_shared) == (len(content(report)), index_bytes)
    assert_right(table)


def test_a_pack_is_named_for_its_index_and_says_who_wrote_it(table: Table) -> None:
    path = head_version(table).packs[0].path
    assert re.fullmatch(r"ann-e-pack-[0-9a-f]{32}\.puffin", path.rpartition("/")[2])
    footer = PuffinReader(open_storage(path, STORAGE).source(path)).footer
    assert footer.properties["created-by"].startswith("icepuffin version ")


def test_a_shard_and_its_vectors_come_into_a_pack_as_one_piece(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 6,000 shards, for 10^9 rows, S3 would have to take 18,000 parts, and it takes 10,000."""
    pieces, concat = list[bytes | ObjectRange](), LocalStorage.concat

    def recorded(storage: LocalStorage, path: str, segments: Iterable[bytes | ObjectRange], size: int) -> int:
        every = list(segments)
        pieces.extend(every if "-pack-" in path else ())
        return concat(storage, path, every, size)

    monkeypatch.setattr(LocalStorage, "concat", recorded)
    new_table = table_factory(**{"format-version": "2"})
    for first in range(0, 600, 200):
        new_table.append(make_rows(first, first + 200))
    index_head(new_table)
    assert_right(new_table)
    shards = open_version(head_version(new_table), STORAGE).shards
    assert [len(shard.runs) for shard in shards] == [1, 1, 1]
    assert len([piece for piece in pieces if isinstance(piece, ObjectRange)]) == 3


def test_less_is_worth_a_pack_where_packs_are_shared(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_packs, "WORTH_SHARE", 0.01)
    table.append(make_rows(600, 620))
    report = index_head(table)
    assert len(head_version(table).packs) == 2
    assert len(content(report)) < report.bytes_written
    assert_right(table)


def test_many_versions_take_little_more_than_one(table: Table) -> None:
    index_bytes = sum(pack.size for pack in head_version(table).packs)
    for first in range(600, 700, 10):
        table.append(make_rows(first, first + 10))
        index_head(table)
    root = f"{table.location()}/metadata"
    stored = sum(item.size for item in open_storage(root, STORAGE).list(root) if "/ann-e-" in item.path)
    assert len(index_versions(table.refresh(), "e")) == 11
    # A version's own bytes are its delta's rows and each file's balls: more or fewer, as the files' random names sort
    own_bytes = stored - index_bytes
    assert len(packs_of(table)) == 1
    assert stored < 0.35 * (11 * index_bytes + own_bytes)
    assert_right(table)
    for version in index_versions(table, "e"):
        assert check_integrity(RunContext(table, STORAGE), version).faults == ()


def test_a_pack_outlives_the_version_that_made_it(table: Table) -> None:
    first = head_version(table)
    pack = first.packs[0].path
    table.append(make_rows(600, 620))
    index_head(table)
    sweep(table)
    assert [version.index_snapshot_id for version in index_versions(table.refresh(), "e")] != [first.index_snapshot_id]
    assert not open_storage(first.puffin_path, STORAGE).exists(first.puffin_path)
    assert packs_of(table) == {pack}
    assert_right(table)


def test_a_pack_that_no_version_names_goes_with_its_tag(table: Table) -> None:
    holder = head_version(table).packs[0].holder_id
    table.overwrite(make_rows(5000, 5600))  # other rows: a new build
    index_head(table)
    new = head_version(table).packs[0]
    assert len(packs_of(table)) == 2
    sweep(table)
    assert packs_of(table) == {new.path}
    assert holders(table) == {new.holder_id}
    assert pack_tag("e", holder) not in table.metadata.refs
    assert_right(table)


def test_a_refresh_drops_packs_whose_versions_have_expired(table: Table) -> None:
    old = head_version(table)
    table.overwrite(make_rows(5000, 5600))
    index_head(table)
    table.refresh().maintenance.expire_snapshots().by_ids([old.index_snapshot_id]).commit()
    table.append(make_rows(5600, 5620))
    index_head(table)
    assert holders(table) == {pack.holder_id for pack in head_version(table).packs}
    assert old.packs[0].holder_id not in holders(table)
    assert_right(table)


def test_packs_stay_where_a_catalog_hides_snapshots(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    old = head_version(table)
    table.overwrite(make_rows(5000, 5600))
    index_head(table)
    monkeypatch.setattr("icepuffin.ops.table.snapshots.hides_snapshots", lambda _: True)
    table.refresh().maintenance.expire_snapshots().by_ids([old.index_snapshot_id]).commit()
    with pytest.raises(TableFaultError):
        expire_packs(table)
    table.append(make_rows(5600, 5620))
    index_head(table)
    assert old.packs[0].holder_id in holders(table)


def test_a_dry_run_counts_what_goes_and_removes_nothing(table: Table) -> None:
    old = head_version(table)
    table.overwrite(make_rows(5000, 5600))
    index_head(table)
    report = sweep(table, dry_run=True)
    assert {old.puffin_path, old.packs[0].path} <= set(report.deleted)
    assert len(packs_of(table)) == 2
    assert len(holders(table)) == 2


def test_gc_of_a_dropped_index_takes_its_packs(table: Table) -> None:
    tags = drop_index(table, "e")
    assert len(tags) == 2
    sweep(table)
    assert not packs_of(table)
    assert not any(map(is_derived, table.refresh().metadata.snapshots))


def test_an_index_that_is_created_again_has_its_packs_again(table: Table) -> None:
    create_index(table, DEFINITION)
    drop_index(table, "e")
    assert not any(pack.is_kept for version in index_versions(table.refresh(), "e") for pack in version.packs)
    create_index(table, DEFINITION)
    assert index_head(table).action is Action.RETAGGED
    assert all(pack.is_kept for pack in head_version(table).packs)
    sweep(table)
    assert_right(table)


def test_a_pack_without_a_tag_is_copied_and_not_shared(table: Table) -> None:
    pack = head_version(table).packs[0]
    bindings.drop(table, pack_tag("e", pack.holder_id))
    table.append(make_rows(600, 620))
    report = index_head(table)
    assert report.bytes_shared == 0
    assert [new.holder_id for new in head_version(table).packs] != [pack.holder_id]
    sweep(table)
    assert_right(table)


def test_a_version_whose_pack_has_expired_is_no_base_and_no_answer(table: Table) -> None:
    pack = head_version(table).packs[0]
    bindings.drop(table, pack_tag("e", pack.holder_id))
    table.maintenance.expire_snapshots().by_ids([pack.holder_id]).commit()
    version = head_version(table)
    assert version.packs[0].path == ""
    assert "has expired" in check_integrity(RunContext(table, STORAGE), version).faults[0]
    table.append(make_rows(600, 620))
    assert index_head(table).action is Action.BUILT
    assert_right(table)


def test_a_pack_whose_tag_gave_way_to_a_ref_of_the_owner_is_reported(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    version = head_version(table)
    tag = pack_tag("e", version.packs[0].holder_id)
    bindings.drop(table, tag)
    table.manage_snapshots().create_tag(version.base_snapshot_id, tag).commit()
    sweep(table)
    assert table.refresh().metadata.refs[tag].snapshot_id == version.base_snapshot_id
    assert f"the ref '{tag}', which icepuffin did not make, has the name" in caplog.text
    assert_right(table)
    table.append(make_rows(600, 620))
    assert index_head(table).bytes_shared == 0, "no version comes to depend on the pack"


def test_a_pack_whose_slot_another_engine_took_is_no_base_and_no_answer(table: Table) -> None:
    """As an ANALYZE of the holder snapshot does; versions of other packs stay."""
    other = head_version(table)
    table.overwrite(make_rows(5000, 5600))  # other rows: a new build
    index_head(table)
    version = head_version(table)
    path = f"{table.location()}/metadata/{version.packs[0].holder_id}-analyzed.stats"
    open_storage(path, STORAGE).create(path, bytes(400))
    statistics = StatisticsFile(
        snapshot_id=version.packs[0].holder_id, statistics_path=path, file_size_in_bytes=400,
        file_footer_size_in_bytes=28, blob_metadata=[],
    )  # fmt: skip
    assert attempt_commit(table, (SetStatisticsUpdate(statistics=statistics),), ()) is CommitOutcome.DONE
    reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
    assert reader.coverage is Coverage.EXACT_SCAN
    assert "does not lie within" in reader.warnings[0]
    report = index_head(table)
    assert report.action is not Action.REUSED
    assert_right(table)
    assert check_integrity(RunContext(table, STORAGE), other).faults == ()


@pytest.mark.parametrize("change", ["append", "delete", "compaction"])
def test_a_refresh_starts_anew_where_the_file_of_a_pack_is_gone(table: Table, change: str) -> None:
    """Removed past the catalog, as by a rule of a bucket."""
    (pack,) = packs_of(table)
    to_path(pack).unlink()
    if change == "append":
        table.append(make_rows(600, 620))
    elif change == "delete":
        append_position_deletes(table, {next(iter(table.scan().plan_files())).file.file_path: np.arange(10)})
    else:
        table.overwrite(table.scan().to_arrow())
    report = index_head(table)
    assert report.action is Action.BUILT
    assert report.reason.startswith("no version can be read")
    assert packs_of(table) != {pack}
    assert_right(table)


@pytest.mark.parametrize("left", [None, 1000], ids=["gone", "cut short"])
def test_a_version_whose_pack_is_gone_is_not_reused(table: Table, left: int | None) -> None:
    """The plan has the reason, and the version is made anew, without a reading of all that is left."""
    (pack,) = packs_of(table)
    content = to_path(pack).read_bytes()
    to_path(pack).unlink()
    if left is not None:
        to_path(pack).write_bytes(content[:left])
    plan = plan_version(RunContext(table, STORAGE), DEFINITION, head_version(table).base_snapshot_id)
    assert (plan.action, plan.existing) == (Action.BUILT, None)
    fault = "is missing" if left is None else f"has 1,000 bytes, it was written with {len(content):,}"
    assert f"pack {pack} {fault}" in plan.reason
    assert index_head(table).action is Action.BUILT
    assert_right(table)
    assert index_head(table).action is Action.REUSED


def test_a_missing_file_that_is_no_pack_costs_no_verification(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(make_rows(600, 620))
    verified = []
    monkeypatch.setattr(integrity, "check_integrity", lambda *_, **__: verified.append(1))

    def missing(*_: object, **__: object) -> None:
        raise ObjectMissingError("deletes.parquet does not exist")

    monkeypatch.setattr(new_version, "find_dead_nodes", missing)
    with pytest.raises(ObjectMissingError):
        index_head(table)
    assert not verified


def test_a_pack_that_goes_while_a_version_is_made_is_not_named(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = head_version(table).packs[0]
    real = bindings.publish

    def late(*args: object) -> object:
        bindings.drop(table, pack_tag("e", pack.holder_id))
        return real(*args)  # type: ignore[arg-type]

    table.append(make_rows(600, 620))
    before = packs_of(table)
    with monkeypatch.context() as patch:
        patch.setattr(new_version.bindings, "publish", late)
        with pytest.raises(bindings.LostRaceError, match="dropped meanwhile"):
            index_head(table)
    assert packs_of(table) == before
    index_head(table)
    sweep(table)
    assert_right(table)


def test_a_sweep_does_not_take_a_pack_that_a_version_has_come_to_name(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep reads the table, a version is published, and the sweep commits."""
    holder = head_version(table).packs[0].holder_id
    refused: list[CommitOutcome] = []

    def look(current: Table) -> dict[int, str]:
        if refused:
            return dict(unnamed_packs(current))
        other = current.catalog.load_table(current.name())
        other.append(make_rows(600, 620))
        index_head(other)
        return {holder: "e"}

    def commit(*args: object) -> CommitOutcome:
        table.refresh()  # as a REST catalog does, which compares requirements with the newest state
        refused.append(attempt_commit(*args))  # type: ignore[arg-type]
        return refused[-1]

    monkeypatch.setattr(expiration, "attempt_commit", commit)
    monkeypatch.setattr(expiration, "unnamed_packs", look)
    assert expire_packs(table) == ()
    assert refused == [CommitOutcome.REFUSED]
    assert_right(table)


def shared_of(table: Table, used_bytes: list[int]) -> tuple[list[int], list[int]]:
    """(numbers of the packs that are shared, of which so many of 1,000 bytes are in use; number of each in the new
    version). Pack 3 has no tag.
    """
    bound = tuple(
        BoundPack(SnapshotId(number), f"file:/pack-{number}", 1000, is_kept=number != 3)
        for number in range(len(used_bytes))
    )
    version = replace(head_version(table), packs=bound)
    kept = [ObjectRange(pack.path, 64, size) for pack, size in zip(bound, used_bytes, strict=True)]
    shared = packs_to_share(version, kept)
    return [pack.holder_id for pack in shared], [pack_number(place, shared) for place in kept]


def test_packs_that_are_shared_are_used_by_half_all_together(table: Table) -> None:
    assert shared_of(table, [500, 499, 0, 999, 600]) == ([0, 1, 4], [1, 2, 0, 0, 3])
    assert shared_of(table, [500, 399, 0, 999, 600]) == ([0, 4], [1, 0, 0, 0, 2])
    assert shared_of(table, [100, 800, 0, 999, 600]) == ([0, 1, 4], [1, 2, 0, 0, 3])
    assert shared_of(table, [100, 799, 0, 999, 600]) == ([1, 4], [0, 1, 0, 0, 2]), "the least used is written again"
    assert shared_of(table, [100, 99, 0, 999, 300]) == ([], [0, 0, 0, 0, 0])


def test_an_eighth_of_too_many_packs_is_written_into_a_new_one(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    used_bytes = [900, 600, 700, 0, 800]
    monkeypatch.setattr(index_packs, "MAX_PACKS", 5)
    assert shared_of(table, used_bytes)[0] == [0, 1, 2, 4]
    monkeypatch.setattr(index_packs, "MAX_PACKS", 4)
    assert shared_of(table, used_bytes)[0] == [0, 2, 4]
    monkeypatch.setattr(index_packs, "_MERGED_PART", 2)
    assert shared_of(table, used_bytes)[0] == [0, 4]


def test_a_hundred_versions_copy_each_pack_once_at_most(table: Table) -> None:
    """Packs that are equally long, of versions that each add one: 31 are never copied."""
    sizes, copied = [1000], 0
    for _ in range(99):
        bound = [BoundPack(SnapshotId(n), f"file:/{n}", size, is_kept=True) for n, size in enumerate(sizes)]
        version = replace(head_version(table), packs=tuple(bound))
        shared = packs_to_share(version, [ObjectRange(pack.path, 0, pack.size) for pack in bound])
        again = sum(sizes) - sum(pack.size for pack in shared)
        copied += again
        sizes = [*(pack.size for pack in shared), again + 10]
        assert len(sizes) <= 32
    assert copied == 680


def test_vectors_stay_beside_graphs_that_were_written_again(table: Table) -> None:
    """Each version adds 5 of vectors and writes the graph again, 60, which its pack holds in vain from then on."""
    parts, copied = [(572, 512)], 0
    for _ in range(20):
        bound = [BoundPack(SnapshotId(n), f"file:/{n}", size, is_kept=True) for n, (size, _) in enumerate(parts)]
        kept = [ObjectRange(pack.path, 0, used) for pack, (_, used) in zip(bound, parts, strict=True)]
        shared = [pack.holder_id for pack in packs_to_share(replace(head_version(table), packs=tuple(bound)), kept)]
        again = sum(used for _, used in parts) - sum(parts[number][1] for number in shared)
        copied += again
        parts = [*(parts[number] for number in shared), (again + 65, again + 5)]
        assert sum(size for size, _ in parts) <= 2 * (60 + sum(used for _, used in parts))
    assert copied < 100, "less than each vector once; 500 where each pack by itself has to be used by half"


def test_no_version_has_more_packs_than_the_limit(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1)
    monkeypatch.setattr(index_packs, "MAX_PACKS", 3)
    for first in range(600, 720, 20):
        table.append(make_rows(first, first + 20))
        index_head(table)
        assert 1 <= len(head_version(table).packs) <= 3
    assert_right(table)


def test_a_failure_leaves_neither_file_nor_pack(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise CoverageError("refused")

    table.overwrite(make_rows(5000, 5600))
    before = packs_of(table)
    with monkeypatch.context() as patch:
        patch.setattr(new_version, "require_rows", failing)
        with pytest.raises(CoverageError):
            index_head(table)
    assert packs_of(table) == before
    index_head(table)
    assert_right(table)


@pytest.mark.parametrize("kind", ["pack", "snap"])
def test_a_file_that_reads_back_as_another_is_not_published(
    table: Table, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As of a store that gives a file of before in place of the one that was written."""
    version, packs, real = head_version(table), packs_of(table), LocalStorage.concat
    before = to_path(version.packs[0].path if kind == "pack" else version.puffin_path).read_bytes()

    def stale(self: LocalStorage, path: str, *arguments: Any) -> int:
        copied = real(self, path, *arguments)
        if f"/ann-e-{kind}-" in path:
            to_path(path).write_bytes(before)
        return copied

    table.overwrite(make_rows(5000, 5600))
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "concat", stale)
        with pytest.raises(CoverageError, match="does not read back as it was written; nothing was published"):
            index_head(table)
    assert head_version(table) == version
    assert packs_of(table) == packs


def test_the_loser_of_two_equal_builds_leaves_no_pack(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(make_rows(600, 900))
    real = bindings.publish

    def late(*args: object) -> object:
        monkeypatch.setattr(new_version.bindings, "publish", real)
        index_head(table.catalog.load_table(table.name()))
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(new_version.bindings, "publish", late)
    index_head(table)
    assert packs_of(table) == {pack.path for version in index_versions(table, "e") for pack in version.packs}
    assert_right(table)


def test_equal_chains_of_versions_are_equal_to_the_byte(table_factory: TableFactory, table: Table) -> None:
    """But for the names of packs, which no file holds."""
    table.append(make_rows(600, 620))
    first = content(index_head(table))
    drop_index(table, "e")
    ours = {version.index_snapshot_id for version in index_versions(table.refresh(), "e")}
    table.maintenance.expire_snapshots().by_ids([*ours, *holders(table)]).commit()
    parent = data_snapshots(table.refresh())[-2].snapshot_id
    from icepuffin.ops.index.index_materialization import materialize_index  # noqa: PLC0415

    materialize_index(RunContext(table, STORAGE, LocalRunner()), DEFINITION, parent)
    assert content(index_head(table)) == first


def test_a_holder_snapshot_is_nobodys_data(table: Table) -> None:
    holder = head_version(table).packs[0].holder_id
    summary = find_snapshot(table, holder).summary
    assert summary is not None
    assert summary.operation is Operation.REPLACE
    assert holder not in {snapshot.snapshot_id for snapshot in data_snapshots(table)}
    assert len(table.scan(snapshot_id=holder).to_arrow()) == 0
    for inspected in (table.inspect.files, table.inspect.data_files, table.inspect.delete_files):
        with pytest.raises(ValueError, match="Must pass at least one table"):  # PyIceberg joins those of each manifest
            inspected(holder)
    assert len(table.inspect.entries(holder)) == 0
    for named in (holder, pack_tag("e", holder)):
        with pytest.raises(UnknownSnapshotError, match="only holds shards of index e"):
            resolve_snapshot(table, named)
        with pytest.raises(UnknownSnapshotError, match="only holds shards"):
            open_index(table, DEFINITION, snapshot=named, storage=STORAGE)


def test_files_without_a_name_in_the_metadata_are_garbage(table: Table) -> None:
    pack = head_version(table).packs[0].path
    stray = pack.replace("-pack-", "-pack-0")
    open_storage(stray, STORAGE).create(stray, b"left by a run that was killed")
    report = collect_garbage(table, storage=STORAGE, grace=timedelta(hours=-1))
    assert report.deleted == (stray,)
    assert_right(table)


def test_a_version_that_lost_its_pack_stops_no_garbage_collection(table: Table) -> None:
    """The owner has tagged its snapshot, so it is to be kept for good."""
    version = head_version(table)
    pack = version.packs[0]
    table.manage_snapshots().create_tag(version.base_snapshot_id, "release").commit()
    table.append(make_rows(600, 620))
    bindings.drop(table, pack_tag("e", pack.holder_id))
    index_head(table)
    table.refresh().maintenance.expire_snapshots().by_ids([pack.holder_id]).commit()
    create_index(table, DEFINITION)
    sweep(table, RetentionScope.ALL)
    assert f"ann_e-{version.base_snapshot_id}" in table.refresh().metadata.refs
    assert_right(table)


def test_a_refresh_is_done_where_its_packs_may_not_be_dropped(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog may grant the right to add snapshots, and not the one to remove them."""
    old = head_version(table)
    table.overwrite(make_rows(5000, 5600))
    index_head(table)
    table.refresh().maintenance.expire_snapshots().by_ids([old.index_snapshot_id]).commit()
    table.append(make_rows(5600, 5620))

    def forbidden(*_: object) -> None:
        raise ForbiddenError("may not remove snapshots")

    monkeypatch.setattr(expiration, "attempt_commit", forbidden)
    assert index_head(table).action is Action.REFRESHED
    assert old.packs[0].holder_id in holders(table)


def test_a_dropped_index_keeps_the_packs_of_versions_that_the_owner_tagged(table: Table) -> None:
    version = head_version(table)
    table.manage_snapshots().create_tag(version.index_snapshot_id, "keep").commit()
    create_index(table, DEFINITION)
    drop_index(table, "e")
    assert all(pack.is_kept for kept in index_versions(table.refresh(), "e") for pack in kept.packs)
    table.manage_snapshots().remove_tag("keep").commit()
    sweep(table)
    assert not packs_of(table)
    assert not holders(table)


def test_a_dry_run_leaves_a_pack_that_the_owner_tagged(table: Table) -> None:
    old = head_version(table)
    table.manage_snapshots().create_tag(old.packs[0].holder_id, "release").commit()
    table.overwrite(make_rows(5000, 5600))
    index_head(table)
    expected = sweep(table, dry_run=True)
    assert old.packs[0].path not in expected.deleted
    sweep(table)
    assert old.packs[0].path in packs_of(table)


def test_two_sweeps_at_once_remove_a_pack_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pack without a tag, so that no ref shows what the other has done."""
    old = head_version(table)
    bindings.drop(table, pack_tag("e", old.packs[0].holder_id))
    table.overwrite(make_rows(5000, 5600))
    index_head(table)
    table.refresh().maintenance.expire_snapshots().by_ids([old.index_snapshot_id]).commit()

    def late(*args: object) -> CommitOutcome:
        monkeypatch.setattr(expiration, "attempt_commit", attempt_commit)
        assert expire_packs(table.catalog.load_table(table.name())) == (old.packs[0].holder_id,)
        return attempt_commit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(expiration, "attempt_commit", late)
    assert expire_packs(table) == ()
    assert_right(table)


def test_a_pack_that_expires_between_read_and_commit_is_not_named(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = head_version(table).packs[0]
    outcomes: list[CommitOutcome] = []

    def commit(*args: object) -> CommitOutcome:
        monkeypatch.setattr(joint_commit, "attempt_commit", attempt_commit)
        bindings.drop(table.catalog.load_table(table.name()), pack_tag("e", pack.holder_id))
        outcomes.append(attempt_commit(*args))  # type: ignore[arg-type]
        return outcomes[-1]

    table.append(make_rows(600, 620))
    monkeypatch.setattr(joint_commit, "attempt_commit", commit)
    with pytest.raises(bindings.LostRaceError, match="dropped meanwhile"):
        index_head(table)
    assert outcomes == [CommitOutcome.REFUSED]


def index_second(table: Table) -> None:
    """Make a version of the second of three snapshots: under a tag of its own, which expires."""
    second = data_snapshots(table)[1].snapshot_id
    materialize_index(RunContext(table, STORAGE, LocalRunner()), DEFINITION, second)


def test_every_tag_of_a_pack_lasts(table: Table) -> None:
    """Also that of a pack which came with a version under an expiring tag: later versions share it."""
    index_second(table)
    tags = {ref for ref in table.refresh().metadata.refs if "-pack-" in ref}
    assert len(tags) == 2
    assert {table.metadata.refs[tag].max_ref_age_ms for tag in tags} == {LASTING_MS}


def test_a_shard_that_does_not_lie_within_its_pack_is_refused(table: Table) -> None:
    """By the byte: its last one may be that of the pack, and is not behind that."""
    version = head_version(table)
    (pack,) = version.packs
    shards = open_version(version, STORAGE).shards
    places = [place for shard in shards for place in (shard.blob, *(run.location for run in shard.runs))]
    end = max(place.offset + place.length for place in places if place.path == pack.path)
    for size in (end, end - 1):
        short = replace(version, packs=(replace(pack, size=size),))
        with nullcontext() if size == end else pytest.raises(NotAnIndexError, match="does not lie within"):
            assert open_version(short, STORAGE).shards == shards


def test_the_build_id_differs_where_a_pack_cannot_be_shared(table: Table) -> None:
    table.append(make_rows(600, 620))
    head = data_snapshots(table)[-1].snapshot_id
    before = plan_version(RunContext(table, STORAGE), DEFINITION, head).build_id
    bindings.drop(table, pack_tag("e", head_version(table).packs[0].holder_id))
    assert plan_version(RunContext(table, STORAGE), DEFINITION, head).build_id != before


def test_a_dropped_index_leaves_no_tag_of_a_version_that_came_meanwhile(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backfill publishes between the look-up of tags and the commit that drops them: its version shares a pack."""
    table.append(make_rows(600, 620))
    table.append(make_rows(620, 640))
    index_head(table)

    def commit(*args: object) -> CommitOutcome:
        monkeypatch.setattr(bindings, "attempt_commit", attempt_commit)
        index_second(table.catalog.load_table(table.name()))
        return attempt_commit(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(bindings, "attempt_commit", commit)
    dropped = drop_index(table, "e")
    assert set(table.refresh().metadata.refs) == {"main"}
    assert f"ann_e-{data_snapshots(table)[1].snapshot_id}" in dropped


def test_a_tag_that_moves_keeps_packs_that_lost_their_tags_meanwhile(table: Table) -> None:
    version = head_version(table)
    bindings.drop(table, "ann_e")
    stale = table.catalog.load_table(table.name())
    bindings.drop(table, pack_tag("e", version.packs[0].holder_id))
    bindings.move_tag(stale, "ann_e", version.index_snapshot_id, expected_ref=None)
    assert head_version(table).packs[0].is_kept


def test_a_tag_does_not_move_to_a_version_that_has_expired(table: Table) -> None:
    version = head_version(table)
    bindings.drop(table, "ann_e")
    stale = table.catalog.load_table(table.name())
    table.refresh().maintenance.expire_snapshots().by_ids([version.index_snapshot_id]).commit()
    with pytest.raises(bindings.BindingError, match="expired meanwhile"):
        bindings.move_tag(stale, "ann_e", version.index_snapshot_id, expected_ref=None)


def test_a_sweep_tags_the_packs_of_versions_that_the_owner_tagged_after_a_drop(table: Table) -> None:
    version = head_version(table)
    drop_index(table, "e")
    table.refresh().manage_snapshots().create_tag(version.index_snapshot_id, "keep").commit()
    sweep(table)
    assert all(pack.is_kept for kept in index_versions(table.refresh(), "e") for pack in kept.packs)
    assert packs_of(table)


def test_garbage_goes_where_the_catalog_refuses_all_else(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a table that somebody commits to all the time; what is left is reported."""
    table.overwrite(make_rows(5000, 5600))
    index_head(table)
    root = f"{table.location()}/metadata"
    orphan = f"{root}/ann-e-snap-1-0.puffin"
    open_storage(root, STORAGE).create(orphan, b"x")
    with monkeypatch.context() as patch:
        patch.setattr(expiration, "attempt_commit", lambda *_: CommitOutcome.REFUSED)
        report = sweep(table)
    assert orphan in report.deleted
    assert report.retired == ()
    assert ["could not be expired" in why for why in report.refused] == [True]
    assert sweep(table).refused == ()
    assert_right(table)
