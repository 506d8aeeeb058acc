"""Recall of live queries by a sample: against brute force, within its budget, and honest where it has nothing."""

import gc
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numba
import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ann_kernels.compiled_code import compilation_seconds
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.recall.confidence import confidence_interval
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.measured import live_recall
from icepuffin.ops.search.measured.live_recall import LiveRecall, RecallSampler, _recall
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.tasks.task_runner import LocalRunner
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.index.comparison import DEFINITION, index_head
from tests.patience import PATIENCE

VERSION, OTHER = SnapshotId(1), SnapshotId(2)
BALLS = replace(DEFINITION, method="centroid")


@dataclass
class Clock:
    """The times of a sampler's module. Nothing passes but what work takes, and rests."""

    now: float = 0.0
    worked: float = 0.0
    rests: list[float] = field(default_factory=list)
    """Rests so far, in seconds; those of none are left out"""
    is_up: threading.Event | None = None
    """Event that ends a rest; None: it ends at once"""

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.worked

    def sleep(self, seconds: float) -> None:
        if seconds:
            self.rests.append(seconds)
            assert self.is_up is None or self.is_up.wait(PATIENCE)
            self.now += seconds

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.worked += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    new_clock = Clock()
    monkeypatch.setattr(live_recall, "time", new_clock)
    return new_clock


def settled(recall: Callable[[], LiveRecall], queries: int) -> LiveRecall:
    """What was measured, once so many queries were, or could not be."""
    deadline = time.monotonic() + PATIENCE
    while (measured := recall()).queries + measured.left_out < queries:
        assert time.monotonic() < deadline, measured
        time.sleep(0.01)
    return measured


def test_the_recall_is_the_mean_of_the_sample() -> None:
    sampler = RecallSampler(1.0, budget=1e6)
    exact = np.array([[1.0, 2.0, 2.0, np.inf]])
    for distances in ([1.0, 2.0, 2.0, np.inf], [1.0, 2.0, 3.0, np.inf], [3.0, 4.0, np.inf, np.inf]):
        assert sampler.draws()
        sampler.add(VERSION, np.array(distances), lambda: exact)
    measured = settled(lambda: sampler.recall(VERSION), 3)
    assert measured.recall == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert type(measured.recall) is float, "as JSON takes it"
    assert (measured.low, measured.high) == confidence_interval(measured.recall, 3)
    assert sampler.recall(OTHER) == LiveRecall(1.0, seconds=measured.seconds)


@pytest.mark.parametrize("exact", [[-3.0, -2.0], [1.0, 2.0], [-1.0, 0.0], [0.0, 0.0]], ids=str)
def test_rows_that_are_as_near_but_for_rounding_count(exact: list[float]) -> None:
    """Under inner product distances are negative."""
    nearest = np.array([exact])
    rounded = nearest[0] + np.abs(nearest[0]) * 1e-12
    assert _recall(rounded, nearest) == _recall(nearest[0], nearest) == 1.0
    assert _recall(np.array([exact[0], exact[1] + 1e-6]), nearest) == 0.5


def test_rows_as_far_as_the_last_stand_for_no_nearer_row() -> None:
    nearest = np.array([[0.0, 0.0, 1.0, 1.0, np.inf]])
    assert _recall(np.array([0.0, 1.0, 1.0, 1.0, np.inf]), nearest) == 0.75
    assert _recall(np.full(5, np.inf), np.full((1, 5), np.inf)) == 1.0


def test_the_budget_is_kept_and_what_it_does_not_admit_is_counted(clock: Clock) -> None:
    measuring, gate, begun = threading.Event(), threading.Event(), list[float]()

    def work() -> np.ndarray:
        measuring.set()
        assert gate.wait(PATIENCE)
        begun.append(clock.now)
        clock.work(0.02)
        return np.ones((1, 1))

    sampler = RecallSampler(1.0, budget=0.1)
    sampler.add(VERSION, np.ones(1), work)
    assert measuring.wait(PATIENCE)
    for _ in range(39):
        sampler.add(VERSION, np.ones(1), work)
    first = sampler.recall(VERSION)
    assert (first.left_out, first.waiting) == (39 - 16, 16)
    gate.set()
    measured = settled(lambda: sampler.recall(VERSION), 40)
    assert measured.queries == 17
    assert measured.seconds == pytest.approx(17 * 0.02)
    np.testing.assert_allclose(begun, 0.22 * np.arange(17), err_msg="each is rested for, ten times as long as it took")
    np.testing.assert_allclose(clock.rests[:16], 0.2)


