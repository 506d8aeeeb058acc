from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from icepuffin.ops.spark import task_placement
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.spark.task_placement import Executors, TaskPlacement, placement_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Says which executors there are, of a core each, at which second: those of a local session never change."""

    def change(addresses: str, second: float) -> None:
        monkeypatch.setattr(Executors, "from_session", lambda _: Executors(addresses, len(addresses.split())))
        monkeypatch.setattr(task_placement, "monotonic", lambda: second)

    return change


def test_places_follow_executors_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What registers may not take tasks yet, and what was lost is soon replaced."""
    seconds = 0.0
    monkeypatch.setattr(task_placement, "monotonic", lambda: seconds)
    of_cluster, settled = TaskPlacement(), task_placement.SETTLED_SECONDS

    def executors(current: str) -> str:
        spread = of_cluster._executors(Executors(current, len(current.split())))
        assert spread.cores == len(spread.addresses.split())
        return spread.addresses

    assert executors("a b") == "a b", "the first ones at once"
    seconds += 2 * settled
    assert executors("a") == "a b"
    seconds += settled - 1
    assert executors("a") == "a b"
    assert executors("a c") == "a b", "a set that is new again"
    seconds += settled - 1
    assert executors("a c") == "a b"
    seconds += 1
    assert executors("a c") == "a c"
    assert executors("a c") == "a c"
    assert executors("a b") == "a c"


@pytest.mark.jvm
def test_a_lost_executor_moves_no_other_place_until_executors_have_settled(
    spark: "SparkSession", cluster: Callable[[str, float], None]
) -> None:
    """Jobs have as many partitions as before, so that these are the ones that are cached."""
    runner, of_cluster = SparkRunner(spark, keep_places=True), TaskPlacement()
    cluster("a b c", 0)
    before, _ = of_cluster.partitions(spark, 8)
    cluster("a b", 1)
    assert runner.parallelism == 2
    assert (of_cluster.cores(spark), of_cluster.partitions(spark, 8)[0]) == (3, before)
    cluster("a b", 1 + task_placement.SETTLED_SECONDS)
    after, _ = of_cluster.partitions(spark, 8)
    assert (of_cluster.cores(spark), len(after)) == (2, 2)
    assert not {*before} & {*after}


@pytest.mark.jvm
def test_a_runner_in_place_has_the_cores_over_which_places_are_spread(
    own_session: "SparkSession", cluster: Callable[[str, float], None]
) -> None:
    runner = SparkRunner(own_session, keep_places=True)
    slots = runner.in_place().parallelism
    cluster("a b c d e", 10**6)
    assert (runner.parallelism, runner.in_place().parallelism) == (5, slots)


@pytest.mark.jvm
def test_what_is_cached_for_former_executors_is_dropped(
    own_session: "SparkSession", cluster: Callable[[str, float], None]
) -> None:
    of_cluster, session = TaskPlacement(), own_session
    cluster("x y", 0)
    former = [of_cluster.partitions(session, count)[1] for count in (1, 2)]
    cluster("y z", task_placement.SETTLED_SECONDS)
    assert of_cluster.partitions(session, 2)[1].storageLevel.useMemory
    cluster("y z", 2 * task_placement.SETTLED_SECONDS)
    newer = [of_cluster.partitions(session, count)[1] for count in (1, 2)]
    assert [frame.storageLevel.useMemory for frame in (*former, *newer)] == [False, False, True, True]
    for frame in newer:
        frame.unpersist()


@pytest.mark.jvm
def test_sessions_of_one_context_have_the_same_places(spark: "SparkSession", own_session: "SparkSession") -> None:
    """They share executors, and what these cache."""
    assert placement_of(own_session) is placement_of(spark)
