"""Refreshers of indexes and sketches, four writers, a compactor, an expirer, garbage collection and another
engine's ANALYZE at one table at once, in rounds, while requests and answers are lost or late and the server crashes.

After each round the laws of `_Round.require_whole` hold. Every fourth round is without icepuffin: what breaks then, the
catalog or its client broke.
"""

import contextlib
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pyiceberg.exceptions import BadRequestError, CommitFailedException, ValidationException
from pyiceberg.expressions import EqualTo, In
from pyiceberg.table import Table

from icepuffin.ops.binding.commit import _no_answer
from icepuffin.ops.binding.errors import BindingError, LostRaceError
from icepuffin.ops.errors import CatalogUnavailableError
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.storage.local_storage import to_path
from icepuffin.ops.table.snapshots import UnknownSnapshotError
from tests.campaigns.budget import BrokenPromiseError, Budget
from tests.campaigns.laws import named_files, require_collected, require_counted, require_found, require_rows, sketch
from tests.campaigns.sites import Site, open_site
from tests.conftest import STORAGE, make_rows
from tests.interop.lakes import Lake, open_lake
from tests.interop.test_concurrency import compact, expire, index_files, index_head
from tests.ops.theta import foreign

_WRITERS = 4
_FIRST_ROWS = 60
_ROWS_PER_WRITE = 20
_NAMES = ("a", "b")
_ANALYZED = ("id", "name")
"""Columns of the other engine; one is sketched by both"""
_PAUSE_SECONDS = 0.2
"""Between two collections of garbage, and two ANALYZEs"""
_TROUBLE_SECONDS = 3.0
"""The longest that is waited for a crash, or for a lock"""
_TROUBLE_CHANCE = 0.5
"""How likely it is in a round"""
_ROUND_SECONDS = 600
"""A round that takes longer is stuck"""
_GC_LAW = "gc leaves what is named and nothing else"
_TRIED_AGAIN = (UnknownSnapshotError, LostRaceError, BindingError, CatalogUnavailableError)
"""Errors after which Dagster runs a step again: the snapshot has expired, another run was first, or no answer came"""


def run(budget: Budget, catalog: str) -> None:
    """Raises BrokenPromiseError."""
    with tempfile.TemporaryDirectory() as folder, open_site(catalog, Path(folder)) as site:
        for number, rng in budget.trials():
            index_packs.PACK_BYTES = rng.choice((10_000, 64 << 20))
            with_icepuffin = number % 4 != 3
            with ExitStack() as lakes:
                open_one = partial(_opened, lakes, f"crowd_{budget.seed}_{number}", site, Path(folder))
                try:
                    _Round(open_one, site, rng, budget, with_icepuffin).run()
                except BrokenPromiseError as error:
                    if with_icepuffin:
                        raise BrokenPromiseError(f"trial {number}: {error}") from error
                    budget.notes[f"broken without icepuffin: {error}"] += 1
            budget.counts["rounds" if with_icepuffin else "rounds without icepuffin"] += 1


class _PatientLake(Lake):
    """Loads a table again where no answer comes."""

    def load(self, table: str) -> Table:
        while True:
            with contextlib.suppress(*_no_answer()):
                return super().load(table)


def _opened(lakes: ExitStack, name: str, site: Site, folder: Path, *, is_user: bool = False) -> Lake:
    settings = {**site.settings, **(site.settings_of_users if is_user else {})}
    return _PatientLake(**vars(lakes.enter_context(open_lake(name, site.address, folder, **settings))))


