"""Snapshots by the names of branches and tags, and the line that they come from."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyiceberg.io import load_file_io
from pyiceberg.table import Table
from pyiceberg.table.snapshots import SnapshotLogEntry, Summary

from icepuffin.ops.errors import TableFaultError
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.table import snapshots
from icepuffin.ops.table.snapshots import (
    UnknownSnapshotError,
    ancestor_ids,
    head_of,
    ref_snapshot_id,
    resolve_snapshot,
    rows_in_files,
    schema_at,
    snapshot_rows,
)
from tests.conftest import make_rows

TableFactory = Callable[..., Table]


def test_a_ref_names_its_snapshot_and_main_none_before_the_first(table_factory: TableFactory) -> None:
    table = table_factory()
    assert ref_snapshot_id(table, "main") is head_of(table, "main") is None
    with pytest.raises(UnknownSnapshotError, match=r"its branches and tags are none\."):
        ref_snapshot_id(table, "other")
    table.append(make_rows(0, 3))
    first = table.refresh().metadata.current_snapshot_id
    assert first is not None
    table.manage_snapshots().create_tag(first, "kept").commit()
    table.append(make_rows(3, 6))
    assert ref_snapshot_id(table.refresh(), "kept") == resolve_snapshot(table, np.int64(first)).snapshot_id == first
    assert ref_snapshot_id(table, "main") == table.metadata.current_snapshot_id
    assert head_of(table, "other") is None
    with pytest.raises(UnknownSnapshotError, match="has no ref 'other'; its branches and tags are kept, main"):
        ref_snapshot_id(table, "other")
    with pytest.raises(UnknownSnapshotError, match=r"has no ref '9{5000}'; its branches"):
        resolve_snapshot(table, "9" * 5000)


def test_a_branch_is_read_by_the_columns_of_the_table_and_a_tag_by_those_of_its_snapshot(
    table_factory: TableFactory,
) -> None:
    table = table_factory()
    table.append(make_rows(0, 3))
    head = table.refresh().metadata.current_snapshot_id
    assert head is not None
    table.manage_snapshots().create_tag(head, "kept").create_branch(head, "side").commit()
    with table.update_schema() as update:
        update.rename_column("name", "title")
    names = {name: schema_at(table.refresh(), name).column_names for name in ("main", "side", "kept", head, str(head))}
    assert "title" in names["main"]
    assert names["side"] == names["main"]
    assert "title" not in names["kept"]
    assert names["kept"] == names[head] == names[str(head)]
    unknown = [snapshot.model_copy(update={"schema_id": 9}) for snapshot in table.metadata.snapshots]
    table.metadata = table.metadata.model_copy(update={"snapshots": unknown})
    with pytest.raises(TableFaultError, match=r"a snapshot names schema 9, which the metadata lacks"):
        schema_at(table, head)


def test_ancestors_are_those_of_the_line_of_a_snapshot(table_factory: TableFactory) -> None:
    table = table_factory()
    line = []
    for start in range(0, 9, 3):
        table.append(make_rows(start, start + 3))
        line.append(SnapshotId(table.refresh().metadata.current_snapshot_id or 0))
    for number, snapshot_id in enumerate(line):
        assert ancestor_ids(table, snapshot_id) == {*line[: number + 1]}


@pytest.mark.parametrize(
    ("properties", "rows", "live"),
    [
        ({"total-records": "60"}, 60, 60),
        ({"total-records": "60", "total-position-deletes": "20"}, 60, 40),
        ({"total-records": "60", "total-position-deletes": "70"}, 60, 0),
        ({"total-position-deletes": "20"}, 0, 0),
    ],
)
def test_rows_are_those_of_the_summary_without_its_deletes_and_never_fewer_than_none(
    properties: dict[str, str], rows: int, live: int, table_factory: TableFactory
) -> None:
    """Engines leave deletes of rows that were rewritten since."""
    table = table_factory()
    table.append(make_rows(0, 3))
    (written,) = table.metadata.snapshots
    assert written.summary is not None
    summary = Summary(written.summary.operation, **properties)
    copy = table.metadata.model_copy(update={"snapshots": [written.model_copy(update={"summary": summary})]})
    table.metadata = copy
    snapshot_id = SnapshotId(written.snapshot_id)
    assert (rows_in_files(table, snapshot_id), snapshot_rows(table, snapshot_id)) == (rows, live)
    assert (rows_in_files(table, SnapshotId(1)), snapshot_rows(table, SnapshotId(1))) == (0, 0)


def test_a_time_between_two_snapshots_names_none_where_one_between_them_may_have_expired(
    table_factory: TableFactory,
) -> None:
    """By the sequence numbers, of a snapshot without a parent. From the next millisecond on, to that of the other."""
    table = table_factory()
    for start in (0, 3, 6):
        table.append(make_rows(start, start + 3))
    first, _, third = table.metadata.snapshots
    begun = datetime(2026, 11, 1, tzinfo=UTC)
    times = [round(begun.timestamp() * 1000) + after for after in (0, 10_000)]

    def named(number: int, milliseconds: int) -> int:
        """The snapshot so long after the first, where the second one that is left has this number."""
        changed = {"parent_snapshot_id": None, "sequence_number": number, "timestamp_ms": times[1]}
        left = [first.model_copy(update={"timestamp_ms": times[0]}), third.model_copy(update=changed)]
        log = [SnapshotLogEntry(snapshot_id=item.snapshot_id, timestamp_ms=item.timestamp_ms) for item in left]
        table.metadata = table.metadata.model_copy(update={"snapshots": left, "snapshot_log": log})
        return resolve_snapshot(table, begun + timedelta(milliseconds=milliseconds)).snapshot_id

    for milliseconds in (0, 1, 9_999):
        assert named(2, milliseconds) == first.snapshot_id
    with pytest.raises(UnknownSnapshotError, match=r"as old as 2026-10-31T.*; the oldest is of 2026-11-01T00:00:00\+"):
        named(2, -1)
    unknown = r"is not known, because some of .* have expired; name one by its id"
    for milliseconds in (1, 5_000, 9_999):
        for number in (3, 0):  # 0: of format v1, which does not tell
            with pytest.raises(UnknownSnapshotError, match=unknown):
                named(number, milliseconds)
    assert (named(3, 0), named(3, 10_000)) == (first.snapshot_id, third.snapshot_id)
    back = [SnapshotLogEntry(snapshot_id=first.snapshot_id, timestamp_ms=time) for time in times]
    table.metadata = table.metadata.model_copy(update={"snapshots": [first], "snapshot_log": back})
    with pytest.raises(UnknownSnapshotError, match=unknown):  # it was rolled back to, from one that has expired
        resolve_snapshot(table, begun + timedelta(seconds=5))


def test_a_metadata_file_that_cannot_be_read_is_warned_of(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, table_factory: TableFactory
) -> None:
    """A catalog that writes it is trusted then, and one that shows the file itself is not asked."""
    lost = f"file://{tmp_path}/v1.metadata.json"
    table: Any = SimpleNamespace(catalog=None, metadata_location=lost, io=load_file_io({}), name=lambda: ("db", "t"))
    assert snapshots._stored_snapshot_ids(table) == ()
    (message,) = caplog.messages
    assert message.startswith(f"db.t: {lost} cannot be read: ")
    written = table_factory()
    written.append(make_rows(0, 3))
    assert snapshots._stored_snapshot_ids(written) == ()
    assert len(caplog.messages) == 1
