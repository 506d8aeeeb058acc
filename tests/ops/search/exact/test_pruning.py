"""Bounds by balls around the rows of files, where rows lie as near to the query as a ball admits."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.model import FileNumber
from icepuffin.ops.search.exact.pruning import FileBalls
from icepuffin.ops.search.exact.scan import RangeThresholds

F64 = npt.NDArray[np.float64]


class World:
    """Files with balls, and in each ball one row: where its surface is nearest to the query."""

    def __init__(self, seed: int, balls: int, dims: int, metric: Metric, scale: float, *, is_rounded: bool) -> None:
        rng = np.random.default_rng(seed)
        self.metric, self.files = metric, 6
        self.query = rng.standard_normal(dims) * scale
        centers = (rng.standard_normal((balls, dims)) * scale * rng.choice([0.1, 1, 3], (balls, 1))).astype(np.float32)
        if metric is Metric.COSINE:
            self.query /= np.linalg.norm(self.query)
            centers /= np.linalg.norm(centers, axis=1, keepdims=True)
        numbers = rng.integers(0, self.files - 1, balls)  # the last file has no ball
        ways = self.query - centers.astype(np.float64)
        far = np.linalg.norm(ways, axis=1)
        radii = far * rng.choice([0.0, 0.2, 0.9, 1.0, 1.5], balls)
        self.nearest = np.maximum(0.0, far - radii)
        """f64[E]: Euclidean distance of the row in each ball from the query"""
        self.numbers = numbers
        self.balls = FileBalls(self.files, numbers, centers, radii, metric, is_rounded=is_rounded)

    def reported(self, euclidean: F64) -> F64:
        return euclidean if self.metric is Metric.L2 else euclidean**2 / (2 if self.metric is Metric.COSINE else 1)

    def of_file(self, number: int) -> float:
        """Reported distance of the nearest row of a file; inf without a ball."""
        return float(self.reported(self.nearest[self.numbers == number]).min(initial=np.inf))


@st.composite
def worlds(draw: st.DrawFn) -> World:
    balls = draw(st.sampled_from([1, 2, 7, 31, 32, 40, 90]))  # from 32 on centres have codes
    metric = draw(st.sampled_from([Metric.L2, Metric.COSINE, Metric.HAMMING]))
    scale = draw(st.sampled_from([1e-3, 1.0, 1e4]))
    seed, dims = draw(st.integers(0, 1 << 30)), draw(st.integers(1, 20))
    return World(seed, balls, dims, metric, scale, is_rounded=draw(st.booleans()))


@given(worlds())
def test_no_row_is_lost_and_a_file_out_of_reach_is_pruned(world: World) -> None:
    queries = world.query[None]
    for file in range(world.files):
        nearest = world.of_file(file)
        if nearest == np.inf:
            continue
        at = RangeThresholds.from_distance(nearest, 1, world.metric, inclusive=True)
        assert world.balls.reachable(queries, at)[file]
        below = RangeThresholds.from_distance(nearest * 0.98, 1, world.metric, inclusive=True)
        if nearest > world.reported(np.array(1e-2 * np.linalg.norm(world.query))):
            assert not world.balls.reachable(queries, below)[file]
    without = set(range(world.files)) - set(world.numbers.tolist())
    nothing = RangeThresholds.from_distance(-1.0, 1, world.metric, inclusive=False)
    assert without <= set(np.flatnonzero(world.balls.reachable(queries, nothing)).tolist()), "no ball tells of them"


@given(worlds())
def test_bounds_are_under_every_row_and_near_the_nearest_one(world: World) -> None:
    bounds = world.balls.bounds(world.query[None])[0]
    doubt = float(world.reported(np.array(2e-2 * (np.linalg.norm(world.query) + world.nearest.max()))))
    for file in range(world.files):
        nearest = world.of_file(file)
        refined = world.balls.refined(world.query[None], FileNumber(file))[0]
        if nearest == np.inf:
            assert (bounds[file], refined) == (0.0, 0.0)
            continue
        assert 0 <= bounds[file] <= nearest
        assert 0 <= refined <= nearest
        assert refined == pytest.approx(nearest, rel=1e-4, abs=doubt)


@given(worlds(), st.integers(0, 1 << 30))
def test_a_proof_is_under_every_row_of_the_files_that_are_ruled_out(world: World, seed: int) -> None:
    order = sorted({*world.numbers.tolist()}, key=world.of_file)
    cut = np.random.default_rng(seed).integers(0, len(order))
    last = world.of_file(order[cut - 1]) if cut else 0.0
    ruled_out = np.zeros(world.files, np.bool_)
    ruled_out[[file for file in order[cut:] if world.balls.bounds(world.query[None])[0, file] > last]] = True
    pruned_from, margins = world.balls.proof(world.query[None], np.array([last]), ruled_out)
    nearest = np.array([world.of_file(file) for file in np.flatnonzero(ruled_out)])
    assert (margins <= nearest - last + 1e-12).all()
    assert (margins > 0).all()
    if len(nearest):
        assert last < pruned_from[0] <= nearest.min()
        assert pruned_from[0] == pytest.approx(nearest.min(), rel=1e-3, abs=1e-2 * nearest.min() + 1e-9)
    else:
        assert pruned_from[0] == np.inf


@pytest.mark.parametrize("balls", [5, 70])
def test_several_queries_are_bounded_each_by_itself(balls: int) -> None:
    world = World(3, balls, 8, Metric.L2, 1.0, is_rounded=False)
    queries = np.random.default_rng(4).standard_normal((9, 8))
    together = world.balls.bounds(queries)
    for row, query in enumerate(queries):
        assert together[row].tolist() == world.balls.bounds(query[None])[0].tolist()
        for file in range(world.files):
            number = FileNumber(file)
            assert world.balls.refined(queries, number)[row] == world.balls.refined(query[None], number)[0]
