"""Compilation of this package's kernels into numba's cache."""

import numpy as np

from icepuffin.ann_kernels.arrays import F32
from icepuffin.ann_kernels.codes import product_quantization, rotated_quantization
from icepuffin.ann_kernels.codes.code_sizes import ROTATED_BITS
from icepuffin.ann_kernels.codes.coded_bounds import CodedBounds
from icepuffin.ann_kernels.codes.four_bit_quantization import MIN_DIMS
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.exact_distances import lengths
from icepuffin.ann_kernels.distances.listed_candidates import nearest_listed
from icepuffin.ann_kernels.distances.lower_bounds import QUERIES_AT_ONCE
from icepuffin.ann_kernels.distances.top_k import exact_top_k, merge_top_k
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.graphs.graph import Graph, PackedAdjacency, PackedGraph
from icepuffin.ann_kernels.graphs.graph_search import MIN_CODED, Searcher
from icepuffin.ann_kernels.graphs.locality import locality_order, reorder
from icepuffin.ann_kernels.graphs.vamana import VamanaParams
from icepuffin.ann_kernels.graphs.walk_codes import MIN_SIGNED_DIMS
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ann_kernels.rows.dead_rows import DeadRows
from icepuffin.ann_kernels.rows.matching import pair_equal
from icepuffin.ann_kernels.rows.postings import Postings, common_rows
from icepuffin.ann_kernels.rows.row_sums import add_live_nodes, add_rows
from icepuffin.ann_kernels.sketches import hashing, theta
from icepuffin.ann_kernels.sketches.hashing import content_hash
from icepuffin.ann_kernels.text import bm25, term_lists, words

_ROWS = 4_104
"""Rows enough that a build carves leaves, and a searcher codes them"""
_PARAMS = VamanaParams(max_degree=8, search_list=16)


def warm_graphs() -> None:
    """Builds, inserts and searches by one-byte codes and by whole vectors, and exact comparison."""
    _build(_vectors(8), Metric.L2)
    _build(_widely_spread(), Metric.L2)


def warm_inner_products() -> None:
    """The same by the inner product."""
    _build(_widely_spread(), Metric.INNER_PRODUCT)
    few = _vectors(8)[:64]  # a searcher codes no graph as small as this
    _search(Searcher(vamana.build(few, Metric.INNER_PRODUCT, _PARAMS), few, Metric.INNER_PRODUCT), few)


def warm_four_bits() -> None:
    """Searches by codes of four bits, without signs and with them."""
    for dims in (MIN_DIMS, MIN_SIGNED_DIMS):
        long = _vectors(dims)[:MIN_CODED]
        _search(Searcher(_ring(len(long)), long, Metric.L2), long)


def warm_packed_lists() -> None:
    """Searches over packed lists."""
    wide = _vectors(96)[:100]
    _search(Searcher(_packed_ring(len(wide)), wide, Metric.L2, coded_from=1, compact=True), wide)


def warm_products() -> None:
    """Searches by PQ codes."""
    even = _vectors(8)
    codebook = product_quantization.train_pq(even, 4, seed=0, iterations=1)
    pq_codes = product_quantization.encode_pq(even, codebook)
    _search(Searcher(_ring(len(even)), None, Metric.L2, pq=(codebook, pq_codes)), even)


def warm_rotated_codes() -> None:
    """Searches by rotated codes."""
    even = _vectors(8)
    for bits in ROTATED_BITS.values():
        rotated = rotated_quantization.encode(even, bits, rotated_quantization.center_of(even), seed=0)
        rotated_quantization.decode(rotated.take(np.arange(2)))
        _search(Searcher(_ring(len(even)), None, Metric.L2, rotated=rotated), even)


def warm_texts() -> None:
    """Words of texts, and rows ranked by them."""
    for module in (words, term_lists, bm25):
        module.warm()


def warm_scans() -> None:
    """Scans of vectors, of a column of floats and of one of doubles, which scans compare as they are."""
    even = _vectors(8)
    for metric in (Metric.L2, Metric.INNER_PRODUCT):
        exact_top_k(even[:QUERIES_AT_ONCE], even, 3, metric)
        doubles = even.astype(np.float64)
        for count in (2, QUERIES_AT_ONCE):
            exact_top_k(doubles[:count], doubles, 3, metric)
    prepare(even, Metric.COSINE)
    lengths(even)
    if (bounds := CodedBounds.from_vectors(even)) is not None:
        bounds.least_distances(even[0].astype(np.float64))


