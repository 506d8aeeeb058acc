"""Two lists of rows made one: the nearest by their vectors, and the best by their words."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icepuffin.ann_kernels.arrays import F64, I64
from icepuffin.ops.rows.addresses import addresses_of, rows_at
from icepuffin.ops.rows.candidates import Hits

_RRF = 60
"""Constant of reciprocal rank fusion (Cormack, Clarke and Buettcher 2009)"""


@dataclass(frozen=True, slots=True, eq=False)
class RankedRows:
    """Rows of one query in order, the best first."""

    files: I64
    positions: I64
    values: F64
    """f64[n]: distances, or scores"""

    @property
    def addresses(self) -> I64:
        """int64[n]: file and position as one number."""
        return addresses_of(self.files, self.positions)


@dataclass(frozen=True, slots=True, eq=False)
class FusedRows:
    """The best rows of one query by both lists. Ranks are 0, and values NaN, where a list does not have the row."""

    files: I64
    positions: I64
    scores: F64
    distances: F64
    vector_ranks: I64
    text_scores: F64
    text_ranks: I64


def fuse(nearest: RankedRows, texts: RankedRows, k: int, text_weight: float | None) -> FusedRows:
    """The k best rows of both lists; equal ones in the order of the texts, then of the vectors.

    By reciprocal rank fusion: the sum of 1 / (60 + rank) over the lists that have the row. With a `text_weight` from 0
    to 1: that share of the text score, and the rest of the nearness, each scaled to 0 to 1 between the last and the
    first row of its list.
    """
    addresses = np.unique(np.concatenate([nearest.addresses, texts.addresses]))
    distances, vector_ranks, vector_order = _of(nearest, addresses)
    text_scores, text_ranks, text_order = _of(texts, addresses)
    if text_weight is None:
        scores = sum(np.where(ranks, 1 / (_RRF + ranks), 0.0) for ranks in (vector_ranks, text_ranks))
    else:
        scores = text_weight * _scaled(text_scores) + (1 - text_weight) * _scaled(-distances)
    best = np.lexsort((vector_order, text_order, -np.asarray(scores)))[:k]
    arrays = (scores, distances, vector_ranks, text_scores, text_ranks)
    return FusedRows(*rows_at(addresses[best]), *(np.asarray(each)[best] for each in arrays))


def _of(rows: RankedRows, addresses: I64) -> tuple[F64, I64, I64]:
    """(values, ranks from 1, places in the list) of the rows with some addresses, which ascend. Rows of one value have
    one rank: which of them comes first says nothing.
    """
    values, ranks = np.full(len(addresses), np.nan), np.zeros(len(addresses), np.int64)
    order = np.full(len(addresses), len(addresses))
    index = np.searchsorted(addresses, rows.addresses)
    is_first, every = np.append(True, np.diff(rows.values) != 0)[: len(index)], np.arange(1, len(index) + 1)
    values[index], order[index] = rows.values, every
    ranks[index] = np.maximum.accumulate(np.where(is_first, every, 0))
    return values, ranks, order


def _scaled(values: F64) -> F64:
    """Values from 0 to 1, the largest being 1; 0 where there is none. All are 1 where they are equal."""
    have = values[~np.isnan(values)]
    if not len(have):
        return np.zeros(len(values))
    span = have.max() - have.min()
    return np.asarray(np.nan_to_num((values - have.min()) / span if span else values - have.min() + 1.0))


def answer_columns(parts: list[FusedRows], *, hybrid: bool) -> tuple[Hits, dict[str, pa.Array]]:
    """(rows of all queries, the columns of an answer beside query and rank)."""
    counts = [len(part.scores) for part in parts]
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("files", "positions", "scores", "distances", "vector_ranks", "text_scores", "text_ranks")
    }
    ranks = np.concatenate([np.arange(1, count + 1) for count in counts])
    queries = np.repeat(np.arange(len(counts)), counts)
    hits = Hits(queries, ranks, joined["files"], joined["positions"], joined["distances"])
    columns = {"score": pa.array(joined["scores" if hybrid else "text_scores"], pa.float64())}
    if hybrid:
        for name, values, kind in (
            ("distance", "distances", pa.float64()), ("vector_rank", "vector_ranks", pa.int32()),
            ("text_score", "text_scores", pa.float64()), ("text_rank", "text_ranks", pa.int32()),
        ):  # fmt: skip
            absent = joined["vector_ranks" if name in ("distance", "vector_rank") else "text_ranks"] == 0
            columns[name] = pa.array(joined[values], kind, mask=absent)
    return hits, columns
