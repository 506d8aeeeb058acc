"""What each shard finds for the same queries: all shards' together tell what a search of the index finds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.distances.recall import recalls_of, with_themselves
from icepuffin.ann_kernels.distances.top_k import exact_top_k
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.recall.curves import MEASURED_K, WIDE_K
from icepuffin.ops.recall.shard_recall import BY_DEFAULTS, SHARED_QUERIES_PER_WIDE_ONE
from icepuffin.ops.tasks.recall_gate import curve_settings, exact_of, held_out, search_by_defaults, searcher_for
from icepuffin.puffin.blobs.shard_blob import Shard


@dataclass(frozen=True, slots=True, eq=False)
class FoundRows:
    """What one shard has, and what searches of it find, for the first of some queries."""

    k: int
    settings: Sequence[tuple[int, int]]
    """Width and oversample of each search"""
    nearest: npt.NDArray[np.float64]
    """f64[Q, n], exact distances of the nearest rows, ascending; inf where there are fewer, -inf for a query that
    does not count
    """
    ranks: Sequence[npt.NDArray[np.float64]]
    """f64[Q, c] by search, distances by which it ranks its candidates; inf where there are fewer"""
    found: Sequence[npt.NDArray[np.float64]]
    """f64[Q, c] by search, exact distances of the candidates"""


def find_rows(
    shard: Shard,
    vectors: npt.NDArray[np.float32],
    is_live: npt.NDArray[np.bool_],
    queries: npt.NDArray[np.float32],
    *,
    count: int,
    threads: int,
    searcher: Searcher | None = None,
) -> tuple[FoundRows, ...]:
    """What the shard finds for the first `count` queries f32[Q, D], prepared, rows of it or of others: by default
    parameters, as the recall gate searches, and by those of its curve, without the queries' own rows.

    vectors: f32[N, D], prepared, of all nodes. is_live: bool[N]. searcher: as of `measure_recall`. Deterministic.
    """
    if not is_live.any():
        return ()
    searcher = searcher_for(shard, vectors, is_live, searcher)
    metric = Metric.of_code(shard.metric)
    by_k = {MEASURED_K: queries[:count], WIDE_K: queries[: -(-count // SHARED_QUERIES_PER_WIDE_ONE)]}
    kept = vectors if shard.vectors is None else shard.vectors  # halves are compared with halves: no more is known
    own = _equal_nodes(kept, is_live, by_k[MEASURED_K].astype(kept.dtype))
    needed = np.intersect1d(own, searcher.landmarks)  # without them walks would go other ways
    own = np.setdiff1d(own, needed)
    is_other = is_live.copy()
    is_other[own] = False
    others = searcher.masked(Bitmap.from_mask(is_other), unreachable=len(own))
    by_defaults, by_curve = [], []
    for k, of_k in by_k.items():
        nodes, nearest = exact_top_k(of_k, vectors, k + 1 + len(own), metric, is_live=is_live)
        answers, ranks = search_by_defaults(searcher, shard, of_k, k + 1, threads=threads)
        found = exact_of(of_k, vectors, answers, metric)
        by_defaults.append(FoundRows(k, [BY_DEFAULTS], nearest[:, : k + 1], [ranks], [found]))
        nearest = np.sort(np.where(np.isin(nodes, own), np.inf, nearest), axis=1)[:, :k]
        nearest[(of_k[:, None].astype(kept.dtype) == kept[needed]).all(axis=2).any(axis=1)] = -np.inf
        settings, all_ranks, all_found = curve_settings(shard, k), [], []
        with held_out(shard, own):
            for width, oversample in settings:
                answers, ranks, _ = others.search(of_k, k * oversample, search_list=width, threads=threads)
                all_ranks.append(ranks)
                all_found.append(exact_of(of_k, vectors, answers, metric))
        by_curve.append(FoundRows(k, settings, nearest, all_ranks, all_found))
    return (*by_defaults, *by_curve)


def recalls_of_all(
    parts: Sequence[FoundRows], queries: npt.NDArray[np.float32], metric: Metric
) -> dict[tuple[int, int], float]:
    """recall@k of searches of all shards for the queries f32[Q, D], by settings; a row is no answer to itself. Empty
    where there are too few rows.

    As a search does, each takes the best candidates of all shards by what the shards hold, and of these the nearest.
    """
    k, settings = parts[0].k, parts[0].settings
    nearest = np.sort(np.concatenate([part.nearest for part in parts], axis=1), axis=1)
    counts = ~np.isneginf(nearest[:, 0])
    nearest, queries = nearest[counts, : parts[0].nearest.shape[1]], queries[: len(nearest)][counts]
    if not len(nearest) or not np.isfinite(nearest).all():
        return {}
    itself = np.full(len(nearest), np.nan)
    if nearest.shape[1] > k:
        each = np.arange(len(nearest))
        own = pair_distances(queries, queries, each, each, metric)
        column = np.abs(nearest - own[:, None]).argmin(axis=1)
        itself = nearest[each, column]
        nearest = nearest[np.arange(k + 1) != column[:, None]].reshape(-1, k)
    recalls = {}
    for number, (width, oversample) in enumerate(settings):
        ranks = np.concatenate([part.ranks[number] for part in parts], axis=1)[counts]
        best = np.argsort(ranks, axis=1, kind="stable")[:, : parts[0].ranks[number].shape[1]]
        found = np.concatenate([part.found[number] for part in parts], axis=1)[counts]
        found = np.take_along_axis(found, best, axis=1)
        is_itself = found == itself[:, None]
        found[is_itself & (np.cumsum(is_itself, axis=1) == 1)] = np.inf
        of_all = with_themselves(recalls_of(found, nearest), nearest, itself, is_itself.any(axis=1))
        recalls[width, oversample] = float(of_all.mean())
    return recalls


def _equal_nodes(
    vectors: npt.NDArray[Any], is_live: npt.NDArray[np.bool_], rows: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """int64[..], ascending: the first live one of the vectors [N, D] that equals each of a few rows [n, D]."""
    sought, out = {row.tobytes() for row in rows}, []
    for node in np.flatnonzero(is_live & np.isin(vectors[:, 0], rows[:, 0])).tolist():
        if (data := vectors[node].tobytes()) in sought:
            sought.remove(data)
            out.append(node)
    return np.array(out, np.int64)
