"""Rows ranked by BM25 as Lucene has it (Robertson and Zaragoza 2009): the sum over the terms of a query of
`idf * tf / (tf + k1 * (1 - b + b * length / average))`, with `idf = ln(1 + (rows - df + .5) / (df + .5))`.

A term's list has the second factor for each row, which does not depend on the query.
"""

from collections.abc import Sequence
from math import log1p
from typing import Any

import numpy as np

from icepuffin.ann_kernels.arrays import F64, I64, U32, AnyArray, Bool, read_only
from icepuffin.ann_kernels.compilation import inline_kernel, strict_kernel
from icepuffin.ann_kernels.errors import KernelError

K1, B = 1.2, 0.75
_WINDOW = 1 << 14
"""Rows whose sums are held at once: they stay in the nearest caches"""


def inverse_frequency(rows: int, having: int) -> float:
    """The weight of a term that so many of the rows have."""
    return log1p((rows - having + 0.5) / (having + 0.5))


def impacts(counts: U32, lengths: AnyArray, average: float) -> F64:
    """f64[n]: the part of a score that does not depend on the query, of rows with `counts` u32[n] of a term and
    `lengths` [n] in words.
    """
    often = counts.astype(np.float64)
    return often / (often + K1 * (1 - B + B * lengths.astype(np.float64) / average))


@inline_kernel
def _is_better(score: Any, tie: Any, row: Any, other_score: Any, other_tie: Any, other_row: Any) -> Any:
    if score != other_score:
        return score > other_score
    return tie < other_tie if tie != other_tie else row < other_row


@inline_kernel
def _sift(rows: Any, scores: Any, ties: Any, at: Any, count: Any) -> None:
    """Let the item at a place of the heap go down, whose worst item is the first one."""
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and _is_better(
            scores[child], ties[rows[child]], rows[child], scores[child + 1], ties[rows[child + 1]], rows[child + 1]
        ):
            child += 1
        if not _is_better(scores[at], ties[rows[at]], rows[at], scores[child], ties[rows[child]], rows[child]):
            return
        rows[at], rows[child] = rows[child], rows[at]
        scores[at], scores[child] = scores[child], scores[at]
        at = child


@inline_kernel
def _offer(row: Any, score: Any, ties: Any, best: Any, scores: Any, found: Any) -> Any:
    """Take a row that is among the best so far. Returns how many there are."""
    if found < best.shape[0]:
        best[found], scores[found] = row, score
        found += 1
        if found == best.shape[0]:
            for place in range(found // 2 - 1, -1, -1):
                _sift(best, scores, ties, place, found)
    elif _is_better(score, ties[row], row, scores[0], ties[best[0]], best[0]):
        best[0], scores[0] = row, score
        _sift(best, scores, ties, np.int64(0), found)
    return found


@inline_kernel
def _first_row(rows: Any, at: Any, starts: Any) -> Any:
    """The first row that is still to come in some list; -1 where all have ended."""
    first = np.int64(-1)
    for n in range(at.shape[0]):
        if at[n] < starts[n + 1] and (first < 0 or np.int64(rows[at[n]]) < first):
            first = np.int64(rows[at[n]])
    return first


@strict_kernel
def _best(rows: U32, impacts: F64, starts: I64, weights: F64, allowed: Bool, ties: U32, best: I64, scores: F64) -> Any:
    at, until = starts[:-1].copy(), starts[:-1].copy()
    sums, found = np.zeros(_WINDOW), np.int64(0)
    first = _first_row(rows, at, starts)
    while first >= 0:
        for n in range(at.shape[0]):  # in the order of the query: a row has one sum, whatever else is found
            i, end, weight = at[n], starts[n + 1], weights[n]
            while i < end and np.int64(rows[i]) < first + _WINDOW:
                sums[np.int64(rows[i]) - first] += weight * impacts[i]
                i += 1
            until[n] = i
        for n in range(at.shape[0]):
            for i in range(at[n], until[n]):
                row = np.int64(rows[i])
                score = sums[row - first]
                sums[row - first] = 0.0
                if score <= 0.0 or (found == best.shape[0] and score < scores[0]):
                    continue
                if allowed.shape[0] == 0 or allowed[row]:
                    found = _offer(row, score, ties, best, scores, found)
            at[n] = until[n]
        first = _first_row(rows, at, starts)
    return found


def best_rows(
    lists: Sequence[tuple[U32, F64]], weights: Sequence[float], ties: U32, k: int, allowed: Bool | None = None
) -> tuple[I64, F64]:
    """The k rows with the largest scores, best first: (rows int64[m], scores f64[m]), m <= k. Equal scores: the smaller
    tie first, then the smaller row.

    `lists`: (rows u32[n] ascending, their impacts f64[n]) of each term; `weights`: of each term, positive;
    `ties` u32[N]: of each row; `allowed` bool[N]: rows that may be found, all where it is None.
    """
    size = len(ties)
    if any(len(rows) and int(rows[-1]) >= size for rows, _ in lists) or (allowed is not None and len(allowed) != size):
        raise KernelError(f"lists or allowed rows are not of {size} rows")
    starts = np.cumsum([0, *(len(rows) for rows, _ in lists)], dtype=np.int64)
    rows = np.concatenate([np.empty(0, np.uint32), *(rows for rows, _ in lists)])
    parts = np.concatenate([np.empty(0), *(part for _, part in lists)])
    best, scores = np.empty(min(k, len(rows)), np.int64), np.empty(min(k, len(rows)))
    allowed = np.empty(0, np.bool_) if allowed is None else allowed
    of_lists = read_only(rows), read_only(parts), read_only(starts), read_only(np.array(weights, np.float64))
    count = _best(*of_lists, read_only(allowed), read_only(ties), best, scores) if len(rows) and k else 0
    order = np.lexsort((best[:count], ties[best[:count]], -scores[:count]))
    return best[order], scores[order]


def warm() -> None:
    """Compile every kernel of this module into numba's cache, for the array types that the product uses."""
    rows = np.arange(2, dtype=np.uint32)
    best_rows([(rows, np.ones(2))], [1.0], rows, 1)
