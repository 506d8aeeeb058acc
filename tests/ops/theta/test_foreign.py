"""Sketches of other engines: what they counted is not known, so nothing is built on them and they are no fresh NDV."""

import io
import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile

from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage import ObjectMissingError, RefusedError, open_storage
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta import build_id, publication, sketch_packs, statistics_slot
from icepuffin.ops.theta.file_sketches import FileKey
from icepuffin.ops.theta.ndv import counts_for_planners, ndv_property, outdated_statistics, read_ndv
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaOutcome
from icepuffin.puffin import BlobMetadata as StoredBlob
from icepuffin.puffin import FileInfo, PuffinReader, PuffinWriter
from icepuffin.puffin.blobs.theta_blob import MAX_THETA, ThetaSketch, encode
from icepuffin.puffin.codec import compress
from icepuffin.puffin.errors import BadFooterError
from icepuffin.puffin.types import BlobType
from tests.ops.catalog.bindings import register_statistics
from tests.ops.theta import foreign
from tests.ops.theta.conftest import SCHEMA, STORAGE, ThreadlessRunner, append, named, rows
from tests.services.faulty import faulty_line

COLUMNS = (1, 2, 6)
NAMES = ("id", "name", "size")
THETA = BlobType.THETA.value


def materialize(table: Table, snapshot: int, *, columns: Iterable[str] | None = None, **options: Any) -> Any:
    run = RunContext(table, STORAGE, ThreadlessRunner())
    return count_theta_sketches(run, snapshot, requested=named(columns), **options).publish()


def ids(table: Table, snapshot: int) -> int:
    return len(set(table.scan(snapshot_id=snapshot).to_arrow()["id"].to_pylist()))


def test_an_update_that_still_counts_deleted_rows_is_not_extended(table: Table) -> None:
    foreign.insert(table, rows(0, 1_000), COLUMNS)
    table.delete("id >= 100")
    foreign.insert(table.refresh(), rows(100, 110), COLUMNS)
    snapshot = append(table, 110, 120)
    report = materialize(table, snapshot)
    assert (report.ndv["id"], report.fresh, report.extended_columns) == (120, True, ())
    assert materialize(table.refresh(), snapshot).outcome is ThetaOutcome.CURRENT


def test_an_update_that_lacks_what_others_appended_is_not_extended(table: Table) -> None:
    foreign.insert(table, rows(0, 10), COLUMNS)
    append(table, 10, 3_000)
    foreign.insert(table.refresh(), rows(3_000, 3_010), COLUMNS)
    report = materialize(table, append(table, 3_010, 3_020))
    assert (report.ndv["id"], report.fresh) == (3_020, True)


def test_a_foreign_sketch_stays_beside_its_own_snapshot_and_is_never_called_fresh(table: Table) -> None:
    foreign.insert(table, rows(0, 500), COLUMNS)
    table.delete("id >= 100")
    snapshot = foreign.insert(table.refresh(), rows(100, 110), COLUMNS)
    entry = read_ndv(table.refresh(), snapshot).entries["id"]
    assert (entry.ndv, entry.fresh, entry.ours) == (500, False, False)
    assert "by another engine" in entry.why
    report = materialize(table, snapshot, columns=("name", "size"))
    assert report.merged_columns == ("id",)
    assert not report.fresh
    entries = read_ndv(table.refresh(), snapshot).entries
    assert {name: (entry.ours, entry.fresh) for name, entry in entries.items()} == {
        "id": (False, False), "name": (True, True), "size": (True, True),
    }  # fmt: skip
    assert materialize(table, snapshot).ndv["id"] == ids(table, snapshot) == 110


@pytest.mark.parametrize("ndv", [None, "nan", "5.7", "-1", "1e3", "9" * 19])
def test_a_sketch_without_a_whole_number_as_ndv_is_kept_and_no_longer_listed(table: Table, ndv: str | None) -> None:
    """Planners read nothing but the property: Trino and Spark as Java's long."""
    snapshot = append(table, 0, 100)
    made = {i: foreign.sketch(rows(0, 100)[name], kind) for i, name, kind in ((1, "id", "long"), (2, "name", "string"))}
    more: dict[int, dict[str, str]] = {} if ndv is None else {2: {"ndv": ndv}}
    foreign.stamp(table, table.snapshot_by_id(snapshot) or pytest.fail("gone"), made, more, without_ndv=(2,))
    assert set(materialize(table.refresh(), snapshot, columns=("size",)).ndv) == {"id", "size"}
    slot = find_statistics(table.refresh(), snapshot) or pytest.fail("gone")
    assert [blob.fields for blob in slot.blob_metadata] == [[6], [1]]
    assert foreign.sketches_in(slot.statistics_path).keys() == {1, 2, 6}


