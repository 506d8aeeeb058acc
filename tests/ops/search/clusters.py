"""Rows in clusters: a file of one cluster is far from the files of others."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tests.conftest import DIMS, ROWS

CENTERS = 3 * np.eye(DIMS)[:6]


def clustered(first: int, count: int, center: Sequence[float], seed: int = 0) -> pa.Table:
    """Rows around one point: their data file is far from the others."""
    rng = np.random.default_rng([seed, first])
    ids = np.arange(first, first + count)
    vectors = np.asarray(center) + 0.3 * rng.standard_normal((count, DIMS))
    columns = {"id": ids, "name": [f"n{i}" for i in ids], "section": [f"section {i % 5}" for i in ids]}
    return pa.table({**columns, "embedding": pa.array(vectors.tolist(), pa.list_(pa.float32()))}, schema=ROWS)
