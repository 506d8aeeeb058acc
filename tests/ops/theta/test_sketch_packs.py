"""Packs of file sketches: what a snapshot writes is about what is new, and nothing is lost or left."""

from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bindings import VersionPart
from icepuffin.ops.binding.bound_versions import BoundPack, DerivedVersion, sketch_versions
from icepuffin.ops.binding.joint_commit import Change
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy, RetentionScope
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.storage import RefusedError, open_storage
from icepuffin.ops.table.blob_kind import LASTING_MS, SKETCHES_TAG, BlobKind, pack_tag
from icepuffin.ops.table.snapshots import UnknownSnapshotError, data_snapshots, resolve_snapshot
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.ops.theta import publication, sketch_packs
from icepuffin.ops.theta.build_id import sealed_as
from icepuffin.ops.theta.file_sketches import BUDGET_BYTES, FileKey, FileSketchesReader
from icepuffin.ops.theta.statistics_slot import listed_thetas, read_sketches
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from icepuffin.ops.theta.theta_report import ThetaReport
from icepuffin.puffin.blobs.theta_blob import encode
from tests.ops.theta.conftest import STORAGE, ThreadlessRunner, append, current, rows
from tests.repository import REPOSITORY

PACK_BYTES = sketch_packs.PACK_BYTES


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And every version keeps its sketches, however few they are."""
    monkeypatch.setattr(sketch_packs, "PACK_BYTES", 2_000)
    monkeypatch.setattr(sketch_packs, "FEW_FILES", 0)


def materialize(table: Table, snapshot: int, **settings: Any) -> ThetaReport:
    return count_theta_sketches(RunContext(table, STORAGE, ThreadlessRunner()), snapshot, **settings).publish()


def newest(table: Table) -> DerivedVersion:
    return sketch_versions(table.refresh())[-1]


def packed(table: Table) -> tuple[BoundPack, ...]:
    """The packs of a table whose second version shares the first one's."""
    materialize(table, append(table, 0, 100))
    materialize(table, append(table, 100, 102))
    assert len(newest(table).packs) == 1
    return newest(table).packs


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def our_files(table: Table) -> set[str]:
    """Names of the sketches' files and of the lists of the snapshots that carry them."""
    folder = local(table.metadata.location) / "metadata"
    return {path.name for path in folder.iterdir() if path.name.startswith(("theta-", ".theta-", "icepuffin-snap-"))}


def named_files(table: Table) -> set[str]:
    metadata = table.refresh().metadata
    paths = [entry.statistics_path for entry in metadata.statistics]
    paths += [snapshot.manifest_list for snapshot in metadata.snapshots]
    return {local(path).name for path in paths}


def collect(table: Table) -> None:
    only_newest = RetentionPolicy(RetentionScope.NEWEST)
    collect_table_garbage(table, storage=STORAGE, retentions={}, default=only_newest, grace_hours=0)


def test_each_sketch_is_copied_a_few_times_and_packs_stay_few() -> None:
    random = Random(5)
    sizes: dict[int, int] = {}
    own = written = total = most = 0
    for number in range(4_000):
        new = random.randrange(10, 400)
        total += new
        shared, is_pack = sketch_packs.packs_to_share({pack: (size, size) for pack, size in sizes.items()}, own + new)
        copied = own + new + sum(size for pack, size in sizes.items() if pack not in shared)
        sizes = {pack: sizes[pack] for pack in shared}
        written += copied
        own = 0 if is_pack else copied
        if is_pack:
            sizes[number] = copied
        most = max(most, len(sizes))
        assert own + sum(sizes.values()) == total
    assert most <= 7 * 4, "seven of each size class"
    assert written / total < 4 + 2_000 / 200, "a copy per class, and those of what no pack has yet"


def test_sketches_are_worth_a_pack_and_are_kept_as_the_documents_have_it() -> None:
    described = (REPOSITORY / "docs" / "concepts.md").read_text()
    assert PACK_BYTES == 256 * 2**10
    assert "too, from 256 KiB on" in described
    assert BUDGET_BYTES == 256 * 2**20
    assert "of their longest files alone, up to [256 MiB]" in described