def test_a_blob_that_cannot_be_decompressed_is_copied_and_takes_no_sketch_with_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a dense blob of another type, which a reader refuses as a decompression bomb."""
    dense = compress(bytes(40 << 20), "zstd")

    class DenseWriter(PuffinWriter):
        def finish(self, properties: Mapping[str, str] | None = None) -> FileInfo:
            about: dict[str, Any] = {"fields": [1], "snapshot_id": snapshot, "sequence_number": 1}
            self.add_blob("another-engines", data=dense, codec="zstd", is_stored=True, **about)
            return super().finish(properties)

    snapshot = append(table, 0, 100)
    with monkeypatch.context() as patch:
        patch.setattr(foreign, "PuffinWriter", DenseWriter)
        counted = {1: foreign.sketch(rows(0, 100)["id"], "long")}
        foreign.stamp(table, table.snapshot_by_id(snapshot) or pytest.fail("gone"), counted)
    report = materialize(table.refresh(), snapshot, columns=("size",))
    assert (set(report.ndv), report.note) == ({"id", "size"}, "")
    slot = find_statistics(table.refresh(), snapshot) or pytest.fail("gone")
    reader = PuffinReader(LocalStorage().source(slot.statistics_path))
    (blob,) = reader.footer.of_type("another-engines")
    assert reader.read_blob_range(blob, 0, blob.length) == dense


def test_a_sketch_of_two_columns_and_a_blob_of_another_type_are_kept_and_are_no_ndv(table: Table) -> None:
    snapshot = append(table, 0, 100)
    about: dict[str, Any] = {"snapshot_id": snapshot, "sequence_number": 1, "properties": {"ndv": "77"}}
    kinds: list[tuple[str, list[int]]] = [("another-engines", [1]), (THETA, [7, 1]), (THETA, [])]
    sink, path = io.BytesIO(), f"{table.location()}/metadata/others.stats"
    writer = PuffinWriter(sink)
    for kind, fields in kinds:
        writer.add_blob(kind, fields=fields, data=encode(ThetaSketch(MAX_THETA, np.array([5], np.uint64))), **about)
    info = writer.finish()
    LocalStorage().create(path, sink.getvalue())
    listed = [BlobMetadata(type=kind, fields=fields, **about) for kind, fields in kinds]
    options: dict[str, Any] = {"file_size": info.file_size, "footer_size": info.footer_size, "over": None}
    assert register_statistics(table, snapshot, path=path, blobs=listed, **options)
    assert read_ndv(table.refresh(), snapshot).entries == {}
    report = materialize(table, snapshot)
    assert (report.ndv["id"], report.merged_columns) == (100, ())
    assert materialize(table, snapshot, verify=True).outcome is ThetaOutcome.CURRENT
    slot = find_statistics(table.refresh(), snapshot) or pytest.fail("gone")
    assert {len(blob.fields) for blob in slot.blob_metadata} == {1}
    kept = PuffinReader(LocalStorage().source(slot.statistics_path)).footer.blobs
    assert [(blob.type, list(blob.fields)) for blob in kept if blob.properties.get("ndv") == "77"] == kinds


def test_statistics_of_a_snapshot_that_is_gone_are_passed_over(table: Table) -> None:
    snapshot = append(table, 0, 10)
    about: dict[str, Any] = {"snapshot_id": 5, "sequence_number": 9, "properties": {"ndv": "77"}}
    blobs = [BlobMetadata(type=THETA, fields=[1], **about)]
    with table.update_statistics() as update:
        update.set_statistics(
            StatisticsFile(
                snapshot_id=5, statistics_path="file:///gone.stats", file_size_in_bytes=9, file_footer_size_in_bytes=9,
                blob_metadata=blobs,
            )
        )  # fmt: skip
    assert materialize(table.refresh(), snapshot, columns=("size",)).ndv == {"size": 10}
    assert [count.ndv for count in counts_for_planners(table.refresh(), table.metadata.snapshots[0])] == [10]


def test_an_ndv_that_the_metadata_alone_has_is_kept(table: Table) -> None:
    snapshot = append(table, 0, 100)
    counted = {2: foreign.sketch(rows(0, 100)["name"], "string")}
    foreign.stamp(table, table.snapshot_by_id(snapshot) or pytest.fail("gone"), counted, listed_ndv=(2,))
    before = read_ndv(table.refresh(), snapshot).entries["name"].ndv
    report = materialize(table, snapshot, columns=("size",))
    assert (report.ndv["name"], report.merged_columns) == (before, ("name",))
    slot = find_statistics(table.refresh(), snapshot) or pytest.fail("gone")
    footer = PuffinReader(LocalStorage().source(slot.statistics_path)).footer
    assert [blob.properties["ndv"] for blob in footer.blobs if blob.fields == (2,)] == [str(before)]


def test_a_sketch_that_cannot_be_decoded_is_kept_and_no_longer_listed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = append(table, 0, 100)
    with monkeypatch.context() as patch:
        patch.setattr(foreign, "encode", lambda _: b"no sketch")
        counted = {1: foreign.sketch(rows(0, 100)["id"], "long")}
        foreign.stamp(table, table.snapshot_by_id(snapshot) or pytest.fail("gone"), counted)
    assert set(materialize(table.refresh(), snapshot, columns=("size",)).ndv) == {"size"}
    slot = find_statistics(table.refresh(), snapshot) or pytest.fail("gone")
    footer = PuffinReader(LocalStorage().source(slot.statistics_path)).footer
    assert [blob.fields for blob in footer.blobs] == [(6,), (1,)]


@pytest.mark.parametrize("ours", [True, False])
def test_statistics_that_only_we_cannot_read_are_not_replaced(table: Table, ours: bool) -> None:
    """As those of a later version of Puffin. What we wrote ourselves we can read, unless it is damaged."""
    snapshot = append(table, 0, 100)
    if ours:
        materialize(table, snapshot, columns=("id",))
    else:
        counted = {1: foreign.sketch(rows(0, 100)["id"], "long")}
        foreign.stamp(table, table.snapshot_by_id(snapshot) or pytest.fail("gone"), counted)
    entry = find_statistics(table.refresh(), snapshot) or pytest.fail("gone")
    path = Path(entry.statistics_path.removeprefix("file://"))
    whole = bytearray(path.read_bytes())
    whole[-7] |= 1  # a flag of the footer
    path.write_bytes(whole)
    if ours:
        note = materialize(table, snapshot, columns=("id", "size")).note
        assert "was replaced, not merged: the footer sets unknown flags" in note
        return
    with pytest.raises(BindingError, match=rf"{path.name}: the footer sets unknown flags .* left as they are"):
        materialize(table, snapshot, columns=("size",))
    assert find_statistics(table.refresh(), snapshot) == entry
    path.write_bytes(whole[:-1])
    report = materialize(table, snapshot, columns=("size",))
    assert "was replaced, not merged" in report.note
    assert set(report.ndv) == {"size"}


@pytest.mark.parametrize(("owners", "is_damaged"), [((), False), (("us",), True), (("us", "them"), False)])
def test_a_file_that_cannot_be_read_is_ours_only_where_all_that_it_lists_is(
    table: Table, owners: tuple[str, ...], is_damaged: bool
) -> None:
    """One that lists nothing may have what a later reader understands. What is lost or cut off, nobody can read."""
    snapshot = table.snapshot_by_id(append(table, 0, 10)) or pytest.fail("gone")
    counted = {1: foreign.sketch(rows(0, 10)["id"], "long")}
    entry = foreign.write_statistics(table.location(), snapshot, counted)
    (blob,) = entry.blob_metadata
    seal = {"us": {build_id.PROPERTY: "theta/1:0"}, "them": {}}
    listed = [blob.model_copy(update={"properties": seal[owner]}) for owner in owners]
    statistics = entry.model_copy(update={"blob_metadata": listed})
    assert publication._is_damaged(statistics, BadFooterError("unknown")) is is_damaged
    assert publication._is_damaged(statistics, ObjectMissingError("gone"))


def test_our_own_sketch_is_extended_where_its_build_id_is_of_the_ancestors_files(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch_packs, "FEW_FILES", 0)  # a version of file sketches for each count
    first = append(table, 0, 300)
    materialize(table, first, budget_bytes=0)
    runner = ThreadlessRunner()
    second = append(table, 250, 500)
    report = count_theta_sketches(RunContext(table, STORAGE, runner), second).publish()
    assert (len(runner.files), set(report.extended_columns)) == (1, {"id", "name", "at", "price", "size"})
    assert (report.ndv["id"], report.fresh) == (500, True)


@pytest.mark.parametrize("seal", ["", "0" * 64, f"{build_id.FORMAT}:{'0' * 64}"])
def test_a_sketch_that_is_sealed_otherwise_is_not_extended(table: Table, seal: str) -> None:
    first = append(table, 0, 300)
    materialize(table, first, budget_bytes=0)
    _sealed(table, first, seal)
    report = materialize(table, append(table, 250, 500))
    assert report.extended_columns == ()
    assert (report.ndv["id"], report.files_sketched) == (500, 2)


def test_what_is_sealed_in_an_earlier_format_is_neither_current_nor_fresh_and_is_counted_again(table: Table) -> None:
    snapshot = append(table, 0, 300)
    materialize(table, snapshot, columns=("id", "name"))
    _sealed(table, snapshot, "0" * 64)
    found = read_ndv(table, snapshot)
    assert not found.fresh
    assert "an earlier format" in found.entries["id"].why
    assert outdated_statistics(table, snapshot) is not None, "so that the sensor requests a run"
    report = materialize(table, snapshot, columns=("id",))
    assert (report.outcome, report.fresh, set(report.ndv)) == (ThetaOutcome.WRITTEN, True, {"id"})
    assert outdated_statistics(table, snapshot) is None


def test_what_is_sealed_in_a_later_format_stays_beside_ours(table: Table) -> None:
    """Two releases would else write the slot in turn, for ever."""
    snapshot = append(table, 0, 300)
    materialize(table, snapshot, columns=("id", "name"))
    later = f"theta/5:{'0' * 16}"
    _sealed(table, snapshot, later, field_ids=(1,))
    assert (read_ndv(table, snapshot).fresh, outdated_statistics(table, snapshot)) == (True, None)
    report = materialize(table, snapshot, columns=("id", "name", "size"))
    assert (report.outcome, set(report.ndv), report.fresh) == (ThetaOutcome.WRITTEN, {"id", "name", "size"}, True)
    entry = find_statistics(table.refresh(), snapshot) or pytest.fail("gone")
    seals = {blob.fields[0]: build_id.sealed_as(blob.properties) for blob in entry.blob_metadata}
    assert [field_id for field_id, seal in seals.items() if seal == later] == [1]
    assert len(seals) == 3
    assert materialize(table, snapshot, columns=("id", "size")).outcome == ThetaOutcome.CURRENT
    second = append(table, 300, 310)
    assert materialize(table, second, columns=("id",)).ndv == {"id": 310}, "of another snapshot it is nothing"


def test_statistics_that_list_no_sketch_are_not_outdated(table: Table) -> None:
    """Those of an index's snapshot, or an engine's own kinds: a run would not change them."""
    snapshot = append(table, 0, 10)
    register_statistics(table, snapshot, path="file:///x", file_size=9, footer_size=4, blobs=[], over=None)
    assert find_statistics(table.refresh(), snapshot) is not None
    assert outdated_statistics(table, snapshot) is None


def test_one_column_that_is_sealed_in_an_earlier_format_makes_the_slot_be_written_again(table: Table) -> None:
    snapshot = append(table, 0, 300)
    materialize(table, snapshot, columns=("id", "name"))
    _sealed(table, snapshot, "0" * 64, field_ids=(2,))
    report = materialize(table, snapshot, columns=("id",))
    assert (report.outcome, set(report.ndv)) == (ThetaOutcome.WRITTEN, {"id"})


def test_sketches_that_were_taken_over_from_a_snapshot_with_the_same_files_are_written_again(table: Table) -> None:
    """As Trino's ANALYZE of other columns does: their blobs name the snapshot that they were counted for."""
    first = append(table, 0, 300)
    materialize(table, first)
    entry = find_statistics(table.refresh(), first)
    assert entry is not None
    table.append(rows(0, 0))  # like a rewrite of manifests
    second = table.refresh().current_snapshot()
    assert second is not None
    assert second.snapshot_id != first
    sizes = {"file_size": entry.file_size_in_bytes, "footer_size": entry.file_footer_size_in_bytes}
    register_statistics(
        table, second.snapshot_id, path=entry.statistics_path, blobs=entry.blob_metadata, over=None, **sizes
    )
    assert not read_ndv(table.refresh(), second.snapshot_id).fresh
    assert outdated_statistics(table, second.snapshot_id) is not None, "so that the sensor requests a run"
    report = materialize(table, second.snapshot_id)
    assert (report.outcome, report.files_sketched, report.fresh) == (ThetaOutcome.WRITTEN, 0, True)
    assert outdated_statistics(table.refresh(), second.snapshot_id) is None


