"""Tables at the moment before a materialisation, each in a folder that can be put back as it was."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions, sketch_versions
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.model import StorageConfig
from icepuffin.ops.storage import normalize, open_storage
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext, TaskRunner
from icepuffin.ops.theta import sketch_packs
from icepuffin.ops.theta.theta_materialization import count_theta_sketches
from tests.conftest import ROWS, STORAGE, make_rows

FULL = os.environ.get("ICEPUFFIN_FULL_FAULTS") == "1"
"""Whether each fault is tried each time that its step or call comes"""
DEFINITION = IndexDefinition(
    name="e", column="embedding", metric="l2", max_degree=16, search_list=40, shards=3, target_recall=0.8
)
_FILE_ROWS = 80
_SKETCH_PACK_BYTES = 1_000
_PACK_BYTES = "pack-bytes"
"""File with the bytes that are worth a pack: in a process that is to be killed, too"""


@dataclass(frozen=True)
class Outcome:
    """What a finished run has published."""

    index: bytes
    """The version's file and its packs"""
    statistics: bytes


@dataclass(frozen=True)
class Stage:
    """Table `db.t` in `folder/live`; `folder/pristine` is how it was before anything was tried."""

    folder: Path
    bucket: str = ""
    """URI under which an S3 server has the folder; empty where the table lies on the disk"""
    storage: StorageConfig = STORAGE

    @property
    def warehouse(self) -> str:
        return f"{self.bucket or f'file://{self.folder}'}/live"

    def restore(self) -> None:
        """As if nothing had happened since."""
        shutil.rmtree(self.folder / "live")
        shutil.copytree(self.folder / "pristine", self.folder / "live")

    def catalog(self) -> Catalog:
        uri = f"sqlite:///{self.folder}/live/catalog.db"
        return open_catalog("test", {"type": "sql", "uri": uri, "warehouse": self.warehouse, **self.storage.properties})

    def load(self) -> Table:
        return self.catalog().load_table("db.t")

    def sketch(self, table: Table) -> None:
        """The sketches of the head alone."""
        head = table.metadata.current_snapshot_id
        assert head is not None
        count_theta_sketches(RunContext(table, self.storage, LocalRunner(1)), head).publish()

    def work(self, runner: TaskRunner | None = None) -> Outcome:
        """Sketches and index of the head, as a refresh makes them."""
        table, runner = self.load(), runner or LocalRunner(1)
        head = table.metadata.current_snapshot_id
        if head is None:
            raise ValueError("the table has no snapshot")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sketch_packs, "FEW_FILES", 0)  # so that each run binds file sketches
            if (self.folder / _PACK_BYTES).exists():
                patch.setattr(index_packs, "PACK_BYTES", int((self.folder / _PACK_BYTES).read_text(encoding="ascii")))
                patch.setattr(sketch_packs, "PACK_BYTES", _SKETCH_PACK_BYTES)
            count_theta_sketches(RunContext(table, self.storage, runner), head).publish()
            report = materialize_index(RunContext(table, self.storage, runner), DEFINITION, head)
        slot = find_statistics(table.refresh(), head)
        if report.puffin_path is None or slot is None:
            raise ValueError("nothing was published")
        version = next(
            item for item in index_versions(table, "e") if item.index_snapshot_id == report.index_snapshot_id
        )
        index = b"".join(map(self._content, (report.puffin_path, *(pack.path for pack in version.packs))))
        return Outcome(index, self._content(slot.statistics_path))

    def file_sketches(self) -> list[bytes]:
        """The file sketches of the head, and their packs."""
        table = self.load()
        versions = sketch_versions(table)
        bound = [item for item in versions if item.base_snapshot_id == table.metadata.current_snapshot_id]
        return [self._content(path) for item in bound for path in (item.puffin_path, *(p.path for p in item.packs))]

    def _content(self, path: str) -> bytes:
        store = open_storage(path, self.storage)
        return store.read_range(path, 0, store.size(path))

    def files(self, folder: str = "live") -> set[str]:
        """Everything in the warehouse, relative."""
        root = self.folder / folder
        found = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("catalog.db"))
        return {str(path.relative_to(root)) for path in found}


