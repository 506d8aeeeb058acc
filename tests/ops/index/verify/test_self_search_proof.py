"""What a search of rows by their own vectors says of a version's file."""

from dataclasses import replace

import pytest

from icepuffin.ops.index.verify.self_search_proof import SelfSearch, fault_of
from icepuffin.ops.recall.confidence import confidence_interval
from icepuffin.ops.tasks.matching.self_search import SelfSearchResult


def report(rows: int = 100, misplaced: int = 0, returned: int = 100, queries: int = 64, shards: int = 2) -> SelfSearch:
    return SelfSearch.from_result(SelfSearchResult(rows, misplaced, returned, queries, 0.9), shards=shards)


def test_a_self_search_counts_rows_shards_and_queries() -> None:
    low, high = confidence_interval(0.9, 64)
    assert report(100, 3, 90) == SelfSearch(100, 3, 90, 2, 64, 0.9, low, high)


@pytest.mark.parametrize("rows", [0, 1, 2, 99, 100])
def test_fewer_than_half_of_the_rows_are_a_fault_and_half_of_them_are_none(rows: int) -> None:
    half = -(-rows // 2)
    assert fault_of(SelfSearchResult(rows, 0, half, 64, 0.9), 1.0) is None
    if half:
        fewer = fault_of(SelfSearchResult(rows, 0, half - 1, 64, 0.9), 1.0)
        assert fewer == f"of {rows} rows that were searched by their own vectors {half - 1} came back"


@pytest.mark.parametrize(("drawn_returned", "sound"), [(45, True), (44, False)])
def test_nodes_drawn_at_random_decide_where_few_rows_come_back(drawn_returned: int, sound: bool) -> None:
    """Half of what the definition demands."""
    assert (fault_of(SelfSearchResult(64, 0, 0, 64, 0.0, 100, drawn_returned), 0.9) is None) is sound


def test_one_row_with_another_s_vector_is_a_fault() -> None:
    result = SelfSearchResult(100, 1, 99, 64, 0.9)
    assert fault_of(result, 0.0) == "1 of 100 rows have nodes with the vectors of other rows"


def test_the_summary_is_one_line() -> None:
    assert report(2_000, returned=1_998).summary == (
        "1,998 of 2,000 rows came back by their own vectors, in 2 shards; recall@10 there 0.9000 (0.802 to 0.952)"
    )
    wide = replace(report(), wide_queries=1, wide_recall=0.75)
    assert wide.summary.endswith("recall@10 there 0.9000 (0.802 to 0.952), recall@100 0.7500")
    assert report(shards=1, queries=0).summary == "100 of 100 rows came back by their own vectors, in 1 shard"


def test_without_shards_the_summary_counts_nothing() -> None:
    assert report(rows=0, returned=0, queries=0, shards=0).summary == "none: there was no shard to search"
