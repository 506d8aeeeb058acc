"""Values within a budget, beside a list of all that was done."""

from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ops.process.lru_cache import LruCache

BUDGET = 10
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, BUDGET + 2)),
        st.tuples(st.just("get"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("pop"), st.integers(0, 5), st.just(0)),
    )
)


@given(STEPS)
def test_the_last_values_that_fit_are_kept(steps: list[tuple[str, int, int]]) -> None:
    cache = LruCache[int, int](BUDGET)
    model: list[tuple[int, int]] = []
    """(key, weight), the one that was used longest ago first. A value is its step's number"""
    values: dict[int, int] = {}
    for number, (step, key, weight) in enumerate(steps):
        own = [pair for pair in model if pair[0] == key]
        others = [pair for pair in model if pair[0] != key]
        if step == "put":
            cache.put(key, number, weight)
            values[key] = number
            model = [*others, (key, weight)] if weight <= BUDGET else others
            while sum(weight for _, weight in model) > BUDGET:
                del model[0]
        else:
            assert getattr(cache, step)(key) == (values[key] if own else None)
            model = others + own if step == "get" else others
        assert list(cache.items()) == [(key, values[key]) for key, _ in model]
        assert (len(cache), cache.weight) == (len(model), sum(weight for _, weight in model))
        assert all((key in cache) == (key in dict(model)) for key in range(6))


def test_a_smaller_budget_holds_from_the_next_value_on() -> None:
    cache = LruCache[str, int](3)
    for key in "abc":
        cache.put(key, 0)
    cache.budget = 2
    assert len(cache) == 3
    cache.put("d", 0)
    assert [key for key, _ in cache.items()] == ["c", "d"]


def test_a_weight_without_its_value_is_forgotten() -> None:
    """As in a process that was forked after a value was dropped, and before its weight was."""
    cache = LruCache[str, int](3)
    cache._weight = 3
    cache.put("a", 1, 2)
    assert (cache.get("a"), cache.weight) == (1, 2)
    cache._weight = 5
    cache.put("b", 2, 2)
    cache.put("c", 3, 2)
    assert (cache.get("c"), cache.weight) == (3, 2)
