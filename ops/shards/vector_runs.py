"""Runs: which vectors of a shard stay where they lie, and which are written again in one piece. Pure, so that equal
versions are equal to the byte.
"""

import hashlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from icepuffin.ops.model import StoredRun
from icepuffin.puffin.blobs.shard_blob import stored_vectors

MAX_RUNS = 128
"""Runs of a shard, at most: the routing blob names each, and a reader requests each"""
MIN_BYTES = 64 << 10
"""Bytes of a run that is worth a request of its own"""


def lasting_runs(runs: Sequence[StoredRun], new_bytes: int) -> tuple[StoredRun, ...]:
    """The first runs of a shard that `new_bytes` of vectors are to follow: those that stay where they lie.

    The others are written again with the new vectors, in one piece: short ones at the end, and where there are too
    many, all from the first on that is shorter than what follows it. So each vector is written again once for each
    doubling of its shard, at most.
    """
    kept = list(runs)
    if len(kept) >= MAX_RUNS:
        following = sum(run.location.length for run in kept) + new_bytes
        for number, run in enumerate(runs):
            following -= run.location.length
            if run.location.length < following:
                kept = kept[:number]
                break
    rest = sum(run.location.length for run in runs[len(kept) :]) + new_bytes
    while kept and rest and rest + kept[-1].location.length < MIN_BYTES:
        rest += kept.pop().location.length
    return tuple(kept)


def runs_of_nodes(
    runs: Sequence[StoredRun], nodes: npt.NDArray[np.int64], vectors: npt.NDArray[np.float32]
) -> tuple[StoredRun, ...] | None:
    """Runs of some nodes of a shard, ascending, as parts of the shard's own `runs`; None where they lie so scattered
    that they are better written again. `vectors`: f32[N, D] of all nodes.
    """
    if not len(nodes) or not runs:
        return None
    starts = np.cumsum([0, *(run.count for run in runs)])
    cuts = np.flatnonzero((np.diff(nodes) != 1) | np.isin(nodes[1:], starts)) + 1
    size = len(nodes) * runs[0].row_bytes
    if len(cuts) >= MAX_RUNS or (len(cuts) + 1) * MIN_BYTES > size:
        return None
    parts = []
    for low, high in pairwise([0, *cuts.tolist(), len(nodes)]):
        first, count = int(nodes[low]), high - low
        number = int(np.searchsorted(starts, first, "right")) - 1
        run, start = runs[number], first - int(starts[number])
        location = run.part(start, count)
        sha256 = run.sha256 if count == run.count else sha256_of(vectors[first : first + count], run)
        parts.append(StoredRun(location, count, sha256))
    return tuple(parts)


def sha256_of(vectors: npt.NDArray[np.float32], like: StoredRun) -> bytes:
    """sha256 of f32[n, D] as they are stored in a run that they are a part of."""
    is_half = like.row_bytes == 2 * vectors.shape[1]
    return hashlib.sha256(stored_vectors(vectors.astype(np.float16) if is_half else vectors)).digest()
