"""Reading the neighbours of a node in a walk, from padded lists or from packed ones."""

from typing import Any, TypeAlias

import numpy as np

from icepuffin.ann_kernels.arrays import I32, U8
from icepuffin.ann_kernels.compilation import compiled_form, inline_kernel
from icepuffin.ann_kernels.graphs.graph import Adjacency, PackedAdjacency
from icepuffin.ann_kernels.simd.prefetching import prefetch, prefetch_lines, prefetch_row

NeighborLists: TypeAlias = Adjacency | PackedAdjacency
_ONE, _SEVEN, _LOW_BITS, _MORE = np.uint64(1), np.uint64(7), np.uint64(127), np.uint64(128)


def take_unvisited(adjacency: NeighborLists, node: Any, marks: U8, stamp: Any, fresh: I32) -> Any:
    """Put the neighbours of a node that are not marked by `stamp` in uint8[N] into fresh int32[..], and mark them.

    Returns how many there are.
    """
    return _TAKE_UNVISITED[type(adjacency)](adjacency, node, marks, stamp, fresh)


def prefetch_neighbors(adjacency: NeighborLists, node: Any) -> None:
    """Request the cache lines of a node's list, ahead of `take_unvisited`."""
    _PREFETCHES[type(adjacency)](adjacency, node)


def most_neighbors(adjacency: NeighborLists) -> int:
    """The room that `fresh` needs for every node."""
    return adjacency.neighbors.shape[1] if isinstance(adjacency, Adjacency) else adjacency.longest


def adjacency_of(fields: tuple[Any, ...]) -> Any:
    """The adjacency of these fields: for kernels, which Python calls faster with plain tuples."""
    return (Adjacency if len(fields) == 2 else PackedAdjacency)(*fields)


def _take_padded(adjacency: Adjacency, node: Any, marks: U8, stamp: Any, fresh: I32) -> Any:
    neighbors, count = adjacency.neighbors, 0
    # branch-free, written first and counted after: a branch is unpredictable
    for slot in range(adjacency.degrees[node]):
        other = np.uint32(neighbors[node, slot])  # unsigned: numba looks for negative indices otherwise
        fresh[np.uint32(count)] = other
        count += int(marks[other] != stamp)
        marks[other] = stamp
    return count


def _take_packed(adjacency: PackedAdjacency, node: Any, marks: U8, stamp: Any, fresh: I32) -> Any:
    lists, count = adjacency.lists, 0
    degree, offset = _number(lists, np.uint64(adjacency.starts[node]))
    other = np.uint64(0)
    for _ in range(np.intp(degree)):
        step, offset = _number(lists, offset)
        other += step
        fresh[np.uint32(count)] = other
        count += int(marks[other] != stamp)
        marks[other] = stamp
    return count


@inline_kernel
def _number(lists: U8, offset: Any) -> tuple[Any, Any]:
    """(the varint at an offset u64, the offset after it)."""
    byte = np.uint64(lists[offset])
    offset += _ONE
    value, shift = byte & _LOW_BITS, _SEVEN
    while byte >= _MORE:
        byte = np.uint64(lists[offset])
        offset += _ONE
        value |= (byte & _LOW_BITS) << shift
        shift += _SEVEN
    return value, offset


def _prefetch_padded(adjacency: Adjacency, node: Any) -> None:
    prefetch_row(adjacency.neighbors, node)


def _prefetch_packed(adjacency: PackedAdjacency, node: Any) -> None:
    first, end = np.intp(adjacency.starts[node]), np.intp(adjacency.starts[node + 1])
    prefetch_lines(adjacency.lists, first, end - first)
    prefetch(adjacency.lists, end - 1)


def _padded(fields: Any) -> Any:
    return Adjacency(fields[0], fields[1])


def _packed(fields: Any) -> Any:
    return PackedAdjacency(fields[0], fields[1], fields[2])


_TAKE_UNVISITED: dict[type, Any] = {Adjacency: _take_padded, PackedAdjacency: _take_packed}
_PREFETCHES: dict[type, Any] = {Adjacency: _prefetch_padded, PackedAdjacency: _prefetch_packed}


@compiled_form(take_unvisited)
def _(adjacency: Any, node: Any, marks: Any, stamp: Any, fresh: Any) -> Any:
    return _TAKE_UNVISITED[adjacency.instance_class]


@compiled_form(prefetch_neighbors)
def _(adjacency: Any, node: Any) -> Any:
    return _PREFETCHES[adjacency.instance_class]


@compiled_form(adjacency_of)
def _(fields: Any) -> Any:
    return _padded if len(fields) == 2 else _packed