def test_kernels_that_an_exact_answer_compiles_do_not_count() -> None:
    """In a new environment the first answer compiled for seconds, and the next one waited a hundred times as long."""
    compiled, spent = list[float](), list[float]()

    def exact() -> np.ndarray:
        begun, compiled_before = time.thread_time(), compilation_seconds()
        new_kernel: Any = numba.njit(lambda values: np.sort(values * 2))
        new_kernel(np.ones(3))
        compiled.append(compilation_seconds() - compiled_before)
        spent.append(time.thread_time() - begun)
        return np.ones((1, 1))

    sampler = RecallSampler(1.0, budget=1e6)
    sampler.add(VERSION, np.ones(1), exact)
    measured = settled(lambda: sampler.recall(VERSION), 1)
    assert 0 < compiled[0] < spent[0]
    assert spent[0] - compiled[0] <= measured.seconds < spent[0], "less than the answer took: compiling is left out"


def test_an_exact_answer_that_fails_is_reported() -> None:
    def fail() -> np.ndarray:
        raise OSError("the store is away")

    sampler = RecallSampler(1.0)
    sampler.add(VERSION, np.ones(1), fail)
    measured = settled(lambda: sampler.recall(VERSION), 1)
    assert (measured.queries, measured.left_out, measured.recall) == (0, 1, None)
    assert (measured.low, measured.high) == (0.0, 1.0)
    assert measured.why == "OSError: the store is away"
    sampler.add(VERSION, np.ones(1), lambda: np.ones((1, 1)))
    measured = settled(lambda: sampler.recall(VERSION), 2)
    assert (measured.queries, measured.left_out, measured.why) == (1, 1, ""), "the last one could be measured"


def gone(kept: "weakref.ref[object]") -> bool:
    """Whether nothing keeps an object any more, or soon."""
    deadline = time.monotonic() + PATIENCE
    while kept() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    return kept() is None


def test_a_version_is_kept_no_longer_than_its_queries_are_measured(clock: Clock) -> None:
    """A rest may take minutes, and a version gigabytes. This one takes until nothing keeps the version."""
    clock.is_up = threading.Event()

    def exact() -> np.ndarray:
        clock.work(0.02)
        return np.ones((1, 1))

    sampler, kept = RecallSampler(1.0, budget=1e-3), weakref.ref(exact)
    sampler.add(VERSION, np.ones(1), exact)
    del exact
    settled(lambda: sampler.recall(VERSION), 1)
    try:
        assert gone(kept)
    finally:
        clock.is_up.set()


def test_queries_of_an_older_version_do_not_wait() -> None:
    """Sixteen queries would keep as many versions of a table that is refreshed often."""
    measuring, gate = threading.Event(), threading.Event()

    def first() -> np.ndarray:
        measuring.set()
        assert gate.wait(PATIENCE)
        return np.ones((1, 1))

    def exact() -> np.ndarray:
        return np.ones((1, 1))

    sampler = RecallSampler(1.0, budget=1e6)
    sampler.add(VERSION, np.ones(1), first)
    assert measuring.wait(PATIENCE)
    for version in (VERSION, VERSION, VERSION, OTHER, OTHER):
        sampler.add(version, np.ones(1), exact)
    assert (sampler.recall(VERSION).left_out, sampler.recall(VERSION).waiting) == (3, 2)
    gate.set()
    assert settled(lambda: sampler.recall(OTHER), 2).queries == 2
    assert (sampler.recall(VERSION).queries, sampler.recall(OTHER).left_out) == (1, 0)


def test_the_samples_of_the_last_versions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_recall, "_MAX_VERSIONS", 2)
    sampler = RecallSampler(1.0, budget=1e6)
    for version in (VERSION, OTHER, VERSION, SnapshotId(3)):
        before = sampler.recall(version).queries
        sampler.add(version, np.ones(1), lambda: np.ones((1, 1)))
        settled(lambda of=version: sampler.recall(of), before + 1)  # type: ignore[misc]
    assert [sampler.recall(SnapshotId(number)).queries for number in (1, 2, 3)] == [0, 1, 1], "the oldest is forgotten"


