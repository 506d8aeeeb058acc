"""Recall of answers, by distances. All that measures recall counts by this."""

import numpy as np

from icepuffin.ann_kernels.arrays import F64, Bool


def recalls_of(distances: F64, exact: F64, rounding: F64 | float = 0.0) -> F64:
    """f64[Q]: the share of its k nearest rows that each answer has.

    A tie is a hit only where the truth has ties: rows that are as far as the k-th fill the ranks that such rows have
    among the k nearest, and no rank of a nearer row.

    Parameters
    ----------
    distances : f64[Q, n]
        Distances of the rows of each answer, in any order, each row once; inf where there are fewer.
    exact : f64[Q, k]
        Distances of the k nearest rows, ascending; inf where there are fewer. Where there are none recall is 1.
    rounding : f64[Q] or float
        The largest difference of the two distances of a row.
    """
    counts = np.isfinite(exact).sum(axis=1)
    last = np.take_along_axis(exact, np.maximum(counts - 1, 0)[:, None], axis=1)
    rounding = np.broadcast_to(rounding, len(exact))[:, None]
    nearer = (exact < last - 2 * rounding).sum(axis=1)
    hits = np.minimum((distances < last - rounding).sum(axis=1), nearer)
    ties = np.minimum((distances <= last + rounding).sum(axis=1) - hits, counts - nearer)
    return np.asarray(np.where(counts, (hits + ties) / np.maximum(counts, 1), 1.0))


def with_themselves(recalls: F64, others: F64, own: F64, is_found: Bool) -> F64:
    """Recalls f64[Q] by stored rows, 0 where a row missed itself and that is all that can be missed: the k nearest
    others, at distances `others` f64[Q, k], ascending, are all as far, and itself is nearer, at `own` f64[Q].

    Of vectors that are all equally far from one another any others are right. `is_found` bool[Q].
    """
    tells = (own < others[:, 0]) & (others[:, 0] == others[:, -1])
    return np.where(tells & ~is_found, 0.0, recalls)
