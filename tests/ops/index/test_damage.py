"""Damage to the file of a version: a refresh that reads it starts from something whole; `verify` reads everything."""

import gc
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.graphs import bulk_build
from icepuffin.ann_kernels.graphs.duplicates import Copies
from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import index_versions, tagged_version
from icepuffin.ops.index.definitions.ddl import create_index, load_definition
from icepuffin.ops.index.definitions.index_definition import DefinitionError, IndexDefinition
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy
from icepuffin.ops.index.errors import LaterReleaseError, NotAnIndexError
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.verify import integrity, proof
from icepuffin.ops.index.verify.integrity import check_integrity, check_kept
from icepuffin.ops.index.versions import index_packs, version_reader
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import Action, LiveFile, SnapshotId
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.overview import overview
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.storage import Storage, relative_to
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin import PuffinReader, RangeSource
from icepuffin.puffin.blobs import attributes_blob, centroid_blob, included_columns_blob, routing_blob, shard_header
from icepuffin.puffin.blobs.shard_header import Section
from icepuffin.puffin.errors import BadBlobError, ChecksumError
from tests.conftest import STORAGE, make_rows, queries
from tests.open_files import open_files_in
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head, vector_place

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    """Two files, indexed."""
    new_table = table_factory()
    new_table.append(make_rows(0, 300))
    new_table.append(make_rows(300, 600))
    index_head(new_table)
    return new_table.refresh()


