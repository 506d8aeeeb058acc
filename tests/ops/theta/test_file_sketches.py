import io
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from icepuffin.ops.binding.bound_versions import DerivedVersion
from icepuffin.ops.model import DeleteFile, DeleteKind, LiveFile, SnapshotId
from icepuffin.ops.table.blob_kind import BlobKind
from icepuffin.ops.theta import earlier_sketches, file_sketches
from icepuffin.ops.theta.earlier_sketches import EarlierSketches
from icepuffin.ops.theta.file_sketches import (
    SKETCH_DIRECTORY,
    FileKey,
    FileSketches,
    FileSketchesReader,
    entry_bytes,
    file_key,
    image_bytes,
    within_budget,
    write_file_sketches,
)
from icepuffin.puffin import BytesSource, PuffinReader, PuffinWriter
from icepuffin.puffin.blobs import sketch_directory_blob
from icepuffin.puffin.blobs.sketch_directory_blob import DirectoryEntry, SketchDirectory
from icepuffin.puffin.blobs.theta_blob import MAX_THETA, ThetaSketch
from icepuffin.puffin.errors import BadBlobError, PuffinError
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
    assert [reader.read(file.key, reader.statistics()) for file in files] == [file.sketches for file in files]
    assert reader.read(files[0].key, [(1, "long"), (2, "long")]) == {(1, "long"): sketch(1, 5)}, "those alone"
    assert reader.image_sizes(files[0].key) == {(1, "long"): 32, (2, "decimal(9, 2)"): 8}
    assert reader.image_sizes(FileKey("data/a.parquet", "ab12")) == {}


