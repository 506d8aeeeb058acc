"""What kernels cannot take is refused before they run, by a message with the numbers that do not fit."""

import re
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from icepuffin.ann_kernels.codes.kmeans import train
from icepuffin.ann_kernels.codes.product_quantization import encode_pq, train_pq
from icepuffin.ann_kernels.distances import distance
from icepuffin.ann_kernels.distances.distance import prepare, prepare_exact
from icepuffin.ann_kernels.errors import DimensionError, KernelError, NonFiniteVectorError, ZeroVectorError
from icepuffin.ann_kernels.graphs.graph import Graph, VamanaParams
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.graphs.vamana import insert
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ann_kernels.rows.row_sums import add_live_nodes, add_rows
from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator

PAIR = Graph(np.array([[1, -1], [0, -1]], np.int32), np.array([1, 1], np.int32), 0)
VECTORS = np.eye(2, 4, dtype=np.float32)
BEHIND_A_BLOCK = np.r_[np.ones(2**17), 0.0].astype(np.float32)[:, None] * np.ones(8, np.float32)  # of 2^20 values
SEARCHER = Searcher(PAIR, VECTORS, Metric.L2)
L2, COSINE = Metric.L2, Metric.COSINE


def rows(slots: list[int], positions: int, hashes: int, files: int, sums: int) -> None:
    add_rows(
        np.array(slots, np.uint32),
        np.zeros(positions, np.int64),
        np.zeros(hashes, np.uint64),
        np.zeros(files, np.int64),
        np.zeros(sums, np.uint64),
    )


def nodes(slots: list[int], positions: int, live: int, files: tuple[int, int, int, int]) -> None:
    firsts, lasts, counts, sums = (np.zeros(count, np.int64) for count in files)
    add_live_nodes(
        np.array(slots, np.uint32),
        np.zeros(positions, np.int64),
        np.ones(live, np.bool_),
        firsts,
        lasts,
        counts,
        sums.view(np.uint64),
    )