def test_a_pack_of_which_little_is_in_use_is_not_shared() -> None:
    assert sketch_packs.packs_to_share({"a": (499, 1_000), "b": (500, 1_000), "c": (0, 0)}, 10) == (("b",), False)
    assert sketch_packs.packs_to_share({"a": (2_900, 9_000), "b": (500, 1_000)}, 100) == (("b",), True)
    assert sketch_packs.packs_to_share({"a": (1, 2), "b": (0, 1)}, 10) == (("a",), False)


def test_sketches_become_a_pack_once_they_are_worth_it_with_all_that_are_no_larger() -> None:
    def merged(*sizes: int, other: int) -> tuple[list[int], bool]:
        shared, is_pack = sketch_packs.packs_to_share({n: (size, size) for n, size in enumerate(sizes)}, other)
        return [sizes[number] for number in shared], is_pack

    assert [sketch_packs._size_class(length) for length in (0, 15_999, 16_000, 127_999, 128_000)] == [0, 0, 1, 1, 2]
    assert merged(other=1_999) == ([], False)
    assert merged(other=2_000) == ([], True)
    assert merged(*[2_000] * 9, other=1_999) == ([2_000] * 9, False)
    assert merged(*[15_999] * 6, other=2_000) == ([15_999] * 6, True)
    assert merged(*[2_000] * 7, other=2_000) == merged(*[2_000] * 9, other=2_000) == ([], True)
    assert merged(*[16_000] * 7, other=15_999) == ([16_000] * 7, True)
    assert merged(*[16_000] * 7, other=16_000) == ([], True)
    assert merged(*[2_000] * 7, *[16_000] * 6, other=2_000) == ([16_000] * 6, True), "they are of a larger class now"
    assert merged(*[2_000] * 7, *[16_000] * 7, 128_000, other=2_000) == ([128_000], True)


def test_a_version_names_the_packs_of_the_one_before(table: Table) -> None:
    (pack,) = packed(table)
    ref = table.metadata.refs[pack_tag(BlobKind.SKETCHES, pack.holder_id)]
    assert (ref.snapshot_id, ref.max_ref_age_ms) == (pack.holder_id, LASTING_MS)
    assert f"{SKETCHES_TAG}-pack-{pack.holder_id}" in table.metadata.refs
    report = materialize(table, append(table, 102, 104))
    assert newest(table).packs == (pack,)
    assert (report.files_sketched, report.files_reused, report.ndv["id"]) == (1, 2, 104)
    with pytest.raises(UnknownSnapshotError, match="only holds theta sketches"):
        resolve_snapshot(table, pack.holder_id)
    assert len(data_snapshots(table)) == 3


def test_the_bytes_of_a_pack_are_among_those_that_were_written(table: Table) -> None:
    report = materialize(table, append(table, 0, 100))
    (pack,) = newest(table).packs
    paths = report.statistics_path or "", newest(table).puffin_path, pack.path
    assert report.bytes_written == sum(local(path).stat().st_size for path in paths)


def test_a_version_whose_pack_is_gone_before_it_is_bound_is_not_bound(table: Table) -> None:
    """Garbage collection may take what waits for long."""
    snapshot = append(table, 0, 100)
    counted = count_theta_sketches(RunContext(table, STORAGE, ThreadlessRunner()), snapshot)
    (pack,) = (local(table.metadata.location) / "metadata").glob("theta-pack-*")
    pack.unlink()
    report = counted.publish()
    assert f"{pack.name} was deleted before it was registered" in report.note
    assert (report.file_sketches_path, report.ndv["id"]) == (None, 100)
    assert sketch_versions(table.refresh()) == ()


