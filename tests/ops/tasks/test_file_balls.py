"""Balls around the vectors of a data file: none is too small, and none much larger than it must be."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import FloatType, ListType, NestedField

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import FileSlot, LiveFile
from icepuffin.ops.tasks.enclosure import EnclosureTask, enclose
from icepuffin.ops.tasks.file_balls import MAX_BALLS, ball_around, merge_balls, partition_balls, rows_outside
from icepuffin.ops.tasks.scatter import RowSelection, ScatterTask, scatter
from icepuffin.ops.tasks.vectors import VectorColumn
from tests.conftest import STORAGE

VECTORS = np.random.default_rng(0).standard_normal((700, 5)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 9, 256, 257, 700])
def test_a_ball_reaches_the_farthest_vector_and_no_farther(rows: int) -> None:
    vectors = VECTORS[:rows].copy()
    vectors[-1] += 30  # in the last step
    center, radius = ball_around(vectors)
    exact = np.linalg.norm(vectors.astype(float) - center, axis=1).max()
    assert exact <= radius <= exact * (1 + 2e-5) + 2e-6
    assert rows_outside(vectors, [(center, radius)]) == 0


def test_a_partition_that_a_file_has_vectors_in_gets_a_ball() -> None:
    reach = np.array([-1, 0, 2.5, -1], np.float32)
    balls = partition_balls(reach, VECTORS[:4])
    assert [center.tolist() for center, _ in balls] == VECTORS[1:3].tolist()
    assert [radius for _, radius in balls] == pytest.approx([1e-6, 2.5], rel=2e-5)
    assert all(radius > reached for (_, radius), reached in zip(balls, (0, 2.5), strict=True))


def test_balls_over_the_most_become_one_that_holds_them() -> None:
    balls = [(center, float(number)) for number, center in enumerate(VECTORS[:MAX_BALLS])]
    assert merge_balls(balls) is balls
    ((center, radius),) = merge_balls(balls, MAX_BALLS - 1)
    np.testing.assert_allclose(center, VECTORS[:MAX_BALLS].mean(axis=0), rtol=1e-5, atol=1e-6)
    reaches = [np.linalg.norm(other.astype(float) - center) + length for other, length in balls]
    assert max(reaches) <= radius <= max(reaches) * (1 + 2e-5) + 2e-6


def test_rows_outside_are_those_that_no_ball_holds() -> None:
    balls = [(VECTORS[0], 1.0), (VECTORS[300], 2.0)]
    distances = np.stack([np.linalg.norm(VECTORS.astype(float) - center, axis=1) for center, _ in balls])
    outside = ((distances - np.array([[1.0], [2.0]])) > 0).all(axis=0).sum()
    assert 0 < outside < len(VECTORS)
    assert rows_outside(VECTORS, balls) == outside


@pytest.mark.parametrize("rows", [40, 5_000])
def test_a_file_has_a_ball_for_each_heap_of_its_vectors_and_none_for_other_partitions(
    rows: int, tmp_path: Path
) -> None:
    """However many rows the centres are made from; by those of an index, or its own. It is read in two batches, and a
    row of each has no vector.
    """
    vectors = np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)
    vectors[::2] += 100
    column_values = [None, *vectors.tolist(), None]
    field = pa.field("v", pa.list_(pa.float32()), metadata={"PARQUET:field_id": "1"})
    path = tmp_path / "heaps.parquet"
    column_data = pa.Table.from_arrays([pa.array(column_values, field.type)], schema=pa.schema([field]))
    pq.write_table(column_data, path, row_group_size=1 + 9 * rows // 10)
    file = LiveFile(f"file://{path}", path.stat().st_size, rows + 2, 1, "PARQUET")
    schema = Schema(NestedField(1, "v", ListType(2, FloatType(), element_required=False), required=False))
    column = VectorColumn(schema, 1, 3, Metric.L2, STORAGE)
    own = enclose(EnclosureTask(((FileSlot(7), file),), column, most_balls=2, seed=0))
    codebook = np.array([[0, 0, 0], [50, 0, 0], [100, 100, 100]], np.float32)
    task = ScatterTask(
        0, (RowSelection(FileSlot(7), file),), column, codebook, np.zeros(3, np.uint32), "f32",
        f"file://{tmp_path}/staging", recorded=False,
    )  # fmt: skip
    for staged in (own, scatter(task)):
        assert (staged.live_rows, staged.without_vector) == (((7, rows),), 2)
        assert staged.balls.slots.tolist() == [7, 7]
        assert sorted(np.rint(staged.balls.centers.mean(axis=1) / 100).tolist()) == [0, 1]
        assert staged.balls.radii.max() < 10
        balls = list(zip(staged.balls.centers, staged.balls.radii.tolist(), strict=True))
        assert rows_outside(vectors, balls) == 0
