"""Position delete files that are about many data files, as Spark writes them with granularity `partition`."""

import io
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from examples.demo.row_deletes import commit_delete_files
from icepuffin.ann_kernels.arrays import I64
from icepuffin.ops.model import DeleteFile
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.result import SearchResult
from icepuffin.ops.storage import Storage
from icepuffin.ops.table import row_deletes
from icepuffin.ops.table.live_files import live_files
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import index_head
from tests.ops.index.test_balls import BALLS

FILES = 5


def delete_row_of_each_file(table: Table, row: int) -> None:
    """Commit one delete file about all data files. Without bounds it may be about any of its partition."""
    paths = [file.path for file in live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files]
    buffer = io.BytesIO()
    pq.write_table(pa.table({"file_path": paths, "pos": pa.array([row] * len(paths), pa.int64())}), buffer)
    path = table.location_provider().new_data_location(f"{uuid.uuid4()}-deletes.parquet")
    with table.io.new_output(path).create() as sink:
        sink.write(buffer.getvalue())
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(paths),
        file_size_in_bytes=buffer.tell(),
    )
    file.spec_id = table.spec().spec_id
    commit_delete_files(table, [file])


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    """Five files of ten rows; of each the rows 3 and 7 are deleted."""
    new_table = table_factory()
    for number in range(FILES):
        new_table.append(make_rows(10 * number, 10 * number + 10))
    for row in (3, 7):
        delete_row_of_each_file(new_table, row)
    return new_table.refresh()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Reads of each position delete file."""
    counts: Counter[str] = Counter()
    read = row_deletes._position_deletes

    def counted(store: Storage, delete: DeleteFile) -> Iterator[tuple[str, I64]]:
        counts[delete.path] += 1
        return read(store, delete)

    monkeypatch.setattr(row_deletes, "_position_deletes", counted)
    return counts


def exact(table: Table) -> IndexReader:
    return open_exact(table, "embedding", "l2", storage=STORAGE)


def pruned(table: Table) -> IndexReader:
    return open_index(table, BALLS, storage=STORAGE)


SEARCHES: list[Callable[[Table], SearchResult]] = [
    lambda table: exact(table).search(queries(1), 50, columns=["id"]),
    lambda table: exact(table).search(queries(1), 50, columns=["id"], where="id >= 0"),
    lambda table: pruned(table).search(queries(1), 50, columns=["id"]),
    lambda table: pruned(table).within(queries(1), 1e9, columns=["id"]),
]


def test_a_search_reads_a_delete_file_once_for_all_files_that_it_is_about(table: Table, reads: Counter[str]) -> None:
    index_head(table, BALLS)
    for search in SEARCHES:
        reads.clear()
        ids = search(table.refresh()).rows["id"].to_pylist()
        assert sorted(ids) == [number for number in range(10 * FILES) if number % 10 not in (3, 7)]
        assert list(reads.values()) == [1, 1]


def test_files_are_taken_together_up_to_a_number_of_rows(
    table: Table, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So memory is bounded; a delete file is read once for each group, here of two files, two files and one. The rows
    of delete files, which are read for each, may be as many.
    """
    for more, together in (((), 20), ((5, 8), 1)):
        for row in more:
            delete_row_of_each_file(table, row)
        monkeypatch.setattr(row_deletes, "_ROWS_TOGETHER", together)
        reads.clear()
        found = exact(table.refresh()).search(queries(1), 50, columns=["id"])
        assert len(np.unique(found.rows["id"])) == (8 - len(more)) * FILES
        assert list(reads.values()) == [3] * (2 + len(more))


def test_the_plan_of_a_refresh_reads_the_deletes_that_came_since(table: Table, reads: Counter[str]) -> None:
    """The proof of the new version reads all deletes, once."""
    index_head(table)
    older = set(reads)
    delete_row_of_each_file(table, 5)
    reads.clear()
    index_head(table)
    assert {path: count for path, count in reads.items() if path in older} == dict.fromkeys(older, 1)
    assert sorted(reads.values()) == [1, 1, 2]
