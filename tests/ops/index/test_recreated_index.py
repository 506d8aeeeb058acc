"""An index that is dropped and made again, while caches and old files remember the one before."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.cache import CacheSettings, use_settings
from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from icepuffin.puffin.blobs.routing_blob import AddressesEntry
from tests.conftest import STORAGE, make_rows, vectors_of
from tests.ops.index.comparison import DEFINITION, index_head

TableFactory = Callable[..., Table]
ROWS = 300


@pytest.fixture(autouse=True)
def one_cache_for_all() -> None:
    """As a process that lives on has it."""
    use_settings(CacheSettings(None, 0, 1 << 30))


def forget_the_index(table: Table) -> None:
    """Drop it, expire its versions, and sweep its files."""
    drop_index(table, "e")
    gone = [item.index_snapshot_id for item in index_versions(table.refresh(), "e")]
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    collect_garbage(table.refresh(), storage=STORAGE, grace=timedelta(0))


def index(table: Table, snapshot_id: int) -> str:
    path = materialize_index(RunContext(table.refresh(), STORAGE, LocalRunner(1)), DEFINITION, snapshot_id).puffin_path
    assert path is not None
    return path


def wrong_answers(table: Table, snapshot_id: int) -> int:
    """Of all rows, each searched for by its own vector."""
    ids = np.sort(np.asarray(table.scan(snapshot_id=snapshot_id, selected_fields=("id",)).to_arrow()["id"]))
    result = open_index(table.refresh(), DEFINITION, snapshot=snapshot_id, storage=STORAGE).search(
        vectors_of(ids), 1, columns=["id"]
    )
    return int((np.asarray(result.rows["id"]) != ids).sum())


def test_other_properties_stay_where_an_index_is_dropped(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 3))
    for name in ("e", "e2"):
        create_index(table, replace(DEFINITION, name=name))
    table.transaction().set_properties({"owner": "somebody"}).commit_transaction()
    before = dict(table.refresh().properties)
    drop_index(table, "e")
    after = table.refresh().properties
    assert after == {key: value for key, value in before.items() if key in after}
    assert {"owner"} < after.keys() < before.keys()
    assert not [key for key in after if ".e." in key]


def test_no_version_is_answered_from_the_cached_shards_of_one_that_was_deleted(table_factory: TableFactory) -> None:
    table = table_factory()
    snapshots = []
    for rows in (make_rows(0, ROWS), make_rows(0, ROWS)):
        table.overwrite(rows) if snapshots else table.append(rows)
        snapshots.append(table.refresh().metadata.current_snapshot_id or 0)
    table.overwrite(table.scan().to_arrow().take(np.arange(ROWS)[::-1]))
    compacted = table.refresh().metadata.current_snapshot_id or 0
    paths = [index(table, snapshots[0]), index(table, compacted)]
    assert wrong_answers(table, compacted) == 0
    forget_the_index(table)
    paths += [index(table, snapshots[1]), index(table, compacted)]
    assert wrong_answers(table, compacted) == 0
    assert len(set(paths)) == 4, "a name comes but once"


@pytest.mark.parametrize("vectors", ["f32", "f16", "none"])
@pytest.mark.parametrize("rows", [ROWS, ROWS + 1])
def test_a_shard_whose_rows_moved_has_the_sha256_of_its_bytes(
    table_factory: TableFactory, vectors: str, rows: int
) -> None:
    """Whatever lies between its sections."""
    table = table_factory()
    definition = replace(DEFINITION, vectors=vectors)
    table.append(make_rows(0, rows))
    index_head(table, definition)
    table.overwrite(table.scan().to_arrow())
    assert index_head(table, definition).remapped == rows
    opened = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
    for shard, entry in zip(opened.shards, opened.routing.shards, strict=True):
        part, moved = shard.blob, shard.addresses
        data = open_storage(part.path, STORAGE).read_range(part.path, part.offset, part.length)
        assert hashlib.sha256(data).digest() == entry.sha256
        assert moved is not None
        assert entry.addresses == AddressesEntry(moved.blob.length, moved.sha256)
