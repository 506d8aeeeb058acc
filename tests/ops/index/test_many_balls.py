"""The balls around a table's files outgrow what a blob may hold: by lowered limits."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index import index_layout
from icepuffin.ops.index.files import assembly
from icepuffin.ops.index.versions.version_reader import open_version, read_centroids
from icepuffin.ops.model import Action
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.puffin.blobs import centroid_blob
from icepuffin.puffin.blobs.centroid_blob import CentroidIndex
from icepuffin.puffin.errors import BadCompressionError
from tests.conftest import STORAGE
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head
from tests.ops.search.test_range_search import CENTERS, clustered

TableFactory = Callable[..., Table]


def test_balls_take_no_more_than_the_largest_blob_that_java_reads() -> None:
    assert np.iinfo(np.int32).max == assembly.MAX_CENTROID_BYTES


def append(table: Table, number: int) -> None:
    """A file around two points."""
    parts = [
        clustered(1_000 * number + 500 * half, 60, (10 * CENTERS[(number + half) % 6]).tolist()) for half in (0, 1)
    ]
    table.refresh().append(pa.concat_tables(parts))


def centroids(table: Table) -> CentroidIndex:
    return read_centroids(open_version(index_versions(table.refresh(), "e")[-1], STORAGE), STORAGE)


def balls_per_file(index: CentroidIndex) -> list[int]:
    return np.bincount(index.file_ordinals, minlength=len(index.files)).tolist()


def limit_to(most: int, patch: pytest.MonkeyPatch) -> None:
    whole = centroid_blob.decode

    def decode(data: bytes) -> CentroidIndex:
        if len(data) > most:
            raise BadCompressionError(f"declares {len(data):,} bytes, over the limit of {most:,}")
        return whole(data)

    patch.setattr(centroid_blob, "decode", decode)
    patch.setattr(assembly, "MAX_CENTROID_BYTES", most, raising=False)


def assert_right(table: Table) -> int:
    """Return the files pruned by a range search that needs one."""
    assert answer_with_recall(table)[1] >= 0.96
    query = 10 * CENTERS[:1]
    result = open_index(table, DEFINITION, storage=STORAGE).within(query, 2.0, columns=["id"])
    true = open_exact(table, "embedding", "l2", storage=STORAGE).within(query, 2.0, columns=["id"])
    assert len(true.rows) > 50
    assert sorted(result.rows["id"].to_pylist()) == sorted(true.rows["id"].to_pylist())
    assert result.profile.pruning is not None
    return result.profile.pruning.files_pruned


@pytest.fixture
def table(table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Four files, of which each touches few partitions."""
    monkeypatch.setattr(index_layout, "PARTITIONS_PER_SHARD", 2)
    new_table = table_factory()
    for number in range(4):
        append(new_table, number)
    return new_table


def test_a_version_with_too_many_balls_keeps_one_per_file_and_is_refreshed(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    index_head(table)
    before = centroids(table)
    assert len(before.centroids) > 5
    limit_to(len(centroid_blob.encode(before)) + 4 + len(before.files[0]), monkeypatch)
    append(table, 4)
    assert index_head(table).action is Action.REFRESHED
    assert balls_per_file(centroids(table)) == [1] * 5
    assert "around 5 files are more than a blob may hold (2 GiB); 5 are kept" in caplog.text
    assert assert_right(table) > 0
    append(table, 5)
    assert index_head(table).action is Action.REFRESHED
    assert_right(table)


def test_where_one_per_file_is_too_much_nothing_is_pruned(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_to(500, monkeypatch)
    index_head(table)
    assert balls_per_file(centroids(table)) == [0] * 4
    assert assert_right(table) == 0
    append(table, 4)
    assert index_head(table).action is Action.REFRESHED
    assert_right(table)
