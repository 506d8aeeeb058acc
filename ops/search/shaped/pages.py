"""All rows in the order of their distance from a query, page by page.

A search gives some pages. For the next ones, one for more rows follows, whose rows without those of earlier pages come
next. Once that is a good part of all rows, or a search finds no more of them, every row is compared: so none is missing
in the end, whatever a graph finds.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from icepuffin.ann_kernels.arrays import I64
from icepuffin.ops.rows.addresses import addresses_of
from icepuffin.ops.rows.candidates import Hits
from icepuffin.ops.search.pipeline import Answer
from icepuffin.ops.search.result import SearchCosts

_PAGES = 4
"""Pages of the first search, and times as many rows of each further one"""
_COMPARED = 8
"""Rows of the snapshot per row that is searched for, from which every row is compared"""

Find = Callable[[int, bool, SearchCosts], Answer]
"""Function from k, and whether every row is to be compared, to the k nearest rows of one query"""


def pages_of(find: Find, size: int, most: int) -> Iterator[tuple[Answer, SearchCosts]]:
    """Pages of `size` rows, the last one perhaps of fewer, with the costs of each. `most`: a bound of the rows that
    there are.
    """
    given: list[I64] = []
    waiting, start, rank = Hits.none(), 0, 0
    k, is_exact, is_last = _PAGES * size, False, False
    answer: Answer | None = None
    while True:
        costs = SearchCosts()
        while answer is None or (len(waiting.files) - start < size and not is_last):
            k, is_exact = min(k, most), is_exact or _COMPARED * k >= most
            answer = find(k, is_exact, costs)
            found = answer.hits
            is_short = len(found.files) < k or k == most
            is_exact, is_last, k = is_exact or is_short, is_exact and is_short, _PAGES * k
            new = ~np.isin(addresses_of(found.files, found.positions), np.concatenate([found.files[:0], *given]))
            rest = waiting.take(np.arange(start, len(waiting.files)))
            waiting, start = Hits.ranked([rest, found.take(np.flatnonzero(new))], None).distinct(), 0
        page = waiting.take(np.arange(start, min(start + size, len(waiting.files))))
        count = len(page.files)
        if not count:
            return
        given.append(addresses_of(page.files, page.positions))
        page = replace(page, ranks=np.arange(rank + 1, rank + count + 1))
        start, rank = start + count, rank + count
        profile = replace(
            answer.profile,
            milliseconds=costs.milliseconds,
            bytes_read=costs.bytes_read,
            included_rows=costs.included_rows,
        )
        yield Answer(page, profile, answer.warnings), costs
