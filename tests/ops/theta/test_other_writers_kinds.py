"""Statistics of other kinds in a slot that others write, that is damaged, or that a later release has written."""

import io
import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyiceberg.table import Table
from pyiceberg.table.statistics import BlobMetadata as ListedBlob
from pyiceberg.table.statistics import StatisticsFile

from icepuffin.ann_kernels.sketches.kll import KllSketch
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.tasks.sketches.images import decode
from icepuffin.ops.tasks.sketches.statistic import Kind
from icepuffin.ops.theta import sketch_packs
from icepuffin.ops.theta.build_id import OTHERS
from icepuffin.ops.theta.file_sketches import OTHER_SKETCHES
from icepuffin.ops.theta.requested_statistics import KEPT_UP, RequestedStatistics
from icepuffin.ops.theta.statistics_slot import damage_of, others_in
from icepuffin.ops.theta.theta_report import ThetaOutcome
from icepuffin.puffin import PuffinReader, PuffinWriter
from icepuffin.puffin.blobs import kll_blob
from icepuffin.puffin.errors import BadBlobError
from icepuffin.puffin.types import BlobType
from tests.ops.theta.brute_force import all_kinds, require_exact
from tests.ops.theta.conftest import append, current
from tests.ops.theta.test_kinds import count, markers

ALL = all_kinds(("name", "size"))
THETA = BlobType.THETA.value
KLL, SIZE = "presto-kll-sketch-bytes-v1", "presto-sum-data-size-bytes-v1"
Blobs = list[tuple[str, tuple[int, ...], bytes, dict[str, str]]]
"""Type, fields, bytes and properties of each blob"""


def slot(table: Table) -> StatisticsFile:
    entry = find_statistics(table.refresh(), current(table))
    assert entry is not None
    return entry


def reader_of(table: Table) -> PuffinReader:
    return PuffinReader(LocalStorage().source(slot(table).statistics_path))


def blobs_of(table: Table) -> Blobs:
    reader = reader_of(table)
    return [(b.type, tuple(b.fields), reader.read_blob(b), dict(b.properties)) for b in reader.footer.blobs]


def write(
    table: Table,
    blobs: Blobs,
    properties: Mapping[str, str] = {},
    *,
    lists: Callable[[str], bool] = THETA.__eq__,
    of: int | None = None,
) -> None:
    """Take the slot of the head. of: snapshot that the blobs name."""
    snapshot, sink = table.refresh().current_snapshot(), io.BytesIO()
    assert snapshot is not None
    about = {"snapshot_id": of or snapshot.snapshot_id, "sequence_number": snapshot.sequence_number or 0}
    writer, listed = PuffinWriter(sink), []
    for type_, fields, data, own in blobs:
        writer.add_blob(type_, fields=fields, data=data, codec="zstd" if data else None, properties=own, **about)
        if lists(type_):
            listed.append(ListedBlob.model_construct(type=type_, fields=list(fields), properties=own, **about))
    info = writer.finish({"created-by": "another engine", **properties})
    path = f"{table.location()}/metadata/{uuid.uuid4()}.stats"
    LocalStorage().create(path, sink.getvalue())
    entry = StatisticsFile.model_construct(
        snapshot_id=snapshot.snapshot_id,
        statistics_path=path,
        file_size_in_bytes=info.file_size,
        file_footer_size_in_bytes=info.footer_size,
        blob_metadata=listed,
    )
    with table.update_statistics() as update:
        update.set_statistics(entry)
    table.refresh()


def edited(table: Table, change: Callable[[list[Any]], Any]) -> None:
    """Write our own file again, with another property."""
    listing = json.loads(reader_of(table).footer.properties[OTHERS])
    changed = change(listing)
    write(table, blobs_of(table), {OTHERS: changed if isinstance(changed, str) else json.dumps(changed)})


def with_number(number: Any) -> Callable[[list[Any]], Any]:
    return lambda listing: [[number, *listing[0][1:]], *listing[1:]]