def test_an_ndv_with_the_sequence_number_of_another_snapshot_is_not_fresh_and_is_written_again(table: Table) -> None:
    """An id says by itself nothing about the time: a table that was registered again may have another of that id."""
    snapshot_id = append(table, 0, 300)
    materialize(table, snapshot_id, columns=("id",))
    entry, snapshot = find_statistics(table.refresh(), snapshot_id), table.current_snapshot()
    assert entry is not None
    assert snapshot is not None
    seals = {1: {build_id.PROPERTY: build_id.sealed_as(entry.blob_metadata[0].properties)}}
    later = snapshot.model_copy(update={"sequence_number": 7})
    foreign.stamp(table, later, foreign.sketches_in(entry.statistics_path), seals)
    column = read_ndv(table.refresh(), snapshot_id).entries["id"]
    assert (column.ours, column.fresh) == (True, False)
    assert f"counted for snapshot {snapshot_id} (sequence number 7)" in column.why
    assert outdated_statistics(table, snapshot_id) is not None, "so that the sensor requests a run"
    report = materialize(table, snapshot_id, columns=("id",))
    assert (report.outcome, report.fresh) == (ThetaOutcome.WRITTEN, True)


def _sealed(table: Table, snapshot_id: int, seal: str, field_ids: tuple[int, ...] = (1, 2, 3, 4, 6)) -> None:
    """Write the slot again with another seal, or none, on some of its sketches."""
    entry, snapshot = find_statistics(table.refresh(), snapshot_id), table.current_snapshot()
    assert entry is not None
    assert snapshot is not None
    kept = {blob.fields[0]: build_id.sealed_as(blob.properties) for blob in entry.blob_metadata}
    seals = kept | dict.fromkeys(kept.keys() & set(field_ids), seal)
    more = {field_id: {build_id.PROPERTY: text} for field_id, text in seals.items() if text}
    foreign.stamp(table, snapshot, foreign.sketches_in(entry.statistics_path), more)
    table.refresh()


