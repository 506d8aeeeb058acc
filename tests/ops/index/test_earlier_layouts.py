"""A table whose index has a layout that was given up: refused by readers, built anew by the next refresh."""

import hashlib
import json
from collections.abc import Callable

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions, tagged_version
from icepuffin.ops.index import Action, create_index, drop_index
from icepuffin.ops.index.definitions.retention_policy import RetentionPolicy
from icepuffin.ops.index.planning import version_plan
from icepuffin.ops.index.planning.version_plan import plan_version
from icepuffin.ops.index.verify.integrity import check_integrity, remedy
from icepuffin.ops.index.versions import index_packs, version_format, version_reader
from icepuffin.ops.index.versions.version_format import FORMAT_VERSION, build_id_of, given_up, seed_of
from icepuffin.ops.runs.maintenance import collect_table_garbage
from icepuffin.ops.search import Coverage, IndexUnavailableError, StalePolicy, open_index
from icepuffin.ops.sql import SqlSession
from icepuffin.ops.storage import open_storage
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.puffin.blobs import (
    addresses_blob,
    attributes_blob,
    centroid_blob,
    included_columns_blob,
    routing_blob,
    shard_header,
)
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head


@pytest.fixture
def table(table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch) -> Table:
    """Two snapshots with versions of the layout before, which share a pack; their build ids name no format."""
    new_table = table_factory()
    monkeypatch.setattr(index_packs, "PACK_BYTES", 1)
    create_index(new_table, DEFINITION)
    with monkeypatch.context() as earlier:
        earlier.setattr(routing_blob, "VERSION", routing_blob.VERSION - 1)
        earlier.setattr(version_reader, "given_up", lambda _: "")
        earlier.setattr(
            version_plan, "build_id_of", lambda identity: hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        )
        for first, last in ((0, 200), (200, 210)):
            new_table.append(make_rows(first, last))
            index_head(new_table)
    assert index_versions(new_table.refresh(), "e")[-1].packs
    return new_table


def test_search_and_sql_are_refused_with_the_command_that_mends_the_index(table: Table, sql_catalog: Catalog) -> None:
    for stale in StalePolicy:
        with pytest.raises(IndexUnavailableError, match=r"without a format.*: its layout was given up.*refresh"):
            open_index(table, DEFINITION, storage=STORAGE, stale=stale)
    vector = ", ".join(f"{value:.6f}" for value in queries(1)[0])
    command = f"icepuffin refresh db.t --index e --snapshot {table.metadata.current_snapshot_id}"
    with pytest.raises(IndexUnavailableError, match=f"{command}$"):
        SqlSession.on(sql_catalog, storage=STORAGE).sql(
            f"SELECT id, l2_distance(embedding, ARRAY({vector})) AS d FROM db.t ORDER BY d LIMIT 5"
        )
    table.append(make_rows(210, 220))
    with pytest.raises(IndexUnavailableError, match="its layout was given up"):
        open_index(table, DEFINITION, storage=STORAGE)  # whose versions are all of other snapshots


@pytest.mark.parametrize("appended", [0, 10])
def test_the_next_refresh_builds_anew_and_says_why(table: Table, appended: int) -> None:
    if appended:
        table.append(make_rows(210, 210 + appended))
    report = index_head(table)
    assert report.action is Action.BUILT
    assert "version without a format in its build id: its layout was given up" in report.reason
    found, recall = answer_with_recall(table)
    assert (found.coverage, found.warnings, recall >= 0.96) == (Coverage.EXACT_VERSION, (), True)
    assert index_head(table).action is Action.REUSED
    table.append(make_rows(300, 310))
    assert index_head(table).action is Action.REFRESHED


def test_a_run_takes_nothing_that_was_staged_for_another_layout(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    head = table.metadata.current_snapshot_id or 0
    now = plan_version(RunContext(table, STORAGE), DEFINITION, head).build_id
    assert plan_version(RunContext(table, STORAGE), DEFINITION, head).build_id == now
    monkeypatch.setattr(version_format, "FORMAT_VERSION", version_format.FORMAT_VERSION - 1)
    assert plan_version(RunContext(table, STORAGE), DEFINITION, head).build_id != now


def test_the_check_of_integrity_names_the_refresh(table: Table) -> None:
    version = tagged_version(table, "e") or pytest.fail("gone")
    checked = check_integrity(RunContext(table, STORAGE), version)
    assert "its layout was given up" in checked.faults[0]
    assert "icepuffin refresh db.t --index e" in remedy("db.t", "e", version, checked)


@pytest.mark.parametrize("built_anew", [False, True])
def test_nothing_of_it_stays_once_the_index_is_dropped(table: Table, built_anew: bool) -> None:
    if built_anew:
        index_head(table)
    drop_index(table.refresh(), "e")
    collect_table_garbage(
        table.refresh(), storage=STORAGE, retentions={}, default=RetentionPolicy(), grace_hours=0, dry_run=False
    )
    table.refresh()
    assert set(table.metadata.refs) == {"main"}
    assert [snapshot.parent_snapshot_id is None for snapshot in table.metadata.snapshots] == [True, False]
    folder = f"{table.location()}/metadata"
    assert not [item.path for item in open_storage(folder, STORAGE).list(folder) if "ann-e" in item.path]
    assert table.scan().to_arrow().num_rows == 210


@pytest.mark.parametrize("build_id", ["f791284f" * 8, "1-ab", "2-ab", "", "-ab", "-3-ab", "x-ab", "٣-ab", "9" * 64])
def test_a_build_id_tells_whether_the_layout_was_given_up(build_id: str) -> None:
    assert "its layout was given up, this release reads 3" in given_up(build_id)
    assert given_up(build_id_of({"a": 1})) == given_up(f"{FORMAT_VERSION + 1}-ab") == "", "nor that of a later release"


def test_build_ids_of_one_identity_differ_by_the_format_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = build_id_of({"a": 1})
    assert build_id_of({"a": 1}) == now != build_id_of({"a": 2})
    assert 0 <= seed_of(now) < 2**128
    monkeypatch.setattr(version_format, "FORMAT_VERSION", FORMAT_VERSION + 1)
    assert build_id_of({"a": 1}).partition("-")[2] != now.partition("-")[2]
    assert given_up(now) == "version of format 3: its layout was given up, this release reads 4"


def test_the_format_is_raised_with_the_version_of_any_blob() -> None:
    """By the format alone a table's metadata tells that a version cannot be read."""
    blobs = (routing_blob, shard_header, centroid_blob, addresses_blob, attributes_blob, included_columns_blob)
    assert (FORMAT_VERSION, [blob.VERSION for blob in blobs]) == (3, [6, 5, 1, 1, 1, 1])
