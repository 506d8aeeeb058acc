"""A version whose shards are more than one object may hold, or take parts of: they lie in several packs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import BoundPack, index_versions, tagged_version
from icepuffin.ops.binding.expiration import unnamed_packs
from icepuffin.ops.index import index_layout
from icepuffin.ops.index.definitions.ddl import drop_index
from icepuffin.ops.index.definitions.index_definition import DefinitionError
from icepuffin.ops.index.files import background_file
from icepuffin.ops.index.index_layout import make_layout
from icepuffin.ops.index.planning.sizes import choose_shard_count, rows_per_shard
from icepuffin.ops.index.planning.version_plan import plan_version
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.index.versions.index_packs import (
    MAX_PACK_BYTES,
    MAX_PACK_PARTS,
    MAX_SHARDS,
    divided,
    packs_to_share,
)
from icepuffin.ops.model import ObjectRange, SnapshotId
from icepuffin.ops.storage import StorageError, open_storage
from icepuffin.ops.storage.multipart import S3_LIMITS, plan_parts
from icepuffin.ops.tasks.task_runner import RunContext
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head

TableFactory = Callable[..., Table]


@dataclass(frozen=True)
class Blob:
    sources: tuple[ObjectRange, ...]


def blobs(lengths: list[int]) -> list[Blob]:
    return [Blob((ObjectRange(f"s3://lake/{number}", 0, length),)) for number, length in enumerate(lengths)]


def parts_of(group: list[Blob]) -> int:
    """Parts in which S3 takes a pack whose blobs do not end where the next one may begin."""
    segments = [segment for blob in group for segment in (b"gap", *blob.sources)]
    return sum(1 for _ in plan_parts(segments))


@pytest.mark.parametrize(("dims", "vector"), [(768, 4 * 768), (1536, 4 * 1536), (3072, 4 * 3072), (768, 400)])
def test_each_pack_of_a_billion_rows_is_an_object_that_stores_take(dims: int, vector: int) -> None:
    """With as many shards as `shards` may set: all in one file took 12,398 parts of 10,000 at 768 dimensions."""
    shards = 10**9 // rows_per_shard(dims, 64)
    every = blobs([10**9 // shards * (vector + 50) + 1] * shards)
    assert 2 * shards > S3_LIMITS.max_parts
    groups = divided(every)
    assert [blob for group in groups for blob in group] == every
    assert max(parts_of(group) for group in groups) <= MAX_PACK_PARTS + 1
    assert max(sum(blob.sources[0].length for blob in group) for group in groups) <= MAX_PACK_BYTES
    assert len(groups) <= index_packs.MAX_PACKS


LENGTHS = st.lists(st.sampled_from([1, 4 << 20, 5 << 20, 11 << 20, 1 << 30, 2 << 30]), max_size=400)


@given(LENGTHS, LENGTHS)
def test_blobs_that_come_later_change_no_pack_but_the_last(first: list[int], later: list[int]) -> None:
    """So a pack is begun with the shards that stay, while others are made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_packs, "MAX_PACK_PARTS", 40)
        begun, whole = divided(blobs(first)), divided(blobs([*first, *later]))
        assert whole[: max(0, len(begun) - 1)] == begun[:-1]
        if begun:
            assert whole[len(begun) - 1][: len(begun[-1])] == begun[-1]
        assert all(parts_of(group) <= 41 for group in whole)


