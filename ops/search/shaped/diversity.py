"""Rows that are near a query and unlike each other: maximal marginal relevance (Carbonell and Goldstein, 1998)."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ann_kernels.distances.distance import prepare_exact
from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.rows.addresses import addresses_of
from icepuffin.ops.rows.candidates import DistanceReader, Hits
from icepuffin.ops.search.indexed.loaded_version import LoadedVersion
from icepuffin.ops.search.source_answer import SourceAnswer

CANDIDATES = 5
"""Candidates per row of an answer"""
FEWEST = 50
"""Candidates of a query at least"""


def diversified(
    answer: SourceAnswer, k: int, diversity: float, distances: DistanceReader, version: LoadedVersion | None
) -> Hits:
    """k of the rows of each query, in the order of their choice. `version`: the one in this process, if there is one.

    Raises DataFileError.
    """
    hits, metric = answer.hits, distances.metric
    vectors, indices = _vectors(answer, hits, distances, version)
    bounds = np.searchsorted(hits.queries, np.arange(answer.queries + 1)).tolist()
    chosen, ranks = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start, end in pairwise(bounds):
        of_query = slice(start, end)
        order = relevance_order(hits.distances[of_query], vectors[indices[of_query]], k, diversity, metric)
        chosen.append(start + order)
        ranks.append(np.arange(1, len(order) + 1))
    return replace(hits.take(np.concatenate(chosen)), ranks=np.concatenate(ranks))


def relevance_order(distances: F64, vectors: npt.NDArray[Any], k: int, diversity: float, metric: Metric) -> I64:
    """int64[k or fewer]: numbers of the rows, chosen one after the other.

    The first is the nearest, as `distances` f64[n] ascend. The next is always the one with the least of (1 - diversity)
    times its distance from the query, less diversity times its distance from the nearest row that was chosen: distances
    stand for similarities. `vectors` [n, D] as the table has them.
    """
    count = len(distances)
    if not count:
        return np.empty(0, np.int64)
    queries, numbers = prepare_exact(vectors, metric), np.arange(count)
    chosen, from_chosen, is_open = [0], np.full(count, np.inf), np.ones(count, np.bool_)
    while len(chosen) < min(k, count):
        last = np.full(count, chosen[-1])
        from_last = pair_distances(queries, vectors, last, numbers, metric, raw=True)
        is_open[chosen[-1]] = False
        np.minimum(from_chosen, from_last, out=from_chosen)
        scores = (1 - diversity) * distances - diversity * from_chosen
        chosen.append(int(np.argmin(np.where(is_open, scores, np.inf))))
    return np.array(chosen, np.int64)


def _vectors(
    answer: SourceAnswer, hits: Hits, distances: DistanceReader, version: LoadedVersion | None
) -> tuple[npt.NDArray[Any], I64]:
    """(vectors of the distinct rows, the index of each row among these): of the shards that were searched, where they
    hold the table's own (under cosine their directions), else of the data files.
    """
    addresses, first, indices = np.unique(
        addresses_of(hits.files, hits.positions), return_index=True, return_inverse=True
    )
    files, positions = hits.files[first], hits.positions[first]
    if version is None or not version.exact:
        return distances.vectors(files, positions)[0], indices
    vectors = np.empty((len(addresses), distances.queries.shape[1]), np.float32)
    is_read = np.zeros(len(addresses), np.bool_)
    slots = {shard_id: slot for slot, shard_id in enumerate(version.shard_ids)}
    for shard in version.shards.take([slots[work.shard_id] for work in answer.work]):
        nodes = np.flatnonzero(np.isin(shard.positions, positions))
        of_nodes = addresses_of(shard.slot_to_number[shard.shard.file_slots[nodes]], shard.positions[nodes])
        places = np.minimum(np.searchsorted(addresses, of_nodes), max(0, len(addresses) - 1))
        here = np.flatnonzero(addresses[places] == of_nodes)
        if shard.vectors is not None and len(here):
            vectors[places[here]] = shard.vectors[nodes[here]]
            is_read[places[here]] = True
    rest = np.flatnonzero(~is_read)
    vectors[rest], _ = distances.vectors(files[rest], positions[rest])
    return vectors, indices
