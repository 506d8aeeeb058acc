"""The law of a good guest on Iceberg's own REST server: no write fails because of a version, or is tried again."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate, TableUpdate

from icepuffin.ops.binding import bindings
from icepuffin.ops.binding.manifest_lists import new_snapshot_id, write_empty_manifest_list
from tests.conftest import make_rows
from tests.interop.lakes import Lake, open_lake
from tests.ops.catalog.bindings import binding
from tests.ops.catalog.test_writers import property_changes, publications, upgrade
from tests.ops.catalog.writers import WRITES, assert_numbers, commits_of_writers, counted_commits, refresh
from tests.services.forwarding import Answer, Request, forward, serving

pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("ignore:Delete operation did not match:UserWarning")]
OpenLake = Callable[[], Lake]


@pytest.fixture
def lakes(rest_uri: str, tmp_path: Path) -> Iterator[OpenLake]:
    opened = []

    def open_one() -> Lake:
        opened.append(open_lake(f"writers_{tmp_path.name}", rest_uri, tmp_path))
        return opened[-1].__enter__()

    yield open_one
    for context in opened:
        context.__exit__(None, None, None)


@pytest.mark.parametrize("version", ["1", "2", "1, then 2"])
def test_writers_that_loaded_their_table_before_a_version_write_as_if_it_was_none(
    lakes: OpenLake, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    lake, writers_catalog = lakes(), lakes().catalog
    indexed, control = (lake.create(name, **{"format-version": version[0]}) for name in ("t", "control"))
    for table in (indexed, control):
        table.append(make_rows(0, 60))
    between = refresh if version == "2" else publications()
    writes = {"append first": WRITES["append"], "upgrade": upgrade, **WRITES} if "then" in version else WRITES
    commits = commits_of_writers(indexed, writers_catalog, monkeypatch, between, writes)
    assert commits == commits_of_writers(control, writers_catalog, monkeypatch, property_changes(4), writes)
    assert commits == dict.fromkeys(writes, 1)
    rows = [sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) for table in (indexed, control)]
    assert rows[0] == rows[1]


def write_by_hand(table: Table, *, is_staged: bool = False) -> None:
    """A commit of rows to a table of format version 3, which PyIceberg does not make, as the handle's state has it."""
    metadata: Any = table.metadata
    head, snapshot_id, number = metadata.current_snapshot_id, new_snapshot_id(table), metadata.next_sequence_number()
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=head,
        sequence_number=number,
        manifest_list=write_empty_manifest_list(table, snapshot_id, number),
        summary=Summary(Operation.APPEND),
        schema_id=metadata.current_schema_id,
        first_row_id=metadata.next_row_id or 0,
        added_rows=5,
    )
    updates: list[TableUpdate] = [AddSnapshotUpdate(snapshot=snapshot)]
    if not is_staged:
        ref = {"ref_name": "main", "type": SnapshotRefType.BRANCH, "snapshot_id": snapshot_id}
        ages = {"max_ref_age_ms": None, "max_snapshot_age_ms": None, "min_snapshots_to_keep": None}
        updates.append(SetSnapshotRefUpdate(**ref, **ages))
    table.catalog.commit_table(table, (AssertRefSnapshotId(ref="main", snapshot_id=head),), tuple(updates))


