"""Tables that cannot be indexed as they are: the error says why and what to do, and the last good version stays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import write_manifest
from pyiceberg.table import Table

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.bound_versions import index_versions, tag_target
from icepuffin.ops.errors import CatalogUnavailableError, IcepuffinError
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.rows.datafile import DataFileError
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.storage import AccessError, open_storage
from icepuffin.ops.table import manifests
from icepuffin.ops.table.live_files import ManifestError, live_files
from icepuffin.ops.table.manifests import PlannedManifest
from icepuffin.ops.table.snapshots import TableUnavailableError, find_snapshot, hides_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.catalog.bindings import binding
from tests.ops.catalog.equality import delete_where_id_is
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head

TableFactory = Callable[..., Table]


@pytest.fixture
def table(table_factory: TableFactory) -> Table:
    made = table_factory()
    made.append(make_rows(0, 100))
    return made


def our_files(table: Table) -> set[str]:
    """Everything that icepuffin has written, and every snapshot's list."""
    store = open_storage(table.location(), STORAGE)
    names = (item.path for item in store.list(f"{table.location()}/metadata"))
    return {name for name in names if name.endswith((".puffin", ".stats")) or "snap-" in name or "_icepuffin" in name}


def assert_kept(table: Table, good: IndexReport) -> None:
    """The version that was there is bound, and answers for its own snapshot."""
    assert tag_target(table.refresh(), "ann_e") == good.index_snapshot_id
    found, recall = answer_with_recall(table, good.snapshot_id)
    assert found.coverage is Coverage.EXACT_VERSION
    assert recall >= 0.96


def test_equality_deletes_in_avro_are_refused_with_the_way_out(table: Table) -> None:
    good = index_head(table)
    snapshot = delete_where_id_is(table, 3, 5, avro=True)
    before = our_files(table)
    (file,) = live_files(table, snapshot).files

    def sketch() -> Any:
        return count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), snapshot).publish()

    def search() -> Any:
        return open_index(table, DEFINITION, snapshot=snapshot, storage=STORAGE).search(queries(1), 3)

    def scan() -> Any:
        return open_exact(table, "embedding", Metric.L2, snapshot=snapshot, storage=STORAGE).search(
            queries(1), 3, columns=["id"]
        )

    for work in (lambda: index_head(table), sketch, search, scan):
        with pytest.raises(IcepuffinError, match="equality deletes") as caught:
            work()
        message = str(caught.value)
        assert str(snapshot) in message
        assert file.path in message
        assert "rewrite_data_files" in message
    assert our_files(table) == before
    assert_kept(table, good)


def test_a_missing_data_file_is_named_and_the_last_version_stays(table: Table) -> None:
    good = index_head(table)
    table.refresh()
    table.append(make_rows(100, 150))
    (missing,) = (
        file.path
        for file in live_files(table, table.metadata.current_snapshot_id or 0).files
        if file.record_count == 50
    )
    Path(missing.removeprefix("file://")).unlink()
    with pytest.raises(DataFileError, match=r"is missing, although the snapshot's manifests name it") as caught:
        index_head(table)
    assert missing in str(caught.value)
    assert len(index_versions(table, "e")) == 1
    assert_kept(table, good)


def test_a_table_that_was_dropped_is_reported_as_dropped(table: Table, sql_catalog: Catalog) -> None:
    new_binding = binding(table)
    sql_catalog.drop_table("db.t")
    with pytest.raises(
        TableUnavailableError, match=r"db\.t was dropped from catalog test meanwhile; nothing is left to do"
    ):
        bindings.publish(table, new_binding)


def test_work_for_a_table_is_not_bound_to_another_of_its_name(
    table: Table, table_factory: TableFactory, sql_catalog: Catalog
) -> None:
    new_binding = binding(table)
    sql_catalog.drop_table("db.t")
    again = table_factory()
    again.append(make_rows(0, 10))
    base = new_binding.base_snapshot_id

    def index() -> Any:
        return materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, base)

    for work in (lambda: bindings.publish(table, new_binding), lambda: bindings.drop(table, "ann_e"), index):
        with pytest.raises(
            TableUnavailableError, match=r"db\.t was dropped and another table has its name; load it and start"
        ):
            work()
    again.refresh()
    assert len(again.metadata.snapshots) == 1
    assert set(again.metadata.refs) == {"main"}