def warm_rows() -> None:
    """Order, hashes and sets of rows."""
    even = _vectors(8)
    reorder(even, locality_order(even))
    hashes = content_hash(even)
    pair_equal(hashes, hashes)
    indices = Bitmap.from_mask(even[:, 0] > 0).indices()
    for rows in (indices, indices.astype(np.uint32)):
        Bitmap.of_rows(rows, len(even))
    rare = Bitmap.of_few(indices.astype(np.uint32), len(even))
    rare &= Bitmap.from_mask(even[:, 1] > 0)
    for kind in (np.uint8, np.uint16, np.uint32):
        rare.coded(np.zeros(len(even), kind), 0, 1).count()
    postings = Postings.from_parts([(np.array([0, 3, 5]), np.arange(5, dtype=np.uint32))], len(even))
    common = common_rows(postings, np.zeros(1, np.int32), np.arange(2), np.arange(len(even), dtype=np.uint32), 3)
    nearest_listed(even, Metric.L2, even[:1].astype(np.float64), (common.starts, common.nodes), 2)
    zeros = np.zeros(len(hashes), np.uint32)
    add_rows(zeros, zeros.astype(np.int64), hashes, np.zeros(1, np.int64), np.zeros(1, np.uint64))
    tally = np.zeros(1, np.int64), np.zeros(1, np.uint64)
    add_live_nodes(zeros, zeros.astype(np.int64), zeros == 0, np.zeros(1, np.int64), np.zeros(1, np.int64), *tally)
    DeadRows(zeros[:1], {1: np.zeros(1, np.int64)}).remove(zeros, zeros.astype(np.int64), zeros == 0)


PARTS = (
    warm_graphs,
    theta.warm,
    hashing.warm,
    warm_rows,
    warm_texts,
    warm_scans,
    warm_rotated_codes,
    warm_four_bits,
    warm_products,
    warm_packed_lists,
    warm_inner_products,
)
"""In an order in which two processes seldom compile the same kernel at once: what many parts need, the first has
compiled by the time that the others come to it
"""


def _vectors(dims: int) -> F32:
    return np.random.default_rng(0).standard_normal((_ROWS, dims)).astype(np.float32)


def _widely_spread() -> F32:
    """Vectors that codes cannot hold."""
    even = _vectors(8)
    scales = 10.0 ** np.random.default_rng(1).uniform(-6, 6, (len(even), 1))
    return (even * scales).astype(np.float32)


def _build(vectors: F32, metric: Metric) -> None:
    ready = prepare(np.concatenate([vectors, vectors[:1]]), metric)  # a copy, too
    graph = vamana.insert(vamana.build(ready[:-8], metric, _PARAMS), ready, metric, _PARAMS)
    searcher = Searcher(graph, ready, metric)
    ids, distances, _ = searcher.search(ready[:2], 3, search_list=16)
    searcher.compare(ready[:2], 3)
    merge_top_k([(ids, distances), exact_top_k(ready[:2], ready, 3, metric)], 3)


def _search(searcher: Searcher, queries: F32) -> None:
    searcher.search(queries[:2], 3, search_list=16)


def _ring(count: int) -> Graph:
    """A graph in which the neighbours of each node are the next ones."""
    following = np.add.outer(np.arange(count), np.arange(1, 1 + _PARAMS.max_degree)) % count
    return Graph(following.astype(np.int32), np.full(count, _PARAMS.max_degree, np.int32), 0)


def _packed_ring(count: int) -> PackedGraph:
    """A graph of fewer than 128 nodes in which the neighbour of each is the next one."""
    following = (np.arange(count) + 1) % count
    lists = np.stack([np.ones(count, np.uint8), following.astype(np.uint8)], axis=1).reshape(-1)
    return PackedGraph(PackedAdjacency(lists, np.arange(0, 2 * count + 1, 2, dtype=np.uint32), 1), 0)