def with_text(text: str) -> Callable[[list[Any]], Any]:
    return lambda listing: [[listing[0][0], listing[0][1], text, listing[0][3]], *listing[1:]]


JUNK: dict[str, Callable[[list[Any]], Any]] = {
    "no JSON": lambda _: "{",
    "deep": lambda _: "[" * 100_000,
    "a number": lambda _: "5",
    "short": lambda listing: [listing[0][:3]],
    "beyond": with_number(10**30),
    "of another kind": with_number(0),
    "before": with_number(-30),
    "a text": with_number("0"),
    "no blob": lambda listing: [[None, *it[1:]] if it[2].startswith("size") else it for it in listing],
    "infinite": lambda _: '[[0, 1e999, "histogram/1 {}", "x"]]',
    "no columns": with_text("histogram/1 {}"),
    "deep columns": with_text("histogram/1 " + "[" * 100_000),
    "other columns": with_text('histogram/1 {"77": "long"}'),
    "columns of no number": with_text('histogram/1 {"x": "long"}'),
    "an unknown kind": with_text("later/1 {}"),
    "an NDV": lambda listing: [[0, 1, "long", "x"], *listing],
}


@pytest.mark.parametrize(
    ("junk", "requested"),
    [*((junk, ALL) for junk in JUNK), ("no JSON", KEPT_UP)],
    ids=[*JUNK, "no JSON, kept up"],
)
def test_a_listing_that_lies_is_reported_and_counted_anew(
    table: Table, junk: str, requested: RequestedStatistics, caplog: pytest.LogCaptureFixture
) -> None:
    append(table, 0, 300)
    count(table, ALL)
    all_of = require_exact(table, current(table)).keys()
    append(table, 300, 400)
    count(table, ALL, budget_bytes=0)
    edited(table, JUNK[junk])
    with pytest.raises(BadBlobError, match=r"property 'icepuffin\.others' does not say what the blobs are"):
        others_in(reader_of(table).footer)
    assert "does not say what the blobs are" in damage_of(LocalStorage(), slot(table))
    assert count(table, requested).outcome == ThetaOutcome.WRITTEN
    assert require_exact(table, current(table)).keys() == all_of, "of the ancestor, where none are named"
    edited(table, JUNK[junk])
    append(table, 400, 500)
    note = count(table, requested).note
    assert require_exact(table, current(table)).keys() == all_of
    assert "does not say what the blobs are" in note
    assert "does not say what the blobs are" in caplog.text


def test_copies_that_an_engine_made_of_our_blobs_are_dropped(table: Table) -> None:
    """As Trino's optimize makes them, and Presto ends where the snapshot that they name has expired."""
    append(table, 0, 300)
    count(table, ALL)
    copies = [blob for blob in blobs_of(table) if blob[0] != THETA]
    append(table, 300, 400)
    off = RequestedStatistics(None, (), (), (), ())
    write(table, [*copies, ("another-engine-v1", (1,), b"own", {})], of=7)
    count(table, off)
    assert {kind for kind, _, _, _ in blobs_of(table)} == {THETA, "another-engine-v1"}
    write(table, copies)
    count(table, off)
    assert {kind for kind, _, _, _ in blobs_of(table)} == {THETA, KLL, SIZE}, "of this snapshot, as Presto's own are"