def test_a_table_replaced_in_the_middle_of_a_commit_gets_nothing(
    table: Table, table_factory: TableFactory, sql_catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_binding = binding(table)
    commit = sql_catalog.commit_table

    def replaced_first(*arguments: Any) -> Any:
        monkeypatch.setattr(sql_catalog, "commit_table", commit)
        sql_catalog.drop_table("db.t")
        table_factory().append(make_rows(0, 10))
        return commit(*arguments)

    monkeypatch.setattr(sql_catalog, "commit_table", replaced_first)
    with pytest.raises(TableUnavailableError):
        bindings.publish(table, new_binding)
    assert set(sql_catalog.load_table("db.t").metadata.refs) == {"main"}


def test_an_index_run_whose_catalog_does_not_answer_reports_that(table: Table, tmp_path: Path) -> None:
    good = index_head(table)
    table.refresh()
    table.append(make_rows(100, 150))
    head, database = table.metadata.current_snapshot_id, tmp_path / "catalog.db"
    table.catalog.close()
    hidden = {path: path.rename(path.with_name(f"hidden-{path.name}")) for path in tmp_path.glob("catalog.db*")}
    database.write_bytes(b"this is no database at all" * 100)
    assert head is not None
    with pytest.raises(CatalogUnavailableError, match="catalog 'test' does not answer"):
        materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, head)
    table.catalog.close()
    for path, where in hidden.items():
        where.rename(path)
    assert_kept(table, good)


@pytest.mark.parametrize("error", [AccessError("the store refuses"), OSError("it refuses"), EOFError("it refuses")])
def test_a_catalog_is_trusted_whose_metadata_file_cannot_be_read(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """The keys that a catalog vends may be for data alone."""

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(table, "catalog", object())
    monkeypatch.setattr(type(table.io), "new_input", refuse)
    assert not hides_snapshots(table)
    assert f"cannot be read: {error}" in caplog.text


def cut_behind_the_header(location: str) -> None:
    """Leave an Avro file without its blocks."""
    path = Path(location.removeprefix("file://"))
    content = path.read_bytes()
    marker = content[-16:]  # ends the header and every block
    path.write_bytes(content[: content.index(marker) + len(marker)])


def lose(path: str, content: bytes | None) -> None:
    file = Path(path.removeprefix("file://"))
    file.unlink()
    if content is not None:
        file.write_bytes(content)


@pytest.mark.parametrize("content", [None, b"", b"Obj\x01 and nothing that follows"])
@pytest.mark.parametrize("part", ["list", "manifest"])
def test_a_snapshot_whose_manifests_are_lost_is_named(table: Table, content: bytes | None, part: str) -> None:
    """A cleaner that knows too little deletes them."""
    index_head(table)
    table.append(make_rows(100, 150))
    snapshot = table.refresh().current_snapshot() or pytest.fail("gone")
    reader, head = open_index(table, DEFINITION, storage=STORAGE), snapshot.snapshot_id
    lose(snapshot.manifest_list if part == "list" else snapshot.manifests(table.io)[0].manifest_path, content)
    for work in (
        lambda: reader.search(queries(1), 3, where="id < 50"),
        lambda: open_index(table, DEFINITION, storage=STORAGE),
        lambda: open_exact(table, "embedding", Metric.L2, storage=STORAGE).search(queries(1)),
        lambda: materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, head),
        lambda: count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish(),
    ):
        with pytest.raises(ManifestError, match=f"the manifests of snapshot {head} cannot be read"):
            work()
    assert len(reader.search(queries(1), 3).rows) == 3


@pytest.mark.parametrize("part", ["list", "manifest"])
def test_manifests_that_were_cut_short_are_not_shorter_ones(table: Table, part: str) -> None:
    """As a copy leaves them that was broken off: readers of whole blocks would see fewer files, or none."""
    table.append(make_rows(100, 150))
    snapshot = table.refresh().current_snapshot() or pytest.fail("gone")
    location = snapshot.manifest_list if part == "list" else snapshot.manifests(table.io)[0].manifest_path
    path = Path(location.removeprefix("file://"))
    content = path.read_bytes()
    assert len(live_files(table, SnapshotId(snapshot.snapshot_id)).files) == 2
    marker = content[-16:]  # ends the header and every block
    header = content.index(marker) + len(marker)
    for length in (*range(header + 1, len(content), 37), len(content) - 17, len(content) - 16, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ManifestError, match="cut short"):
            live_files(table, SnapshotId(snapshot.snapshot_id))


def test_a_manifest_that_was_cut_between_two_blocks_is_not_a_shorter_one(table: Table) -> None:
    """Each of its blocks is whole then. Its entries are counted in the manifest list."""
    reader = open_index(table, DEFINITION, storage=STORAGE)
    snapshot = table.current_snapshot() or pytest.fail("gone")
    (manifest,) = snapshot.manifests(table.io)
    cut_behind_the_header(manifest.manifest_path)
    for work in (
        lambda: live_files(table, SnapshotId(snapshot.snapshot_id)),
        lambda: reader.search(queries(1), 3, where="id < 50"),
    ):
        with pytest.raises(ManifestError, match="has 0 entries, and the manifest list counts 1"):
            work()


