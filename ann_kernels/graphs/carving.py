"""Randomized ball carving: overlapping leaves of near vectors. Source: PiPNN (arXiv 2602.21247).

Each vector goes to its nearest of some random leaders. A leaf that comes out too large is carved again, each vector to
one leader. All choices depend on the seed and on their position in the carving, not on threads.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from icepuffin.ann_kernels.arrays import I32, I64
from icepuffin.ann_kernels.compilation import kernel
from icepuffin.ann_kernels.distances.distance_computers import Space
from icepuffin.ann_kernels.graphs.leaf_neighbors import NearestColumns, nearest_columns, new_nearest

_ROWS_PER_TASK = 4_096
_PARTS_AT_ONCE = 64
_INSEPARABLE = 0.9
"""Share of the vectors in one part above which leaders do not separate them: they are cut by position instead"""


@dataclass(frozen=True, slots=True)
class Carving:
    """Parameters of a carving."""

    fanout: int = 8
    """Leaves that each vector is in"""
    leaf: int = 600
    """Mean number of vectors in a leaf"""
    largest: int = 1_000
    """Largest number of vectors in a leaf"""
    leaders: int = 4_000
    """Largest number of leaders of one carving"""


def carve(
    space: Space, ids: I32, carving: Carving, seed: tuple[int, ...], executor: ThreadPoolExecutor
) -> Iterator[I32]:
    """Leaves over the nodes `ids`, each as node ids int32[n] in the order of `ids`."""
    rng = np.random.default_rng(seed)
    count = min(carving.leaders, len(ids), max(1, round(len(ids) * carving.fanout / carving.leaf)))
    leaders = np.sort(rng.choice(ids, count, replace=False))
    parts = _parts(_nearest_leaders(space, ids, leaders, carving.fanout, executor), ids, count)

    def split(part: int) -> list[I32]:
        return _split(space, parts[part], carving, (*seed, part))

    for start in range(0, len(parts), _PARTS_AT_ONCE):
        for leaves in executor.map(split, range(start, min(start + _PARTS_AT_ONCE, len(parts)))):
            yield from leaves


def _nearest_leaders(space: Space, ids: I32, leaders: I32, fanout: int, executor: ThreadPoolExecutor) -> I32:
    """The leaders int32[n, fanout] nearest to each node, as indices into `leaders`."""
    nearest = np.empty((len(ids), min(fanout, len(leaders))), np.int32)

    def assign(start: int) -> None:
        part = slice(start, start + _ROWS_PER_TASK)
        _assign(space, ids[part], leaders, nearest[part])

    list(executor.map(assign, range(0, len(ids), _ROWS_PER_TASK)))
    return nearest


def _split(space: Space, ids: I32, carving: Carving, seed: tuple[int, ...]) -> list[I32]:
    if len(ids) <= carving.largest:
        return [ids]
    rng = np.random.default_rng(seed)
    count = min(carving.leaders, max(2, round(len(ids) / carving.leaf)))
    nearest = np.empty((len(ids), 1), np.int32)
    _assign(space, ids, np.sort(rng.choice(ids, count, replace=False)), nearest)
    parts = _parts(nearest, ids, count)
    if max(len(part) for part in parts) > _INSEPARABLE * len(ids):
        parts = np.array_split(ids, -(-len(ids) // carving.largest))
    return [leaf for index, part in enumerate(parts) for leaf in _split(space, part, carving, (*seed, index))]


def _assign(space: Space, ids: I32, leaders: I32, nearest: I32) -> None:
    keys = new_nearest(*nearest.shape).keys
    nearest_columns(space, ids, leaders, NearestColumns(nearest, keys), same=False)


def _parts(nearest: I32, ids: I32, leaders: int) -> list[I32]:
    """The nodes near each leader; leaders without any are left out."""
    counts = np.zeros(leaders, np.int64)
    _count_labels(nearest, counts)
    ends = np.cumsum(counts)
    members = np.empty(nearest.size, np.int32)
    _group_by_label(nearest, ids, ends - counts, members)
    return [part for part in np.split(members, ends[:-1]) if len(part)]


@kernel
def _count_labels(labels: I32, counts: I64) -> None:
    """The same as `np.bincount`, which would first widen all labels: a quarter of the adjacency's memory."""
    for row in range(labels.shape[0]):
        for index in range(labels.shape[1]):
            counts[labels[row, index]] += 1


@kernel
def _group_by_label(labels: I32, ids: I32, starts: I64, members: I32) -> None:
    for row in range(labels.shape[0]):
        for index in range(labels.shape[1]):
            label = labels[row, index]
            members[starts[label]] = ids[row]
            starts[label] += 1