def test_a_build_id_tells_apart_all_that_is_counted() -> None:
    one = FileKey("data/a.parquet", "")
    files = [[one], [FileKey("data/a.parquet", "ab")], [one, FileKey("data/b.parquet", "")], []]
    ids = [
        seal
        for table in ("t", "u")
        for keys in files
        for seal in build_id.build_ids(table, product((1, 2), ("long", "int")), keys).values()
    ]
    assert len(set(ids)) == len(ids) == 2 * 2 * 2 * 4


def test_the_files_of_a_snapshot_are_listed_once_for_the_build_ids_of_all_columns() -> None:
    files = [FileKey("data/b.parquet", "ab"), FileKey('data/größe=1/"a".parquet', "", added=7)]
    columns = [(1, "long"), (2, 'string ["größe"]'), (30, "decimal(9, 2)")]
    rows = sorted([file.path, file.deletes] for file in files)
    expected = {
        (field_id, text): sha256(json.dumps(["theta/4", 4096, "t", field_id, text, rows]).encode()).hexdigest()[:16]
        for field_id, text in columns
    }
    listed_once = iter(files)
    assert build_id.build_ids("t", columns, listed_once) == {key: f"theta/4:{seal}" for key, seal in expected.items()}


def test_a_sketch_that_an_engine_copied_from_a_snapshot_with_files_of_the_same_names_is_not_extended(
    table: Table, tmp_path: Path
) -> None:
    """The file is another import under the name of the first, and the seal is of names."""
    imported = tmp_path / "night.parquet"
    pq.write_table(rows(0, 100), imported)
    table.add_files([str(imported)])
    first = table.refresh().metadata.current_snapshot_id or 0
    kept = materialize(table, first).file_sketches_path
    entry = find_statistics(table, first)
    assert entry is not None
    table.delete("id < 1000")
    pq.write_table(rows(500, 560), imported)
    table.add_files([str(imported)])
    again = table.refresh().metadata.current_snapshot_id or 0
    sizes = {"file_size": entry.file_size_in_bytes, "footer_size": entry.file_footer_size_in_bytes}
    register_statistics(table, again, path=entry.statistics_path, blobs=entry.blob_metadata, over=None, **sizes)
    Path(kept.removeprefix("file://")).unlink()
    report = materialize(table, append(table, 1_000, 1_300))
    assert (report.ndv["id"], report.extended_columns) == (360, ())


