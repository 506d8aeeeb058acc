"""How partitions become shards, and what probing fewer shards loses."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.codes import kmeans
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index import index_layout
from icepuffin.ops.index.index_layout import draw_sample, group_partitions
from icepuffin.ops.index.planning.version_plan import plan_version
from icepuffin.ops.index.routing_recall import _shards_of_nearest, curve_in_sample
from icepuffin.ops.index.versions.layout_fit import LayoutFit
from icepuffin.ops.model import FileSlot, SnapshotId
from icepuffin.ops.tasks.file_balls import BallSet
from icepuffin.ops.tasks.staged_blocks import StagedRows
from icepuffin.ops.tasks.task_runner import RunContext
from tests.conftest import DIMS, STORAGE, make_rows
from tests.ops.index.comparison import DEFINITION, answer_with_recall, index_head


def came(rows: int, *sums: float) -> StagedRows:
    """Rows that were scattered over shards; sums of their distances from the nearest centroids, by file."""
    return StagedRows((), ((FileSlot(0), rows),), 0, BallSet.from_balls((), DIMS), sums)


def test_shards_are_out_of_balance_from_more_than_three_times_that_of_the_build_on() -> None:
    built = LayoutFit.of_build([10, 10, 20], [])
    assert (built.balance, built.built_balance) == (1.5, 1.5)
    for balance, is_out in ((4.5, False), (4.6, True)):
        fit = replace(built, balance=balance)
        assert (bool(fit.imbalance), bool(fit.fault)) == (is_out, is_out)
    kept = replace(built, balance=5.0, kept_balance=5.0)
    assert (kept.imbalance, bool(kept.fault)) == ("", True), "a build was in vain: it is not tried each time"
    assert replace(kept, balance=15.0).imbalance == ""
    assert replace(kept, balance=15.1).imbalance.startswith("shards are out of balance: the largest has 15.1 times")


def test_a_codebook_no_longer_fits_from_more_than_half_as_far_again_on() -> None:
    fit = LayoutFit(built_distance=2.0)
    for distance, is_far in ((3.0, False), (3.01, True)):
        assert bool(replace(fit, distance=distance).fault) is is_far
    fault = "the codebook no longer fits: rows lie 4 from its centroids, 2 when it was trained"
    assert (replace(fit, distance=4.0).fault, replace(fit, distance=4.0).imbalance) == (fault, "")
    assert LayoutFit(distance=9.0).fault == "", "a build of rows that are their own centroids says nothing"


def test_a_codebook_is_apart_by_each_twentieth_that_rows_lie_farther() -> None:
    """1.05 times as far is once, and 1.1025 times as far is twice."""
    fit = LayoutFit(built_distance=2.0)
    for times, apart in ((0.5, 0), (1.0, 0), (1.0499, 0), (1.0501, 1), (1.1024, 1), (1.1026, 2)):
        assert replace(fit, distance=2.0 * times).steps_apart == apart
    assert LayoutFit(distance=9.0).steps_apart == 0


def test_the_distance_of_a_layout_is_the_mean_of_all_rows_each_as_it_came() -> None:
    built = LayoutFit.of_build([4], [came(4, 3.0, 1.0)])
    assert (built.distance, built.built_distance) == (1.0, 1.0)
    later = built.after([6], 4, [came(2, 8.0)])
    assert (later.distance, later.built_distance, later.balance) == (2.0, 1.0, 1.0)
    assert built.after([6], 4, [came(2, 2.0, math.inf)]).distance == 1.0
    assert built.after([0, 0], 0, []).balance == 0.0


def test_a_sample_is_of_distinct_live_rows_of_all_files_and_of_all_of_one(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files may be of several times, and sorted: a codebook of their first rows would know no others."""
    table = table_factory()
    for first in range(0, 800, 100):
        table.append(make_rows(first, first + 100))
    append_position_deletes(table, {file: np.arange(10) for file in table.inspect.files()["file_path"].to_pylist()})
    monkeypatch.setattr(index_layout, "sample_size", lambda _: 80)
    run = RunContext(table.refresh(), STORAGE)
    plan = plan_version(run, DEFINITION, SnapshotId(table.metadata.current_snapshot_id or 0))
    sample = {row.tobytes() for row in draw_sample(plan, STORAGE)}
    rows = table.scan().to_arrow()
    ids = {np.array(row["embedding"], np.float32).tobytes(): row["id"] for row in rows.to_pylist()}
    files, positions = np.divmod([ids[row] for row in sample], 100)
    whole = np.bincount(files).argmax()
    assert np.bincount(files, minlength=8).min() > 0
    assert np.ptp(positions[files == whole]) > 70
    assert (len(sample), positions.min() >= 10) == (80, True)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30, 3e38])
def test_partitions_are_halved_whatever_their_scale(scale: float) -> None:
    """Near float's largest number the means were infinite: `LinAlgError: SVD did not converge`."""
    codebook = np.random.default_rng(0).uniform(-1, 1, (32, 3))
    shards = group_partitions((scale * codebook).astype(np.float32), np.full(32, 10), 4)
    assert np.bincount(shards).tolist() == [8, 8, 8, 8]


def test_no_shard_is_without_a_partition_however_large_one_is() -> None:
    codebook = np.arange(4, dtype=np.float32)[:, None]
    for sizes in ([1, 1, 1, 97], [97, 1, 1, 1]):
        assert sorted({*group_partitions(codebook, np.array(sizes), 3).tolist()}) == [0, 1, 2]


def test_too_few_rows_have_no_shards_of_the_nearest() -> None:
    assert _shards_of_nearest([np.zeros((2, 2)), np.zeros((2, 1))], 3).tolist() == [[-1] * 3] * 2
    assert _shards_of_nearest([np.zeros((2, 2)), np.ones((2, 1))], 2).tolist() == [[0, 1]] * 2


def test_rows_of_a_centroid_that_equals_another_are_probed_for() -> None:
    """No query is led by it, so its shard is always probed: nothing that lies there is lost."""
    vectors = np.repeat(np.eye(3, 40, dtype=np.float32), 100, axis=0)
    codebook, to_shard = vectors[[0, 100, 200, 0]], np.array([0, 1, 1, 2], np.uint32)
    labels = np.where(np.arange(300) < 100, 3, np.arange(300) // 100).astype(np.int32)
    assert curve_in_sample(vectors, labels, vectors[::9], codebook, to_shard, Metric.L2).startswith("[[0.0,1.0,1.0]")


def test_an_index_of_many_partitions_is_built_and_takes_rows(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From thousands of partitions on rows are compared with those of near groups alone; here from ten on."""
    monkeypatch.setattr(kmeans, "MANY", 10)
    definition = replace(DEFINITION, max_deltas=0)
    table = table_factory()
    for first in (0, 600):
        table.append(make_rows(first, first + 600))
        report = index_head(table, definition)
        assert answer_with_recall(table, definition=definition)[1] >= 0.96
    assert sum(shard.inserted for shard in report.shard_reports) == 600
