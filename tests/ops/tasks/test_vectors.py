"""Vectors of data files: null ones are left out, and what cannot be indexed is refused by its row."""

import numpy as np
import pyarrow as pa
import pytest

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.sketches.hashing import content_hash
from icepuffin.ops.model import LiveFile
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.table.live_rows import LiveBatch
from icepuffin.ops.tasks.vectors import content_hashes, is_selected, prepared, with_vector

FILE = LiveFile("f.parquet", 1, 9, 1, "PARQUET")
POSITIONS = np.array([4, 6, 9])


@pytest.mark.parametrize("empty", [(), (1,), (0, 2), (0, 1, 2)])
def test_rows_without_a_vector_are_left_out(empty: tuple[int, ...]) -> None:
    column = pa.array([None if row in empty else [float(row)] for row in range(3)], pa.list_(pa.float32()))
    positions, vectors = with_vector(LiveBatch(POSITIONS, pa.table({"vector": column}).to_batches()[0]))
    rest = [row for row in range(3) if row not in empty]
    assert positions.tolist() == POSITIONS[rest].tolist()
    assert vectors.to_pylist() == [[float(row)] for row in rest]


@pytest.mark.parametrize(
    ("value", "metric", "reason"),
    [
        (np.nan, Metric.L2, "holds NaN or infinity"),
        (1e300, Metric.L2, "holds NaN or infinity"),
        (0.0, Metric.COSINE, "is zero, under cosine"),
    ],
)
def test_a_vector_that_cannot_be_indexed_is_refused_by_its_row(value: float, metric: Metric, reason: str) -> None:
    raw = np.array([[1.0, 2.0], [value, value], [3.0, 4.0]])
    with pytest.raises(VectorColumnError, match=f"f.parquet: the vector of row 6 {reason}"):
        prepared(raw, POSITIONS, FILE, metric)


@pytest.mark.parametrize("dims", [0, 65_537])
def test_vectors_of_more_dimensions_than_an_index_takes_name_their_file(dims: int) -> None:
    with pytest.raises(
        VectorColumnError, match=r"^f\.parquet: vectors have shape .*, not \(rows, 1 to 65536 dimensions\)"
    ):
        prepared(np.zeros((3, dims), np.float32), POSITIONS, FILE, Metric.L2)


def test_hashes_of_doubles_are_those_of_their_floats_but_of_tiny_vectors() -> None:
    vectors = np.random.default_rng(0).standard_normal((5, 3))
    vectors[3] *= 1e-45  # few floats
    vectors[4] *= 1e-300  # none but zero
    floats = vectors.astype(np.float32)
    hashes = content_hashes(vectors)
    assert hashes[:3].tolist() == content_hash(floats[:3]).tolist()
    assert content_hashes(floats).tolist() == content_hash(floats).tolist(), "floats are hashed as they are"
    assert not set(hashes[3:].tolist()) & set(content_hash(floats).tolist())
    assert len(set(content_hashes(np.array([[1e-300, 0], [2e-300, 0], [1e-299, 0]])).tolist())) == 3, "scale counts"
    assert content_hashes(np.zeros((1, 2))).tolist() == content_hash(np.zeros((1, 2), np.float32)).tolist()


def test_positions_are_selected_within_their_batch() -> None:
    assert is_selected(POSITIONS, np.array([1, 6, 9, 10])).tolist() == [False, True, True]
    assert is_selected(POSITIONS, np.array([], np.int64)).tolist() == [False] * 3
