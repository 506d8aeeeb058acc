"""Answers of several sources as one, and of several conditions joined."""

import math

import numpy as np

from icepuffin.ops.model import ShardId
from icepuffin.ops.rows.candidates import Candidates, Hits
from icepuffin.ops.search.result import Certificate, Pruning, ShardWork
from icepuffin.ops.search.source_answer import SourceAnswer, joined, merged, shown_ways, work_by_shard
from icepuffin.ops.search.tuning import SearchParameters


def rows(*lists: list[tuple[int, float]]) -> Candidates:
    """Rows of file 0 as (position, distance), by query."""
    positions, distances = (np.array([[row[part] for row in rows] for rows in lists]) for part in range(2))
    return Candidates(np.zeros_like(positions), positions, distances.astype(np.float64))


def test_the_nearest_of_all_sources_are_kept_or_all_where_directions_were_rounded() -> None:
    for rounded, kept in ((False, [7, 5]), (True, [7, 5, 6])):
        index = SourceAnswer(rows([(5, 2.0), (6, 3.0)]), 1, "beam", scanned=2, tail="in memory", warnings=("a", "b"))
        tail = SourceAnswer(rows([(7, 1.0)]), 1, "scan", scanned=3, tail="read", warnings=("b", "c"))
        tail.rounded_directions = rounded
        whole = merged([index, tail], 2)
        assert (whole.strategy, whole.scanned, whole.tail) == ("beam", 5, "in memory; read")
        assert (whole.warnings, whole.rounded_directions) == (("a", "b", "c"), rounded)
        assert whole.candidates.positions[0].tolist()[:3] == kept


def test_rows_of_an_answer_are_merged_with_candidates_by_distance() -> None:
    for rounded, kept in ((False, [7, 5]), (True, [7, 5, 6])):
        hits = Hits.from_candidates(rows([(5, 2.0), (6, 3.0)]))
        answers = [SourceAnswer(hits, 1, "beam", rounded_directions=rounded), SourceAnswer(rows([(7, 1.0)]), 1, "scan")]
        assert merged(answers, 2).hits.positions.tolist() == kept


def test_answers_to_some_queries_are_joined_and_their_numbers_added_up() -> None:
    work = ShardWork(ShardId(1), 9, 1, 2, 3), ShardWork(ShardId(1), 9, 2, 4, 6), ShardWork(ShardId(0), 5, 1, 1, 1)
    first = SourceAnswer(rows([(5, 1.0)]), 1, "beam", work[:1], 10, 20, condition="by a", tail="read")
    first.pruning, first.warnings = Pruning(4, 1, 40, 10, "balls"), ("a",)
    first.certificate = Certificate((1.0,), (2.0,), {"x": 0.5, "y": 0.25})
    second = SourceAnswer(rows([(6, 2.0), (8, 2.5)], [(7, 3.0), (9, 4.0)]), 2, "scan", work[1:], 100, 200)
    second.matching_rows, second.condition, second.tail = 7, "by b", "read"
    second.pruning, second.warnings = Pruning(4, 2, 40, 20, "others"), ("a", "b")
    second.parameters = SearchParameters(40)
    second.certificate = Certificate((2.0, 3.0), (math.inf, 3.5), {"x": 0.125, "y": 0.75})
    whole = joined([(np.array([1]), first), (np.array([0, 2]), second)], 3)
    assert (whole.hits.queries.tolist(), whole.hits.positions.tolist()) == ([0, 0, 1, 2, 2], [6, 8, 5, 7, 9])
    assert whole.strategy == "beam (1 queries), scan (2 queries)"
    assert whole.work == (ShardWork(ShardId(0), 5, 1, 1, 1), ShardWork(ShardId(1), 9, 3, 6, 9))
    assert (whole.queries, whole.compared, whole.scanned, whole.matching_rows) == (3, 110, 220, 7)
    assert (whole.condition, whole.tail, whole.warnings) == ("by a; by b", "read", ("a", "b"))
    assert whole.parameters == SearchParameters(40)
    assert whole.pruning == Pruning(8, 3, 80, 30, "balls")
    proof = Certificate((2.0, 1.0, 3.0), (math.inf, 2.0, 3.5), {"x": 0.125, "y": 0.25})
    assert whole.certificate == proof


def test_queries_without_a_proof_were_compared_with_every_row() -> None:
    plain = SourceAnswer(rows([(5, 1.0)]), 1, "scan")
    proven = SourceAnswer(rows([(6, 2.0)]), 1, "scan", certificate=Certificate((2.0,), (2.5,)))
    whole = joined([(np.array([0]), plain), (np.array([1]), proven)], 2)
    assert whole.certificate == Certificate((math.inf, 2.0), (math.inf, 2.5))
    assert (whole.strategy, whole.matching_rows, whole.pruning) == ("scan", None, None)
    alone = joined([(np.array([0]), SourceAnswer(rows([(5, 1.0)]), 1, "scan"))], 1)
    assert alone.certificate is None
    three = [(np.array([number]), SourceAnswer(rows([(5, 1.0)]), 1, kind)) for number, kind in enumerate("aba")]
    assert joined(three, 3).strategy == "a (2 queries), b (1 queries)"


def test_three_ways_are_named_and_further_ones_counted() -> None:
    assert shown_ways(["a", "", "b", "a", "c"]) == "a; b; c"
    assert shown_ways("abcda") == "a; b; c; 1 more"
    assert shown_ways([]) == ""


def test_work_is_that_of_each_shard() -> None:
    blocks = [ShardWork(ShardId(shard), 10, 1, 2, 3) for shard in (2, 0, 2)]
    assert work_by_shard(blocks) == (ShardWork(ShardId(0), 10, 1, 2, 3), ShardWork(ShardId(2), 10, 2, 4, 6))
