"""Placement of new rows by the merge policy of delta shards, for any sizes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ops.index.planning.deltas import NEW_DELTA, Placement, place
from tests.ops.index.comparison import DEFINITION

SIZES = st.lists(st.integers(0, 5000), max_size=12)


def placed(
    routed_rows: int, deltas: list[int], arriving: int, max_deltas: int = 4, share: float = 0.25, largest: int = 10**6
) -> Placement:
    definition = replace(DEFINITION, max_deltas=max_deltas, delta_share=share)
    held = dict(enumerate(deltas, 3))
    return place(definition, routed_rows=routed_rows, deltas=held, arriving=arriving, largest=largest)


def test_a_few_rows_make_a_delta() -> None:
    assert placed(1000, [], 10) == Placement(NEW_DELTA)
    assert placed(1000, [10, 20, 30], 10) == Placement(NEW_DELTA)


def test_when_there_are_enough_deltas_the_smallest_takes_what_comes() -> None:
    assert placed(1000, [40, 20, 30, 20], 10) == Placement(4)
    assert placed(1000, [40, 0, 30, 20], 10) == Placement(NEW_DELTA, dropped=(4,)), "one without a row is none"


def test_many_rows_go_where_the_codebook_leads_and_take_the_deltas_along() -> None:
    assert placed(1000, [100, 0, 100], 51) == Placement(None, dissolved=(3, 5), dropped=(4,))
    assert placed(1000, [100, 0, 100], 50) == Placement(NEW_DELTA, dropped=(4,))


def test_a_delta_is_no_larger_than_a_shard_may_be() -> None:
    assert placed(10_000, [], 101, largest=100) == Placement(None)
    assert placed(10_000, [80], 100, largest=100) == Placement(NEW_DELTA)
    assert placed(10_000, [80, 60, 70, 90], 40, largest=100) == Placement(4)
    assert placed(10_000, [80, 60, 70, 90], 41, largest=100) == Placement(None, dissolved=(3, 4, 5, 6))


def test_without_deltas_in_the_definition_each_row_goes_where_the_codebook_leads() -> None:
    assert placed(1000, [], 1, max_deltas=0) == Placement(None)
    assert placed(1000, [10], 1, max_deltas=0) == Placement(None, dissolved=(3,)), "it had some before"


def test_where_nothing_comes_nothing_is_merged() -> None:
    assert placed(10, [500, 500], 0) == Placement(None)


@given(routed_rows=st.integers(0, 20_000), deltas=SIZES, arriving=st.integers(0, 5000), max_deltas=st.integers(0, 8))
def test_a_search_meets_few_deltas_of_a_bounded_share(
    routed_rows: int, deltas: list[int], arriving: int, max_deltas: int
) -> None:
    result = placed(routed_rows, deltas, arriving, max_deltas)
    kept = {number: rows for number, rows in enumerate(deltas, 3) if number not in (*result.dissolved, *result.dropped)}
    assert all(deltas[number - 3] == 0 for number in result.dropped)
    assert result.target in (None, NEW_DELTA, *kept)
    if not arriving:
        return
    if result.target is None:
        assert not kept
    else:
        assert sum(kept.values()) + arriving <= 0.25 * routed_rows
        assert len(kept) + (result.target == NEW_DELTA) <= max(max_deltas, len(kept))


@given(appends=st.lists(st.integers(1, 400), min_size=1, max_size=60), max_deltas=st.integers(1, 6))
def test_over_any_appends_a_row_enters_a_graph_twice_at_most(appends: list[int], max_deltas: int) -> None:
    base, deltas, entered = 1000, {}, 0
    for rows in appends:
        definition = replace(DEFINITION, max_deltas=max_deltas)
        result = place(definition, routed_rows=base, deltas=deltas, arriving=rows, largest=10**6)
        entered += rows + sum(deltas[number] for number in result.dissolved)
        if result.target is None:
            base, deltas = base + rows + sum(deltas.values()), {}
        else:
            number = 1 + max(deltas, default=0) if result.target == NEW_DELTA else result.target
            deltas[number] = deltas.get(number, 0) + rows
        assert len(deltas) <= max_deltas
        assert sum(deltas.values()) <= 0.25 * base
    assert entered <= 2 * sum(appends)
    assert base + sum(deltas.values()) == 1000 + sum(appends)
