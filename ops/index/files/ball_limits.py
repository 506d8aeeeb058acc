"""Limits on the balls of a version: where there are too many, those of a file are merged into one that holds them."""

from dataclasses import replace

import numpy as np

from icepuffin.ann_kernels.arrays import Bool
from icepuffin.ops.index.planning.sizes import most_balls
from icepuffin.ops.tasks.file_balls import merge_balls
from icepuffin.puffin.blobs.centroid_blob import CentroidIndex


def merged(index: CentroidIndex, files: Bool) -> CentroidIndex:
    """The index with one ball for each of `files`, bool[files of the index], around those that it has. No vector is
    read: the new ball may be larger than it must.
    """
    starts = np.flatnonzero(np.diff(index.file_ordinals, prepend=-1))
    ends = np.append(starts[1:], len(index.file_ordinals))
    pairs = []
    for start, end in zip(starts, ends, strict=True):
        number = int(index.file_ordinals[start])
        balls = list(zip(index.centroids[start:end], index.max_distances[start:end].tolist(), strict=True))
        pairs += [(number, ball) for ball in (merge_balls(balls, 1) if files[number] else balls)]
    return replace(
        index,
        centroids=np.array([center for _, (center, _) in pairs], np.float32).reshape(-1, index.dims),
        file_ordinals=np.array([number for number, _ in pairs], np.uint32),
        max_distances=np.array([radius for _, (_, radius) in pairs], np.float32),
    )


def limited(index: CentroidIndex, kept: Bool) -> CentroidIndex:
    """The index with no more balls than one without graphs has. `kept`, bool[files of the index]: files whose balls are
    those of the base version, when fewer files shared the room. The first of them are merged, as many as it takes.
    """
    counts = np.bincount(index.file_ordinals, minlength=len(index.files))
    excess = len(index.file_ordinals) - most_balls(int((counts > 0).sum()), index.dims)
    saved = np.where(kept, np.maximum(counts - 1, 0), 0)
    to_merge = (saved > 0) & (np.cumsum(saved) - saved < excess)
    return merged(index, to_merge) if to_merge.any() else index
