"""Addresses apart from graphs: where rows have merely moved, a version writes new addresses and shares the rest."""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import tagged_version
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.index.definitions.ddl import drop_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.index.versions.version_reader import OpenVersion, open_version
from icepuffin.ops.model import Action, How, ObjectRange
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.overview import overview
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.puffin import PuffinReader
from icepuffin.puffin.types import BlobType
from tests.conftest import DIMS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, content, index_head

TableFactory = Callable[..., Table]


@pytest.fixture(params=[False, True], ids=["one file", "packs"])
def packed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether built shards lie in a pack."""
    if request.param:
        monkeypatch.setattr(index_packs, "PACK_BYTES", 30_000)
        monkeypatch.setattr(index_packs, "WORTH_SHARE", 0.5)
    return bool(request.param)


@pytest.fixture
def table(table_factory: TableFactory, packed: bool) -> Table:
    """600 rows in three files, indexed in three shards."""
    new_table = table_factory()
    for first in range(0, 600, 200):
        new_table.append(make_rows(first, first + 200))
    index_head(new_table)
    return new_table.refresh()


def compact(table: Table, *, backwards: bool = False) -> IndexReport:
    """All rows rewritten into one file, and indexed."""
    rows = table.refresh().scan().to_arrow()
    table.overwrite(rows.sort_by([("id", "descending" if backwards else "ascending")]))
    return index_head(table)


def newest(table: Table) -> OpenVersion:
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    return open_version(version, STORAGE)


def blob_types(version: OpenVersion) -> Counter[str]:
    path = version.bound.puffin_path
    return Counter(blob.type for blob in PuffinReader(open_storage(path, STORAGE).source(path)).footer.blobs)


def bytes_of(part: ObjectRange) -> bytes:
    return open_storage(part.path, STORAGE).read_range(part.path, part.offset, part.length)


def assert_right(table: Table) -> None:
    _, recall = answer_with_recall(table)
    assert recall >= 0.96
    version = newest(table)
    assert check_integrity(RunContext(table, STORAGE), version.bound).faults == ()
    assert_every_row_is_at_its_address(table, open_index(table, DEFINITION, storage=STORAGE))


def assert_every_row_is_at_its_address(table: Table, reader: IndexReader, snapshot: int | None = None) -> None:
    """Searched by its own vector, each row comes back with its own id: the id is read at the row's address."""
    rows = table.scan(snapshot_id=snapshot).to_arrow()
    vectors = np.array(rows["embedding"].to_pylist(), np.float32)
    nearest = reader.search(vectors, 1, search_list=100, columns=["id"]).rows.sort_by("query")
    own = np.array(nearest["id"]) == np.array(rows["id"])
    assert own.mean() > 0.98, "but for those that a graph does not reach"
    assert np.asarray(nearest["distance"])[~own].min(initial=1.0) > 0


def test_a_version_whose_rows_have_moved_writes_addresses_only(table: Table, packed: bool) -> None:
    base = newest(table)
    report = compact(table)
    version = newest(table)
    assert (report.action, report.remapped, report.inserted) == (Action.REFRESHED, 600, 0)
    assert {shard.how for shard in report.shard_reports} == {How.REMAPPED}
    own_shards = {} if packed else {BlobType.SHARD: 3}
    own_shards |= {} if packed else {BlobType.VECTORS: 3}
    assert blob_types(version) == {BlobType.ADDRESSES: 3, BlobType.ROUTING: 1, BlobType.CENTROID: 1, **own_shards}
    assert version.bound.packs == base.bound.packs
    assert [entry.sha256 for entry in version.routing.shards] == [entry.sha256 for entry in base.routing.shards]
    for shard, entry, old in zip(version.shards, version.routing.shards, base.shards, strict=True):
        assert (shard.blob == old.blob) is packed
        assert bytes_of(shard.blob) == bytes_of(old.blob)
        assert entry.addresses is not None
        assert shard.addresses is not None
        assert hashlib.sha256(bytes_of(shard.addresses.blob)).digest() == entry.addresses.sha256
    index_bytes = sum(shard.length for shard in base.shards)
    assert report.bytes_written < 0.3 * index_bytes
    assert (report.bytes_shared == index_bytes) is packed
    shown = overview(table, DEFINITION, STORAGE)
    assert shown is not None
    assert [state.addresses_bytes for state in shown.shards] == [
        shard.addresses.blob.length for shard in version.shards if shard.addresses
    ]
    assert shown.bytes_alone == len(content(report))
    parts = shown.bytes_by_part
    assert parts["new addresses"] == sum(state.addresses_bytes for state in shown.shards)
    assert (parts["vectors"], sum(parts.values())) == (600 * DIMS * 4, report.bytes_total)
    assert (shown.files, len(version.routing.files)) == (1, 4), "slots of files that are gone are none"
    assert_right(table)


