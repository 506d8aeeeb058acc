"""Machines whose clock is behind that of the last writer: Java reads no table whose time goes back by a minute."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import Table

from icepuffin.ops.binding.bindings import drop, publish
from icepuffin.ops.binding.commit import require_clock
from icepuffin.ops.binding.derived_snapshots import NewPack
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.index.definitions.ddl import create_index, drop_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.storage.local_storage import to_path
from tests.conftest import make_rows
from tests.ops.catalog.bindings import binding, register_statistics

MINUTE = 60_000
DEFINITION = IndexDefinition(name="e", column="embedding")


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    made = table_factory()
    made.append(make_rows(0, 10))
    return made


def written_ahead(table: Table, milliseconds: int) -> Path:
    """The table as of a writer whose clock is ahead of this machine's; its metadata file."""
    path = to_path(table.refresh().metadata_location)
    document = json.loads(path.read_text(encoding="utf-8"))
    document["last-updated-ms"] += milliseconds
    for entry in (*document["snapshots"], *document["snapshot-log"]):
        entry["timestamp-ms"] += milliseconds
    path.write_text(json.dumps(document), encoding="utf-8")
    table.refresh()
    return path


def times(table: Table) -> list[int]:
    """Times that must ascend, within a minute: those of the metadata files, and of the last change."""
    metadata = table.refresh().metadata
    assert metadata.last_updated_ms >= metadata.snapshot_log[-1].timestamp_ms - MINUTE
    return [*(entry.timestamp_ms for entry in metadata.metadata_log), metadata.last_updated_ms]


def test_a_version_and_its_pack_come_after_the_last_change_of_the_table(table: Table) -> None:
    written_ahead(table, 10 * MINUTE)
    changed = table.metadata.last_updated_ms
    pack = NewPack(f"{table.location()}/metadata/ann-e-pack.puffin", 4, 2)
    version = publish(table, replace(binding(table), new_packs=(pack,)))
    assert changed < version.timestamp_ms < changed + MINUTE
    assert times(table) == sorted(times(table))
    assert len({snapshot.timestamp_ms for snapshot in table.metadata.snapshots[1:]}) == 1


@pytest.mark.parametrize("work", ["statistics", "drop", "create_index", "drop_index"])
def test_a_change_that_would_set_the_time_back_is_refused(work: str, table: Table) -> None:
    create_index(table, DEFINITION)
    publish(table, binding(table))
    head = table.metadata.snapshots[0].snapshot_id
    written_ahead(table, 3 * MINUTE // 2)
    before = table.metadata_location
    works: dict[str, Callable[[], object]] = {
        "statistics": lambda: register_statistics(
            table, head, path="file:///x.stats", file_size=10, footer_size=4, blobs=[], over=None
        ),
        "drop": lambda: drop(table, "ann_e"),
        "create_index": lambda: create_index(table, replace(DEFINITION, name="f")),
        "drop_index": lambda: drop_index(table, "e"),
    }
    with pytest.raises(
        BindingError, match=r"db\.t: the clock of this machine is [6-9]\d s behind .* Set the clock"
    ) as refused:
        works[work]()
    assert refused.value.retryable
    assert table.refresh().metadata_location == before


def test_a_catalog_that_writes_the_metadata_itself_stamps_a_change_by_its_own_clock(table: Table) -> None:
    written_ahead(table, 10 * MINUTE)
    table.catalog = NoopCatalog("rest")
    require_clock(table)


def test_clocks_that_differ_by_less_than_a_minute_do_no_harm(table: Table) -> None:
    written_ahead(table, MINUTE // 2)
    head = table.metadata.snapshots[0].snapshot_id
    path = "file:///x.stats"
    assert register_statistics(table, head, path=path, file_size=10, footer_size=4, blobs=[], over=None)
    statistics = find_statistics(table, head)
    assert statistics is not None
    assert statistics.statistics_path == path
    times(table)