def test_a_query_that_waits_does_not_keep_its_whole_batch(table: Table) -> None:
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE, threads=1, recall_sample=1.0)
    sampler = RecallSampler(1.0)
    reader._pipeline.sampler = sampler
    sampler._running = True  # nothing is measured
    reader.search(queries(40), 3)
    assert len(sampler._waiting) == 16
    for drawn in sampler._waiting:
        exact: Any = drawn.exact
        arrays = drawn.distances, exact.args[0]
        assert [array.size if array.base is None else array.base.size for array in arrays] == [3, queries(1).size]


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "1 %"])
def test_a_share_that_is_none_is_refused(table: Table, share: float) -> None:
    index_head(table)
    with pytest.raises(QueryError, match="recall_sample is"):
        open_index(table, DEFINITION, storage=STORAGE, recall_sample=share)


@pytest.mark.parametrize("where", [None, "id >= 100", "id < 20", "id < 0"])
def test_live_queries_are_measured_against_brute_force(table: Table, where: str | None) -> None:
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE, threads=1, recall_sample=1.0)
    reader._pipeline.sampler = RecallSampler(1.0, budget=1e6)
    vectors = queries(12)
    answer = reader.search(vectors, 10, search_list=1, where=where, columns=["id"])
    measured = settled(reader.stats, len(vectors))
    exact = open_exact(table, "embedding", Metric(DEFINITION.metric), storage=STORAGE)
    truth = exact.search(vectors, 10, where=where, columns=["id"])
    own, true = (
        set(zip(*(one.rows[name].to_pylist() for name in ("query", "id")), strict=True)) for one in (answer, truth)
    )
    assert measured.recall == pytest.approx(len(own & true) / len(true) if true else 1.0)
    assert (measured.low, measured.high) == confidence_interval(measured.recall or 0.0, len(vectors))
    assert (measured.left_out, measured.why) == (0, "")


def test_without_a_sample_stats_says_why(table: Table) -> None:
    assert "every row is compared" in open_exact(table, "embedding", "l2", storage=STORAGE).stats().why
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    reader.search(queries(2))
    assert reader.stats() == LiveRecall(0.0, why=reader.stats().why)
    assert "recall_sample" in reader.stats().why


@pytest.mark.parametrize(
    ("definition", "options", "why"),
    [
        (BALLS, {}, "every row of the files in reach is compared: answers are exact"),
        (BALLS, {"stale": "nearest-only"}, "every row of the index in reach is compared: answers lack nothing but"),
        (DEFINITION, {"runner": LocalRunner(1), "in_process_mb": 0}, "tasks search the index"),
        (replace(DEFINITION, vectors="f16"), {}, "the index does not hold the table's vectors as they are"),
        (replace(DEFINITION, vectors="none"), {}, "the index does not hold the table's vectors as they are"),
    ],
    ids=["balls", "some balls", "tasks", "halves", "codes"],
)
def test_queries_that_cannot_be_measured_are_not_drawn_and_stats_says_why(
    table: Table, monkeypatch: pytest.MonkeyPatch, definition: IndexDefinition, options: dict[str, Any], why: str
) -> None:
    monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_MEMORY_MB", "0")  # so that no index is warm
    index_head(table, replace(definition, target_recall=0.0))
    table.append(make_rows(600, 610))
    reader = open_index(table, definition, storage=STORAGE, recall_sample=1.0, **options)
    reader.search(queries(1), 3)
    measured = reader.stats()
    assert (measured.queries, measured.waiting, measured.left_out, measured.share) == (0, 0, 0, 1.0)
    assert measured.why.startswith(why)


def test_a_newer_reader_goes_on_with_the_budget_and_begins_a_sample(table: Table) -> None:
    index_head(table)
    reader = open_index(table, DEFINITION, storage=STORAGE, threads=1, recall_sample=1.0)
    with reader.follow(interval=1000) as following:
        following.search(queries(1))
        assert settled(reader.stats, 1).queries == 1
        table.append(table.scan().to_arrow().slice(0, 50))
        index_head(table)
        assert following.update()
        newer = following.reader.stats()
    assert (newer.share, newer.queries, newer.seconds) == (1.0, 0, reader.stats().seconds)


@pytest.mark.parametrize("share", [-0.1, 1.1, "1"])
def test_a_share_of_the_queries_is_none_to_all_of_them(share: Any) -> None:
    assert [RecallSampler(each).share for each in (0, 1)] == [0.0, 1.0]
    with pytest.raises(QueryError, match="it is a share of the queries, 0 to 1"):
        RecallSampler(share)
