import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.errors import KernelError
from icepuffin.ann_kernels.sketches.kll import DEFAULT_K, MAX_K, KllAccumulator, KllSketch, capacity
from tests.naive import kll as naive

law = settings(max_examples=60)


def sketch_of(values: np.ndarray, k: int = DEFAULT_K) -> KllSketch:
    accumulator = KllAccumulator(values.dtype, k)
    accumulator.update(values)
    return accumulator.result()


def merged(sketches: list[KllSketch]) -> KllSketch:
    accumulator = KllAccumulator(sketches[0].levels[0].dtype, sketches[0].k)
    for sketch in sketches:
        accumulator.merge(sketch)
    return accumulator.result()


def plain(sketch: KllSketch) -> tuple[object, ...]:
    levels = [level.tolist() for level in sketch.levels]
    return sketch.k, sketch.count, sketch.minimum, sketch.maximum, sketch.levels[0].dtype, levels


def assert_sound(sketch: KllSketch, values: np.ndarray) -> None:
    """The laws of every sketch, whatever its error."""
    assert sum(len(level) << i for i, level in enumerate(sketch.levels)) == sketch.count == len(values)
    assert sum(map(len, sketch.levels)) <= capacity(sketch.k, len(sketch.levels))
    assert all(bool(np.all(level[1:] >= level[:-1])) for level in sketch.levels)
    assert (sketch.minimum, sketch.maximum) == ((values.min(), values.max()) if len(values) else (None, None))
    assert set(np.concatenate(sketch.levels).tolist()) <= set(values.tolist())


def worst_range(sketch: KllSketch, values: np.ndarray) -> float:
    """What the share of the values in any range between 1,000 of them is off by, at most."""
    ordered = np.sort(values)
    ends = ordered[np.linspace(0, len(values) - 1, 1_000).astype(int)]
    errors = sketch.ranks(ends) - np.searchsorted(ordered, ends, side="right") / len(values)
    return float(max(errors.max(), 0) - min(errors.min(), 0))


numbers = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=200)
COLUMNS = {
    "uniform": lambda rng, count: rng.random(count),
    "skewed": lambda rng, count: rng.zipf(1.5, count).astype(np.float64),
    "ascending": lambda rng, count: np.arange(count) + rng.random(),
    "descending": lambda rng, count: -np.arange(count) - rng.random(),
}


@pytest.mark.parametrize("k", [8, 200, 512, 1_024, MAX_K])
def test_capacities_are_those_of_the_formula_in_exact_numbers(k: int) -> None:
    for levels in (1, 2, 10, 31, 61):
        assert capacity(k, levels) == naive.capacity(k, levels)