def test_entries_of_deleted_files_count_where_a_manifest_was_cut(table: Table) -> None:
    """As many entries may be left as files are live, and all be those of deleted files."""
    snapshot = table.current_snapshot() or pytest.fail("gone")
    (entry,) = snapshot.manifests(table.io)[0].fetch_manifest_entry(table.io)
    location = f"{table.location()}/metadata/mixed.avro"
    with write_manifest(
        2, table.spec(), table.schema(), table.io.new_output(location), snapshot.snapshot_id, "null"
    ) as writer:
        writer.delete(entry)
        writer.existing(entry)
    manifest = PlannedManifest(*writer.to_manifest_file()._data)
    assert len(manifest.fetch_manifest_entry(table.io)) == 1
    path = Path(location.removeprefix("file://"))
    content = path.read_bytes()
    marker = content[-16:]
    header = content.index(marker) + len(marker)
    path.write_bytes(content[: content.index(marker, header) + len(marker)])
    with pytest.raises(ValueError, match="has 1 entries, and the manifest list counts 2"):
        manifest.fetch_manifest_entry(table.io)


def test_a_manifest_list_that_was_cut_behind_its_header_is_not_that_of_an_empty_table(table: Table) -> None:
    """The snapshot's summary counts its data files."""
    reader = open_index(table, DEFINITION, storage=STORAGE)
    snapshot = table.current_snapshot() or pytest.fail("gone")
    cut_behind_the_header(snapshot.manifest_list)
    for work in (
        lambda: live_files(table, SnapshotId(snapshot.snapshot_id)),
        lambda: reader.search(queries(1), 3, where="id < 50"),
        lambda: count_theta_sketches(
            RunContext(table, STORAGE, LocalRunner(1)), SnapshotId(snapshot.snapshot_id)
        ).publish(),
    ):
        with pytest.raises(ManifestError, match="has no manifests, and the snapshot counts 1 data files"):
            work()


def test_files_that_a_commit_has_left_in_its_manifest_are_among_those_that_the_list_has(
    table: Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for number, path in enumerate(paths):
        pq.write_table(make_rows(1_000 * number + 1_000, 1_000 * number + 1_010), path)
    table.add_files(paths)
    table.delete("id >= 2000")
    head = table.refresh().metadata.current_snapshot_id or 0
    assert any(manifest.existing_files_count for manifest in find_snapshot(table, SnapshotId(head)).manifests(table.io))
    assert len(live_files(table, SnapshotId(head)).files) == 2
    assert not caplog.records


def test_a_manifest_list_that_lacks_data_files_is_warned_of(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """It may have been cut between two blocks; or the engine that wrote its snapshot miscounts."""
    snapshot_id = SnapshotId(table.metadata.current_snapshot_id or 0)
    assert len(live_files(table, snapshot_id).files) == 1
    assert not caplog.records
    summary = find_snapshot(table, snapshot_id).summary or pytest.fail("gone")
    summary["total-data-files"] = "3"
    assert len(live_files(table, snapshot_id).files) == 1
    assert "lists 1 data files, and its snapshot counts 3: it may be cut short" in caplog.text


@pytest.mark.parametrize(("place", "more"), [("added_files_count", 1), ("manifest_length", 100)])
def test_a_list_that_is_wrong_about_a_whole_manifest_is_no_error(
    table: Table, place: str, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other engines read such tables. A manifest that was cut has fewer entries and fewer bytes than its list says."""

    def miscounted(*arguments: Any) -> Any:
        listed = manifests.read_manifests(*arguments)
        for manifest in listed:
            manifest[manifests._LIST_FIELD_PLACES[place]] += more
        return listed

    monkeypatch.setattr("icepuffin.ops.table.live_files.read_manifests", miscounted)
    assert len(live_files(table, SnapshotId(table.metadata.current_snapshot_id or 0)).files) == 1


def test_sketches_are_counted_where_the_manifests_of_an_ancestor_are_lost(table: Table) -> None:
    ancestor = table.refresh().current_snapshot() or pytest.fail("gone")
    count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), ancestor.snapshot_id).publish()
    for name in [name for name in table.refresh().metadata.refs if name != "main"]:
        table.manage_snapshots().remove_tag(name).commit()
    derived = [item.snapshot_id for item in table.metadata.snapshots if item.snapshot_id != ancestor.snapshot_id]
    table.maintenance.expire_snapshots().by_ids(derived).commit()
    table.append(make_rows(100, 150))
    lose(ancestor.manifest_list, None)
    head = table.refresh().metadata.current_snapshot_id
    report = count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), SnapshotId(head or 0)).publish()
    assert report.ndv["id"] == 150
