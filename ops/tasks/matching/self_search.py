"""Self-search: rows of the table, searched by their own vectors in the shards that hold their nodes.

A sound shard gives back almost all of them. One whose graph, vectors or addresses are wrong does not, whatever its
checksums say.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.codes.product_quantization import decode_pq, encode_pq
from icepuffin.ann_kernels.codes.rotated_quantization import decode, encode
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import StorageConfig, StoredShard
from icepuffin.ops.process.large_arrays import as_floats
from icepuffin.ops.recall.curves import MEASURED_K, WIDE_K
from icepuffin.ops.rows.addresses import addresses_of
from icepuffin.ops.shards.shard_codes import as_kernels_take
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.tasks.recall_gate import recall_of_nodes, search_by_defaults, searcher_of
from icepuffin.ops.tasks.rows import live_nodes
from icepuffin.puffin.blobs import deletion_vector_blob
from icepuffin.puffin.blobs.shard_blob import Shard

_FLOAT_TOLERANCE = 1e-5
"""Largest difference between a vector and its stored copy, relative to the vector's largest component: releases may
normalize differently by a rounding. Content hashes tell nearer vectors apart
"""
_HALF_TOLERANCE = 2.0**-10
"""Largest difference between a vector and its stored copy in f16, relative to the vector's largest component"""
_SMALLEST_HALF = 2.0**-24
_CODE_TOLERANCE = 1e-4
"""Largest difference of squared distances to a code and to the nearest one, relative to these and to squared lengths"""
_ENOUGH = 0.5
"""Share of rows below which nodes that are drawn at random are searched, too"""
_DRAWN = 128
"""Number of nodes that are drawn at random"""


@dataclass(frozen=True, slots=True, eq=False)
class SelfSearchTask:
    """Rows whose nodes lie in one shard."""

    shard: StoredShard
    tombstones: bytes
    """Nodes without a live row, as a deletion vector"""
    addresses: npt.NDArray[np.int64]
    """Addresses of the rows, ascending, as `addresses_of` gives them of file slots and positions"""
    vectors: npt.NDArray[np.float32]
    """f32[n, D], prepared, as the table has them"""
    storage: StorageConfig
    threads: int = 1


@dataclass(frozen=True, slots=True)
class SelfSearchResult:
    """What searching rows by their own vectors gave."""

    rows: int
    """Rows that were searched"""
    misplaced: int
    """Rows whose node is missing, or holds another vector"""
    returned: int
    """Rows that were among the answers, or as near to them as the farthest answer"""
    queries: int
    """Rows by whose vectors recall was measured; 0 in lean shards, which hold no vectors to compare with"""
    recall: float
    """recall@10 of `queries` within their shards; 1.0 where there are none"""
    drawn: int = 0
    """Nodes drawn at random that were searched by their stored vectors or codes, where few rows came back"""
    drawn_returned: int = 0
    """Drawn nodes that came back"""
    wide_queries: int = 0
    """Rows by whose vectors recall@100 was measured: those in shards that have a hundred other rows"""
    wide_recall: float = 1.0
    """recall@100 of `wide_queries` within their shards; 1.0 where there are none"""

    @classmethod
    def joined(cls, parts: "Iterable[SelfSearchResult]") -> "SelfSearchResult":
        """The sum of several shards' results."""
        results = list(parts)
        queries, wide_queries = sum(part.queries for part in results), sum(part.wide_queries for part in results)
        wide_hits = sum(part.wide_recall * part.wide_queries for part in results)
        return cls(
            rows=sum(part.rows for part in results),
            misplaced=sum(part.misplaced for part in results),
            returned=sum(part.returned for part in results),
            queries=queries,
            recall=sum(part.recall * part.queries for part in results) / queries if queries else 1.0,
            wide_queries=wide_queries,
            wide_recall=wide_hits / wide_queries if wide_queries else 1.0,
            drawn=sum(part.drawn for part in results),
            drawn_returned=sum(part.drawn_returned for part in results),
        )


def self_search(task: SelfSearchTask) -> SelfSearchResult:
    """Search the rows by their own vectors. Memory: the shard, decoded. Raises StorageError, PuffinError."""
    return search_rows(
        open_shard(task.shard, task.storage).read(),
        deletion_vector_blob.decode(task.tombstones),
        task.addresses,
        task.vectors,
        threads=task.threads,
    )