@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        (partial(prepare, np.zeros(4), L2), DimensionError, "vectors have shape (4,), not (rows, 1 to "),
        (partial(prepare, np.zeros((2, 0)), L2), DimensionError, "vectors have shape (2, 0)"),
        (partial(prepare, np.zeros((1, 65_537)), L2), DimensionError, "vectors have shape (1, 65537)"),
        (partial(prepare_exact, np.zeros(4), L2), DimensionError, "vectors have shape (4,)"),
        (partial(prepare, np.array([[1.0], [np.nan]]), L2), NonFiniteVectorError, "1"),
        (partial(prepare_exact, np.array([[1.0], [1e39]]), L2), NonFiniteVectorError, "1"),
        (partial(prepare, np.array([[1.0], [0.0]]), COSINE), ZeroVectorError, "1"),
        (partial(prepare, BEHIND_A_BLOCK, COSINE), ZeroVectorError, str(len(BEHIND_A_BLOCK) - 1)),
        (partial(prepare_exact, np.array([[1.0], [9e-151]]), COSINE), ZeroVectorError, "1"),
        *(
            (partial(VamanaParams, *params), KernelError, "max_degree is 1 to 4096, search_list at least 1, alpha 1 to")
            for params in ((0, 1, 1.0), (4_097, 1, 1.0), (1, 0, 1.0), (1, 1, 0.99), (1, 1, 4.01))
        ),
        (partial(Metric.of_code, 4), ValueError, "no metric has the number 4"),
        (partial(Searcher, PAIR, None, L2), KernelError, "a search needs vectors or codes"),
        (partial(Searcher, PAIR, VECTORS[:1], L2), DimensionError, "the graph has 2 nodes, but there are 1 vectors"),
        (
            partial(Searcher, PAIR, VECTORS, L2, is_live=np.ones(3, np.bool_)),
            DimensionError,
            "the graph has 2 nodes, but there are 3 is_live",
        ),
        (
            partial(Searcher, PAIR, None, L2, pq=(np.zeros((1, 256, 4), np.float32), np.zeros((3, 1), np.uint8))),
            DimensionError,
            "the graph has 2 nodes, but there are 3 PQ codes",
        ),
        (
            partial(SEARCHER.masked, Bitmap.from_mask(np.ones(3, np.bool_))),
            DimensionError,
            "the graph has 2 nodes, but there are 3 live",
        ),
        (partial(SEARCHER.search, VECTORS, 0, search_list=9), KernelError, "k is 0; it must be at least 1"),
        (
            partial(SEARCHER.search, VECTORS[:, :3], 1, search_list=9),
            DimensionError,
            "queries have shape (2, 3), not (rows, 4 dimensions)",
        ),
        (
            partial(SEARCHER.search, VECTORS[0], 1, search_list=9),
            DimensionError,
            "queries have shape (4,), not (rows, 4 dimensions)",
        ),
        (partial(train, VECTORS, 0, seed=0), KernelError, "one centroid and one vector, not 0 and 2"),
        (partial(train, VECTORS[:0], 1, seed=0), KernelError, "one centroid and one vector, not 1 and 0"),
        (partial(train_pq, VECTORS, 3, seed=0), DimensionError, "3 sub-quantizers do not divide 4 dimensions"),
        (partial(train_pq, VECTORS, 1, bits=4, seed=0), KernelError, "1 codes of 4 bits do not fill whole bytes"),
        (partial(train_pq, VECTORS, 4, bits=6, seed=0), KernelError, "4 codes of 6 bits do not fill whole bytes"),
        (
            partial(encode_pq, VECTORS, np.zeros((3, 16, 1), np.float32)),
            DimensionError,
            "vectors have 4 dimensions, the codebook 3",
        ),
        (
            partial(encode_pq, VECTORS, np.zeros((4, 17, 1), np.float32)),
            KernelError,
            "the codebook has 17 codewords a part, not 16 or 256",
        ),
        (partial(rows, [0], 2, 1, 1, 1), DimensionError, "1 slots, 2 positions and 1 hashes are no rows"),
        (partial(rows, [0], 1, 2, 1, 1), DimensionError, "1 slots, 1 positions and 2 hashes are no rows"),
        (partial(rows, [0], 1, 1, 1, 2), DimensionError, "1 slots, 1 positions and 1 hashes are no rows"),
        (partial(rows, [0, 2], 2, 2, 2, 2), DimensionError, "a row lies in slot 2 of 2 files"),
        (partial(nodes, [0], 2, 1, (1, 1, 1, 1)), DimensionError, "1 slots and 2 positions are not of 1 nodes"),
        (partial(nodes, [0], 1, 2, (1, 1, 1, 1)), DimensionError, "1 slots and 1 positions are not of 2 nodes"),
        (partial(nodes, [0], 1, 1, (1, 2, 1, 1)), DimensionError, "1 slots and 1 positions are not of 1 nodes"),
        (partial(nodes, [0], 1, 1, (1, 1, 1, 2)), DimensionError, "1 slots and 1 positions are not of 1 nodes"),
        (partial(nodes, [1], 1, 1, (1, 1, 1, 1)), DimensionError, "a row lies in slot 1 of 1 files"),
        (partial(ThetaAccumulator, 0), KernelError, "a theta sketch keeps 1 to 2^26 hashes, got k = 0"),
        (partial(ThetaAccumulator, 2**26 + 1), KernelError, "got k = 67108865"),
        (
            partial(ThetaAccumulator().update_fixed, np.zeros((1, 1), np.int32)),
            KernelError,
            "update_fixed takes numbers of 1, 4 or 8 bytes, got int32[1, 1]",
        ),
        (
            partial(ThetaAccumulator().update_bytes, np.zeros(2, np.int16), np.zeros(0, np.uint8)),
            KernelError,
            "update_bytes takes offsets i32 or i64[N + 1], got int16[2]",
        ),
        (
            partial(ThetaAccumulator().update_bytes, np.zeros(0, np.int32), np.zeros(0, np.uint8)),
            KernelError,
            "update_bytes takes offsets i32 or i64[N + 1], got int32[0]",
        ),
        (
            partial(ThetaAccumulator().update_bytes, np.zeros(2, np.int32), np.zeros(0, np.int8)),
            KernelError,
            "update_bytes takes data u8[], got int8[0]",
        ),
        (
            partial(ThetaAccumulator().update_bytes, np.array([0, 2], np.int32), np.zeros(1, np.uint8)),
            KernelError,
            "offsets must ascend from 0 or more to at most 1, the length of the data",
        ),
        (
            partial(insert, PAIR, VECTORS[:1], L2, VamanaParams(2, 9, 1.2)),
            DimensionError,
            "1 vectors cannot hold the 2 that the graph has and new ones",
        ),
        (
            partial(insert, PAIR, VECTORS, L2, VamanaParams(1, 9, 1.2)),
            DimensionError,
            "the graph has degree 2, the parameters 1",
        ),
    ],
)
def test_what_kernels_cannot_take_is_refused_by_its_numbers(
    call: Callable[[], object], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=re.escape(reason)):
        call()


def test_the_smallest_and_the_largest_that_kernels_take_is_taken() -> None:
    assert prepare(np.zeros((1, 65_536), np.float32), L2).shape == (1, 65_536)
    assert prepare_exact(np.array([[2e-150]]), COSINE).tolist() == [[1.0]]
    assert VamanaParams(1, 1, 1.0).max_degree == 1
    assert VamanaParams(4_096, 1, 4.0).max_degree == 4_096


def test_a_row_past_the_first_block_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distance, "_ROWS_PER_BLOCK", 2)
    monkeypatch.setattr(distance, "_VALUES_PER_BLOCK", 8)
    vectors = np.eye(4)[[0, 1, 2, 3, 0]]
    for value, error in ((np.nan, NonFiniteVectorError), (0.0, ZeroVectorError)):
        vectors[3] = value
        with pytest.raises(error, match="3"):
            prepare(vectors, COSINE)
