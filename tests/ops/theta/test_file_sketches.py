import io
from dataclasses import replace

import numpy as np
import pytest

from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.model import DeleteFile, DeleteKind, LiveFile, SnapshotId
from icepuffin.ops.table.blob_kind import BlobKind
from icepuffin.ops.theta import file_sketches
from icepuffin.ops.theta.columns import SketchedColumn
from icepuffin.ops.theta.earlier_sketches import EarlierSketches
from icepuffin.ops.theta.file_sketches import (
    FILE_SKETCHES,
    FileKey,
    FileSketches,
    FileSketchesReader,
    column_bytes,
    entry_bytes,
    file_key,
    image_bytes,
    within_budget,
    write_file_sketches,
)
from icepuffin.puffin import BytesSource, PuffinReader, PuffinWriter
from icepuffin.puffin.blobs.theta_blob import MAX_THETA, ThetaSketch, encode
from icepuffin.puffin.errors import BadBlobError
from icepuffin.puffin.puffin_writer import footer_bytes


def sketch(*hashes: int) -> ThetaSketch:
    return ThetaSketch(MAX_THETA, np.array(hashes, np.uint64))


def live(path: str, rows: int = 10, *deletes: str) -> LiveFile:
    found = tuple(DeleteFile(d, DeleteKind.POSITION, 1, 2, 100) for d in deletes)
    return LiveFile(path, 1_000, rows, 1, "PARQUET", deletes=found)


def reader_of(data: bytes) -> FileSketchesReader:
    return FileSketchesReader(PuffinReader(BytesSource(data)))


def test_what_is_written_is_read_back() -> None:
    files = [
        FileSketches(FileKey("data/a.parquet", ""), {(1, "long"): sketch(1, 5), (2, "decimal(9, 2)"): sketch()}),
        FileSketches(FileKey("data/b.parquet", "ab12"), {(1, "long"): sketch(7)}),
    ]
    sink = io.BytesIO()
    info = write_file_sketches(sink, files, snapshot_id=5, sequence_number=6, build_id="x", counts=())
    assert info.file_size == len(sink.getvalue())
    properties = PuffinReader(BytesSource(sink.getvalue())).footer.properties
    assert properties["created-by"].startswith("icepuffin version ")
    reader = reader_of(sink.getvalue())
    assert [reader.read(file.key) for file in files] == files
    assert reader.columns(files[0].key) == ((1, "long"), (2, "decimal(9, 2)"))
    assert reader.columns(FileKey("data/a.parquet", "ab12")) == ()
    assert reader.field_ids() == {1, 2}


def test_a_file_that_came_again_under_its_name_is_another() -> None:
    """After the sketches were written; in format v1, where no number tells, by another commit."""
    keys = FileKey("a.parquet", "", 6), FileKey("b.parquet", "", 0, SnapshotId(3))
    sink = io.BytesIO()
    files = [FileSketches(key, {(1, "long"): sketch(1)}) for key in keys]
    write_file_sketches(sink, files, snapshot_id=5, sequence_number=6, build_id="x", counts=())
    reader = reader_of(sink.getvalue())
    assert [key in reader for key in keys] == [True, True]
    others = replace(keys[0], added=7), replace(keys[0], deletes="ab"), replace(keys[1], added_by=SnapshotId(4))
    assert [key in reader for key in others] == [False] * 3
    assert [reader.columns(key) for key in others] == [()] * 3


@pytest.mark.parametrize("columns", ["", "{", "[[1]]", '[[1, "long", "many"]]', '[[1, "long", 16]]', "7"])
def test_a_broken_listing_is_a_typed_error(columns: str) -> None:
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    writer.add_blob(
        FILE_SKETCHES,
        fields=[1],
        snapshot_id=1,
        sequence_number=1,
        data=b"",
        properties={"path": "p", "deletes": "", "columns": columns},
    )
    writer.finish()
    with pytest.raises(BadBlobError, match=r"bad property `columns`|theta sketch"):
        reader_of(sink.getvalue()).read(FileKey("p", ""))


def test_bytes_that_no_column_has_are_an_error() -> None:
    sink, image = io.BytesIO(), encode(sketch(1, 5))
    writer = PuffinWriter(sink)
    properties = {"path": "p", "deletes": "", "columns": f'[[1, "long", {len(image)}]]'}
    writer.add_blob(
        FILE_SKETCHES, fields=[1], snapshot_id=1, sequence_number=1, data=image + b"\0", properties=properties
    )
    writer.finish()
    with pytest.raises(BadBlobError, match=f"at 4: {len(image)} bytes are listed, {len(image) + 1} are there"):
        reader_of(sink.getvalue()).read(FileKey("p", ""))