def read(table: Table) -> tuple[list[int | None], list[int]]:
    """(main's history, ids of its rows)."""
    history = [entry.snapshot_id for entry in table.metadata.snapshot_log]
    return [table.metadata.current_snapshot_id, *history], sorted(table.scan().to_arrow()["id"].to_pylist())


def _is_ours(name: str) -> bool:
    file = Path(name).name
    return (
        "_icepuffin" in name
        or ".stats" in file
        or file.startswith(("ann-", ".ann-", "theta-", ".theta-", "icepuffin-snap-"))
    )


def assert_sound(stage: Stage) -> None:
    """The version of the head has all rows, and finds them."""
    table = stage.load()
    head = table.metadata.current_snapshot_id
    version = [item for item in index_versions(table, "e") if item.base_snapshot_id == head][-1]
    integrity = check_integrity(RunContext(table, stage.storage), version)
    assert not integrity.faults, integrity.faults
    assert integrity.rows == len(read(table)[1])


def assert_named_files_stay(stage: Stage) -> set[str]:
    """All that the table's snapshots and statistics name. Returns where it lies."""
    metadata = stage.load().metadata
    named = {normalize(item.manifest_list) for item in metadata.snapshots}
    named |= {normalize(item.statistics_path) for item in metadata.statistics}
    assert named <= {_place(stage, name) for name in stage.files()}, "something that is named is gone"
    return named


def _place(stage: Stage, name: str) -> str:
    return normalize(f"{stage.warehouse}/{name}")


def assert_swept_and_nothing_else(stage: Stage) -> None:
    """`gc` keeps what is young; of old files it takes those of ours that nothing names, and no other."""
    table, before = stage.load(), stage.files()
    assert collect_garbage(table, storage=stage.storage).deleted == ()
    collect_garbage(table, storage=stage.storage, grace=timedelta(0))
    remaining = stage.files()
    ours = {_place(stage, name) for name in remaining if _is_ours(name)}
    assert ours <= assert_named_files_stay(stage), "something of ours was left"
    assert all(_is_ours(name) for name in before - remaining), "something that is not ours is gone"
    assert stage.files("pristine") <= remaining, "something that was there before is gone"


def _append(table: Table) -> None:
    for start in range(0, 3 * _FILE_ROWS, _FILE_ROWS):
        table.append(make_rows(start, start + _FILE_ROWS))


def _first_file(table: Table) -> str:
    return str(min(table.refresh().inspect.files()["file_path"].to_pylist()))


def _deleted_and_appended(table: Table, stage: Stage) -> None:
    stage.work()
    append_position_deletes(table.refresh(), {_first_file(table): np.arange(0, 20, dtype=np.int64)})
    table.refresh().append(make_rows(3 * _FILE_ROWS, 3 * _FILE_ROWS + 30))


def _rewritten(table: Table, stage: Stage) -> None:
    stage.work()
    table.refresh().overwrite(table.scan().to_arrow())


def _full_of_tombstones(table: Table, stage: Stage) -> None:
    stage.work()
    append_position_deletes(table.refresh(), {_first_file(table): np.arange(0, _FILE_ROWS - 2, dtype=np.int64)})


SCENARIOS: dict[str, Callable[[Table, Stage], None] | None] = {
    "a first build": None,
    "deletes and an append": _deleted_and_appended,
    "a compaction": _rewritten,
    "shards full of tombstones": _full_of_tombstones,
    "a first build of a pack": None,
    "an append that shares a pack": _deleted_and_appended,
    "a compaction that shares a pack": _rewritten,
}


def make_stage(folder: Path, scenario: str, *, bucket: str = "", storage: StorageConfig = STORAGE) -> Stage:
    stage = Stage(folder, bucket, storage)
    (folder / "live").mkdir(parents=True)
    if "pack" in scenario:
        (folder / _PACK_BYTES).write_text("10000", encoding="ascii")
    catalog = stage.catalog()
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", ROWS, properties={"format-version": "2"})
    _append(table)
    change = SCENARIOS[scenario]
    if change is not None:
        change(table, stage)
    catalog.engine.dispose()  # type: ignore[attr-defined]  # so that the write-ahead log is in the file
    shutil.copytree(folder / "live", folder / "pristine")
    return stage
