"""Every kernel once, on few rows: `python -m tests.ann_kernels.exercise` prints digests of what they gave.

Distances of codes are integers, so their digests are the same on every CPU, under bounds checks and without the JIT.
"""

import hashlib
import json
from typing import Any

import numpy as np

from icepuffin.ann_kernels import (
    bulk_build,
    four_bit_quantization,
    kmeans,
    product_quantization,
    rotated_quantization,
    scalar_quantization,
    vamana,
)
from icepuffin.ann_kernels.arrays import read_only
from icepuffin.ann_kernels.bitmap import Bitmap
from icepuffin.ann_kernels.bulk_build import BulkParams
from icepuffin.ann_kernels.carving import Carving
from icepuffin.ann_kernels.coded_bounds import CodedBounds
from icepuffin.ann_kernels.coded_comparison import CodedVectors
from icepuffin.ann_kernels.compilation import JIT
from icepuffin.ann_kernels.distance import prepare
from icepuffin.ann_kernels.distance_computers import CodeSpace, FloatSpace
from icepuffin.ann_kernels.four_bit_quantization import FEWEST_DIMS
from icepuffin.ann_kernels.graph import Graph, VamanaParams, medoid_of
from icepuffin.ann_kernels.graph_search import Searcher
from icepuffin.ann_kernels.hashing import content_hash
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.own_candidates import nearest_of_own
from icepuffin.ann_kernels.postings import Postings, common_rows
from icepuffin.ann_kernels.row_sums import add_live_nodes, add_rows
from icepuffin.ann_kernels.simd.byte_products import HAS_AVX2, HAS_VNNI
from icepuffin.ann_kernels.top_k import exact_top_k, merge_top_k
from tests.ann_kernels.data import clustered, packed, reached, well_formed, widely_spread

PARAMS = VamanaParams(max_degree=8, search_list=12)
SMALL = BulkParams(runs=2, carving=Carving(fanout=3, leaf=24, largest=40, leaders=20), nearest=3, fewest_sampled=20)
ROWS = 130


def built(vectors: np.ndarray, metric: Metric) -> Graph:
    """By the bulk builder, then inserted into."""
    before = vectors[:-10]
    space = vamana.build_space(before, metric, 1)
    graph = bulk_build.build(space, before, medoid_of(before), PARAMS, bulk=SMALL, threads=2)
    assert well_formed(graph)
    assert len(reached(graph)) == graph.count
    graph = vamana.insert(graph, vectors, metric, PARAMS, threads=2)
    assert well_formed(graph)
    assert len(reached(graph)) == graph.count
    return graph


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


def main() -> dict[str, Any]:
    """Digests of graphs and answers, and in which mode they were made."""
    even, spread = clustered(ROWS, 9), widely_spread(ROWS, 9)
    even[40:60] = even[40]
    graph = built(even, Metric.L2)
    coded = scalar_quantization.encode(even)
    assert coded is not None
    live = Bitmap.of(even[:, 0] > even[0, 0])
    masked = Searcher(graph, even, Metric.L2, coded_from=1).masked(Bitmap.of_rows(live.places()[::2], ROWS))
    searcher = Searcher(graph, even, Metric.L2, coded_from=1)
    ids, _, stats = searcher.search(even[:5] + 0.1, 3, search_list=12)
    out = {
        "mode": {"vnni": HAS_VNNI, "avx2": HAS_AVX2, "jit": JIT},
        "graph": digest(graph.neighbors, graph.degrees),
        "found": digest(ids, stats.expanded, stats.distances),
        "masked": digest(masked.search(even[:5] + 0.1, 3, search_list=12)[0]),
        "compared": digest(*searcher.compare(even[:3] + 0.1, 3)),
        "codes": digest(coded.space.codes, coded.space.norms, coded.space.sums),
    }
    over_lists = Searcher(packed(graph), even, Metric.L2, codes=coded)
    out["found over lists"] = digest(over_lists.search(even[:5] + 0.1, 3, search_list=12)[0])
    for metric in Metric:
        ready = prepare(spread, metric)
        assert isinstance(
            vamana.build_space(ready, metric, 1), FloatSpace if metric is Metric.L2 else CodeSpace | FloatSpace
        )
        floats = Searcher(built(ready, metric), read_only(ready), metric)
        merge_top_k([floats.search(ready[:3], 2, search_list=12)[:2], exact_top_k(ready[:3], ready, 2, metric)], 2)
    long = clustered(ROWS, FEWEST_DIMS)
    four_bit = four_bit_quantization.encode(long)
    assert four_bit is not None
    out["four bits"] = digest(*four_bit.space)
    by_four_bits = Searcher(graph, long, Metric.L2, codes=four_bit)
    out["found by four bits"] = digest(by_four_bits.search(long[:5] + 0.1, 3, search_list=12)[0])
    signed = four_bit.with_signs()
    assert signed.signs is not None
    out["signs"] = digest(*signed.signs)
    by_signs = Searcher(graph, long, Metric.L2, codes=signed)
    out["found by signs"] = digest(by_signs.search(long[:5] + 0.1, 3, search_list=12)[0])
    every = np.arange(ROWS, dtype=np.uint32)
    postings = Postings.of([(np.array([0, ROWS, ROWS + 3]), np.append(every, [7, 9, 70]).astype(np.uint32))], 4 * ROWS)
    own = common_rows(postings, np.array([0, 1, 0], np.int32), np.array([0, 2, 3]), np.resize(every, 4 * ROWS), ROWS)
    for vectors in (CodedVectors(even, coded), even):
        nearest = nearest_of_own(vectors, Metric.L2, even[:2].astype(np.float64) + 0.1, (own.starts, own.nodes), 2)
        order = np.lexsort((nearest.nodes, nearest.queries))
        out[f"own of {type(vectors).__name__}"] = digest(nearest.nodes[order], nearest.distances[order])
    bounds = CodedBounds.of(even)
    assert bounds is not None
    assert (bounds.least_distances(even[7].astype(np.float64)) <= np.linalg.norm(even - even[7], axis=1) + 1e-6).all()
    codebook = product_quantization.train_pq(even, 3, seed=0, iterations=1)
    Searcher(graph, None, Metric.L2, pq=(codebook, product_quantization.encode_pq(even, codebook))).search(
        even, 2, search_list=12
    )
    for bits in (4, 5, 8):  # sums of floats: what is found is the same, and its distances nearly
        rotated = rotated_quantization.encode(even, bits, rotated_quantization.center_of(even), seed=0)
        by_rotated = Searcher(graph, None, Metric.L2, rotated=rotated)
        out[f"found by {bits} rotated bits"] = digest(by_rotated.search(even[:5] + 0.1, 3, search_list=12)[0])
        assert np.abs(rotated_quantization.decode(rotated.take(np.arange(9))) - even[:9]).max() < 0.5
    kmeans.train(even, 4, seed=0, iterations=1)
    counts, sums = np.zeros(3, np.int64), np.zeros(3, np.uint64)
    add_rows(np.arange(ROWS, dtype=np.uint32) % 3, np.arange(ROWS), content_hash(even), counts, sums)
    out["rows"] = digest(counts, sums)
    zeros, limits = np.zeros(ROWS, np.uint32), np.array([[3], [9]])
    out["nodes"] = digest(add_live_nodes(zeros, np.arange(ROWS), even[:, 0] > 0, *limits, counts[:1], sums[:1]))
    return out


if __name__ == "__main__":
    print(json.dumps(main()))  # noqa: T201
