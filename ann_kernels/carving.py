"""Randomized ball carving: leaves of near vectors that overlap. Source: PiPNN (arXiv 2602.21247).

Each vector goes to its nearest of some random leaders; leaves that come out too large are carved again, each vector to
one leader. All choices hang on the seed and on where in the carving they are made, not on threads.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numba import njit

from icepuffin.ann_kernels.graph import Space
from icepuffin.ann_kernels.leaf_neighbors import nearest

Ints = npt.NDArray[np.int32]
_ROWS_A_PIECE = 4_096
_PARTS_AT_ONCE = 64
_STUCK = 0.9
"""A part that keeps this share of what was carved is of vectors that leaders do not part: it is cut by position"""


@dataclass(frozen=True, slots=True)
class Carving:
    """How leaves are carved."""

    fanout: int = 8
    """Leaves that each vector is in"""
    leaf: int = 600
    """Vectors that a leaf has in the mean"""
    largest: int = 1_000
    """Vectors that a leaf has at most"""
    leaders: int = 4_000
    """Leaders that one carving takes at most"""


def carve(space: Space, ids: Ints, carving: Carving, seed: tuple[int, ...], pool: ThreadPoolExecutor) -> Iterator[Ints]:
    """Leaves over the nodes `ids`, each with its node ids int32[n] in the order of `ids`."""
    rng = np.random.default_rng(seed)
    number = min(carving.leaders, len(ids), max(1, round(len(ids) * carving.fanout / carving.leaf)))
    leaders = np.sort(rng.choice(ids, number, replace=False))
    parts = _parts(_nearest_leaders(space, ids, leaders, carving.fanout, pool), ids, number)

    def split(place: int) -> list[Ints]:
        return _split(space, parts[place], carving, (*seed, place))

    for start in range(0, len(parts), _PARTS_AT_ONCE):
        for leaves in pool.map(split, range(start, min(start + _PARTS_AT_ONCE, len(parts)))):
            yield from leaves


def _nearest_leaders(space: Space, ids: Ints, leaders: Ints, fanout: int, pool: ThreadPoolExecutor) -> Ints:
    near = np.empty((len(ids), min(fanout, len(leaders))), np.int32)

    def assign(start: int) -> None:
        part = slice(start, start + _ROWS_A_PIECE)
        _assign(space, ids[part], leaders, near[part])

    list(pool.map(assign, range(0, len(ids), _ROWS_A_PIECE)))
    return near


def _split(space: Space, ids: Ints, carving: Carving, seed: tuple[int, ...]) -> list[Ints]:
    if len(ids) <= carving.largest:
        return [ids]
    rng = np.random.default_rng(seed)
    number = min(carving.leaders, max(2, round(len(ids) / carving.leaf)))
    near = np.empty((len(ids), 1), np.int32)
    _assign(space, ids, np.sort(rng.choice(ids, number, replace=False)), near)
    parts = _parts(near, ids, number)
    if max(len(part) for part in parts) > _STUCK * len(ids):
        parts = np.array_split(ids, -(-len(ids) // carving.largest))
    return [leaf for place, part in enumerate(parts) for leaf in _split(space, part, carving, (*seed, place))]


def _assign(space: Space, ids: Ints, leaders: Ints, near: Ints) -> None:
    nearest(space, ids, leaders, near, np.empty_like(near), same=False)


def _parts(near: Ints, ids: Ints, number: int) -> list[Ints]:
    """Who is near each leader; leaders without anyone left out."""
    counts = np.zeros(number, np.int64)
    _count(near, counts)
    ends = np.cumsum(counts)
    members = np.empty(near.size, np.int32)
    _group(near, ids, ends - counts, members)
    return [part for part in np.split(members, ends[:-1]) if len(part)]


@njit(nogil=True, cache=True)
def _count(near, counts):  # type: ignore[no-untyped-def]
    """As `np.bincount`, which would widen all of them first: a quarter of the adjacency's memory."""
    for row in range(near.shape[0]):
        for place in range(near.shape[1]):
            counts[near[row, place]] += 1


@njit(nogil=True, cache=True)
def _group(near, ids, starts, members):  # type: ignore[no-untyped-def]
    for row in range(near.shape[0]):
        for place in range(near.shape[1]):
            leader = near[row, place]
            members[starts[leader]] = ids[row]
            starts[leader] += 1
