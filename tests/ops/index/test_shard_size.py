"""The size of shards: none has a blob larger than Java reads at once, by lowered limits."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.errors import ShardTooLargeError
from icepuffin.ops.index.planning import sizes
from icepuffin.ops.index.planning.sizes import choose_shard_count, max_shard_rows, rows_per_shard, sample_size
from icepuffin.ops.index.planning.work_bounds import refresh_bounds
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import Action, SnapshotId
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import find_snapshot, head_of
from tests.conftest import DIMS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head

TableFactory = Callable[..., Table]
ONE = replace(DEFINITION, shards=1)
MOST = 300


@pytest.fixture
def table(table_factory: TableFactory, monkeypatch: pytest.MonkeyPatch) -> Table:
    monkeypatch.setattr(sizes, "MAX_BLOB_BYTES", 4096 + MOST * (33 + 4 * (DEFINITION.max_degree + 1)))
    assert max_shard_rows(ONE, DIMS) == MOST
    return table_factory()


@pytest.mark.parametrize(
    ("vectors", "bits", "node_bytes", "codebook_bytes"),
    [("f32", 8, 0, 0), ("f16", 8, 0, 0), ("none", 8, 32, 65_536), ("none", 4, 32, 4_096)],
)
def test_a_shard_has_as_many_rows_as_a_blob_has_room_for(
    vectors: str, bits: int, node_bytes: int, codebook_bytes: int
) -> None:
    """Vectors lie apart. Codes of 4 bits: 64 codes, in 32 bytes."""
    definition = replace(ONE, vectors=vectors, pq_m=32, pq_nbits=bits)
    of_graph = 8 + 20 + 5 + 4 * (DEFINITION.max_degree + 1)
    expected = (2**31 - 1 - 4096 - codebook_bytes) // (node_bytes + of_graph)
    assert max_shard_rows(definition, 64) == expected


def test_what_the_error_of_a_large_shard_advises_makes_room() -> None:
    """Vectors as f32 and f16 take none; codes in their place do."""
    rows = {vectors: max_shard_rows(replace(ONE, vectors=vectors), 768) for vectors in ("f32", "f16", "rq4", "none")}
    assert rows["f32"] == rows["f16"] > max(rows["rq4"], rows["none"])
    assert max_shard_rows(replace(ONE, cells="sq4"), 768) < rows["f32"]
    assert max_shard_rows(replace(ONE, max_degree=ONE.max_degree // 2), 768) > rows["f32"]


@pytest.mark.parametrize(("dims", "max_degree"), [(384, 64), (1_536, 64), (16, 12)])
def test_a_shard_of_a_build_is_of_half_a_gibibyte(dims: int, max_degree: int) -> None:
    """Of vectors in f32, and edges of four bytes."""
    row = 4 * dims + 4 * max_degree
    rows = rows_per_shard(dims, max_degree)
    assert rows * row <= 2**29 < (rows + 1) * row
    assert [choose_shard_count(count, dims, max_degree) for count in (0, rows, rows + 1)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("rows", "sampled"),
    [(0, 0), (19_999, 19_999), (1_999_999, 20_000), (5_000_000, 50_000), (20_000_000, 200_000), (10**9, 200_000)],
)
def test_the_codebook_is_trained_on_one_row_in_a_hundred_within_bounds(rows: int, sampled: int) -> None:
    assert sample_size(rows) == sampled


def lengths(table: Table) -> list[int]:
    return [part.length for part in open_version(index_versions(table.refresh(), "e")[-1], STORAGE).shards]


def assert_small(table: Table) -> None:
    assert max(lengths(table)) <= sizes.MAX_BLOB_BYTES
    assert answer_with_recall(table, definition=ONE)[1] >= 0.96


def test_a_build_that_needs_more_shards_than_requested_reports_that(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.append(make_rows(0, 600))
    assert index_head(table, ONE).shards == 3
    assert "it gets 3" in caplog.text
    assert_small(table)


def test_a_number_of_shards_that_nobody_has_set_is_raised_without_a_warning(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.append(make_rows(0, 600))
    assert index_head(table, replace(ONE, shards=None)).shards == 3
    assert "shards" not in caplog.text
    assert_small(table)


def test_a_shard_takes_rows_while_they_fit_and_then_all_are_indexed_anew(table: Table) -> None:
    definition = replace(ONE, max_deltas=0)
    for rows, action, shards in (
        (MOST // 2, Action.BUILT, 1),
        (MOST, Action.REFRESHED, 1),
        (MOST + 4, Action.BUILT, 2),
    ):
        table.append(make_rows(table.refresh().scan().count(), rows))
        report = index_head(table, definition)
        assert (report.action, report.shards, report.rows) == (action, shards, rows)


def test_what_grows_over_its_shards_is_built_anew_with_more(table: Table) -> None:
    definition = replace(ONE, delta_share=0.1)
    table.append(make_rows(0, 150))
    assert index_head(table, definition).shards == 1
    table.append(make_rows(150, 260))
    assert index_head(table, definition).action is Action.REFRESHED
    table.append(make_rows(260, 380))
    assert refresh_bounds(table, definition, find_snapshot(table, head_of(table, "main") or SnapshotId(0))) is None
    report = index_head(table, definition)
    assert (report.action, report.shards, report.rows) == (Action.BUILT, 2, 380)
    assert "no room" in report.reason
    assert_small(table)


def test_dead_nodes_make_room_first(table: Table) -> None:
    definition = replace(ONE, max_deltas=0, rebuild_ratio=0.9)
    table.append(make_rows(0, 200))
    index_head(table, definition)
    file = live_files(table.refresh(), table.metadata.current_snapshot_id or 0).files[0].path
    append_position_deletes(table, {file: np.arange(60)})
    table.refresh().append(make_rows(200, 335))
    report = index_head(table, definition)
    assert (report.action, report.shards_rebuilt, report.rows, report.tombstones) == (Action.REFRESHED, 1, 275, 0)
    assert_small(table)


def test_rows_that_no_number_of_shards_parts_are_refused(table: Table) -> None:
    """Equal vectors lie in one partition, and so in one shard."""
    rows = make_rows(0, 1)
    table.append(rows.take([0] * 700))
    with pytest.raises(
        ShardTooLargeError, match=r"would have 700 rows, and 300 fit.*more `shards`, a smaller `max_degree`"
    ):
        index_head(table, ONE)
    assert index_versions(table.refresh(), "e") == ()
