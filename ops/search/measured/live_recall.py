"""Recall of live queries: some are answered exactly, too, off the query's path and within a budget of processor time.

A query that is drawn waits in a short list. One thread takes it from there, answers it exactly, and then rests for as
long as the budget demands. Where the list is full, the query is left out: what is measured then is a smaller sample.
Queries of another version leave the list when one is drawn, so that none keeps an old version in memory for long.

What was measured is reported to a folder, too, where there is one (`icepuffin.ops.recall.recall_reports`).
"""

import logging
import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from icepuffin.ann_kernels.arrays import F64
from icepuffin.ann_kernels.distances.recall import recalls_of
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.recall.confidence import confidence_interval
from icepuffin.ops.recall.recall_reports import RecallReporter
from icepuffin.ops.search.errors import QueryError

BUDGET = 0.01
"""Share of one core that exact answers take, on average since the first one began, without compiling kernels"""
_MAX_WAITING = 16
_MAX_VERSIONS = 64
"""Versions whose samples are kept: of those that queries were drawn for, the last that came"""
_EQUAL = 1e-9
"""Largest relative difference of distances that are equal but for rounding"""
_log = logging.getLogger(__name__)
_samplers: "weakref.WeakSet[RecallSampler]" = weakref.WeakSet()
"""Samplers of this process, for processes that are forked from it"""


@dataclass(frozen=True, slots=True)
class LiveRecall:
    """Recall of the queries that an index version has answered, by a sample."""

    share: float
    """Share of the queries that are drawn; 0: none are measured"""
    queries: int = 0
    """Drawn queries that were answered exactly, too: the size of the sample"""
    recall: float | None = None
    """Mean share of the k nearest rows that an answer had; None without a sample"""
    low: float = 0.0
    """Lower end of the 95 % confidence interval of `recall`; 0 without a sample"""
    high: float = 1.0
    """Upper end of the 95 % confidence interval of `recall`; 1 without a sample"""
    waiting: int = 0
    """Drawn queries that wait for their exact answers, all of the version that answered last"""
    left_out: int = 0
    """Drawn queries that were not measured: the budget did not admit them, a newer version came, or they failed"""
    seconds: float = 0.0
    """Processor time of exact answers, those for other versions included; without that of compiling kernels"""
    why: str = ""
    """Reason why queries are not measured, why the last one that was drawn could not be, or why it could not be
    reported; empty without one
    """