def test_the_blobs_of_other_engines_are_carried_over_and_replaced_where_we_make_that_kind(table: Table) -> None:
    """As Presto writes them: sizes and histograms, no property of ours, all listed."""
    append(table, 0, 300)
    theirs: Blobs = [
        (SIZE, (2,), b"", {"data_size": "7"}),
        (SIZE, (4,), b"", {"data_size": "8"}),
        (KLL, (1,), b"of Presto's", {}),
        (THETA, (2, 1), b"of both", {}),
        ("another-engine-v1", (1, 2), b"own", {"a": "b"}),
    ]
    write(table, theirs, lists=lambda _: True)
    off = RequestedStatistics(None, (), (), (), ())
    assert count(table, off).outcome == ThetaOutcome.WRITTEN
    assert [blob for blob in blobs_of(table) if blob[0] != THETA or len(blob[1]) == 2] == theirs
    assert {kind for kind, _ in require_exact(table, current(table))} == {Kind.NDV}, "none of theirs is ours"
    assert {blob.type for blob in slot(table).blob_metadata} == {THETA}
    assert count(table, off).outcome == ThetaOutcome.CURRENT
    count(table, RequestedStatistics(None, ("id",), ("name",), (), ()))
    carried = [blob for blob in blobs_of(table) if blob in theirs]
    assert carried == [theirs[1], *theirs[3:]], "the size of name and the histogram of id are counted"
    assert len(blobs_of(table)) == 5 + 2 + len(carried)
    require_exact(table, current(table))
    count(table, off)
    assert [blob for blob in blobs_of(table) if blob in theirs] == carried
    assert sum(blob[0] in (KLL, SIZE) for blob in blobs_of(table)) == 1


@pytest.mark.parametrize("requested", [ALL, KEPT_UP], ids=["named", "kept up"])
def test_where_an_engine_has_copied_our_blobs_to_a_file_of_its_own_they_are_counted_anew(
    table: Table, requested: RequestedStatistics
) -> None:
    """As Trino's ANALYZE of another column does: it lists all blobs, and keeps their properties, not the file's."""
    append(table, 0, 300)
    count(table, ALL)
    append(table, 300, 400)
    count(table, ALL)
    all_of = require_exact(table, current(table)).keys()
    write(table, blobs_of(table), lists=lambda _: True)
    assert require_exact(table, current(table)).keys() != all_of
    assert "lacks sketches" in damage_of(LocalStorage(), slot(table))
    append(table, 400, 500)
    assert count(table, requested).outcome == ThetaOutcome.WRITTEN
    assert require_exact(table, current(table)).keys() == all_of
    write(table, blobs_of(table), lists=lambda _: True)
    assert count(table, ALL).outcome == ThetaOutcome.WRITTEN
    assert require_exact(table, current(table)).keys() == all_of
    types = [blob[:2] for blob in blobs_of(table)]
    assert [it for it in types if it[0] in (KLL, SIZE)] == [*dict.fromkeys(it for it in types if it[0] in (KLL, SIZE))]


def test_what_a_sketch_that_is_carried_over_said_of_its_file_is_dropped(table: Table) -> None:
    append(table, 0, 300)
    count(table, RequestedStatistics(("id",), "*", (), (), ()))
    assert len(markers(table)) == 1
    off = RequestedStatistics(("size",), (), (), (), ())
    count(table, off)
    assert (len(slot(table).blob_metadata), markers(table)) == (2, [])
    assert count(table, off).outcome == ThetaOutcome.CURRENT
    count(table, RequestedStatistics(("size",), ("price",), (), (), ()))
    assert len(markers(table)) == 1
    require_exact(table, current(table))


def test_statistics_of_a_later_release_are_left_alone(table: Table) -> None:
    append(table, 0, 300)
    count(table, ALL)
    later = [
        (type_, fields, data, own | ({OTHERS: "2:0123456789abcdef"} if OTHERS in own else {}))
        for type_, fields, data, own in blobs_of(table)
    ]
    write(table, later, {OTHERS: '{"later": 1}'})
    path = slot(table).statistics_path
    for requested in (ALL, KEPT_UP, RequestedStatistics(None, (), (), (), ())):
        for verify in (False, True):
            assert count(table, requested, verify=verify).outcome == ThetaOutcome.CURRENT
    assert slot(table).statistics_path == path
    append(table, 300, 400)
    count(table, ALL)
    assert {kind for kind, _ in require_exact(table, current(table))} == {*Kind}, "those of another snapshot"