@pytest.mark.services
def test_statistics_that_the_store_does_not_give_now_are_not_overwritten(s3: StorageConfig, tmp_path: Path) -> None:
    with faulty_line(s3.properties["s3.endpoint"]) as line:
        storage = StorageConfig({**s3.properties, "s3.endpoint": line.uri})
        places = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://lake/{tmp_path.name}"}
        catalog = open_catalog("test", {"type": "sql", **places, **storage.properties})
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", SCHEMA)
        snapshot = append(table, 0, 30)
        counted = foreign.sketch(rows(0, 30)["weight"], "double")
        foreign.stamp(table, table.metadata.snapshots[0], {5: counted}, store=open_storage("s3://lake", storage))
        entry = find_statistics(table.refresh(), snapshot)
        assert entry is not None
        line.method, line.name = "HEAD", entry.statistics_path.rpartition("/")[2]
        line.faults.append("forbidden")
        runner = ThreadlessRunner()
        with pytest.raises(RefusedError, match=line.name):
            count_theta_sketches(RunContext(table, storage, runner), snapshot, requested=named(["id"])).publish()
        assert find_statistics(table.refresh(), snapshot) == entry
        report = count_theta_sketches(RunContext(table, storage, runner), snapshot, requested=named(["id"])).publish()
        assert (report.ndv, report.merged_columns, report.note) == ({"id": 30, "weight": 30}, ("weight",), "")