def test_writers_of_format_3_are_not_delayed_either(lakes: OpenLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, writers_catalog = lakes(), lakes().catalog
    table = lake.create("t", **{"format-version": "3"})
    write_by_hand(table)
    writes = {"append": lambda handle, _: write_by_hand(handle), "properties": WRITES["properties"]}
    writes = {f"{name} {number}": write for number in range(2) for name, write in writes.items()}
    commits = commits_of_writers(table.refresh(), writers_catalog, monkeypatch, publications(), writes)
    assert commits == dict.fromkeys(writes, 1)
    assert table.refresh().metadata.next_row_id == 15, "our snapshots take no ids of rows"  # type: ignore[union-attr]


@pytest.mark.parametrize("version", ["2", "3"])
def test_a_staged_snapshot_makes_our_commit_try_again(
    lakes: OpenLake, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """No branch has moved: the server refuses metadata with a snapshot above the last number, or ids that are taken."""
    lake, writers_catalog = lakes(), lakes()
    table = lake.create("t", **{"format-version": version})
    if version == "3":
        write_by_hand(table)
    else:
        table.append(make_rows(0, 10))
    staging = writers_catalog.load("t")
    steps = [
        lambda: (
            staging.append(make_rows(10, 20), branch=None) if version == "2" else write_by_hand(staging, is_staged=True)
        )
    ]
    through, acts = lake.catalog.commit_table, iter(steps)

    def commit_table(*arguments: Any) -> Any:
        next(acts, lambda: None)()
        return through(*arguments)

    monkeypatch.setattr(lake.catalog, "commit_table", commit_table)
    with counted_commits(lake.catalog, monkeypatch) as sent:
        version_of_head = bindings.publish(table.refresh(), binding(table))
    assert sent == [1, 2]
    assert version_of_head.sequence_number == 2
    assert_numbers(writers_catalog.load("t"))


MERGE = """MERGE INTO {t} t USING (SELECT explode(array(1L, 2L, 200L)) AS id) s ON t.id = s.id
    WHEN MATCHED AND t.id = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET name = 'merged'
    WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, '')"""
UPGRADE = """ALTER TABLE {t} SET TBLPROPERTIES
    ('format-version' = '2', 'write.delete.mode' = 'merge-on-read', 'write.wap.enabled' = 'true')"""
SPARK_WRITES = (
    "INSERT INTO {t} (id, name) VALUES (100, 'new')",
    MERGE,
    UPGRADE,
    "DELETE FROM {t} WHERE id = 3",
    "SET spark.wap.id = audited",
    "INSERT INTO {t} (id, name) VALUES (300, 'staged')",
    "RESET spark.wap.id",
    "CALL {lake}.system.publish_changes('{namespace}.{name}', 'audited')",
)
"""Writes of each kind, on a table of format version 1, and on the same table of version 2; the last is staged first"""


@pytest.mark.jvm
def test_a_version_right_before_a_commit_of_sparks_costs_it_what_a_property_costs(
    rest_uri: str, tmp_path: Path, spark: Any
) -> None:
    """It lands when Spark has read the table, written its files, and sent the commit."""
    acts: list[Callable[[], object]] = []
    sent: list[int] = []
    """HTTP status of the answer to each commit of Spark's"""

    def answer(request: Request) -> Answer:
        is_commit = request.method == "POST" and re.search("/tables/[^/]+$", request.path) is not None
        if is_commit and acts:
            acts.pop()()
        answered = forward(rest_uri, request)
        sent.extend([answered.status] * is_commit)
        return answered

    rows, statuses = [], []
    with (
        open_lake(tmp_path.name, rest_uri, tmp_path) as ours,
        serving(answer) as uri,
        open_lake(tmp_path.name, uri, tmp_path, spark=spark) as lake,
    ):
        for name, between in (("indexed", publications()), ("control", property_changes(1))):
            table = ours.create(name, **{"format-version": "1"})
            table.append(make_rows(0, 20))
            sent.clear()
            for write in SPARK_WRITES:
                is_setting = "wap.id" in write
                acts[:] = [] if is_setting else [lambda table=table, between=between: between(table.refresh())]
                lake.sql(write.format(t=lake.sql_name(name), lake=lake.name, namespace=lake.namespace, name=name))
                assert not acts, "the commit went through the proxy"
                assert_numbers(ours.load(name))
            statuses.append(tuple(sent))
            rows.append(sorted(row[0] for row in lake.sql(f"SELECT id FROM {lake.sql_name(name)}")))
    assert statuses == [(200,) * 6] * 2
    assert rows == [sorted({*range(20), 100, 200, 300} - {1, 3})] * 2