def test_a_later_release_counts_again_what_a_file_of_ours_has_not(table: Table) -> None:
    """Its statistics are not ours to describe, so no sketch says that they are there."""
    append(table, 0, 300)
    count(table, all_kinds(ndv=["id", "name"]))
    own = [(*blob[:3], blob[3] | ({OTHERS: "2:0"} if OTHERS in blob[3] else {})) for blob in blobs_of(table)]
    write(table, own, {OTHERS: '{"later": 1}'})
    count(table, all_kinds(ndv=["name", "size"]))
    assert markers(table) == []
    assert count(table, all_kinds(ndv=["name", "size"])).outcome == ThetaOutcome.WRITTEN
    assert {kind for kind, _ in require_exact(table, current(table))} == {*Kind} - {Kind.JOINT}


def broken(type_: str, change: Callable[[bytes], bytes]) -> Callable[[Blobs], Blobs]:
    return lambda blobs: [(t, f, change(data) if t == type_ else data, own) for t, f, data, own in blobs]


def resized(size: str) -> Callable[[Blobs], Blobs]:
    return lambda blobs: [(t, f, data, {"data_size": size} if t == SIZE else own) for t, f, data, own in blobs]


def of_another_k(data: bytes) -> bytes:
    """Three values of it, as a sketch of k 256 has them."""
    return kll_blob.encode(KllSketch(256, 3, 1, 3, (np.array([1, 2, 3]),)))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (broken(KLL, lambda data: data[:2] + b"\0" + data[3:]), "byte 2: family 0 is no KLL sketch"),
        (broken(KLL, of_another_k), "a histogram of k 256 is not united with those of 512"),
        (broken("icepuffin-frequent-values-v1", lambda data: data[:-1]), "byte"),
        (broken("icepuffin-joint-theta-v1", lambda data: data[:-1]), ""),
        (resized("-1"), "data_size '-1' is no size"),
        (lambda blobs: blobs[:-1], "does not say what the blobs are"),
    ],
    ids=["kll", "k", "frequent", "joint", "size", "lost"],
)
def test_a_damaged_statistic_is_seen_and_not_extended(
    table: Table, damage: Callable[[Blobs], Blobs], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, 0, 300)
    count(table, ALL, budget_bytes=0)
    properties = {OTHERS: reader_of(table).footer.properties[OTHERS]}
    assert damage_of(LocalStorage(), slot(table)) == ""
    blobs = blobs_of(table)
    write(table, damage(blobs), properties)
    assert words in damage_of(LocalStorage(), slot(table)) != ""
    append(table, 300, 400)
    report = count(table, ALL)
    assert words in report.note != ""
    assert report.files_sketched == 2
    assert {kind for kind, _ in require_exact(table, current(table))} == {*Kind}


def test_kept_sketches_that_are_damaged_are_counted_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch_packs, "FEW_FILES", 0)
    append(table, 0, 300)
    append(table, 300, 320)
    path = Path(str(count(table, ALL).file_sketches_path).removeprefix("file://"))
    (blob,) = PuffinReader(LocalStorage().source(str(path))).footer.of_type(OTHER_SKETCHES)
    data = bytearray(path.read_bytes())
    data[blob.offset : blob.offset + blob.length] = bytes(blob.length)
    path.write_bytes(data)
    table.delete("id >= 310")  # the ancestor's sketches are of no use
    report = count(table, ALL)
    assert "are broken" in report.note
    assert report.files_sketched == 2
    require_exact(table, current(table))


@pytest.mark.parametrize("requested", [ALL, KEPT_UP], ids=["named", "kept up"])
def test_a_lost_file_is_no_error(table: Table, requested: RequestedStatistics) -> None:
    append(table, 0, 300)
    count(table, ALL)
    all_of = require_exact(table, current(table)).keys()
    append(table, 300, 400)
    count(table, ALL)
    Path(slot(table).statistics_path.removeprefix("file://")).unlink()
    assert count(table, requested).outcome == ThetaOutcome.WRITTEN
    assert require_exact(table, current(table)).keys() == all_of


@pytest.mark.parametrize("length", [0, 7, 9])
def test_a_size_has_eight_bytes(length: int) -> None:
    with pytest.raises(BadBlobError, match=f"a size has 8 bytes, these are {length}"):
        decode((1, "size/1 {}"), memoryview(bytes(length)))
