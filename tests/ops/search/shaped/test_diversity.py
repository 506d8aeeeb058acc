"""Diversity gives the rows of maximal marginal relevance among the candidates, in the order of their choice."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from icepuffin.ann_kernels.distances.distance import prepare_exact
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.rows.row_reader import RowReader
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.search.shaped.diversity import relevance_order
from tests.conftest import queries
from tests.naive.shapes import relevance_scores
from tests.naive.vectors import exact_distances
from tests.ops.index.comparison import ids_by_query
from tests.ops.search.shaped.lake import DEFINITIONS, INDEXED, Lake, key, lake_in

SLACK = 1e-6
"""Difference of scores that rounding makes: shards hold directions of floats under cosine"""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return lake_in(tmp_path_factory.mktemp("diversity"))


@pytest.fixture(scope="module")
def readers(lake: Lake) -> dict[str, IndexReader]:
    return {name: lake.reader(name) for name in ("graph by tasks", *DEFINITIONS, "exact")}


def check_order(order: list[int], near: np.ndarray, vectors: np.ndarray, diversity: float, metric: str) -> None:
    """Each row has the best score of those that were left when it was chosen; the first is the nearest."""

    def apart(row: int, other: int) -> float:
        return float(exact_distances(vectors[row], vectors[[other]], metric)[0])

    assert len(set(order)) == len(order)
    assert near[order[0]] <= min(near) + SLACK
    for place in range(1, len(order)):
        scores = relevance_scores(near.tolist(), apart, order[:place], diversity)
        slack = SLACK * (1 + max(map(abs, scores.values())))
        assert scores[order[place]] >= max(scores.values()) - slack


@given(
    vectors=arrays.arrays(np.float32, st.tuples(st.integers(1, 25), st.integers(1, 4)), elements=st.integers(-3, 3)),
    k=st.integers(1, 30), diversity=st.sampled_from([0.1, 0.5, 1.0]), metric=st.sampled_from(["l2", "cosine", "ip"]),
)  # fmt: skip
@settings(deadline=None)
def test_each_row_is_the_best_of_those_that_are_left(
    vectors: np.ndarray, k: int, diversity: float, metric: str
) -> None:
    vectors[~vectors.any(axis=1)] = 1
    query = vectors[0] + np.float32(0.5)
    query[:] = query if query.any() else 1
    distances = exact_distances(query, vectors, metric).astype(np.float64)
    ascending = np.argsort(distances, kind="stable")
    vectors, distances = vectors[ascending], distances[ascending]
    order = relevance_order(distances, vectors, k, diversity, Metric.parse(metric)).tolist()
    assert len(order) == min(k, len(vectors))
    check_order(order, distances, vectors, diversity, metric)


def test_under_hamming_bits_that_differ_are_counted() -> None:
    bits = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 0, 0]], np.float32)
    distances = np.array([0.0, 1.0, 2.0])
    assert relevance_order(distances, bits, 3, 0.1, Metric.HAMMING).tolist() == [0, 1, 2]
    assert relevance_order(distances, bits, 3, 0.9, Metric.HAMMING).tolist() == [0, 2, 1]


@pytest.mark.parametrize("name", [*DEFINITIONS, "exact", "graph by tasks"])
@pytest.mark.parametrize("where", [None, "id >= 300"])
@pytest.mark.parametrize("k", [3, 15])
def test_rows_are_chosen_among_the_nearest(
    lake: Lake, readers: dict[str, IndexReader], name: str, where: str | None, k: int
) -> None:
    """Among 50, or five times as many as are wanted, under the condition; distances are those from the query."""
    metric = str(readers[name].metric)
    result = readers[name].search(queries(3), k, diversity=0.4, where=where, columns=["id"], search_list=999)
    nearest = readers[name].search(queries(3), max(5 * k, 50), where=where, columns=["id"], search_list=999)
    found = {(row["query"], row["id"]): row["distance"] for row in nearest}
    assert all(row["distance"] == found[row["query"], row["id"]] for row in result)
    candidates, chosen = ids_by_query(nearest.rows), ids_by_query(result.rows)
    assert result.rows["rank"].to_pylist() == [*range(1, k + 1)] * 3
    for query in range(3):
        order = [candidates[query].index(row) for row in chosen[query]]
        near = np.array([found[query, row] for row in candidates[query]])
        check_order(order, near, lake.vectors[candidates[query]], 0.4, metric)
        assert chosen[query] != candidates[query][:k]


def test_vectors_of_the_shards_that_were_searched_are_not_read_again(
    lake: Lake, readers: dict[str, IndexReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = readers["graph"]
    read: list[list[int]] = []
    take_all = RowReader.take_all

    def recorded(self: RowReader, requests: Any, *arguments: Any) -> Any:
        read.append([row for _, positions in requests for row in positions.tolist()])
        return take_all(self, requests, *arguments)

    monkeypatch.setattr(RowReader, "take_all", recorded)
    result = reader.search(queries(1), 10, diversity=0.5, columns=[])
    candidates = reader.search(queries(1), 50, columns=["id"]).rows["id"].to_pylist()
    assert len(read[0]) == len([row for row in candidates if row >= INDEXED]) > 0
    assert result.profile.milliseconds["diversity"] > 0


def test_candidates_keep_the_limit_of_their_groups(lake: Lake, readers: dict[str, IndexReader]) -> None:
    result = readers["graph"].search(queries(2), 10, per_group={"even": 2}, diversity=0.3, columns=["id"])
    for own in ids_by_query(result.rows).values():
        assert len(own) == 10
        assert max(Counter(key("even", row) for row in own).values()) == 2


def test_no_diversity_is_a_plain_search(readers: dict[str, IndexReader]) -> None:
    search = partial(readers["graph"].search, queries(2), 7, columns=["id"])
    assert search(diversity=0).rows.equals(search().rows)
    assert "diversity" not in search(diversity=0.0).profile.milliseconds
    assert not search(diversity=np.float32(0.5)).rows.equals(search().rows)


@pytest.mark.parametrize("diversity", [-0.1, 1.01, float("nan"), "much", None, True])
def test_diversity_is_a_number_from_0_to_1(readers: dict[str, IndexReader], diversity: Any) -> None:
    with pytest.raises(QueryError, match="it is a number from 0, the nearest rows, to 1"):
        readers["graph"].search(queries(1), diversity=diversity)


def test_directions_are_compared_under_cosine() -> None:
    vectors = np.array([[1, 0], [9, 0.1], [0.5, 0.5]], np.float32)
    units = prepare_exact(vectors, Metric.COSINE)
    near = 1 - units @ units[0]
    assert relevance_order(near, vectors, 2, 0.9, Metric.COSINE).tolist() == [0, 2]
