"""Candidates and hits, against sorting in Python: the merge of several lists has the nearest rows, ties by address."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ann_kernels.distances.lower_bounds import rounding_of_units
from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.rows.addresses import addresses_of
from icepuffin.ops.rows.candidates import (
    Candidates,
    Hits,
    _by_file,
    answer_names,
    cut_in_doubt,
    fetch,
    merge,
    merge_sorted,
    nearest_rows,
    table_distances,
)
from icepuffin.ops.rows.row_reader import RowReader
from icepuffin.ops.table.live_files import live_files
from tests.conftest import STORAGE

Row = tuple[float, int, int]
"""(distance, file, position)"""
NO_ROW = (math.inf, -1, -1)


def candidates(lists: Sequence[Sequence[Row]]) -> Candidates:
    width = max(1, *map(len, lists))
    full = [[*rows, *[NO_ROW] * (width - len(rows))] for rows in lists]
    distances, files, positions = (np.array([[row[part] for row in rows] for rows in full]) for part in range(3))
    return Candidates(files.astype(np.int64), positions.astype(np.int64), distances.astype(np.float64))


def rows_of(made: Candidates) -> list[list[Row]]:
    arrays = made.distances.tolist(), made.files.tolist(), made.positions.tolist()
    return [[row for row in zip(*lists, strict=True) if row[1] >= 0] for lists in zip(*arrays, strict=True)]


def drawn(rng: np.random.Generator, queries: int, most: int) -> list[list[Row]]:
    """Few distances, so that there are ties; a row is in one list only."""
    return [
        [(float(rng.integers(4)), int(rng.integers(3)), int(rng.integers(1 << 36))) for _ in range(rng.integers(most))]
        for _ in range(queries)
    ]


@pytest.mark.parametrize("seed", range(30))
def test_a_merge_has_the_nearest_of_all_lists(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries = 1 + seed % 3
    lists = [drawn(rng, queries, 7) for _ in range(rng.integers(1, 5))]
    k = int(rng.integers(1, 9))
    expected = [sorted(row for rows in of_query for row in rows)[:k] for of_query in zip(*lists, strict=True)]
    parts = [candidates(rows) for rows in lists]
    assert rows_of(merge(parts, k)) == expected
    ordered = [candidates([sorted(rows) for rows in part]) for part in lists]
    merged = merge_sorted(ordered, k)
    assert rows_of(merged) == expected
    assert merged.files.shape == (queries, k)
    assert np.isinf(merged.distances[merged.files < 0]).all()
    assert (merged.positions[merged.files < 0] == -1).all()
    neighbors = [
        (np.where(part.files < 0, -1, addresses_of(part.files, part.positions)), part.distances) for part in ordered
    ]
    assert rows_of(nearest_rows(neighbors, k)) == expected
    assert rows_of(parts[0].ordered(k)) == [sorted(rows)[:k] for rows in lists[0]]
    assert rows_of(merge(parts, k).padded(k + 2)) == expected
    assert merge(parts, k).padded(k + 2).files.shape[1] >= k + 2
    assert rows_of(merged.first(1)) == [rows[:1] for rows in expected]
    hits = Hits.ranked([Hits.from_candidates(part) for part in parts], k)
    assert list(zip(hits.queries.tolist(), hits.ranks.tolist(), strict=True)) == [
        (query, rank) for query, rows in enumerate(expected) for rank in range(1, len(rows) + 1)
    ]
    got = list(zip(hits.distances.tolist(), hits.files.tolist(), hits.positions.tolist(), strict=True))
    assert got == [row for rows in expected for row in rows]
    everything = Hits.ranked([Hits.from_candidates(part) for part in parts], None)
    assert len(everything.files) == sum(len(rows) for part in lists for rows in part)


def test_empty_lists_take_no_place_of_a_merge_that_others_fill() -> None:
    one, empty = candidates([[(1.0, 0, 5)], [(2.0, 0, 7)]]), Candidates.none(2, 3)
    assert merge([empty, one], 1).files.shape == (2, 1)
    assert rows_of(merge([empty, one, empty], 2)) == [[(1.0, 0, 5)], [(2.0, 0, 7)]]
    assert merge([empty, one], 2).files.shape == (2, 2), "as many places as were wanted"
    assert rows_of(merge([empty, empty], 2)) == [[], []]
    assert (empty.files.shape, empty.files.max(), empty.positions.max()) == ((2, 3), -1, -1)
    assert np.isinf(empty.distances).all()


def test_candidates_of_some_queries_are_those_of_no_other() -> None:
    few = candidates([[(1.0, 0, 5), (2.0, 1, 6)], [(3.0, 2, 7)]])
    spread = few.spread(np.array([3, 1]), 4)
    assert rows_of(spread) == [[], [(3.0, 2, 7)], [], [(1.0, 0, 5), (2.0, 1, 6)]]
    assert few.spread(np.array([0, 1]), 2) is few
    assert few.first(2) is few
    assert few.padded(2) is few


def test_hits_keep_their_ranks_where_some_are_taken() -> None:
    hits = Hits.from_candidates(candidates([[(1.0, 0, 5), (2.0, 1, 6)], [(3.0, 2, 7)]]))
    assert (hits.queries.tolist(), hits.ranks.tolist()) == ([0, 0, 1], [1, 2, 1])
    of_one_query = Hits.from_candidates(candidates([[(1.0, 0, 5), (2.0, 1, 6)]]))
    assert (of_one_query.queries.tolist(), of_one_query.ranks.tolist()) == ([0, 0], [1, 2])
    assert (of_one_query.files.tolist(), of_one_query.positions.tolist()) == ([0, 1], [5, 6])
    taken = hits.take(np.array([2, 1]))
    assert (taken.queries.tolist(), taken.ranks.tolist(), taken.files.tolist()) == ([1, 0], [1, 2], [2, 1])
    assert (taken.positions.tolist(), taken.distances.tolist()) == ([7, 6], [3.0, 2.0])
    assert len(Hits.none().files) == len(Hits.none().distances) == 0


def test_each_row_is_read_once_file_by_file() -> None:
    files, positions = np.array([2, 0, 2, 0, 2]), np.array([9, 4, 3, 4, 9])
    rows, places = _by_file(files, positions)
    assert [(number, wanted.tolist()) for number, wanted in rows] == [(0, [4]), (2, [3, 9])]
    assert places.tolist() == [2, 0, 1, 0, 2]
    assert _by_file(files[:0], positions[:0])[0] == []


@pytest.mark.parametrize("metric", [metric for metric in Metric if metric is not Metric.HAMMING])
def test_a_list_is_in_doubt_where_rounding_may_have_cut_a_neighbour_off(metric: Metric) -> None:
    """The bound of rounding, for vectors and queries of length 1 in 4 dimensions. Bits are counted, and not rounded."""
    queries = np.array([[1.0, 0, 0, 0]])
    unit = 1.01 * 2.0**-24
    last, rounding = 0.125, rounding_of_units(4)
    bound = {
        Metric.L2: unit * (1 + last) + 2 * 2.0**-149,
        Metric.INNER_PRODUCT: unit * 3.0 + 2 * 2.0**-149,
        Metric.COSINE: None,
    }[metric]

    def doubtful(kth: float, *, is_full: bool = True) -> bool:
        approximate = candidates([[(0.05, 0, 1), (last, 0, 2) if is_full else NO_ROW]])
        exact = candidates([[(kth, 0, 1), (0.9, 0, 2)]])
        return cut_in_doubt(approximate, exact, queries, 1, metric, 3.0)

    assert not doubtful(0.12)
    assert doubtful(last)
    assert doubtful(last + 1e-12)
    assert not doubtful(last + 1e-12, is_full=False)
    if bound is not None:
        assert not doubtful(last - 1.001 * bound)
        assert doubtful(last - 0.999 * bound)
    else:
        euclidean = math.sqrt(2 * last)
        assert not doubtful((euclidean - 1.01 * rounding) ** 2 / 2)
        assert doubtful((euclidean - 0.99 * rounding) ** 2 / 2)


def test_a_vector_of_a_data_file_that_has_no_distance_is_refused() -> None:
    """Before, the index had another one."""
    pair = np.zeros(1, np.int64)
    for metric, vector in ((Metric.L2, [np.nan, 0.0]), (Metric.COSINE, [0.0, 0.0])):
        with pytest.raises(KernelError):
            table_distances(np.ones((1, 2)), np.array([vector], np.float32), pair, pair, metric)


def test_a_column_with_a_name_of_the_answers_own_is_renamed() -> None:
    assert answer_names(["id", "rank", "table_rank", "distance", "query"]) == [
        "id",
        "table_table_rank",
        "table_rank",
        "table_distance",
        "table_query",
    ]


@pytest.mark.parametrize("ranks", [[1, 2, 3], [1, 3], [2]])
def test_an_answer_to_one_query_has_the_ranks_of_its_hits(table: Table, ranks: list[int]) -> None:
    """Also where a rank between them is left out, as of a row that a later step dropped."""
    rows = RowReader(live_files(table, SnapshotId(table.metadata.current_snapshot_id or 0)), table.schema(), STORAGE)
    places = np.arange(len(ranks))
    hits = Hits(np.zeros_like(places), np.array(ranks), np.zeros_like(places), places, places.astype(np.float64))
    for fields in ([], [table.schema().find_field("id").field_id]):
        assert fetch(hits, rows, fields)["rank"].to_pylist() == ranks
