"""Snapshots by the names of branches and tags, and the line that they come from."""

from collections.abc import Callable

import pytest
from pyiceberg.table import Table

from icepuffin.ops.catalog.snapshots import UnknownSnapshotError, ancestor_ids, head_of, ref_snapshot_id
from icepuffin.ops.model import SnapshotId
from tests.conftest import make_rows

TableFactory = Callable[..., Table]


def test_a_ref_names_its_snapshot_and_main_none_before_the_first(table_factory: TableFactory) -> None:
    table = table_factory()
    assert ref_snapshot_id(table, "main") is head_of(table, "main") is None
    table.append(make_rows(0, 3))
    first = table.refresh().metadata.current_snapshot_id
    assert first is not None
    table.manage_snapshots().create_tag(first, "kept").commit()
    table.append(make_rows(3, 6))
    assert ref_snapshot_id(table.refresh(), "kept") == first
    assert ref_snapshot_id(table, "main") == table.metadata.current_snapshot_id
    assert head_of(table, "other") is None
    with pytest.raises(UnknownSnapshotError, match="has no ref 'other'; its branches and tags are kept, main"):
        ref_snapshot_id(table, "other")


def test_ancestors_are_those_of_the_line_of_a_snapshot(table_factory: TableFactory) -> None:
    table = table_factory()
    line = []
    for start in range(0, 9, 3):
        table.append(make_rows(start, start + 3))
        line.append(SnapshotId(table.refresh().metadata.current_snapshot_id or 0))
    for number, snapshot_id in enumerate(line):
        assert ancestor_ids(table, snapshot_id) == {*line[: number + 1]}
