"""The benchmark of searches: the beam that it measures reaches the recall that it names."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import search
from benchmarks.lake import STORAGE, Lake, held_out
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.search.opening import open_index


def test_a_recall_that_no_beam_reaches_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((620, 8), np.float32))
    queries, base = held_out(tmp_path / "rows.npy", 20)
    definition = IndexDefinition(name="bench", column="embedding", metric="l2", shards=1, target_recall=0.0)
    lake = Lake(tmp_path, base, len(base), 1, definition, 1)
    lake.index()
    reader = open_index(lake.table.refresh(), definition, storage=STORAGE, threads=1)
    truth = exact_top_k(queries, base, search.K, definition.metric)[0]
    assert search._width_for(reader, queries, truth, 0.9) in search.WIDTHS
    with pytest.raises(SystemExit, match="recall of 1"):
        search._width_for(reader, queries, truth, 1.01)
