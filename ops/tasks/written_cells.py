"""The cells of a shard that is written, and their recall: what readers without the shard will find through them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.codes import cells as kernels
from icepuffin.ann_kernels.codes.cells import CodedCell, CodedCenters
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.shards.cell_rows import CellRows, chosen_cells, nearest_first
from icepuffin.puffin.blobs import cells_blob as cell_blob
from icepuffin.puffin.blobs.cells_blob import Cell, ShardCells
from icepuffin.puffin.blobs.shard_blob import Shard

TRIAL_QUERIES = 64
"""Rows that are searched for to measure recall"""
PROBES = (8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of cells that a query may read"""
_ENOUGH = 0.985
"""Share of the nearest rows that lie in the cells that are read"""
_K = 10


def make_cells(
    shard: Shard,
    vectors: npt.NDArray[np.float32],
    is_live: npt.NDArray[np.bool_],
    bits: int,
    *,
    seed: int,
    threads: int,
) -> ShardCells | None:
    """All nodes of a shard in cells; None where there are none. `vectors`: f32[N, D], prepared. Deterministic.

    Their recall is that of some live nodes that are searched for, which are no answer to themselves.
    """
    parts = kernels.partition(vectors, seed=seed, threads=threads)
    if not parts:
        return None
    centers = kernels.encode_centers(np.stack([vectors[nodes].mean(axis=0, dtype=np.float64) for nodes in parts]))
    trial = _Trial.from_vectors(vectors, is_live, Metric.of_code(shard.metric), seed=seed)
    cells = cell_blob.encode(
        (_cell(shard, nodes, kernels.encode(vectors[nodes], bits)) for nodes in parts),
        counts=[len(nodes) for nodes in parts],
        bits=bits,
        recall=0.0,
        probes=trial.probes(parts, centers),
        origin=centers.origin,
        scales=centers.scales,
        centers=centers.codes,
    )
    return replace(cells, directory=replace(cells.directory, recall=trial.recall(cells, centers)))


def _cell(shard: Shard, nodes: npt.NDArray[np.int64], coded: CodedCell) -> Cell:
    slots, positions = shard.file_slots[nodes], shard.row_positions[nodes]
    return Cell(coded.lows, coded.steps, nodes.astype(np.uint32), slots, positions, coded.codes)


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """Some live nodes that are searched for, and the nearest others of each."""

    vectors: npt.NDArray[np.float32]
    is_live: npt.NDArray[np.bool_]
    metric: Metric
    queries: npt.NDArray[np.int64]
    """int64[Q]: nodes"""
    nearest: npt.NDArray[np.int64]
    """int64[Q, k]: the nearest others"""
    distances: npt.NDArray[np.float64]
    """f64[Q, k]: their distances"""

    @classmethod
    def from_vectors(
        cls, vectors: npt.NDArray[np.float32], is_live: npt.NDArray[np.bool_], metric: Metric, *, seed: int
    ) -> "_Trial":
        live = np.flatnonzero(is_live)
        queries = np.sort(np.random.default_rng([seed, 3]).choice(live, min(TRIAL_QUERIES, len(live)), replace=False))
        k = min(_K, len(live) - 1)
        if k < 1:
            none = np.empty((0, 0), np.int64)
            return cls(vectors, is_live, metric, none[0:0].reshape(-1), none, np.empty((0, 0)))
        nodes, distances = exact_top_k(vectors[queries], vectors, k + 1, metric, is_live=is_live)
        # the node itself goes last, or one that is as far as the last
        others = np.argsort(nodes == queries[:, None], axis=1, kind="stable")[:, :k]
        nearest = np.take_along_axis(nodes, others, axis=1)
        return cls(vectors, is_live, metric, queries, nearest, np.take_along_axis(distances, others, axis=1))

    def probes(self, parts: Sequence[npt.NDArray[np.int64]], centers: CodedCenters) -> int:
        """The fewest cells that have enough of the nearest others."""
        cell_of = np.empty(len(self.vectors), np.int64)
        for number, nodes in enumerate(parts):
            cell_of[nodes] = number
        ranks = []
        for node, others in zip(self.queries.tolist(), self.nearest, strict=True):
            order, _ = centers.ranked(self.vectors[node].astype(np.float64), self.metric)
            ranks.append(np.argsort(order)[cell_of[others]])
        shares = [(np.array(ranks) < probes).mean() if ranks else 1.0 for probes in PROBES]
        return next((probes for probes, share in zip(PROBES, shares, strict=True) if share >= _ENOUGH), PROBES[-1])

    def recall(self, cells: ShardCells, centers: CodedCenters) -> float:
        """recall@10 of searches as a reader does them, which then compares the nearest exactly; 1 of no search."""
        recalls = []
        lengths, probes, bits = cells.directory.lengths, cells.directory.probes, cells.directory.bits
        for node, exact in zip(self.queries.tolist(), self.distances, strict=True):
            query, k = self.vectors[node].astype(np.float64), self.nearest.shape[1]
            order, _ = centers.ranked(query, self.metric)
            chosen = [cells.cell(number) for number in order[: chosen_cells(lengths[order], probes)].tolist()]
            rows = CellRows.joined([CellRows.from_cell(cell, query, self.metric, bits) for cell in chosen])
            rows = rows.take(self.is_live[rows.nodes] & (rows.nodes != node))
            best = rows.nodes[nearest_first(rows, k, bits)]
            distances = pair_distances(query[None], self.vectors, np.zeros(len(best), np.int64), best, self.metric)
            recalls.append(float(recalls_of(distances[None], exact[None])[0]))
        return float(np.mean(recalls)) if recalls else 1.0