def damage(table: Table, section: Section | None, shard: int = 0) -> None:
    """Flip a bit of a shard of the newest version, or of its vectors."""
    stored = open_version(index_versions(table.refresh(), "e")[-1], STORAGE).shards[shard]
    part, header = stored.blob, open_shard(stored, STORAGE).header
    if section is None:
        offset = vector_place(stored, header.count // 2).offset
    else:
        entry = header.find(section)
        assert entry is not None
        offset = part.offset + entry.offset + entry.stored_length // 2
    flip(Path(part.path.removeprefix("file://")), offset)


def flip(path: Path, offset: int) -> None:
    """Flip a bit of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


DELETED = 7
"""Position of the row of the first file that `delete_a_row` deletes"""


def delete_a_row(table: Table) -> None:
    append_position_deletes(table, {first_file(table): np.array([DELETED])})


def first_file(table: Table) -> str:
    return live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files[0].path


def shard_that_is_only_copied(table: Table) -> int:
    """The first shard without the row that `delete_a_row` deletes; recall is measured again in the shard with it."""
    version = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    path = relative_to(first_file(table), table.location())
    slot = next(slot for slot, file in enumerate(version.routing.files) if file.path == path)
    shards = [open_shard(stored, STORAGE).read() for stored in version.shards]
    return next(
        number
        for number, shard in enumerate(shards)
        if not ((shard.file_slots == slot) & (shard.row_positions == DELETED)).any()
    )


@pytest.fixture
def of_tomorrow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Table], IndexReport]:
    """Index the head as a release does whose indexes have one parameter more."""
    to_json = IndexDefinition.to_json

    def index(table: Table) -> IndexReport:
        with monkeypatch.context() as patch:
            patch.setattr(IndexDefinition, "to_json", lambda self: f'{to_json(self)[:-1]},"of_tomorrow":1}}')
            return index_head(table)

    return index


def test_a_version_that_this_release_cannot_read_is_told_and_left(
    table: Table, of_tomorrow: Callable[[Table], IndexReport]
) -> None:
    create_index(table, DEFINITION)
    table.append(make_rows(600, 700))
    of_tomorrow(table)
    found, recall = answer_with_recall(table)
    assert (found.coverage, recall) == (Coverage.NEAREST_VERSION_AND_TAIL, 1.0)
    assert "of_tomorrow" in found.warnings[0]
    newest = tagged_version(table.refresh(), "e") or pytest.fail("gone")
    checked = check_integrity(RunContext(table, STORAGE), newest)
    (fault,) = checked.faults
    assert "not an index definition of this release: a later one wrote it, with of_tomorrow" in fault
    assert checked.from_later_release
    assert "install the one that wrote it" in integrity.remedy("db.t", "e", newest, checked)
    with pytest.raises(NotAnIndexError, match="of_tomorrow"):
        overview(table, DEFINITION, STORAGE)
    collect_table_garbage(table, storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=0)
    table.append(make_rows(700, 800))
    with pytest.raises(LaterReleaseError, match="of_tomorrow"):
        index_head(table)
    assert tagged_version(table.refresh(), "e") == newest


@pytest.mark.parametrize("content", [None, b"", b"Obj\x01 and no more", 0.5])
def test_in_format_v1_a_version_whose_manifests_are_lost_or_broken_is_ignored(
    table_factory: TableFactory, content: bytes | float | None
) -> None:
    """Only they tell which of its files the snapshot still has."""
    table = table_factory(**{"format-version": "1"})
    table.append(make_rows(0, 300))
    older = index_head(table)
    table.append(make_rows(300, 350))
    index_head(table)
    table.append(make_rows(350, 400))
    snapshot = table.metadata.snapshot_by_id(older.index_snapshot_id or 0) or pytest.fail("gone")
    manifests = Path(snapshot.manifest_list.removeprefix("file://"))
    if isinstance(content, float):
        content = manifests.read_bytes()[: int(content * manifests.stat().st_size)]
    manifests.unlink()
    if content is not None:
        manifests.write_bytes(content)
    found, recall = answer_with_recall(table)
    assert (found.coverage, recall) == (Coverage.NEAREST_VERSION_AND_TAIL, 1.0)
    with pytest.raises(NotAnIndexError, match="manifests of its index snapshot cannot be read"):
        overview(table, DEFINITION, STORAGE, version=index_versions(table, "e")[0])
    assert index_head(table).action is Action.REFRESHED


@pytest.mark.parametrize("vectors", ["f32", "f16"])
def test_verify_finds_a_copy_of_a_row_with_another_vector(
    table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch, vectors: str
) -> None:
    """Answers would have it at the distance of the other row, also where it is not of the first that are compared."""
    monkeypatch.setattr(integrity, "_COPIES_AT_ONCE", 7)
    table = table_factory()
    rows = make_rows(0, 300)
    table.append(pa.concat_tables([rows, rows.slice(0, 100)]))
    definition = replace(DEFINITION, vectors=vectors, shards=1)
    index_head(table, definition)
    assert not check_integrity(RunContext(table.refresh(), STORAGE), index_versions(table, "e")[-1]).faults
    true = bulk_build.find_duplicates

    def with_a_wrong_one(vectors: np.ndarray, *, first: int) -> Copies:
        copies = true(vectors, first=first)
        copies.originals[-1] = next(node for node in copies.others(len(vectors)) if node != copies.originals[-1])
        return copies

    monkeypatch.setattr(bulk_build, "find_duplicates", with_a_wrong_one)
    index_head(table, replace(definition, seed=1))
    (fault,) = check_integrity(RunContext(table.refresh(), STORAGE), index_versions(table, "e")[-1]).faults
    assert re.search(r"node \d+ is a copy of node \d+, which has another vector", fault)


@pytest.mark.parametrize("blob", [routing_blob, shard_header, centroid_blob])
def test_blobs_of_a_later_format_are_reported_as_later_and_not_as_damaged(
    table: Table, monkeypatch: pytest.MonkeyPatch, blob: ModuleType
) -> None:
    newest = tagged_version(table, "e") or pytest.fail("gone")
    monkeypatch.setattr(blob, "VERSION", 0)
    checked = check_integrity(RunContext(table, STORAGE), newest)
    assert checked.from_later_release
    assert re.search(r"blob of version \d: a later release wrote it", checked.faults[0])


def test_a_file_with_the_communitys_names_of_blob_types_is_read_and_verified(table: Table) -> None:
    path = index_versions(table, "e")[-1].puffin_path
    names = {
        b'"flockdb-ann-routing-v1"': b'"ann-routing-v1"',
        b'"flockdb-ann-centroid-v1"': b'"ann-centroid-index-v1"',
        b'"flockdb-ann-index-v1"': b'"ann-vamana-graph-v1"',
    }
    file = Path(path.removeprefix("file://"))
    data = file.read_bytes()
    for own, common in names.items():
        assert own in data
        data = data.replace(own, common.ljust(len(own)))  # spaces between the tokens of JSON mean nothing
    file.write_bytes(data)
    result, recall = answer_with_recall(table)
    assert (result.coverage, recall >= 0.96) == (Coverage.EXACT_VERSION, True)
    report = check_integrity(RunContext(table, STORAGE), index_versions(table, "e")[-1])
    assert report.faults == ()
    assert report.rows == 600


def test_a_file_without_a_blob_that_versions_have_is_reported_with_its_type(table: Table) -> None:
    newest = tagged_version(table, "e") or pytest.fail("gone")
    file = Path(newest.puffin_path.removeprefix("file://"))
    file.write_bytes(file.read_bytes().replace(b'"flockdb-ann-centroid-v1"', b'"flockdb-ann-centroid-v9"'))
    with pytest.raises(NotAnIndexError, match=r"it has no blob flockdb-ann-centroid-v1$"):
        open_version(newest, STORAGE)
    file.write_bytes(file.read_bytes().replace(b'"flockdb-ann-routing-v1"', b'"flockdb-ann-routing-v9"'))
    assert faults(table) == ("no routing blob",)


def test_a_file_that_is_bound_to_another_snapshot_has_a_fault(table: Table) -> None:
    newest = tagged_version(table, "e") or pytest.fail("gone")
    other = replace(newest, base_snapshot_id=SnapshotId(7))
    (fault,) = check_integrity(RunContext(table, STORAGE), other).faults
    assert fault == f"made for snapshot {newest.base_snapshot_id}, bound to 7"


def test_a_byte_that_no_section_has_is_one_that_was_published(table: Table) -> None:
    stored = open_version(index_versions(table, "e")[-1], STORAGE).shards[1]
    sections = open_shard(stored, STORAGE).header.sections
    ends = [section.offset + section.stored_length for section in sections]
    gap = next(end for end, following in zip(ends, sections[1:], strict=False) if end < following.offset)
    flip(Path(stored.blob.path.removeprefix("file://")), stored.blob.offset + gap)
    (fault,) = faults(table)
    assert fault == f"shard 1 at {stored.blob.offset}: the bytes are not those that were published"


def test_an_index_with_properties_of_another_release_leaves_the_others_alone(table: Table) -> None:
    create_index(table, DEFINITION)
    with table.transaction() as transaction:
        transaction.set_properties({"ann.index.other.of-tomorrow": "1"})
    assert answer_with_recall(table)[0].coverage is Coverage.EXACT_VERSION
    assert load_definition(table, "e").name == "e"
    assert (
        collect_table_garbage(table, storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=0).deleted
        == ()
    )
    with pytest.raises(DefinitionError, match="of-tomorrow"):
        load_definition(table, "other")


@pytest.mark.parametrize("text", ["", "[]", "1", '{"a": 1}', '{"0": null}'])
def test_sizes_of_included_values_that_are_not_ours_count_as_nothing(text: str) -> None:
    assert version_reader._bytes_by_pack('{"0": 7, "1": "8"}') == {0: 7, 1: 8}
    assert version_reader._bytes_by_pack(text) == {}


def test_values_beyond_the_files_and_packs_of_a_version_are_not_read(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Included ones and those for conditions, by the file, the row and the byte."""
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1)
    index_head(table, replace(DEFINITION, include=("section",), filters=("id",)))
    version = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    number, files, rows = len(version.bound.packs), len(version.routing.files), version.routing.files[0].rows
    packed = version.bound.packs[number - 1].size

    def opened_with(blob: ModuleType, read: Callable[..., Any], fields: Collection[int], **changes: int) -> Any:
        (field_id,), decode = fields, blob.decode

        def changed(data: bytes) -> Any:
            column = decode(data)
            return replace(column, entries=tuple(replace(entry, **changes) for entry in column.entries))

        with monkeypatch.context() as patch:
            patch.setattr(blob, "decode", changed)
            return read(version, field_id, STORAGE)

    included = included_columns_blob, version_reader.read_included_blob, version.included
    for_conditions = attributes_blob, version_reader.read_attribute_blob, version.attributes
    assert opened_with(*included, pack=number, offset=packed - 9, length=9).entries[0].pack == number
    assert opened_with(*for_conditions).entries
    for changes in (
        {"pack": number + 1}, {"pack": number + 5}, {"pack": number, "offset": packed - 8, "length": 9},
        {"pack": number, "offset": 0, "length": packed // files + 1},
    ):  # fmt: skip
        with pytest.raises(BadBlobError, match="are not of the files of its routing blob"):
            opened_with(*included, **changes)
    for changes in ({"slot": files}, {"slot": files + 7}, {"rows": rows - 1}):
        for kept in (included, for_conditions):
            with pytest.raises(BadBlobError, match="are not of the files of its routing blob"):
                opened_with(*kept, **changes)


def verified(table: Table) -> IndexReport:
    head = table.refresh().metadata.current_snapshot_id or 0
    return materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, head, verify=True)


