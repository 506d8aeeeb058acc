"""Equal vectors: one of each group takes part in a bulk build, the others hang on it as a tree.

Otherwise a group larger than R fills its members' candidates with one another, and nothing leads out of it or through.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from icepuffin.ann_kernels.graph import Graph
from icepuffin.ann_kernels.hashing import content_hash

_CHILDREN = 4
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Who stands for whom."""

    representatives: Ints
    """int32[n], ascending: vectors that have no equal, and one of each group"""
    members: Ints
    """int32[m]: the groups with more than one vector, one after the other, each led by its representative"""
    starts: npt.NDArray[np.int64]
    """int64[g + 1]: where each group starts in `members`"""


def find(vectors: npt.NDArray[np.float32], *, first: int) -> Groups:
    """Groups of equal rows f32[N, D]; row `first` represents its group, otherwise the smallest row does."""
    hashes = content_hash(vectors)
    order = np.argsort(hashes, kind="stable").astype(np.int32)
    ranked = hashes[order]
    new = np.concatenate([[True], ranked[1:] != ranked[:-1]])
    starts = np.flatnonzero(new)
    sizes = np.diff(np.concatenate([starts, [len(order)]]))
    alone = np.ones(len(vectors), np.bool_)
    members, bounds = [], [0]
    for start, size in zip(starts[sizes > 1], sizes[sizes > 1], strict=True):
        group = order[start : start + size]
        lead = first if first in group else group[0]
        equal = group[(vectors[group] == vectors[lead]).all(axis=1)]  # not so where hashes met by chance
        others = equal[equal != lead]
        alone[others] = False
        members.append(np.concatenate([[lead], others]).astype(np.int32))
        bounds.append(bounds[-1] + len(members[-1]))
    return Groups(
        np.flatnonzero(alone).astype(np.int32),
        np.concatenate([np.empty(0, np.int32), *members]),
        np.array(bounds, np.int64),
    )


def hang(graph: Graph, groups: Groups) -> None:
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
