"""Greedy insert, in batches, so that the result does not depend on the number of threads.

A batch searches the graph as it was before the batch; then reverse edges are added, grouped by the node that gets
them. Both halves touch each node once: threads share nothing. Source: DiskANN (2019), algorithm 3, in the batches of
ParlayANN (2024).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels.beam_search import beam_search, next_stamp, split_keys
from icepuffin.ann_kernels.candidate_list import new_pool
from icepuffin.ann_kernels.distance_computers import FAST, distance, fetch, focus
from icepuffin.ann_kernels.graph import Graph, Space, VamanaParams, scratch_of
from icepuffin.ann_kernels.robust_prune import robust_prune

_LARGEST_BATCH = 0.02
_SMALLEST_BATCH = 64


def insert_all(
    graph: Graph,
    space: Space,
    order: npt.NDArray[np.int32],
    first: int,
    params: VamanaParams,
    *,
    threads: int,
) -> None:
    """Insert the nodes order[first:] into the graph, which holds order[:first] already (at least the medoid)."""
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for start, end in _batches(first, len(order)):
            _insert_batch(graph, space, order[start:end], params, pool, threads)


def _batches(start: int, count: int) -> Iterator[tuple[int, int]]:
    """Doubling prefixes, then steps of at most 2 %."""
    largest = max(_SMALLEST_BATCH, int(count * _LARGEST_BATCH))
    while start < count:
        end = min(count, start + min(start, largest))
        yield start, end
        start = end


def _insert_batch(
    graph: Graph,
    space: Space,
    batch: npt.NDArray[np.int32],
    params: VamanaParams,
    pool: ThreadPoolExecutor,
    threads: int,
) -> None:
    alpha_squared = np.float32(params.alpha**2)
    neighbors, degrees = graph.neighbors, graph.degrees
    chosen = np.full((len(batch), params.max_degree), -1, np.int32)
    counts = np.zeros(len(batch), np.int32)

    def choose(low: int, high: int) -> None:
        nodes, out, sizes = batch[low:high], chosen[low:high], counts[low:high]
        _choose(
            space, neighbors, degrees, graph.medoid, nodes, params.search_list, alpha_squared, out, sizes,
            scratch_of(space), scratch_of(space),
        )  # fmt: skip

    _each(pool, threads, len(batch), choose)
    neighbors[batch] = chosen
    degrees[batch] = counts
    reverse(graph, space, batch, chosen, counts, params.alpha, pool, threads)


def reverse(
    graph: Graph,
    space: Space,
    nodes: npt.NDArray[np.int32],
    chosen: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int32],
    alpha: float,
    pool: ThreadPoolExecutor,
    threads: int,
) -> None:
    """Add the edges chosen int32[n, R] of some nodes, turned round, and prune where they do not fit."""
    alpha_squared = np.float32(alpha**2)
    neighbors, degrees = graph.neighbors, graph.degrees
    targets, sources, heads = _reverse_edges(nodes, chosen, counts)

    def add_reverse(low: int, high: int) -> None:
        _add_reverse(
            space, neighbors, degrees, targets, sources, heads[low : high + 1], alpha_squared, scratch_of(space)
        )

    _each(pool, threads, len(heads) - 1, add_reverse)


def _each(pool: ThreadPoolExecutor, threads: int, count: int, work: Callable[[int, int], None]) -> None:
    """Run `work(low, high)` over pieces of range(count)."""
    pieces = max(1, min(count, 4 * threads if threads > 1 else 1))
    bounds = np.linspace(0, count, pieces + 1).astype(int)
    list(pool.map(work, bounds[:-1], bounds[1:]))


def _reverse_edges(
    batch: npt.NDArray[np.int32], chosen: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """(targets, sources) of the new edges turned round, by target then source, and where each target starts."""
    used = np.arange(chosen.shape[1])[None, :] < counts[:, None]
    targets = chosen[used]
    sources = np.repeat(batch, counts)
    order = np.lexsort((sources, targets))
    targets, sources = targets[order], sources[order]
    starts = np.flatnonzero(np.concatenate([[True], targets[1:] != targets[:-1]])) if len(targets) else np.empty(0, int)
    return targets, sources, np.concatenate([starts, [len(targets)]]).astype(np.int64)


@njit(nogil=True, cache=True, fastmath=FAST)
def _choose(  # type: ignore[no-untyped-def]
    space, neighbors, degrees, medoid, batch, width, alpha_squared, chosen, counts, own_scratch, scratch
):
    """Out-edges of each node of a batch: what its search expanded, pruned."""
    limit = chosen.shape[1]
    seen = np.zeros(neighbors.shape[0], np.uint8)
    stamp = np.uint8(0)
    pool = new_pool(width)
    path = np.empty(width * 4, np.int64)
    ids = np.empty(path.size, np.int32)
    distances = np.empty(path.size, np.float32)
    fresh = np.empty(limit, np.int32)
    keys = np.empty(limit, np.int64)
    entries = np.array([medoid], np.int32)
    for i in range(batch.size):
        point = focus(space, batch[i], own_scratch)
        stamp = next_stamp(seen, stamp)
        _, walked, _ = beam_search(point, neighbors, degrees, entries, seen, stamp, pool, width, path, fresh, keys)
        count = min(walked, path.size)
        split_keys(path, count, ids, distances)
        counts[i] = robust_prune(space, batch[i], ids, distances, count, alpha_squared, limit, chosen[i], scratch)


@njit(nogil=True, cache=True, fastmath=FAST)
def _add_reverse(space, neighbors, degrees, targets, sources, heads, alpha_squared, scratch):  # type: ignore[no-untyped-def]
    """Give each target its new in-edges turned round; prune where they do not fit."""
    limit = neighbors.shape[1]
    out = np.empty(limit, np.int32)
    for head in range(heads.size - 1):
        target = targets[heads[head]]
        fresh = heads[head + 1] - heads[head]
        degree = degrees[target]
        count = degree + fresh
        if count <= limit:
            for i in range(heads[head], heads[head + 1]):
                known = False
                for slot in range(degree):
                    known |= neighbors[target, slot] == sources[i]
                if not known:
                    neighbors[target, degrees[target]] = sources[i]
                    degrees[target] += 1
            continue
        ids = np.empty(count, np.int32)
        ids[:degree] = neighbors[target, :degree]
        ids[degree:] = sources[heads[head] : heads[head + 1]]
        distances = np.empty(count, np.float32)
        point = focus(space, target, scratch)
        for i in range(count):
            fetch(point, ids[i])
        for i in range(count):
            distances[i] = distance(point, ids[i])
        kept = robust_prune(space, target, ids, distances, count, alpha_squared, limit, out, scratch)
        for i in range(limit):
            neighbors[target, i] = out[i] if i < kept else -1
        degrees[target] = kept
