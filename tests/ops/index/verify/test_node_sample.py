"""Nodes that are drawn of a shard are live, lie in runs, and have the vectors that the table has for their rows."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.verify.integrity import draw_nodes, vectors_of
from icepuffin.ops.model import FileSlot
from icepuffin.ops.rows.addresses import addresses_of, rows_at
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.tasks.vectors import VectorColumn
from icepuffin.puffin.blobs.shard_blob import Shard
from tests.conftest import DIMS, STORAGE, make_rows
from tests.puffin import samples

COUNTS = (40, 0, 15, 16, 17, 1, 60)
"""Nodes per file slot"""


def shard() -> Shard:
    """Its nodes lie in no order, and of no file are all rows in it."""
    rng = np.random.default_rng(3)
    keys = np.concatenate(
        [
            addresses_of(slot, np.sort(rng.choice(3 * count + 1, count, replace=False)))
            for slot, count in enumerate(COUNTS)
        ]
    )
    slots, positions = rows_at(rng.permutation(keys))
    return replace(samples.shard(len(keys)), file_slots=slots.astype(np.uint32), row_positions=positions)


@pytest.mark.parametrize("dead", [0, 50, 140])
def test_drawn_nodes_are_runs_of_live_ones(dead: int) -> None:
    """Of 16 nodes in each of four files, or as many as there are; whatever lives may be drawn."""
    new_shard = shard()
    tombstones = np.random.default_rng(4).choice(new_shard.count, dead, replace=False)
    live = np.sort(np.delete(addresses_of(new_shard.file_slots, new_shard.row_positions), tombstones))
    by_file = {slot: live[rows_at(live)[0] == slot].tolist() for slot in set(rows_at(live)[0].tolist())}
    drawn: set[int] = set()
    for seed in range(400):
        keys = draw_nodes(new_shard, tombstones, seed)
        assert keys.tolist() == sorted(set(keys.tolist()))
        files = rows_at(keys)[0]
        assert len(set(files.tolist())) == min(4, len(by_file))
        for slot in set(files.tolist()):
            run = keys[files == slot].tolist()
            start = by_file[slot].index(run[0])
            assert run == by_file[slot][start : start + 16]
            assert len(run) == min(16, len(by_file[slot]))
        drawn.update(keys.tolist())
    assert drawn == set(live.tolist())


def test_no_node_is_drawn_from_a_shard_without_live_nodes() -> None:
    made = shard()
    assert draw_nodes(made, np.arange(made.count), 0).tolist() == []
    assert draw_nodes(made, np.arange(made.count), 0).dtype == np.int64


@pytest.mark.parametrize("metric", list(Metric))
def test_vectors_are_those_that_the_table_has(table_factory: Callable[..., Table], metric: Metric) -> None:
    table = table_factory()
    for first, last in ((0, 40), (40, 60), (60, 90)):
        table.append(make_rows(first, last))
    live = live_files(table, table.metadata.current_snapshot_id or 0)
    files = {FileSlot(7 * slot): file for slot, file in enumerate(live.files)}
    rng = np.random.default_rng(0)
    rows = [(slot, position) for slot, file in files.items() for position in range(file.record_count)]
    chosen = [rows[at] for at in rng.permutation(len(rows))[:50].tolist()]
    stored = {
        slot: pq.ParquetFile(file.path.removeprefix("file://")).read()["embedding"] for slot, file in files.items()
    }
    expected = np.array([stored[slot][position].as_py() for slot, position in chosen])
    if metric is Metric.COSINE:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    keys = np.array([addresses_of(slot, np.int64(position)) for slot, position in chosen])  # type: ignore[arg-type]
    field = table.schema().find_field("embedding").field_id
    column = VectorColumn(table.schema(), field, DIMS, metric, STORAGE)
    vectors = vectors_of(keys, files, column)
    assert vectors.dtype == np.float32
    assert vectors == pytest.approx(expected, rel=1e-6)
    assert vectors_of(keys[:0], files, column).shape == (0, DIMS)