@dataclass(slots=True)
class _Sample:
    """Measured queries of one version."""

    queries: int = 0
    recall: float = 0.0
    """Sum over the queries"""
    left_out: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A query that was drawn."""

    version: SnapshotId
    distances: F64
    """Distances of the rows that were answered, f64[k]; inf where there are fewer"""
    exact: Callable[[], F64]
    """Function that gives the distances of the k nearest rows, f64[1, k]; inf where there are fewer"""


class RecallSampler:
    """Draws queries, and measures their recall in a thread. Thread-safe; readers of newer snapshots share it.

    `share`: of the queries that are drawn, 0 to 1; else QueryError.
    """

    def __init__(self, share: float, *, budget: float = BUDGET) -> None:
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise QueryError(f"recall_sample is {share!r}; it is a share of the queries, 0 to 1")
        self.share = float(share)
        self._budget = budget
        self._reporter: RecallReporter | None = None
        self._of_thread = threading.local()
        self.forget()
        _samplers.add(self)

    def forget(self) -> None:
        """Begin with nothing measured, as a process that was forked must: it has neither the thread nor the queries."""
        self._random = random.Random()  # noqa: S311  no secret
        self._lock = threading.Lock()
        self._waiting: deque[_Drawn] = deque()
        self._samples: dict[SnapshotId, _Sample] = {}
        self._seconds = 0.0
        self._rested = 0.0
        """Time by the monotonic clock from which the budget admits another exact answer"""
        self._running = False
        self._arrived = threading.Event()
        self._unreported: set[SnapshotId] = set()
        self._unreported_why = ""

    def report_to(self, reporter: RecallReporter) -> None:
        """Report what is measured from now on."""
        self._reporter = reporter

    def draws(self) -> bool:
        """Whether the next query is measured, by chance."""
        return self._random.random() < self.share and not getattr(self._of_thread, "is_paused", False)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Draw no query of this thread while the block lasts."""
        self._of_thread.is_paused = True
        try:
            yield
        finally:
            self._of_thread.is_paused = False

    def add(self, version: SnapshotId, distances: F64, exact: Callable[[], F64]) -> None:
        """Measure a query that was drawn, when the budget admits it; see `_Drawn`."""
        with self._lock:
            while self._waiting and self._waiting[0].version != version:  # each keeps its version in memory
                self._sample(self._waiting.popleft().version).left_out += 1
            if len(self._waiting) == _MAX_WAITING:
                self._sample(version).left_out += 1
                return
            self._waiting.append(_Drawn(version, distances, exact))
            self._arrived.set()
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="icepuffin-recall", daemon=True).start()

    def recall(self, version: SnapshotId, why: str = "") -> LiveRecall:
        """What was measured of a version. `why`: why its queries are not measured."""
        with self._lock:
            sample = self._samples.get(version, _Sample())
            mean = sample.recall / sample.queries if sample.queries else None
            low, high = confidence_interval(mean or 0.0, sample.queries)
            return LiveRecall(
                self.share,
                sample.queries,
                mean,
                low,
                high,
                len(self._waiting),
                sample.left_out,
                self._seconds,
                why or sample.error or self._unreported_why,
            )

    def _sample(self, version: SnapshotId) -> _Sample:
        """The sample of a version, which is about to change."""
        while len(self._samples) >= _MAX_VERSIONS and version not in self._samples:
            oldest = next(iter(self._samples))
            del self._samples[oldest]
            self._unreported.discard(oldest)
        if self._reporter is not None:
            self._unreported.add(version)
        return self._samples.setdefault(version, _Sample())

    def _run(self) -> None:
        """Measure what waits. The thread ends with the list and the last report, so it keeps no reader for longer."""
        while True:
            self._report()
            time.sleep(max(0.0, self._rested - time.monotonic()))
            with self._lock:
                drawn = self._waiting.popleft() if self._waiting else None
                if drawn is None and (not self._unreported or self._unreported_why):
                    self._running = False  # what could not be reported waits for the next query
                    return
                self._arrived.clear()
            if drawn is not None:
                self._measure(drawn)
                del drawn  # and with it a version that may not be in use any more
            elif self._reporter is not None:
                self._arrived.wait(self._reporter.seconds_until_due)

    def _measure(self, drawn: _Drawn) -> None:
        """Answer a query exactly, and compare. What it compiles serves all answers, and is not of the budget."""
        from icepuffin.ann_kernels.compiled_code import compilation_seconds  # noqa: PLC0415  numba, as the answer needs

        begun = time.thread_time() - compilation_seconds()
        try:
            recall, error = _recall(drawn.distances, drawn.exact()), ""
        except Exception as failure:  # of the store, for one: the query itself was answered
            recall, error = None, f"{type(failure).__name__}: {failure}"
            _log.warning("a query could not be answered exactly, to measure its recall: %s", failure)
        spent = time.thread_time() - compilation_seconds() - begun
        with self._lock:
            sample = self._sample(drawn.version)
            sample.error = error
            if recall is None:
                sample.left_out += 1
            else:
                sample.queries, sample.recall = sample.queries + 1, sample.recall + recall
            self._seconds += spent
            self._rested = time.monotonic() + spent / self._budget

    def _report(self) -> None:
        """Write the reports that are due. One that cannot be written is tried again with the next."""
        if self._reporter is None or self._reporter.seconds_until_due:
            return
        with self._lock:
            samples = {version: replace(self._samples[version]) for version in self._unreported}
            self._unreported.clear()
        if not samples:
            return
        unwritten = dict(samples)
        try:
            for version, sample in samples.items():
                self._reporter.report(
                    version, queries=sample.queries, recall_sum=sample.recall, left_out=sample.left_out
                )
                del unwritten[version]
            self._unreported_why = ""
        except Exception as failure:  # of the store: queries are answered and measured all the same
            self._unreported_why = f"the recall cannot be reported: {failure}"
            _log.warning("%s", self._unreported_why)
            with self._lock:
                self._unreported.update(unwritten.keys() & self._samples.keys())
        self._reporter.finished(written=not unwritten)


def _forget_in_child() -> None:
    for sampler in tuple(_samplers):
        sampler.forget()


os.register_at_fork(after_in_child=_forget_in_child)


def _recall(distances: F64, exact: F64) -> float:
    """Share of the rows of an exact answer f64[1, k] that an answer f64[k] has."""
    farthest = np.abs(exact[np.isfinite(exact)]).max(initial=0.0)
    return float(recalls_of(distances[None], exact, _EQUAL * farthest)[0])