def test_addresses_are_replaced_copied_and_folded_back(table: Table) -> None:
    """By the next compaction, by versions whose rows stay where they are, and where a shard is built anew."""
    compact(table)
    first = newest(table)
    compact(table, backwards=True)
    second = newest(table)
    assert not {entry.addresses for entry in first.routing.shards} & {e.addresses for e in second.routing.shards}
    assert_right(table)
    table.append(make_rows(600, 620))
    copied = index_head(table)
    third = newest(table)
    assert [entry.addresses for entry in third.routing.shards] == [
        *(entry.addresses for entry in second.routing.shards),
        None,
    ]
    assert copied.shards_copied == 3
    of_addresses = sum(entry.addresses.length for entry in second.routing.shards if entry.addresses)
    assert copied.bytes_written <= len(content(copied)) - of_addresses, "what is copied is not counted as written"
    assert_right(table)
    slots, positions = open_shard(third.shards[0], STORAGE).read_locations()
    file = f"{table.location()}/{third.routing.files[slots[0]].path}"
    append_position_deletes(table, {file: np.sort(positions)[::2]})
    rebuilt = index_head(table)
    fourth = newest(table)
    assert rebuilt.shard_reports[0].how is How.REBUILT
    assert fourth.routing.shards[0].addresses is None
    assert fourth.routing.shards[1].addresses == second.routing.shards[1].addresses
    assert_right(table)


def test_equal_compactions_are_equal_to_the_byte(table: Table) -> None:
    parent = newest(table).bound
    report = compact(table)
    first = content(report)
    assert report.index_snapshot_id is not None
    drop_index(table, "e")
    table.refresh().maintenance.expire_snapshots().by_ids([report.index_snapshot_id]).commit()
    again = index_head(table)
    assert again.base_snapshot_id == parent.base_snapshot_id
    assert [shard.how for shard in again.shard_reports] == [How.REMAPPED] * 3
    if not parent.packs:  # whose tags the drop took, so that their shards are copied
        assert content(again) == first


def test_readers_of_both_versions_answer_by_their_own_addresses(table: Table, tmp_path: Path) -> None:
    before = table.metadata.current_snapshot_id
    use_settings(CacheSettings(tmp_path / "shards", 1 << 30, 1 << 30))
    old = open_index(table, DEFINITION, storage=STORAGE)
    compact(table, backwards=True)
    new = open_index(table, DEFINITION, storage=STORAGE)
    again = open_index(table, DEFINITION, snapshot=before, storage=STORAGE)
    for reader, snapshot in ((old, before), (new, None), (again, before), (old, before)):
        assert_every_row_is_at_its_address(table, reader, snapshot)


def flip_a_bit(part: ObjectRange) -> None:
    with Path(part.path.removeprefix("file://")).open("r+b") as file:
        file.seek(part.offset + part.length - 3)
        (byte,) = file.read(1)
        file.seek(part.offset + part.length - 3)
        file.write(bytes([byte ^ 4]))


def test_damaged_addresses_are_noticed_and_never_answered_by(table: Table) -> None:
    compact(table)
    version = newest(table)
    assert version.shards[1].addresses is not None
    flip_a_bit(version.shards[1].addresses.blob)
    assert "shard 1" in check_integrity(RunContext(table, STORAGE), version.bound).faults[0]
    result = open_index(table, DEFINITION, storage=STORAGE).search(make_rows(0, 1)["embedding"][0].as_py(), 1)
    assert result.rows["id"][0].as_py() == 0
    append_position_deletes(table, {next(iter(table.scan().plan_files())).file.file_path: np.array([5])})
    index_head(table)
    assert_right(table)


def test_where_no_row_has_moved_there_is_no_addresses_blob(table: Table) -> None:
    table.append(make_rows(600, 620))
    index_head(table)
    assert BlobType.ADDRESSES not in blob_types(newest(table))
