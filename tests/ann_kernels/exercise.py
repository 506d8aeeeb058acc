"""Every kernel once, on few rows: `python -m tests.ann_kernels.exercise [PART ...]` prints digests of what they gave.

Distances of codes are integers, so their digests are the same on every CPU, under bounds checks and without the JIT.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from icepuffin.ann_kernels.arrays import read_only
from icepuffin.ann_kernels.codes import (
    four_bit_quantization,
    kmeans,
    product_quantization,
    rotated_quantization,
    scalar_quantization,
)
from icepuffin.ann_kernels.codes.coded_bounds import CodedBounds
from icepuffin.ann_kernels.codes.four_bit_quantization import MIN_DIMS, FourBitCodes
from icepuffin.ann_kernels.compilation import JIT
from icepuffin.ann_kernels.distances.coded_comparison import CodedVectors
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.distance_computers import CodeSpace, FloatSpace
from icepuffin.ann_kernels.distances.listed_candidates import nearest_listed
from icepuffin.ann_kernels.distances.top_k import exact_top_k, merge_top_k
from icepuffin.ann_kernels.graphs import bulk_build, vamana
from icepuffin.ann_kernels.graphs.bulk_build import BulkParams
from icepuffin.ann_kernels.graphs.carving import Carving
from icepuffin.ann_kernels.graphs.graph import Graph, VamanaParams, medoid_of
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ann_kernels.rows.postings import Postings, common_rows
from icepuffin.ann_kernels.rows.row_sums import add_live_nodes, add_rows
from icepuffin.ann_kernels.simd.byte_products import HAS_AVX2, HAS_VNNI
from icepuffin.ann_kernels.sketches import theta
from icepuffin.ann_kernels.sketches.hashing import content_hash
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


@dataclass(frozen=True)
class Rows:
    """What the parts share: vectors, and a graph over them."""

    even: np.ndarray
    spread: np.ndarray
    long: np.ndarray
    graph: Graph

    @classmethod
    def drawn(cls) -> "Rows":
        even = clustered(ROWS, 9)
        even[40:60] = even[40]
        return cls(even, widely_spread(ROWS, 9), clustered(ROWS, MIN_DIMS), nearest_linked(even))


def nearest_linked(vectors: np.ndarray) -> Graph:
    """Edges to the next row and to the nearest ones, found without a kernel."""
    gaps = np.square(vectors[:, None] - vectors).sum(axis=2)
    np.fill_diagonal(gaps, np.inf)
    count = len(vectors)
    gaps[np.arange(count), (np.arange(count) + 1) % count] = -1
    neighbors = np.argsort(gaps, axis=1, kind="stable")[:, : PARAMS.max_degree].astype(np.int32)
    return Graph(neighbors, np.full(count, PARAMS.max_degree, np.int32), medoid_of(vectors))


Digests = dict[str, str]


def graphs(rows: Rows) -> Digests:
    graph = built(rows.even, Metric.L2)
    return {"graph": digest(graph.neighbors, graph.degrees)}


def by_codes(rows: Rows) -> Digests:
    even = rows.even
    live = Bitmap.from_mask(even[:, 0] > even[0, 0])
    searcher = Searcher(rows.graph, even, Metric.L2, coded_from=1)
    masked = searcher.masked(Bitmap.of_rows(live.indices()[::2], ROWS))
    ids, _, stats = searcher.search(even[:5] + 0.1, 3, search_list=12)
    return {
        "found": digest(ids, stats.expanded, stats.distances),
        "masked": digest(masked.search(even[:5] + 0.1, 3, search_list=12)[0]),
        "compared": digest(*searcher.compare(even[:3] + 0.1, 3)),
    }


def over_lists(rows: Rows) -> Digests:
    coded = scalar_quantization.encode(rows.even)
    assert coded is not None
    searcher = Searcher(packed(rows.graph), rows.even, Metric.L2, codes=coded)
    return {
        "codes": digest(coded.space.codes, coded.space.norms, coded.space.sums),
        "found over lists": digest(searcher.search(rows.even[:5] + 0.1, 3, search_list=12)[0]),
    }


def by_floats(metric: Metric, rows: Rows) -> Digests:
    ready = prepare(rows.spread, metric)
    space = vamana.build_space(ready, metric, 1)
    assert isinstance(space, FloatSpace if metric is Metric.L2 else CodeSpace | FloatSpace)
    searcher = Searcher(built(ready, metric), read_only(ready), metric)
    merge_top_k([searcher.search(ready[:3], 2, search_list=12)[:2], exact_top_k(ready[:3], ready, 2, metric)], 2)
    return {}


def by_four_bits(rows: Rows) -> Digests:
    codes = four_bit_quantization.encode(rows.long)
    assert codes is not None
    return {"four bits": digest(*codes.space), "found by four bits": nearest_by(codes, rows)}


def by_signs(rows: Rows) -> Digests:
    codes = four_bit_quantization.encode(rows.long)
    assert codes is not None
    signed = codes.with_signs()
    assert signed.signs is not None
    return {"signs": digest(*signed.signs), "found by signs": nearest_by(signed, rows)}


def nearest_by(codes: FourBitCodes, rows: Rows) -> str:
    searcher = Searcher(rows.graph, rows.long, Metric.L2, codes=codes)
    return digest(searcher.search(rows.long[:5] + 0.1, 3, search_list=12)[0])


def over_postings(rows: Rows) -> Digests:
    even = rows.even
    coded = scalar_quantization.encode(even)
    every = np.arange(ROWS, dtype=np.uint32)
    postings = Postings.from_parts(
        [(np.array([0, ROWS, ROWS + 3]), np.append(every, [7, 9, 70]).astype(np.uint32))], 4 * ROWS
    )
    own = common_rows(postings, np.array([0, 1, 0], np.int32), np.array([0, 2, 3]), np.resize(every, 4 * ROWS), ROWS)
    out = {}
    assert coded is not None
    for vectors in (CodedVectors(even, coded), even):
        nearest = nearest_listed(vectors, Metric.L2, even[:2].astype(np.float64) + 0.1, (own.starts, own.nodes), 2)
        order = np.lexsort((nearest.nodes, nearest.queries))
        out[f"own of {type(vectors).__name__}"] = digest(nearest.nodes[order], nearest.distances[order])
    return out


def by_products(rows: Rows) -> Digests:
    even = rows.even
    codebook = product_quantization.train_pq(even, 3, seed=0, iterations=1)
    searcher = Searcher(rows.graph, None, Metric.L2, pq=(codebook, product_quantization.encode_pq(even, codebook)))
    searcher.search(even, 2, search_list=12)
    return {}


def by_rotated_bits(rows: Rows) -> Digests:
    """Sums of floats: what is found is the same, and its distances nearly."""
    even, out = rows.even, {}
    for bits in (4, 5, 8):
        rotated = rotated_quantization.encode(even, bits, rotated_quantization.center_of(even), seed=0)
        searcher = Searcher(rows.graph, None, Metric.L2, rotated=rotated)
        out[f"found by {bits} rotated bits"] = digest(searcher.search(even[:5] + 0.1, 3, search_list=12)[0])
        assert np.abs(rotated_quantization.decode(rotated.take(np.arange(9))) - even[:9]).max() < 0.5
    return out


def without_graphs(rows: Rows) -> Digests:
    even = rows.even
    bounds = CodedBounds.from_vectors(even)
    assert bounds is not None
    assert (bounds.least_distances(even[7].astype(np.float64)) <= np.linalg.norm(even - even[7], axis=1) + 1e-6).all()
    kmeans.train(even, 4, seed=0, iterations=1)
    counts, sums = np.zeros(3, np.int64), np.zeros(3, np.uint64)
    add_rows(np.arange(ROWS, dtype=np.uint32) % 3, np.arange(ROWS), content_hash(even), counts, sums)
    zeros, limits = np.zeros(ROWS, np.uint32), np.array([[3], [9]])
    live = add_live_nodes(zeros, np.arange(ROWS), even[:, 0] > 0, *limits, counts[:1], sums[:1])
    return {"rows": digest(counts, sums), "nodes": digest(live)}


def sketches(rows: Rows) -> Digests:
    accumulator = theta.ThetaAccumulator(8)
    accumulator.update_fixed(np.arange(60))
    accumulator.update_fixed(rows.even[:, 0].copy(), np.full(17, 0x5A, np.uint8), 5)
    accumulator.update_bytes(np.arange(0, 101, 20, dtype=np.int32), np.arange(100, dtype=np.uint8))
    accumulator.update_decimals(np.random.default_rng(0).integers(0, 2**64, (50, 2), np.uint64))
    bound, hashes = accumulator.result()
    return {"sketch": digest(np.array([bound]), hashes, theta.union([(bound, hashes)], 4)[1])}


PARTS: dict[str, Callable[[Rows], Digests]] = {
    part.__name__: part
    for part in (
        graphs, sketches, by_codes, over_lists, by_four_bits, by_signs, over_postings, by_products, by_rotated_bits,
        without_graphs,
    )
} | {f"by_floats_of_{metric.name}": partial(by_floats, metric) for metric in Metric}  # fmt: skip


def main(parts: Sequence[str]) -> dict[str, Any]:
    """Digests of graphs and answers, and in which mode they were made."""
    rows = Rows.drawn()
    out: dict[str, Any] = {"mode": {"vnni": HAS_VNNI, "avx2": HAS_AVX2, "jit": JIT}}
    for part in parts:
        out |= PARTS[part](rows)
    return out


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:] or [*PARTS])))  # noqa: T201