@law
@given(values=numbers, asked=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_of_at_most_k_values_every_rank_and_quantile_is_exact(values: list[int], asked: list[int]) -> None:
    sketch = sketch_of(np.array(values, np.int64), 200)
    assert sketch.rank_error == 0
    assert sketch.levels[0].tolist() == sorted(values)
    assert sketch.ranks(np.array(asked, np.int64)).tolist() == [naive.rank(values, x) for x in asked]
    if values:
        shares = np.linspace(0, 1, 17).tolist()
        assert sketch.quantiles(shares).tolist() == [naive.quantile(values, share) for share in shares]


def test_one_value_more_than_k_is_a_sample() -> None:
    assert len(sketch_of(np.arange(200), 200).levels) == 1
    sketch = sketch_of(np.arange(201), 200)
    assert len(sketch.levels) == 2
    assert 0 < sketch.rank_error < 0.02


@law
@given(
    sizes=st.lists(st.integers(0, 40_000), max_size=4),
    k=st.sampled_from([8, 100, 512, 20_000]),
    kind=st.sampled_from([np.int64, np.float64]),
    seed=st.integers(0, 99),
)
def test_a_sketch_of_any_batches_is_that_of_one_and_sound(sizes: list[int], k: int, kind: type, seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = [rng.integers(-1_000_000, 1_000_000, size).astype(kind) for size in sizes]
    accumulator = KllAccumulator(kind, k)
    for batch in batches:
        accumulator.update(batch)
        accumulator.result()
    values = np.concatenate([np.empty(0, kind), *batches])
    assert plain(accumulator.result()) == plain(sketch_of(values, k))
    assert_sound(accumulator.result(), values)


@law
@given(sizes=st.lists(st.integers(0, 30_000), min_size=1, max_size=6), k=st.sampled_from([8, 512]))
def test_merges_are_sound_and_exact_up_to_k(sizes: list[int], k: int) -> None:
    rng = np.random.default_rng(len(sizes))
    parts = [rng.integers(0, 5_000, size) for size in sizes]
    sketches = [sketch_of(part, k) for part in parts]
    values = np.concatenate(parts)
    for sketch in (merged(sketches), merged([merged(sketches[:2]), *sketches[2:]]), merged(sketches[::-1])):
        assert_sound(sketch, values)
        if len(values) <= k:
            assert sketch.levels[0].tolist() == sorted(values.tolist())
        elif k == DEFAULT_K:
            assert worst_range(sketch, values) < sketch.rank_error


@pytest.mark.parametrize("name", COLUMNS)
def test_ranges_are_within_the_stated_error_in_every_one_of_a_hundred_draws(name: str) -> None:
    worst = []
    for seed in range(100):
        values = COLUMNS[name](np.random.default_rng(seed), 100_000)
        worst.append(worst_range(sketch_of(values), values))
    assert max(worst) < sketch_of(values).rank_error / 2


@pytest.mark.parametrize("name", COLUMNS)
def test_a_thousand_merges_lose_nothing_of_the_stated_error(name: str) -> None:
    values = COLUMNS[name](np.random.default_rng(1), 2_000_000)
    sketch = merged([sketch_of(part) for part in np.array_split(values, 1_000)])
    assert_sound(sketch, values)
    assert worst_range(sketch, values) < sketch.rank_error


@pytest.mark.parametrize("count", [9_000, 16_384])
def test_errors_of_files_even_out(count: int) -> None:
    """Each file has its own bits: the mean error of a hundred sketches is far below that of one."""
    ends, off = np.linspace(0.01, 0.99, 99), []
    for seed in range(100):
        values = np.random.default_rng(seed).random(count)
        off.append(sketch_of(values, 32).ranks(ends) - np.searchsorted(np.sort(values), ends) / count)
    assert np.abs(np.mean(off, axis=0)).max() < np.abs(off).max() / 4
    assert np.abs(off).max() > 0.01


def test_memory_does_not_grow_with_values_and_merges() -> None:
    values, accumulator = np.arange(20_000), KllAccumulator(np.int64)
    tracemalloc.start()
    for _ in range(400):
        accumulator.merge(sketch_of(values))
    for _ in range(200):
        accumulator.update(values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20  # the items of the sketches take 3 MiB


def test_the_extremes_are_quantiles_though_they_are_no_items() -> None:
    sketch = sketch_of(np.arange(100_000), 8)
    assert sketch.levels[-1][0] > 0
    assert sketch.quantiles([0, 1]).tolist() == [0, 99_999]


def test_negative_zero_is_zero() -> None:
    sketch = sketch_of(np.array([-0.0, 0.0, -1.0]))
    assert [str(value) for value in sketch.levels[0].tolist()] == ["-1.0", "0.0", "0.0"]
    assert str(sketch.maximum) == "0.0"


def test_infinities_are_values() -> None:
    sketch = sketch_of(np.array([np.inf, 1.0, -np.inf]))
    assert (sketch.minimum, sketch.maximum) == (-np.inf, np.inf)
    assert sketch.ranks([-np.inf, 0, 1, np.inf]).tolist() == [1 / 3, 1 / 3, 2 / 3, 1]


def test_a_sketch_of_nothing_has_ranks_and_no_quantiles() -> None:
    sketch = sketch_of(np.empty(0))
    assert plain(sketch) == (DEFAULT_K, 0, None, None, np.dtype(np.float64), [[]])
    assert sketch.ranks([1.0]).tolist() == [0]
    assert plain(merged([sketch, sketch_of(np.array([2.0])), sketch])) == plain(sketch_of(np.array([2.0])))
    with pytest.raises(KernelError, match="0 values"):
        sketch.quantiles([0.5])


def test_bad_arrays_and_sketches_are_refused() -> None:
    accumulator = KllAccumulator(np.float64, 8)
    for values in (np.zeros(3, np.int64), np.zeros((3, 1))):
        with pytest.raises(KernelError, match="this sketch takes float64"):
            accumulator.update(values)
    for other in (sketch_of(np.zeros(3), 9), sketch_of(np.arange(3), 8)):
        with pytest.raises(KernelError, match="into k = 8, float64"):
            accumulator.merge(other)
    for k in (7, MAX_K + 1):
        with pytest.raises(KernelError, match="is 8 to 65535"):
            KllAccumulator(np.int64, k)
    with pytest.raises(KernelError, match="not float32"):
        KllAccumulator(np.float32)
    for share in (-0.1, 1.1, np.nan):
        with pytest.raises(KernelError, match=r"ranks in 0 \.\. 1"):
            sketch_of(np.zeros(3)).quantiles([share])
    for count in (1, 1 << 14):
        with pytest.raises(KernelError, match="no NaN"):
            sketch_of(np.append(np.zeros(count - 1), np.nan))