def test_a_note_has_the_first_of_many_broken_listings() -> None:
    """Of 100,000 files a note in the event of a materialisation would be 15 MB."""
    sink, keys = io.BytesIO(), [FileKey(f"data/{number}.parquet", "") for number in range(100)]
    writer = PuffinWriter(sink)
    for key in keys:
        properties = {"path": key.path, "deletes": "", "columns": "{"}
        writer.add_blob(FILE_SKETCHES, fields=[1], snapshot_id=1, sequence_number=1, data=b"", properties=properties)
    writer.finish()
    version = DerivedVersion(
        BlobKind.SKETCHES, "theta", SnapshotId(2), SnapshotId(1), "x", "file:///sketches.puffin", 2, 0, 1, ()
    )
    earlier = EarlierSketches([version], lambda _: reader_of(sink.getvalue()), here=1, table="db.t")
    places = earlier.places(keys, [SketchedColumn(1, "id", "long")])
    assert not any(places.values())
    assert earlier.note.count("are broken") == 20
    assert earlier.note.endswith("; and 80 more")


def test_a_file_is_identified_by_its_path_and_the_deletes_that_apply_to_it() -> None:
    base = file_key(live("file:/wh/t/data/a.parquet"), "file:///wh/t")
    assert base == FileKey("data/a.parquet", "")
    assert file_key(live("file:///wh/t/data/a.parquet"), "file:/wh/t/") == base
    once = file_key(live("file:/wh/t/data/a.parquet", 10, "d1"), "file:///wh/t")
    twice = file_key(live("file:/wh/t/data/a.parquet", 10, "d1", "d2"), "file:///wh/t")
    assert len({base, once, twice}) == 3
    assert file_key(live("s3://elsewhere/a.parquet"), "file:///wh/t").path == "s3://elsewhere/a.parquet"


def test_a_file_is_as_old_as_the_newest_of_its_deletes() -> None:
    deletes = live("a", 10, "d1", "d2").deletes
    for numbers, newest in (((3, 9), 9), ((9, 3), 9), ((3, 4), 5)):
        own = tuple(replace(delete, sequence_number=number) for delete, number in zip(deletes, numbers, strict=True))
        file = replace(live("a"), deletes=own, file_sequence_number=5)
        assert file_key(file, "file:///wh/t").added == newest


def test_within_the_budget_the_files_that_take_longest_to_read_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [live("a", 5), live("b", 500), live("c", 50)]
    sizes, entries = {"a": 9, "b": 55, "c": 55}, {"a": 1, "b": 5, "c": 5}
    assert within_budget(files, sizes, entries, 1_000) == tuple(files)
    assert within_budget(files, sizes, entries, 130) == tuple(files)
    assert [f.path for f in within_budget(files, sizes, entries, 129)] == ["b", "c"]
    assert [f.path for f in within_budget(files, sizes, entries, 100)] == ["a", "b"]
    assert within_budget(files, sizes, entries, 0) == ()
    assert image_bytes([sketch(1, 2), sketch()]) == 24 + 16 + 24
    monkeypatch.setattr(file_sketches, "MAX_FOOTER", 10)
    kept = within_budget(files, sizes, entries, 1_000)
    assert [f.path for f in kept] == ["b", "c"], "the footer is full, whatever the budget is"


@pytest.mark.parametrize("columns", [1, 30])
@pytest.mark.parametrize("path", ["data/a.parquet", 'dåten/größe=1/"大"\\/' + 2_000 * "x"])
@pytest.mark.parametrize("kind", ["long", 'string ["größe", "Größe \\"\\""]'])
def test_no_entry_of_a_footer_is_longer_than_was_reckoned(columns: int, path: str, kind: str) -> None:
    most = 2**31 - 1 - columns
    key = FileKey(path, 64 * "f", added=2**62, added_by=SnapshotId(2**63 - 1))
    own = {(most + number, kind): sketch(*range(1, 4_097)) for number in range(columns)}
    sink, lengths = io.BytesIO(), []
    for files in ([], [FileSketches(key, own)]):
        last = 2**63 - 1
        writer = write_file_sketches(sink, files, snapshot_id=last, sequence_number=last, build_id="x", counts=())
        lengths.append(len(footer_bytes(writer.footer)))
    reckoned = entry_bytes(key, sum(map(column_bytes, own)))
    assert 0.4 * reckoned < lengths[1] - lengths[0] <= reckoned - 60, "offsets of a large file take more digits"
