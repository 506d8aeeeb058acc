"""Equal vectors: one of each group takes part in a bulk build, the others are attached to it as a tree.

Otherwise a group larger than R fills its members' candidates with one another, and no edge leads out of it or through.
"""

from dataclasses import dataclass

import numpy as np

from icepuffin.ann_kernels.arrays import F32, I32, I64
from icepuffin.ann_kernels.graphs.graph import Graph
from icepuffin.ann_kernels.sketches.hashing import content_hash

_CHILDREN = 4


@dataclass(frozen=True, slots=True, eq=False)
class DuplicateGroups:
    """Groups of equal vectors, and the vector that represents each."""

    representatives: I32
    """Vectors that have no equal and one of each group, int32[n], ascending"""
    members: I32
    """Groups with more than one vector, int32[m], one after the other, each led by its representative"""
    starts: I64
    """Start of each group in `members`, int64[g + 1]"""


def find_duplicates(vectors: F32, *, first: int) -> DuplicateGroups:
    """Groups of equal rows f32[N, D]; row `first` represents its group, otherwise the smallest row does."""
    hashes = content_hash(vectors)
    order = np.argsort(hashes, kind="stable").astype(np.int32)
    ranked = hashes[order]
    changes = np.concatenate([[True], ranked[1:] != ranked[:-1]])
    starts = np.flatnonzero(changes)
    sizes = np.diff(np.concatenate([starts, [len(order)]]))
    representative = np.ones(len(vectors), np.bool_)
    members, ends = [], [0]
    for start, size in zip(starts[sizes > 1], sizes[sizes > 1], strict=True):
        group = order[start : start + size]
        leader = first if first in group else group[0]
        equal = group[(vectors[group] == vectors[leader]).all(axis=1)]  # all of them, unless hashes collide
        others = equal[equal != leader]
        representative[others] = False
        members.append(np.concatenate([[leader], others]).astype(np.int32))
        ends.append(ends[-1] + len(members[-1]))
    return DuplicateGroups(
        np.flatnonzero(representative).astype(np.int32),
        np.concatenate([np.empty(0, np.int32), *members]),
        np.array(ends, np.int64),
    )


def attach_duplicates(graph: Graph, groups: DuplicateGroups) -> None:
    """Give each group's members edges to up to four others, as in a heap, and to their representative."""
    limit = graph.neighbors.shape[1]
    children = max(1, min(_CHILDREN, limit - 1))
    for start, end in zip(groups.starts[:-1], groups.starts[1:], strict=True):
        group = groups.members[start:end]
        for place, node in enumerate(group):
            edges = group[children * place + 1 : children * place + 1 + children]
            if place == 0:
                edges = np.concatenate([edges, graph.neighbors[node, : graph.degrees[node]]])[:limit]
            elif len(edges) < limit:
                edges = np.concatenate([edges, group[:1]])
            graph.neighbors[node, : len(edges)] = edges
            graph.degrees[node] = len(edges)