@pytest.mark.parametrize(("count", "zeros"), [(2, 0), (41, 0), (7, 32)])
def test_no_damage_of_one_bit_makes_another_sketch_of_a_kept_one(count: int, zeros: int) -> None:
    """The last one's frame would be as long as what it holds, by the level that is tried first."""
    hashes = sorted({(number * 0x9E3779B97F4A7C15 % 2**63) >> zeros << zeros for number in range(1, count)})
    kept = FileSketches(FileKey("a.parquet", ""), {(1, "long"): sketch(*hashes)})
    data = file_of(kept)
    images, _ = PuffinReader(BytesSource(data)).footer.blobs
    for bit in range(8 * images.offset, 8 * (images.offset + images.length)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert reader_of(bytes(damaged)).read(kept.key, [(1, "long")]) == kept.sketches
        except PuffinError:
            continue


def test_a_file_that_came_again_under_its_name_is_another() -> None:
    """After the sketches were written; in format v1, where no number tells, by another commit."""
    keys = FileKey("a.parquet", "", 6), FileKey("b.parquet", "", 0, SnapshotId(3))
    sink = io.BytesIO()
    files = [FileSketches(key, {(1, "long"): sketch(1)}) for key in keys]
    write_file_sketches(sink, files, snapshot_id=5, sequence_number=6, build_id="x", counts=())
    reader = reader_of(sink.getvalue())
    assert [reader.image_sizes(key).keys() for key in keys] == [{(1, "long")}] * 2
    others = replace(keys[0], added=7), replace(keys[0], deletes="ab"), replace(keys[1], added_by=SnapshotId(4))
    assert [reader.image_sizes(key) for key in others] == [{}] * 3
    assert [reader.read(key, reader.statistics()) for key in others] == [{}] * 3


def damaged(data: bytes, change: Callable[[SketchDirectory], SketchDirectory]) -> bytes:
    """A file of sketches with another directory."""
    reader, sink = PuffinReader(BytesSource(data)), io.BytesIO()
    images, directory = reader.footer.blobs
    writer = PuffinWriter(sink)
    changed = sketch_directory_blob.encode(change(sketch_directory_blob.decode(reader.read_blob(directory))))
    for blob, own in ((images, reader.read_blob(images)), (directory, changed)):
        writer.add_blob(blob.type, fields=(1,), snapshot_id=5, sequence_number=6, data=own)
    writer.finish()
    return sink.getvalue()


def file_of(*files: FileSketches) -> bytes:
    sink = io.BytesIO()
    write_file_sketches(sink, files, snapshot_id=5, sequence_number=6, build_id="x", counts=())
    return sink.getvalue()


def test_a_directory_that_does_not_fit_its_images_is_refused() -> None:
    data = file_of(FileSketches(FileKey("p", ""), {(1, "long"): sketch(1, 5)}))
    assert reader_of(damaged(data, lambda directory: directory)).image_sizes(FileKey("p", ""))

    def longer(directory: SketchDirectory) -> SketchDirectory:
        (entry,) = directory.files
        return replace(directory, files=(replace(entry, stored_length=entry.stored_length + 1),))

    for change, message in (
        (lambda directory: replace(directory, columns=()), "has other columns"),
        (lambda directory: replace(directory, files=()), "its directory lists 0"),
        (longer, "its directory lists"),
    ):
        with pytest.raises(BadBlobError, match=message):
            reader_of(damaged(data, change))


def test_a_directory_alone_is_no_file_of_sketches() -> None:
    sink = io.BytesIO()
    writer = PuffinWriter(sink)
    directory = sketch_directory_blob.encode(SketchDirectory((), ()))
    writer.add_blob(SKETCH_DIRECTORY, fields=(), snapshot_id=1, sequence_number=1, data=directory)
    writer.finish()
    with pytest.raises(BadBlobError, match="has 0 blobs of them and 1 directories"):
        reader_of(sink.getvalue())


def test_a_sketch_that_does_not_have_its_length_is_an_error() -> None:
    data = file_of(FileSketches(FileKey("p", ""), {(1, "long"): sketch(1, 5)}))

    def changed(directory: SketchDirectory) -> SketchDirectory:
        (entry,) = directory.files
        layout = sketch_directory_blob.layout_of([(0, entry.raw_length + 1)])
        return replace(directory, files=(replace(entry, raw_length=entry.raw_length + 1, layout=layout),))

    with pytest.raises(PuffinError, match="32 bytes of images, its directory lists 33"):
        reader_of(damaged(data, changed)).read(FileKey("p", ""), [(1, "long")])


def test_a_note_has_the_first_of_many_broken_sketches() -> None:
    """Of 100,000 files a note in the event of a materialisation would be 15 MB."""
    keys = [FileKey(f"data/{number}.parquet", "") for number in range(100)]
    data = bytearray(file_of(*(FileSketches(key, {(1, "long"): sketch(1, 5)}) for key in keys)))
    images = PuffinReader(BytesSource(bytes(data))).footer.blobs[0]
    data[images.offset : images.offset + images.length] = bytes(images.length)
    version = DerivedVersion(
        BlobKind.SKETCHES, "theta", SnapshotId(2), SnapshotId(1), "x", "file:///sketches.puffin", 2, 0, 1, ()
    )
    earlier = EarlierSketches([version], lambda _: reader_of(bytes(data)), here=1, table="db.t")
    located = earlier.located(keys, [(1, "long")])
    assert not any(earlier.read(located).values())
    assert earlier.note.count("are broken") == 20
    assert earlier.note.endswith("; and 80 more")


def test_the_footer_does_not_grow_with_the_number_of_files() -> None:
    own, lengths = {(number, "long"): sketch(1, 5) for number in range(1, 11)}, []
    for files in (1, 1_000):
        data = file_of(*(FileSketches(FileKey(f"data/{number:05d}.parquet", ""), own) for number in range(files)))
        lengths.append(len(footer_bytes(PuffinReader(BytesSource(data)).footer)))
    assert lengths[1] < lengths[0] + 10, "numbers of more digits"


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


def test_a_file_names_the_snapshot_that_added_it_only_where_files_have_no_number() -> None:
    file = replace(live("a"), added_by=SnapshotId(7))
    added_by = [file_key(replace(file, file_sequence_number=number), "").added_by for number in (0, 5)]
    assert added_by == [7, 0]


def test_within_the_budget_the_files_that_take_longest_to_read_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [live("a", 5), live("b", 500), live("c", 50)]
    sizes, entries = {"a": 9, "b": 55, "c": 55}, {"a": 1, "b": 5, "c": 5}
    assert within_budget(files, sizes, entries, 1_000) == tuple(files)
    assert within_budget(files, sizes, entries, 130) == tuple(files)
    assert [f.path for f in within_budget(files, sizes, entries, 129)] == ["b", "c"]
    assert [f.path for f in within_budget(files, sizes, entries, 100)] == ["a", "b"]
    assert within_budget(files, sizes, entries, 0) == ()
    equal = [live("y", 5), live("x", 5)]
    assert within_budget(equal, {"x": 9, "y": 9}, {"x": 1, "y": 1}, 10) == (equal[1],), "by their paths"
    assert image_bytes([sketch(1, 2), sketch()]) == 24 + 16 + 24
    monkeypatch.setattr(file_sketches, "MAX_DIRECTORY_BYTES", 10)
    kept = within_budget(files, sizes, entries, 1_000)
    assert [f.path for f in kept] == ["b", "c"], "the directory is full, whatever the budget is"


def test_a_full_directory_has_a_mebibyte_left_for_the_names_of_columns() -> None:
    assert sketch_directory_blob.MAX_BYTES - file_sketches.MAX_DIRECTORY_BYTES == 2**20


def test_a_directory_is_read_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sketch_directory_blob.MAX_BYTES == 256 << 20
    data = sketch_directory_blob.encode(SketchDirectory(((1, "long"),), ()))
    monkeypatch.setattr(sketch_directory_blob, "MAX_BYTES", len(data))
    assert sketch_directory_blob.decode(data).columns == ((1, "long"),)
    with pytest.raises(BadBlobError, match=rf"of {len(data) + 1} bytes is over the limit of {len(data)}"):
        sketch_directory_blob.decode(data + b"\0")


@pytest.mark.parametrize("columns", [1, 30])
@pytest.mark.parametrize("path", ["data/a.parquet", 'dåten/größe=1/"aa"\\/' + 2_000 * "x"])
def test_no_entry_of_a_directory_is_longer_than_was_reckoned(columns: int, path: str) -> None:
    key = FileKey(path, 64 * "f", added=2**62, added_by=SnapshotId(2**63 - 1))
    layout = sketch_directory_blob.layout_of((number, 32_800) for number in range(columns))
    entry = DirectoryEntry(key.path, key.deletes, key.added_by, 2**40, 32_800 * columns, layout)
    assert len(sketch_directory_blob.encode_entry(entry)) == entry_bytes(key, columns)


@pytest.mark.parametrize(("number", "length"), [(0, 23), (0, 25), (1, 24)])
def test_images_fill_what_a_directory_lists_and_are_of_its_columns(number: int, length: int) -> None:
    def directory(column: int, image: int) -> SketchDirectory:
        layout = sketch_directory_blob.layout_of([(column, image)])
        return SketchDirectory(((1, "long"),), (DirectoryEntry("a", "", SnapshotId(0), 30, 24, layout),))

    assert sketch_directory_blob.decode(sketch_directory_blob.encode(directory(0, 24))) == directory(0, 24)
    with pytest.raises(BadBlobError, match="a has other columns, or images of another length, than it lists"):
        sketch_directory_blob.decode(sketch_directory_blob.encode(directory(number, length)))


def test_of_the_versions_of_a_snapshot_the_one_that_was_made_last_serves_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the one that mended what was damaged. A version of a snapshot that is nearer comes before both."""

    def version(base: int, made: int, timestamp_ms: int) -> DerivedVersion:
        ids = SnapshotId(made), SnapshotId(base)
        return DerivedVersion(BlobKind.SKETCHES, "theta", *ids, "x", f"{made}.puffin", made, timestamp_ms, base, ())

    versions = [version(1, 4, 50), version(3, 5, 60), version(3, 6, 55), version(4, 7, 70), version(3, 6, 56)]
    monkeypatch.setattr(earlier_sketches, "sketch_versions", lambda _: versions)
    table: Any = SimpleNamespace(name=lambda: ("db", "t"))
    at: Any = SimpleNamespace(sequence_number=3)
    store: Any = None
    found = earlier_sketches.open_earlier_sketches(table, store, at)._versions
    assert found == [versions[place] for place in (4, 2, 1, 3, 0)]
