"""Where a store takes no names but Iceberg's own under metadata/, icepuffin's files have a folder of their own."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.catalog_trial import require_bindable
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.binding.expiration import expire_derived
from icepuffin.ops.binding.files_folder import FOLDER_PROPERTY, FilesFolder, remember_folder
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.index.definitions.ddl import create_index
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.versions.exported_metadata import export_metadata
from icepuffin.ops.model import SnapshotId, StorageConfig
from icepuffin.ops.storage import RefusedError, open_storage
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import ROWS, STORAGE, make_rows
from tests.interop.lakes import open_lake
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head
from tests.services.altering import altered_line

ICEBERG_NAMES = re.compile(r"/(metadata/[^/]+\.(avro|stats|metadata\.json)|data/.+\.parquet)$")
"""Names that a table bucket of SeaweedFS takes in the two folders, by weed/s3api/s3tables/iceberg_layout.go at
commit cc8364a03ebf5cf9f8eab3315ded2000cd07fff6; in a folder at the root with a hidden name, it takes any"""


class PickyStore:
    """What every local store refuses: all names but Iceberg's own, and those in `folders` at a table's root."""

    def __init__(self) -> None:
        self.folders = [FilesFolder.OWN.value]
        self._open_output = LocalStorage.open_output

    def open_output(self, path: str, *, durable: bool = True) -> AbstractContextManager[Any]:
        in_folder = any(f"/{folder}/" in path and f"/metadata/{folder}/" not in path for folder in self.folders)
        if not in_folder and not ICEBERG_NAMES.search(path):
            raise RefusedError(f"{path}: the store refuses access (Forbidden)")
        return self._open_output(LocalStorage(), path, durable=durable)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> PickyStore:
    picky = PickyStore()
    monkeypatch.setattr(
        LocalStorage, "open_output", lambda _, path, *, durable=True: picky.open_output(path, durable=durable)
    )
    return picky


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    table = table_factory(**{FOLDER_PROPERTY: FilesFolder.OWN.value})
    table.append(make_rows(0, 60))
    return table


def files(table: Table) -> Iterator[str]:
    """Files of the table, relative to its location."""
    root = Path(table.location().removeprefix("file://"))
    return (str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_staged_objects_have_a_folder_of_their_own_below_metadata() -> None:
    assert [folder.staging for folder in FilesFolder] == ["metadata/_icepuffin", "_icepuffin"]


@pytest.mark.usefixtures("store")
def test_every_file_of_a_table_with_its_own_folder_lies_there(table: Table) -> None:
    first = index_head(table)
    table.append(make_rows(60, 90))
    second = index_head(table)
    head = second.snapshot_id
    sketches = count_theta_sketches(RunContext(table, STORAGE, LocalRunner(1)), head).publish()
    assert answer_with_recall(table)[1] >= 0.96
    (version,) = (item for item in index_versions(table, "e") if item.base_snapshot_id == head)
    exported, content = export_metadata(table, DEFINITION, version, STORAGE)
    assert content["location"] == f"{table.location()}/_icepuffin"
    statistics = find_statistics(table, head)
    assert statistics is not None
    named = {first.puffin_path, second.puffin_path, sketches.file_sketches_path, statistics.statistics_path, exported}
    assert {f"{table.location()}/{name}" for name in files(table) if name.startswith("_icepuffin")} == named
    assert all(name.endswith((".avro", ".json")) for name in files(table) if name.startswith("metadata/"))


def test_garbage_in_a_folder_of_its_own_goes_and_what_is_referenced_stays(table: Table) -> None:
    first = index_head(table)
    table.append(make_rows(60, 90))
    second = index_head(table)
    root = Path(table.location().removeprefix("file://"))
    staged = root / "_icepuffin/e/abc/shard-0.dann"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"left behind")
    assert expire_derived(table, [SnapshotId(first.index_snapshot_id or 0)], ())
    deleted = collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted
    assert {f"file://{staged}", first.puffin_path} <= set(deleted)
    assert f"{table.location()}/{next(name for name in files(table) if '_icepuffin' in name)}" == second.puffin_path
    assert answer_with_recall(table)[1] >= 0.96


@pytest.mark.parametrize("folder", FilesFolder)
def test_garbage_goes_from_both_folders_and_what_is_not_ours_from_our_own_alone(
    table_factory: Callable[..., Table], folder: FilesFolder
) -> None:
    """A table may have had the other folder before, or a folder of the same name from somebody else."""
    table = table_factory(**{FOLDER_PROPERTY: folder.value})
    table.append(make_rows(0, 10))
    root = Path(table.location().removeprefix("file://"))
    (root / "_icepuffin").mkdir()
    ours = {root / place / "ann-e-snap-1-x.puffin" for place in FilesFolder}
    notes = {place: root / place / "notes.txt" for place in FilesFolder}
    for path in (*ours, *notes.values()):
        path.write_bytes(b"left behind")
    expected = ours | ({notes[folder]} if folder is FilesFolder.OWN else set())
    assert set(collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted) == {f"file://{p}" for p in expected}
    assert {*ours, *notes.values()} - {root / name for name in files(table)} == expected


@pytest.mark.services
def test_a_store_is_tried_before_any_work_and_what_it_takes_is_remembered(
    rest_uri: str, tmp_path: Path, store: PickyStore
) -> None:
    with altered_line(rest_uri) as line, open_lake(f"picky_{tmp_path.name}", line.uri, tmp_path) as lake:
        table = lake.create("t")
        table.append(make_rows(0, 60))
        before, store.folders = table.metadata_location, []
        with pytest.raises(
            RefusedError, match=r"t was not changed: the store takes no file of icepuffin .* use another store$"
        ):
            create_index(table, DEFINITION)
        assert table.refresh().metadata_location == before
        assert lake.catalog.list_tables(lake.namespace) == [(lake.namespace, "t")]

        store.folders = [FilesFolder.OWN.value]
        create_index(table, DEFINITION)
        assert table.refresh().properties[FOLDER_PROPERTY] == "_icepuffin"
        assert [entry.metadata_file for entry in table.metadata.metadata_log][-1] == before, "one commit"
        other = lake.create("u")
        other.append(make_rows(0, 60))
        assert (index_head(other).puffin_path or "").startswith(f"{other.location()}/_icepuffin/ann-e-snap-")
        assert other.properties[FOLDER_PROPERTY] == "_icepuffin"
        third = lake.create("v")
        third.append(make_rows(0, 10))
        head = data_snapshots(third)[-1].snapshot_id
        sketches = count_theta_sketches(RunContext(third, STORAGE, LocalRunner(1)), head).publish()
        assert (sketches.statistics_path or "").startswith(f"{third.location()}/_icepuffin/{head}-")
        assert len([name for name in line.created if name.startswith("icepuffin_trial_")]) == 2


@pytest.mark.services
def test_a_bucket_is_tried_though_another_one_of_the_catalog_was(
    rest_uri: str, s3: StorageConfig, tmp_path: Path, store: PickyStore
) -> None:
    """And a folder that the properties of a table name stays, whatever the trial of another table showed."""
    assert store.folders == ["_icepuffin"]
    with open_lake(f"buckets_{tmp_path.name}", rest_uri, tmp_path, s3=s3) as lake:
        local = lake.catalog.create_table(f"{lake.namespace}.t", ROWS, f"file://{tmp_path}/t")
        in_bucket, moved = lake.create("u"), lake.create("v", **{FOLDER_PROPERTY: "_icepuffin"})
        found = [require_bindable(table) for table in (local, in_bucket, moved)]
        assert found == [FilesFolder.OWN, FilesFolder.METADATA, FilesFolder.OWN]
        assert not [item for item in open_storage(lake.root, lake.storage).list(lake.root) if "trial" in item.path]


@pytest.mark.services
def test_a_user_who_may_not_delete_publishes(
    rest_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_: LocalStorage, path: str) -> None:
        raise RefusedError(f"{path}: the store refuses access (AccessDenied)")

    with open_lake(f"kept_{tmp_path.name}", rest_uri, tmp_path) as lake, monkeypatch.context() as patch:
        table = lake.create("t")
        table.append(make_rows(0, 60))
        patch.setattr(LocalStorage, "delete", refused)
        index_head(table)
        left = r"a trial of the store left \S+/metadata/ann-trial-\w+\.puffin and \S+/_icepuffin/trial-\w+/\S+\.bin, as"
        assert re.search(left, caplog.text)
        assert caplog.text.count("by a user with the right to delete") == 2, "the trial and the run"
        assert table.properties.get(FOLDER_PROPERTY) is None
        assert answer_with_recall(table)[1] >= 0.96
        patch.undo()
        staged = [name for name in files(table) if "/_icepuffin/" in name]
        deleted = collect_garbage(table, storage=STORAGE, grace=timedelta(0)).deleted
        assert staged
        assert {f"{table.location()}/{name}" for name in staged} <= set(deleted)


def test_a_folder_that_is_not_known_is_named(table_factory: Callable[..., Table]) -> None:
    table = table_factory(**{FOLDER_PROPERTY: "../elsewhere"})
    table.append(make_rows(0, 60))
    with pytest.raises(BindingError, match=r"folder is '\.\./elsewhere'; set it to metadata or _icepuffin"):
        index_head(table)


def test_a_folder_is_written_into_the_properties_once(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_factory(**{"commit.retry.num-retries": "1", "commit.retry.max-wait-ms": "1"})
    stale = table.catalog.load_table("db.t")
    refusals = [CommitFailedException("somebody was faster")]
    through = table.catalog.commit_table

    def commit_table(*arguments: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return through(*arguments)

    monkeypatch.setattr(table.catalog, "commit_table", commit_table)
    remember_folder(table, FilesFolder.OWN)
    assert table.properties[FOLDER_PROPERTY] == "_icepuffin"
    remember_folder(stale, FilesFolder.OWN)
    assert stale.metadata_location == table.metadata_location
    refusals += [CommitFailedException("somebody was faster")] * 2
    with pytest.raises(BindingError, match="could not be set to metadata in 2 attempts"):
        remember_folder(table, FilesFolder.METADATA)
