"""Recall of a version's candidates beside the nearest rows, where many rows are equally far."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.recall.curves import ShardCentroids
from icepuffin.ops.rows.candidates import Candidates
from icepuffin.ops.search.measured.recall_trial import GroundTruth, RecallTrial
from icepuffin.ops.search.tuning import RecallModel, SearchParameters

TRUE = [0.0, 0.0, 0.5, 0.5, 0.5, 0.5]
"""Distances of rows 0 to 5: of the four nearest, two are as far as two other rows"""
NEITHER = 9
"""A row that is not listed"""


def candidates(rows: list[int], distances: list[float]) -> Candidates:
    files = np.where(np.array([rows]) < 0, -1, 0)
    return Candidates(files, np.array([rows]), np.array([distances]))


def trial(metric: Metric, *, exact: bool) -> RecallTrial:
    parts: Any = SimpleNamespace(metric=metric, exact=exact, routing=SimpleNamespace(dims=8))
    return RecallTrial(parts, parts, parts, parts, parts, ())


@pytest.mark.parametrize("metric", [Metric.L2, Metric.COSINE])
@pytest.mark.parametrize(
    ("rows", "distances", "of_codes", "of_vectors"),
    [
        ([0, 1, 2, 3], [0.0, 0.0, 0.5, 0.5], 1.0, 1.0),
        ([0, 1, 4, 5], [0.0, 0.0, 0.5, 0.5], 1.0, 1.0),
        ([0, 2, 3, 4], [0.0, 0.5, 0.5, 0.5], 0.75, 0.75),
        ([2, 3, 4, 5], [0.5, 0.5, 0.5, 0.5], 0.5, 0.5),
        ([0, 1, 2, NEITHER], [0.0, 0.0, 0.5, 0.5], 0.75, 1.0),
        ([2, 3, 4, NEITHER], [0.5, 0.5, 0.5, 0.1], 0.5, 0.75),
        ([0, -1, -1, -1], [0.0, np.inf, np.inf, np.inf], 0.25, 0.25),
    ],
)
def test_a_tie_is_a_hit_only_where_the_truth_has_ties(
    metric: Metric, rows: list[int], distances: list[float], of_codes: float, of_vectors: float
) -> None:
    truth = GroundTruth.from_candidates(candidates(list(range(6)), TRUE), 4)
    assert [len(own) for own in truth.addresses] == [6]
    assert truth.more_ties.tolist() == [True]
    found = candidates(rows, distances)
    assert trial(metric, exact=False)._recalls(found, truth).tolist() == [of_codes]
    assert trial(metric, exact=True)._recalls(found, truth).tolist() == [of_vectors]


def test_a_slack_probes_so_many_shards_of_the_codebook_on_average() -> None:
    rng = np.random.default_rng(2)
    codebook, vectors = rng.standard_normal((6, 4)).astype(np.float32), rng.standard_normal((50, 4))
    shards = np.arange(6, dtype=np.uint32)

    def slacks(codebook: npt.NDArray[np.float32], metric: Metric = Metric.L2) -> tuple[RecallModel, tuple[float, ...]]:
        routed = ShardCentroids.from_codebook(codebook, shards[: len(codebook)], metric)
        parts: Any = SimpleNamespace(recall_model=RecallModel(routed, len(codebook), (), {}))
        return parts.recall_model, RecallTrial(parts, parts, parts, parts, parts, ()).slacks(vectors, (1.5, 2, 5, 6, 9))

    model, (*finite, last) = slacks(codebook)
    assert (len(finite), last) == (3, np.inf), "not all of them"
    for number, slack in zip((1.5, 2, 5), finite, strict=True):
        probed = model.probed(vectors, SearchParameters(10, probe_slack=slack))
        assert probed is not None
        assert number <= probed.sum(axis=1).mean() < number + 0.05
    assert slacks(codebook[:1])[1] == slacks(codebook, Metric.INNER_PRODUCT)[1] == (np.inf,)


def test_directions_that_were_rounded_are_as_near_as_the_table_has_them() -> None:
    truth = GroundTruth.from_candidates(candidates([0, 1, 2], [1e-17, 0.5, 0.5]), 2)
    rounded = candidates([7, 8], [1e-15, 0.5 + 1e-9])
    assert trial(Metric.COSINE, exact=True)._recalls(rounded, truth).tolist() == [1.0]
    assert trial(Metric.L2, exact=True)._recalls(rounded, truth).tolist() == [0.5], "the second is farther"