def test_statistics_that_are_gone_once_they_are_published_are_written_anew(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage collection may take them while a commit takes long."""
    snapshot, commit, lost = append(table, 0, 100), table.catalog.commit_table, list[Path]()

    def commit_late(*args: Any) -> Any:
        if not lost:
            (path,) = (local(table.metadata.location) / "metadata").glob(f"{snapshot}-*.stats")
            path.unlink()
            lost.append(path)
        return commit(*args)

    monkeypatch.setattr(table.catalog, "commit_table", commit_late)
    report = materialize(table, snapshot)
    assert local(report.statistics_path or "").exists()
    (registered,) = (it for it in table.refresh().metadata.statistics if it.snapshot_id == snapshot)
    assert (registered.statistics_path, len(lost)) == (report.statistics_path, 1)


def test_a_run_drops_the_packs_of_versions_that_an_engine_has_expired(table: Table) -> None:
    (pack,) = packed(table)
    versions = sketch_versions(table.refresh())
    table.delete("id >= 0")
    materialize(table, append(table, 500, 600))
    assert pack_tag(BlobKind.SKETCHES, pack.holder_id) in table.refresh().metadata.refs, "the versions name it"
    expired = [version.index_snapshot_id for version in versions]
    table.maintenance.expire_snapshots().by_ids(expired).commit()
    materialize(table.refresh(), append(table, 600, 610))
    assert pack_tag(BlobKind.SKETCHES, pack.holder_id) not in table.refresh().metadata.refs


def test_where_no_version_can_be_bound_the_statistics_are_published_all_the_same(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Table) -> None:
        raise RefusedError("no tags here")

    monkeypatch.setattr(publication, "require_bindable", refuse)
    report = materialize(table, append(table, 0, 100))
    assert (report.ndv["id"], report.fresh) == (100, True)
    assert report.note == "the file sketches were not published: no tags here"
    assert not any(name.startswith("theta-") for name in our_files(table))


def test_the_listing_of_a_file_is_not_parsed_per_column(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    materialize(table, append(table, 0, 100))
    parsed, image_sizes = Counter[FileKey](), FileSketchesReader.image_sizes

    def counted(reader: FileSketchesReader, key: FileKey) -> dict[tuple[int, str], int]:
        parsed[key] += 1
        return image_sizes(reader, key)

    monkeypatch.setattr(FileSketchesReader, "image_sizes", counted)
    report = materialize(table, append(table, 100, 102))
    assert (report.files_reused, len(report.ndv)) == (1, 5)
    assert max(parsed.values()) <= 3, "of a file with 500 columns the listing takes 2 ms"


def test_the_united_sketch_does_not_depend_on_how_it_came_about(catalog: SqlCatalog) -> None:
    """Estimating sketches of a chain of versions have the bytes of a count of all rows in one file."""
    schema = Schema(NestedField(1, "id", LongType(), required=False))

    def image(table: Table) -> bytes:
        materialize(table, current(table))
        statistics = find_statistics(table.refresh(), current(table))
        assert statistics is not None
        seals = {(i, "long"): sealed_as(blob.properties) for i, blob in listed_thetas(statistics).items()}
        return encode(read_sketches(open_storage(table.location(), STORAGE), statistics, seals)[1, "long"])

    def ids(stop: int, start: int = 0) -> pa.Table:
        return pa.table({"id": pa.array(np.arange(start, stop), pa.int64())})

    chain = catalog.create_table("db.chain", schema, properties={"format-version": "2"})
    whole = catalog.create_table("db.whole", schema, properties={"format-version": "2"})
    images = []
    for start in range(0, 9_000, 1_500):
        chain.append(ids(start + 2_000, start))
        images.append(image(chain))
    whole.append(ids(9_500))
    assert images[-1] == image(whole)
    chain.delete("id < 500")
    whole.delete("id < 500")
    assert image(chain) == image(whole), "files are removed and the rest is united anew"


def test_random_appends_and_removals_keep_every_number_exact_and_leave_nothing(table: Table) -> None:
    random = Random(11)
    alive: set[int] = set()
    for step in range(14):
        if alive and random.random() < 0.35:
            limit = random.choice(sorted(alive))
            table.delete(f"id < {limit}")
            alive = {i for i in alive if i >= limit}
        else:
            start = 1_000 * step
            append(table, start, start + random.randrange(1, 90))
            alive |= {int(i) for i in table.scan().to_arrow()["id"].to_pylist()}
        report = materialize(table.refresh(), current(table))
        assert report.ndv["id"] == len(alive)
        assert not report.note
        if step % 4 == 3:
            collect(table)
            assert our_files(table) <= named_files(table)
    collect(table)
    version = newest(table)
    assert {pack.holder_id for pack in version.packs} == {
        snapshot.snapshot_id
        for snapshot in table.refresh().metadata.snapshots
        if snapshot.summary and "theta-sketches.pack" in snapshot.summary.additional_properties
    }, "packs that no version names are gone with their tags"
    assert all(pack.is_kept for pack in version.packs)
    assert our_files(table) == {name for name in named_files(table) if name.startswith(("theta-", "icepuffin-snap-"))}


def test_packs_that_are_merged_lose_no_sketch(table: Table) -> None:
    for number in range(8):
        materialize(table, append(table, 100 * number, 100 * number + 100))
    assert len(newest(table).packs) == 1
    collect(table)
    table.delete("id == 5")
    report = materialize(table, current(table))
    assert (report.files_sketched, report.files_reused, report.ndv["id"]) == (1, 7, 799)


def test_a_pack_does_not_serve_a_file_that_came_later_under_the_same_name(table: Table, tmp_path: Path) -> None:
    imported = tmp_path / "night.parquet"
    pq.write_table(rows(0, 60), imported)
    table.add_files([str(imported)])
    materialize(table, append(table, 1_000, 1_100))
    shared = newest(table).packs
    table.delete("id < 1000")
    pq.write_table(rows(500, 520), imported)
    table.add_files([str(imported)])
    materialize(table, current(table))
    assert newest(table).packs == shared
    local(newest(table).puffin_path).unlink()
    table.delete("id == 1099")
    assert materialize(table, current(table)).ndv["id"] == 99 + 20


def test_expiry_of_the_version_that_made_a_pack_does_not_touch_it(table: Table) -> None:
    (pack,) = packed(table)
    collect(table)
    assert len(sketch_versions(table.refresh())) == 1
    statistics = find_statistics(table, current(table))
    assert statistics is not None
    local(statistics.statistics_path).unlink()
    assert local(pack.path).exists()
    report = materialize(table, append(table, 200, 203))
    assert (report.files_sketched, report.files_reused, report.ndv["id"]) == (1, 2, 105)


def test_a_lost_pack_costs_a_recount_and_is_reported_once(table: Table) -> None:
    (pack,) = packed(table)
    local(pack.path).unlink()
    report = materialize(table, append(table, 102, 104))
    assert (report.files_sketched, report.ndv["id"]) == (1, 104), "the sketch of the snapshot before serves"
    assert "are lost" in report.note
    assert newest(table).packs == ()
    table.delete("id < 1")
    report = materialize(table, current(table))
    assert (report.ndv["id"], report.note) == (103, "")


def test_a_pack_that_is_broken_is_counted_anew_and_then_serves(table: Table) -> None:
    (pack,) = packed(table)
    content = bytearray(local(pack.path).read_bytes())
    content[10:200] = bytes(190)
    local(pack.path).write_bytes(content)
    table.delete("id == 101")
    report = materialize(table, current(table))
    assert (report.ndv["id"], report.files_sketched) == (101, 2)
    assert "are broken" in report.note
    table.delete("id == 100")
    report = materialize(table, current(table))
    assert (report.ndv["id"], report.files_sketched, report.note) == (100, 0, "")


def test_a_pack_that_is_dropped_meanwhile_costs_the_cache_and_leaves_no_file(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pack,) = packed(table)
    through = VersionPart.change

    def change(part: VersionPart, current_table: Table) -> Change:
        change = through(part, current_table)
        other = current_table.catalog.load_table(current_table.name())
        bindings.drop(other, pack_tag(part.binding.name, pack.holder_id))
        return change

    monkeypatch.setattr(VersionPart, "change", change)
    report = materialize(table, append(table, 102, 202))
    assert "were dropped meanwhile" in report.note
    assert report.ndv["id"] == 202
    unnamed = {name for name in our_files(table) - named_files(table) if name.endswith(".puffin")}
    assert unnamed == set()
    monkeypatch.undo()
    materialize(table, append(table, 202, 204))
    assert pack.holder_id not in {other.holder_id for other in newest(table).packs}, "nothing would keep it"


def test_the_tag_of_a_pack_comes_back(table: Table) -> None:
    (pack,) = packed(table)
    bindings.drop(table, pack_tag(BlobKind.SKETCHES, pack.holder_id))
    collect_table_garbage(
        table, storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=timedelta(days=1).total_seconds()
    )
    assert newest(table).packs == (pack,)


def test_a_table_of_format_v1_shares_packs_too(catalog: SqlCatalog) -> None:
    table = catalog.create_table("db.v1", rows(0, 1).schema, properties={"format-version": "1"})
    packed(table)
    report = materialize(table, append(table, 102, 104))
    assert (len(newest(table).packs), report.files_sketched, report.ndv["id"]) == (1, 1, 104)
    materialize(table, append(table, 200, 300))
    shared = newest(table).packs
    assert len(shared) == 2
    materialize(table, append(table, 300, 302))
    assert newest(table).packs == shared, "those of the newest version, though no version has a sequence number"
