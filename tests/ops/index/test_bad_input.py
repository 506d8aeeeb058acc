"""Input that cannot be indexed is named, and nothing is published."""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.statistics import find_statistics
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.index_definition import DefinitionError
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.runs.snapshot import refresh_snapshot
from icepuffin.ops.storage import open_storage
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import UnknownSnapshotError
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, index_head

TableFactory = Callable[..., Table]


def test_a_table_without_snapshots_has_none_to_index(table_factory: TableFactory) -> None:
    table = table_factory()
    with pytest.raises(UnknownSnapshotError):
        materialize_index(RunContext(table, STORAGE, LocalRunner(1)), DEFINITION, 1)


def test_codes_of_four_bits_need_an_even_number_of_dimensions(table_factory: TableFactory) -> None:
    catalog = table_factory().catalog
    rows = pa.table({"embedding": pa.array([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]], pa.list_(pa.float32()))})
    odd = catalog.create_table("db.odd", rows.schema)
    odd.append(rows)
    with pytest.raises(DefinitionError, match="column embedding has 3: take pq_nbits 8"):
        index_head(odd, replace(DEFINITION, vectors="none", pq_nbits=4))


def test_a_missing_data_file_is_named(table_factory: TableFactory) -> None:
    table = table_factory()
    table.append(make_rows(0, 50))
    path = live_files(table, table.metadata.current_snapshot_id or 0).files[0].path
    open_storage(path, STORAGE).delete(path)
    with pytest.raises(IcepuffinError, match=r"\.parquet"):
        index_head(table)
    assert index_versions(table, "e") == ()


def test_a_table_made_again_under_its_name_shares_nothing_with_the_old_one(
    table_factory: TableFactory, sql_catalog: Catalog
) -> None:
    table = table_factory()
    table.append(make_rows(0, 50))
    first = index_head(table)
    sql_catalog.drop_table("db.t")
    again = table_factory()
    again.append(make_rows(0, 50))
    second = index_head(again)
    assert second.action is Action.BUILT
    assert second.build_id != first.build_id


def test_of_indexes_that_cannot_be_made_the_first_is_named_and_the_others_are_made(
    table_factory: TableFactory, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_factory()
    table.append(make_rows(0, 300))
    first, second = (replace(DEFINITION, name=name, column=name) for name in ("first", "second"))
    head = table.metadata.current_snapshot_id or 0
    with pytest.raises(DefinitionError, match="no column 'first'"):
        refresh_snapshot(
            RunContext(table, STORAGE, LocalRunner(1)), SnapshotId(head), [first, second, DEFINITION], sketches=True
        )
    assert "no column 'second'" in caplog.text
    assert [version.base_snapshot_id for version in index_versions(table.refresh(), "e")] == [head]
    assert find_statistics(table, SnapshotId(head)) is not None, "the version took the sketches along"
