"""A union of unions is the union of all, to the hash."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.sketches.theta import ThetaAccumulator, union
from icepuffin.ops.tasks.sketches.accumulators import UnitedSketches
from icepuffin.puffin.blobs.theta_blob import MAX_THETA, ThetaSketch, decode, encode
from tests.naive import theta as naive

RANGES = st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 9_000)), min_size=1, max_size=12)
"""(first value, number of values) of the files of a table: a few are exact, many are estimated, and some overlap"""
ID = (1, "long")


def sketch_of(*ranges: tuple[int, int]) -> ThetaSketch:
    accumulator = ThetaAccumulator()
    for first, count in ranges:
        accumulator.update_fixed(np.arange(first, first + count))
    return ThetaSketch(*accumulator.result())


@given(ranges=RANGES, groups=st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_unions_of_tasks_unite_as_their_files_do(ranges: list[tuple[int, int]], groups: list[int]) -> None:
    """As images, which is how tasks return them; files of group 0 by themselves."""
    all_files, by_group = UnitedSketches(), [UnitedSketches() for _ in range(4)]
    for own, group in zip(ranges, groups, strict=False):
        if group:
            by_group[group].add(ID, sketch_of(own))
        else:
            all_files.add(ID, sketch_of(own))
    for united in by_group:
        for key, sketch in united.unions().items():
            all_files.add(key, decode(encode(sketch)))
    expected = sketch_of(*ranges)
    assert all_files.union(ID) == expected
    assert ThetaSketch(*union((s.theta, s.hashes) for s in map(sketch_of, ranges))) == expected
    if len({value for first, count in ranges for value in range(first, first + count)}) <= 4_096:
        assert expected.exact


@given(
    sketches=st.lists(st.sets(st.integers(1, 60)), min_size=1, max_size=8),
    thetas=st.lists(st.integers(30, 61), min_size=8, max_size=8),
    middle=st.integers(0, 8),
)
def test_it_holds_for_sketches_of_any_theta(sketches: list[set[int]], thetas: list[int], middle: int) -> None:
    """Against the oracle, whose unions are of sets."""
    pairs = [(theta, sorted(h for h in own if h < theta)) for own, theta in zip(sketches, thetas, strict=False)]
    arrays = [(theta, np.array(hashes, np.uint64)) for theta, hashes in pairs]
    halves = [union(arrays[:middle], 5), union(arrays[middle:], 5)]
    theta, hashes = union(halves, 5)
    assert (theta, hashes.tolist()) == naive.union(pairs, 5)


def test_a_column_without_sketches_has_the_empty_one() -> None:
    united = UnitedSketches()
    assert united.unions() == {}
    assert united.union(ID) == ThetaSketch(MAX_THETA, np.empty(0, np.uint64))