def faults(table: Table) -> tuple[str, ...]:
    version = tagged_version(table.refresh(), "e")
    assert version is not None
    return check_integrity(RunContext(table, STORAGE), version).faults


@pytest.mark.parametrize("key", ["snapshot-id", "sequence-number"])
def test_a_footer_of_another_snapshot_is_not_read(table: Table, key: str) -> None:
    """It has no checksum, and what a version covers depends on its sequence number."""
    version = index_versions(table, "e")[-1]
    file = Path(version.puffin_path.removeprefix("file://"))
    data = file.read_bytes()
    footer = data.rindex(b'{"blobs"')
    for number in re.finditer(rb'"%s":(\d+)' % key.encode(), data[footer:]):
        last = footer + number.end() - 1
        file.write_bytes(data[:last] + bytes([data[last] ^ 1]) + data[last + 1 :])
        with pytest.raises(NotAnIndexError, match="its blobs name several snapshots"):
            open_version(version, STORAGE)
    file.write_bytes(data)
    assert open_version(version, STORAGE).bound == version


@pytest.mark.parametrize("text", ["", "[" * 100_000, f"[{'1' * 5_000}]"])
def test_a_property_that_is_no_json_is_named_with_the_file(
    table: Table, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def with_names(source: RangeSource) -> PuffinReader:
        reader = PuffinReader(source)
        for blob in reader.footer.blobs:
            blob.properties["ann.column_names"] = text
        return reader

    version = index_versions(table, "e")[-1]
    monkeypatch.setattr(version_reader, "PuffinReader", with_names)
    with pytest.raises(NotAnIndexError, match="is not a readable index version"):
        open_version(version, STORAGE)


def test_damage_in_what_a_refresh_keeps_is_named_with_what_mends_it(table: Table) -> None:
    damage(table, Section.LOCATIONS)
    shards = open_version(index_versions(table, "e")[-1], STORAGE).shards
    with pytest.raises(ChecksumError, match=r"\.puffin, shard 7: .*; `icepuffin refresh --verify` mends it$"):
        check_kept(shards[0], 7, STORAGE)


def test_a_refresh_that_reads_damage_builds_anew(table: Table) -> None:
    damage(table, Section.LOCATIONS)
    delete_a_row(table)
    report = index_head(table)
    assert report.action is Action.BUILT
    assert "LOCATIONS" in report.reason or "not those that were published" in report.reason
    assert faults(table) == ()
    found, recall = answer_with_recall(table)
    assert (found.coverage, found.warnings) == (Coverage.EXACT_VERSION, ())
    assert recall >= 0.96


def test_what_is_only_copied_is_found_when_it_is_verified(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "CHECK_INTERVAL", 2**300)
    damage(table, None, shard_that_is_only_copied(table))
    delete_a_row(table)
    assert index_head(table).action is Action.REFRESHED, "it read locations alone"
    assert len(faults(table)) == 1
    assert index_head(table).action is Action.REUSED
    report = verified(table)
    assert report.action is Action.BUILT
    assert faults(table) == ()
    assert index_head(table).index_snapshot_id == report.index_snapshot_id, "of two versions of a snapshot the newer"


@pytest.mark.parametrize("section", [None, Section.ADJACENCY, Section.CONTENT_HASHES])
def test_what_is_only_copied_is_found_by_chance(
    table: Table, section: Section, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "CHECK_INTERVAL", 1)
    for shard in range(DEFINITION.shards or 0):
        damage(table, section, shard)
    delete_a_row(table)
    assert index_head(table).action is Action.BUILT
    assert faults(table) == ()


def test_a_damaged_version_is_mended_from_an_older_one_that_is_whole(table: Table) -> None:
    table.append(make_rows(600, 610))
    index_head(table)
    damage(table, Section.ADJACENCY)
    report = verified(table)
    assert report.action is Action.REFRESHED
    assert report.inserted == 10
    assert faults(table) == ()


def test_a_whole_version_stays_when_it_is_verified(table: Table) -> None:
    assert verified(table).action is Action.REUSED


def test_a_dropped_index_comes_back_only_where_its_file_is_whole(table: Table) -> None:
    bindings.drop(table, "ann_e")
    assert index_head(table).action is Action.RETAGGED
    damage(table, None)
    bindings.drop(table, "ann_e")
    report = index_head(table)
    assert report.action is Action.BUILT
    assert "do not have the sha256 of the routing blob" in report.reason
    assert faults(table) == ()


@pytest.mark.parametrize("place", [2, -8])
def test_a_version_whose_file_was_cut_or_overwritten_is_not_tagged_again(table: Table, place: int) -> None:
    """In the magic it starts with, and in the footer."""
    before = index_head(table)
    table.append(make_rows(600, 610))
    index_head(table)
    table.refresh().manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    path = Path((before.puffin_path or "").removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    assert index_head(table).action is not Action.RETAGGED
    assert faults(table) == ()


def test_rows_of_all_shards_are_taken_from_a_data_file_at_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard's rows by themselves are a read of the same row groups for every shard."""
    version, reads_by_file = tagged_version(table, "e"), Counter[str]()
    assert version is not None
    take = integrity.take_rows

    def counted(storage: Storage, file: LiveFile, *rest: Any) -> pa.Table:
        reads_by_file[file.path] += 1
        return take(storage, file, *rest)

    monkeypatch.setattr(integrity, "take_rows", counted)
    report = check_integrity(RunContext(table, STORAGE), version)
    assert (report.faults, report.shards) == ((), DEFINITION.shards)
    assert set(reads_by_file.values()) == {1}
    assert len(reads_by_file) == 2


def test_a_reader_beside_a_damaged_version_leaves_no_file_open(
    table: Table, uncached: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Without Python's search for cycles, which is rare in a large process: each search kept its data files open."""
    file = Path(index_versions(table.refresh(), "e")[-1].puffin_path.removeprefix("file://"))
    flip(file, file.stat().st_size - 30)
    folder = Path(table.location().removeprefix("file://"))
    caplog.set_level(logging.CRITICAL)  # a record that is kept holds its error
    gc.collect()
    gc.disable()
    try:
        before = open_files_in(folder)
        assert open_index(table, DEFINITION, storage=STORAGE).search(queries(1), 3, columns=["id"]).warnings
        assert open_files_in(folder) == before
    finally:
        gc.enable()