@dataclass
class _Round:
    """One table, and all that are at it."""

    open_one: Callable[..., Lake]
    site: Site
    rng: random.Random
    budget: Budget
    with_icepuffin: bool
    analyzed: list[str] = field(default_factory=list)
    """Files of the other engine"""

    def run(self) -> None:
        """Raises BrokenPromiseError."""
        self.open_one().create("t").append(make_rows(0, _FIRST_ROWS))
        deleted = [self.rng.sample(range(_FIRST_ROWS), 5) for _ in range(_WRITERS)]
        jobs, steps = self._jobs(deleted), self._steps()
        with self._law("who did not succeed can try again"), self.site.on_a_bad_day(self.rng, self.budget.notes):
            self._run_at_once(jobs, steps)
        self.budget.notes["ANALYZEs"] += len(self.analyzed)
        self._require_whole(deleted)

    def _jobs(self, deleted: Sequence[Sequence[int]]) -> list[Callable[[], None]]:
        jobs: list[Callable[[], None]] = []
        jobs += [partial(self._write, self.open_one(is_user=True), number, ids) for number, ids in enumerate(deleted)]
        jobs += [partial(self._at_last, self.open_one(is_user=True), change) for change in (compact, expire)]
        refreshes = [partial(index_head, name=name) for name in _NAMES] + [sketch]
        for number in range(self.site.refreshers if self.with_icepuffin else 0):
            jobs.append(partial(self._refresh, self.open_one(), refreshes[number % len(refreshes)]))
        if self.rng.random() < _TROUBLE_CHANCE:
            jobs.append(partial(self.site.make_trouble, _TROUBLE_SECONDS * self.rng.random()))
            self.budget.notes[self.site.trouble] += 1
        self.rng.shuffle(jobs)
        return jobs

    def _steps(self) -> list[Callable[[], None]]:
        """What is done again and again."""
        steps = [partial(self._at_last, self.open_one(is_user=True), self._analyze)]
        return [*steps, partial(self._collect, self.open_one())] if self.with_icepuffin else steps

    def _run_at_once(self, jobs: Sequence[Callable[[], None]], steps: Sequence[Callable[[], None]]) -> None:
        others_done = threading.Event()
        with ThreadPoolExecutor(len(jobs) + len(steps)) as pool:
            begun = time.monotonic()
            repeated = [pool.submit(_repeat, step, others_done) for step in steps]
            try:
                for job in [pool.submit(job) for job in jobs]:
                    job.result(timeout=max(1.0, _ROUND_SECONDS - (time.monotonic() - begun)))
            finally:
                others_done.set()
            for step in repeated:
                step.result()

    def _write(self, lake: Lake, number: int, ids: Sequence[int]) -> None:
        start = _FIRST_ROWS + number * _ROWS_PER_WRITE
        self._at_last(lake, partial(self._append, start=start))
        self._at_last(lake, lambda table: table.delete(In("id", ids)))

    def _append(self, table: Table, start: int) -> None:
        if table.scan(EqualTo("id", start)).to_arrow().num_rows:
            self.budget.notes["appends that were done, though their client failed"] += 1
        else:
            table.append(make_rows(start, start + _ROWS_PER_WRITE))

    def _at_last(self, lake: Lake, change: Callable[[Table], None]) -> None:
        """A client of PyIceberg that tries again, as engines do."""
        while True:
            try:
                change(lake.load("t"))
            except (CommitFailedException, BadRequestError, ValidationException, ValueError, *_no_answer()) as error:
                self._note_another_try("a user", error)
                time.sleep(0.02)
            else:
                return

    def _refresh(self, lake: Lake, refresh: Callable[[Lake], object]) -> None:
        """As Dagster does."""
        while True:
            try:
                refresh(lake)
            except _TRIED_AGAIN as error:
                self._note_another_try("icepuffin", error)
            else:
                return

    def _note_another_try(self, who: str, error: Exception) -> None:
        self.budget.notes[f"tries again of {who}, after {type(error).__name__}"] += 1

    def _analyze(self, table: Table) -> None:
        self.analyzed.append(foreign.analyze(table, _ANALYZED))

    def _collect(self, lake: Lake) -> None:
        """As if all that is published were older than the grace period: what is named stays."""
        aged = named_files(lake, _NAMES)
        for path in aged:
            with contextlib.suppress(FileNotFoundError):  # nobody names it any more
                os.utime(to_path(path), (0, 0))
        self._refresh(lake, lambda lake: collect_garbage(lake.load("t"), storage=STORAGE))
        with self._law(_GC_LAW):
            gone = aged.difference(index_files(lake)) & named_files(lake, _NAMES)
            assert not gone, f"files that are named were collected: {gone}"

    def _require_whole(self, deleted: Sequence[Sequence[int]]) -> None:
        """Raises BrokenPromiseError."""
        lake = self.open_one()
        written = set(range(_FIRST_ROWS + _WRITERS * _ROWS_PER_WRITE)).difference(*deleted)
        with self._law("each row of the writers is there once"):
            require_rows(lake, written)
        if not self.with_icepuffin:
            return
        with self._law("an index has all rows, and finds the nearest"):
            require_found(lake, written, _NAMES)
        with self._law("sketches count what the table holds"):
            require_counted(lake, _ANALYZED)
        with self._law("statistics of another engine stay"):
            lost = [path for path in self.analyzed if not to_path(path).exists()]
            assert not lost, f"deleted: {lost}"
        with self._law(_GC_LAW):
            require_collected(lake, _NAMES)

    @contextmanager
    def _law(self, name: str) -> Iterator[None]:
        try:
            yield
        except BrokenPromiseError:  # of a law within this one
            raise
        except Exception as error:
            raise BrokenPromiseError(f"{name}: {type(error).__name__}: {error}") from error
        self.budget.notes[f"times held: {name}"] += 1


def _repeat(step: Callable[[], None], others_done: threading.Event) -> None:
    """Until others are done, and once more."""
    is_last = False
    while not is_last:
        is_last = others_done.wait(_PAUSE_SECONDS)
        step()