@pytest.mark.services
def test_statistics_in_another_store_than_the_table_are_merged(table: Table, s3: StorageConfig, tmp_path: Path) -> None:
    snapshot, lake = append(table, 0, 30), f"s3://lake/{tmp_path.name}"  # where write.metadata.path has it
    counted = foreign.sketch(rows(0, 30)["weight"], "double")
    foreign.stamp(table, table.metadata.snapshots[0], {5: counted}, store=open_storage(lake, s3), folder=lake)
    report = count_theta_sketches(
        RunContext(table, s3, ThreadlessRunner()), snapshot, requested=named(["id"])
    ).publish()
    assert (report.ndv, report.merged_columns, report.note) == ({"id": 30, "weight": 30}, ("weight",), "")


@pytest.mark.parametrize(
    ("properties", "ndv"),
    [
        ({"ndv": "0"}, 0),
        ({"ndv": "17"}, 17),
        ({"ndv": "17.0"}, 17),
        ({"ndv": "1.7e3"}, 1_700),
        ({"ndv": "-1"}, None),
        ({"ndv": "nan"}, None),
        ({"ndv": "inf"}, None),
        ({"ndv": "many"}, None),
        ({}, None),
        (None, None),
    ],
    ids=str,
)
def test_an_ndv_is_a_whole_number_from_0_on(properties: dict[str, str] | None, ndv: int | None) -> None:
    """Trino writes whole numbers as text; what is none is no NDV."""
    kind = "apache-datasketches-theta-v1"
    blob = BlobMetadata(type=kind, snapshot_id=1, sequence_number=1, fields=[1], properties=properties)
    assert ndv_property(blob) == ndv


def test_the_ndv_of_a_file_comes_before_that_of_its_entry_which_serves_where_the_file_has_none() -> None:
    kind = "apache-datasketches-theta-v1"

    def counted(in_file: dict[str, str], sequence_number: int = 2) -> dict[str, str]:
        blob = StoredBlob(kind, (1,), 1, 2, 4, 8, None, in_file)
        entry = BlobMetadata(
            type=kind, snapshot_id=1, sequence_number=sequence_number, fields=[1], properties={"ndv": "7"}
        )
        return dict(statistics_slot._with_ndv(blob, entry).properties)

    assert counted({"ndv": "5", "other": "x"}) == {"ndv": "5", "other": "x"}
    assert counted({"other": "x"}) == {"ndv": "7", "other": "x"}
    assert counted({"other": "x"}, sequence_number=3) == {"other": "x"}, "an entry of another blob"


def test_each_hash_is_of_another_value_whatever_the_number_of_rows_is() -> None:
    sketch = ThetaSketch(MAX_THETA, np.array([3, 5, 7], np.uint64))
    assert [statistics_slot.ndv_of(sketch, rows) for rows in (2, 3, 9)] == [3, 3, 3]