@pytest.fixture
def table(table_factory: TableFactory, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Table:
    """600 rows in three files, indexed: three shards, and the vectors of each, lie in a pack of their own. The
    parameter is the format version.
    """
    monkeypatch.setattr(index_packs, "PACK_BYTES", 30_000)
    monkeypatch.setattr(index_packs, "WORTH_SHARE", 0.2)
    monkeypatch.setattr(index_packs, "MAX_PACK_BYTES", 1)
    new_table = table_factory(**{"format-version": getattr(request, "param", "2")})
    for first in range(0, 600, 200):
        new_table.append(make_rows(first, first + 200))
    index_head(new_table)
    return new_table.refresh()


def head_packs(table: Table) -> tuple[BoundPack, ...]:
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    return version.packs


def stored(table: Table) -> set[str]:
    """Paths of the packs in the store."""
    root = f"{table.location()}/metadata"
    return {item.path for item in open_storage(root, STORAGE).list(root) if "/ann-e-pack-" in item.path}


def assert_right(table: Table) -> None:
    assert answer_with_recall(table)[1] >= 0.96
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    assert check_integrity(RunContext(table, STORAGE), version).faults == ()


@pytest.mark.parametrize("table", ["1", "2"], indirect=True)
def test_one_commit_binds_several_packs_which_later_versions_share(table: Table) -> None:
    built = head_packs(table)
    assert len(built) == 6
    assert all(pack.is_kept for pack in built)
    assert {pack.path for pack in built} == stored(table)
    numbers = [snapshot.sequence_number for snapshot in table.metadata.snapshots]
    assert numbers == ([1, 2, *[3] * 8] if table.format_version > 1 else [0] * 10)
    assert_right(table)
    table.append(make_rows(600, 620))
    report = index_head(table)
    assert head_packs(table) == built
    assert report.shards_copied == 3
    assert report.bytes_shared > 0.9 * sum(pack.size for pack in built)
    assert_right(table)


def test_equal_builds_have_equal_packs(table: Table) -> None:
    def contents() -> list[bytes]:
        return [open_storage(pack.path, STORAGE).read_range(pack.path, 0, pack.size) for pack in head_packs(table)]

    first, built = contents(), head_packs(table)
    drop_index(table, "e")
    (version,) = index_versions(table.refresh(), "e")
    table.maintenance.expire_snapshots().by_ids([version.index_snapshot_id]).commit()
    index_head(table, threads=2)
    assert not {pack.path for pack in built} & {pack.path for pack in head_packs(table)}
    assert contents() == first


def test_packs_that_are_begun_with_kept_shards_take_those_that_are_made(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards of which no pack can be shared are copied while others are written; then the last pack goes on."""
    monkeypatch.setattr(index_packs, "_MIN_USE", 10)
    monkeypatch.setattr(index_packs, "MAX_PACK_BYTES", 50_000)
    before = {pack.path for pack in head_packs(table)}
    table.append(make_rows(600, 700))
    report = index_head(table)
    after = head_packs(table)
    assert report.shards_copied == 3
    assert len(after) == 2
    assert not before & {pack.path for pack in after}
    assert_right(table)


def test_packs_that_no_version_names_go_together(table: Table) -> None:
    old = head_packs(table)
    table.overwrite(make_rows(5000, 5600))
    index_head(table)
    version = index_versions(table.refresh(), "e")[0]
    table.maintenance.expire_snapshots().by_ids([version.index_snapshot_id]).commit()
    table.append(make_rows(5600, 5620))
    index_head(table)
    collect_garbage(table, storage=STORAGE, grace=timedelta(0))
    assert not {pack.path for pack in old} & stored(table)
    assert stored(table) == {pack.path for pack in head_packs(table)}
    assert not unnamed_packs(table)
    assert_right(table)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_a_failure_leaves_none_of_several_packs(table: Table, monkeypatch: pytest.MonkeyPatch, fails_at: int) -> None:
    table.overwrite(make_rows(5000, 5600))
    before, calls, real = stored(table), list[str](), background_file.BackgroundFile.finish

    def finish(file: background_file.BackgroundFile, *args: object) -> None:
        calls.append(file.path)
        if len(calls) == fails_at:
            raise StorageError("the disk is full")
        real(file, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(background_file.BackgroundFile, "finish", finish)
        with pytest.raises(StorageError, match="full"):
            index_head(table)
    assert len(calls) == fails_at
    assert stored(table) == before
    index_head(table)
    assert_right(table)


def test_packs_of_which_two_do_not_fit_into_one_are_not_merged(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging makes fewer packs of small ones alone."""
    monkeypatch.setattr(index_packs, "MAX_PACKS", 4)
    monkeypatch.setattr(index_packs, "MAX_PACK_BYTES", 1_000)
    version = index_versions(table, "e")[0]

    def shared(sizes: list[int]) -> list[int]:
        bound = tuple(BoundPack(SnapshotId(n), f"file:/{n}", size, is_kept=True) for n, size in enumerate(sizes))
        kept = [ObjectRange(pack.path, 0, pack.size) for pack in bound]
        return [pack.size for pack in packs_to_share(replace(version, packs=bound), kept)]

    assert shared([900] * 9) == [900] * 9
    assert shared([900] * 9 + [30, 20, 10]) == [900] * 9 + [30, 20, 10]
    assert shared([900] * 9 + [40, 30, 20, 10]) == [900] * 9 + [40, 30, 20]


def test_no_layout_has_more_shards_than_are_written(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer and larger ones where these do; else the build is refused before it has begun."""
    assert choose_shard_count(10**11, 4096, 64) == MAX_SHARDS
    monkeypatch.setattr(index_layout, "MAX_SHARDS", 2)
    monkeypatch.setattr(index_layout, "least_shards", lambda *_: 3)
    head = table.metadata.current_snapshot_id
    assert head is not None
    plan = plan_version(RunContext(table, STORAGE), DEFINITION, head)
    with pytest.raises(
        DefinitionError,
        match=r"600 rows of \d+ dimensions take 3 shards at least, .* 2 at most: take a smaller `max_degree`",
    ):
        make_layout(plan, STORAGE, threads=1)