def search_rows(
    shard: Shard,
    tombstones: npt.NDArray[np.int64],
    addresses: npt.NDArray[np.int64],
    vectors: npt.NDArray[np.float32],
    *,
    threads: int,
) -> SelfSearchResult:
    """Search rows of one shard by their own vectors f32[n, D], prepared; `addresses` int64[n] are their addresses."""
    is_live = live_nodes(shard.count, tombstones)
    nodes = _nodes_of(shard, is_live, addresses)
    placed = nodes >= 0
    placed[placed] = _has_vector(shard, nodes[placed], vectors[placed])
    nodes, vectors = nodes[placed], vectors[placed]
    if shard.vectors is not None:  # once: halves are widened by each use
        shard = replace(shard, vectors=as_floats(shard.vectors))
    returned, recall, wide_recall = 0, np.empty(0), np.empty(0)
    drawn = drawn_returned = 0
    if len(nodes):
        searcher = searcher_of(shard, None, is_live, coded_from=sys.maxsize)
        k = min(MEASURED_K + 1, int(is_live.sum()))
        answers, _ = search_by_defaults(searcher, shard, vectors, k, threads=threads)
        returned = int(_is_returned(shard, nodes, answers, vectors).sum())
        if returned < _ENOUGH * len(nodes):
            drawn, drawn_returned = _search_drawn(searcher, shard, is_live, threads=threads)
        if shard.vectors is not None and is_live.sum() > 1:
            widened = as_floats(shard.vectors)
            recall = recall_of_nodes(searcher, shard, widened, is_live, nodes, threads=threads)
            if is_live.sum() > WIDE_K:
                wide_recall = recall_of_nodes(searcher, shard, widened, is_live, nodes, threads=threads, rows=WIDE_K)
    return SelfSearchResult(
        rows=len(addresses),
        misplaced=len(addresses) - len(nodes),
        returned=returned,
        queries=len(recall),
        recall=float(recall.mean()) if len(recall) else 1.0,
        wide_queries=len(wide_recall),
        wide_recall=float(wide_recall.mean()) if len(wide_recall) else 1.0,
        drawn=drawn,
        drawn_returned=drawn_returned,
    )


def _search_drawn(
    searcher: Searcher,
    shard: Shard,
    is_live: npt.NDArray[np.bool_],
    *,
    threads: int,
) -> tuple[int, int]:
    """(number of nodes drawn at random, number of those that came back).

    The rows of a sample lie side by side in the table, and may all be hard to reach in a graph that is sound.
    """
    nodes = np.flatnonzero(is_live)
    drawn = np.sort(np.random.default_rng(len(nodes)).choice(nodes, min(_DRAWN, len(nodes)), replace=False))
    queries = _stored(shard, drawn)
    answers, _ = search_by_defaults(searcher, shard, queries, min(MEASURED_K + 1, len(nodes)), threads=threads)
    return len(drawn), int(_is_returned(shard, drawn, answers, queries).sum())


def _nodes_of(shard: Shard, is_live: npt.NDArray[np.bool_], drawn: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64[n], the live node of each address; -1 where there is none."""
    nodes = np.flatnonzero(is_live)
    addresses = addresses_of(shard.file_slots, shard.row_positions)[nodes]
    nodes = nodes[np.isin(addresses, drawn)]
    node_of = dict(
        zip(addresses_of(shard.file_slots[nodes], shard.row_positions[nodes]).tolist(), nodes.tolist(), strict=True)
    )
    return np.array([node_of.get(address, -1) for address in drawn.tolist()], np.int64)


def _has_vector(shard: Shard, nodes: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """bool[n], whether each node holds its row's vector, but for rounding; in a lean shard, the nearest code to it."""
    if shard.vectors is None:
        nearest = np.square(vectors.astype(np.float64) - _coded(shard, vectors)).sum(axis=1)
        squares = np.square(vectors.astype(np.float64) - _stored(shard, nodes)).sum(axis=1)
        lengths = np.square(vectors.astype(np.float64)).sum(axis=1)
        return np.asarray(squares <= nearest + _CODE_TOLERANCE * (nearest + lengths))
    tolerance = _FLOAT_TOLERANCE if shard.vectors.dtype == np.float32 else _HALF_TOLERANCE
    smallest = 0.0 if shard.vectors.dtype == np.float32 else _SMALLEST_HALF
    limits = smallest + tolerance * np.abs(vectors.astype(np.float64)).max(axis=1)
    difference = np.abs(shard.vectors[nodes].astype(np.float64) - vectors).max(axis=1)
    return np.asarray(difference <= limits)


def _coded(shard: Shard, vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """f32[n, D], what codes of some vectors stand for in a lean shard."""
    if (codes := shard.codes) is not None:
        return decode(encode(vectors, codes.bits, codes.center, seed=codes.seed))
    codebook = np.asarray(shard.pq_codebook)
    return decode_pq(encode_pq(vectors, codebook), codebook)


def _is_returned(
    shard: Shard, nodes: npt.NDArray[np.int64], answers: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32]
) -> npt.NDArray[np.bool_]:
    """bool[n], whether each node is among its answers int64[n, k], or k other nodes are at least as near."""
    returned = (answers == nodes[:, None]).any(axis=1)
    for row in np.flatnonzero(~returned & (answers >= 0).all(axis=1)):
        stored = _stored(shard, np.append(answers[row], nodes[row]))
        order, _ = exact_top_k(vectors[row : row + 1], stored, len(stored), Metric.of_code(shard.metric))
        returned[row] = order[0, -1] == len(stored) - 1  # ties go by index, and the node is in the last one
    return np.asarray(returned, np.bool_)


def _stored(shard: Shard, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """f32[n, D], vectors of nodes as a search compares them: as the shard has them, or decoded from its codes."""
    if shard.vectors is not None:
        return np.asarray(shard.vectors[nodes], np.float32)
    if (rotated := as_kernels_take(shard.codes)) is not None:
        return decode(rotated.take(nodes))
    codes: Any = shard.pq_codes
    return decode_pq(codes[nodes], np.asarray(shard.pq_codebook))
